"""Which subset tells most, inside a subset that failed.

A run is worth the information it gives about the cause plus the share of the final proof it may be: a run
that a proof needs anyway, and that is likely to come out as the proof needs it, is one run less later.
Both are counted in runs and divided by the expected price of the run, because failing runs end early.

Informative subsets are searched along orders of the factors: in any order, the longer prefix contains more
candidates, so one pass over the candidates gives the value of every prefix. The best are improved by moving
single factors in or out. Runs that proofs need come from the likeliest candidates.

Running trials are outcomes not known yet: the value of a run is averaged over what they may say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp

import numpy as np

from bisect_cfg.configuration import Purpose
from bisect_cfg.search.belief import FALSE_FAIL, Belief, Local
from bisect_cfg.search.prices import Prices
from bisect_cfg.search.problem import Ask, Problem, bits
from bisect_cfg.search.proof import direct, prove
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.validity import Validity

PROOFS = 12
"""How many of the likeliest candidates have their proofs looked at for runs that do double duty."""

FEW = 8
"""Up to this many suspects all their subsets are valued, instead of those along some orders."""

MAX_PATTERNS = 32
"""Outcome patterns of running trials told apart; rarer ones are merged."""

WORTH_ASKING = 0.02
"""With trials running, a run worth less than this (in runs) waits for their outcomes instead."""

UNSUSPECTED = 0.02
"""A setting that takes part in the cause with less than this probability may be set to whatever is cheaper."""

MADE_CHEAPER = 12
"""How many of the best questions are looked at with the other settings at their cheaper levels."""

PROOF_SHARE = 0.9
"""What a run that a proof needs is worth beside a bit of information, of which one run gives at most one.
Measured: at 1 or more, runs that prove are asked too early when there are several causes; below, the last few cost
more."""


@dataclass(frozen=True)
class Option:
    """A run that could be asked next, and what it is worth, in runs per price of a passing run."""

    ask: Ask
    value: float


def entropy(probability: np.ndarray | float) -> np.ndarray:
    """Binary entropy in bits."""
    p = np.minimum(np.maximum(probability, 1e-12), 1 - 1e-12)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


class Values:
    """The value of subsets given a local posterior and what is running."""

    def __init__(self, belief: Belief, local: Local, running: Iterable[int], prices: Prices) -> None:
        self._belief, self._local, self.prices = belief, local, prices
        weight, rate = local.weight, local.rate
        self._pattern, self._count = _patterns(local, running)
        self._weights = (weight, weight * rate, weight * entropy(rate))
        totals = np.bincount(self._pattern, weight, self._count)
        self._totals = np.maximum(totals, 1e-300)

    def prefixes(self, order: list[int]) -> np.ndarray:
        """The value of each prefix of an order of the region's factors."""
        rank = np.zeros(self._local.causes.size + 1, np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = -1
        last = rank[self._local.causes.index].max(1) + self._pattern * len(order)
        shape = (self._count, len(order))
        inside, fails, doubt = (
            np.cumsum(np.bincount(last, w, self._count * len(order)).reshape(shape), 1) for w in self._weights
        )
        return self._worth(inside, fails, doubt, FALSE_FAIL, price=np.exp(np.cumsum(self.prices.factors[order])))

    def subsets(self, members: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """All subsets of a few factors, as masks, and the value of each."""
        size = len(members)
        numbers = np.arange(1 << size)
        place = np.zeros(self._local.causes.size + 1, np.int64)  # where each factor is among the members
        place[members] = 1 << np.arange(size)
        wanted = place[self._local.causes.index].sum(1)
        contained = (wanted[None, :] & ~numbers[:, None]) == 0
        columns = np.zeros((len(wanted), 3 * self._count))
        for number, weight in enumerate(self._weights):
            columns[np.arange(len(wanted)), number * self._count + self._pattern] = weight
        inside, fails, doubt = np.split((contained @ columns).T, 3)
        bad = (numbers[:, None] >> np.arange(size)) & 1
        price = np.exp(bad @ self.prices.factors[members])
        return numbers, self._worth(inside, fails, doubt, FALSE_FAIL, price=price)

    def of(self, mask: int, proof: float = 0.0) -> float:
        """The value of one subset, `proof` being the probability-weighted share of proofs it belongs to."""
        contained = self._local.causes.inside(mask)
        inside, fails, doubt = (
            np.bincount(self._pattern[contained], w[contained], self._count)[:, None] for w in self._weights
        )
        hidden = FALSE_FAIL
        if mask & ~self._local.region:  # a failure may then come from a cause outside; inside, any will do
            hidden = max(hidden, 1 - exp(-self._belief.hidden(mask)))
        return float(self._worth(inside, fails, doubt, hidden, proof, self.prices.of_mask(mask))[0])

    def _worth(
        self,
        inside: np.ndarray,
        fails: np.ndarray,
        doubt: np.ndarray,
        hidden: float,
        proof: float = 0.0,
        price: np.ndarray | float = 1.0,
    ) -> np.ndarray:
        outside = self._totals[:, None] - inside
        failing = fails + outside * hidden
        chance = failing / self._totals[:, None]
        bits_ = (self._totals[:, None] * entropy(chance) - doubt - outside * entropy(hidden)).sum(0)
        fail = failing.sum(0)
        return (bits_ + PROOF_SHARE * proof) / (price * (fail * self.prices.fail + (1 - fail)))


def _patterns(local: Local, running: Iterable[int]) -> tuple[np.ndarray, int]:
    """Number the candidates by what they predict for the running trials."""
    code = np.zeros(len(local.weight), np.int64)
    count = 1
    for mask in running:
        code = code * 2 + local.causes.inside(mask)
        values, code = np.unique(code, return_inverse=True)
        count = len(values)
        if count > MAX_PATTERNS:
            mass = np.bincount(code, local.weight, count)
            rank = np.argsort(np.argsort(-mass, kind="stable"), kind="stable")
            code, count = np.minimum(rank[code], MAX_PATTERNS - 1), MAX_PATTERNS
    return code, count


def choose(
    problem: Problem,
    tally: Tally,
    belief: Belief,
    validity: Validity,
    local: Local,
    known: Iterable[int],
    cures: Callable[[int], dict[int, Ask]],
    prices: Prices,
) -> Ask | None:
    """The most valuable run that can be valid; None if only running trials can tell more.

    Args:
        problem: the problem.
        tally: what was seen.
        belief: the posterior.
        validity: what can be run.
        local: the posterior inside the failed subset looked at.
        known: causes proven so far.
        cures: candidate cause -> the runs that would show its corrections to pass.
        prices: what runs cost.
    """
    values = Values(belief, local, tally.running, prices)
    known = tuple(known)
    proofs, asks = _proof_runs(problem, tally, validity, local, cures, known)
    scored: dict[int, float] = dict(_informative(problem, values, local, len(tally.records)))
    for mask, share in proofs.items():
        chance = exp(-belief.hidden(mask)) if mask & local.region != mask else 1.0
        scored[mask] = values.of(mask, share * chance)
    best: Option | None = None
    queue = sorted(scored.items(), key=lambda item: (-round(item[1], 9), item[0]))
    for mask, value in queue:
        if best is not None and value <= best.value:
            break
        if not _askable(problem, tally, known, mask):
            continue
        if validity.ok(mask):
            best = Option(asks.get(mask) or _search_ask(problem, local, mask, 0), value * validity.chance(mask))
            continue
        for changed, companions in validity.repairs(mask, local.region):
            if changed == local.region or not _askable(problem, tally, known, changed):
                continue
            worth = values.of(changed) * validity.chance(changed)
            if best is None or worth > best.value + 1e-9:
                best = Option(asks.get(changed) or _search_ask(problem, local, changed, companions), worth)
    if best is None or (tally.running and best.value < WORTH_ASKING):
        return None
    return best.ask


def _askable(problem: Problem, tally: Tally, known: Iterable[int], mask: int) -> bool:
    """Whether running it may teach something: a decided subset only if failures have turned out to be
    random."""
    count = tally.of(mask)
    if mask in (0, problem.full) or count.running or (count.runs and not tally.contradictory):
        return False
    return not any(cause & mask == cause for cause in known)


def _search_ask(problem: Problem, local: Local, mask: int, companions: int) -> Ask:
    if mask & local.region == mask:
        text = f"Is a cause among these {mask.bit_count()} of {local.region.bit_count()} suspects?"
    else:
        text = f"Is there a cause without {problem.show(problem.full & ~mask)}?"
    return Ask(mask, companions, Purpose.SEARCH, text)


def _informative(problem: Problem, values: Values, local: Local, seed: int) -> Iterable[tuple[int, float]]:
    """Subsets of the region with the most information, found along orders of its factors."""
    members = list(bits(local.region))
    if len(members) <= FEW:
        _, worth = values.subsets(members)
        ranked = np.argsort(-worth, kind="stable")[: 2 * FEW].tolist()
        chosen = [(sum(1 << members[i] for i in bits(n)), float(worth[n])) for n in ranked]
        found = {mask: value for mask, value in chosen if mask not in (0, local.region)}
        found.update(_cheaper(values, local, found))
        return found.items()
    marginal = np.zeros(problem.size + 1)
    for column in local.causes.index.T:
        marginal += np.bincount(column, local.weight, problem.size + 1)
    rng = random.Random(seed * 7919 + len(members))
    count = len(local.weight)
    orders = 6 if count > 8000 else 12 if count > 400 else 24
    found: dict[int, float] = {}
    for number in range(orders):
        if number == 0:
            order = sorted(members, key=lambda i: -marginal[i])
        elif number == 1:
            order = sorted(members, key=lambda i: marginal[i])
        elif number % 2:
            order = rng.sample(members, len(members))
        else:
            order = sorted(members, key=lambda i: -marginal[i] * rng.random())
        worth = values.prefixes(order)
        for length in np.argsort(-worth, kind="stable")[:2]:
            mask = sum(1 << i for i in order[: length + 1])
            if mask != local.region:
                found[mask] = float(worth[length])
    found.update(_cheaper(values, local, found))
    if count <= 1500:
        for mask in sorted(found, key=lambda m: (-found[m], m))[:3]:
            found.update(_climb(values, members, local.region, mask, found[mask]))
    return found.items()


def _cheaper(values: Values, local: Local, found: dict[int, float]) -> dict[int, float]:
    """The same questions about the suspects, with every setting that is none at its cheaper level."""
    free = values.prices.telling
    if not free:
        return {}
    marginal = np.zeros(local.causes.size + 1)
    for column in local.causes.index.T:
        marginal += np.bincount(column, local.weight, local.causes.size + 1)
    for i in bits(free):
        if marginal[i] > UNSUSPECTED:
            free &= ~(1 << i)
    cheap = values.prices.cheap & free
    best = sorted(found, key=lambda m: (-found[m], m))[:MADE_CHEAPER]
    changed = dict.fromkeys(mask & ~free | cheap for mask in best)
    return {
        mask: values.of(mask) for mask in changed if mask not in found and mask & local.region not in (0, local.region)
    }


def _climb(values: Values, members: list[int], region: int, mask: int, worth: float) -> Iterable[tuple[int, float]]:
    for _ in range(4):
        moves = [(values.of(mask ^ 1 << i), mask ^ 1 << i) for i in members if mask ^ 1 << i not in (0, region)]
        top = max(moves, key=lambda move: (move[0], -move[1]), default=(0.0, 0))
        if top[0] <= worth + 1e-6:
            break
        worth, mask = top
    return [(mask, worth)]


def _proof_runs(
    problem: Problem,
    tally: Tally,
    validity: Validity,
    local: Local,
    cures: Callable[[int], dict[int, Ask]],
    known: tuple[int, ...],
) -> tuple[dict[int, float], dict[int, Ask]]:
    """Runs that proofs of the likeliest candidates need, with the probability that they will."""
    shares: dict[int, float] = {}
    asks: dict[int, Ask] = {}
    covered: dict[int, set[int]] = {}
    for row in local.best(PROOFS):
        cause = local.causes.mask(row)
        proof = prove(problem, tally, validity, cause, local.region, direct(problem, tally), known)
        if proof is None or proof.refuted:
            continue
        for step in proof.missing:
            shares[step.subset] = shares.get(step.subset, 0.0) + float(local.weight[row])
            asks.setdefault(step.subset, step.ask)
        for mask, ask in cures(cause).items():
            count = tally.of(mask)
            if not count.runs:
                shares.setdefault(mask, 0.0)
                asks.setdefault(mask, ask)
                covered.setdefault(mask, set())
    for mask in covered:  # a correction's run counts for every candidate that it would cure
        contained = local.causes.inside(mask)
        shares[mask] += float(local.weight[~contained].sum())
    return shares, asks
