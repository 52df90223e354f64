"""Settings that hide a failure.

If a run passed although it holds a cause that fails alone, then either the failure is random or something
else in that run hides it. Repeating both tells: a random failure soon gives two outcomes for one subset, a
hidden one never. Once it is established that the failure is hidden, the least that hides it is narrowed
down by bisection, and the runs it spoiled are left out of the reckoning, which otherwise would take the
failure for a rare one.
"""

from __future__ import annotations

from dataclasses import dataclass

from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.search.problem import Ask, FoundCause, Problem, Record, bits, mask_of
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.validity import Validity

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


def look_for_masking(
    problem: Problem, tally: Tally, validity: Validity, causes: list[FoundCause]
) -> Ask | list[Masked]:
    """The settings that hide one of the causes, or the run that is needed to tell.

    An empty list where nothing suggests it: no cause passed inside a larger subset, or a subset had two
    outcomes.
    """
    if any(count.fails and count.passes for count in tally.counts.values()):
        return []
    found: list[Masked] = []
    for cause in causes:
        witness = cause.fails.subset or cause.parameters
        while True:
            larger = [
                mask
                for mask in tally.passed
                if mask & witness == witness
                and not any(m.cause == cause.parameters and mask & m.setting == m.setting for m in found)
            ]
            if not larger:
                break
            hiding = min(larger, key=lambda mask: (mask.bit_count(), mask))
            for mask, count in ((hiding, tally.of(hiding).passes), (witness, tally.of(witness).fails)):
                if count < REPEATS:
                    reason = f"Is the failure of {problem.show(cause.parameters)} random, or hidden by a setting?"
                    return Ask(mask, mask & ~cause.parameters & cause.companions, Purpose.MASKING, reason)
            step = _narrow(problem, tally, validity, cause, witness, hiding & ~witness)
            if isinstance(step, Ask):
                return step
            found.append(Masked(step, cause.parameters))
    return found


def _narrow(
    problem: Problem, tally: Tally, validity: Validity, cause: FoundCause, witness: int, suspects: int
) -> Ask | int:
    """The least part of the suspects that hides the failure: its last element by bisection, then the rest."""
    hiding, rest = 0, list(bits(suspects))
    while rest:
        if hiding:
            outcome = _known(tally, validity, witness | hiding)
            if outcome is None:
                return _ask(problem, cause, witness | hiding)
            if outcome:
                break
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            outcome = _known(tally, validity, witness | hiding | mask_of(rest[:middle]))
            if outcome is None:
                return _ask(problem, cause, witness | hiding | mask_of(rest[:middle]))
            low, high = (low, middle) if outcome else (middle, high)
        hiding |= 1 << rest[high - 1]
        rest = rest[: high - 1]
    return hiding


def _ask(problem: Problem, cause: FoundCause, mask: int) -> Ask:
    return Ask(mask, 0, Purpose.MASKING, f"Which setting hides the failure of {problem.show(cause.parameters)}?")


def _known(tally: Tally, validity: Validity, mask: int) -> bool | None:
    """Whether the subset passes; what cannot be run hides nothing."""
    count = tally.of(mask)
    if count.runs:
        return count.passes > 0
    return None if validity.ok(mask) else False
