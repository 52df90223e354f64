"""The studies of package versions: as factors, and as cures that are tried, in environments that are really built."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parent.parent / "studies"

pytestmark = [pytest.mark.training, pytest.mark.slow]

PATIENCE = 900


def made(real_tool, name: str) -> tuple[dict, Path]:
    """What a study expects, and the folder in which it was made ready."""
    expected = json.loads((STUDIES / name / "expected.json").read_text())
    folder = real_tool.folder / "made"
    subprocess.run([sys.executable, STUDIES / name / expected["setup"], folder], check=True, timeout=PATIENCE)
    return expected, folder


def bisected(real_tool, target: Path, name: str, folder: Path, *options: object) -> tuple[dict, str]:
    """The result of a bisection, and all that it said."""
    python = folder / "env" / "bin" / "python"
    said = real_tool("bisect", target, "--python", python, "--study", f"studies/{name}", *options, seconds=PATIENCE)
    assert said.status == 0, said.all
    real_tool.assert_nothing_left()
    return json.loads((real_tool.folder / "studies" / name / "result.json").read_text()), said.all


def test_a_package_and_two_settings(real_tool):
    expected, folder = made(real_tool, "vllm_versions")
    options = ("--good-packages", folder / "good.txt")
    result, said = bisected(real_tool, STUDIES / "vllm_versions", "s", folder, *options)
    assert result["status"] == expected["status"] and result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    (cause,) = result["causes"]
    assert cause["parameters"]["packages.toyllm"] == {"good": "0.10.2", "bad": "0.11.0"}
    assert {one["start"] for one in result["trials"][1:]} <= {"imports", "config"}
    built = [path for path in (real_tool.folder / "studies" / "environments").iterdir() if path.is_dir()]
    assert len(built) == 2  # one with each version, for all trials
    assert said.count("Built an environment") == 2


def test_the_known_cure_is_tried_and_the_package_is_found(real_tool):
    expected, folder = made(real_tool, "trl_2906_root_cause")
    real_tool.environment["UV_FIND_LINKS"] = str(folder / "wheels")
    real_tool.environment["PATH"] = f"{folder / 'bin'}:{real_tool.environment['PATH']}"
    result, said = bisected(real_tool, folder, "cured", folder)
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
    assert result["known_issue"]["id"] == expected["known_issue"] and result["simulated"]
    recommended = result["recommendation"]
    assert recommended["verified"] and recommended["first"] == ""
    assert {name: to["to"] for name, to in recommended["changes"].items()} == expected["recommended"]
    assert "pip install nvidia-cublas-cu12==12.4.5.8" in said

    result, _ = bisected(real_tool, folder, "left-out", folder, "--no-environments", "--no-where")
    assert set(result["recommendation"]["changes"]) == {"bf16"} and result["recommendation"]["first"]

    options = ("--good-packages", folder / "good.txt", "--no-recommend", "--no-where")
    result, _ = bisected(real_tool, folder, "packages", folder, *options)
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes_with_packages"]


def test_released_versions_that_need_each_other(real_tool):
    folder = STUDIES / "real_versions"
    expected = json.loads((folder / "expected.json").read_text())
    options = ("--good-packages", folder / "good.txt", "--no-recommend", "--no-where", "--study", "studies/s")
    said = real_tool("bisect", folder, *options, seconds=PATIENCE)
    assert said.status == 0, said.all
    real_tool.assert_nothing_left()
    result = json.loads((real_tool.folder / "studies" / "s" / "result.json").read_text())
    assert result["complete"] is expected["complete"]
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
    assert sorted(result["causes"][0]["inseparable"]) == expected["causes"][0]
    assert {key: result["failure"][key] for key in expected["failure"]} == expected["failure"]
