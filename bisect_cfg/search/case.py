"""One decision's case: the problem, what was seen of it, and what follows from that: what can be run, what it costs,
how likely hypotheses are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.search.candidates import switches
from bisect_cfg.search.posterior import Posterior
from bisect_cfg.search.problem import DIGITS, Counts, Problem, bits, holds, mask_of

# ------------------------------------------------------------------------------------------------------- what runs cost

# What a run costs, predicted from its settings and fitted to the times seen.
#
# The duration of a run is taken to be a product: a base, a factor for every setting that is bad, one for a run that
# fails (it ends early), one for a run that a proof repeats over a longer horizon. Logarithms make that a linear model;
# the prior holds the factors of settings near what is known of them (`Problem.work`), so that a few runs are enough to
# see that one setting makes a run twenty times costlier. Everything is relative to a passing run of the good side.


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


# ------------------------------------------------------------------------------------------------------ what can be run

# Subsets that cannot be run, and the least that must be added so that they can.
#
# `num_generations` alone may be impossible because the batch size must be a multiple of it. Then the search
# runs it together with the batch size, a *companion*: bad in the run, labelled, and never called a cause for
# that.
#
# Some invalidity shows only in the run: a scheduler that needs `lr_scheduler_kwargs` dies after the
# configuration was built. Such a trial is UNRESOLVED, and two simple rules are read from it: "x needs y" and
# "x and y exclude each other" (or x breaks everything, which is the second with y = x). Rules that any other
# run contradicts are dropped; a subset that all the remaining readings of a trial forbid is not asked.


MAX_COMPANIONS = 3
"""Rules that tie more than four settings together are not known in TRL; looking further costs n^4 checks."""

MANY = 40
"""With more factors than this in play, `MAX_COMPANIONS` at a time are too many to try."""

MOST_VARIANTS = 6
"""So many ways to make the rest of a correction valid are looked at; each must be seen to cure."""

OTHER_READINGS = 1.0
"""Weight of what a trial left UNRESOLVED may mean besides the simple rules, where one simple rule weighs 1."""

PROMISING = 0.15
"""A companion is tried only where the run is likelier than this to say something: where three trials went the way of
one and the same rule, that rule is believed."""

HOPELESS = 0.05
"""A correction is tried a little longer, because what is left out there stays unseen: five such trials."""

ENOUGH_TRIES = 8
"""So many runs that all ended in another failure, whatever was added to or taken from a subset, and the subset is given
up: no simple rule explains them (a policy that collapses for two reasons, say), and each further one costs as much."""

PUZZLING = 16
"""So many runs that ended in another failure, and the search for a cause takes that for "does not fail" instead of
looking for companions. Where rules of two settings explain them, fewer are enough."""


class Validity:
    """What may be run: what builds, less what turned out UNRESOLVED when it ran."""

    def __init__(self, problem: Problem, counts: Counts) -> None:
        self._problem = problem
        self._unresolved = frozenset(counts.unresolved)
        rules = [_rules(problem.size, mask, counts) for mask in counts.unresolved]
        self._needs = np.array([needs for needs, _ in rules])
        self._excludes = np.array([excludes for _, excludes in rules])
        self._readings = self._needs.sum((1, 2)) + self._excludes.sum((1, 2)) if rules else 0  # of each such run
        self._chance: dict[int, float] = {}
        self._companions: dict[tuple[int, int, tuple[int, ...]], int | None] = {}

    def ok(self, mask: int) -> bool:
        """Whether this very subset may be run."""
        return mask not in self._unresolved and self._problem.valid(mask)

    def promising(self, mask: int) -> bool:
        """Whether it may be run, and is not likely to end in another failure."""
        return self.ok(mask) and self.chance(mask) >= PROMISING

    def given_up(self, wanted: int, without: int, but: int = 0) -> bool:
        """Whether enough runs without some factors have ended in another failure that had the `wanted` ones bad, all of
        them or all but a few."""
        tried = (mask for mask in self._unresolved if not mask & without)
        return sum((wanted & ~mask).bit_count() <= but for mask in tried) >= ENOUGH_TRIES

    def cure_given_up(self, correction: int) -> bool:
        """Whether enough runs of nearly all but the correction have ended in another failure."""
        return self.given_up(self._problem.full & ~correction, correction, but=MAX_COMPANIONS)

    @property
    def puzzling(self) -> bool:
        """Whether so many runs have ended in another failure that rules of two settings hardly explain them."""
        return len(self._unresolved) >= PUZZLING

    def chance(self, mask: int) -> float:
        """How likely a run of this subset says PASS or FAIL, from what earlier runs left UNRESOLVED."""
        if not self._unresolved:
            return 1.0
        if mask not in self._chance:
            inside = switches(mask, self._problem.size)[:-1]
            broken = self._needs[:, inside][:, :, ~inside].sum((1, 2))
            broken = broken + self._excludes[:, inside][:, :, inside].sum((1, 2))
            self._chance[mask] = round(float((1 - broken / (self._readings + OTHER_READINGS)).prod()), DIGITS)
        return self._chance[mask]

    def companions(
        self, mask: int, pool: int | None = None, forbidden: int = 0, avoid: tuple[int, ...] = ()
    ) -> int | None:
        """The fewest factors from `pool` that make `mask` valid: 0 if it is already, None if nothing does.

        Args:
            mask: what shall be bad.
            pool: where companions may come from; all factors by default.
            forbidden: factors that must stay good.
            avoid: subsets that the result must not contain.
        """
        if self.promising(mask):
            return 0
        pool = (self._problem.full if pool is None else pool) & ~mask & ~forbidden
        key = (mask, pool, avoid)
        if key not in self._companions:
            self._companions[key] = self._least(mask, [1 << i for i in bits(pool)], avoid)
        return self._companions[key]

    def _least(self, mask: int, choices: list[int], avoid: tuple[int, ...]) -> int | None:
        for count in range(1, MAX_COMPANIONS + 1):
            if count == MAX_COMPANIONS and len(choices) > MANY:
                break
            extras = (sum(chosen) for chosen in combinations(choices, count))
            found = [e for e in extras if self.promising(mask | e) and not holds(mask | e, avoid)]
            if found:
                return max(found, key=lambda extra: self.chance(mask | extra))
        return None

    def shrink(self, mask: int, keep: int) -> int:
        """Take factors out of a valid subset, one by one, as long as it stays valid and holds `keep`."""
        for index in reversed(list(bits(mask & ~keep))):
            if self.ok(mask & ~(1 << index)):
                mask &= ~(1 << index)
        return mask

    def grow(self, inside: int) -> int:
        """Put factors of a set into nothing, one by one, as long as it is valid: what is left out leaves together.

        Other failures that were seen do not count here: what they part is nothing that only changes together.
        """
        there, left, before = 0, inside, -1
        while left != before:
            before = left
            for index in bits(left):
                if self._problem.valid(there | 1 << index):
                    there, left = there | 1 << index, left & ~(1 << index)
        return there

    def only_seen(self, mask: int, forbidden: int, avoid: tuple[int, ...] = ()) -> bool:
        """Whether `mask` could be run, with companions or without, but for the other failures that were seen."""
        blank = Validity(self._problem, Counts(()))
        return blank.ok(mask) or blank.companions(mask, forbidden=forbidden, avoid=avoid) is not None

    def repairs(self, mask: int, region: int) -> list[tuple[int, int]]:
        """Valid subsets one step away from an invalid one, as (subset, companions added)."""
        found = []
        for index in range(self._problem.size):
            changed = mask ^ 1 << index
            if self.ok(changed):
                found.append((changed, changed & ~mask))
        if not found:
            extra = self.companions(mask, region) or self.companions(mask)
            if extra:
                found.append((mask | extra, extra))
        return found

    def largest_inside(self, mask: int) -> list[int]:
        """The largest valid subsets of `mask`, found by taking out the fewest factors (at most `MAX_COMPANIONS`)."""
        if self.ok(mask):
            return [mask]
        found: list[int] = []
        members = [1 << i for i in bits(mask)]
        for count in range(1, MAX_COMPANIONS + 1):
            if count == MAX_COMPANIONS and (found or len(members) > MANY):
                break
            for chosen in combinations(members, count):
                out = sum(chosen)
                if holds(out, (mask & ~kept for kept in found)):
                    continue
                if self.ok(mask & ~out):
                    found.append(mask & ~out)
        if not found and not self._problem.valid(mask) and self.ok(grown := self.grow(mask)):
            found = [grown]
        return sorted(found, key=lambda mask: -self.chance(mask))[:MOST_VARIANTS]


def _rules(size: int, unresolved: int, counts: Counts) -> tuple[np.ndarray, np.ndarray]:
    """The rules that would explain an unresolved subset and that no resolved run contradicts.

    Returns:
        `needs[x, y]`: bad x needs bad y; `excludes[x, y]`, x <= y: they cannot both be bad.
    """
    inside = switches(unresolved, size)[:-1]
    needs = np.outer(inside, ~inside)
    excludes = np.triu(np.outer(inside, inside))
    for mask in {*counts.failed, *counts.passed}:
        other = switches(mask, size)[:-1]
        needs &= ~np.outer(other, ~other)
        excludes &= ~np.outer(other, other)
    return needs, excludes


# ------------------------------------------------------------------------------------------------------------- the case


class Case:
    """The problem and the records, with all that is computed from them once a decision.

    Attributes:
        problem: what is searched.
        counts: what was seen.
        validity: what can be run.
        unsteady: whether a failure that always shows is ruled out: by a contradiction, or because it is so unlikely
            that the runs that would settle it are better spent otherwise.
    """

    def __init__(self, problem: Problem, counts: Counts, unsteady: bool = False) -> None:
        self.problem, self.counts = problem, counts
        self.unsteady = unsteady or counts.contradictory
        self.validity = Validity(problem, counts)

    @cached_property
    def prices(self) -> Prices:
        """What runs cost."""
        return Prices.of(self.problem, self.counts)

    @cached_property
    def posterior(self) -> Posterior:
        """How likely hypotheses are."""
        return Posterior(self.problem, self.counts, self.unsteady)
