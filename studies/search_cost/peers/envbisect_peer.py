"""envbisect: its `ddmin` between two environments, after the two baselines its documentation asks for.

Its command line adds ten runs that verify the answer, and gives up when one configuration both passes and fails.
"""

from __future__ import annotations

from envbisect.ddmin import IndeterminateError, ddmin
from envbisect.models import Change, Status
from oracles import Answer, Oracle

PACKAGE = "envbisect"


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause. An invalid configuration is its ERROR, which it will not build a claim on."""
    changes = [Change(f"F{i}", "good", "bad", True, True) for i in range(oracle.size)]
    bit = {change: 1 << i for i, change in enumerate(changes)}

    def test(chosen: tuple[Change, ...]) -> Status:
        mask = sum(bit[change] for change in chosen)
        invalid = oracle.invalid
        fails = oracle.fails(mask, repeats)
        if oracle.invalid > invalid:
            return Status.ERROR
        return Status.FAIL if fails else Status.PASS

    if test(()) is not Status.PASS or test(tuple(changes)) is not Status.FAIL:
        return Answer(frozenset())
    try:
        found = ddmin(changes, test)
    except IndeterminateError:
        return Answer(frozenset())
    return Answer(frozenset({sum(bit[change] for change in found)}))
