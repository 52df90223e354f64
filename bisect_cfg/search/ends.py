"""The two ends of the search: the bad configuration fails, the good one passes; and both still do.

Everything else is built on these two, so they are run first, and again where the runs since make one of them doubtful.
"""

from __future__ import annotations

from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.search.case import ENOUGH_TRIES
from bisect_cfg.search.problem import Ask, Conclusion, Counts, Done, Problem, Question, Record, Wait

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

TRIES, TRIES_PER_FACTOR = 24, 3
"""So many runs in a row, and so many more for each setting, that end in neither a pass nor the failure, and the search
gives up: each possible companion takes a try, and several may be needed. Of 480 simulated bisections of 5 to 19
settings under up to 8 hidden rules, 8 + n changed the causes found in 1 of 28, this in 1 of 120; without a limit some
go on for hundreds of runs."""


def ends(problem: Problem, counts: Counts) -> Question | None:
    """What to run, or to conclude, before anything can be isolated; None if nothing stands in the way."""
    if problem.size == 0:
        return _over("The good and the bad configuration do not differ.", Status.NO_FAILURE)
    return _bad(problem, counts) or _good(counts) or _still_bad(problem, counts) or _still_good(problem, counts)


def _over(
    note: str, status: Status = Status.INCONCLUSIVE, safe: int | None = None, reproduction: tuple[int, int] = (0, 0)
) -> Done:
    return Done(Conclusion(status, safe=safe, reproduction=reproduction, notes=(note,)))


def _bad(problem: Problem, counts: Counts) -> Question | None:
    """The bad configuration must fail."""
    bad = counts.of(problem.full)
    if bad.fails:
        return None
    if bad.passes:
        return _over("The bad configuration passed: there is nothing to isolate.", Status.NO_FAILURE, safe=problem.full)
    if bad.unresolved:
        return _over("The bad configuration neither passed nor failed in a way that could be told.")
    return Ask(problem.full, 0, Purpose.BAD_BASELINE, "Does the bad configuration fail?")


def _good(counts: Counts) -> Question | None:
    """The good configuration must pass."""
    good = counts.of(0)
    if good.fails and good.passes:
        others = [r.other for r in counts.records if r.outcome is Outcome.UNRESOLVED and r.other]
        after = f", after runs that ended in another failure ({others[-1]})" if others else ""
        return _over(
            f"The good configuration passed at first and failed when it was run again{after}: something other than the "
            "settings has changed, or it fails at random. Nothing can be told apart until that is fixed."
        )
    if good.fails:
        note = "The good configuration fails too: the cause is not among the settings that differ."
        return _over(note, Status.BASELINE_FAILS)
    if good.passes:
        return None
    if good.unresolved:
        return _over("The good configuration did not run to its end; nothing can be compared with it.")
    return Ask(0, 0, Purpose.GOOD_BASELINE, "Does the good configuration pass?")


def _still_bad(problem: Problem, counts: Counts) -> Question | None:
    """A failure that was seen once must be seen again before anything is built on it.

    And where run after run passes, it must be seen once more: it may not show any more.
    """
    bad = counts.of(problem.full)
    if problem.confirm is not None or bad.running:  # whoever else has time goes on: it nearly always fails again
        return None
    passed: list[Record] = []
    for record in counts.records:
        if record.outcome is Outcome.FAIL:
            passed = []
        elif record.outcome is Outcome.PASS:
            passed.append(record)
    again = sum(record.subset == problem.full for record in passed)
    once = bad.fails == 1 and counts.failed == [problem.full]
    if not once and len(passed) < QUIET:
        return None
    if again < (AGAIN if once else GONE):
        reason = "Does the bad configuration fail again?"
        if not once:
            reason = f"Does the bad configuration still fail? The last {len(passed)} runs passed."
        return Ask(problem.full, 0, Purpose.BAD_BASELINE, reason)
    seen = f"The bad configuration failed in {bad.fails} of {bad.runs} runs"
    reproduction = (bad.fails, bad.runs)
    if once:
        note = f"{seen}: too rarely to tell which setting makes it fail, if it is a setting."
        return _over(note, reproduction=reproduction)
    return _over(
        f"{seen}, and in none of the last {again}: something other than the settings has changed since, or it fails "
        "too rarely to tell which setting makes it fail.",
        reproduction=reproduction,
    )


def _still_good(problem: Problem, counts: Counts) -> Question | None:
    """If run after run ends in one and the same other failure, is it the settings, or something that has changed?

    The good configuration tells: if it ends so too, no further run can say anything about the settings.
    """
    streak: list[Record] = []
    for record in counts.records:
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
        return _over(
            f"The last {len(streak)} runs all ended in another failure ({streak[-1].other}), the good configuration "
            "too, which had passed before: something other than the settings has changed. Nothing can be told apart "
            "until that is fixed."
        )
    if counts.of(0).running:
        return Wait("The good configuration is run again.")
    reason = f"Does the good configuration still pass? The last {len(streak)} runs ended in {streak[-1].other}."
    return Ask(0, 0, Purpose.GOOD_BASELINE, reason)


def given_up(problem: Problem, counts: Counts, wanted: Ask) -> str:
    """Why a question is not asked any more: it, or whatever was asked of late, stays unresolved; "" if it is asked."""
    ended = [record for record in counts.records if record.outcome is not None]
    same = [record for record in ended if record.subset == wanted.subset][-ENOUGH_TRIES:]
    if len(same) == ENOUGH_TRIES and all(record.outcome is Outcome.UNRESOLVED for record in same):
        which = "The bad configuration" if wanted.subset == problem.full else f"With {problem.show(wanted.subset)} it"
        ended_in = f"neither a pass nor this failure{_named(same)}"
        return f"{which} ended {ENOUGH_TRIES} times in a row in {ended_in}: given up."
    tries: list[Record] = []
    for record in reversed(ended):
        if record.outcome is Outcome.UNRESOLVED:
            tries.append(record)
        elif record.subset not in (0, problem.full):  # that the two ends are still as they were leads no further
            break
    if len(tries) < TRIES + TRIES_PER_FACTOR * problem.size:
        return ""
    return f"The last {len(tries)} runs ended in neither a pass nor this failure{_named(tries)}: given up."


def _named(records: list[Record]) -> str:
    """The other failure in which runs ended, where it was one and the same."""
    others = {record.other for record in records}
    return f" ({others.pop()})" if len(others) == 1 and all(others) else ""
