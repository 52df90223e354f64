"""The search against every small monotone oracle, and against thousands of random ones with rules."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tools import slow

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.search import Ask, Problem, Record, look, next_question, not_needed
from bisect_cfg.search.problem import minimal_hitting_sets
from tests.search.measure import exact
from tests.search.oracles import Oracle, complaint, draw, holds, recorded, solve


class Remembered:
    """`next_question`, remembered by its arguments: thousands of oracles share most of their decision tree."""

    def __init__(self) -> None:
        self.known: dict[tuple, object] = {}

    def __call__(self, problem: Problem, records: list[Record]) -> object:
        key = tuple((r.subset, r.outcome) for r in records)
        if key not in self.known:
            self.known[key] = next_question(problem, records)
        return self.known[key]


@pytest.mark.training
def test_all_monotone_oracles_over_four_factors() -> None:
    masks = range(1, 16)
    families: set[tuple[int, ...]] = set()
    for chosen in range(1, 1 << 15):
        family = [m for m in masks if chosen >> (m - 1) & 1]
        families.add(tuple(m for m in family if not any(o != m and o & m == o for o in family)))
    assert len(families) == 166  # Dedekind's number 168 without the constant functions
    remembered = Remembered()
    for family in families:
        oracle = Oracle(4, family)
        conclusion, _, _ = solve(oracle, ask=remembered)
        assert conclusion.complete and complaint(oracle, conclusion) is None, (oracle, conclusion)


@pytest.mark.slow
@pytest.mark.training
def test_twenty_thousand_oracles_with_rules() -> None:
    rng = random.Random(1)
    incomplete = 0
    worlds: dict[tuple, Remembered] = {}
    pool = [draw(rng, 4, rules=1) for _ in range(60)]
    for _ in range(20_000):
        world = rng.choice(pool)
        oracle = Oracle(4, draw(rng, 4).causes, world.invalid, world.hidden)
        remembered = worlds.setdefault((world.invalid, world.hidden), Remembered())
        conclusion, _, _ = solve(oracle, ask=remembered)
        assert complaint(oracle, conclusion) is None, (oracle, conclusion)
        incomplete += not conclusion.complete
    assert incomplete < 200


@pytest.mark.training
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((2, 4, 8)))
def test_parallel_runs_change_nothing_in_the_answer(seed: int, jobs: int) -> None:
    oracle = draw(random.Random(seed), 9)
    conclusion, _, _ = solve(oracle, jobs=jobs)
    assert complaint(oracle, conclusion) is None and conclusion.complete


LARGER = ((19, 2, 15.0), (64, 2, 19.0))


@pytest.mark.parametrize(
    ("size", "causes", "limit"),
    [(19, 1, 9.0), slow(19, 3, 20.0), *(pytest.param(*one, marks=pytest.mark.training) for one in LARGER)],
)
def test_trials_stay_few(size: int, causes: int, limit: float) -> None:
    rng = random.Random(3)
    total = 0
    for _ in range(20):
        oracle = Oracle(size, (sum(1 << i for i in rng.sample(range(size), causes)),))
        conclusion, records, _ = solve(oracle)
        assert exact(oracle, conclusion)
        total += len(records)
    assert total / 20 <= limit


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("rate", [0.9, 0.7, 0.5])
def test_random_failures_are_isolated_within_the_confidence(rate: float) -> None:
    rng = random.Random(4)
    right = 0
    for number in range(30):
        oracle = Oracle(12, (sum(1 << i for i in rng.sample(range(12), 2)),), rate=rate, rng=random.Random(number))
        right += exact(oracle, solve(oracle)[0])
    assert right >= 25  # .95 of 30 is 28.5; fewer than 25 would happen once in 300 by chance


def test_companions_are_never_causes() -> None:
    # num_generations (1) is valid only with a larger batch (0): the batch is a companion, not a cause.
    oracle = Oracle(8, (0b10,), invalid=((1, 0, True),))
    conclusion, _, _ = solve(oracle)
    (cause,) = conclusion.causes
    assert cause.parameters == 0b10 and cause.companions == 0b1


def test_what_cannot_be_separated_is_reported_as_such() -> None:
    oracle = Oracle(6, (0b01,), invalid=((0, 1, True), (1, 0, True)))
    conclusion, _, _ = solve(oracle)
    (cause,) = conclusion.causes
    assert cause.parameters == 0b11 and cause.inseparable == 0b11


@pytest.mark.parametrize("oracle", [draw(random.Random(7), 10, rules=2), Oracle(10, (0b101,))])
def test_equal_records_give_equal_questions(oracle: Oracle) -> None:
    _, records, _ = solve(oracle)
    problem = Problem(tuple(f"f{i}" for i in range(10)), lambda mask: holds(oracle.invalid, mask))
    for end in range(len(records)):
        state = look(problem, records[:end])
        assert state.question == look(problem, records[:end]).question
        assert not state.ruled_out & state.suspected and (state.suspected or not state.ruled_out)


def test_hitting_sets() -> None:
    assert minimal_hitting_sets([]) == [0]
    assert set(minimal_hitting_sets([0b11, 0b101])) == {0b1, 0b110}


def one_minimal(oracle: Oracle, mask: int) -> bool:
    smaller = [mask & ~(1 << i) for i in range(oracle.size) if mask >> i & 1]
    return oracle.fails(mask) and not any(oracle.fails(other) for other in smaller)


@pytest.mark.training
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_without_monotony_the_answer_still_fails_and_is_one_minimal(seed: int) -> None:
    rng = random.Random(seed)
    oracle = draw(rng, 8)
    hidden = tuple((1 << rng.randrange(8), rng.choice(oracle.causes)) for _ in range(rng.randint(1, 2)))
    oracle.masked = tuple((m, c) for m, c in hidden if not m & c)
    assume(oracle.fails(0xFF))
    conclusion, _, _ = solve(oracle)
    assert conclusion.causes
    for cause in conclusion.causes:
        assert one_minimal(oracle, cause.parameters), (oracle, conclusion)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(0, 4), st.integers(0, 2**32))
def test_settings_that_can_only_change_together_are_named_together(together: int, others: int, seed: int) -> None:
    """As versions of packages that ask for each other: which of them it is no valid run can tell."""
    size = together + others
    clique, rng = (1 << together) - 1, random.Random(seed)
    names = tuple(f"f{number}" for number in range(size))
    cause = sum(1 << index for index in rng.sample(range(size), rng.randint(1, min(3, size))))
    wanted = cause | clique if cause & clique else cause
    problem = Problem(names, lambda mask: mask & clique in (0, clique), ())
    records: list[Record] = []
    while isinstance(asked := next_question(problem, tuple(records)), Ask):
        assert asked.subset & clique in (0, clique) and len(records) < 60
        outcome = Outcome.FAIL if asked.subset & cause == cause else Outcome.PASS
        records.append(Record(asked.subset, outcome, asked.purpose, len(records), 0.0, asked.companions))
    (found,) = asked.conclusion.causes
    assert asked.conclusion.complete and found.parameters == wanted
    assert found.inseparable == (clique if cause & clique else 0)
    corrections = [mask for mask, _ in asked.conclusion.corrections]
    assert len(corrections) == len(set(corrections)) and all(mask & wanted for mask in corrections)


@pytest.mark.training
def test_what_is_left_lies_within_the_range_that_is_told():
    """Of one or two settings that fail every time nearly always; the range narrows as the search goes on."""
    within: list[bool] = []
    widths: dict[int, list[int]] = {}
    for size, count, seed in itertools.product((4, 8, 19), (1, 2), range(8)):
        told: list[tuple[int, int]] = []

        def ask(problem, records, told=told):
            state = look(problem, records)
            told.append(state.remaining)
            return state.question

        cause = sum(1 << i for i in random.Random(seed).sample(range(size), count))
        _, records, _ = solve(Oracle(size, (cause,)), ask=ask, confirm=None)
        left = range(len(records), 0, -1)
        within += [least <= trials <= most for trials, (least, most) in zip(left, told, strict=False)]
        widths.setdefault(told[0][1], []).append(told[-2][1])
    assert sum(within) > 0.95 * len(within)
    assert all(max(last) < first for first, last in widths.items())


@pytest.mark.parametrize(
    ("runs", "unneeded"),
    [
        ("abcdef:F -:P a:F abcde:?", {3}),  # holds the cause
        ("abcdef:F -:P abc:P ab:?", {3}),  # within what passed
        ("abcdef:F -:P abc:P def:?", set()),  # nobody knows
        ("abcdef:F -:P a:F bcdef:?", set()),  # whether that cures
        ("abcdef:F -:? a:F", set()),  # an end
        ("abcdef:F -:P a:F ab:P abc:?", set()),  # what holds the cause has passed: nothing follows
    ],
)
def test_a_running_trial_is_not_needed_once_its_outcome_follows(runs: str, unneeded: set[int]) -> None:
    problem = Problem(tuple("abcdef"), jobs=2)
    assert not_needed(problem, recorded(runs)) == unneeded
