"""Strategies written as plain algorithms, replayed against the records.

Each reads as the textbook has it and asks `run(subset)` for an outcome. Known outcomes are looked up; the
first unknown one stops the algorithm and becomes the next question. Replaying from the start each time
costs nothing beside a training run and keeps these as stateless as the rest of the search.
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
    counts, validity = case.counts, case.validity
    ended_otherwise = frozenset(counts.unresolved) if plain else frozenset()

    def run(mask: int, reason: str) -> bool:
        if counts.of(mask).runs:
            return counts.of(mask).fails > 0
        for known in counts.by_subset:
            if known & mask == mask and counts.of(known).passes and not counts.of(known).fails:
                return False
        if mask in ended_otherwise:
            return False
        extra = validity.companions(mask, pool)
        if extra is None:
            return False
        if counts.of(mask | extra).runs:
            return counts.of(mask | extra).fails > 0
        raise Needed(Ask(mask | extra, extra, Purpose.SEARCH, reason))

    return run


def one_at_a_time(problem: Problem, run: Test, inside: int) -> int:
    """Add the factors one by one, in the user's order, until it fails; then take each out again."""
    prefix = 0
    for index in bits(inside):
        prefix |= 1 << index
        if prefix == inside or run(prefix, f"Does it fail once {problem.names[index]} is added?"):
            break
    for index in bits(prefix):
        rest = prefix & ~(1 << index)
        if rest and run(rest, f"Does it still fail without {problem.names[index]}?"):
            prefix = rest
    return prefix


def ddmin(problem: Problem, run: Test, inside: int) -> int:
    """Delta debugging (Zeller & Hildebrandt 2002): parts, then complements of parts, then finer parts."""
    current = list(bits(inside))
    parts = 2
    while len(current) >= 2:
        size = -(-len(current) // parts)
        chunks = [current[i : i + size] for i in range(0, len(current), size)]
        for chunk in chunks:
            if run(mask_of(chunk), f"Do {len(chunk)} of {len(current)} suspects suffice?"):
                current, parts = chunk, 2
                break
        else:
            for chunk in chunks if len(chunks) > 2 else []:
                rest = [i for i in current if i not in chunk]
                if run(mask_of(rest), f"Does it fail without {len(chunk)} of {len(current)} suspects?"):
                    current, parts = rest, max(parts - 1, 2)
                    break
            else:
                if size == 1:
                    break
                parts = min(len(current), 2 * parts)
    return mask_of(current)


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


NARROW: dict[str, Callable[[Problem, Test, int], int]] = {
    "adaptive": growing_prefix,
    "one-at-a-time": one_at_a_time,
    "ddmin": ddmin,
}
"""Strategy -> algorithm; for "adaptive" the one it falls back to."""
