"""Who speaks when a run ends before it has trained: the launcher, or the script."""

from __future__ import annotations

import json

import pytest

from bisect_cfg.probe.protocol import Raised
from bisect_cfg.study.no_training import launched_by, refusal

RUN = "/env/lib/python3.11/site-packages/torch/distributed/run.py"
LAUNCH = "/env/lib/python3.11/site-packages/accelerate/commands/launch.py"


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (["import os", "!pip install trl\n!A=1 accelerate launch train.py \\\n  --lr 3"],
         "A=1 accelerate launch train.py --lr 3"),
        (["%%bash\ncd x\ntrl grpo --config r.yaml"], "trl grpo --config r.yaml"),
        (["!nvidia-smi", "accelerate = 1\naccelerate"], ""),
    ],
)  # fmt: skip
def test_what_a_notebook_starts_in_a_shell(tmp_path, cells, line):
    cells = [{"cell_type": "code", "source": source} for source in cells]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    assert launched_by(tmp_path / "n.ipynb") == line


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("usage: x\ntorchrun: error: unrecognized arguments: --nosuch\n", "unrecognized arguments: --nosuch"),
        ("usage: x\naccelerate <command> [<args>] launch: error: argument --num_processes: invalid int value: 'two'",
         "argument --num_processes: invalid int value: 'two'"),
        ("usage: x\nAccelerate CLI tool: error: unrecognized arguments: --nm_processes\n",
         "unrecognized arguments: --nm_processes"),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --nosuch\n", ""),
        ("ValueError: nothing of a launcher's", ""),
    ],
)  # fmt: skip
def test_flags_that_a_launcher_refuses(log, said):
    assert refusal(log, None) == said


@pytest.mark.parametrize(
    ("kind", "last", "refused"),
    [
        ("ValueError", LAUNCH, True),
        ("ValueError", RUN, True),
        ("CalledProcessError", LAUNCH, False),
        ("ChildFailedError", RUN, False),
        ("ValueError", "/home/me/train.py", False),
    ],
)
def test_a_launcher_that_dies_of_itself(kind, last, refused):
    raised = Raised(kind, "You need to use at least 2 processes", [("/bin/accelerate", 3, "main"), (last, 7, "main")])
    assert refusal("", raised) == ("ValueError: You need to use at least 2 processes" if refused else "")


def test_a_launcher_that_dies_within_pythons_own_code():
    inner = [("<string>", 34, "__init__"), ("/home/me/.pyenv/versions/3.11.7/lib/python3.11/enum.py", 712, "__call__")]
    said = "'FDSP' is not a valid DistributedType"
    raised = Raised("ValueError", said, [("/bin/accelerate", 3, "main"), (LAUNCH, 7, "main"), *inner])
    assert refusal("", raised) == f"ValueError: {said}"
    raised = Raised("ValueError", said, [(LAUNCH, 7, "main"), ("/home/me/train.py", 3, "<module>"), *inner])
    assert refusal("", raised) == ""
