"""Where does it stop being healthy? Bisection between a healthy and an unhealthy value, when failures can be random.

A pure function from what was seen to the next value to try. The threshold lies in one of the cells between
neighbouring values of a `SearchRange`. A value beyond it fails with an unknown probability, the same for all of them;
one below it hardly ever does. Both unknowns, the cell and the probability, have a posterior on a small grid, and the
next value is the one whose outcome tells most about the cell (Burnashev & Zigangirov 1974 bisect noisily with a known
error rate; here it is learned, as a failure's rate is what nobody knows beforehand).

With a failure that has always shown where it could, this is binary search. Once one run of a value passed and another
failed, or as long as too little has been seen to exclude it, the passes that the bracket rests on are repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from bisect_cfg.recommend.search_range import SearchRange
from bisect_cfg.search.choose import entropy

CONFIDENCE = 0.98
"""When to stop. A posterior that averages over all rates is somewhat too sure where the failure shows in 80 % of the
runs: 0.98 gives brackets that hold the threshold in 97 % of simulated searches there."""

ALWAYS_FAILS = 0.6
"""Prior probability that values beyond the threshold fail in every run: of the failures collected for this project more
than half depend on nothing random."""

RATES = tuple(0.2 + 0.05 * i for i in range(16))
"""Other failure probabilities considered, equally likely: below 0.2 no short trial finds a threshold, and it is the
verification over several seeds that has to notice."""

CHANCE_FAILURE = 0.002
"""Probability that a healthy value fails all the same: a wrong "unhealthy" only makes the recommendation humbler, so
this need not be exact, only not zero."""

MOST_TRIALS = 40
"""An end to it, whatever the posterior says; 40 fair answers would pin a threshold among a billion cells."""


@dataclass(frozen=True)
class Seen:
    """What runs of one value came to: `index` is its place in the search range (0 is good)."""

    index: int
    healthy: int
    unhealthy: int


@dataclass(frozen=True)
class Bracket:
    """Where the threshold lies.

    Attributes:
        low: index of the last value on the healthy side.
        high: index of the first value on the unhealthy side.
        probability: that the threshold lies between.
    """

    low: int
    high: int
    probability: float


@dataclass(frozen=True)
class Try:
    """Run the value at this index (again)."""

    index: int


def next_value(search_range: SearchRange, seen: Sequence[Seen]) -> Try | Bracket:
    """What to try next, or the bracket once it is one cell wide.

    Args:
        search_range: the values; good is taken as healthy, bad as unhealthy, both with whatever was seen of them.
        seen: runs so far, of any values including good and bad; each index at most once.
    """
    found = bracket(search_range, seen)
    if found.high - found.low == 1 or sum(s.healthy + s.unhealthy for s in _inner(search_range, seen)) >= MOST_TRIALS:
        return found
    return Try(1 + int(np.argmax(_information(_posterior(search_range, seen))[1:-1])))


def bracket(search_range: SearchRange, seen: Sequence[Seen]) -> Bracket:
    """The narrowest run of cells that holds the threshold as surely as `CONFIDENCE` asks, as things stand."""
    cells = _posterior(search_range, seen).sum(axis=1).tolist()
    best: tuple[int, float, int, int] | None = None
    high, mass = -1, 0.0
    for low in range(len(cells)):  # the shortest run that begins here ends no earlier than that of the cell before
        while mass < CONFIDENCE and high + 1 < len(cells):
            high += 1
            mass += cells[high]
        if mass < CONFIDENCE and low > 0:
            break
        candidate = (high - low, -mass, low, high + 1)
        best = candidate if best is None else min(best, candidate)
        mass -= cells[low]
    return Bracket(best[2], best[3], -best[1])


def _inner(search_range: SearchRange, seen: Sequence[Seen]) -> list[Seen]:
    return [s for s in seen if 0 < s.index < len(search_range.values) - 1]


@cache
def _rates() -> tuple[np.ndarray, np.ndarray]:
    """Failure probabilities beyond the threshold, and their prior; the first means "always"."""
    priors = [ALWAYS_FAILS, *[(1 - ALWAYS_FAILS) / len(RATES)] * len(RATES)]
    return np.array([1 - CHANCE_FAILURE, *RATES]), np.array(priors)


def _posterior(search_range: SearchRange, seen: Sequence[Seen]) -> np.ndarray:
    """Probability of each cell (between the values at j and j + 1; rows) and rate (columns), given what was seen."""
    rates, priors = _rates()
    widths = np.abs(np.diff([search_range.coordinate(value) for value in search_range.values]))
    logs = np.log(widths)[:, None] + np.log(priors)[None, :]
    for s in seen:
        beyond = s.unhealthy * np.log(rates) + s.healthy * np.log(1 - rates)
        below = s.unhealthy * math.log(CHANCE_FAILURE) + s.healthy * math.log(1 - CHANCE_FAILURE)
        logs[: s.index] += beyond  # cells that end at or before this value
        logs[s.index :] += below
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def _information(posterior: np.ndarray) -> np.ndarray:
    """How many bits one more run is expected to tell about the cell, for every index of the search range."""
    rates, _ = _rates()
    mass = posterior.sum(axis=1)
    chance = np.divide(posterior @ rates, mass, out=np.full_like(mass, CHANCE_FAILURE), where=mass > 0)
    cells, indices = np.arange(len(mass))[:, None], np.arange(len(mass) + 1)[None, :]
    fails = np.where(indices > cells, chance[:, None], CHANCE_FAILURE)  # by cell and index
    return entropy(mass @ fails) - mass @ entropy(fails)
