"""The user's own command, taken apart: what starts what, with which words."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from bisect_cfg.errors import InputError
from bisect_cfg.targets.launchers import accelerate_launch, find_command, is_launcher, take_apart
from bisect_cfg.targets.script import find_script

UV_VALUES = ("--with", "--extra", "-p")


@pytest.mark.parametrize(
    ("command", "kind", "before", "program", "arguments"),
    [
        ("accelerate launch train.py --lr 1", "accelerate", "accelerate launch", "train.py", "--lr 1"),
        ("accelerate launch --multi_gpu --num_processes 2 train.py", "accelerate",
         "accelerate launch --multi_gpu --num_processes 2", "train.py", ""),
        ("accelerate launch --config_file ds.yaml train.py --config r.yaml", "accelerate",
         "accelerate launch --config_file ds.yaml", "train.py", "--config r.yaml"),
        ("accelerate launch --num_processes 2 -m pkg.train --lr 1", "accelerate",
         "accelerate launch --num_processes 2 -m", "pkg.train", "--lr 1"),
        ("accelerate-launch train.py", "accelerate", "accelerate-launch", "train.py", ""),
        ("torchrun --nproc_per_node=2 train.py --a train.py", "torchrun", "torchrun --nproc_per_node=2", "train.py",
         "--a train.py"),
        ("torchrun --nproc-per-node 2 -m pkg.train", "torchrun", "torchrun --nproc-per-node 2 -m", "pkg.train", ""),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", "torchrun",
         "python -m torch.distributed.run --nproc_per_node 2", "train.py", ""),
        ("python3.11 -m accelerate.commands.launch train.py", "accelerate", "python3.11 -m accelerate.commands.launch",
         "train.py", ""),
        ("deepspeed --num_gpus 2 train.py --deepspeed ds.json", "deepspeed", "deepspeed --num_gpus 2", "train.py",
         "--deepspeed ds.json"),
        ("python train.py --lr 1", "python", "python", "train.py", "--lr 1"),
        ("python -u -X dev train.py -m x", "python", "python -u -X dev", "train.py", "-m x"),
        ("python -m pkg.train --lr 1", "python", "python -m", "pkg.train", "--lr 1"),
        ("trl grpo --config r.yaml", "trl", "trl", "grpo", "--config r.yaml"),
        ("uv run train.py --lr 1", "python", "uv run", "train.py", "--lr 1"),
        ("uv run --with trl python train.py", "python", "uv run --with trl python", "train.py", ""),
        ("uv run -m pkg.train", "python", "uv run python -m", "pkg.train", ""),
        ("uv run --extra gpu accelerate launch train.py", "accelerate", "uv run --extra gpu accelerate launch",
         "train.py", ""),
        ("bash -x run.sh 2 --lr 1", "program", "bash -x", "run.sh", "2 --lr 1"),
        ("make train LR=1", "program", "", "make", "train LR=1"),
        ("nice -n 3 python train.py --lr 1", "program", "nice -n 3 python", "train.py", "--lr 1"),
        ("uv run bash run.sh", "program", "uv run bash", "run.sh", ""),
        ("env -u A python train.py", "program", "env -u A python", "train.py", ""),
    ],
)  # fmt: skip
def test_what_starts_what(command, kind, before, program, arguments):
    launch, rest = take_apart(shlex.split(command), ("train.py", "run.sh").__contains__, UV_VALUES.__contains__)
    assert (launch.kind, shlex.join(launch.before)) == (kind, before)
    assert (launch.program, shlex.join(rest)) == (program, arguments)
    whole = launch.command(rest)
    assert whole == shlex.split(command.replace("uv run -m", "uv run python -m"))


@pytest.mark.parametrize("env", ["", "env ", "/usr/bin/env "])
def test_variables_stand_in_front(env):
    command = f"{env}CUDA_VISIBLE_DEVICES=0,1 A='b c' accelerate launch train.py"
    launch, _ = take_apart(shlex.split(command), lambda word: True)
    assert dict(launch.variables) == {"CUDA_VISIBLE_DEVICES": "0,1", "A": "b c"}
    assert launch.before == ("accelerate", "launch")


@pytest.mark.parametrize(
    ("command", "with_port"),
    [
        ("accelerate launch --multi_gpu train.py x", "accelerate launch --multi_gpu --main_process_port 7 train.py x"),
        ("torchrun --nproc_per_node 2 train.py x", "torchrun --nproc_per_node 2 --master_port 7 train.py x"),
        ("torchrun --standalone train.py",
         "torchrun --standalone --rdzv-endpoint 127.0.0.1:7 --rdzv-id bisect-cfg-7 train.py"),
        ("deepspeed train.py", "deepspeed --master_port 7 train.py"),
        ("trl grpo --config r.yaml", "trl grpo --config r.yaml --main_process_port 7"),
        ("python -m pkg.train x", "python -m pkg.train x"),
    ],
)  # fmt: skip
def test_a_port_of_its_own(command, with_port):
    launch, arguments = take_apart(shlex.split(command), lambda word: word == "train.py")
    assert shlex.join(launch.command(arguments, 7)) == with_port


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("accelerate launch --num_machines 2 train.py", "several machines"),
        ("torchrun --nnodes=1:4 train.py", "several machines"),
        ("deepspeed --hostfile hosts train.py", "several machines"),
        ("accelerate launch missing.py", "There is no script missing.py"),
        ("torchrun --nproc_per_node 2", "There is no Python script"),
        ("python -I train.py", "cannot be watched"),
        ("python -c pass", "a file or a module"),
        ("A=b", "starts nothing"),
        ("uv run", "needs a program"),
    ],
)
def test_what_cannot_be_run_is_said(command, says):
    with pytest.raises(InputError, match=says):
        take_apart(shlex.split(command), lambda word: word == "train.py")


def test_what_begins_a_command():
    assert all(map(is_launcher, ("accelerate", "/a/torchrun", "python3.12", "uv", "A=1", "trl")))
    assert not any(map(is_launcher, ("train.py", "studies/x", "launch.sh", "--lr", "recipe.yaml")))


def test_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for path in ("train.py", "pkg/train.py", "pkg/__init__.py"):
        (tmp_path / path).write_text("")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    launcher = bin_ / "torchrun"
    launcher.write_text(f"#!{sys.executable}\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")

    launch, *found = find_command(["torchrun", "--nproc_per_node", "2", "train.py", "--lr", "1"])
    assert found == [Path("train.py"), ("--lr", "1"), sys.executable]
    assert launch.before == (str(launcher), "--nproc_per_node", "2")

    module = find_script(sys.executable, ["-m", "pkg.train", "--lr", "1"])
    assert module.path == tmp_path / "pkg" / "train.py"
    assert module.command == [sys.executable, "-m", "pkg.train", "--lr", "1"]
    plain = find_script(sys.executable, ["train.py", "--lr", "1"])
    assert plain.launch is None and plain.command == [sys.executable, "train.py", "--lr", "1"]

    with pytest.raises(InputError, match="deepspeed is not installed here"):
        find_command(["deepspeed", "train.py"])
    with pytest.raises(InputError, match="There is no module pkg.other"):
        find_command([sys.executable, "-m", "pkg.other"])

    (tmp_path / "run.sh").write_text("python train.py\n")
    shell = find_script("bash", ["-x", "run.sh", "2"], sys.executable)
    assert (shell.path, shell.arguments, shell.launcher) == (Path("run.sh"), ("2",), "program")
    assert shell.command[1:] == ["-x", "run.sh", "2"] and shell.python == sys.executable
    assert find_script("env", ["A=1", sys.executable, "train.py"]).variables == {"A": "1"}


def test_another_launch_is_another_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    spoken = [
        find_script("train.py", ["--lr", "1"]).identity(),
        find_script(sys.executable, ["-u", "train.py", "--lr", "1"]).identity(),
        find_script("A=1", [sys.executable, "train.py", "--lr", "1"]).identity(),
    ]
    assert len({str(one["arguments"]) for one in spoken}) == 3


@pytest.mark.parametrize(
    ("typed", "says", "advice"),
    [
        ("OMP_NUM_THREADS=1 train.py", "train.py cannot be executed", "python train.py"),
        ("nosuchlauncher -n 2 train.py", "nosuchlauncher is not installed here", "pip install nosuchlauncher"),
        ("run.sh", "run.sh is not a Python script", "bisect-cfg bisect -- bash run.sh"),
        ("recipe.yaml", "recipe.yaml is not a Python script", "bisect-cfg bisect -- trl grpo --config recipe.yaml"),
        ("trian.py", "There is no script trian.py", "train.py"),
        ("pkg.train", "There is no script pkg.train", "python -m pkg.train"),
    ],
)
def test_what_is_no_command_is_said(tmp_path, monkeypatch, typed, says, advice):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "run.sh", "recipe.yaml"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=says) as refused:
        find_script(typed.split()[0], typed.split()[1:])
    assert advice in refused.value.advice


def test_accelerates_file_may_ask_for_several_machines(tmp_path):
    path = tmp_path / "launch.yaml"
    command = ["accelerate", "launch", "--config_file", str(path), "train.py"]
    take_apart(command, lambda word: word == "train.py")  # accelerate says that there is no file
    path.write_text("distributed_type: MULTI_GPU\nnum_machines: 2\n")
    with pytest.raises(InputError, match="num_machines in .*=2 asks for several machines"):
        take_apart(command, lambda word: word == "train.py")


@pytest.mark.parametrize(
    ("command", "processes", "instead_of", "with_them"),
    [
        ("torchrun --nproc_per_node 4 train.py -x", 2, 4, "torchrun --nproc_per_node 4 --nproc_per_node 2 train.py -x"),
        ("accelerate launch train.py", 2, 1, "accelerate launch --multi_gpu --num_processes 2 train.py"),
        ("accelerate launch --config_file a.yaml train.py", 2, 4,
         "accelerate launch --config_file a.yaml --num_processes 2 train.py"),
        ("accelerate launch --use_fsdp train.py", 2, 1, "accelerate launch --use_fsdp --num_processes 2 train.py"),
        ("trl grpo --config r.yaml", 2, 2, "trl grpo --config r.yaml --num_processes 2"),
        ("deepspeed --num_gpus 4 train.py", 2, 4, "deepspeed --num_gpus 4 --num_gpus 2 train.py"),
    ],
)  # fmt: skip
def test_another_number_of_processes(command, processes, instead_of, with_them):
    launch, arguments = take_apart(command.split(), lambda path: True)
    words = launch.with_processes(processes, instead_of).command(arguments, 7)
    at = next(place for place, word in enumerate(words) if word in ("--main_process_port", "--master_port"))
    assert shlex.join([*words[:at], *words[at + 2 :]]) == with_them


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("torchrun --nproc-per-node=3 train.py --num_processes 9", 3),
        ("accelerate launch --config_file a.yaml train.py", None),
        ("accelerate launch --num_processes 2 train.py", 2),
        ("trl grpo --num_processes 2 --beta 1", 2),
        ("torchrun --nproc_per_node gpu train.py", None),
        ("python train.py --num_processes 2", None),
    ],
)
def test_how_many_processes_are_asked_for(command, asked):
    launch, arguments = take_apart(command.split(), lambda path: path == "train.py")
    assert launch.processes_asked(arguments) == asked


@pytest.mark.parametrize(
    ("command", "launched"),
    [
        ("python train.py -x", "python -m accelerate.commands.launch --multi_gpu train.py -x"),
        ("python -m pkg.train -x", "python -m accelerate.commands.launch --multi_gpu -m pkg.train -x"),
        ("uv run train.py -x", "uv run accelerate launch --multi_gpu train.py -x"),
        ("uv run -m pkg.train -x", "uv run accelerate launch --multi_gpu -m pkg.train -x"),
    ],
)
def test_what_python_starts_started_by_accelerate(command, launched):
    launch, arguments = take_apart(command.split(), lambda path: True)
    plain = command.startswith("python train")
    found = accelerate_launch(None if plain else launch, launch.program, "python")
    assert shlex.join(found.command(arguments)) == launched
