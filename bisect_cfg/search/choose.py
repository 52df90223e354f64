"""Which subset tells most.

A run is worth the information it gives about the answer plus the share of the final proof it may be: a run that a
proof needs anyway, and that is likely to come out as the proof needs it, is one run less later. Both are counted in
runs and divided by the expected price of the run, because failing runs end early.

Informative subsets are searched along orders of the factors: in any order, the longer prefix contains more causes, so
one pass over the hypotheses gives the value of every prefix. The best are improved by moving single factors in or out.
Runs that proofs need come from the likeliest hypotheses.

Running trials are outcomes not known yet: the value of a run is averaged over what they may say; once failures are
random, they are taken to end as is likeliest (`Search`), since every hypothesis leaves both ends open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from math import exp

import numpy as np

from bisect_cfg.common.configuration import Purpose
from bisect_cfg.search.case import Case
from bisect_cfg.search.posterior import FALSE_FAIL, LEAST, TINY, Hypotheses
from bisect_cfg.search.problem import DIGITS, Ask, Problem, bits, holds, mask_of
from bisect_cfg.search.proof import prove

Cures = Callable[[Sequence[int]], dict[int, Ask]]

PROOFS = 12
"""How many of the likeliest hypotheses have their proofs looked at for runs that do double duty."""

PROOF_SHARE = 0.9
"""What a run that a proof needs is worth beside a bit of information, of which one run gives at most one.
Measured: at 1 or more, runs that prove are asked too early when there are several causes; below, the last few cost
more."""

PROOF_SHARE_IF_RANDOM = 0.3
"""The same where a run may be repeated. Only the likeliest hypothesis's proof counts there: one run proves little, and
what others need is asked too early otherwise (8 % more runs)."""

FEW, KEPT = 8, 16
"""Up to so many suspects all their subsets are valued, instead of those along some orders, and so many are kept: the
best may be one that was run, or cannot be valid."""

KEPT_OF_AN_ORDER = 2
"""The same of each order: the prefixes beside the best one are nearly as good, and tell much the same."""

ORDERS = ((8000, 6), (400, 12), (0, 24))
"""With more than so many hypotheses, so many orders of the factors are looked at. Measured on 20 instances: 24 among
400 to 2,500 hypotheses save nothing with three settings of 19."""

STARTS, MOVES, CLIMBED = 3, 4, 1500
"""How many of the best prefixes are improved, by how many factors each, and up to how many hypotheses that is worth its
time: with more the suspects are so many that one of them more or less says little."""

PRIME = 7919
"""Multiplies the number of the decision in a seed, so that different numbers of factors never share one."""

GAIN, ROUNDING = 1e-6, 1e-9
"""What a moved factor must add to go on, and the difference below which two values are the same."""

MAX_PATTERNS = 32
"""Outcome patterns of running trials told apart; rarer ones are merged."""

WORTH_ASKING = 0.02
"""With trials running, a run worth less than this (in runs) waits for their outcomes instead."""

NOTHING = 1e-3
"""A run worth less than this tells the rest not apart: no valid configuration can."""

UNSUSPECTED = 0.02
"""A setting that takes part in the cause with less than this probability may be set to whatever is cheaper."""

MADE_CHEAPER = 12
"""How many of the best questions are looked at with the other settings at their cheaper levels."""


def entropy(probability: np.ndarray | float) -> np.ndarray:
    """Binary entropy in bits."""
    p = np.clip(probability, TINY, 1 - TINY)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


class Values:
    """The value of subsets given the hypotheses and what is running, to `DIGITS`.

    The `known` causes are no part of the hypotheses; with `repeat`, a run that was made may be made again.
    """

    def __init__(self, case: Case, hypotheses: Hypotheses, known: Sequence[int] = (), repeat: bool = False) -> None:
        self._proof_share = PROOF_SHARE_IF_RANDOM if repeat else PROOF_SHARE
        self.hypotheses, self.prices = hypotheses, case.prices
        self._posterior, self._known = case.posterior, known
        weight, rate = hypotheses.weight, hypotheses.rate
        self._pattern, self._count = _patterns(hypotheses, () if repeat else case.counts.running)
        self._weights = (weight, weight * rate, weight * entropy(rate))
        self._columns = np.zeros((len(weight), 3 * self._count))
        for number, column in enumerate(self._weights):
            self._columns[np.arange(len(weight)), number * self._count + self._pattern] = column
        self._totals = np.maximum(np.bincount(self._pattern, weight, self._count), LEAST)[:, None]

    def elsewhere(self, mask: int) -> float:
        """The probability that a subset fails for a cause that is no hypothesis's; in the region any will do."""
        return 1 - exp(-self._posterior.hidden(self._known, mask)) if mask & ~self.hypotheses.region else 0.0

    def prefixes(self, order: list[int]) -> np.ndarray:
        """The value of each prefix of an order of the region's factors."""
        rank = np.zeros(self.hypotheses.parts.size + 1, np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = -1
        last = self.hypotheses.place(rank) + self._pattern * len(order)
        shape = (self._count, len(order))
        sums = [np.cumsum(np.bincount(last, w, shape[0] * shape[1]).reshape(shape), 1) for w in self._weights]
        return self._worth(sums, FALSE_FAIL, np.exp(np.cumsum(self.prices.factors[order])))

    def of(self, masks: Sequence[int], proof: Sequence[float] | float = 0.0) -> np.ndarray:
        """The value of subsets, `proof` being the probability-weighted share of proofs that each belongs to."""
        failing = self.hypotheses.failing(masks)
        hidden = np.array([max(FALSE_FAIL, self.elsewhere(mask)) for mask in masks])
        sums = np.split(np.einsum("ij,ik->kj", failing, self._columns), 3)
        return self._worth(sums, hidden, np.array([self.prices.of_mask(mask) for mask in masks]), np.array(proof))

    def _worth(
        self, sums: Sequence[np.ndarray], hidden: np.ndarray | float, price: np.ndarray, proof: np.ndarray | float = 0.0
    ) -> np.ndarray:
        inside, fails, doubt = sums
        outside = self._totals - inside
        failing = fails + outside * hidden
        told = (self._totals * entropy(failing / self._totals) - doubt - outside * entropy(hidden)).sum(0)
        fail = failing.sum(0)
        worth = (told + self._proof_share * proof) / (price * (fail * self.prices.fail + (1 - fail)))
        return np.round(worth, DIGITS)


def _patterns(hypotheses: Hypotheses, running: Iterable[int]) -> tuple[np.ndarray, int]:
    """Number the hypotheses by what they predict for the running trials."""
    code = np.zeros(len(hypotheses.weight), np.int64)
    count = 1
    for mask in running:
        values, code = np.unique(code * 2 + hypotheses.failing([mask])[:, 0], return_inverse=True)
        count = len(values)
        if count > MAX_PATTERNS:
            mass = np.bincount(code, hypotheses.weight, count)
            rank = np.argsort(np.argsort(-np.round(mass, DIGITS), kind="stable"), kind="stable")
            code, count = np.minimum(rank[code], MAX_PATTERNS - 1), MAX_PATTERNS
    return code, count


def choose(case: Case, hypotheses: Hypotheses, cures: Cures, known: tuple[int, ...], repeat: bool) -> Ask | None:
    """The most valuable run that can be valid; None if only running trials can tell more, or nothing can.

    Args:
        case: the problem, and what was seen.
        hypotheses: what a run shall tell apart.
        cures: causes -> the runs that would show their corrections to pass.
        known: causes that are no part of the hypotheses; a run that holds one fails for that.
        repeat: whether a run that was made may be made again.
    """
    problem, counts, validity = case.problem, case.counts, case.validity
    values = Values(case, hypotheses, known, repeat)
    needed = _needed(case, values, known, cures, repeat)
    region = hypotheses.region

    def askable(mask: int) -> bool:
        count = counts.of(mask)
        if mask in (0, problem.full) or count.running or (count.runs and not repeat):
            return False
        return not holds(mask, known)

    asks = {mask: ask for mask, (_, ask) in needed.items()}
    scored = _informative(values, len(counts.records))
    again = [*needed, *(mask for mask in counts.by_subset if repeat and mask not in needed)]
    if again:
        shares = [needed[mask][0] if mask in needed else 0.0 for mask in again]
        scored.update(zip(again, values.of(again, shares).tolist(), strict=True))
    best, ask = WORTH_ASKING if counts.running else NOTHING, None
    for mask, value in sorted(scored.items(), key=lambda item: (-item[1], item[0])):
        if value <= best:
            break
        if not askable(mask):
            continue
        if validity.ok(mask):
            # Not the best of these products: a run that may end in another failure also teaches what may be run.
            best = value * validity.chance(mask)
            ask = asks.get(mask) or _question(problem, region, mask, 0)
            continue
        repairs = {m: extra for m, extra in validity.repairs(mask, region) if m != region and askable(m)}
        for changed, worth in zip(repairs, values.of([*repairs]).tolist() if repairs else (), strict=True):
            if worth * validity.chance(changed) > best + ROUNDING:
                best = worth * validity.chance(changed)
                ask = asks.get(changed) or _question(problem, region, changed, repairs[changed])
    return ask


def _question(problem: Problem, region: int, mask: int, companions: int) -> Ask:
    if mask & region == mask:
        text = f"Is a cause among these {mask.bit_count()} of {region.bit_count()} suspects?"
    else:
        text = f"Is there a cause without {problem.show(problem.full & ~mask)}?"
    return Ask(mask, companions, Purpose.SEARCH, text)


def _informative(values: Values, seed: int) -> dict[int, float]:
    """Subsets of the region with the most information, found along orders of its factors."""
    hypotheses, region = values.hypotheses, values.hypotheses.region
    members, found = list(bits(region)), {}
    if len(members) <= FEW:
        subsets = [mask_of(members[i] for i in bits(number)) for number in range(1, (1 << len(members)) - 1)]
        worth = values.of(subsets) if subsets else np.zeros(0)
        found = {subsets[n]: float(worth[n]) for n in np.argsort(-worth, kind="stable")[:KEPT].tolist()}
        return found | _cheaper(values, found)
    marginal = hypotheses.marginal
    rng = random.Random(seed * PRIME + len(members))
    count = len(hypotheses.weight)
    for number in range(next(orders for least, orders in ORDERS if count > least)):
        if number == 0:
            order = sorted(members, key=lambda i: -marginal[i])
        elif number == 1:
            order = sorted(members, key=lambda i: marginal[i])
        elif number % 2:
            order = rng.sample(members, len(members))
        else:
            order = sorted(members, key=lambda i: -marginal[i] * rng.random())
        worth = values.prefixes(order)
        for length in np.argsort(-worth, kind="stable")[:KEPT_OF_AN_ORDER].tolist():
            mask = mask_of(order[: length + 1])
            if mask != region:
                found[mask] = float(worth[length])
    found |= _cheaper(values, found)
    if count <= CLIMBED:
        for mask in sorted(found, key=lambda m: (-found[m], m))[:STARTS]:
            found.update([_climb(values, members, mask, found[mask])])
    return found


def _cheaper(values: Values, found: dict[int, float]) -> dict[int, float]:
    """The same questions about the suspects, with every setting that is none at its cheaper level."""
    region, marginal = values.hypotheses.region, values.hypotheses.marginal
    free = mask_of(i for i in bits(values.prices.telling) if marginal[i] <= UNSUSPECTED)
    best = sorted(found, key=lambda m: (-found[m], m))[:MADE_CHEAPER]
    changed = dict.fromkeys(mask & ~free | values.prices.cheap & free for mask in best) if free else {}
    masks = [mask for mask in changed if mask not in found and mask & region not in (0, region)]
    return dict(zip(masks, values.of(masks).tolist(), strict=True)) if masks else {}


def _climb(values: Values, members: list[int], mask: int, worth: float) -> tuple[int, float]:
    for _ in range(MOVES):
        moves = [mask ^ 1 << i for i in members if mask ^ 1 << i not in (0, values.hypotheses.region)]
        top = max(zip(values.of(moves).tolist(), moves, strict=True), key=lambda move: (move[0], -move[1]))
        if top[0] <= worth + GAIN:
            break
        worth, mask = top
    return mask, worth


def _needed(
    case: Case, values: Values, known: tuple[int, ...], cures: Cures, repeat: bool
) -> dict[int, tuple[float, Ask]]:
    """Runs that proofs of the likeliest hypotheses need, and how likely they will."""
    hypotheses = values.hypotheses
    shares: dict[int, float] = {}
    asks: dict[int, Ask] = {}
    cured: set[int] = set()
    for number in hypotheses.best(1 if repeat else PROOFS):
        causes = (*known, *hypotheses.causes(number))
        proofs = [
            prove(case, cause, hypotheses.region, known=tuple(other for other in causes if other != cause))
            for cause in causes[len(known) :]
        ]
        if any(proof is None or proof.refuted for proof in proofs):
            continue
        for ask in (ask for proof in proofs if proof is not None for ask in proof.missing):
            shares[ask.subset] = shares.get(ask.subset, 0.0) + float(hypotheses.weight[number])
            asks.setdefault(ask.subset, ask)
        for mask, ask in cures(causes).items():
            if not case.counts.of(mask).runs:
                asks.setdefault(mask, ask)
                if repeat:
                    shares[mask] = float(hypotheses.weight[number])
                else:
                    cured.add(mask)
    for mask in cured:  # a correction's run counts for every hypothesis that it would cure
        shares[mask] = shares.get(mask, 0.0) + float(hypotheses.weight[~hypotheses.failing([mask])[:, 0]].sum())
    return {mask: (share * (1 - values.elsewhere(mask)), asks[mask]) for mask, share in shares.items()}
