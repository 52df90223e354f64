"""Where does it stop being healthy? Binary search between the good value and the bad one.

A value that was seen unhealthy once is unhealthy. A pass is believed at once where the failure under study has shown in
each run that could show it; where the search saw it come and go, a pass is repeated with other seeds until a failure of
that rate would have been seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

LUCK = 0.05
"""A failure rate at which so many runs without a failure are less likely than this counts as excluded: "at 95 %"."""

MOST_REPEATS = 8
"""So often one value is tried at most: failures that show in less than 31 % of the runs are found by the verification,
whose runs are longer."""


class Seen(NamedTuple):
    """How many runs of one value were healthy, and how many were not."""

    healthy: int = 0
    unhealthy: int = 0


class Bracket(NamedTuple):
    """Where the threshold lies, as indices of the values.

    Attributes:
        low: of the last value that counts as healthy.
        high: of the first unhealthy one.
        ask: of the value to run next; None once nothing lies between.
    """

    low: int
    high: int
    ask: int | None


def failure_bound(runs: int) -> float:
    """The largest failure rate that lets `runs` runs all pass with a probability of `LUCK`."""
    return 1 - LUCK ** (1 / runs) if runs else 1.0


def repeats_for(bad: Seen) -> int:
    """How many healthy runs make a value healthy.

    Args:
        bad: runs of what is known to fail.
    """
    if not bad.healthy:
        return 1
    passing = bad.healthy / (bad.healthy + bad.unhealthy)
    return min(MOST_REPEATS, max(2, math.ceil(math.log(LUCK) / math.log(passing)))) if passing < 1 else MOST_REPEATS


def bracket(last: int, seen: Mapping[int, Seen], repeats: int = 1) -> Bracket:
    """What is known of the threshold, and what to run next.

    Args:
        last: index of the bad value; that of the good one is 0.
        seen: runs of the values between, by index.
        repeats: see `repeats_for`.
    """
    high = min((index for index, runs in seen.items() if runs.unhealthy), default=last)
    healthy = {index: runs.healthy for index, runs in seen.items() if index < high}
    low = max((index for index, times in healthy.items() if times >= repeats), default=0)
    begun = max((index for index in healthy if index > low), default=None)
    middle = (low + high) // 2 if high - low > 1 else None
    return Bracket(low, high, middle if begun is None else begun)
