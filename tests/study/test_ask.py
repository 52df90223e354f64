"""One more trial of the reader's own: what may be asked, what is recorded of it, and what the search makes of it."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
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
    if configuration["seed"] == 2:
        os.kill(os.getpid(), signal.SIGINT)
    if configuration["lr"] > 1e-4 and configuration["clip"] == 0:
        raise FloatingPointError("nan at step 3")
    return True


def is_valid(configuration) -> bool | str:
    return "beta must not be negative" if configuration["beta"] < 0 else True


def bisected(**options):
    bisection = Bisection(GOOD, BAD, trial, is_valid, isolation="none", **options)
    return bisection, bisection.run()


@pytest.mark.training
def test_values_and_subsets_are_run_and_stand_beside_the_others(tmp_path) -> None:
    bisection, report = bisected(storage=f"sqlite:///{tmp_path}/s.db", study_name="s", identity={})
    before = len(report.trials)
    between = report.ask({"lr": 5e-4, "beta": 0.3})
    assert (between.outcome, between.signature) == (Outcome.FAIL, report.signature) and not between.note
    assert between.values == {**{name: BAD[name] for name in ("bf16", "clip")}, "lr": 5e-4, "beta": 0.3}
    assert report.ask({"args.lr": 5e-5}).outcome is Outcome.PASS
    alone = report.ask("lr")
    assert alone.outcome is Outcome.PASS and alone.values == {"lr": 1e-3, "bf16": False, "clip": 1.0, "beta": 0.0}
    assert report.ask(["lr", "clip"]).outcome is Outcome.FAIL and report.ask(()).outcome is Outcome.PASS
    asked = report.trials.iloc[before:]
    assert list(asked["purpose"]) == ["asked"] * 5
    assert list(asked["number"]) == list(range(between.number, between.number + 5))
    assert list(asked["tested"])[::2] == ["lr: 0.0005, beta: 0.3", "only lr", "the good configuration"]
    assert list(asked["lr"]) == [5e-4, 5e-5, 1e-3, 1e-3, 1e-6]
    page = between._repr_html_()
    assert "lr: 0.0005, beta: 0.3" in page and "the good configuration" in page and str(between).startswith("Trial")
    assert len(report.plot_matrix().data[0].x) == before + 5
    other = Bisection(GOOD, BAD, lambda c: pytest.fail("run again"), isolation="none", identity={}, study_name="s",
                      storage=f"sqlite:///{tmp_path}/s.db")  # fmt: skip
    for again in (bisection.run(), other.run()):
        assert [c.parameters for c in again.causes] == [("clip", "lr")] and again.complete
        assert len(again.trials) == before + 5 and list(again.trials["lr"])[-2:] == [1e-3, 1e-6]
    assert report.ask({"lr": np.float32(1e-5), "beta": np.int64(0)}).outcome is Outcome.PASS
    kept = pickle.loads(pickle.dumps(report))
    assert len(kept.trials) == before + 6
    with pytest.raises(InputError, match="cannot run a trial"):
        kept.ask("lr")


@pytest.mark.parametrize(
    ("wanted", "error", "said"),
    [
        ("bf_16", InputError, "Did you mean bf16?"),
        (["lr", "weight_decay"], InputError, "Those that differ are: lr, bf16, clip, beta."),
        ("seed", InputError, "not among the settings that differ"),
        ({"clipp": 1.0}, InputError, "Did you mean clip?"),
        ({"bf16": False, "fp16": True}, InputError, "fp16"),
        ({"beta": -1}, InputError, "beta must not be negative. Nothing was run"),
        ({"lr": object()}, TypeError, "which nothing can record"),
        (3, TypeError, "ask() takes"),
        ([3], TypeError, "ask() takes"),
        ({3: 4}, TypeError, "ask() takes"),
        (None, TypeError, "ask() takes"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(wanted, error, said: str) -> None:
    _, report = bisected(max_trials=2)
    with pytest.raises(error) as found:
        report.ask(wanted)
    assert said in str(found.value) and len(report.trials) == 2


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
    assert {c.parameters for c in bisection.run().causes} == {("bf16",), ("beta",)}


def test_interrupting_ends_the_trial_and_leaves_the_study_as_it_was() -> None:
    bisection, report = bisected()
    before = len(report.trials)
    with pytest.raises(KeyboardInterrupt):
        report.ask({"seed": 2})
    assert not [t for t in bisection.study.trials if t.state is optuna.trial.TrialState.RUNNING]
    assert len(report.trials) == before == len(bisection.run().trials)


@pytest.mark.training
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_what_is_asked_in_between_leads_no_search_astray(data) -> None:
    """Subsets that are asked at any time, of settings of which one or two small sets fail."""
    names = [f"s{i}" for i in range(6)]
    small = [frozenset(pair) for size in (1, 2) for pair in itertools.combinations(names, size)]
    causes = data.draw(st.lists(st.sampled_from(small), min_size=1, max_size=2, unique=True))
    minimal = {cause for cause in causes if not any(other < cause for other in causes)}

    def passes(configuration) -> bool:
        return not any(all(configuration[name] for name in cause) for cause in minimal)

    bisection = Bisection(dict.fromkeys(names, 0), dict.fromkeys(names, 1), passes, isolation="none")
    bisection._max_trials = data.draw(st.integers(2, 12))
    report = bisection.run()
    for _ in range(data.draw(st.integers(1, 4))):
        subset = data.draw(st.sets(st.sampled_from(names)))
        expected = passes({name: int(name in subset) for name in names})
        assert report.ask(subset).outcome is (Outcome.PASS if expected else Outcome.FAIL)
    bisection._max_trials = None
    found = bisection.run()
    assert {frozenset(cause.parameters) for cause in found.causes} == minimal and found.complete


@pytest.mark.training
def test_a_command_is_asked_in_its_study_and_not_in_one_from_elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("b\na\n")
    folder = tmp_path / "study"

    def study():
        good, bad = (dict(zip(("check", "output", "unique"), values, strict=True))
                     for values in ((False, "none", False), (True, "o.txt", True)))  # fmt: skip
        command = ["sort", "{flags}", "f"]
        return bisect_cfg.bisect(command=command, good=good, bad=bad, study=folder, recommend=False)

    report = study()
    before = len(report.trials)
    assert report.ask({"check", "output"}).outcome is Outcome.FAIL
    for said, wanted in {
        "cannot be handed to another process": {"output": object()},
        "cannot be compared as a whole": {"output": np.array([1, 2])},
        "NaN is not a value": {"output": float("nan")},
        "hub_token, which is not a setting here": {"hub_token": f"hf_{'a' * 34}"},
        "Did you mean check?": {"chekc": True},
    }.items():
        with pytest.raises(InputError) as error:
            report.ask(wanted)
        assert said in str(error.value) and "hf_a" not in str(error.value)
    other = report.ask({"output": "p.txt"})
    assert other.outcome is Outcome.FAIL and (folder / "trials" / str(other.number) / "log.txt").exists()
    loaded = bisect_cfg.load(folder)
    assert loaded.ask({"check": False}).outcome is Outcome.PASS and len(loaded.trials) == before + 3
    page = (folder / "report.html").read_text()
    assert "output: p.txt" in page and "asked by hand" in page
    again = study()
    assert again.trials["number"].nunique() == len(again.trials) == before + 3 and again.complete
    assert list(again.trials["purpose"])[-3:] == ["asked"] * 3
    folder.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")
    with pytest.raises(InputError, match="was not made here") as error:
        bisect_cfg.load(tmp_path / "copied").ask("check")
    assert "trust=True" in error.value.advice
