"""Whatever is typed by someone who does not know the tool is answered with the line that would work."""

from __future__ import annotations

import shlex

import pytest

from bisect_cfg.errors import InputError
from bisect_cfg.targets.names import parse_assignment
from bisect_cfg.targets.script import find_script

SCRIPT = """\
#!/bin/bash
export NCCL_DEBUG=INFO
CUDA_VISIBLE_DEVICES=0 accelerate launch \\
    --num_processes 2 train.py --config recipe.yaml
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "launch.sh").write_text(SCRIPT)
    (tmp_path / "recipe.yaml").write_text("learning_rate: 1.0e-6\n")
    (tmp_path / "train.py").write_text("")


LAUNCH_SH = "NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 train.py --config recipe.yaml"


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("launch.sh", f"bisect-cfg bisect -- {LAUNCH_SH}"),
        ("./launch.sh", f"bisect-cfg bisect -- {LAUNCH_SH}"),
        ("bash launch.sh", f"bisect-cfg bisect -- {LAUNCH_SH}"),
        ("bash -x ./launch.sh 2", f"bisect-cfg bisect -- {LAUNCH_SH}"),
        ("recipe.yaml", "bisect-cfg bisect -- trl grpo --config recipe.yaml"),
        ("bash -c 'accelerate launch train.py --lr 1'", "bisect-cfg bisect -- accelerate launch train.py --lr 1"),
        ("sh -ec 'cd x && A=1 torchrun --nproc_per_node 2 train.py'",
         "cd x && bisect-cfg bisect -- A=1 torchrun --nproc_per_node 2 train.py"),
        ("'accelerate launch --num_processes 2 train.py' --lr 1",
         "bisect-cfg bisect -- accelerate launch --num_processes 2 train.py --lr 1"),
        ("'python train.py'", "bisect-cfg bisect -- python train.py"),
        ("nohup python train.py --lr 1", "bisect-cfg bisect -- python train.py --lr 1"),
        ("env A=1 python train.py", "bisect-cfg bisect -- A=1 python train.py"),
        ("env A=1 B=2 nice -n 3 timeout 5 accelerate launch train.py --lr 3",
         "bisect-cfg bisect -- A=1 B=2 accelerate launch train.py --lr 3"),
        ("CUDA_VISIBLE_DEVICES=0 nice python train.py", "bisect-cfg bisect -- CUDA_VISIBLE_DEVICES=0 python train.py"),
        ("/usr/bin/env python train.py", "bisect-cfg bisect -- python train.py"),
        ("python3 -m trl grpo --config r.yaml", "bisect-cfg bisect -- trl grpo --config r.yaml"),
        ("make train LR=1e-3", "bisect-cfg bisect -- accelerate launch train.py"),
        ("horovodrun-1 -np 2 python train.py", "bisect-cfg bisect -- python train.py"),  # not installed
        ("nohup bash launch.sh", f"bisect-cfg bisect -- {LAUNCH_SH}"),
        ("sbatch-1 -N 1 launch.sh", f"bisect-cfg bisect -- {LAUNCH_SH}"),  # not installed
        ("nosuchlauncher -n 2 train.py --lr 1", "bisect-cfg bisect -- python train.py --lr 1"),
        ("ls", "bisect-cfg bisect -- accelerate launch train.py"),
        ("/bin/ls -la", "bisect-cfg bisect -- accelerate launch train.py"),
        ("torchrun --nproc_per_node 2", "torchrun --nproc_per_node 2 train.py"),
        ("accelerate launch --mixed_precision bf16", "accelerate launch --mixed_precision bf16 train.py"),
    ],
)  # fmt: skip
def test_the_line_that_would_work(typed, line):
    first, *rest = shlex.split(typed)
    with pytest.raises(InputError) as refused:
        find_script(first, rest)
    assert refused.value.advice.split("\n")[0].endswith(line)


@pytest.mark.parametrize("typed", ["ls -la", "uv run pytest"])
def test_what_is_no_training_can_be_run_as_it_stands(typed):
    with pytest.raises(InputError) as refused:
        find_script(typed.split()[0], typed.split()[1:])
    assert refused.value.advice.endswith("with --bad NAME=VALUE: then any command is run as it stands.")


def test_a_name_that_is_no_program_is_a_script_that_is_not_there():
    with pytest.raises(InputError, match="There is no script trian.py") as refused:
        find_script("trian.py")
    assert "train.py" in refused.value.advice


def test_the_script_that_was_meant_is_named_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py", "c.py", "d.py", "e.py", "train.py", "grpo_v2.py"):
        (tmp_path / name).touch()
    for typed, meant in (("grpo_v3.py", "grpo_v2.py"), ("nosuch.py", "train.py")):
        with pytest.raises(InputError) as refused:
            find_script(typed)
        assert meant in refused.value.advice and refused.value.advice.endswith("and 2 more")


def test_what_a_shell_script_exports_stands_before_its_command(tmp_path):
    path = tmp_path / "launch.sh"
    path.write_text("export FAST_MODE=1 B=2\nset -e\naccelerate launch --num_processes 2 train.py\n")
    with pytest.raises(InputError) as refused:
        find_script(str(path))
    assert refused.value.advice.endswith("-- FAST_MODE=1 B=2 accelerate launch --num_processes 2 train.py")


def test_the_line_of_a_shell_script_can_be_typed(tmp_path):
    (tmp_path / "scripts").mkdir()
    path = tmp_path / "scripts/run.sh"
    path.write_text('cd "$(dirname "$0")/../src"\nNGPU=${NGPU:-2}\n'
                    'torchrun --nproc_per_node=$NGPU \\\n  train.py "${ARGS[@]}" 2>&1 | tee log.txt\n')  # fmt: skip
    with pytest.raises(InputError) as refused:
        find_script("scripts/run.sh")
    line, values = refused.value.advice.split("\n")
    assert line.endswith(': cd src && bisect-cfg bisect -- torchrun --nproc_per_node=$NGPU train.py "${ARGS[@]}"')
    assert "$NGPU, ${ARGS[@]}" in values


@pytest.mark.parametrize(("typed", "line"), [("pkg.train", "python -m pkg.train"), ("-m", "python -m pkg.train")])
def test_a_module_is_started_by_python(typed, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        find_script(typed)
    assert refused.value.advice.endswith(line)


def test_a_file_of_good_values_that_is_not_there():
    with pytest.raises(InputError, match="--good nosuch.yaml: there is no such file"):
        parse_assignment("nosuch.yaml", "--good")


def test_a_quote_that_is_not_closed():
    with pytest.raises(InputError, match="stands in quotes"):
        find_script("python 'train.py")
