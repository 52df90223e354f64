"""A command that is no launcher is run as it was typed, and the training that it starts is the one that is studied."""

from __future__ import annotations

import sys

import pytest
from tools import QUICK
from toys import script

FAILS = """
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True, temperature=0.9)
    def step(number):
        if {} and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""


def causes(tool, *command: object) -> tuple[list[list[str]], dict]:
    study = tool.bisect(*QUICK, *command)
    assert study.result["complete"]
    return study.causes, study.result


@pytest.mark.parametrize("line", ["{python} train.py", "{python} prepare.py\n{python} train.py | cat"])
def test_a_shell_script_is_run_as_typed(tool, line):
    script(tool.folder, FAILS.format("args.bf16 and os.environ['MODE'] == 'fast'"))
    (tool.folder / "prepare.py").write_text("print('no training')\n")
    (tool.folder / "run.sh").write_text(f"export MODE=$1\n{line.format(python=sys.executable)}\n")
    few = ("--good", "temperature=0.8", "--only", "bf16") if "prepare" in line else ()
    found, result = causes(tool, *few, "--", "bash", "run.sh", "fast")
    assert found == [["bf16"]]
    assert any("trains" in note and "train.py" in note for note in result["notes"])
    # A shell that runs Python more than once cannot be held at one of them.
    assert {row["start"] for row in result["trials"][1:]} == ({"cold"} if "prepare" in line else {"config"})


def test_a_variable_behind_env_varies(tool):
    script(tool.folder, FAILS.format("args.bf16 and os.environ.get('MODE') == 'fast'"))
    found, _ = causes(tool, "--good", "env.MODE=none", "--", "env", "MODE=fast", sys.executable, "train.py")
    assert found == [["bf16", "env.MODE"]]
