"""What a run costs, predicted from its settings and fitted to the times seen.

The duration of a run is taken to be a product: a base, a factor for every setting that is bad, one for a run that fails
(it ends early), one for a run that a proof repeats over a longer horizon. Logarithms make that a linear model; the
prior holds the factors of settings near what is known of them (`Problem.work`), so that a few runs are enough to see
that one setting makes a run twenty times costlier. Everything is relative to a passing run of the good configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisect_cfg.configuration import Outcome
from bisect_cfg.search.candidates import switches
from bisect_cfg.search.counts import Counts
from bisect_cfg.search.problem import Problem, mask_of

INSTANT = 0.05
"""Seconds below which a run has no price: the times of simulated trials are noise, and would make the questions
depend on it."""

SPREAD = 0.35
"""Standard deviation of the logarithm of a setting's factor around what is known of it: most change a run's duration by
less than a half, a few by much more."""

SPREAD_OF_THE_REST = 3.0
"""The same for what nothing is known of: the base, and the share of a run that a failing one takes."""

NOISE = 0.15
"""Standard deviation of the logarithm of a run's duration under equal settings, on a machine that others use too."""

CHEAPEST, COSTLIEST = 0.2, 2.0
"""Bounds on the price of a failing run as a share of a passing one: a crash in the first step should not make us ask
only what crashes."""

TELLING = 0.05
"""Logarithm below which the factor of a setting is none: five per cent are noise."""


@dataclass(frozen=True)
class Prices:
    """Relative prices of runs.

    Attributes:
        factors: the logarithm of each setting's factor; zeros where nothing tells runs apart.
        fail: the price of a failing run as a share of a passing one of the same settings.
    """

    factors: np.ndarray
    fail: float = 1.0

    @classmethod
    def of(cls, problem: Problem, counts: Counts) -> Prices:
        """Fitted to the runs so far."""
        known = np.array(problem.work or np.zeros(problem.size))
        runs = [r for r in counts.records if r.outcome in (Outcome.PASS, Outcome.FAIL) and r.seconds > INSTANT]
        outcomes = {record.outcome for record in runs}
        if not runs:
            return cls(known)
        rows = np.zeros((len(runs), problem.size + 3))
        for number, record in enumerate(runs):
            rows[number, : problem.size] = switches(record.subset, problem.size)[:-1]
            passed = record.outcome is Outcome.PASS
            rows[number, problem.size :] = (1.0, not passed, passed and record.purpose.proves)
        # The logarithms of the times, less what the prior expects, explained by as little as possible.
        times = np.log([record.seconds for record in runs])
        spread = np.append(np.full(problem.size, SPREAD), np.full(3, SPREAD_OF_THE_REST)) ** 2
        mean = times.mean() - (rows[:, : problem.size] @ known).mean()
        prior = np.append(known, [mean, 0.0, 0.0])
        scaled = rows * spread
        covariance = scaled @ rows.T + NOISE**2 * np.eye(len(runs))
        fitted = prior + scaled.T @ np.linalg.solve(covariance, times - rows @ prior)
        factors = np.where(np.abs(fitted[: problem.size]) < TELLING, 0.0, fitted[: problem.size])
        share = float(np.exp(fitted[problem.size + 1])) if len(outcomes) == 2 else 1.0
        return cls(factors, min(max(share, CHEAPEST), COSTLIEST))

    @property
    def flat(self) -> bool:
        """Whether all settings cost the same."""
        return not self.factors.any()

    def of_mask(self, mask: int) -> float:
        """The price of a passing run of a subset."""
        if self.flat:
            return 1.0
        return float(np.exp(self.factors[switches(mask, len(self.factors))[:-1]].sum()))

    @property
    def cheap(self) -> int:
        """The settings whose bad level makes a run cheaper."""
        return mask_of(np.flatnonzero(self.factors < 0).tolist())

    @property
    def telling(self) -> int:
        """The settings that change a run's price at all."""
        return mask_of(np.flatnonzero(self.factors).tolist())
