"""What may still be wrong with an answer that no run contradicts, and the run that removes most of it.

A failure that always showed may be random all the same, and then a pass was luck. Two things can be wrong with the
answer: a smaller cause, whose runs without the rest passed by luck (a *rival*), or a further cause, which a
correction left in and which did not show (*hidden*). Both need the failure to be random, with one unknown probability
p for all. So two kinds of run remove doubt: each pass repeated makes the luck it would have been rarer, by 1 - p, and
each failure of a cause repeated makes a small p less likely, by p. The second kind is cheap, because failing runs end
early, and speaks for the whole answer at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from bisect_cfg.search.belief import GRID, prior_of_rates
from bisect_cfg.search.hypotheses import candidates
from bisect_cfg.search.problem import FoundCause, Problem
from bisect_cfg.search.tally import Tally


class Doubt:
    """The joint weight of everything that may be wrong, by the failure probability.

    Args:
        problem: the problem.
        tally: what was seen; nothing of it contradicts the answer.
        causes: the answer.
        passes: the passing runs that it rests on; what none of them could show is left out, because no repetition
            would.
    """

    def __init__(self, problem: Problem, tally: Tally, causes: Iterable[FoundCause], passes: Collection[int]) -> None:
        causes = tuple(causes)
        everything = candidates(problem.size, tuple(range(problem.size)), problem.odds)
        runs = [(mask, count) for mask, count in tally.counts.items() if count.runs and mask]
        fails = sum(count.fails for _, count in runs)
        seen = np.zeros(len(everything.counts), np.int64)
        for mask, count in runs:
            if count.passes:
                seen += count.passes * everything.inside(mask)
        testable = np.zeros(len(seen), bool)
        for mask in passes:
            testable |= everything.inside(mask)
        weight = np.where(testable, everything.intensity, 0.0)
        for cause in causes:
            known = cause.parameters
            # A further cause holds no known one. One inside a known cause (or inside its failing run) would take its
            # place, and is weighed against the prior of the cause that it replaces.
            weight[everything.containing(known)] = 0.0
            inside = everything.inside(cause.fails.subset or known) & everything.inside(known)
            own = everything.intensity[everything.inside(known) & everything.containing(known)]
            weight[inside] /= float(own[0]) if len(own) else float(everything.intensity.min())
        rows = np.flatnonzero(weight)
        self._candidates, self._weight = everything.take(rows), weight[rows]
        rates = prior_of_rates(problem) * GRID**fails
        self._answer = rates
        self._wrong = self._weight[:, None] * rates * (1 - GRID) ** seen[rows, None]

    def of(self, passing: int | None = None, failing: bool = False) -> float:
        """The probability that the answer is wrong.

        Args:
            passing: as it will be if this subset passes once more.
            failing: as it will be if a cause fails once more.
        """
        wrong, answer = self._wrong, self._answer
        if passing is not None:
            wrong = np.where(self._candidates.inside(passing)[:, None], wrong * (1 - GRID), wrong)
        if failing:
            wrong, answer = wrong * GRID, answer * GRID
        total = float(wrong.sum())
        return total / (total + float(answer.sum()))
