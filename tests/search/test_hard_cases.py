"""Rules that only runs reveal, rules with a choice, masks, many factors, one cause, trials at once, confidence."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tools import slow

from bisect_cfg import Bisection, Outcome
from bisect_cfg.store.encoding import OTHER
from tests.search.measure import exact, flaky_of, oracle_of
from tests.search.oracles import Oracle, complaint, draw, missed, solve


@pytest.mark.training
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(5, 10))
def test_rules_hide_no_cause(seed: int, size: int) -> None:
    oracle = oracle_of(seed, size)
    conclusion, _, _ = solve(oracle)
    assert complaint(oracle, conclusion) is None and not missed(oracle, conclusion), (oracle, conclusion)
    if not oracle.hidden:
        assert conclusion.complete


@settings(max_examples=30, deadline=None)
@example(1799911)  # the companion nearest at hand holds another cause
@given(st.integers(0, 2**32))
def test_rules_with_a_choice(seed: int) -> None:
    rng = random.Random(seed)
    oracle = draw(rng, 7, rules=1)
    oracle.hidden = ()
    x, y, z = rng.sample(range(7), 3)
    oracle.either = ((x, 1 << y | 1 << z),)
    conclusion, _, _ = solve(oracle)
    assert complaint(oracle, conclusion) is None and not missed(oracle, conclusion), (oracle, conclusion)


@pytest.mark.training
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((1, 4)))
def test_the_first_cause_is_proven_and_costs_less(seed: int, jobs: int) -> None:
    oracle = draw(random.Random(seed), 8)
    conclusion, records, _ = solve(oracle, jobs=jobs, first=True)
    (cause,) = conclusion.causes
    assert cause.parameters in oracle.causes
    assert cause.fails.seen >= 1 and all(claim.seen >= 1 for claim in cause.without.values() if claim.subset)
    assert len(records) <= len(solve(oracle, jobs=jobs)[1])


@pytest.mark.training
def test_a_companion_is_in_no_cause_and_is_needed() -> None:
    seen = 0
    for seed in range(60):
        oracle = oracle_of(2 * seed + 1, 7)  # odd: every rule is known before the launch
        for cause in solve(oracle)[0].causes:
            assert not cause.parameters & cause.companions
            witness = cause.fails.subset
            for index in range(oracle.size):
                if cause.companions >> index & 1:
                    seen += 1
                    assert not oracle.valid(witness & ~(1 << index))
    assert seen > 5


def test_a_rule_is_learned_from_runs() -> None:
    # Bad x (a scheduler) ends in another failure unless y (its keyword arguments) is bad as well.
    for seed in range(6):
        x, y, a, b = random.Random(seed).sample(range(12), 4)
        oracle = Oracle(12, (1 << a | 1 << b,), hidden=((x, y, True),))
        conclusion, records, _ = solve(oracle)
        assert {c.parameters for c in conclusion.causes} == set(oracle.causes)
        asked = [r.subset for r in records if r.outcome is Outcome.UNRESOLVED]
        assert len(asked) == len(set(asked)), "what ended in another failure was run again"


@pytest.mark.training
@pytest.mark.parametrize("seed", [*range(4), *map(slow, range(4, 24))])
def test_a_cause_that_fails_otherwise_without_some_company(seed: int) -> None:
    """A policy that gives NaN with two more settings, and without them collapses: no rule of two settings says that."""
    rng = random.Random(seed)
    *cause, first, second = rng.sample(range(16), 3 + seed % 2)
    needs = 1 << first | (seed // 2 % 2) << second
    oracle = Oracle(16, (sum(1 << i for i in cause),), needs=needs)
    conclusion, records, _ = solve(oracle, confirm=3)
    (found,) = conclusion.causes
    assert found.parameters == oracle.causes[0] and found.companions == needs and conclusion.complete
    assert len(records) <= 80  # one at a time would take 17 to find the settings, and 20 to prove them


@pytest.mark.slow
@pytest.mark.training
def test_learned_rules_cost_no_more_than_asking_one_at_a_time() -> None:
    # Six or eight factors with up to four rules, some of which only runs reveal, is where halving gains least.
    trials = []
    for seed in range(80):
        rng = random.Random(seed)
        trials.append(len(solve(draw(rng, rng.choice((6, 8)), rules=2))[1]))
    assert sum(trials) <= 1371  # what one at a time took of these oracles, with the same proofs
    assert max(trials) <= 45  # 113 while rules were only held against what had been run


@pytest.mark.training
@pytest.mark.parametrize("size", [201, slow(250)])
def test_more_than_two_hundred_factors(size: int) -> None:
    for count in (1, 2):
        oracle = Oracle(size, (sum(1 << i for i in random.Random(size + count).sample(range(size), count)),))
        conclusion, records, _ = solve(oracle)
        assert exact(oracle, conclusion) and len(records) <= 30


def test_three_of_four_hundred_factors() -> None:
    oracle = Oracle(400, (sum(1 << i for i in random.Random(403).sample(range(400), 3)),))
    conclusion, records, _ = solve(oracle, limit=60)
    assert exact(oracle, conclusion) and len(records) <= 60


@pytest.mark.parametrize("others", [1, 2])
def test_what_hides_a_cause_is_named_or_completeness_is_not_claimed_falsely(others: int) -> None:
    # a fails alone and m hides it; the others fail in any case. Without them the bad configuration passes.
    named = 0
    for seed in range(15):
        a, m, *rest = (1 << i for i in random.Random(seed).sample(range(9), 2 + others))
        oracle = Oracle(9, (a, sum(rest)), masked=((m, a),))
        conclusion, _, _ = solve(oracle)
        found = {cause.parameters for cause in conclusion.causes}
        assert conclusion.status == "isolated" and found <= {a, sum(rest)} and (others > 1 or sum(rest) in found)
        assert conclusion.safe is None or not oracle.fails(conclusion.safe)
        if a in found:  # if it was never seen to fail, nothing can be seen to hide it
            assert conclusion.masking == ((m, a),)
            named += 1
    assert named >= 2


def test_trials_that_run_at_once_ask_different_questions() -> None:
    names = [f"x{i}" for i in range(16)]
    good, bad = dict.fromkeys(names, 0), dict.fromkeys(names, 1)
    bisection = Bisection(good, bad, lambda c: c != bad, isolation="none", confirm=1, max_trials=2)
    bisection.run()  # both ends
    asked = []
    for _ in range(4):  # through the sampler, as Optuna's own loop would
        trial = bisection.study.ask()
        chosen = {name: trial.suggest_categorical(name, (0, 1, OTHER)) for name in names}
        asked.append(frozenset(name for name in names if chosen[name] == 1))
    assert len(set(asked)) == 4 and frozenset() not in asked and frozenset(names) not in asked


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("rate", [0.9, 0.7, 0.5])
def test_more_confidence_is_no_less_right_and_costs_more(rate: float) -> None:
    right, trials = [], []
    for confidence in (0.8, 0.99):
        results = []
        for seed in range(16):
            oracle = flaky_of(seed, 8, 1 + seed % 3, rate)
            conclusion, records, _ = solve(oracle, limit=1000, confidence=confidence)
            results.append((exact(oracle, conclusion), len(records)))
        right.append(sum(r for r, _ in results))
        trials.append(sum(count for _, count in results))
    assert trials[0] < trials[1] and right[0] <= right[1] + 1
    assert right[1] >= 13
