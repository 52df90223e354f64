"""The engine with a Python function as trial: how a call can end, what the whole answers, survives and remembers."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import optuna
import pytest

from bisect_cfg import Bisection, Outcome
from bisect_cfg.common.configuration import Configuration, Purpose
from bisect_cfg.common.failures.signature import from_log
from bisect_cfg.runner.function import FunctionRunner, result_of_exception
from bisect_cfg.runner.processes import alive
from bisect_cfg.store.causes import RETURNED_FALSE
from bisect_cfg.store.interface import TrialRequest, TrialResult

GOOD = {"bf16": False, "lr": 1e-6, "batch": 1, "optim": "adamw_torch", "kwargs": {"a": 1}, "seed": 1}
BAD = {"bf16": True, "lr": 1e-3, "batch": 8, "optim": "adafactor", "kwargs": {"a": 2}, "seed": 1, "extra": 3}
MANY = [f"x{number}" for number in range(19)]
PASS, FAIL, UNRESOLVED = Outcome.PASS, Outcome.FAIL, Outcome.UNRESOLVED


def bf16(configuration: dict) -> bool:
    return not configuration["bf16"]


def pair(configuration: dict) -> bool:
    return not (configuration["x3"] and configuration["x11"])


def isolated(trial, is_valid=None, good: dict = GOOD, bad: dict = BAD, **options):
    return Bisection(good, bad, trial, is_valid, isolation="none", **options).run()


# ------------------------------------------------------------------------------------------------ one call, in a child


def request(configuration: Configuration) -> TrialRequest:
    return TrialRequest(0, configuration, frozenset(), Purpose.SEARCH, "")


def run(trial: Callable[[dict], object], **options: object) -> TrialResult:
    return FunctionRunner(trial, **options).run(request({"a": 1}))


def raises(configuration: dict) -> bool:
    raise ValueError(f"bad tensor at 0x7f3a in /home/me/x/train.py, step {configuration['a']}")


@pytest.mark.training
@pytest.mark.parametrize(("trial", "outcome", "signature"), [
    (lambda c: True, PASS, None),
    (lambda c: False, FAIL, RETURNED_FALSE),
    (lambda c: None, UNRESOLVED, "unresolved"),
    (raises, FAIL, "ValueError: bad tensor at <hex> in <path>, step <n>"),
    (lambda c: os.kill(os.getpid(), signal.SIGFPE), FAIL, "SIGFPE"),
    (lambda c: os.kill(os.getpid(), 40), FAIL, "signal 40"),  # it has no name
    (lambda c: os._exit(3), FAIL, "exit status 3"),
    (lambda c: sys.exit("no"), FAIL, "exit status 1"),
    (lambda c: os._exit(0), UNRESOLVED, "no answer"),
    (lambda c: time.sleep(30), FAIL, "hang"),
])  # fmt: skip
def test_how_a_call_can_end(trial, outcome, signature) -> None:
    result = run(trial, timeout=0.3 if signature == "hang" else None)
    assert (result.outcome, result.signature) == (outcome, signature)


@pytest.mark.training
def test_what_a_call_can_return() -> None:
    rich = run(lambda c: TrialResult(FAIL, "s", "m", 2.0, 7, {"k": [1], "o": object()}, {3: 0.5}))
    assert (rich.signature, rich.message, rich.seconds, rich.step) == ("s", "m", 2.0, 7)
    assert rich.attributes["k"] == [1] and "object object" in rich.attributes["o"] and rich.intermediate == {3: 0.5}
    with pytest.raises(TypeError, match="must return"):
        run(lambda c: "what")


@pytest.mark.training
def test_values_that_cannot_be_pickled_are_held_by_the_supervisor() -> None:
    kept: list[object] = []
    kept.append(kept)
    good = {"function": lambda number: 2 * number, "handle": sys.stdout, "list": [1, 2], "text": "ü"}
    runner = FunctionRunner(lambda c: c["function"](21) == 42 and c["handle"] is sys.stdout and c["list"] == [1, 2])
    with runner.standing(good, {"list": kept}):
        assert runner.run(request(good)).outcome is PASS
        assert runner.run(request({**good, "list": kept})).outcome is FAIL
        assert runner.run(request({**good, "list": [1, 1 + 1]})).outcome is PASS, "neither side's"


@pytest.mark.training
@pytest.mark.parametrize(("ending", "signature"), [("answers", None), ("hangs", "hang")])
def test_what_a_call_has_started_ends_with_it(tmp_path, ending: str, signature: str | None) -> None:
    note = tmp_path / "pid"

    def trial(configuration: dict) -> bool:
        note.write_text(str(subprocess.Popen(["setsid", "sleep", "60"], env={}).pid))
        return ending == "answers" or bool(time.sleep(60))

    runner = FunctionRunner(trial, timeout=2 if ending == "hangs" else None)
    with runner.standing({"a": 1}):
        assert runner.run(request({"a": 1})).signature == signature
        assert not alive(int(note.read_text()))


def test_exceptions_have_the_signatures_that_a_log_would_give() -> None:
    for text in ("CUDA error at 0xdeadbeef line 12", "loss is nan, lr=1e-06", "no file /tmp/a/b.txt on cuda:1", "x\ny"):
        log = f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nRuntimeError: {text}\n'
        found = from_log(io.BytesIO(log.encode()))
        assert result_of_exception(RuntimeError(text)).signature == str(replace(found, where=""))
    memory = [RuntimeError(f"CUDA out of memory. Tried to allocate {size} GiB") for size in ("2.50", "7")]
    assert len({result_of_exception(error).signature for error in memory}) == 1

    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    assert "Mute" in result_of_exception(Mute()).signature


# ------------------------------------------------------------------------------------------------ a whole bisection


@pytest.mark.training
def test_a_function_that_kills_its_process() -> None:
    def trial(configuration: dict) -> bool:
        return not configuration["bf16"] or os.kill(os.getpid(), signal.SIGFPE)

    report = Bisection(GOOD, BAD, trial).run()
    (cause,) = report.causes
    assert report.status == "isolated" and report.complete and cause.parameters == ("bf16",)
    assert cause.values == {"bf16": {"good": False, "bad": True}} and cause.signature == "SIGFPE"
    assert report.safe_configuration == {**BAD, "bf16": False}
    frame = report.trials
    assert list(frame["number"]) == list(range(len(frame)))
    assert set(frame.columns) >= {"number", "outcome", "signature", "seconds", "bf16", "lr", "extra"}
    assert "seed" not in frame.columns


@pytest.mark.parametrize(
    ("bad", "answer", "status"),
    [(BAD, True, "no_failure"), (BAD, False, "baseline_fails"), (BAD, None, "inconclusive"),
     (GOOD, False, "no_failure")],
)  # fmt: skip
def test_a_function_that_always_says_the_same(bad, answer, status) -> None:
    assert isolated(lambda c: answer, bad=bad).status == status


def test_a_secret_does_not_reach_the_storage() -> None:
    storage = optuna.storages.InMemoryStorage()
    bad = {"api_key": "not-to-be-seen", "batch": 8}
    Bisection(
        {"api_key": None, "batch": 1}, bad, lambda configuration: configuration["api_key"] is None,
        isolation="none", storage=storage, study_name="s",
    ).run()  # fmt: skip
    study = optuna.load_study(study_name="s", storage=storage)
    assert study.user_attrs["concluded"]["causes"] and "not-to-be" not in repr((study.user_attrs, study.trials))


def test_another_failure_is_unresolved() -> None:
    def trial(c: dict) -> TrialResult:
        return TrialResult(FAIL, "NaN" if c["batch"] == 8 else "other") if c["bf16"] else TrialResult(PASS)

    report = isolated(trial)
    assert "unresolved" in set(report.trials["outcome"])
    (cause,) = report.causes  # bf16 alone dies of something else, so nobody can tell the two apart
    assert set(cause.parameters) | set(cause.companions) == {"bf16", "batch"}


@pytest.mark.training
def test_resuming_repeats_nothing(tmp_path) -> None:
    url, calls = f"sqlite:///{tmp_path}/study.db", []

    def trial(c: dict) -> bool:
        calls.append(c)
        return not (c["bf16"] and c["lr"] == 1e-3)

    assert isolated(trial, storage=url, max_trials=4).status == "inconclusive" and len(calls) == 4
    report = isolated(trial, storage=url)
    assert report.causes[0].parameters == ("bf16", "lr") and len(calls) == len(report.trials)
    again = isolated(trial, storage=url)
    assert len(calls) == len(again.trials) and again.causes == report.causes


@pytest.mark.training
def test_a_study_of_another_function_is_refused(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"

    def blames(name: str) -> Callable[[dict], bool]:
        return lambda c: c[name] == GOOD[name]

    first = isolated(bf16, storage=url)
    with pytest.raises(ValueError, match="trial function"):
        isolated(lambda c: c["lr"] != 1e-3, storage=url)
    other = isolated(lambda c: c["lr"] != 1e-3, storage=url, study_name="other")
    assert [first.causes[0].parameters, other.causes[0].parameters] == [("bf16",), ("lr",)]
    # The code is compared, not what it closes over; an identity of one's own tells such functions apart.
    isolated(blames("bf16"), identity={"blames": "bf16"}, storage=url, study_name="third")
    with pytest.raises(ValueError, match="blames"):
        isolated(blames("lr"), identity={"blames": "lr"}, storage=url, study_name="third")


def test_what_is_left_is_estimated_from_the_first_trial_to_the_last() -> None:
    said: list[tuple[int, int]] = []
    bisection = Bisection(
        dict.fromkeys(MANY, 0), dict.fromkeys(MANY, 1), pair, isolation="none", prior="flat",
        on_event=lambda event: said.append(bisection.progress().remaining),
    )  # fmt: skip
    report = bisection.run()
    assert said[-1] == (0, 0) and all(least >= 1 for least, _ in said[:-2]), said
    assert said[0][0] <= len(report.trials) - 1 <= said[0][1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_valid_raises_comes_up(jobs) -> None:
    with pytest.raises(ZeroDivisionError):
        isolated(bf16, lambda c: bool(1 / (c["batch"] - 8 or c["lr"] - 1e-3)), jobs=jobs)


@pytest.mark.parametrize(("side", "status"), [("good", "baseline_fails"), ("bad", "inconclusive")])
@pytest.mark.parametrize(("reason", "told"), [(False, "is_valid refuses it"), ("A must divide B.", "A must divide B")])
def test_a_configuration_that_is_valid_refuses_is_not_run(side, status, reason, told) -> None:
    refused = {"good": GOOD, "bad": BAD}[side]
    report = isolated(lambda c: 1 / 0, lambda c: reason if c == refused else True)
    assert report.status == status and report.trials.empty
    assert report.notes == (f"The {side} configuration is not valid: {told}.",)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_what_a_function_tells_of_its_steps_is_recorded(isolation) -> None:
    def trial(c: dict) -> TrialResult:
        return TrialResult(FAIL if c["bf16"] else PASS, "boom" if c["bf16"] else None, intermediate={1: 0.5, 2: 0.25})

    bisection = Bisection({"bf16": False}, {"bf16": True}, trial, isolation=isolation, max_trials=2)
    bisection.run()
    assert [trial.intermediate_values for trial in bisection.study.trials] == [{1: 0.5, 2: 0.25}] * 2


def test_runs_that_repeat_themselves_spare_trials() -> None:
    noise = iter(range(1000))

    def trials(told, **known: object) -> int:
        def trial(c: dict) -> TrialResult:
            return TrialResult(PASS if pair(c) else FAIL, None if pair(c) else "boom", intermediate=told())

        report = isolated(trial, good=dict.fromkeys(MANY, 0), bad=dict.fromkeys(MANY, 1), **known)
        assert report.complete and [cause.parameters for cause in report.causes] == [("x11", "x3")]
        return len(report.trials)

    unknown = trials(dict)
    assert trials(lambda: {1: 0.5}) == trials(dict, deterministic=True) < unknown
    assert trials(lambda: {1: float(next(noise))}) == unknown


def test_values_optuna_cannot_hold(tmp_path) -> None:
    good = {"a": float("nan"), "b": {"x": 1}, "c": [1], "d": True, "e": 1e-6, "f": 3}
    bad = {"a": 1.0, "b": {"x": 2}, "c": (2,), "d": 1, "e": 1e-3, "f": 3000, "g": None}
    report = isolated(lambda c: c["b"] != {"x": 2}, good=good, bad=bad, storage=f"sqlite:///{tmp_path}/s.db")
    assert report.causes[0].parameters == ("b",)
    assert report.causes[0].values["b"] == {"good": {"x": 1}, "bad": {"x": 2}}
