"""The answer: what the phases found, as result.json holds it, read back by whoever comes later."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tools import undocumented

from bisect_cfg.common.configuration import Status
from bisect_cfg.common.failures.health import Symptom
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.errors import InputError
from bisect_cfg.explain import explain_text
from bisect_cfg.probe.protocol import Placed, PlacedModel, Raised, TrainBegin, Weights
from bisect_cfg.report.answer import Answer, of_plain, plain, read_answer, write_answer
from bisect_cfg.report.answer_of import failure_of, known_issue
from bisect_cfg.store.causes import Levels, wilson
from bisect_cfg.targets.factors import Factor
from tests.report import made
from tests.report.cases import CASES, ONE

CONTRACT = {
    "schema": int, "status": str, "complete": bool, "failure": dict, "causes": list, "recommendation": dict,
    "environment": dict, "trials": list,
}  # fmt: skip
"""Keys that DESIGN.md promises, and what they hold."""

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def refuse(constant: str) -> None:
    raise AssertionError(constant)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), values, min_size=1, max_size=4), st.text(), st.lists(st.text(), max_size=3))
def test_whatever_is_written_is_read_back(tmp_path_factory: Any, found: dict, words: str, notes: list[str]) -> None:
    folder = tmp_path_factory.mktemp("s")
    cause = replace(ONE.causes[0], levels={name: Levels(value, words) for name, value in found.items()}, text=words)
    trials = tuple(replace(trial, values=found, signature=words) for trial in ONE.trials[:3])
    answer = replace(ONE, causes=(cause,), trials=trials, notes=tuple(notes), not_varied=dict.fromkeys(found, words))
    write_answer(answer, folder)
    content = json.loads((folder / "result.json").read_text(), parse_constant=refuse)
    back = read_answer(folder)
    assert back == of_plain(content) and plain(back) == content == plain(answer)


@pytest.mark.parametrize("name", CASES)
def test_the_keys_of_the_contract_are_there_and_documented(name: str) -> None:
    content = plain(CASES[name])
    assert undocumented(content) == set() and undocumented({"causes": [{"colour": 1}]}) == {"colour"}
    for key, form in CONTRACT.items():
        assert isinstance(content[key], form) or content[key] is None
    for cause in content["causes"]:
        assert {"parameters", "companions", "evidence"} <= cause.keys()
        assert all(levels.keys() == {"good", "bad"} for levels in cause["parameters"].values())
    if content["failure"]:
        assert {"kind", "signal", "exception", "message", "step"} <= content["failure"].keys()
    if content["recommendation"]:
        assert {"configuration", "changes", "verified"} <= content["recommendation"].keys()
        assert all(change.keys() == {"from", "to"} for change in content["recommendation"]["changes"].values())
    assert of_plain(content) == of_plain(json.loads(json.dumps(content)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_are_text(tmp_path: Path, value: float) -> None:
    rows = tuple(replace(row, values={**row.values, "learning_rate": value}) for row in made.ROWS)
    made.study(tmp_path / "s", report=dataclasses.replace(made.REPORT, rows=rows))
    result = json.loads((tmp_path / "s/result.json").read_text(), parse_constant=refuse)
    assert result["trials"][0]["values"]["learning_rate"] == str(value)


@pytest.mark.parametrize(("changes", "key"), [
    ({"status": 5}, "status"), ({"target": None}, "target"), ({"trials": [1]}, "trials"), ({"trials": [{}]}, "number"),
    ({"causes": 3}, "causes"), ({"trials": None}, "trials"), ({"causes": [{"parameters": {"x": 1}}]}, "parameters"),
    ({"recommendation": {"changes": {}, "verified": "no"}}, "recommendation.verified"),
])  # fmt: skip
def test_what_has_not_the_form_of_an_answer_is_refused_by_its_key(tmp_path: Path, changes: dict, key: str) -> None:
    path = made.study(tmp_path / "s") / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match=f"result.json cannot be read: .*{key}.*\n.*the file is rewritten"):
        read_answer(tmp_path / "s")


def test_what_a_file_lacks_has_its_default_and_what_is_new_is_skipped(tmp_path: Path) -> None:
    assert read_answer(tmp_path) is None
    (tmp_path / "result.json").write_text('{"status": "no_failure", "of a later version": {}}')
    assert read_answer(tmp_path) == Answer("no_failure")
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(InputError, match="result.json cannot be read"):
        read_answer(tmp_path)


def test_secrets_are_not_written_down(tmp_path: Path) -> None:
    token = "hf_" + "a1B2" * 8
    trial = replace(ONE.trials[0], values={"hub_token": "opensesame12", "run": f"a {token}"}, signature=f"E: {token}")
    known = replace(ONE.recommendation, configuration=trial.values, diff=f"-token={token}\n")
    write_answer(replace(ONE, trials=(trial,), notes=(f"token={token}",), recommendation=known), tmp_path)
    text = (tmp_path / "result.json").read_text()
    assert token not in text and "opensesame12" not in text and text.count("***") == 7


# --------------------------------------------------------------------------------------------- made of what was found


def test_the_findings_of_a_script(tmp_path: Path) -> None:
    answer = made.answer(tmp_path)
    (cause,) = answer.causes
    assert (answer.status, answer.complete, answer.guilty) == ("isolated", True, {"bf16"})
    assert cause.levels == {"bf16": Levels(False, True)} and cause.step == 3, "of the cause's own run"
    assert cause.text == "dies with SIGFPE (a floating point exception) at step 3, in step (train.py:9)"
    assert cause.evidence.without["bf16"].trials == (1,) and answer.corrections[0].passes.seen == 1
    assert [trial.values["bf16"] for trial in answer.trials] == [True, False, True, False]
    assert {trial.start for trial in answer.trials} == {"config"} and answer.evidence == (0, 1, 2, 3)
    assert [answer.level(trial, "learning_rate") for trial in answer.trials] == ["bad", "good", "good", "bad"]
    assert answer.recommendation.changes.keys() == {"bf16"} and undocumented(plain(answer)) == set()


def test_a_failure_with_its_place_and_what_came_after_it(tmp_path: Path) -> None:
    found = failure_of(made.run(tmp_path, made.DIED))
    assert (found.kind, found.signal, found.message, found.step) == (
        "signal",
        "SIGFPE",
        "SIGFPE in step (train.py:9)",
        3,
    )
    assert failure_of(made.run(tmp_path, made.HEALTHY)) is None is failure_of(None)
    seen = dataclasses.replace(made.DIED, died=Signature("non-finite", "parameters"), message="NaN weights", place="",
                               after="E: inf", non_finite_at=2)  # fmt: skip
    found = failure_of(made.run(tmp_path, seen, Raised("E", "inf", [])))
    assert (found.quantity, found.exception, found.step) == ("parameters", "E", 2)
    assert found.message == "NaN weights, then E: inf"
    several = failure_of(made.run(tmp_path, dataclasses.replace(made.DIED, rank=1)))
    assert several.message == "rank 1: SIGFPE in step (train.py:9)"
    early = dataclasses.replace(made.DIED, died=Signature("exception", "E"), steps=0, trained=False, message="E: no")
    assert failure_of(made.run(tmp_path, early)).step == 0


def test_a_silent_failure_says_what_shows_it(tmp_path: Path) -> None:
    run = made.run(tmp_path, made.HEALTHY)
    rows = [{"step": step, "reward_std": 0.2, "grad_norm": 0.0} for step in range(1, 6)]
    run.traces.metrics.rows += [{**row, "reward": 0.0, "frac_reward_zero_std": 1.0} for row in rows]
    assert failure_of(run).message == "all rewards of a group equal in each of the first 5 steps"


def test_oddities_of_passing_trials_are_warned_of_once_a_metric(tmp_path: Path) -> None:
    def odd(kind: str, name: str, step: int) -> dict:
        return dataclasses.asdict(Symptom(kind, name, step, f"{name} is odd at step {step}"))

    details = {
        0: {"remarks": [odd("non-finite", "loss", 1)]},
        1: {"remarks": [odd("non-finite", "loss", 1), odd("slow", "", 4)]},
        3: {"remarks": [odd("non-finite", "loss", 2)]},
    }
    answer = made.answer(tmp_path, details=details)
    assert {one.text.removesuffix(" in trials that passed nevertheless"): one.trials for one in answer.warnings} == {
        "loss was NaN or infinite": (1, 3),
        "steps became much slower": (1,),
    }
    assert answer.trials[1].remarks == ("loss is odd at step 1", " is odd at step 4")


def test_a_cause_that_was_proven_in_one_process_names_no_rank(tmp_path: Path) -> None:
    found = made.findings(tmp_path)
    processes = Factor("launch.num_processes", "launch", 1, 2, 1)
    settings = dataclasses.replace(found.settings, varied=(*found.settings.varied, processes))
    several = made.run(tmp_path, dataclasses.replace(made.DIED, rank=1))

    def text(*subset: str) -> str:
        fails = replace(made.CAUSE.evidence.fails, subset=subset)
        cause = replace(made.CAUSE, evidence=replace(made.CAUSE.evidence, fails=fails))
        report = dataclasses.replace(made.REPORT, causes=(cause,))
        return made.answer(tmp_path, settings=settings, bad_run=several, report=report).causes[0].text

    assert "rank" not in text("bf16") and "on rank 1 at step 3" in text("bf16", "launch.num_processes")


def test_the_step_is_the_users_and_that_of_the_cause_alone_is_said_where_it_is_another(tmp_path: Path) -> None:
    later = tuple(replace(row, step=7) if row.number == 2 else row for row in made.REPORT.rows)
    for rows, said in ((made.REPORT.rows, "at step 3"), (later, "(this setting alone at step 7)")):
        (cause,) = made.answer(tmp_path, report=dataclasses.replace(made.REPORT, rows=rows)).causes
        assert "dies with SIGFPE (a floating point exception) at step 3" in cause.text and said in cause.text
        assert ("alone" in cause.text) == (cause.step != 3)


def test_what_is_odd_about_a_run_that_does_not_fail_is_said(tmp_path: Path) -> None:
    healthy = made.run(tmp_path, made.HEALTHY)
    differ = {"reward": 0.5, "reward_std": 0.3, "frac_reward_zero_std": 0.0, "grad_norm": 0.0}
    healthy.traces.metrics.rows += [{"step": step, "grad_norm": 1.0} for step in range(1, 6)]
    healthy.traces.metrics.rows += [{"step": step, **differ} for step in range(6, 11)]
    answer = made.answer(tmp_path, status=Status.NO_FAILURE, report=None, bad_run=healthy)
    (odd,) = answer.warnings
    assert odd.text.startswith("grad_norm is 0 in 5 of 5 steps whose rewards differ") and odd.trials == (0,)


def test_where_the_models_were_and_what_is_odd_about_it(tmp_path: Path) -> None:
    models = [PlacedModel(role, "Qwen2", "", [Weights(device, "bfloat16", 9)])
              for role, device in (("policy", "cuda:0"), ("reference", "cpu"))]  # fmt: skip
    begun = TrainBegin(in_force={"distributed_type": "FSDP"})
    placement = made.answer(tmp_path, bad_run=made.run(tmp_path, made.DIED, begun, Placed(models))).placement
    assert placement.ranks["0"][1]["weights"] == [{"device": "cpu", "dtype": "bfloat16", "count": 9}]
    (finding,) = placement.findings
    assert (finding.issue, finding.text) == (
        "fsdp-reference-model",
        "The reference model is on cpu, and the policy on cuda:0",
    )
    assert made.answer(tmp_path).placement is None


def test_a_good_side_that_fails_and_a_failure_that_showed_once(tmp_path: Path) -> None:
    ended = {"report": None, "status": "baseline_fails"}
    answer = made.answer(tmp_path, **ended, good_run=made.run(tmp_path, made.DIED, number=1))
    assert answer.good_failure.log == "trials/1/log.txt" and [trial.number for trial in answer.trials] == [0, 1]
    once = made.answer(
        tmp_path, report=None, status="inconclusive", again=(made.run(tmp_path, made.HEALTHY, number=2),)
    )
    assert once.reproduction.rate == 0.5 and once.reproduction.interval_95 == wilson(1, 2)


def test_of_several_causes_that_which_the_log_decides_for_is_told() -> None:
    line = "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'\n"
    issue = known_issue(explain_text(line).matches[0])
    assert issue.title.startswith("The setting max_seq_length has another name") and not issue.environment
    assert "max_length" in issue.cures[0] and not any("pip install -U" in cure for cure in issue.cures)
    assert known_issue(None) is None


@pytest.mark.parametrize(
    ("successes", "runs", "low", "high"), [(5, 5, 0.566, 1.0), (0, 5, 0.0, 0.434), (5, 10, 0.237, 0.763)]
)
def test_the_interval_of_a_rate(successes: int, runs: int, low: float, high: float) -> None:
    # Wilson 1927, as statsmodels.stats.proportion.proportion_confint(method="wilson") has it
    assert wilson(successes, runs) == pytest.approx((low, high), abs=1e-3)
