"""ddmin: Zeller's algorithm as a class; `execute` checks both ends itself."""

from __future__ import annotations

from ddmin import DDMin
from oracles import Answer, Oracle

PACKAGE = "ddmin"


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause."""

    def passes(factors: list[int]) -> bool:
        return not oracle.fails(sum(1 << i for i in factors), repeats)

    try:
        found = DDMin(list(range(oracle.size)), passes).execute()
    except AssertionError:  # an end did not come out as it must
        return Answer(frozenset())
    return Answer(frozenset({sum(1 << i for i in found)}))
