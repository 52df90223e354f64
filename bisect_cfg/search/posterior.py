"""What the records make likely: a posterior over hypotheses, with the failure probability as a part of it.

A *hypothesis* is a set of causes. A run in which one of them lies fails with a probability p, the same for all of them;
a run without any fails next to never. p is unknown: it lies on a grid, of which p = 1, a failure that always shows, is
one point with much of the prior. There a single pass excludes every cause inside, and the search halves; everywhere
else a pass is evidence, and the more failures were seen to stay away, the less.

There are too many to be listed, so there are two lists. As long as nothing contradicts a failure that always shows,
causes can be found one after the other: `inside` lists the causes that one failed subset may hold beside those known,
and `hidden` says how likely yet another one is. Once one subset has both failed and passed, what one cause does not
explain may be the bad luck of another: `whole` lists whole hypotheses, all of one cause and larger ones grown from the
likeliest, a cause at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb, exp, log

import numpy as np

from bisect_cfg.search.candidates import EXPECTED_CAUSES, Candidates, candidates, share_of
from bisect_cfg.search.problem import DIGITS, Counts, FoundCause, Problem, bits, holds, mask_of

GRID = np.array([1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
"""Failure probabilities considered. Below .2 a failure can hardly be called the one of this configuration."""

_SHARES = np.array([0.0, 0.5, 0.8, 1.0, 1.0, 1.0, 1.0, 0.8, 0.5, 0.3])
RANDOM_RATES = _SHARES / _SHARES.sum()
"""Prior of each p on the grid if the failure is random: none is preferred, but near 1 a failure is rather a steady one,
and one that shows more rarely than in two runs of five is seldom met, or not reported."""

STEADY = 0.95
"""Prior probability of p = 1; most reported failures come back at every start."""

STEADY_IF_CAREFUL = 0.5
"""The same where the answer must hold for a random failure too (`Problem.careful`): an even chance."""

STEADY_IF_REPEATABLE = 0.9
"""The same once a failing run was seen to repeat itself bit for bit (`Counts.repeatable`). Not more: what is drawn from
outside, by `os.urandom` or another process, makes a failure random in a run that otherwise repeats itself. At .99 such
failures were exact in 53 of 60 instead of 56."""

LEFT_IF_REPEATABLE = 0.25
"""The share of the permitted probability of a wrong answer that may be left then. A failure that is drawn from outside
is rarer in such runs, and harder to tell from a steady one: where it shows in half of the runs 4.7 % of the answers
were wrong with all of it, 3.3 % with half of it and 2.3 % with this. Of 19 settings a steady failure of one, two and
three takes 9.5, 16.7 and 23.6 trials, and without traces 10.4, 18.3 and 25.1 (studies/search_cost/README.md)."""


def prior_of_rates(problem: Problem, counts: Counts) -> np.ndarray:
    """The prior of each p on the grid."""
    steady = STEADY
    if problem.careful:
        steady = STEADY_IF_REPEATABLE if counts.repeatable else STEADY_IF_CAREFUL
    return np.where(GRID == 1.0, steady, (1 - steady) * RANDOM_RATES)


FALSE_FAIL = 0.002
"""Probability of a failure with the same signature and no cause inside: near, but not exactly, zero."""

LEAST = 1e-300
"""No probability is taken to be less where its logarithm, or a quotient, is wanted."""

TINY = 1e-12
"""The same where it must stay apart from 1 as well, or is what a decision is made by."""

NEGLIGIBLE = 1e-7
"""Candidates less likely than this are dropped from a decision."""

NEGLIGIBLE_NATS = 13.0
"""Whole hypotheses this much less likely than the best are left out of a decision."""

DIGITS_OF_WEIGHT = 12
"""As `DIGITS`, for probabilities down to `NEGLIGIBLE`."""

BEAM = 16
"""How many of the likeliest hypotheses of each number of causes are grown by one more."""

KEPT = 1000
"""How many of the likeliest hypotheses of one cause take part in decisions; the rest together weigh next to nothing
once there is something to decide between."""

KEPT_GROWN = 50
"""The same for hypotheses grown from each of the beam, of which there are many and none is likely."""

COMPONENTS = 2500
"""How many of the likeliest causes are tried as one more."""

SIZES_BEYOND = 9
"""So many sizes beyond those that are listed are weighed; causes of more settings together weigh next to nothing."""

MOST_CAUSES = 5
"""Those of more causes than this are not grown: telling them apart at random failures would take hundreds of runs."""


def all_candidates(problem: Problem) -> Candidates:
    """Every subset small enough to be listed."""
    return candidates(problem.size, tuple(range(problem.size)), problem.odds)


@dataclass(frozen=True)
class Hypotheses:
    """Hypotheses and how likely each is.

    Attributes:
        region: the factors that they are about.
        parts: the causes that they are made of.
        rows: of each hypothesis, the numbers of its causes among `parts`; the last is repeated as often as is needed.
        weight: their probabilities, adding up to 1.
        rate: the mean failure probability if it holds.
        steady: the probability that the failure always shows.
    """

    region: int
    parts: Candidates
    rows: np.ndarray
    weight: np.ndarray
    rate: np.ndarray
    steady: float = 0.0

    def best(self, count: int) -> list[int]:
        """The numbers of the likeliest hypotheses, best first."""
        weight = np.round(self.weight, DIGITS_OF_WEIGHT)
        least = np.partition(weight, -count)[-count] if len(weight) > count else 0.0
        rows = np.flatnonzero(weight >= least)
        return rows[np.argsort(-weight[rows], kind="stable")][:count].tolist()

    def causes(self, number: int) -> tuple[int, ...]:
        """One hypothesis's causes."""
        return tuple(sorted({self.parts.mask(row) for row in self.rows[number]}))

    def failing(self, masks: Sequence[int]) -> np.ndarray:
        """Which hypotheses have a cause inside which of some subsets: hypotheses x subsets."""
        inside = self.parts.inside_each(masks)
        return inside[self.rows[:, 0]] if self.rows.shape[1] == 1 else inside[self.rows].any(1)

    def place(self, rank: np.ndarray) -> np.ndarray:
        """Where, in an order of the factors, each has its first whole cause; `rank[-1]` must be the least."""
        return rank[self.parts.index].max(1)[self.rows].min(1)

    @cached_property
    def chances(self) -> np.ndarray:
        """The probability of each of the parts to be a cause."""
        fresh = np.ones(self.rows.shape, bool)
        fresh[:, 1:] = self.rows[:, 1:] != self.rows[:, :-1]
        chances = np.bincount(self.rows.ravel(), (self.weight[:, None] * fresh).ravel(), len(self.parts.sizes))
        return np.round(chances, DIGITS_OF_WEIGHT)

    @cached_property
    def marginal(self) -> np.ndarray:
        """How many causes each factor is in, on average."""
        total = np.zeros(self.parts.size + 1)
        for column in self.parts.index.T:
            total += np.bincount(column, self.chances, self.parts.size + 1)
        return np.round(total[:-1], DIGITS_OF_WEIGHT)

    @property
    def suspected(self) -> int:
        """The factors that are in any of the causes."""
        return mask_of(i for i in set(self.parts.index.ravel().tolist()) if i < self.parts.size)


class Posterior:
    """The posterior over hypotheses given the records; `unsteady`: a failure that always shows is ruled out."""

    def __init__(self, problem: Problem, counts: Counts, unsteady: bool) -> None:
        self._problem = problem
        self._runs = {mask: count for mask, count in counts.by_subset.items() if count.runs and mask}
        self.everything = all_candidates(problem)
        self._odds = np.log(self.everything.intensity)
        self._inside = self.everything.inside_each(list(self._runs)).astype(np.int32)
        self._fails = np.array([count.fails for count in self._runs.values()], np.int32)
        self._passes = np.array([count.passes for count in self._runs.values()], np.int32)
        prior = RANDOM_RATES if unsteady else prior_of_rates(problem, counts)
        # The likelihood of any number of fails and passes at each p, summed, and what it says of p.
        logs = (
            np.log(np.maximum(prior, LEAST))
            + np.arange(self._fails.sum() + 1)[:, None, None] * np.log(GRID)
            + np.arange(self._passes.sum() + 1)[None, :, None] * np.log(np.maximum(1 - GRID, LEAST))
        )
        top = logs.max(2, keepdims=True)  # so that nothing underflows
        terms = np.exp(logs - top)
        total = terms.sum(2)
        self._likelihood = np.log(total) + top[..., 0]
        self._hidden: dict[tuple[float | None, ...], np.ndarray] = {}
        self._rate, self._always = (terms * GRID).sum(2) / total, terms[..., 0] / total

    def _shown(
        self, inside: np.ndarray, known: Iterable[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
        """How many failures and passes the known causes and each candidate take part in.

        Returns:
            fails, passes: by candidate.
            left: which runs hold none of the known causes.
            base: fails and passes of the known causes alone.
        """
        left = np.array([not holds(mask, known) for mask in self._runs], np.int32)
        counts, base = [], []
        for count in (self._fails, self._passes):
            base.append(int((count - left * count).sum()))
            counts.append(base[-1] + np.einsum("ij,j->i", inside, left * count))
        return counts[0], counts[1], left, tuple(base)

    # ------------------------------------------------------------------------- one cause after the other

    def hidden(self, known: Sequence[int], mask: int, rate: float | None = None) -> float:
        """The intensity of causes beside the known ones inside a subset, given that no failure showed them;
        1 - exp(-it) is their probability. With a `rate`, as if that were the failure probability."""
        key = (*known, rate)
        if key not in self._hidden:
            fails, passes, _, base = self._shown(self._inside, known)
            survival = np.exp(self._likelihood[base[0], passes] - self._likelihood[base])
            if rate is not None:
                survival = np.where(fails == base[0], (1 - rate) ** (passes - base[1]), 0.0)
            self._hidden[key] = self.everything.intensity * survival
            for cause in known:
                nested = self.everything.containing(cause) | self.everything.inside(cause)
                self._hidden[key][nested] = 0.0
        return float(self._hidden[key][self.everything.inside(mask)].sum())

    def inside(self, region: int, known: Sequence[int] = ()) -> Hypotheses | None:
        """Which further cause a failed subset holds; None if a larger one than those listed explains the records
        better."""
        causes = candidates(self._problem.size, tuple(bits(region)), self._problem.odds)
        inside = self._inside
        if causes is not self.everything:
            inside = causes.inside_each(list(self._runs)).astype(np.int32)
        fails, passes, left, base = self._shown(inside, known)
        # Failures that a candidate does not explain are put down to one other cause, however many they are.
        unexplained = [
            (mask.bit_count(), number)
            for number, (mask, count) in enumerate(self._runs.items())
            if count.fails and left[number] and not inside[:, number].all()
        ]
        chance = 1.0
        if unexplained:
            masks = list(self._runs)
            chance = max(FALSE_FAIL, 1 - exp(-self.hidden(known, masks[min(unexplained)[1]])))
        alone = inside[:, [number for _, number in unexplained]].all(1)
        weight = causes.intensity * np.exp(self._likelihood[fails, passes] - self._likelihood[base])
        weight = weight * np.where(alone, 1.0, chance)
        for cause in known:
            weight[causes.containing(cause)] = 0.0
        total = float(weight.sum())
        larger = self._larger(region, int(causes.sizes.max(initial=1)))
        if not total > 0 or total < larger:
            return None
        steady = (float((weight * self._always[fails, passes]).sum()) + larger) / (total + larger)
        keep = np.flatnonzero(weight > NEGLIGIBLE * total)
        weight = weight[keep] / weight[keep].sum()
        rows = np.arange(len(keep))[:, None]
        return Hypotheses(region, causes.take(keep), rows, weight, self._rate[fails, passes][keep], steady)

    def _larger(self, region: int, largest: int) -> float:
        """The weight of all causes too large to be listed: few runs inside the region would contain one."""
        size = region.bit_count()
        if size <= largest:
            return 0.0
        weight = EXPECTED_CAUSES * sum(share_of(count) for count in range(largest + 1, largest + 1 + SIZES_BEYOND))
        weight *= comb(size, largest + 1) / comb(self._problem.size, largest + 1)
        passed = {mask & region for mask, count in self._runs.items() if count.passes}
        for mask in passed:
            if not any(mask & other == mask for other in passed if other != mask):  # the larger one says it all
                weight *= 1 - (mask.bit_count() / size) ** (largest + 1)
        return weight

    # -------------------------------------------------------------------------------------- whole hypotheses

    def whole(self) -> Hypotheses:
        """Hypotheses of one cause, and larger ones grown from the likeliest."""
        score, shown = self._score((), np.arange(len(self.everything.sizes)))
        order = np.argsort(-score, kind="stable")
        found = {(row,): (score[row], shown[row]) for row in order[:KEPT].tolist()}
        components = np.sort(order[:COMPONENTS])
        beam, best = list(found)[:BEAM], score[order[0]]
        for _ in range(MOST_CAUSES - 1):
            grown = {}
            for rows in beam:
                score, shown = self._score(rows, components)
                for number in np.argsort(-score, kind="stable")[:KEPT_GROWN].tolist():
                    if score[number] > best - NEGLIGIBLE_NATS:
                        grown[tuple(sorted((*rows, int(components[number]))))] = (score[number], shown[number])
            if not grown:
                break
            found.update(grown)
            beam = sorted(grown, key=lambda rows: (-grown[rows][0], rows))[:BEAM]
            best = max(best, grown[beam[0]][0])
        kept = [rows for rows, (score, _) in found.items() if score > best - NEGLIGIBLE_NATS]
        used = sorted({row for rows in kept for row in rows})
        number = {row: i for i, row in enumerate(used)}
        width = max(map(len, kept))
        numbers = np.array([[number[row] for row in (*rows, *[rows[-1]] * (width - len(rows)))] for rows in kept])
        weight = np.exp(np.array([found[rows][0] for rows in kept]) - best)
        weight /= weight.sum()
        fails, passes = np.array([found[rows][1] for rows in kept]).T
        rate, steady = self._rate[fails, passes], float((weight * self._always[fails, passes]).sum())
        return Hypotheses(self._problem.full, self.everything.take(np.array(used)), numbers, weight, rate, steady)

    def _score(self, rows: tuple[int, ...], components: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The logarithm of the weight of a hypothesis with each of some candidates as one more cause, to `DIGITS`, and
        the fails and passes that it takes part in."""
        known = [self.everything.mask(row) for row in rows]
        fails, passes, _, _ = self._shown(self._inside[components], known)
        score = self._likelihood[fails, passes] + (self._fails.sum() - fails) * log(FALSE_FAIL)
        score += self._odds[components] + self._odds[list(rows)].sum()
        for cause in known:  # what holds a cause of the hypothesis, or lies inside one, makes no minimal one
            score[(self.everything.containing(cause) | self.everything.inside(cause))[components]] = -np.inf
        return np.round(score, DIGITS), np.stack([fails, passes], 1)


class Doubt:
    """What may still be wrong with an answer that no run contradicts, and which run removes most of it.

    A failure that always showed may be random all the same, and then a pass was luck. Two things can be wrong with the
    answer: a smaller cause, whose runs without the rest passed by luck (a *rival*), or a further cause, which a
    correction left in and which did not show (*hidden*). So two kinds of run remove doubt: each pass repeated makes
    the luck it would have been rarer, by 1 - p, and each failure of a cause repeated makes a small p less likely, by
    p. The second kind is cheap, because failing runs end early, and speaks for the whole answer at once.

    Args:
        problem: the problem.
        counts: what was seen; nothing of it contradicts the answer.
        causes: the answer.
        passes: the passing runs that it rests on; what none of them could show is left out, because no repetition
            would.
    """

    def __init__(self, problem: Problem, counts: Counts, causes: Iterable[FoundCause], passes: Collection[int]) -> None:
        everything = all_candidates(problem)
        testable = np.zeros(len(everything.sizes), bool)
        for mask in passes:
            testable |= everything.inside(mask)
        weight = np.where(testable, everything.intensity, 0.0)
        for cause in causes:
            known = cause.parameters
            # A further cause holds no known one. One inside a known cause would take its place, and is weighed against
            # the prior of the cause that it replaces.
            inside, containing = everything.inside(known), everything.containing(known)
            own = everything.intensity[inside & containing]
            weight[containing] = 0.0
            weight[inside] /= float(own[0]) if len(own) else float(everything.intensity.min())
        rows = np.flatnonzero(weight)
        self._candidates, self._weight = everything.take(rows), weight[rows]
        runs = [(mask, count) for mask, count in counts.by_subset.items() if mask]
        self._seen = self._candidates.inside_each([mask for mask, _ in runs]) @ [count.passes for _, count in runs]
        self._rates = prior_of_rates(problem, counts) * GRID ** sum(count.fails for _, count in runs)

    def of(self, passing: int | None = None, failing: bool = False) -> float:
        """The probability that the answer is wrong, as it is, or will be if a subset (`passing`) passes or a cause
        fails (`failing`) once more."""
        seen = self._seen if passing is None else self._seen + self._candidates.inside(passing)
        rates = self._rates * GRID if failing else self._rates
        wrong = float((self._weight[:, None] * rates * (1 - GRID) ** seen[:, None]).sum())
        return wrong / (wrong + float(rates.sum()))
