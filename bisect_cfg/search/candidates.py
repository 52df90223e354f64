"""The subsets that may be a cause, as arrays: all small ones, with a prior intensity each.

The prior is a Poisson process: every small subset is a cause independently, with a small intensity. It makes
two questions easy that matter all the time. Given that a subset failed, which cause is in it? One in
proportion to its intensity. And may yet another cause hide in a subset? The sum of the intensities in
there tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from math import comb

import numpy as np

from bisect_cfg.search.problem import mask_of

SIZES = (0.42, 0.365, 0.155, 0.03)
"""How often a cause has 1, 2, 3, 4 parameters. Reports on GRPO name one or two settings; the balance between the
sizes is the one at which `studies/search_cost` needs fewest trials over all of its cases."""

LARGER = 0.03
"""How often it has more; each further parameter halves it."""

EXPECTED_CAUSES = 0.45
"""How many causes besides the one looked for. Most bad configurations have one thing wrong with them; a lower value
saves a few per cent where that is so and costs 15 % where there are two."""

MAX_CANDIDATES = 40_000
"""Triples of 60 factors are 36,000; more would not fit a decision in 50 ms."""


@lru_cache(maxsize=64)
def _combinations(size: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """All subsets of up to `largest` of `size` things: rows of indices padded with `size`, and their sizes."""
    blocks, sizes = [], []
    for k in range(1, largest + 1):
        flat = np.fromiter(chain.from_iterable(combinations(range(size), k)), np.int16, comb(size, k) * k)
        padding = np.full((comb(size, k), largest - k), size, np.int16)
        blocks.append(np.hstack([flat.reshape(-1, k), padding]))
        sizes.append(np.full(comb(size, k), k, np.int8))
    return np.vstack(blocks), np.concatenate(sizes)


def share_of(count: int) -> float:
    """How often a cause has `count` parameters."""
    return SIZES[count - 1] if count <= len(SIZES) else LARGER * 0.5 ** (count - len(SIZES))


def largest_size(size: int) -> int:
    """The largest cause size all of whose candidates fit into `MAX_CANDIDATES`."""
    largest, total = 1, size
    while largest < size and total + comb(size, largest + 1) <= MAX_CANDIDATES:
        largest += 1
        total += comb(size, largest)
    return largest


def switches(mask: int, size: int) -> np.ndarray:
    """A subset as booleans, with one more True at the end that the padding points to."""
    row = np.frombuffer(mask.to_bytes((size + 7) // 8, "little"), np.uint8)
    result = np.ones(size + 1, bool)
    result[:size] = np.unpackbits(row, bitorder="little", count=size)
    return result


@dataclass(frozen=True)
class Candidates:
    """Candidate causes.

    Attributes:
        size: number of factors of the problem.
        index: one row a candidate: its factors, padded with `size`.
        words: the same as 64-bit masks, if there are at most 64 factors.
        sizes: how many factors each has.
        intensity: prior intensity of each.
    """

    size: int
    index: np.ndarray
    words: np.ndarray | None
    sizes: np.ndarray
    intensity: np.ndarray

    def inside(self, mask: int) -> np.ndarray:
        """Which candidates lie within a subset."""
        if self.words is not None:
            return (self.words & np.uint64(~mask & 0xFFFFFFFFFFFFFFFF)) == 0
        return switches(mask, self.size)[self.index].all(1)

    def inside_each(self, masks: Sequence[int]) -> np.ndarray:
        """Which candidates lie within which of some subsets: candidates x subsets."""
        if self.words is not None:
            outside = np.array([~mask & 0xFFFFFFFFFFFFFFFF for mask in masks], np.uint64)
            return (self.words[:, None] & outside) == 0
        return np.stack([self.inside(mask) for mask in masks], 1)

    def containing(self, mask: int) -> np.ndarray:
        """Which candidates contain a subset."""
        if self.words is not None:
            return (self.words & np.uint64(mask)) == np.uint64(mask)
        chosen = switches(mask, self.size)
        chosen[-1] = False
        return chosen[self.index].sum(1) == mask.bit_count()

    def take(self, rows: np.ndarray) -> Candidates:
        """Some of the candidates."""
        words = None if self.words is None else self.words[rows]
        return Candidates(self.size, self.index[rows], words, self.sizes[rows], self.intensity[rows])

    def mask(self, row: int) -> int:
        """One candidate as a mask."""
        return mask_of(i for i in self.index[row].tolist() if i < self.size)


@lru_cache(maxsize=256)
def candidates(size: int, members: tuple[int, ...], odds: tuple[float, ...]) -> Candidates:
    """All candidates made of `members`, with intensities as if among all `size` factors.

    The odds of a candidate are the product of its factors' odds; within a size they share `SIZES`.
    """
    largest = largest_size(len(members))
    positions, counts = _combinations(len(members), largest)
    names = np.array([*members, size], np.int16)
    index = names[positions]
    weight = np.array([*odds, 1.0]) if odds else np.ones(size + 1)
    product = weight[index].prod(1)
    totals = _elementary(weight[:size], largest)
    share = np.array([EXPECTED_CAUSES * share_of(k) / totals[k] for k in range(1, largest + 1)])
    words = None
    if size <= 64:
        powers = np.array([np.uint64(1) << np.uint64(i) for i in range(size)] + [np.uint64(0)], np.uint64)
        words = powers[index].sum(1, dtype=np.uint64)
    return Candidates(size, index, words, counts, product * share[counts - 1])


def _elementary(weights: np.ndarray, largest: int) -> list[float]:
    """Elementary symmetric sums: the total odds of all candidates of each size."""
    sums = [1.0] + [0.0] * largest
    for weight in weights:
        for k in range(largest, 0, -1):
            sums[k] += weight * sums[k - 1]
    return sums
