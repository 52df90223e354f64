"""The plain algorithm that the search falls back to, replayed against the records.

It asks `run(subset)` for an outcome. Known outcomes are looked up; the first unknown one stops the algorithm and
becomes the next question. Replaying from the start each time costs nothing beside a training run and keeps it as
stateless as the rest of the search.
"""

from __future__ import annotations

from collections.abc import Callable

from bisect_cfg.configuration import Purpose
from bisect_cfg.search.case import Case
from bisect_cfg.search.problem import Ask, Problem, bits, mask_of


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
