"""Where does it stop being healthy? Binary search between the good value and the bad one.

A value that was seen unhealthy once is unhealthy. A pass is believed at once where the failure under study has shown in
each run that could show it; where the search saw it come and go, a pass is repeated with other seeds until a failure of
that rate would have been seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

LUCK = 0.05
"""A failure rate at which so many runs without a failure are less likely than this counts as excluded: "at 95 %"."""

MOST_REPEATS = 8
"""So often one value is tried at most: failures that show in less than 31 % of the runs are found by the verification,
whose runs are longer."""


class Bracket(NamedTuple):
    """Where the threshold lies, as indices of the values."""

    low: int  # the last value that counts as healthy
    high: int  # the first unhealthy one
    ask: int | None  # what to run next; None once nothing lies between


def failure_bound(runs: int) -> float:
    """The largest failure rate that lets `runs` runs all pass with a probability of `LUCK`."""
    return 1 - LUCK ** (1 / runs) if runs else 1.0


def repeats_for(rate: float) -> int:
    """How many healthy runs make a value healthy, if what fails does so in this share of its runs."""
    return next((runs for runs in range(1, MOST_REPEATS) if (1 - rate) ** runs <= LUCK), MOST_REPEATS)


def bracket(last: int, seen: Mapping[int, Sequence[bool]], repeats: int = 1) -> Bracket:
    """What is known of the threshold, and what to run next.

    Args:
        last: index of the bad value; that of the good one is 0.
        seen: index of a value between -> whether each of its runs was healthy.
        repeats: see `repeats_for`.
    """
    high = min((index for index, runs in seen.items() if not all(runs)), default=last)
    healthy = {index: len(runs) for index, runs in seen.items() if index < high}
    low = max((index for index, times in healthy.items() if times >= repeats), default=0)
    begun = max((index for index in healthy if index > low), default=None)
    middle = (low + high) // 2 if high - low > 1 else None
    return Bracket(low, high, middle if begun is None else begun)
