"""picire: `DD`, its single-process delta debugging, with the defaults of its command line."""

from __future__ import annotations

import logging

from oracles import Answer, Oracle
from picire import DD
from picire.outcome import Outcome

PACKAGE = "picire"
logging.getLogger("picire").setLevel(logging.ERROR)


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause. It runs each smaller failing configuration a second time before it goes on."""

    def test(config: list[int], config_id: object) -> Outcome:
        return Outcome.FAIL if oracle.fails(sum(1 << i for i in config), repeats) else Outcome.PASS

    try:
        found = DD(test)(list(range(oracle.size)))
    except AssertionError:  # what failed before did not fail again
        return Answer(frozenset())
    return Answer(frozenset({sum(1 << i for i in found)}))
