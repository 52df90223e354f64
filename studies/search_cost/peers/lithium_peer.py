"""lithium: its default strategy, `minimize`, on a testcase with one line a factor."""

from __future__ import annotations

from lithium.strategies import Minimize
from lithium.testcases import TestcaseLine
from oracles import Answer, Oracle

PACKAGE = "lithium-reducer"


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause."""

    def mask(testcase: TestcaseLine) -> int:
        return sum(1 << int(line) for line in testcase.parts)

    testcase = TestcaseLine()
    testcase.parts = [f"{i}\n".encode() for i in range(oracle.size)]
    testcase.reducible = [True] * oracle.size
    if not oracle.fails(mask(testcase), repeats):
        return Answer(frozenset())
    reduction = Minimize().reduce(testcase)
    for attempt in reduction:
        reduction.feedback(oracle.fails(mask(attempt), repeats))
    return Answer(frozenset({mask(reduction.testcase)}))
