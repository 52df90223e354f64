"""Noisy bisection against simulated thresholds: what the brackets are worth, and what they cost."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.recommend.scale import DEFAULT_RATIO, Axis, axis_of
from bisect_cfg.recommend.threshold import MOST_TRIALS, Bracket, Seen, Try, bracket, next_value

RUNS = 500
RANGES = [(1e-6, 0.02), (1e-6, 1e-4), (1e-6, 5e-5), (1e-8, 1e-3), (1e-3, 1e-8)]
KNOWN_RUNS = 8
"""A study that reaches this phase has run its bad configuration, or the cause alone, about so often: the reproduction,
the warm start, three confirmations of the cause and a few on the way."""


def search(axis: Axis, threshold: float, rate: float, seed: random.Random, known: int = KNOWN_RUNS):
    """Bisect against a simulated threshold (a share of the way): the bracket and the trials it took."""
    failed = sum(seed.random() < rate for _ in range(known))
    counts = {len(axis.values) - 1: [known - failed, failed]}
    trials = 0
    while True:
        question = next_value(axis, [Seen(index, *count) for index, count in counts.items()])
        if isinstance(question, Bracket):
            return question, trials
        fails = axis.share(axis.values[question.index]) > threshold and seed.random() < rate
        counts.setdefault(question.index, [0, 0])[fails] += 1
        trials += 1


def holds(axis: Axis, found: Bracket, threshold: float) -> bool:
    return axis.share(axis.values[found.low]) <= threshold <= axis.share(axis.values[found.high])


@pytest.mark.parametrize("rate", [1.0, 0.8])
@pytest.mark.parametrize("good, bad", RANGES)
def test_the_bracket_holds_the_threshold(good, bad, rate):
    axis, seed, right, trials = axis_of("learning_rate", good, bad), random.Random(2906), 0, []
    for _ in range(RUNS):
        threshold = seed.random()
        found, cost = search(axis, threshold, rate, seed)
        right += holds(axis, found, threshold)
        trials.append(cost)
        assert found.high - found.low == 1 or cost >= MOST_TRIALS
    assert right >= 0.95 * RUNS
    if rate == 1:
        assert right == RUNS
        ideal = math.log2(abs(math.log(bad / good)) / math.log(DEFAULT_RATIO))
        assert sum(trials) / RUNS <= 1.3 * ideal
        assert max(trials) <= math.ceil(ideal) + 1


@pytest.mark.parametrize("good, bad", RANGES[:1] + RANGES[3:])
def test_a_failure_that_always_showed_costs_a_binary_search(good, bad):
    axis, seed = axis_of("learning_rate", good, bad), random.Random(1)
    ideal = math.log2(abs(math.log(bad / good)) / math.log(DEFAULT_RATIO))
    trials = [search(axis, seed.random(), 1.0, seed, known=40)[1] for _ in range(RUNS)]
    assert max(trials) <= 1.3 * ideal


def test_a_pass_at_the_bracket_is_repeated_once_the_failure_was_random():
    axis = axis_of("learning_rate", 1e-6, 1e-3)
    bad = len(axis.values) - 1
    edge = 5
    passed = [Seen(edge, 1, 0), Seen(edge + 1, 0, 1), Seen(bad // 2, 0, 1)]
    always, sometimes = Seen(bad, 0, 400), Seen(bad, 100, 300)
    assert isinstance(next_value(axis, [always, *passed]), Bracket)
    question = next_value(axis, [sometimes, *passed])
    assert isinstance(question, Try) and question.index <= edge


def test_more_passing_seeds_are_more_evidence():
    axis = axis_of("learning_rate", 1e-6, 1e-3)
    bad, edge = len(axis.values) - 1, 8
    beliefs = []
    for passes in (1, 2, 4, 8):
        seen = [Seen(bad, 2, 8), Seen(edge, passes, 0), Seen(edge + 1, 0, 1)]
        found = bracket(axis, seen, confidence=0.5)
        beliefs.append(found.probability if (found.low, found.high) == (edge, edge + 1) else 0.0)
    assert beliefs == sorted(beliefs) and beliefs[-1] > 0.95


def test_where_good_and_bad_are_neighbours_nothing_is_asked():
    axis = axis_of("temperature", 1.0, 0.9)
    assert next_value(axis, []) == Bracket(0, 1, pytest.approx(1.0), pytest.approx(0.6))


@given(
    st.floats(1e-9, 1.0),
    st.floats(2.0, 1e6),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 4), st.integers(0, 4)), max_size=8),
)
def test_any_record_gives_a_question_or_an_answer(good, factor, downwards, counts):
    good, bad = (good * factor, good) if downwards else (good, good * factor)
    axis = axis_of("learning_rate", good, bad)
    seen = {index % len(axis.values): (healthy, unhealthy) for index, healthy, unhealthy in counts}
    records = [Seen(index, *count) for index, count in seen.items()]
    question = next_value(axis, records)
    assert question == next_value(axis, records)
    if isinstance(question, Try):
        assert 0 < question.index < len(axis.values) - 1
    else:
        assert 0 <= question.low < question.high <= len(axis.values) - 1
        assert 0 <= question.probability <= 1 + 1e-9
