"""A setting that ends every run in another failure: no blame, no endless trying, and an honest answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg import Bisection, Outcome
from bisect_cfg.search import Ask, Done, Problem, Record, next_question
from bisect_cfg.search.case import ENOUGH_TRIES
from bisect_cfg.search.ends import TRIES, TRIES_PER_FACTOR
from bisect_cfg.store.interface import TrialResult

NAMES = ("a", "b", "c", "weight_decay", "d", "beta", "e", "f")


def crash_before_the_other_failure(configuration):
    if configuration["weight_decay"]:
        return TrialResult(Outcome.FAIL, "SIGFPE")
    if configuration["beta"]:
        return TrialResult(Outcome.FAIL, "OSError: Repo id must use alphanumeric chars")
    return TrialResult(Outcome.PASS)


@pytest.mark.parametrize("confirm", [1, 3])
def test_a_setting_that_breaks_every_run_otherwise(confirm):
    report = Bisection(
        dict.fromkeys(NAMES, False), dict.fromkeys(NAMES, True), crash_before_the_other_failure, isolation="none",
        confirm=confirm,
    ).run()  # fmt: skip
    assert [cause.parameters for cause in report.causes] == [("weight_decay",)]
    # Two baselines, a handful to narrow down, and about eight runs until it is plain that `beta` cannot be tried.
    assert len(report.trials) <= 20 + 4 * confirm
    assert not report.complete and any("another failure" in note for note in report.notes)
    assert report.safe_configuration["weight_decay"] is False and report.safe_configuration["beta"] is False


@pytest.mark.parametrize("confirm", [None, 1, 3])
@pytest.mark.parametrize("size", [3, 8, 19])
@pytest.mark.parametrize("jobs", [1, 3])
def test_what_stays_unresolved_is_given_up(confirm, size, jobs):
    """Beside the two ends no run says anything."""
    good, bad = ({f"x{number}": value for number in range(size)} for value in (0, 1))
    ends = iter([Outcome.FAIL, Outcome.PASS])
    bisection = Bisection(good, bad, lambda c: next(ends, None), isolation="none", confirm=confirm, jobs=jobs)
    report = bisection.run()
    assert report.status == "inconclusive" and not report.causes
    assert any("given up" in note or "another failure" in note for note in report.notes)
    assert len(report.trials) - 2 <= ENOUGH_TRIES + jobs
    assert len(bisection.run().trials) == len(report.trials)  # nor is it tried again


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(0, 2), st.sampled_from([None, 1]), st.data())
def test_runs_that_say_nothing_in_a_way_of_their_own_are_given_up(size, said, confirm, data):
    """What no rule explains: after a few runs that say something, each ends in a failure that no other has."""
    spoken = data.draw(st.lists(st.sampled_from([Outcome.PASS, Outcome.FAIL]), max_size=said))
    problem, records = Problem(tuple(f"x{number}" for number in range(size)), confirm=confirm), []
    records += [Record(problem.full, Outcome.FAIL, number=0), Record(0, Outcome.PASS, number=1)]
    limit = TRIES + TRIES_PER_FACTOR * size
    unresolved = 0
    while isinstance(question := next_question(problem, records), Ask):
        outcome = spoken.pop() if spoken else Outcome.UNRESOLVED
        other = f"error {len(records)}" if outcome is Outcome.UNRESOLVED else ""
        records.append(Record(question.subset, outcome, question.purpose, len(records), other=other))
        unresolved = [record.outcome for record in records].count(Outcome.UNRESOLVED)
        assert unresolved <= limit
    assert isinstance(question, Done)
    assert unresolved < limit or any("given up" in note for note in question.conclusion.notes)
