"""The engine with a Python function as trial: what it answers, what it survives, what it remembers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from bisect_cfg import Bisection, Outcome
from bisect_cfg.store.interface import TrialResult

GOOD = {"bf16": False, "lr": 1e-6, "batch": 1, "optim": "adamw_torch", "kwargs": {"a": 1}, "seed": 1}
BAD = {"bf16": True, "lr": 1e-3, "batch": 8, "optim": "adafactor", "kwargs": {"a": 2}, "seed": 1, "extra": 3}


def sigfpe(configuration: dict) -> bool:
    if configuration["bf16"]:
        os.kill(os.getpid(), signal.SIGFPE)
    return True


@pytest.mark.training
def test_a_function_that_kills_its_process() -> None:
    report = Bisection(GOOD, BAD, sigfpe).run()
    assert report.status == "isolated" and report.complete
    (cause,) = report.causes
    assert cause.parameters == ("bf16",)
    assert cause.values == {"bf16": {"good": False, "bad": True}}
    assert cause.signature == "SIGFPE"
    assert report.safe_configuration == {**BAD, "bf16": False}
    frame = report.trials
    assert list(frame["number"]) == list(range(len(frame)))
    assert set(frame.columns) >= {"number", "outcome", "signature", "seconds", "bf16", "lr", "extra"}
    assert "seed" not in frame.columns


def test_baselines() -> None:
    assert Bisection(GOOD, BAD, lambda c: True, isolation="none").run().status == "no_failure"
    assert Bisection(GOOD, BAD, lambda c: False, isolation="none").run().status == "baseline_fails"
    assert Bisection(GOOD, BAD, lambda c: None, isolation="none").run().status == "inconclusive"
    assert Bisection(GOOD, GOOD, lambda c: False, isolation="none").run().status == "no_failure"


def test_another_failure_is_unresolved() -> None:
    def trial(c: dict) -> TrialResult:
        if c["bf16"] and c["batch"] == 8:
            return TrialResult(Outcome.FAIL, "NaN")
        return TrialResult(Outcome.FAIL, "other") if c["bf16"] else TrialResult(Outcome.PASS)

    report = Bisection(GOOD, BAD, trial, isolation="none").run()
    assert "unresolved" in set(report.trials["outcome"])
    (cause,) = report.causes  # bf16 alone dies of something else, so nobody can tell the two apart
    assert set(cause.parameters) | set(cause.companions) == {"bf16", "batch"}


@pytest.mark.training
def test_resuming_repeats_nothing(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    calls = []

    def trial(c: dict) -> bool:
        calls.append(c)
        return not (c["bf16"] and c["lr"] == 1e-3)

    first = Bisection(GOOD, BAD, trial, isolation="none", storage=url, max_trials=4).run()
    assert first.status == "inconclusive" and len(calls) == 4
    report = Bisection(GOOD, BAD, trial, isolation="none", storage=url).run()
    assert report.causes[0].parameters == ("bf16", "lr")
    assert len(calls) == len(report.rows)
    again = Bisection(GOOD, BAD, trial, isolation="none", storage=url).run()
    assert len(calls) == len(again.rows) and again.causes == report.causes


@pytest.mark.training
def test_a_study_of_another_function_is_refused(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"

    def blames(name: str) -> Callable[[dict], bool]:
        return lambda c: c[name] == GOOD[name]

    first = Bisection(GOOD, BAD, lambda c: not c["bf16"], isolation="none", storage=url).run()
    with pytest.raises(ValueError, match="trial function"):
        Bisection(GOOD, BAD, lambda c: c["lr"] != 1e-3, isolation="none", storage=url)
    other = Bisection(GOOD, BAD, lambda c: c["lr"] != 1e-3, isolation="none", storage=url, study_name="other").run()
    assert [first.causes[0].parameters, other.causes[0].parameters] == [("bf16",), ("lr",)]
    # The code is compared, not what it closes over; an identity of one's own tells such functions apart.
    known = {"isolation": "none", "storage": url, "study_name": "third"}
    Bisection(GOOD, BAD, blames("bf16"), identity={"blames": "bf16"}, **known).run()
    with pytest.raises(ValueError, match="blames"):
        Bisection(GOOD, BAD, blames("lr"), identity={"blames": "lr"}, **known)


def test_a_study_of_other_configurations_is_refused(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    Bisection(GOOD, BAD, lambda c: True, isolation="none", storage=url).run()
    with pytest.raises(ValueError, match="lr"):
        Bisection(GOOD, {**BAD, "lr": 1e-4}, lambda c: True, isolation="none", storage=url)


def test_confirm_repeats_every_claim() -> None:
    report = Bisection(GOOD, BAD, lambda c: not c["bf16"], isolation="none", confirm=3).run()
    (cause,) = report.causes
    assert cause.evidence.fails.seen == 3
    assert cause.evidence.without["bf16"].seen == 3
    assert report.corrections[0].passes.seen == 3


def test_added_trials_count_once() -> None:
    bisection = Bisection(GOOD, BAD, lambda c: not c["bf16"], isolation="none", confirm=1)
    bisection.add(BAD, TrialResult(Outcome.FAIL, "fail"), "bad baseline")
    bisection.add(BAD, TrialResult(Outcome.FAIL, "fail"), "bad baseline")
    report = bisection.run()
    assert list(report.trials["purpose"]).count("bad baseline") == 1
    assert report.causes[0].parameters == ("bf16",)


def test_what_is_left_is_estimated_from_the_first_trial_to_the_last() -> None:
    good, bad = {f"x{i}": 0 for i in range(19)}, {f"x{i}": 1 for i in range(19)}
    said: list[tuple[int, int]] = []
    bisection = Bisection(
        good, bad, lambda c: not (c["x3"] and c["x11"]), isolation="none", prior="flat",
        on_event=lambda event: said.append(bisection.progress().remaining),
    )  # fmt: skip
    report = bisection.run()
    assert said[-1] == (0, 0) and all(least >= 1 for least, _ in said[:-2]), said
    assert said[0][0] <= len(report.rows) - 1 <= said[0][1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_valid_raises_comes_up(jobs) -> None:
    def is_valid(configuration: dict) -> bool:
        return bool(1 / (configuration["batch"] - 8 or configuration["lr"] - 1e-3))

    with pytest.raises(ZeroDivisionError):
        Bisection(GOOD, BAD, lambda c: not c["bf16"], is_valid, isolation="none", jobs=jobs).run()


@pytest.mark.parametrize(("side", "status"), [(GOOD, "baseline_fails"), (BAD, "inconclusive")])
@pytest.mark.parametrize(("reason", "told"), [(False, "is_valid refuses it"), ("A must divide B.", "A must divide B")])
def test_a_configuration_that_is_valid_refuses_is_not_run(side, status, reason, told) -> None:
    name = "good" if side is GOOD else "bad"
    report = Bisection(GOOD, BAD, lambda c: 1 / 0, lambda c: reason if c == side else True, isolation="none").run()
    assert report.status == status and not report.rows
    assert report.notes == (f"The {name} configuration is not valid: {told}.",)


def test_what_a_function_tells_of_its_steps_is_recorded() -> None:
    def trial(configuration) -> TrialResult:
        outcome = Outcome.FAIL if configuration["bf16"] else Outcome.PASS
        return TrialResult(outcome, None if outcome is Outcome.PASS else "boom", intermediate={1: 0.5, 2: 0.25})

    for isolation in ("none", "process"):
        bisection = Bisection({"bf16": False}, {"bf16": True}, trial, isolation=isolation, max_trials=2)
        bisection.run()
        assert [trial.intermediate_values for trial in bisection.study.trials] == [{1: 0.5, 2: 0.25}] * 2


def test_runs_that_repeat_themselves_spare_trials() -> None:
    names = [f"x{number}" for number in range(19)]
    noise = iter(range(1000))

    def trials(told, **known: object) -> int:
        def trial(configuration):
            fails = configuration["x3"] and configuration["x11"]
            return TrialResult(Outcome.FAIL if fails else Outcome.PASS, "boom" if fails else None, intermediate=told())

        report = Bisection(dict.fromkeys(names, 0), dict.fromkeys(names, 1), trial, isolation="none", **known).run()
        assert report.complete and [cause.parameters for cause in report.causes] == [("x11", "x3")]
        return len(report.trials)

    unknown = trials(dict)
    assert trials(lambda: {1: 0.5}) == trials(dict, deterministic=True) < unknown
    assert trials(lambda: {1: float(next(noise))}) == unknown
