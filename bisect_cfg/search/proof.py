"""What it takes to call a subset a cause.

A cause is claimed only with a run in which it failed and, for each of its parameters, a run without that one
which passed, or the statement that no such run can be valid. The failing run may hold companions: factors
that are there only because the run would be invalid without them. A companion that could be left out some
other way is left out once, to see that the run still fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import log

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.search.case import Case
from bisect_cfg.search.problem import Ask, FoundCause, Problem, Record, SubsetClaim, bits, by_size, holds, mask_of

CANNOT = "no configuration without it can be valid"

UNSEEN = "every run without it ended in another failure"

COSTLY = 3.0
"""A run without one parameter that is predicted to cost this many times as much as the same run with some further
settings as the user has them is not asked; the other is, and the claim says so. That needs the good level of a
setting to be what makes runs costly (completions of 512 tokens in place of the user's 12); such a setting seldom hides
a failure, and that the cause fails without it is seen."""


@dataclass(frozen=True)
class Proof:
    """The state of a proof.

    Attributes:
        missing: runs still needed, the most telling first.
        refuted: a run has shown that this is no cause, or not the whole of one.
        unseen: every run without one of its parameters ended in another failure, so that none was seen to pass.
        found: the cause, once nothing is missing.
    """

    missing: tuple[Ask, ...] = ()
    refuted: bool = False
    unseen: bool = False
    found: FoundCause | None = None


def prove(case: Case, cause: int, pool: int, times: int = 1, known: tuple[int, ...] = ()) -> Proof | None:
    """The state of the proof that `cause` is a cause; None if no run can contain it.

    Companions are looked for first in `pool`, a failed subset. Each run must have been seen so many `times`. A run that
    holds another cause, of those `known`, would fail for that, and tells nothing.
    """
    problem, counts, validity = case.problem, case.counts, case.validity
    companions = _companions(case, cause, pool, known)
    if companions is None:
        return None
    witness = cause | companions
    bound = _bound(case, witness, cause, known)
    if bound and bound != cause:  # they leave only together with a parameter: companions, whoever proposed them
        smaller_claim = prove(case, cause & ~bound, pool, times, known)
        if smaller_claim is not None and not smaller_claim.refuted:
            return smaller_claim
    if bound == cause and any(validity.only_seen(witness & ~(1 << i), 1 << i, known) for i in bits(bound)):
        # What none of its parts can leave without another failure was never seen to pass: nothing is proven by that.
        return Proof(unseen=True)
    seen = counts.of(witness)
    missing: list[Ask] = []
    claims: dict[int, SubsetClaim] = {}
    refuted = seen.passes > 0 and not seen.fails and not counts.contradictory
    if seen.fails < times:
        reason = problem.ask(cause, "fail" if companions else "alone fail")
        missing.append(Ask(witness, companions, Purpose.CAUSE_FAILS, reason))
    grouped = inseparable = 0
    for index in bits(cause):
        without = _without(case, witness, index, known)
        if without is None:
            group = _group(case, witness, index, known)
            grouped |= group & ~cause
            inseparable |= group | 1 << index if group else 0
            smaller = witness & ~(group | 1 << index)
            if not group or not smaller:
                continue
        else:
            smaller = _affordable(case, without, witness, known)
            kept = smaller & ~without
            them = "them" if kept.bit_count() > 1 else "it"
            note = f"with {problem.show(kept)} as you have {them}" if kept else ""
            claims[index] = counts.claim(smaller, Outcome.PASS, note)
        count = counts.of(smaller)
        refuted |= count.fails > 0
        if count.passes < times:
            reason = problem.ask(cause, "still fail", index)
            missing.append(Ask(smaller, smaller & ~cause, Purpose.CAUSE_MINUS_ONE, reason))
    for index, other in _without_companions(case, cause, companions & ~grouped, witness, known):
        if counts.of(other).passes and not counts.of(other).fails:
            refuted = True
            continue
        reason = problem.ask(cause, f"fail without the companion {problem.names[index]} as well")
        missing.append(Ask(other, other & ~cause, Purpose.CAUSE_FAILS, reason))
    if missing or refuted:
        return Proof(tuple(missing), refuted)
    for index in bits((cause | grouped) & ~mask_of(claims)):
        seen_only = validity.only_seen(witness & ~(1 << index), 1 << index, known)
        claims[index] = SubsetClaim(None, Outcome.PASS, note=UNSEEN if seen_only else CANNOT)
    fails, claims = counts.claim(witness, Outcome.FAIL), dict(sorted(claims.items()))
    return Proof(found=FoundCause(cause | grouped, companions & ~grouped, fails, claims, inseparable))


def _companions(case: Case, cause: int, pool: int, known: tuple[int, ...]) -> int | None:
    """What must be bad with a cause for a run to be valid, from `pool` if it can be; None if no run can contain it."""
    for where in (pool, None):
        found = case.validity.companions(cause, where, avoid=known)
        if found is not None:
            return found
    return case.validity.shrink(pool, cause) & ~cause if cause & pool == cause else None


def _without_companions(
    case: Case, cause: int, companions: int, witness: int, known: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Of each companion that nothing was seen to fail without: its index, and the nearest valid run without it."""
    for index in bits(companions):
        other = _without(case, witness, index, known)
        if other is not None and not any(m & cause == cause and not m >> index & 1 for m in case.counts.failed):
            yield index, other


def _affordable(case: Case, smaller: int, witness: int, known: tuple[int, ...]) -> int:
    """The run without one parameter, or, if that is too costly, the same with the settings that make it cheaper."""
    prices, counts = case.prices, case.counts
    if prices.flat or counts.of(smaller).runs:
        return smaller
    cheap = prices.cheap & ~witness & ~smaller
    run = [m for m in counts.by_subset if m & smaller == smaller and not m & ~smaller & ~cheap and counts.of(m).runs]
    if run:
        return min(run, key=by_size)
    strong = mask_of(i for i in bits(cheap) if prices.factors[i] < -log(COSTLY))
    other = smaller | strong
    if strong and case.validity.promising(other) and not holds(other, known):
        return other
    return smaller


def _without(case: Case, witness: int, index: int, known: tuple[int, ...]) -> int | None:
    """The nearest valid run to a failing one without one factor; None if there is none, or it is given up."""
    smaller = witness & ~(1 << index)
    extra = case.validity.companions(smaller, forbidden=1 << index, avoid=known)
    if extra is None or case.counts.of(smaller | extra).runs:
        return None if extra is None else smaller | extra
    return None if case.validity.given_up(smaller, without=1 << index) else smaller | extra


def _bound(case: Case, witness: int, among: int, known: tuple[int, ...]) -> int:
    """Those of some factors that can leave a failing run neither alone nor with others that cannot either."""
    alone = (i for i in bits(among) if _without(case, witness, i, known) is None)
    return mask_of(i for i in alone if not _group(case, witness, i, known))


def _group(case: Case, witness: int, index: int, known: tuple[int, ...]) -> int:
    """The factors that a stuck one must leave a failing run with, if those are stuck as well; 0 if there are none.

    If one of them could leave alone, it is a parameter, and the stuck one merely accompanies it.
    """
    validity = case.validity

    def stuck(other: int) -> bool:
        return _without(case, witness, other, known) is None

    for other in bits(witness & ~(1 << index)):
        if validity.promising(witness & ~(1 << index | 1 << other)) and stuck(other):
            return 1 << other
    # More than one, as packages that ask for each other's versions: what can be there without it, one by one.
    if validity.only_seen(witness & ~(1 << index), 1 << index, known):
        return 0
    rest = validity.grow(witness & ~(1 << index))
    group = witness & ~(rest | 1 << index)
    return group if (not rest or validity.promising(rest)) and all(map(stuck, bits(group))) else 0


def split(case: Case, witness: int, known: tuple[int, ...] = ()) -> int:
    """The parameters of a minimal failing run: what can be taken out alone, or, if nothing can, all of it.

    A factor that cannot is a companion if taking it out forces a parameter out with it. Factors that only
    leave together stay parameters; `prove` then reports them as inseparable.
    """
    return witness & ~_bound(case, witness, witness, known) or witness


# ------------------------------------------------------------------------------------------------------ without weights

# The plain algorithm that the search falls back to, replayed against the records.
#
# It asks `run(subset)` for an outcome. Known outcomes are looked up; the first unknown one stops the algorithm and
# becomes the next question. Replaying from the start each time costs nothing beside a training run and keeps it as
# stateless as the rest of the search.


class Needed(Exception):
    """The replay reached a subset that was never run."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(ask)
        self.ask = ask


Test = Callable[[int, str], bool]


def replay(case: Case, pool: int, plain: bool) -> Test:
    """A `run(subset, reason) -> failed` that answers from the records, or raises `Needed`.

    A FAIL counts whatever else happened; what cannot be valid, even with companions from `pool`, did not
    fail. With `plain`, neither did what ended in another failure; no companions are looked for to avoid that.
    """
    counts = case.counts

    def run(mask: int, reason: str) -> bool:
        if counts.of(mask).runs:
            return counts.of(mask).fails > 0
        for known in counts.by_subset:
            if known & mask == mask and counts.of(known).passes and not counts.of(known).fails:
                return False
        extra = None if plain and mask in counts.unresolved else case.validity.companions(mask, pool)
        if extra is None:
            return False
        if counts.of(mask | extra).runs:
            return counts.of(mask | extra).fails > 0
        raise Needed(Ask(mask | extra, extra, Purpose.SEARCH, reason))

    return run


def growing_prefix(problem: Problem, run: Test, inside: int) -> int:
    """Binary search for the shortest failing prefix; its last factor is in a cause; repeat with that one set."""
    found, rest = 0, list(bits(inside))
    while not found or not run(found, problem.ask(found, "alone fail")):
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            if run(found | mask_of(rest[:middle]), f"Is a cause among {middle} of {len(rest)} suspects?"):
                high = middle
            else:
                low = middle
        if not rest:
            break
        found |= 1 << rest[high - 1]
        rest = rest[: high - 1]
    return found


# -------------------------------------------------------------------------------------------------------------- masking

# Settings that hide a failure.
#
# If a run passed although it holds a cause that fails alone, then either the failure is random or something
# else in that run hides it. Repeating both tells: a random failure soon gives two outcomes for one subset, a
# hidden one never. Once it is established that the failure is hidden, the least that hides it is narrowed
# down by bisection, and the runs it spoiled are left out of the reckoning, which otherwise would take the
# failure for a rare one.


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
