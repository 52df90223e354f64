"""The trials of the search: what is written with one, and what is read of it, from earlier versions, too."""

from __future__ import annotations

import pytest
from bisect_cfg.store.search_trials import SearchTrials

from bisect_cfg import Bisection, Outcome
from bisect_cfg.configuration import Purpose
from bisect_cfg.search import Ask, Problem
from bisect_cfg.store.encoding import SUBSET, purpose_of
from bisect_cfg.store.interface import TrialResult

GOOD = {"lr": 1e-6, "bf16": False}
BAD = {"lr": 1e-3, "bf16": True}
FULL = Ask(0b11, 0, Purpose.WARM_START)
FAILED = TrialResult(Outcome.FAIL, "boom")


@pytest.fixture
def bisection() -> Bisection:
    return Bisection(GOOD, BAD, bool, isolation="none")


@pytest.fixture
def trials(bisection: Bisection) -> SearchTrials:
    problem = Problem(tuple(BAD))
    return SearchTrials(bisection.store, problem, lambda result, subset, reference: result.outcome)


def test_a_run_is_added_once_and_named(trials) -> None:
    for run in ("bad-1", "bad-2", "bad-1", ""):
        trials.add(FULL, FAILED, run)
    assert [purpose_of(trial) for trial in trials.all()] == [
        (Purpose.WARM_START, "bad-1"),
        (Purpose.WARM_START, "bad-2"),
        (Purpose.WARM_START, ""),
    ]
    assert [record.purpose for record in trials.records()] == [Purpose.WARM_START] * 3


def test_an_earlier_version_wrote_the_run_behind_the_purpose(trials) -> None:
    attributes = {**trials.attributes(FULL), "purpose": "warm start: bad-1", "outcome": "fail", "added": True}
    trials.store.add(trials.params(FULL.subset), attributes, Outcome.FAIL)
    (trial,) = trials.all()
    assert purpose_of(trial) == (Purpose.WARM_START, "bad-1")
    trials.add(FULL, FAILED, "bad-1")  # it is there already
    assert len(trials.all()) == 1


def test_reports_name_purpose_and_run(bisection) -> None:
    bisection.add(BAD, FAILED, "bad baseline")
    bisection.add(BAD, FAILED, "bad again", "bad-2")
    bisection.add(GOOD, TrialResult(Outcome.PASS), "good baseline")
    purposes = list(bisection.run().trials["purpose"])
    assert purposes[:3] == ["bad baseline", "bad again: bad-2", "good baseline"]


@pytest.mark.parametrize("mask", range(4))
def test_a_subset_is_written_with_its_names(trials, mask: int) -> None:
    trial = trials.start(Ask(mask))
    assert trials.mask(trial) == mask
    assert set(trial.user_attrs[SUBSET]) == trials.names(mask)
