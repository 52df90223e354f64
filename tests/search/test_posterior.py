"""The posterior and the value of a run, against plain enumeration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

import numpy as np
import pytest

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.search import Problem, Record, next_question
from bisect_cfg.search.case import Case
from bisect_cfg.search.choose import Values
from bisect_cfg.search.posterior import FALSE_FAIL, GRID, RANDOM_RATES, Hypotheses, Posterior, prior_of_rates
from bisect_cfg.search.problem import Counts
from tests.search.oracles import Oracle


def case_of(seed: int, size: int, rate: float, runs: int) -> Case:
    """What is known after some random runs of an oracle with one or two causes; the bad configuration failed first."""
    rng = random.Random(seed)
    causes = tuple(sum(1 << i for i in rng.sample(range(size), rng.choice((1, 2)))) for _ in range(rng.choice((1, 2))))
    oracle = Oracle(size, causes, rate=rate, rng=rng)
    problem = Problem(tuple(f"f{i}" for i in range(size)), confirm=None)
    records = [Record(problem.full, Outcome.FAIL), Record(0, Outcome.PASS)]
    masks = [rng.randrange(1, 1 << size) for _ in range(runs)]
    return Case(problem, Counts([*records, *(Record(mask, oracle.run(mask)) for mask in masks)]))


def weight_of(case: Case, causes: tuple[int, ...], rates: np.ndarray) -> float:
    """Prior times likelihood of a whole hypothesis, run by run."""
    everything = case.posterior.everything
    intensity = {everything.mask(row): float(everything.intensity[row]) for row in range(len(everything.sizes))}
    likelihood = np.ones_like(GRID)
    for mask, count in case.counts.by_subset.items():
        if mask and any(cause & mask == cause for cause in causes):
            likelihood *= GRID**count.fails * (1 - GRID) ** count.passes
        elif mask:
            likelihood *= FALSE_FAIL**count.fails
    return prod(intensity[cause] for cause in causes) * float(rates @ likelihood)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_whole_answers_weigh_what_enumeration_says(seed: int, rate: float) -> None:
    case = case_of(seed, 5, rate, 12)
    rates = RANDOM_RATES if case.counts.contradictory else prior_of_rates(case.problem, case.counts)
    hypotheses = case.posterior.whole()
    listed = {hypotheses.causes(number): float(hypotheses.weight[number]) for number in range(len(hypotheses.weight))}
    expected = {(cause,): weight_of(case, (cause,), rates) for cause in range(1, 32)}
    for pair in combinations(range(1, 32), 2):
        if pair[0] & pair[1] not in pair:
            expected[pair] = weight_of(case, pair, rates)
    shared = [causes for causes in listed if causes in expected]
    assert all(causes in expected for causes in listed if len(causes) < 3)
    best = max(expected, key=lambda causes: expected[causes])
    scale = listed[best] / expected[best]  # a KeyError: the best hypothesis is not in the list
    assert [listed[causes] for causes in shared] == pytest.approx([expected[causes] * scale for causes in shared])


@pytest.mark.parametrize("seed", range(6))
def test_a_prefix_is_worth_what_the_subset_is(seed: int) -> None:
    case = case_of(seed, 9, 0.6, 14)
    order = random.Random(seed).sample(range(9), 9)
    prefixes = [sum(1 << i for i in order[: length + 1]) for length in range(9)]
    for hypotheses in (case.posterior.whole(), case.posterior.inside(case.problem.full)):
        assert hypotheses is not None
        values = Values(case, hypotheses)
        assert values.prefixes(order) == pytest.approx(values.of(prefixes))


def test_certainty_is_one_point_of_the_grid() -> None:
    """As long as nothing contradicts it, one pass all but excludes what lies inside; afterwards it is an accident."""
    problem = Problem(tuple("abcd"))
    ends = [Record(0b1111, Outcome.FAIL), Record(0, Outcome.PASS)]

    def chance(records: list[Record]) -> float:
        counts = Counts(records)
        hypotheses = Posterior(problem, counts, counts.contradictory).whole()
        return float(sum(w for n, w in enumerate(hypotheses.weight) if hypotheses.causes(n) == (0b0001,)))

    before = chance(ends)
    after = chance([*ends, Record(0b0011, Outcome.PASS)])
    random_after = chance([*ends, Record(0b1111, Outcome.PASS), Record(0b0011, Outcome.PASS)])
    assert after < 0.1 * before < random_after


@pytest.mark.parametrize("seed", range(8))
def test_the_last_bits_decide_nothing(seed: int, monkeypatch) -> None:
    """Another processor has another exp and log: what they differ by must not choose between equally good runs."""
    cases = [case_of(100 * seed + number, 9, 1.0, runs) for number, runs in enumerate((0, 0, 1, 2, 4))]
    asked = [next_question(case.problem, case.counts.records) for case in cases]
    inside, noise = Posterior.inside, np.random.default_rng(seed)

    def elsewhere(posterior: Posterior, region: int, known: Sequence[int] = ()) -> Hypotheses | None:
        found = inside(posterior, region, known)
        return found and replace(found, weight=found.weight * (1 + 1e-15 * noise.standard_normal(len(found.weight))))

    monkeypatch.setattr(Posterior, "inside", elsewhere)
    assert [next_question(case.problem, case.counts.records) for case in cases] == asked
