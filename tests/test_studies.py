"""The studies, for real: the command a user would type, and the answer that the study expects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

STUDIES = Path(__file__).parent.parent / "studies"
NAMES = sorted(path.parent.name for path in STUDIES.glob("*/expected.json"))

# Long enough for a machine that is busy with other things; a study takes half a minute on an idle one.
PATIENCE = 600


@pytest.fixture(scope="module", params=NAMES)
def finished(request, tmp_path_factory):
    """A finished bisection of one study: its name, study folder, exit status and output."""
    folder = tmp_path_factory.mktemp("studies") / request.param
    command = [sys.executable, "-m", "bisect_cfg", "bisect", str(STUDIES / request.param), "--study", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return request.param, folder, done


def read(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_there_are_four():
    assert {"trl_2906", "fp16_adam", "unclipped_reward", "collapse"} <= set(NAMES)


def test_it_gives_the_expected_answer(finished):
    name, folder, done = finished
    expected = json.loads((STUDIES / name / "expected.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    result = read(folder)
    assert result["status"] == expected["status"] == "isolated"
    assert result["complete"] is expected["complete"]
    assert sorted(sorted(cause["parameters"]) for cause in result["causes"]) == sorted(expected["causes"])
    for key, value in expected["failure"].items():
        assert result["failure"][key] == value, key
    assert ("simulated" in result) == (name == "trl_2906")


def test_every_claim_rests_on_trials_that_say_so(finished):
    _, folder, _ = finished
    result = read(folder)
    outcomes = {row["number"]: row["outcome"] for row in result["trials"]}
    for cause in result["causes"]:
        evidence = cause["evidence"]
        assert evidence["fails"]["seen"] == evidence["fails"]["runs"] >= 3
        assert {outcomes[number] for number in evidence["fails"]["trials"]} == {"fail"}
        for claim in evidence["passes_without"].values():
            assert claim["seen"] == claim["runs"] >= 3
            assert {outcomes[number] for number in claim["trials"]} == {"pass"}


def test_the_safe_configuration_passed_and_loads(finished):
    _, folder, _ = finished
    result = read(folder)
    recommended = result["recommendation"]
    assert recommended["verified"]
    blamed = {name for cause in result["causes"] for name in cause["parameters"]}
    assert set(recommended["changes"]) <= blamed
    passed = [row["values"] for row in result["trials"] if row["outcome"] == "pass"]
    assert recommended["configuration"] in passed
    assert yaml.safe_load((folder / "safe_config.yaml").read_text())["output_dir"]


def test_the_same_command_again_runs_nothing(finished):
    name, folder, _ = finished
    before = read(folder)
    command = [sys.executable, "-m", "bisect_cfg", "bisect", str(STUDIES / name), "--study", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    after = read(folder)
    assert [row["number"] for row in after["trials"]] == [row["number"] for row in before["trials"]]
    assert after["causes"] == before["causes"]


def test_the_output_names_the_cause(finished):
    name, _, done = finished
    for parameter in json.loads((STUDIES / name / "expected.json").read_text())["causes"][0]:
        assert parameter in done.stdout.split("Cause")[-1]
    assert "\x1b" not in done.stdout  # plain where there is no terminal
