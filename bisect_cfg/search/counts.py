"""The records, counted: what each subset was seen to do.

A FAIL says that a cause lies inside the subset, a PASS that none does (or, if the failure is flaky, that none
showed), UNRESOLVED that this subset cannot be asked. A running trial is an outcome not known yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bisect_cfg.configuration import Outcome
from bisect_cfg.search.problem import Record, SubsetClaim, holds


@dataclass
class Count:
    """What one subset was seen to do, and the traces of those of its failing runs that have one."""

    fails: int = 0
    passes: int = 0
    unresolved: int = 0
    running: int = 0
    traces: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """Runs that said something."""
        return self.fails + self.passes


class Counts:
    """The records of a study by subset.

    `contradictory` is True once a run passed although a run of the same or a smaller subset failed: then the
    failure is random, or a setting hides it. `random` is True once one subset has done both: then nothing hides it.
    `repeatable` is True once two failing runs of one subset have the same trace, as long as no two have different ones
    and the failure is not `random`: then a run likely does the same at every start.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = tuple(records)
        self.by_subset: dict[int, Count] = {}
        for record in self.records:
            count = self.by_subset.setdefault(record.subset, Count())
            if record.outcome is None:
                count.running += 1
            elif record.outcome is Outcome.FAIL:
                count.fails += 1
                count.traces += [record.trace] if record.trace else []
            elif record.outcome is Outcome.PASS:
                count.passes += 1
            else:
                count.unresolved += 1
        self.failed = [mask for mask, count in self.by_subset.items() if count.fails]
        self.passed = [mask for mask, count in self.by_subset.items() if count.passes]
        self.running = [mask for mask, count in self.by_subset.items() if count.running]
        self.unresolved = [mask for mask, c in self.by_subset.items() if c.unresolved and not c.runs]

        self.random = any(count.fails and count.passes for count in self.by_subset.values())
        self.contradictory = any(holds(mask, filter(None, self.failed)) for mask in self.passed)
        traces = [count.traces for count in self.by_subset.values()]
        alike = any(len(one) > 1 for one in traces) and all(len({*one}) < 2 for one in traces)
        self.repeatable = alike and not self.random

    def of(self, mask: int) -> Count:
        """The count of one subset, zeros if it never ran."""
        return self.by_subset.get(mask, Count())

    def claim(self, mask: int, expected: Outcome, note: str = "") -> SubsetClaim:
        """What was seen of the claim that `mask` has the expected outcome."""
        said, count = (Outcome.PASS, Outcome.FAIL), self.of(mask)
        numbers = tuple(r.number for r in self.records if r.subset == mask and r.outcome in said)
        seen = count.fails if expected is Outcome.FAIL else count.passes
        return SubsetClaim(mask, expected, seen, count.runs, numbers, note)
