"""What the records make likely: a posterior over small subsets, with an unknown failure probability.

A cause inside the subset makes a run fail with probability p, the same for all causes. Real prior mass
lies on p = 1, so that a deterministic failure costs no repeats; the rest lies on a grid, and every run
that says something about p moves it. A FAIL proves that some cause is inside. A PASS is evidence against
every cause inside, conclusive only if p = 1.

Two quantities come out. `Local`: given that subset R failed, which cause is in it. `hidden`: how likely yet
another cause lies inside a subset in spite of all passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp

import numpy as np

from bisect_cfg.search.hypotheses import EXPECTED_CAUSES, Hypotheses, candidates, share_of
from bisect_cfg.search.problem import Problem, bits
from bisect_cfg.search.tally import Tally

GRID = np.array([1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
"""Failure probabilities considered. Below .2 a failure can hardly be called the one of this configuration."""

DETERMINISTIC = 0.95
"""Prior probability of p = 1; most reported failures come back at every start."""

_SHARES = np.array([0.0, 0.5, 0.8, 1.0, 1.0, 1.0, 1.0, 0.8, 0.5, 0.3])
RANDOM_RATES = _SHARES / _SHARES.sum()
"""Prior of each p on the grid if the failure is random."""

DETERMINISTIC_IF_CAREFUL = 0.5
"""Prior probability of p = 1 where the answer must hold for a random failure too (`Problem.careful`): an even
chance."""


def prior_of_rates(problem: Problem) -> np.ndarray:
    """The prior of each p on the grid."""
    steady = DETERMINISTIC_IF_CAREFUL if problem.careful else DETERMINISTIC
    return np.where(GRID == 1.0, steady, (1 - steady) * RANDOM_RATES)


FALSE_FAIL = 0.002
"""Probability of a failure with the same signature and no cause inside: near, but not exactly, zero."""

NEGLIGIBLE = 1e-7
"""Candidates less likely than this are dropped from a decision."""


@dataclass(frozen=True)
class Local:
    """The posterior over the cause in a failed subset.

    Attributes:
        region: the failed subset.
        causes: the candidates.
        weight: their probabilities, adding up to 1.
        rate: the mean failure probability if that candidate is the cause.
        background: the total intensity of causes inside `region`, for "another one is in there too".
        steady: the probability that it fails every time.
    """

    region: int
    causes: Hypotheses
    weight: np.ndarray
    rate: np.ndarray
    background: float
    steady: float

    def best(self, count: int) -> list[int]:
        """The rows of the likeliest candidates, best first."""
        if len(self.weight) > count:
            part = np.argpartition(-self.weight, count)[:count]
        else:
            part = np.arange(len(self.weight))
        return sorted((int(i) for i in part), key=lambda i: (-round(self.weight[i], 12), i))


class Belief:
    """The posterior given the records and the causes proven so far."""

    def __init__(self, problem: Problem, tally: Tally, known: Sequence[int]) -> None:
        self._problem, self._tally, self._known = problem, tally, tuple(known)
        self._runs = [(m, c.fails, c.passes) for m, c in tally.counts.items() if c.runs and m]
        self._all = candidates(problem.size, tuple(range(problem.size)), problem.odds)
        explained = [(f, p) for m, f, p in self._runs if self.explained(m)]
        self.rates = self._updated(sum(f for f, _ in explained), sum(p for _, p in explained))
        passes = self._passes(self._all)
        survival = self._table(0, int(passes.max(initial=0)))[0][0]
        self._intensity = self._all.intensity * survival[passes]
        for cause in self._known:
            self._intensity = np.where(self._all.containing(cause), 0.0, self._intensity)

    def explained(self, mask: int) -> bool:
        """Whether a known cause lies inside."""
        return any(cause & mask == cause for cause in self._known)

    def hidden(self, mask: int) -> float:
        """The intensity of causes not known yet inside a subset; 1 - exp(-it) is their probability."""
        return float(self._intensity[self._all.inside(mask)].sum())

    def inside(self, region: int) -> Local | None:
        """The posterior over the cause in a failed subset; None if a larger one than those listed explains
        the records better."""
        members = tuple(bits(region))
        causes = candidates(self._problem.size, members, self._problem.odds)
        passes = self._passes(causes)
        fails = np.zeros(len(passes), np.int64)
        alone = np.ones(len(passes), bool)
        smallest = 0
        for mask, count, _ in sorted(self._runs, key=lambda run: run[0].bit_count()):
            if count and not self.explained(mask):
                contained = causes.inside(mask)
                fails += count * contained
                if not contained.all():
                    alone &= contained
                    smallest = smallest or mask
        # Failures a candidate does not explain are put down to one other cause, however many they are.
        others = np.where(alone, 1.0, max(FALSE_FAIL, 1 - exp(-self.hidden(smallest))))
        likelihood, rate = self._table(int(fails.max(initial=0)), int(passes.max(initial=0)))
        weight = causes.intensity * likelihood[fails, passes] * others
        for cause in self._known:
            weight = np.where(causes.containing(cause), 0.0, weight)
        total = weight.sum()
        steady = causes.intensity * self.rates[0] * (passes == 0) * others
        for cause in self._known:
            steady = np.where(causes.containing(cause), 0.0, steady)
        larger = self._larger(region, int(causes.counts.max(initial=1)))
        if not total > 0 or total < larger:
            return None
        weight = weight / total
        keep = np.flatnonzero(weight > NEGLIGIBLE)
        return Local(
            region,
            causes.take(keep),
            weight[keep] / weight[keep].sum(),
            rate[fails, passes][keep],
            self.hidden(region),
            float((steady.sum() + larger) / (total + larger)),
        )

    def _larger(self, region: int, largest: int) -> float:
        """The weight of all causes too large to be listed: few runs inside the region would contain one."""
        size = region.bit_count()
        if size <= largest:
            return 0.0
        weight = EXPECTED_CAUSES * sum(share_of(count) for count in range(largest + 1, largest + 10))
        weight *= comb(size, largest + 1) / comb(self._problem.size, largest + 1)
        passed = {mask & region for mask, _, passes in self._runs if passes}
        for mask in passed:
            if not any(mask & other == mask for other in passed if other != mask):  # the larger one says it all
                weight *= 1 - (mask.bit_count() / size) ** (largest + 1)
        return weight

    def _passes(self, causes: Hypotheses) -> np.ndarray:
        passes = np.zeros(len(causes.counts), np.int64)
        for mask, _, count in self._runs:
            if count:
                passes += count * causes.inside(mask)
        return passes

    def _updated(self, fails: int, passes: int) -> np.ndarray:
        prior = RANDOM_RATES if self._tally.contradictory else prior_of_rates(self._problem)
        rates = prior * GRID**fails * (1 - GRID) ** passes
        return rates / rates.sum()

    def _table(self, fails: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
        """For each number of fails and passes: the likelihood, and the mean failure probability given it."""
        f = np.arange(fails + 1)[:, None, None]
        p = np.arange(passes + 1)[None, :, None]
        terms = self.rates * GRID**f * (1 - GRID) ** p
        likelihood = terms.sum(2)
        return likelihood, (terms @ GRID) / np.maximum(likelihood, 1e-300)
