"""The study `vllm_versions`: versions of a package as factors, in environments that are really built."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parent.parent / "studies" / "vllm_versions"

pytestmark = [pytest.mark.training, pytest.mark.slow]

PATIENCE = 900


def test_the_study(real_tool):
    expected = json.loads((STUDY / "expected.json").read_text())
    made = real_tool.folder / "made"
    subprocess.run([sys.executable, STUDY / expected["setup"], made], check=True, timeout=PATIENCE)
    options = [word.format(made=made) for word in expected["options"]]
    said = real_tool("bisect", STUDY, "--study", "studies/s", *options, seconds=PATIENCE)
    assert said.status == 0, said.all
    real_tool.assert_nothing_left()
    result = json.loads((real_tool.folder / "studies" / "s" / "result.json").read_text())
    assert result["status"] == expected["status"] and result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    (cause,) = result["causes"]
    assert cause["parameters"]["packages.toyllm"] == {"good": "0.10.2", "bad": "0.11.0"}
    assert {one["start"] for one in result["trials"][1:]} <= {"imports", "config"}
    built = [path for path in (real_tool.folder / "studies" / "environments").iterdir() if path.is_dir()]
    assert len(built) == 2  # one with each version, for all trials
    assert said.all.count("Built an environment") == 2
