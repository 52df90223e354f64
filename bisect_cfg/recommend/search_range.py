"""How far from good to bad: the natural scale of a numeric setting, and the values on it worth trying.

A learning rate of 1e-5 lies half way between 1e-6 and 1e-4, not near the good end: rates, epsilons and other
positive numbers that span a factor are measured in logarithms, Adam's betas and top_p in the logarithm of what is
missing to 1 (0.9, 0.99 and 0.999 are steps of the same size), counts in whole numbers, the rest as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from bisect_cfg.common.configuration import Value, is_number
from bisect_cfg.common.parameters import parameter

DEFAULT_RATIO = 1.5
"""A threshold is known well enough when the last healthy and the first unhealthy value are this factor apart: seeds
alone move it by about as much."""

LOG_FROM = 2.0
"""Positive values at least this factor apart are measured in logarithms; closer ones hardly differ between scales."""

LINEAR_CELLS = 8
"""On a linear scale that touches zero a ratio means nothing; an eighth of the range is the resolution there."""

MOST_COUNTS = 32
"""Whole numbers are all tried as they are up to so many between good and bad; beyond, they are spaced like the rest."""

MOST_CELLS = 400
"""A range has no more steps than this, however narrow a bracket is asked for: over six decades that is a ratio of
1.035, and seeds move a threshold by more than that."""

ROUNDING = 1e-9
"""What was computed by logarithms may be off by this share and counts as the ratio that was asked for."""

NEIGHBOURS = 8
"""How many whole numbers next to a point of the grid are looked at for one that is valid (a batch size must be
divisible by num_generations)."""


@dataclass(frozen=True)
class SearchRange:
    """The way from the good value of one setting to its bad one.

    Attributes:
        name: of the setting.
        kind: "log", "complement" (logarithm of 1 - value) or "linear".
        whole: whether only whole numbers are meant.
        values: what may be tried, the good value first, the bad one last; neighbours are within the stated ratio
            wherever validity leaves a choice.
    """

    name: str
    kind: str
    whole: bool
    values: tuple[float, ...]

    @property
    def good(self) -> float:
        return self.values[0]

    @property
    def bad(self) -> float:
        return self.values[-1]

    def coordinate(self, value: float) -> float:
        """Where a value lies on the natural scale; only differences mean something."""
        return _coordinate(self.kind, value)

    def share(self, value: float) -> float:
        """How far along the way a value lies: 0 at good, 1 at bad."""
        start, end = self.coordinate(self.good), self.coordinate(self.bad)
        return (self.coordinate(value) - start) / (end - start)

    def back(self, value: float, share: float, farthest: float = math.inf) -> float:
        """A value this share of the way from `value` back to good, rounded for people, never past good.

        Args:
            value: to start from.
            share: 0 stays, 1 is good.
            farthest: on a logarithmic scale the most that is given up, as a factor.
        """
        here, home = self.coordinate(value), self.coordinate(self.good)
        step = (home - here) * share
        if self.kind != "linear":
            step = math.copysign(min(abs(step), math.log(farthest)), step)
        wanted = _value(self.kind, here + step)
        if self.whole:
            wanted = math.floor(wanted) if self.bad > self.good else math.ceil(wanted)
            return min(max(wanted, min(self.good, value)), max(self.good, value))
        low, high = min(self.good, value), max(self.good, value)
        rounded = _rounded(self.kind, wanted, 2)
        return rounded if low <= rounded <= high else min(max(wanted, low), high)


def search_range_of(
    name: str,
    good: Value,
    bad: Value,
    *,
    ratio: float = DEFAULT_RATIO,
    whole: bool | None = None,
    is_valid: Callable[[float], bool] = lambda value: True,
) -> SearchRange | None:
    """The values worth trying between two levels; None if the setting is no range.

    Args:
        name: of the setting, bare.
        good: the healthy level.
        bad: the unhealthy one.
        ratio: the largest factor between neighbours; wider where there would be more than `MOST_CELLS` of them.
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
    kind = _kind(name, good, bad)
    ratio = max(ratio, _narrowest(kind, good, bad))
    points = _counts(kind, good, bad, ratio, is_valid) if whole else _points(kind, good, bad, ratio)
    between = [value for value in points if whole or is_valid(value)]
    return SearchRange(name, kind, whole, (good, *between, bad))


def _kind(name: str, good: float, bad: float) -> str:
    if parameter(name).scale == "complement" and max(good, bad) < 1 and min(good, bad) >= 0:
        return "complement"
    low, high = min(good, bad), max(good, bad)
    return "log" if low > 0 and high / low >= LOG_FROM else "linear"


def _coordinate(kind: str, value: float) -> float:
    if kind == "log":
        return math.log(value)
    return -math.log1p(-value) if kind == "complement" else float(value)


def _value(kind: str, coordinate: float) -> float:
    if kind == "log":
        return math.exp(coordinate)
    return -math.expm1(-coordinate) if kind == "complement" else coordinate


def _rounded(kind: str, value: float, digits: int) -> float:
    """A value with so many significant digits; near one, of its distance to 1."""
    if kind == "complement":
        return float(f"{1 - float(f'{1 - value:.{digits}g}'):.12g}")
    return float(f"{value:.{digits}g}")


def _narrowest(kind: str, good: float, bad: float) -> float:
    """The ratio at which a range has `MOST_CELLS` steps."""
    distance = abs(_coordinate(kind, bad) - _coordinate(kind, good))
    if kind != "linear":
        return math.exp(distance / MOST_CELLS)
    return 1 + distance / (min(good, bad) * MOST_CELLS) if min(good, bad) > 0 else 1.0


def _cells(kind: str, good: float, bad: float, ratio: float) -> int:
    """How many steps of the stated ratio lie between the levels."""
    distance = abs(_coordinate(kind, bad) - _coordinate(kind, good))
    if kind != "linear":
        return max(1, math.ceil(distance / math.log(ratio) - ROUNDING))
    if min(good, bad) > 0:  # the first step from the lower end is the largest as a factor
        return max(1, math.ceil(distance / (min(good, bad) * (ratio - 1)) - ROUNDING))
    return LINEAR_CELLS


def _spaced(kind: str, good: float, bad: float, cells: int) -> list[float]:
    start, end = _coordinate(kind, good), _coordinate(kind, bad)
    return [_value(kind, start + (end - start) * i / cells) for i in range(1, cells)]


def _points(kind: str, good: float, bad: float, ratio: float) -> list[float]:
    """Equal steps, as few as the ratio allows, with as few digits as it allows."""
    cells = _cells(kind, good, bad, ratio)
    longest = math.inf if kind == "linear" and min(good, bad) <= 0 else ratio
    for more in (0, 1):  # good and bad may lie so that rounding steps over the ratio: one point more
        exact = _spaced(kind, good, bad, cells + more)
        for digits in (2, 3, 4):
            points = [_rounded(kind, value, digits) for value in exact]
            if all(_is_step(kind, *step, bad > good, longest) for step in pairwise((good, *points, bad))):
                return points
    return exact


def _is_step(kind: str, before: float, after: float, upwards: bool, ratio: float) -> bool:
    """Whether one value follows another in the right direction, within the ratio."""
    if before == after or (after > before) is not upwards:
        return False
    if kind == "linear":
        return ratio == math.inf or max(before, after) / min(before, after) <= ratio * (1 + ROUNDING)
    return abs(_coordinate(kind, after) - _coordinate(kind, before)) <= math.log(ratio) * (1 + ROUNDING)


def _counts(kind: str, good: float, bad: float, ratio: float, is_valid: Callable[[float], bool]) -> list[float]:
    """Whole numbers between the levels; where one is not valid, the nearest that is."""
    low, high = int(min(good, bad)), int(max(good, bad))
    if high - low - 1 <= MOST_COUNTS:
        found = {value for value in range(low + 1, high) if is_valid(value)}
    else:
        found = set()
        for exact in _spaced(kind, good, bad, _cells(kind, good, bad, ratio)):
            middle = round(exact)
            for offset in sorted(range(-NEIGHBOURS, NEIGHBOURS + 1), key=abs):
                if low < middle + offset < high and is_valid(middle + offset):
                    found.add(middle + offset)
                    break
    return sorted(found, reverse=bad < good)
