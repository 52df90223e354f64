"""What the nodes have to do with what was seen: pure decisions, from the search's problem and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisect_cfg.common.configuration import Outcome, Status
from bisect_cfg.search.problem import Conclusion, Problem, Record, holds

LOST = "lost"
"""Kind of the signature of a trial that has lost its machine each time."""


def without_lost(problem: Problem, records: Sequence[Record], conclusion: Conclusion) -> Conclusion:
    """The conclusion without what a lost trial could refute: to the search it is a subset that cannot be run, but
    nobody knows what it would have shown."""
    causes, fails = conclusion.causes, [cause.fails.subset or 0 for cause in conclusion.causes]
    ran = {record.subset for record in records if record.outcome in (Outcome.PASS, Outcome.FAIL)}
    passed = [record.subset for record in records if record.outcome is Outcome.PASS]
    lost = {record.subset for record in records if record.other.startswith(LOST)} - ran
    open_ = [mask for mask in sorted(lost) if not holds(mask, fails) and not any(mask & one == mask for one in passed)]
    if not open_:
        return conclusion
    kept = tuple(one for one in causes if not any(mask & (one.fails.subset or 0) == mask for mask in open_))
    notes = (f"What {problem.show(mask)} would show is not known: the machine was lost each time." for mask in open_)
    status = Status.INCONCLUSIVE if not kept and conclusion.status is Status.ISOLATED else conclusion.status
    return replace(conclusion, status=status, causes=kept, complete=False, notes=(*conclusion.notes, *notes))
