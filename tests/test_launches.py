"""Studies of a launch, with real launchers; of their settings only the guilty ones are varied, to be done sooner."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tools import slow

STUDIES = Path(__file__).parent.parent / "studies"

pytestmark = pytest.mark.training

PATIENCE = 600
"""Seconds, on a machine that is busy; on an idle one it takes half a minute."""


@pytest.mark.parametrize("name", ["launcher", slow("fsdp_ref_model")])
def test_the_study(real_tool, name):
    expected = json.loads((STUDIES / name / "expected.json").read_text())
    real_tool.environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    command = [word.format(folder=STUDIES / name) for word in expected["command"]]
    (cause,) = expected["causes"]
    options = [word for name in cause for word in ("--only", name)]
    options += ["--good", expected["good"].format(folder=STUDIES / name)]
    study = ("bisect", "--study", "s", "--no-recommend", "--no-where")
    said = real_tool(*study, *options, "--", *command, seconds=PATIENCE)
    assert said.status == 0, said.all
    real_tool.assert_nothing_left()
    result = json.loads((real_tool.folder / "s" / "result.json").read_text())
    assert result["status"] == expected["status"] and result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    assert ("simulated" in result) is expected["simulated"]
    assert (result["known_issue"] or {}).get("id") == expected["known_issue"]
    assert "cold" not in {one["start"] for one in result["trials"][1:]}
