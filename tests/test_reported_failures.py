"""The failures that users of GRPO report, a study each: what a user would type, and what is to be answered.

`expected.json` of such a study has the `command` that is bisected, what is run before it (`first`), and what the
terminal has to say (`said`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools import Tool

STUDIES = Path(__file__).parent.parent / "studies"
REPORTED = ("dead_reward", "long_prompt", "resume", "engine_drift", "weight_sync_hang", "lora", "long_rows_memory")
STATUS = {"isolated": 0, "no_failure": 1, "baseline_fails": 1, "inconclusive": 3}

PATIENCE = 900
"""Seconds, on a machine that is busy; on an idle one each takes one or two minutes."""


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("name", REPORTED)
def test_the_answer(name: str, real_tool: Tool) -> None:
    expected = json.loads((STUDIES / name / "expected.json").read_text())
    places = {"folder": STUDIES / name, "here": real_tool.folder}
    if "first" in expected:
        words = [sys.executable, *(word.format(**places) for word in expected["first"])]
        subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
    real_tool.environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    words = [word.format(**places) for word in expected["command"]]
    said = real_tool("bisect", "--study", "s", "--no-recommend", *words, seconds=PATIENCE)
    assert said.status == STATUS[expected["status"]], said.all
    result = json.loads((real_tool.folder / "s" / "result.json").read_text())
    assert result["status"] == expected["status"] and result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    assert bool(result.get("simulated")) is expected.get("simulated", False)
    printed = " ".join(said.all.split())
    assert all(text in printed for text in expected["said"]), said.all
    real_tool.assert_nothing_left()
