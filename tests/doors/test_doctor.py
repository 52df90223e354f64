"""doctor: as a process, on stand-in libraries and on recorded environments; what it finds, and when it is silent."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
import toys

REPORTS = sorted((Path(__file__).parents[1] / "doctor" / "reports").glob("*.json"))

TRAIN = """
    import sys
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(output_dir="out", learning_rate=3e-6, bf16=True, **{settings})
    args.weight_decay = 0.5
    trainer = GRPOTrainer(args=args)
    open("built.txt", "w")
    trainer.train()
"""

LAUNCHER = """
    import os, subprocess, sys

    ranks = []
    for rank in range(2):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        if os.path.isdir(f"rank{rank}"):
            environment["PYTHONPATH"] += os.pathsep + os.path.abspath(f"rank{rank}")
        ranks.append(subprocess.Popen([sys.executable, *sys.argv[1:]], env=environment))
    sys.exit(max(abs(rank.wait()) for rank in ranks))
"""

TORCH = """
    import os, signal

    class version:
        cuda = "12.1"

    class Tensor:
        def __init__(self, good=True):
            self.good = good
        def __getattr__(self, name):
            return lambda *rest, **more: self
        def __matmul__(self, other): return self
        def __sub__(self, other): return self
        def __truediv__(self, other): return self
        def __float__(self): return 0.001
        def __bool__(self): return self.good

    class cuda:
        is_available = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 2)
        get_device_capability = staticmethod(lambda index: (9, 0))
        synchronize = staticmethod(lambda *device: None)

    class nn:
        class Linear:
            def __init__(self, inner, columns, device, dtype):
                self.key = (dtype, inner, columns)
            def __call__(self, rows):
                if self.key in (("bfloat16", 1024, 4096), ("float16", 14688, 1536)):
                    os.kill(os.getpid(), signal.SIGFPE)  # what an affected H20 does
                return Tensor()

    class no_grad:
        def __enter__(self): pass
        def __exit__(self, *error): pass

    def arange(count, device):
        tensor = Tensor()
        tensor.__dict__["device"] = device
        return tensor

    bfloat16, float16 = "bfloat16", "float16"
    manual_seed = lambda seed: None
    randn = ones = lambda *size, **more: Tensor()
    isfinite = lambda tensor: tensor
    equal = lambda sent, arrived: sent.__dict__.get("device") != "cuda:1"  # from card 1 garbage arrives
"""

SMI = """#!/bin/sh
echo "NVIDIA H20, 97871, 550.54.15, 9.0"
echo "NVIDIA H20, 97871, 550.54.15, 9.0"
"""


def script(folder: Path, settings: str = "{}", text: str = TRAIN) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text).replace("{settings}", settings))
    return path


def package(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def answer(said) -> dict:
    assert said.status in (0, 1), said.all
    return json.loads(said.out)


def ids(said) -> list[str]:
    return [finding["id"] for finding in answer(said)["findings"] if finding["level"] != "note"]


# ------------------------------------------------------------------------------------------------ the environment


def test_this_environment_is_clean(real_tool):
    said = real_tool("doctor")
    assert said.status == 0, said.all
    assert "torch 2." in said.out and "Nothing known is wrong with this environment" in said.out
    assert said.out.count("\n") < 8


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_environments_of_the_reports(tool, path):
    said = tool("doctor", "--fingerprint", str(path), "--json")
    assert said.status == 1
    assert ids(said) == json.loads(path.read_text())["expected"]
    for finding in answer(said)["findings"]:
        assert finding["title"] and finding["why"] and finding["cure"] and finding["source"]
    text = tool("doctor", "--fingerprint", str(path)).out
    assert "Do: " in text and "https://" in text and "GPU probes skipped: the environment is another machine's" in text


def test_what_it_prints_it_can_read(tool):
    first = tool("doctor", "--json")
    (tool.folder / "a.json").write_text(first.out)
    again = tool("doctor", "--fingerprint", "a.json", "--json")
    assert answer(again)["environment"]["packages"] == answer(first)["environment"]["packages"]


def test_two_machines_are_compared(tool):
    one = answer(tool("doctor", "--json"))
    (tool.folder / "a.json").write_text(json.dumps(one))
    one["environment"]["packages"]["trl"] = "0.1"
    (tool.folder / "b.json").write_text(json.dumps(one))
    said = tool("doctor", "--fingerprint", "a.json", "--fingerprint", "b.json")
    assert said.status == 1 and "Not all processes have the same trl" in said.out
    assert "0.1 on b.json" in " ".join(said.out.split())


# ------------------------------------------------------------------------------------------------ a script


def test_a_script_is_looked_at_and_not_trained(tool):
    script(tool.folder)
    said = tool("doctor", "train.py", "--json")
    assert said.status == 0, said.all
    seen = answer(said)["configuration"]
    assert (seen["args.learning_rate"], seen["args.bf16"], seen["args.weight_decay"]) == (3e-6, True, 0.5)
    assert seen["args.max_grad_norm"] == 1.0
    assert sorted(path.name for path in tool.folder.iterdir()) == ["train.py"]
    tool.assert_nothing_left()


def test_rules_see_what_the_script_sets(tool):
    script(tool.folder, "dict(max_grad_norm=0.0, num_generations=3)")
    said = tool("doctor", "train.py")
    assert said.status == 1
    assert said.out.index("PROBLEM  The generation batch") < said.out.index("WARNING  Gradient clipping is off")
    assert said.out.rstrip().startswith("Python") and "2 findings" in said.out


def test_another_interpreter(tool):
    script(tool.folder)
    assert tool("doctor", "train.py", "--python", sys.executable).status == 0


# ------------------------------------------------------------------------------------------------ several processes


@pytest.fixture
def launcher(tool) -> list[str]:
    (tool.folder / "launch").write_text(f"#!{sys.executable}\n" + textwrap.dedent(LAUNCHER))
    (tool.folder / "launch").chmod(0o755)
    tool.environment["PATH"] = str(tool.folder) + os.pathsep + tool.environment["PATH"]
    return ["doctor", "--json", "--", "launch", "train.py"]


def test_every_process_tells_of_itself(tool, launcher):
    script(tool.folder)
    said = tool(*launcher)
    assert said.status == 0, said.all
    found = answer(said)
    assert [one["rank"] for one in found["environments"]] == [0, 1]
    assert found["environment"]["launcher"] == "launch" and found["environment"]["local_ranks"] == 2
    assert found["configuration"]["launch.num_processes"] == 2
    assert not (tool.folder / "built.txt").exists() and not list(tool.folder.glob(".bisect*"))
    tool.assert_nothing_left()


def test_processes_that_differ(tool, launcher):
    script(tool.folder)
    package(tool.folder / "rank0", "deepspeed", "0.16.0")
    package(tool.folder / "rank1", "deepspeed", "0.15.4")
    (finding,) = [one for one in answer(tool(*launcher))["findings"] if one["level"] == "problem"]
    assert finding["title"] == "Not all processes have the same deepspeed"
    assert "0.16.0 on" in finding["why"] and "(rank 1)" in finding["why"]


def test_a_process_that_dies(tool, launcher):
    script(tool.folder, "dict() if __import__('os').environ['RANK'] == '0' else 1/0")
    said = tool(*launcher)
    assert ids(said) == ["script-dies"] and "ZeroDivisionError" in said.out


def test_a_process_that_is_killed(tool, launcher):
    script(
        tool.folder,
        "dict() if os.environ['RANK'] == '0' else os.kill(os.getpid(), 9)",
        "import os\n" + textwrap.dedent(TRAIN),
    )
    (finding,) = [one for one in answer(tool(*launcher))["findings"] if one["level"] == "problem"]
    assert finding["id"] == "ranks-missing" and "rank 1 of 2" in finding["why"]


# ------------------------------------------------------------------------------------------------ GPUs


def test_gpus_that_do_not_compute_what_they_should(fresh_tool):
    machine = fresh_tool.folder / "h20"
    (machine / "torch").mkdir(parents=True)
    (machine / "torch" / "__init__.py").write_text(textwrap.dedent(TORCH))
    package(machine, "torch", "2.5.1+cu121")
    package(machine, "nvidia_cublas_cu12", "12.1.3.1")
    (machine / "nvidia-smi").write_text(SMI)
    (machine / "nvidia-smi").chmod(0o755)
    fresh_tool.environment["PATH"] = str(machine) + os.pathsep + fresh_tool.environment["PATH"]
    fresh_tool.environment["PYTHONPATH"] = str(machine)
    said = fresh_tool("doctor", "--json")
    assert ids(said) == ["h20-cublas-sigfpe", "gpu-sigfpe", "gpu-sigfpe", "gpu-copy"], said.all
    probes = {one["probe"]: one.get("signal") or one.get("error") for one in answer(said)["probes"]}
    assert len(probes) == 7 and sum(what is None for what in probes.values()) == 4
    assert probes["H20 product float16 (64,14688)x(14688,1536)"] == "SIGFPE"
    assert "not what was sent" in probes["copy cuda:1 to cuda:0"]
    assert "GPU probes: 4 of 7 passed" in fresh_tool("doctor").out


# ------------------------------------------------------------------------------------------------ real libraries


@pytest.mark.slow
def test_real_processes_meet_and_stop(real_tool):
    toys.write(
        real_tool.folder,
        f"""
        import toy
        from trl import GRPOConfig

        toy.trainer(GRPOConfig(output_dir="out", {toys.settings(learning_rate=1e-3)})).train()
        """,
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py"]
    said = real_tool("doctor", "--json", "--", *torchrun)
    assert ids(said) == ["learning-rate"], said.all
    assert [one["rank"] for one in answer(said)["environments"]] == [0, 1]
    assert answer(said)["environment"]["launcher"] == "torchrun"
    left = {path.name for path in real_tool.folder.iterdir()} - {"__pycache__"}
    assert left == {"toy.py", "train.py"}
