"""One setting at a time, the way people do it by hand: both ends are run first, and nothing is run twice."""

from __future__ import annotations

from functools import cache

from oracles import Answer, Oracle
from textbook import one_at_a_time

TITLE = "one at a time"


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause."""
    if oracle.fails(0, repeats) or not oracle.fails(oracle.instance.full, repeats):
        return Answer(frozenset())
    return Answer(frozenset({one_at_a_time(oracle.size, cache(lambda mask: oracle.fails(mask, repeats)))}))
