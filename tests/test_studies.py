"""The studies, for real: the command a user would type, and the answer that the study expects."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tools import ForkedTool, slow, undocumented

from bisect_cfg.common.configuration import Purpose
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.runner.runs import load_run

STUDIES = Path(__file__).parent.parent / "studies"
ELSEWHERE = {
    "two_ranks": "test_two_ranks.py",
    "late_collapse": "test_late.py",
    "late_overflow": "test_late.py",
    "bad_row": "study/test_origin.py",
    "vllm_versions": "test_package_versions.py",
    "trl_2906_original": "test_old_stack.py",
    "trl_2906_root_cause": "test_package_versions.py",
    "launcher": "test_launches.py",
    "fsdp_ref_model": "test_launches.py",
    "real_versions": "test_package_versions.py",
    "openrlhf_illegal_memory": "doors/test_any_command.py",
    "dead_reward": "test_reported_failures.py",
    "long_prompt": "test_reported_failures.py",
    "engine_drift": "test_reported_failures.py",
    "resume": "test_reported_failures.py",
    "weight_sync_hang": "test_reported_failures.py",
    "lora": "test_reported_failures.py",
    "long_rows_memory": "test_reported_failures.py",
}
"""Studies that need a launcher, environments, options of their own or no script, and where they are tested."""

NAMES = sorted({path.parent.name for path in STUDIES.glob("*/expected.json")} - set(ELSEWHERE))
FIRST = "trl_2906"
"""The one that is bisected before anything lands; the others are slow."""

# Long enough for a machine that is busy with other things; a study takes half a minute on an idle one.
PATIENCE = 600


@pytest.fixture(scope="module")
def bisected(tmp_path_factory):
    """Runs the bisection of a study, once: its name, study folder, exit status and output."""

    @functools.cache
    def run(name):
        folder = tmp_path_factory.mktemp("studies") / name
        command = [sys.executable, "-m", "bisect_cfg", "bisect", str(STUDIES / name), "--study", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        return name, folder, done

    return run


@pytest.fixture(scope="module", params=[one if one == FIRST else slow(one) for one in NAMES])
def finished(request, bisected):
    """A finished bisection of one study."""
    return bisected(request.param)


def forked(*arguments: object, folder: Path | None = None) -> None:
    """Another command, in this or another folder, that ends well; its imports would take longer than it does."""
    said = ForkedTool(folder or Path.cwd(), None)(*arguments, seconds=PATIENCE)
    assert said.status == 0, said.all


def read(folder: Path) -> dict:
    found = json.loads(
        (folder / "result.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert undocumented(found) == set()
    return found


def test_they_are_all_there():
    assert {"trl_2906", "fp16_adam", "unclipped_reward", "collapse", "lr_temperature"} <= set(NAMES)


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
    assert bool(result["simulated"]) == (name == "trl_2906")
    assert (result["known_issue"] or {}).get("id") == expected["known_issue"]


def test_the_instruments_name_the_place(finished):
    name, folder, done = finished
    expected = json.loads((STUDIES / name / "expected.json").read_text())["where"]
    place = read(folder)["where"]
    assert place["same_failure"] and place["module"] and place["step"] >= 1
    assert place["line"] or place["operation"].endswith(".step"), "a step of the optimizer as a whole has no line"
    if shutil.which("gdb") is None:
        expected.pop("native", None)
    for key, value in expected.items():
        assert value in place[key], key
    assert f"Where   step {place['step']}: {place['operation']} in {place['module']}" in done.stdout


@pytest.mark.slow
def test_one_remedy_has_one_name(bisected):
    """The weights are saved in float32, so the default dtype is float32."""
    _, folder, _ = bisected("fp16_adam")
    found = read(folder)["recommendation"]
    values = [
        way["changes"]["model.dtype"]["to"]
        for way in (found, *found["alternatives"])
        if "model.dtype" in way["changes"]
    ]
    assert len({None, "float32"} & set(values)) == 1 and "bfloat16" in values


def failures(folder: Path) -> dict[str, list[Signature]]:
    """The failures of all runs of a study, baselines included, by outcome; what is merely not healthy is none."""
    found: dict[str, list[Signature]] = {"fail": [], "unresolved": []}
    for trial in read(folder)["trials"]:
        if trial["outcome"] in found and not trial["purpose"].startswith(Purpose.RECOMMEND):
            run = load_run(folder, Path(trial["folder"]).name)
            found[trial["outcome"]].append(run.shown.signature)
    return found


def test_reruns_of_one_failure_share_its_signature_and_no_other_does(finished):
    _, folder, _ = finished
    seen = failures(folder)
    assert len(seen["fail"]) >= 3
    assert all(one.same(other) for one in seen["fail"] for other in seen["fail"])
    assert len({str(one) for one in seen["fail"]}) == 1
    assert not any(one.same(other) for one in seen["fail"] for other in seen["unresolved"])


@pytest.mark.slow
def test_failures_of_different_studies_are_told_apart(bisected):
    shown = {}
    for name in NAMES:
        _, folder, _ = bisected(name)
        shown[name] = failures(folder)["fail"][0], read(folder)["where"]["operation"]
    for one in NAMES:
        for other in set(NAMES) - {one}:
            if {one, other} == {"collapse", "lr_temperature"}:
                continue  # the same failure, of other settings
            # Weights become NaN in two of them. The same settings may do it in either way, so that is the same failure
            # to the search; the signatures say which it was, and the operation tells them apart.
            both_nan = shown[one][0].kind == shown[other][0].kind == "non-finite"
            assert shown[one][0] != shown[other][0], (one, other)
            assert both_nan or not shown[one][0].same(shown[other][0]), (one, other)
            assert shown[one][0].kind != shown[other][0].kind or shown[one][1] != shown[other][1], (one, other)


def test_every_claim_rests_on_trials_that_say_so(finished):
    _, folder, _ = finished
    result = read(folder)
    outcomes = {row["number"]: row["outcome"] for row in result["trials"]}
    # Each claim once is the least; how often the failure was seen in all tells that it is not random.
    assert sum(outcome == "fail" for outcome in outcomes.values()) >= 3
    for cause in result["causes"]:
        evidence = cause["evidence"]
        assert evidence["fails"]["seen"] == evidence["fails"]["runs"] >= 1
        assert {outcomes[number] for number in evidence["fails"]["trials"]} == {"fail"}
        for claim in evidence["passes_without"].values():
            assert claim["seen"] == claim["runs"] >= 1
            assert {outcomes[number] for number in claim["trials"]} == {"pass"}


def test_the_safe_configuration_passed_and_loads(finished):
    name, folder, _ = finished
    result = read(folder)
    recommended = result["recommendation"]
    assert recommended["verified"]
    blamed = {name for cause in result["causes"] for name in cause["parameters"]}
    assert set(recommended["changes"]) <= blamed
    passed = [row["values"] for row in result["trials"] if row["outcome"] == "pass"]
    assert recommended["configuration"] in passed
    safe = yaml.safe_load((folder / "safe_config.yaml").read_text())
    own = STUDIES / name / "config.yaml"
    if own.exists():  # it is the user's own file, and nothing is added
        changes = {setting: change["to"] for setting, change in recommended["changes"].items()}
        assert safe == {**yaml.safe_load(own.read_text()), **changes}
    else:
        assert safe["output_dir"]


def all_remedies(folder: Path) -> dict:
    """The result once every known remedy was verified; by default one is."""
    forked("recommend", folder, "--remedies", 6)
    return read(folder)


@pytest.mark.slow
def test_a_cause_of_two_numbers_has_a_verified_way_out_on_either_side(bisected):
    _, folder, _ = bisected("lr_temperature")
    result = all_remedies(folder)
    levels = result["causes"][0]["parameters"]
    recommended = result["recommendation"]
    ways = [way for way in (recommended, *recommended["alternatives"]) if way["verified"]]
    assert sorted(list(way["changes"]) for way in ways) == [["learning_rate"], ["temperature"]]
    for way in ways:
        ((name, change),) = way["changes"].items()
        low, high = sorted((levels[name]["good"], levels[name]["bad"]))
        assert low < change["to"] < high, "part of the way, neither level"
        assert way["evidence"]["seen"] == way["evidence"]["runs"] == 3 and way["steps"] > result["horizon"]
        assert way["ranges"][name]["settled"]


@pytest.mark.slow
def test_fp16_adam_has_three_kinds_of_ways_out(bisected):
    _, folder, _ = bisected("fp16_adam")
    recommended = all_remedies(folder)["recommendation"]
    ways = [way for way in (recommended, *recommended["alternatives"]) if way["verified"]]
    assert {"optim", "adam_epsilon", "model.dtype"} <= {name for way in ways for name in way["changes"]}
    assert all(len(way["changes"]) == 1 and way["evidence"]["seen"] == 3 for way in ways)
    assert [way["gives_up"] for way in ways] == sorted(way["gives_up"] for way in ways)


@pytest.mark.slow
def test_what_is_merely_alive_is_not_recommended(bisected):
    _, folder, _ = bisected("unclipped_reward")
    recommended = read(folder)["recommendation"]
    ways = {name: way for way in recommended["alternatives"] for name in way["changes"]}
    assert list(recommended["changes"]) == ["scale_rewards"]
    assert ways["max_grad_norm"]["status"] == "rejected" and "grad_norm is inf" in ways["max_grad_norm"]["rejected"]


@pytest.mark.slow
def test_the_recommended_learning_rate_trains_on(bisected):
    _, folder, _ = bisected("collapse")
    result = read(folder)
    known = result["recommendation"]["ranges"]["learning_rate"]
    assert known["settled"] and known["not_from"] <= 1.5 * known["healthy_up_to"]
    steps = 10 * result["horizon"]
    forked("recommend", folder, "--verify-steps", steps, "--verify-seeds", 5)
    longer = read(folder)["recommendation"]
    assert longer["verified"] and longer["evidence"]["runs"] == 5 and longer["steps"] == steps
    assert longer["changes"]["learning_rate"]["to"] < known["healthy_up_to"]


def test_every_trial_keeps_what_is_to_be_watched(finished):
    name, folder, _ = finished
    rows = [json.loads(line) for path in folder.glob("trials/*/metrics.jsonl") for line in path.open()]
    assert len(rows) > 10
    assert all({"step", "loss", "grad_norm", "learning_rate", "entropy"} <= set(row) for row in rows)


def test_the_same_command_again_runs_nothing(finished):
    name, folder, _ = finished
    before = read(folder)
    forked("bisect", STUDIES / name, "--study", folder)
    after = read(folder)
    assert [row["number"] for row in after["trials"]] == [row["number"] for row in before["trials"]]
    assert after["causes"] == before["causes"]


def test_the_output_names_the_cause(finished):
    name, _, done = finished
    for parameter in json.loads((STUDIES / name / "expected.json").read_text())["causes"][0]:
        assert parameter in done.stdout.split("Cause")[-1]
    assert "\x1b" not in done.stdout  # plain where there is no terminal


@pytest.mark.slow
@pytest.mark.training
def test_where_the_librarys_default_is_itself_at_fault(tmp_path):
    """Without the good side that the study gives: TRL's own default, bf16, fails too, and is found all the same."""
    for path in (STUDIES / "trl_2906").iterdir():
        if path.name != "good.yaml" and path.is_file():
            shutil.copy(path, tmp_path)
    script = tmp_path / "train.py"
    script.write_text(script.read_text().replace("max_completion_length=200", "max_completion_length=12"))
    forked("bisect", script, "--no-recommend", "--no-where", folder=tmp_path)
    (folder,) = (tmp_path / "bisect-cfg-studies").iterdir()
    result = read(folder)
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["bf16"]] and result["complete"]
    assert any("without defaults that fail on some machines" in note for note in result["notes"])
