"""Two processes of real TRL under real torchrun, which meet over gloo: the study `two_ranks`, with fewer of its
settings varied, to be done sooner."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parent.parent / "studies" / "two_ranks"

pytestmark = pytest.mark.training

TIMES = {"time": 0, "step_time": 0}
"""Of a row of metrics, what is each process's own."""

PATIENCE = 600
"""Seconds, on a machine that is busy; on an idle one it takes less than one minute."""


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_study(real_tool):
    expected = json.loads((STUDY / "expected.json").read_text())
    real_tool.environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    command = [word.format(folder=STUDY) for word in expected["command"]]
    (cause,) = expected["causes"]
    options = [word for name in (*cause, "learning_rate", "max_completion_length") for word in ("--only", name)]
    said = real_tool("bisect", "--study", "s", "--no-recommend", "--no-where", *options, *command, seconds=PATIENCE)
    assert said.status == 0, said.all
    real_tool.assert_nothing_left()
    folder = real_tool.folder / "s"
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == expected["status"] and result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    assert result["known_issue"]["id"] == expected["known_issue"]
    assert {one["start"] for one in result["trials"][1:]} == {"imports"}

    together = [path for path in (folder / "trials").iterdir() if (path / "ranks" / "1" / "metrics.jsonl").exists()]
    trained = [path for path in together if json.loads((path / "ending.json").read_text())["exit_code"] == 0]
    assert trained
    for path in trained:  # what each process logs is what all of them computed
        mine, other = (
            [{**row, **TIMES} for row in rows(place / "metrics.jsonl")] for place in (path, path / "ranks" / "1")
        )
        assert mine == other and mine
