"""Random failures: a posterior over whole answers, and the run that tells most about them.

Once one subset has both failed and passed, a single pass excludes nothing, and causes can no longer be
narrowed down one after the other: what one does not explain may be bad luck of another. A *model* is a whole
answer, a set of causes that all fail with one unknown probability p. Its likelihood is the product over all
runs: p for a failure where one of its causes lies inside, 1 - p for a pass there, and next to nothing for a
failure elsewhere. Models of one cause are weighed all; models of more are grown from the likeliest, a cause
at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_cfg.search.belief import FALSE_FAIL, GRID, RANDOM_RATES
from bisect_cfg.search.choose import entropy
from bisect_cfg.search.hypotheses import candidates, switches
from bisect_cfg.search.problem import Problem, bits
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.transversal import minimal_hitting_sets

BEAM = 16
"""How many of the likeliest models of each size are grown by one more cause."""

KEPT = 1000
"""How many of the likeliest models of one cause take part in decisions; the rest together weigh next to
nothing once there is something to decide between."""

KEPT_GROWN = 50
"""The same for models grown from each of the beam, of which there are many and none is likely."""

COMPONENTS = 2500
"""How many of the likeliest causes are tried as one more cause."""

NEGLIGIBLE_NATS = 13.0
"""Models this much less likely than the best are left out of a decision."""

MOST_CAUSES = 5
"""Models of more causes than this are not grown: telling them apart at random failures would take hundreds
of runs."""

PROVEN = 6
"""How many of the likeliest models put the runs of their proofs among the questions."""

ORDERS = 16
"""Random orders of the factors whose prefixes are among the questions."""

PREFIXES = 24
"""Prefixes looked at in each order."""


@dataclass(frozen=True)
class Model:
    """A whole answer.

    Attributes:
        causes: each as a mask, ascending.
        weight: its probability.
        rate: the mean failure probability if it is the answer.
    """

    causes: tuple[int, ...]
    weight: float
    rate: float


class Models:
    """The posterior over models.

    Args:
        problem: the problem.
        tally: what was seen; contradictory.
    """

    def __init__(self, problem: Problem, tally: Tally) -> None:
        self._problem, self._tally = problem, tally
        runs = [(mask, count) for mask, count in tally.counts.items() if count.runs and mask]
        self._masks = [mask for mask, _ in runs]
        self._fails = np.array([count.fails for _, count in runs], np.float32)
        self._passes = np.array([count.passes for _, count in runs], np.float32)
        self._all = candidates(problem.size, tuple(range(problem.size)), problem.odds)
        self._inside = np.stack([self._all.inside(mask) for mask, _ in runs], 1).astype(np.float32)
        self._log_odds = np.log(self._all.intensity)
        self._likelihood, self._rate = _tables(int(self._fails.sum()), int(self._passes.sum()))
        self.models = self._grow()

    def _grow(self) -> list[Model]:
        """All models of one cause, and larger ones grown from the likeliest."""
        alone = self._score(np.zeros((len(self._fails), 1), bool), self._inside)
        single = alone[0][:, 0] + self._log_odds
        order = np.argsort(-single, kind="stable")
        found = {(row,): (single[row], alone[1][row, 0]) for row in order[:KEPT].tolist()}
        components = np.sort(order[:COMPONENTS])
        inside, odds = self._inside[components], self._log_odds[components]
        beam = [((row,), float(self._log_odds[row])) for row in order[:BEAM].tolist()]
        best = float(single[order[0]])
        for _ in range(MOST_CAUSES - 1):
            covered = np.stack([self._inside[list(rows)].any(0) for rows, _ in beam], 1)
            scores, rates = self._score(covered, inside)
            scores += odds[:, None] + np.array([prior for _, prior in beam])
            for column, (rows, _) in enumerate(beam):
                for row in rows:
                    scores[self._nested(row, components), column] = -np.inf
            count = min(KEPT_GROWN, len(components))
            top = np.argpartition(-scores, count - 1, axis=0)[:count]
            grown: dict[tuple[int, ...], tuple[float, float]] = {}
            for column, (rows, _) in enumerate(beam):
                for number in top[:, column].tolist():
                    if scores[number, column] > best - NEGLIGIBLE_NATS:
                        key = tuple(sorted((*rows, int(components[number]))))
                        grown[key] = (float(scores[number, column]), float(rates[number, column]))
            if not grown:
                break
            found.update(grown)
            ranked = sorted(grown, key=lambda key: (-round(grown[key][0], 9), key))[:BEAM]
            best = max(best, grown[ranked[0]][0])
            beam = [(key, sum(float(self._log_odds[row]) for row in key)) for key in ranked]
        kept = {key: value for key, value in found.items() if value[0] > best - NEGLIGIBLE_NATS}
        weights = {key: float(np.exp(value[0] - best)) for key, value in kept.items()}
        total = sum(weights.values())
        return [
            Model(tuple(sorted(self._all.mask(row) for row in key)), weights[key] / total, float(kept[key][1]))
            for key in sorted(kept, key=lambda key: (-round(weights[key] / total, 12), key))
        ]

    def _score(self, covered: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log likelihood and mean p of models that cover some runs already, with one cause more.

        Args:
            covered: runs x models.
            inside: further causes x runs.
        """
        counts = []
        for count in (self._fails, self._passes):
            covers = covered.astype(np.float32) * count[:, None]
            counts.append(np.rint(covers.sum(0) + inside @ (count[:, None] - covers)).astype(np.int64))
        fails, passes = counts
        unexplained = float(self._fails.sum()) - fails
        return (
            self._likelihood[fails, passes] + unexplained * np.log(FALSE_FAIL),
            self._rate[fails, passes],
        )

    def _nested(self, row: int, components: np.ndarray) -> np.ndarray:
        """Which components hold a candidate or lie inside it: together they would be no minimal answer."""
        mask = self._all.mask(row)
        return (self._all.containing(mask) | self._all.inside(mask))[components]

    def hidden(self, model: Model) -> float:
        """The intensity of causes besides the model's that no run has shown, given all passes."""
        covered = np.zeros(len(self._fails), bool)
        free = np.ones(len(self._log_odds), bool)
        for cause in model.causes:
            free &= ~self._all.containing(cause) & ~self._all.inside(cause)
            covered |= _contained([cause], self._masks, self._problem.size)[:, 0]
        fails = self._inside @ (~covered * self._fails)
        passes = self._inside @ (~covered * self._passes)
        left = free & (fails == 0)
        return float((np.exp(self._log_odds[left]) * (1 - model.rate) ** passes[left]).sum())

    # ------------------------------------------------------------------------------------ questions

    def chances(self, masks: Sequence[int]) -> np.ndarray:
        """The probability that a run of each subset fails under each model: subsets x models."""
        causes = sorted({cause for model in self.models for cause in model.causes})
        place = {cause: i for i, cause in enumerate(causes)}
        held = _contained(causes, masks, self._problem.size)
        rates = np.array([model.rate for model in self.models])
        width = max(len(model.causes) for model in self.models)
        inside = np.zeros((len(masks), len(self.models)), bool)
        for number in range(width):
            column = np.array([place[m.causes[min(number, len(m.causes) - 1)]] for m in self.models])
            inside |= held[:, column]
        return np.where(inside, rates, FALSE_FAIL)

    def information(self, masks: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """What a run of each subset tells about the answer, in bits, and how likely it fails."""
        chances = self.chances(masks)
        weights = np.array([model.weight for model in self.models])
        mean = chances @ weights
        return entropy(mean) - entropy(chances) @ weights, mean

    def questions(self) -> list[int]:
        """Subsets worth looking at: those that were run, those that proofs need, and prefixes of orders."""
        size, full = self._problem.size, self._problem.full
        found = dict.fromkeys(self._tally.counts)
        for model in self.models[:PROVEN]:
            for cause in model.causes:
                found.update(dict.fromkeys([cause, *(cause & ~(1 << i) for i in bits(cause))]))
            found.update((full & ~hit, None) for hit in minimal_hitting_sets(model.causes)[:PROVEN])
        marginal = np.zeros(size)
        for model in self.models:
            for cause in model.causes:
                for i in bits(cause):
                    marginal[i] += model.weight
        rng = random.Random(len(self._tally.records) * 7919 + size)
        members = list(range(size))
        for number in range(ORDERS):
            if number % 2:
                order = rng.sample(members, size)
            else:
                order = sorted(members, key=lambda i: -marginal[i] * rng.random())
            step = max(1, size // PREFIXES)
            mask = 0
            for length, i in enumerate(order, 1):
                mask |= 1 << i
                if length % step == 0 or length < 5:
                    found.setdefault(mask)
        return [mask for mask in found if mask not in (0, full)]


def _tables(fails: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """For each number of fails and passes: the log likelihood with p unknown but not 1, and p's mean."""
    grid = GRID[GRID < 1]
    prior = RANDOM_RATES[GRID < 1]
    f = np.arange(fails + 1)[:, None, None]
    p = np.arange(passes + 1)[None, :, None]
    logs = np.log(np.maximum(prior, 1e-300)) + f * np.log(grid) + p * np.log(1 - grid)
    top = logs.max(2, keepdims=True)
    terms = np.exp(logs - top)
    return np.log(terms.sum(2)) + top[..., 0], (terms @ grid) / terms.sum(2)


def _contained(causes: Sequence[int], masks: Sequence[int], size: int) -> np.ndarray:
    """Which causes lie inside which subsets: subsets x causes."""
    if size <= 64:
        words = np.array(causes, np.uint64)
        outside = np.array([~mask & 0xFFFFFFFFFFFFFFFF for mask in masks], np.uint64)
        return (words[None, :] & outside[:, None]) == 0
    width = max(cause.bit_count() for cause in causes)
    index = np.array([[*bits(cause), *[size] * (width - cause.bit_count())] for cause in causes])
    return np.stack([switches(mask, size)[index].all(1) for mask in masks])


def hypotheses_of(models: Iterable[Model]) -> dict[int, float]:
    """Cause -> the probability that it is one of the answer's."""
    found: dict[int, float] = {}
    for model in models:
        for cause in model.causes:
            found[cause] = found.get(cause, 0.0) + model.weight
    return found
