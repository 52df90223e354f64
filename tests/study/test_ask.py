"""One more trial of the reader's own: what may be asked, what is recorded of it, and what the search makes of it."""

from __future__ import annotations

import itertools
import os
import pickle
import signal

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bisect_cfg
from bisect_cfg import Bisection, Outcome
from bisect_cfg.errors import InputError

GOOD = {"lr": 1e-6, "bf16": False, "clip": 1.0, "beta": 0.0, "seed": 1}
BAD = {"lr": 1e-3, "bf16": True, "clip": 0.0, "beta": 0.1, "seed": 1}


def trial(configuration) -> bool:
    if configuration["lr"] > 1e-4 and configuration["clip"] == 0:
        raise FloatingPointError("nan at step 3")
    return True


def bisected(**options):
    bisection = Bisection(GOOD, BAD, trial, isolation="none", **options)
    return bisection, bisection.run()


@pytest.mark.training
def test_values_and_subsets_are_run_and_stand_beside_the_others() -> None:
    bisection, report = bisected()
    before = len(report.trials)
    between = report.ask({"lr": 5e-4, "beta": 0.3})
    assert (between.outcome, between.signature) == (Outcome.FAIL, report.signature) and not between.note
    assert between.values == {**{name: BAD[name] for name in ("bf16", "clip")}, "lr": 5e-4, "beta": 0.3}
    assert report.ask({"args.lr": 5e-5}).outcome is Outcome.PASS
    alone = report.ask("lr")
    assert alone.outcome is Outcome.PASS and alone.values == {"lr": 1e-3, "bf16": False, "clip": 1.0, "beta": 0.0}
    assert report.ask(["lr", "clip"]).outcome is Outcome.FAIL and report.ask(()).outcome is Outcome.PASS
    asked = report.trials.iloc[before:]
    assert list(asked["purpose"]) == ["asked"] * 5 and list(asked["number"]) == list(range(before, before + 5))
    assert list(asked["tested"]) == [
        "lr: 0.0005, beta: 0.3", "lr: 5e-05", "only lr", "yours without bf16, beta", "the good configuration"
    ]  # fmt: skip
    assert list(asked["lr"]) == [5e-4, 5e-5, 1e-3, 1e-3, 1e-6]
    page = between._repr_html_()
    assert "lr: 0.0005, beta: 0.3" in page and "the good configuration" in page and str(between).startswith("Trial")
    assert len(report.plot_matrix().data[0].x) == before + 5
    again = bisection.run()
    assert [c.parameters for c in again.causes] == [("clip", "lr")] and again.complete
    assert len(again.trials) == before + 5  # nothing was run again


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("bf_16", "Did you mean bf16?"),
        (["lr", "weight_decay"], "Those that differ are: lr, bf16, clip, beta."),
        ("seed", "not among the settings that differ"),
        ({"clipp": 1.0}, "Did you mean clip?"),
        ({"bf16": False, "fp16": True}, "fp16"),
    ],
)
def test_unknown_names_are_said_with_the_nearest(wanted, said: str) -> None:
    _, report = bisected(max_trials=2)
    with pytest.raises(InputError) as error:
        report.ask(wanted)
    assert said in str(error.value) and len(report.trials) == 2


def test_what_is_neither_names_nor_values_is_a_type_error() -> None:
    _, report = bisected(max_trials=2)
    for wanted in (3, [3], {3: 4}, None):
        with pytest.raises(TypeError, match=r"ask\(\) takes"):
            report.ask(wanted)


def test_what_is_not_valid_is_not_run() -> None:
    calls = []

    def counted(configuration) -> bool:
        calls.append(configuration)
        return trial(configuration)

    refuse = "beta must not be negative"
    bisection = Bisection(GOOD, BAD, counted, lambda c: refuse if c["beta"] < 0 else True, isolation="none")
    report = bisection.run()
    before = len(calls)
    with pytest.raises(InputError, match="beta must not be negative. Nothing was run"):
        report.ask({"beta": -1})
    assert len(calls) == before == len(report.trials) and report.ask({"seed": 2}).outcome is Outcome.FAIL
    assert calls[-1] == {**BAD, "seed": 2}


def test_a_run_that_contradicts_the_answer_says_so_and_is_taken_up() -> None:
    broken = False

    def changing(configuration) -> bool:
        return not configuration["bf16"] and not (broken and configuration["beta"])

    bisection = Bisection(GOOD, BAD, changing, isolation="none")
    report = bisection.run()
    assert [c.parameters for c in report.causes] == [("bf16",)]
    broken = True
    asked = report.ask("beta")
    assert asked.outcome is Outcome.FAIL and "there is another one" in asked.note and asked.note in asked._repr_html_()
    again = bisection.run()
    assert {c.parameters for c in again.causes} == {("bf16",), ("beta",)}


@pytest.mark.training
def test_another_process_that_loads_the_study_reads_what_was_asked(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/s.db"
    _, report = bisected(storage=storage, study_name="s")
    report.ask({"lr": 5e-4})
    report.ask("lr")
    again = Bisection(GOOD, BAD, lambda c: pytest.fail("run again"), isolation="none", storage=storage, identity={},
                      study_name="s")  # fmt: skip
    rows = again.run().trials
    assert list(rows["purpose"])[-2:] == ["asked", "asked"] and list(rows["lr"])[-2:] == [5e-4, 1e-3]


def test_interrupting_ends_the_trial_and_leaves_the_study_as_it_was() -> None:
    def interrupted(configuration) -> bool:
        if configuration["seed"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return trial(configuration)

    bisection = Bisection(GOOD, BAD, interrupted, isolation="none")
    report = bisection.run()
    before = len(report.trials)
    with pytest.raises(KeyboardInterrupt):
        report.ask({"seed": 2})
    assert len(report.trials) == before == len(bisection.run().trials)
    assert not [t for t in bisection.study.trials if t.state is optuna.trial.TrialState.RUNNING]


def test_a_report_can_be_kept_and_then_cannot_ask() -> None:
    report = pickle.loads(pickle.dumps(bisected()[1]))
    assert len(report.trials) and len(report.plot_matrix().data)
    with pytest.raises(InputError, match="cannot run a trial"):
        report.ask("lr")


@pytest.mark.training
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_what_is_asked_in_between_leads_no_search_astray(data) -> None:
    """Subsets that are asked at any time, of settings of which one or two small sets fail."""
    names = [f"s{i}" for i in range(6)]
    small = [frozenset(pair) for size in (1, 2) for pair in itertools.combinations(names, size)]
    causes = data.draw(st.lists(st.sampled_from(small), min_size=1, max_size=2, unique=True))
    minimal = {cause for cause in causes if not any(other < cause for other in causes)}

    def outcome(configuration) -> bool:
        return not any(all(configuration[name] for name in cause) for cause in minimal)

    bisection = Bisection(dict.fromkeys(names, 0), dict.fromkeys(names, 1), outcome, isolation="none")
    limit = data.draw(st.integers(2, 12))
    bisection._max_trials = limit
    report = bisection.run()
    for _ in range(data.draw(st.integers(1, 4))):
        subset = data.draw(st.sets(st.sampled_from(names)))
        expected = outcome({name: int(name in subset) for name in names})
        assert report.ask(subset).outcome is (Outcome.PASS if expected else Outcome.FAIL)
    bisection._max_trials = None
    found = bisection.run()
    assert {frozenset(cause.parameters) for cause in found.causes} == minimal and found.complete


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("b\na\n")
    good = {"check": False, "output": "none", "unique": False}
    return bisect_cfg.bisect(
        command=["sort", "{flags}", "f"],
        good=good,
        bad={"check": True, "output": "o.txt", "unique": True},
        study=tmp_path / "study",
        recommend=False,
    )


@pytest.mark.training
def test_a_command_is_asked_in_its_study(study, tmp_path) -> None:
    before = len(study.trials)
    assert study.ask({"check", "output"}).outcome is Outcome.FAIL
    refused = {
        "cannot be handed to another process": {"output": object()},
        "cannot be compared as a whole": {"output": np.array([1, 2])},
        "NaN is not a value": {"output": float("nan")},
        "holds a secret": {"hub_token": f"hf_{'a' * 34}"},
        "Did you mean check?": {"chekc": True},
    }
    for said, wanted in refused.items():
        with pytest.raises(InputError) as error:
            study.ask(wanted)
        assert said in str(error.value)
    other = study.ask({"output": "p.txt"})
    assert other.outcome is Outcome.FAIL and (tmp_path / "study" / "trials" / str(other.number) / "log.txt").exists()
    loaded = bisect_cfg.load(tmp_path / "study")
    assert loaded.ask({"check": False}).outcome is Outcome.PASS and len(loaded.trials) == before + 3
    page = (tmp_path / "study" / "report.html").read_text()
    assert "output: p.txt" in page and "asked by hand" in page
    again = bisect_cfg.bisect(
        command=["sort", "{flags}", "f"],
        good={"check": False, "output": "none", "unique": False},
        bad={"check": True, "output": "o.txt", "unique": True},
        study=tmp_path / "study",
        recommend=False,
    )
    assert list(again.trials["number"]) == list(range(before + 3)) and again.complete
    assert list(again.trials["purpose"])[-3:] == ["asked"] * 3


def test_a_study_from_elsewhere_is_not_run(study, tmp_path) -> None:
    (tmp_path / "study").rename(tmp_path / "moved")
    os.system(f"cp -r {tmp_path}/moved {tmp_path}/copied")
    copied = bisect_cfg.load(tmp_path / "copied")
    with pytest.raises(InputError) as error:
        copied.ask("check")
    assert (
        "was not made here" in str(error.value) and "load(" in error.value.advice and "trust=True" in error.value.advice
    )


def test_a_value_that_nothing_can_record_is_refused() -> None:
    _, report = bisected()
    with pytest.raises(TypeError, match="which nothing can record"):
        report.ask({"lr": object()})
    assert report.ask({"lr": np.float32(1e-5), "beta": np.int64(0)}).outcome is Outcome.PASS
