"""The way from the good value of a number to its bad one: its natural scale, and the values on it worth trying.

A learning rate of 1e-5 lies half way between 1e-6 and 1e-4, not near the good end: rates, epsilons and other positive
numbers that span a factor are measured in logarithms, Adam's betas and top_p in the logarithm of what is missing to 1
(0.9, 0.99 and 0.999 are steps of the same size), counts in whole numbers, the rest as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from bisect_cfg.common.configuration import Value, is_number
from bisect_cfg.common.parameters import parameter

RATIO = 1.5
"""A threshold is known well enough when the last healthy and the first unhealthy value are this factor apart: seeds
alone move it by about as much."""

ROUNDING = 1.01
"""Neighbours may be this factor farther apart, so that values have two or three digits."""

LOG_FROM = 2.0
"""Positive values at least this factor apart are measured in logarithms; closer ones hardly differ between scales."""

LINEAR_STEPS = 8
"""On a linear scale that touches zero a ratio means nothing; an eighth of the range is the resolution there."""

MOST_COUNTS = 32
"""Whole numbers are all tried as they are up to so many between good and bad; beyond, they are spaced like the rest."""

NEIGHBOURS = 8
"""How many whole numbers next to a point of the scale are looked at for one that is valid (a batch size must be
divisible by num_generations)."""

SCALES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "log": (math.log, math.exp),
    "complement": (lambda value: -math.log1p(-value), lambda place: -math.expm1(-place)),
    "linear": (float, float),
}
"""Kind of scale -> value to place on it, and back."""


@dataclass(frozen=True)
class SearchRange:
    """The way from the good value of one setting to its bad one."""

    name: str
    kind: str  # one of `SCALES`
    whole: bool  # whether only whole numbers are meant
    values: tuple[float, ...]  # what may be tried, from good to bad, neighbours within `RATIO` where validity allows it

    @property
    def good(self) -> float:
        return self.values[0]

    @property
    def bad(self) -> float:
        return self.values[-1]

    def coordinate(self, value: float) -> float:
        """Where a value lies on the natural scale; only differences mean something."""
        return SCALES[self.kind][0](value)

    def share(self, value: float) -> float:
        """How far along the way a value lies: 0 at good, 1 at bad."""
        start, end = self.coordinate(self.good), self.coordinate(self.bad)
        return (self.coordinate(value) - start) / (end - start)

    def back(self, value: float, share: float, farthest: float = math.inf) -> float:
        """The value this share of the way from one back to good, rounded for people, never past good; on a logarithmic
        scale at most a factor of `farthest` away."""
        here = self.coordinate(value)
        step = (self.coordinate(self.good) - here) * share
        if self.kind != "linear":
            step = math.copysign(min(abs(step), math.log(farthest)), step)
        wanted = SCALES[self.kind][1](here + step)
        low, high = min(self.good, value), max(self.good, value)
        if self.whole:
            return min(max(math.floor(wanted) if self.bad > self.good else math.ceil(wanted), low), high)
        rounded = _rounded(self.kind, wanted, 2)
        return rounded if low <= rounded <= high else min(max(wanted, low), high)


def search_range_of(
    name: str,
    good: Value,
    bad: Value,
    whole: bool | None = None,
    is_valid: Callable[[float], bool] = lambda value: True,
) -> SearchRange | None:
    """The values worth trying between two levels; None if the setting is no range.

    Args:
        name: of the setting, bare.
        good: the healthy level.
        bad: the unhealthy one.
        whole: whether only whole numbers are meant; None: if both levels are.
        is_valid: whether the library accepts a value (asked for those between the levels only).
    """
    if not (is_number(good) and is_number(bad)) or good == bad:
        return None
    known = parameter(name)
    if good in known.switched_off or bad in known.switched_off:
        return None
    if known.share_below_one and (0 < good < 1) is not (0 < bad < 1) and 0 not in (good, bad):
        return None  # a ratio of the run and a number of steps
    if whole is None:
        whole = isinstance(good, int) and isinstance(bad, int)
    low, high = min(good, bad), max(good, bad)
    kind = "log" if low > 0 and high / low >= LOG_FROM else "linear"
    if known.scale == "complement" and 0 <= low and high < 1:
        kind = "complement"
    points = _spaced(kind, good, bad)
    between: Iterable[float] = (
        _counts(points, low, high, is_valid) if whole else filter(is_valid, _shortest(kind, good, points, bad))
    )
    return SearchRange(name, kind, whole, (good, *sorted(between, reverse=bad < good), bad))


def _spaced(kind: str, good: float, bad: float) -> list[float]:
    """Points between the levels in equal steps, as few as `RATIO` allows."""
    place, value = SCALES[kind]
    start, end = place(good), place(bad)
    if kind != "linear":
        step = math.log(RATIO)
    elif min(good, bad) > 0:  # the first step from the lower end is the largest as a factor
        step = min(good, bad) * (RATIO - 1)
    else:
        step = abs(end - start) / LINEAR_STEPS
    steps = math.ceil(abs(end - start) / step - 1e-9)  # the quotient itself is rounded
    return [value(start + (end - start) * i / steps) for i in range(1, steps)]


def _shortest(kind: str, good: float, points: list[float], bad: float) -> list[float]:
    """The points with as few digits as keep the steps equal enough."""
    low = min(good, bad)
    longest = math.log(RATIO * ROUNDING) if kind != "linear" else low * (RATIO * ROUNDING - 1) if low > 0 else math.inf
    place = SCALES[kind][0]
    for digits in (2, 3, 4):
        rounded = [_rounded(kind, value, digits) for value in points]
        steps = [place(after) - place(before) for before, after in pairwise((good, *rounded, bad))]
        if all(0 < (step if bad > good else -step) <= longest for step in steps):
            return rounded
    return points


def _rounded(kind: str, value: float, digits: int) -> float:
    """A value with so many significant digits; near one, of its distance to 1."""
    if kind == "complement":
        return float(f"{1 - float(f'{1 - value:.{digits}g}'):.12g}")
    return float(f"{value:.{digits}g}")


def _counts(points: list[float], low: float, high: float, is_valid: Callable[[float], bool]) -> set[int]:
    """Whole numbers between the levels: all, or where these are many those next to the points that are valid."""
    between = range(int(low) + 1, int(high))
    if len(between) <= MOST_COUNTS:
        return {value for value in between if is_valid(value)}
    near = sorted(range(-NEIGHBOURS, NEIGHBOURS + 1), key=abs)
    found = (
        next((value for by in near if (value := round(point) + by) in between and is_valid(value)), None)
        for point in points
    )
    return {value for value in found if value is not None}
