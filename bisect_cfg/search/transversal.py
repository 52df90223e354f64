"""Minimal hitting sets: the corrections that go with a list of causes.

A correction resets at least one factor of every cause. Minimal corrections and causes are each other's
minimal hitting sets (Reiter 1987), which is what makes the certificate of completeness possible.
"""

from __future__ import annotations

from collections.abc import Iterable

from bisect_cfg.search.problem import bits, by_size, holds

MAX_HITTING_SETS = 4096
"""Ten disjoint triples have 59049 corrections; no one can test or read that many. Past this we keep the
smallest."""


def minimal_hitting_sets(causes: Iterable[int]) -> list[int]:
    """All inclusion-minimal sets that meet every cause, by Berge's multiplication; `[0]` for no causes."""
    current = [0]
    for cause in sorted(causes, key=int.bit_count):
        hit = [mask for mask in current if mask & cause]
        grown = {mask | 1 << i for mask in current if not mask & cause for i in bits(cause)}
        kept = [mask for mask in grown if not holds(mask, hit)]
        current = sorted(hit + minimal(kept), key=by_size)[:MAX_HITTING_SETS]
    return current


def minimal(masks: Iterable[int]) -> list[int]:
    """The inclusion-minimal ones among the masks."""
    result: list[int] = []
    for mask in sorted(set(masks), key=int.bit_count):
        if not holds(mask, result):
            result.append(mask)
    return result
