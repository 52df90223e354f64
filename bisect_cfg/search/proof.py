"""What it takes to call a subset a cause, and to call the list of causes complete.

A cause is claimed only with a run in which it failed and, for each of its parameters, a run without that one
which passed, or the statement that no such run can be valid. The list of causes is claimed to be complete only
when every minimal correction of it was seen to cure the bad configuration.
"""

from __future__ import annotations

from bisect_cfg.factors import Outcome
from bisect_cfg.search.problem import Ask, FoundCause, Problem, bits
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.validity import Validity

CANNOT = "no configuration without it can be valid"


def without(validity: Validity, problem: Problem, cause: int, witness: int, index: int) -> int | None:
    """The run that shows what happens without factor `index`, or None if none can be valid."""
    for smaller in (witness, cause):
        mask = smaller & ~(1 << index)
        if validity.ok(mask):
            return mask
    extra = validity.companions(witness & ~(1 << index), forbidden=1 << index)
    return None if extra is None else witness & ~(1 << index) | extra


def split_witness(validity: Validity, witness: int) -> tuple[int, int, int]:
    """Split a minimal failing run into (parameters, companions, inseparable parameters).

    A factor that can be taken out alone is a parameter (the run without it passed, or it would not be in a
    minimal failing run). One that cannot is a companion if taking it out forces a parameter out with it; what
    can only be taken out together with others that are no parameters either is an inseparable group.
    """
    free = [1 << i for i in bits(witness)]
    parameters = sum(bit for bit in free if validity.ok(witness & ~bit))
    rest = witness & ~parameters
    inseparable = 0
    for index in bits(rest):
        bit = 1 << index
        for other in bits(rest & ~bit):
            if validity.ok(witness & ~bit & ~(1 << other)):
                inseparable |= bit | 1 << other
    if not parameters and not inseparable:
        inseparable = witness if witness.bit_count() > 1 else 0
        return witness, 0, inseparable
    return parameters | inseparable, rest & ~inseparable, inseparable


def next_claim(
    problem: Problem, tally: Tally, validity: Validity, witness: int, times: int
) -> Ask | FoundCause | None:
    """The next run that the proof of this minimal failing run needs, or the proven cause.

    None: a run contradicts the claim (something smaller failed), so it is no cause.
    """
    parameters, companions, inseparable = split_witness(validity, witness)
    shown = problem.show(parameters)
    if tally.of(witness).fails < times:
        return Ask(witness, companions, "cause fails", f"Does {shown} alone fail?")
    claims = {}
    for index in bits(parameters):
        name = problem.names[index]
        mask = without(validity, problem, parameters, witness, index)
        if mask is None:
            claims[index] = tally.claim(None, Outcome.PASS, CANNOT)
            continue
        count = tally.of(mask)
        if count.fails:
            return None
        if count.passes < times:
            return Ask(
                mask, mask & ~parameters, "cause minus one", f"Does {shown} still fail without {name}?"
            )
        claims[index] = tally.claim(mask, Outcome.PASS)
    return FoundCause(parameters, companions, tally.claim(witness, Outcome.FAIL), claims, inseparable)
