"""Noisy bisection against simulated thresholds: what the brackets are worth, and what they cost."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.recommend.search_range import DEFAULT_RATIO, SearchRange, search_range_of
from bisect_cfg.recommend.threshold import MOST_TRIALS, Bracket, Seen, Try, bracket, next_value

RUNS = 500
RANGES = [(1e-6, 0.02), (1e-6, 1e-4), (1e-6, 5e-5), (1e-8, 1e-3), (1e-3, 1e-8)]
KNOWN_RUNS = 8
"""A study that reaches this phase has run its bad configuration, or the cause alone, about so often: the reproduction,
the warm start, three confirmations of the cause and a few on the way."""


def search(search_range: SearchRange, threshold: float, rate: float, seed: random.Random, known: int = KNOWN_RUNS):
    """Bisect against a simulated threshold (a share of the way): the bracket and the trials it took."""
    failed = sum(seed.random() < rate for _ in range(known))
    counts = {len(search_range.values) - 1: [known - failed, failed]}
    trials = 0
    while True:
        question = next_value(search_range, [Seen(index, *count) for index, count in counts.items()])
        if isinstance(question, Bracket):
            return question, trials
        fails = search_range.share(search_range.values[question.index]) > threshold and seed.random() < rate
        counts.setdefault(question.index, [0, 0])[fails] += 1
        trials += 1


def holds(search_range: SearchRange, found: Bracket, threshold: float) -> bool:
    return (
        search_range.share(search_range.values[found.low])
        <= threshold
        <= search_range.share(search_range.values[found.high])
    )


@pytest.mark.parametrize("rate", [1.0, 0.8])
@pytest.mark.parametrize("good, bad", RANGES)
def test_the_bracket_holds_the_threshold(good, bad, rate):
    search_range, seed, right, trials = search_range_of("learning_rate", good, bad), random.Random(2906), 0, []
    for _ in range(RUNS):
        threshold = seed.random()
        found, cost = search(search_range, threshold, rate, seed)
        right += holds(search_range, found, threshold)
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
    search_range, seed = search_range_of("learning_rate", good, bad), random.Random(1)
    ideal = math.log2(abs(math.log(bad / good)) / math.log(DEFAULT_RATIO))
    trials = [search(search_range, seed.random(), 1.0, seed, known=40)[1] for _ in range(RUNS)]
    assert max(trials) <= 1.3 * ideal


def test_a_pass_at_the_bracket_is_repeated_once_the_failure_was_random():
    search_range = search_range_of("learning_rate", 1e-6, 1e-3)
    bad = len(search_range.values) - 1
    edge = 5
    passed = [Seen(edge, 1, 0), Seen(edge + 1, 0, 1), Seen(bad // 2, 0, 1)]
    always, sometimes = Seen(bad, 0, 400), Seen(bad, 100, 300)
    assert isinstance(next_value(search_range, [always, *passed]), Bracket)
    question = next_value(search_range, [sometimes, *passed])
    assert isinstance(question, Try) and question.index <= edge


def test_more_passing_seeds_are_more_evidence():
    search_range = search_range_of("learning_rate", 1e-6, 1e-3)
    bad, edge = len(search_range.values) - 1, 8
    lows = [
        bracket(search_range, [Seen(bad, 2, 8), Seen(edge, passes, 0), Seen(edge + 1, 0, 1)]).low
        for passes in (1, 2, 4, 8)
    ]
    assert lows == sorted(lows) and lows[0] < edge == lows[-1]


def test_where_good_and_bad_are_neighbours_nothing_is_asked():
    search_range = search_range_of("temperature", 1.0, 0.9)
    assert next_value(search_range, []) == Bracket(0, 1, pytest.approx(1.0))


@given(
    st.floats(1e-9, 1.0),
    st.floats(2.0, 1e6),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 4), st.integers(0, 4)), max_size=8),
)
def test_any_record_gives_a_question_or_an_answer(good, factor, downwards, counts):
    good, bad = (good * factor, good) if downwards else (good, good * factor)
    search_range = search_range_of("learning_rate", good, bad)
    seen = {index % len(search_range.values): (healthy, unhealthy) for index, healthy, unhealthy in counts}
    records = [Seen(index, *count) for index, count in seen.items()]
    question = next_value(search_range, records)
    assert question == next_value(search_range, records)
    if isinstance(question, Try):
        assert 0 < question.index < len(search_range.values) - 1
    else:
        assert 0 <= question.low < question.high <= len(search_range.values) - 1
        assert 0 <= question.probability <= 1 + 1e-9
