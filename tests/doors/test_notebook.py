"""A notebook as TARGET, with the stand-in library and once with TRL's own trainer."""

from __future__ import annotations

import json
import os

import toys
from tools import ForkedTool, assert_clear

SETUP = """
    %%capture
    !pip install -q trl
"""
IMPORTS = """
    %matplotlib inline
    import os, signal
    os.environ["WANDB_DISABLED"] = "true"
    from trl import GRPOConfig, GRPOTrainer
"""
CONFIG = """
    RATE = 3e-4
    args = GRPOConfig(output_dir="out", learning_rate=RATE, weight_decay=0.1, bf16=True, temperature=0.9)
"""
DIES = """
    def step(number):
        if args.bf16 and number == 3:
            raise ValueError("no such number")
"""
TRAIN = """
    %%time
    trainer = GRPOTrainer(args, step)
    trainer.train()
"""


def answer(tool: ForkedTool, *more: str, name: str = "train.ipynb") -> tuple[str, dict]:
    said = tool("bisect", name, "--study", "study", "--no-recommend", *more)
    assert said.status == 0, said.all
    return said.out, json.loads((tool.folder / "study" / "result.json").read_text())


def test_a_notebook_is_bisected(tool: ForkedTool) -> None:
    path = toys.notebook(tool.folder, SETUP, IMPORTS, CONFIG, DIES, TRAIN)
    before = path.read_bytes()
    printed, result = answer(tool)
    (cause,) = result["causes"]
    assert list(cause["parameters"]) == ["bf16"]
    assert result["target"]["script"] == "train.ipynb"
    assert result["where"]["line"] == 'train.ipynb, cell 4, line 3 in step: raise ValueError("no such number")'
    assert result["where"]["operation"] == "step"
    assert 'cell 4, line 3 in step: raise ValueError("no such number")' in printed
    assert "Not run, because trials install nothing: !pip install -q trl (cell 1, line 2)." in printed
    (edit,) = result["recommendation"]["edits"]
    assert (edit["file"], edit["cell"], edit["line"], edit["settings"]) == ("train.ipynb", 3, 2, ["bf16"])
    assert "train.ipynb, cell 3, line 2" in printed
    diff = (tool.folder / "study" / "safe_config.diff").read_text()
    assert diff.startswith("--- train.ipynb, cell 3\n+++ train.ipynb, cell 3\n@@ -1,2 +1,2 @@\n RATE = 3e-4\n-args =")
    assert path.read_bytes() == before and not (tool.folder / "out").exists()
    tool.assert_nothing_left()


def test_a_study_of_a_notebook_goes_on(tool: ForkedTool) -> None:
    path = toys.notebook(tool.folder, IMPORTS, CONFIG, DIES, TRAIN)
    assert tool("bisect", "train.ipynb", "--study", "study", "--no-recommend", "--max-trials", 1).status == 3
    # Its cells were run again meanwhile, and Jupyter has saved what they printed.
    path.write_text(path.read_text().replace('"execution_count": 1', '"execution_count": 21').replace("of 1", "other"))
    printed, result = answer(tool)
    assert "Continuing the study" in printed and list(result["causes"][0]["parameters"]) == ["bf16"]
    toys.notebook(tool.folder, IMPORTS, CONFIG, DIES.replace("3", "4"), TRAIN)
    said = tool("bisect", "train.ipynb", "--study", "study")
    assert_clear(said, "the script train.ipynb changed", "--restart")
    tool.assert_nothing_left()


def test_a_trial_of_a_notebook_by_hand_and_without_its_secrets(tool: ForkedTool) -> None:
    secret = "hf_" + "a1B2" * 9
    toys.notebook(tool.folder, f"token = {secret!r}", IMPORTS, CONFIG, DIES, TRAIN)
    answer(tool, "--start", "cold")
    script = tool.folder / "study" / "train.ipynb.py"
    assert "# %% In [5]" in script.read_text() and secret not in script.read_text()
    assert "Continuing the study" in answer(tool, "--start", "cold")[0]
    assert secret not in script.read_text()
    commands = sorted(tool.folder.glob("study/trials/*/command.sh"))
    assert commands and str(script) in commands[0].read_text()
    status = os.system(f"PYTHONPATH={tool.environment['PYTHONPATH']} sh {tool.folder}/study/trials/0/command.sh")
    assert os.waitstatus_to_exitcode(status) == 1
    for path in tool.folder.glob("study/**/*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_doctor_looks_at_a_notebook(tool: ForkedTool) -> None:
    toys.notebook(tool.folder, IMPORTS, CONFIG, DIES, TRAIN)
    said = tool("doctor", "train.ipynb", "--json")
    assert json.loads(said.out)["configuration"]["args.learning_rate"] == 3e-4, said.all
