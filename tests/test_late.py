"""The studies of failures that come late: the command a user would type, and the answer that the study expects."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools import Said, Tool

STUDIES = Path(__file__).parent.parent / "studies"

pytestmark = [pytest.mark.training, pytest.mark.slow]

PATIENCE = 600
"""Seconds, on a machine that is busy."""


def bisected(tool: Tool, name: str, *options: object, arguments: tuple[object, ...] = ()) -> tuple[Said, dict]:
    """What the tool finds in a study, whose script has these arguments."""
    target = (STUDIES / name, "--", *arguments)
    said = tool("bisect", "--study", "s", "--no-recommend", *options, *target, seconds=PATIENCE)
    assert said.status == 0, said.all
    return said, json.loads((tool.folder / "s/result.json").read_text())


def assert_expected(result: dict, name: str) -> None:
    """The study's answer."""
    expected = json.loads((STUDIES / name / "expected.json").read_text())
    assert result["status"] == expected["status"] and result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    assert (result["known_issue"] or {}).get("id") == expected["known_issue"]


FEW = [word for name in ("learning_rate", "temperature") for word in ("--only", name)]


def test_a_collapse_that_is_due_early(real_tool):
    _, result = bisected(real_tool, "late_collapse", "--no-where", *FEW, arguments=("--all_from", 10))
    assert_expected(result, "late_collapse")
    assert 10 < result["failure"]["step"] <= 30
    real_tool.assert_nothing_left()


def from_log(folder: Path, script: Path, *arguments: object) -> Path:
    """The log of a run that the user has made, with its checkpoints beside it."""
    command = [sys.executable, str(script), *map(str, arguments), "--output_dir", str(folder / "out")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    path = folder / "train.log"
    path.write_text(done.stdout + done.stderr)
    return path


@pytest.mark.parametrize("way", ["own", "log", "theirs"])
def test_a_late_collapse_is_isolated_from_shortly_before_it(real_tool, way):
    """From the user's checkpoint, from the tool's own, and with only a log of a run that failed."""
    options: list[object] = ["--until-failure"]
    if way != "own":
        log = from_log(
            real_tool.folder, STUDIES / "late_collapse/train.py", "--all_from", 200, "--max_steps", 230,
            "--save_strategy", "steps", "--save_steps", 190,
        )  # fmt: skip
        options = ["--log", log] if way == "log" else ["--from-checkpoint", real_tool.folder / "out/checkpoint-190"]
        if way == "log":
            shutil.rmtree(real_tool.folder / "out")
    _, result = bisected(real_tool, "late_collapse", "--no-where", *options, arguments=("--all_from", 200))
    assert_expected(result, "late_collapse")
    assert 200 < result["failure"]["step"] <= 220
    assert 150 <= result["origin"]["step"] <= 200


def test_a_late_overflow_is_isolated_from_shortly_before_it(real_tool):
    _, result = bisected(real_tool, "late_overflow", "--until-failure")
    assert_expected(result, "late_overflow")
    assert result["origin"]["kind"] == "state" and result["failure"]["step"] - 32 <= result["origin"]["step"]
    expected = json.loads((STUDIES / "late_overflow" / "expected.json").read_text())["where"]
    assert all(value in result["where"][key] for key, value in expected.items())
