"""Settings that hide a failure.

If a run passed although it holds a cause that fails alone, then either the failure is random or something
else in that run hides it. Repeating both tells: a random failure soon gives two outcomes for one subset, a
hidden one never. Once it is established that the failure is hidden, the least that hides it is narrowed
down by bisection, and the runs it spoiled are left out of the reckoning, which otherwise would take the
failure for a rare one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.search.case import Case
from bisect_cfg.search.fallback import Needed, Test, growing_prefix
from bisect_cfg.search.problem import Ask, FoundCause, Record, by_size

REPEATS = 3
"""How often the cause must have failed, and the larger subset passed, without one exception. At a failure
rate of one half this would happen once in 64 times."""


@dataclass(frozen=True)
class Masked:
    """`setting` hides the failure that `cause` shows alone."""

    setting: int
    cause: int

    def spoils(self, record: Record) -> bool:
        """Whether this run passed only because the failure was hidden."""
        both = self.setting | self.cause
        return record.outcome is Outcome.PASS and record.subset & both == both


def look_for_masking(case: Case, causes: Iterable[FoundCause]) -> Ask | list[Masked]:
    """The settings that hide one of the causes, or the run that is needed to tell.

    An empty list where nothing suggests it: no cause passed inside a larger subset, or a subset had two outcomes.
    """
    problem, counts = case.problem, case.counts
    found: list[Masked] = []
    for cause in causes if not counts.random else ():
        witness = cause.fails.subset or cause.parameters
        while larger := [
            mask
            for mask in counts.passed
            if mask & witness == witness
            and not any(m.cause == cause.parameters and mask & m.setting == m.setting for m in found)
        ]:
            hiding = min(larger, key=by_size)
            for mask, seen in ((hiding, counts.of(hiding).passes), (witness, counts.of(witness).fails)):
                if seen < REPEATS:
                    reason = f"Is the failure of {problem.show(cause.parameters)} random, or hidden by a setting?"
                    return Ask(mask, mask & ~cause.parameters & cause.companions, Purpose.MASKING, reason)
            try:
                found.append(
                    Masked(growing_prefix(problem, _hides(case, cause, witness), hiding & ~witness), cause.parameters)
                )
            except Needed as needed:
                return needed.ask
    return found


def _hides(case: Case, cause: FoundCause, witness: int) -> Test:
    """Whether some settings hide the failure of a cause; what cannot be run hides nothing."""

    def run(mask: int, reason: str) -> bool:
        count = case.counts.of(witness | mask)
        if not count.runs and case.validity.ok(witness | mask):
            reason = f"Which setting hides the failure of {case.problem.show(cause.parameters)}?"
            raise Needed(Ask(witness | mask, 0, Purpose.MASKING, reason))
        return count.passes > 0

    return run
