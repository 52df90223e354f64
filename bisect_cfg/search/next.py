"""Which subset next: the whole search as one function of what was recorded.

First the two ends: the bad configuration must fail, the good one must pass. Then, again and again, the bad
configuration without a cheapest correction of the causes known so far. If it fails, another cause lives in
there, and is narrowed down and proven; if every minimal correction passes, the causes are complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.search.duality import isolate
from bisect_cfg.search.problem import Ask, Conclusion, Done, Problem, Question, Record, State, Wait
from bisect_cfg.search.tally import Tally

AGAIN = 6
"""So often the bad configuration is run again to see it fail a second time. A failure that shows in three runs of ten
does so with 88 %; what shows more rarely would take hundreds of runs to isolate."""

QUIET = 20
"""After so many passes in a row, without a failure among them, the bad configuration must fail once more: what made it
fail at first may be gone."""

GONE = 10
"""So often it is run then. A failure that shows in three runs of ten does so with 97 %."""

STREAK = 5
"""So many runs in a row that end in one and the same other failure, and the good configuration is run again."""


def next_question(problem: Problem, records: Iterable[Record]) -> Question:
    """What to run next, to wait, or the conclusion.

    Args:
        problem: the factors and how to search them.
        records: every trial so far, running ones included, in the order of their numbers.

    Returns:
        `Ask`, `Wait` or `Done`; equal for equal arguments.
    """
    return look(problem, records).question


def look(problem: Problem, records: Iterable[Record]) -> State:
    """The next question together with what is known so far; see `next_question`."""
    records = tuple(records)
    assumed = _assume_baselines(problem, records) if problem.jobs > 1 else records
    tally = Tally(assumed)
    question = _ends(problem, tally)
    state = isolate(problem, tally) if question is None else State(question)
    if isinstance(state.question, Ask) and tally.of(state.question.subset).running:
        return replace(state, question=Wait(state.question.reason))
    if isinstance(state.question, Done) and assumed != records:
        return replace(state, question=Wait("The baselines are running."))
    return state


def _assume_baselines(problem: Problem, records: tuple[Record, ...]) -> tuple[Record, ...]:
    """With workers to spare, take running baselines to come out as they nearly always do, and go on
    asking."""
    expected = {problem.full: Outcome.FAIL, 0: Outcome.PASS}
    decided = {r.subset for r in records if r.outcome is not None}
    return tuple(
        replace(r, outcome=expected[r.subset])
        if r.outcome is None and r.subset in expected and r.subset not in decided
        else r
        for r in records
    )


def _ends(problem: Problem, tally: Tally) -> Question | None:
    """The two baselines, or what they conclude."""
    bad, good = tally.of(problem.full), tally.of(0)
    if problem.size == 0:
        return Done(Conclusion("no_failure", notes=("The good and the bad configuration do not differ.",)))
    if not bad.fails:
        if bad.passes:
            note = "The bad configuration passed: there is nothing to isolate."
            return Done(Conclusion("no_failure", safe=problem.full, notes=(note,)))
        if bad.unresolved:
            note = "The bad configuration neither passed nor failed in a way that could be told."
            return Done(Conclusion("inconclusive", notes=(note,)))
        return Ask(problem.full, 0, Purpose.BAD_BASELINE, "Does the bad configuration fail?")
    if good.fails and good.passes:
        others = [r.other for r in tally.records if r.outcome is Outcome.UNRESOLVED and r.other]
        after = f", after runs that ended in another failure ({others[-1]})" if others else ""
        note = (
            f"The good configuration passed at first and failed when it was run again{after}: something other than the "
            "settings has changed, or it fails at random. Nothing can be told apart until that is mended."
        )
        return Done(Conclusion("inconclusive", notes=(note,)))
    if good.fails:
        note = "The good configuration fails too: the cause is not among the settings that differ."
        return Done(Conclusion("baseline_fails", notes=(note,)))
    if not good.passes:
        if good.unresolved:
            note = "The good configuration did not run to its end; nothing can be compared with it."
            return Done(Conclusion("inconclusive", notes=(note,)))
        return Ask(0, 0, Purpose.GOOD_BASELINE, "Does the good configuration pass?")
    return _again(problem, tally) or _gone(problem, tally) or _all_the_same(problem, tally)


def _again(problem: Problem, tally: Tally) -> Question | None:
    """A failure that was seen once must be seen again before anything is built on it."""
    bad = tally.of(problem.full)
    if problem.confirm is not None or bad.fails > 1 or any(mask != problem.full for mask in tally.failed):
        return None
    if bad.runs > AGAIN:
        note = (
            f"The bad configuration failed in {bad.fails} of {bad.runs} runs: too rarely to tell which setting makes "
            "it fail, if it is a setting."
        )
        return Done(Conclusion("inconclusive", reproduction=(bad.fails, bad.runs), notes=(note,)))
    if bad.running:
        return None  # whoever else has time goes on: it nearly always fails again
    return Ask(problem.full, 0, Purpose.BAD_BASELINE, "Does the bad configuration fail again?")


def _gone(problem: Problem, tally: Tally) -> Question | None:
    """Run after run passes: because the search has come that far, or because the failure does not show any more?"""
    if problem.confirm is not None:
        return None
    passed: list[Record] = []
    for record in tally.records:
        if record.outcome is Outcome.FAIL:
            passed = []
        elif record.outcome is Outcome.PASS:
            passed.append(record)
    if len(passed) < QUIET or tally.of(problem.full).running:
        return None
    again = sum(record.subset == problem.full for record in passed)
    if again < GONE:
        reason = f"Does the bad configuration still fail? The last {len(passed)} runs passed."
        return Ask(problem.full, 0, Purpose.BAD_BASELINE, reason)
    bad = tally.of(problem.full)
    note = (
        f"The bad configuration failed in {bad.fails} of {bad.runs} runs, and in none of the last {again}: something "
        "other than the settings has changed since, or it fails too rarely to tell which setting makes it fail."
    )
    return Done(Conclusion("inconclusive", reproduction=(bad.fails, bad.runs), notes=(note,)))


def _all_the_same(problem: Problem, tally: Tally) -> Question | None:
    """If run after run ends in one and the same other failure, is it the settings, or something that has changed?

    The good configuration tells: if it ends so too, no further run can say anything about the settings.
    """
    streak: list[Record] = []
    for record in tally.records:
        if record.outcome is None or (record.outcome is not Outcome.UNRESOLVED and record.subset == problem.full):
            continue
        same = record.outcome is Outcome.UNRESOLVED and record.other
        if not same or (streak and record.other != streak[-1].other):
            streak = []
        if same:
            streak.append(record)
    if len(streak) < STREAK:
        return None
    if any(record.subset == 0 for record in streak):
        note = (
            f"The last {len(streak)} runs all ended in another failure ({streak[-1].other}), the good configuration "
            "too, which had passed before: something other than the settings has changed. Nothing can be told apart "
            "until that is mended."
        )
        return Done(Conclusion("inconclusive", notes=(note,)))
    if tally.of(0).running:
        return Wait("The good configuration is run again.")
    reason = f"Does the good configuration still pass? The last {len(streak)} runs ended in {streak[-1].other}."
    return Ask(0, 0, Purpose.GOOD_BASELINE, reason)
