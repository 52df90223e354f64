"""The lines to change: found where they are, changed so that the file means what was recommended."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from bisect_cfg.recommend.edits import Change, find_edits, unified_diff


def edited(folder: Path, text: str, *changes: Change) -> tuple[str, list[str]]:
    """A script after the edits, applied as a patch by the usual tool, and what was not found."""
    path = folder / "train.py"
    path.write_text(text)
    edits, left = find_edits(changes, (), [path], [])
    diff = unified_diff(edits)
    if diff:
        subprocess.run(["patch", "-s", str(path)], input=diff, text=True, check=True)
    return path.read_text(), left


LR = Change("learning_rate", 2e-2, 1.7e-5)


@pytest.mark.parametrize(
    "before, after",
    [
        ("GRPOConfig(learning_rate=2e-2, beta=0.0)\n", "GRPOConfig(learning_rate=1.7e-05, beta=0.0)\n"),
        ("LR = 0.02\nGRPOConfig(learning_rate=LR)\n", "LR = 1.7e-05\nGRPOConfig(learning_rate=LR)\n"),
        ('o = {"learning_rate": 0.02}\nGRPOConfig(**o)\n', 'o = {"learning_rate": 1.7e-05}\nGRPOConfig(**o)\n'),
        ("args.learning_rate = 0.02  # é\n", "args.learning_rate = 1.7e-05  # é\n"),
        ("é = f('é', learning_rate=0.02)\n", "é = f('é', learning_rate=1.7e-05)\n"),
        ("class C:\n    learning_rate: float = 0.02\n", "class C:\n    learning_rate: float = 1.7e-05\n"),
        (
            "class C:\n    learning_rate: float = field(default=0.02)\n",
            "class C:\n    learning_rate: float = field(default=1.7e-05)\n",
        ),
        ("p.add_argument('--learning-rate', default=0.02)\n", "p.add_argument('--learning-rate', default=1.7e-05)\n"),
    ],
)
def test_python(tmp_path, before, after):
    assert edited(tmp_path, before, LR) == (after, [])


@pytest.mark.parametrize(
    "text",
    [
        "GRPOConfig(learning_rate=0.01)\n",
        "GRPOConfig(learning_rate=2 * rate)\n",
        "LR = 0.02\nLR = LR * 2\nGRPOConfig(learning_rate=LR)\n",
        "# learning_rate=0.02\n",
        "this is no Python learning_rate=0.02\n",
    ],
)
def test_what_is_not_the_value_is_left_alone(tmp_path, text):
    assert edited(tmp_path, text, LR) == (text, ["learning_rate"])


def test_dtypes_and_removal(tmp_path):
    text = 'm = M.from_pretrained(folder, dtype=torch.float16)\n'
    assert edited(tmp_path, text, Change("model.dtype", "float16", "float32"))[0].endswith("dtype=torch.float32)\n")
    gone, left = edited(tmp_path, text, Change("model.dtype", "float16", None))
    assert (gone, left) == ("m = M.from_pretrained(folder)\n", [])
    lines = "GRPOConfig(\n    optim='adamw_torch',\n    beta=0.1,\n)\n"
    gone, _ = edited(tmp_path, lines, Change("optim", "adamw_torch", None))
    assert gone == "GRPOConfig(\n    beta=0.1,\n)\n"


def test_two_changes_in_one_line(tmp_path):
    text = "GRPOConfig(learning_rate=0.02, beta=0.5)\n"
    assert edited(tmp_path, text, LR, Change("beta", 0.5, 0.04))[0] == "GRPOConfig(learning_rate=1.7e-05, beta=0.04)\n"


@pytest.mark.parametrize(
    "text",
    [
        "a = GRPOConfig(beta=0.5)\n",
        "a = GRPOConfig(\n    beta=0.5,\n)\n",
        "a = GRPOConfig(\n    optim='sgd', beta=0.5)\n",
        "a = GRPOConfig(\n    beta=0.5)\n",
        "a = GRPOConfig(\n    beta=0.5,  # why\n)\n",
    ],
)
def test_a_setting_that_the_script_does_not_mention_is_added(tmp_path, text):
    after, left = edited(tmp_path, text, Change("adam_epsilon", 1e-8, 1e-6, added=True), Change("beta", 0.5, 0.04))
    seen = {}
    exec(after, {"GRPOConfig": lambda **settings: seen.update(settings)})
    assert left == [] and seen["adam_epsilon"] == 1e-6 and seen["beta"] == 0.04


def test_yaml_keeps_its_comments(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("# mine\nlearning_rate: 0.02   # hot\nbf16: true\noptim: sgd\n")
    changes = [LR, Change("bf16", True, False), Change("optim", "sgd", None)]
    edits, left = find_edits(changes, (), [], [path])
    assert left == [] and [str(edit) for edit in edits][0] == (
        f"{path}:2: learning_rate: 0.02   # hot -> learning_rate: 1.7e-05   # hot"
    )
    subprocess.run(["patch", "-s", str(path)], input=unified_diff(edits), text=True, check=True)
    assert path.read_text() == "# mine\nlearning_rate: 1.7e-05   # hot\nbf16: false\n"
    path.write_text("learning_rate: 0.02\n")
    edits, _ = find_edits([Change("learning_rate", 0.02, 1e-6)], (), [], [path])
    assert yaml.safe_load(edits[0].new) == {"learning_rate": 1e-6}


@pytest.mark.parametrize("arguments", [["--learning_rate", "2e-2"], ["--learning-rate=0.02"]])
def test_flags_win(tmp_path, arguments):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 0.02\n")
    edits, left = find_edits([LR], arguments, [], [path])
    assert left == [] and [edit.path for edit in edits] == [None]
    assert "1.7e-05" in str(edits[0]) and "command line" in str(edits[0])
