"""The safe frontier between two numeric settings of one cause: how high may the rate go at each clipping value?

Each setting has a `SearchRange` from good to bad; a point is a pair of values, healthy or not. Both settings are taken
to be harmful: what is healthy stays healthy nearer to good, what is not stays so nearer to bad. So every healthy
point clears the rectangle between it and good, every other one condemns the rectangle between it and bad, and the
frontier lies in what is left. It is fitted half way through.

The next pair is the one whose outcome decides most of what is left, whichever way it goes; `studies/frontier_cost` has
measured that against Optuna's samplers and a grid.

A failure is nearly proof and a pass only evidence: where the two contradict each other, the failure counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_cfg.recommend.search_range import SearchRange

_SAME_SHARE = 1e-9
"""Values of earlier points are looked up in the ranges; they went through JSON, which keeps them to the last bit, and
through people, who do not."""


@dataclass(frozen=True)
class Point:
    """One pair of values that was tried.

    Attributes:
        values: setting -> value, both settings.
        healthy: whether the run was.
    """

    values: Mapping[str, float]
    healthy: bool


@dataclass(frozen=True)
class Frontier:
    """What is known about the frontier.

    Attributes:
        ranges: of the two settings; the frontier is a function of the first.
        points: all pairs tried, earlier ones first.
        safe: for each value of the first setting, the farthest value of the second that was seen to be healthy there or
            farther out; None if none was.
        unsafe: the nearest value of the second setting that was seen to fail there or nearer; None if none was.
        undecided: share of all pairs of which it is not known on which side they lie, between 0 and 1.
    """

    ranges: tuple[SearchRange, SearchRange]
    points: tuple[Point, ...]
    safe: tuple[float | None, ...]
    unsafe: tuple[float | None, ...]
    undecided: float

    def at(self, value: float) -> float | None:
        """The fitted frontier, not proven: how far the second setting may go when the first has this value.

        Half way (on the natural scale) between what was seen to be healthy and what was not. It never rises as the
        first setting moves toward bad.

        Args:
            value: of the first setting; between two values of its range the more cautious one counts.

        Returns:
            A value of the second setting, not rounded; its bad level where that is healthy, None where not even its
            good level is.
        """
        first, second = self.ranges
        shares = [first.share(one) for one in first.values]
        position = min(int(np.searchsorted(shares, first.share(value) - _SAME_SHARE)), len(shares) - 1)
        safe, unsafe = self.safe[position], self.unsafe[position]
        if unsafe == second.good:
            return None
        low = 0.0 if safe is None else second.share(safe)
        high = low if safe == second.bad else 1.0 if unsafe is None else second.share(unsafe)
        return second.back(second.bad, 1 - (low + high) / 2)


def next_pair(ranges: tuple[SearchRange, SearchRange], points: Sequence[Point]) -> dict[str, float] | None:
    """The pair of values whose outcome decides most of the pairs that are still open, in the worse of both cases; None
    once it is known of every pair on which side it lies.

    Args:
        ranges: of the two settings. Both at good is taken to be healthy, both at bad not.
        points: what is known already. Points beside the ranges' values count at the next value that is implied.
    """
    undecided = _undecided(*_bounds(ranges, points), len(ranges[1].values))
    if not undecided.any():
        return None
    nearer = undecided.cumsum(0).cumsum(1)  # decided with a pair that is healthy: itself and all nearer to good
    farther = undecided[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
    gain = np.minimum(nearer, farther) + (nearer + farther) / (4 * undecided.size)  # the sum only breaks ties
    best = np.unravel_index(int(np.where(undecided, gain, 0.0).argmax()), gain.shape)
    return {each.name: each.values[index] for each, index in zip(ranges, best, strict=True)}


def frontier_of(ranges: tuple[SearchRange, SearchRange], points: Sequence[Point]) -> Frontier:
    """What these points say about the frontier; pure."""
    low, high = _bounds(ranges, points)
    second = ranges[1].values
    return Frontier(
        ranges,
        tuple(points),
        tuple(None if index < 0 else second[index] for index in low),
        tuple(None if index >= len(second) else second[index] for index in high),
        float(_undecided(low, high, len(second)).mean()),
    )


# -------------------------------------------------------------------------------------------------- what is decided


def _bounds(ranges: tuple[SearchRange, SearchRange], points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """For each index of the first range: the last index of the second known to be healthy, the first known not to be.

    -1 and the length of the second range where nothing is known. Healthy points beyond a failure do not count.
    """
    first, second = ranges
    low = np.full(len(first.values), -1)
    high = np.full(len(first.values), len(second.values))
    low[0], high[-1] = 0, len(second.values) - 1
    for point in points:
        if not point.healthy:
            i, j = (_index(each, point.values[each.name], round_up=True) for each in ranges)
            high[i:] = np.minimum(high[i:], j)
    for point in points:
        if point.healthy:
            i, j = (_index(each, point.values[each.name], round_up=False) for each in ranges)
            if j < high[i]:
                low[: i + 1] = np.maximum(low[: i + 1], j)
    return low, high


def _index(search_range: SearchRange, value: float, *, round_up: bool) -> int:
    """Where a value lies in a range; one in between counts for what it implies: a failure for the next worse value, a
    healthy one for the next better."""
    shares = np.array([search_range.share(one) for one in search_range.values])
    share = search_range.share(value)
    if round_up:
        return min(int(np.searchsorted(shares, share - _SAME_SHARE)), len(shares) - 1)
    return max(int(np.searchsorted(shares, share + _SAME_SHARE, side="right")) - 1, 0)


def _undecided(low: np.ndarray, high: np.ndarray, size: int) -> np.ndarray:
    """Which pairs lie on neither side, by index in the first and the second range."""
    indices = np.arange(size)[None, :]
    return (indices > low[:, None]) & (indices < high[:, None])
