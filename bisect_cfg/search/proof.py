"""What it takes to call a subset a cause.

A cause is claimed only with a run in which it failed and, for each of its parameters, a run without that one
which passed, or the statement that no such run can be valid. The failing run may hold companions: factors
that are there only because the run would be invalid without them. A companion that could be left out some
other way is left out once, to see that the run still fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.search.prices import Prices
from bisect_cfg.search.problem import Ask, Claim, FoundCause, Problem, bits
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.validity import Validity

CANNOT = "no configuration without it can be valid"

UNSEEN = "every run without it ended in another failure"

COSTLY = 3.0
"""A run without one parameter that is predicted to cost this many times as much as the same run with some further
settings as the user has them is not asked; the other is, and the claim says so. That needs the good level of a setting
to be what makes runs dear (completions of 512 tokens in place of the user's 12); such a setting seldom hides a failure,
and that the cause fails without it is seen."""

IMPLIED = "seen in a larger subset, without this one as well"


@dataclass(frozen=True)
class Step:
    """One run that a proof needs, and the outcome it must have."""

    subset: int
    expected: Outcome
    ask: Ask


@dataclass(frozen=True)
class Proof:
    """The state of a proof.

    Attributes:
        missing: runs still needed, the most telling first.
        refuted: a run has shown that this is no cause, or not the whole of one.
        unseen: every run without one of its parameters ended in another failure, so that none was seen to pass.
        found: the cause, once nothing is missing.
    """

    missing: tuple[Step, ...] = ()
    refuted: bool = False
    unseen: bool = False
    found: FoundCause | None = None


def direct(problem: Problem, tally: Tally) -> int:
    """How often a proof must see each run itself while the search goes on: 1, or 0 if larger subsets may
    speak for smaller ones, which they no longer can once runs contradict each other."""
    return 1 if problem.times or tally.contradictory else 0


def prove(
    problem: Problem,
    tally: Tally,
    validity: Validity,
    cause: int,
    pool: int,
    times: int = 1,
    known: tuple[int, ...] = (),
) -> Proof | None:
    """The state of the proof that `cause` is a cause; None if no run can contain it.

    Args:
        problem: the problem.
        tally: what was seen.
        validity: what can be run.
        cause: the claimed parameters.
        pool: a failed subset containing it, where companions are looked for first.
        times: how often each run must have been seen; 0 lets a run without a parameter count as passed when
            one of a larger subset passed, which is the same thing if no setting hides the failure.
        known: other causes; a run that holds one of them would fail for that, and tells nothing.
    """
    companions = validity.companions(cause, pool, avoid=known)
    if companions is None:
        companions = validity.companions(cause, avoid=known)
    if companions is None:
        companions = validity.shrink(pool, cause) & ~cause if cause & pool == cause else None
    if companions is None:
        return None
    witness = cause | companions
    stuck = sum(1 << i for i in bits(cause) if _without(validity, witness, 1 << i, known) is None)
    stuck = sum(1 << i for i in bits(stuck) if not _group(validity, witness, 1 << i, known))
    if stuck and stuck != cause:  # they leave only together with a parameter: companions, whoever proposed them
        smaller_claim = prove(problem, tally, validity, cause & ~stuck, pool, times, known)
        if smaller_claim is not None and not smaller_claim.refuted:
            return smaller_claim
    if stuck == cause and any(validity.only_seen(witness & ~(1 << i), 1 << i, known) for i in bits(stuck)):
        # What none of its parts can leave without another failure was never seen to pass: nothing is proven by that.
        return Proof(unseen=True)
    shown = problem.show(cause)
    missing: list[Step] = []
    if tally.of(witness).fails < max(times, 1):
        reason = f"Does {shown} alone fail?" if not companions else f"Does {shown} fail?"
        missing.append(Step(witness, Outcome.FAIL, Ask(witness, companions, Purpose.CAUSE_FAILS, reason)))
    claims: dict[int, Claim] = {}
    grouped = inseparable = 0
    seen = tally.of(witness)
    refuted = seen.passes > 0 and not seen.fails and not tally.contradictory
    for index in bits(cause):
        bit = 1 << index
        smaller = _without(validity, witness, bit, known)
        if smaller is None:
            group = _group(validity, witness, bit, known)
            grouped |= group & ~cause
            inseparable |= group | bit if group else 0
            seen_only = validity.only_seen(witness & ~bit, bit, known)
            claims[index] = Claim(None, Outcome.PASS, note=UNSEEN if seen_only else CANNOT)
            smaller = witness & ~bit & ~group if group else 0
            if not smaller:
                continue
        else:
            affordable = _affordable(problem, tally, validity, smaller, witness, known)
            note = f"with {problem.show(affordable & ~smaller)} as you have it" if affordable != smaller else ""
            smaller = affordable
            claims[index] = tally.claim(smaller, Outcome.PASS, note)
        count = tally.of(smaller)
        refuted |= count.fails > 0
        if times == 0 and not count.runs:
            larger = next((m for m in tally.passed if m & smaller == smaller and not tally.of(m).fails), None)
            if larger is not None and claims[index].subset is not None and not claims[index].note:
                claims[index] = tally.claim(larger, Outcome.PASS, IMPLIED)
                continue
        if count.passes < max(times, 1):
            reason = f"Does {shown} still fail without {problem.names[index]}?"
            step = Ask(smaller, smaller & ~cause, Purpose.CAUSE_MINUS_ONE, reason)
            missing.append(Step(smaller, Outcome.PASS, step))
    for index in bits(companions & ~grouped):
        bit = 1 << index
        other = _without(validity, witness, bit, known)
        if other is None or any(mask & cause == cause and not mask & bit for mask in tally.failed):
            continue
        if tally.of(other).passes and not tally.of(other).fails:
            refuted = True
            continue
        reason = f"Does {shown} fail without the companion {problem.names[index]} as well?"
        missing.append(Step(other, Outcome.FAIL, Ask(other, other & ~cause, Purpose.CAUSE_FAILS, reason)))
    if missing or refuted:
        return Proof(tuple(missing), refuted)
    for index in bits(grouped):
        seen_only = validity.only_seen(witness & ~(1 << index), 1 << index, known)
        claims[index] = Claim(None, Outcome.PASS, note=UNSEEN if seen_only else CANNOT)
    found = FoundCause(cause | grouped, companions & ~grouped, tally.claim(witness, Outcome.FAIL), claims, inseparable)
    return Proof(found=found)


def _affordable(
    problem: Problem, tally: Tally, validity: Validity, smaller: int, witness: int, known: tuple[int, ...]
) -> int:
    """The run without one parameter, or, if that is too costly, the same with the settings that make it cheaper."""
    prices = Prices.of(problem, tally)
    if prices.flat or tally.of(smaller).runs:
        return smaller
    cheap = prices.cheap & ~witness & ~smaller
    run = [m for m in tally.counts if m & smaller == smaller and not m & ~smaller & ~cheap and tally.of(m).runs]
    if run:
        return min(run, key=lambda mask: (mask.bit_count(), mask))
    strong = sum(1 << i for i in bits(cheap) if prices.factors[i] < -log(COSTLY))
    other = smaller | strong
    if strong and validity.promising(other) and not any(cause & other == cause for cause in known):
        return other
    return smaller


def _without(validity: Validity, witness: int, bit: int, known: tuple[int, ...]) -> int | None:
    """The nearest valid run to the witness without one factor, or None."""
    smaller = witness & ~bit
    if validity.promising(smaller) and (validity.decided(smaller) or not validity.with_given_up(smaller, bit)):
        return smaller
    extra = validity.companions(smaller, forbidden=bit, avoid=known)
    if extra is None or (not validity.decided(smaller | extra) and validity.with_given_up(smaller, bit)):
        return None
    return smaller | extra


def _group(validity: Validity, witness: int, bit: int, known: tuple[int, ...]) -> int:
    """The factor that a stuck one must leave the witness with, if that is stuck as well; 0 if there is none.

    If the other could leave alone, it is a parameter, and the stuck one merely accompanies it.
    """
    for index in bits(witness & ~bit):
        other = 1 << index
        if validity.promising(witness & ~bit & ~other) and _without(validity, witness, other, known) is None:
            return other
    return 0


def split(validity: Validity, witness: int, known: tuple[int, ...] = ()) -> int:
    """The parameters of a minimal failing run: what can be taken out alone, or, if nothing can, all of it.

    A factor that cannot is a companion if taking it out forces a parameter out with it. Factors that only
    leave together stay parameters; `prove` then reports them as inseparable.
    """
    parameters = sum(1 << i for i in bits(witness) if _without(validity, witness, 1 << i, known) is not None)
    for index in bits(witness & ~parameters):
        if _group(validity, witness, 1 << index, known):
            parameters |= 1 << index
    return parameters or witness
