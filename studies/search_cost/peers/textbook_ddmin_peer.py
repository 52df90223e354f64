"""Delta debugging from the textbook: both ends are run first, and nothing is run twice."""

from __future__ import annotations

from functools import cache

from oracles import Answer, Oracle
from textbook import ddmin

TITLE = "textbook ddmin"


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause."""
    if oracle.fails(0, repeats) or not oracle.fails(oracle.instance.full, repeats):
        return Answer(frozenset())
    return Answer(frozenset({ddmin(oracle.size, cache(lambda mask: oracle.fails(mask, repeats)))}))
