"""The walk of one remedy against simulated trainings: every remedy is settled, what is called verified was healthy, and
nothing is asked twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.remedy.ranges import RATIO, search_range_of
from bisect_cfg.remedy.remedy import (
    FARTHEST_MARGIN,
    MOST_REPEATS,
    STEPS_BACK,
    Aim,
    Attempt,
    Proposal,
    Ran,
    Remedy,
    Terms,
    Wishes,
    failure_bound,
    follow,
    repeats_for,
)

GOOD, BAD = {"lr": 1e-6, "batch": 64}, {"lr": 1e-2, "batch": 1}
LR = search_range_of("lr", GOOD["lr"], BAD["lr"])
BATCH = search_range_of("batch", GOOD["batch"], BAD["batch"], is_valid=lambda value: value % 8 == 0)
RESET = Proposal({"lr": GOOD["lr"]}, (LR,), resets=("lr",))
SEARCHES = math.ceil(math.log2(len(LR.values) - 1))
"""So many runs a binary search over the learning rate takes at most."""


@dataclass
class World:
    """Trainings that fail beyond a learning rate.

    Attributes:
        threshold: rates above fail.
        rate: how often.
        slow: rates above this fail as well, but only late.
        whole: steps after which the training is at its end.
    """

    threshold: float
    rate: float = 1.0
    slow: float = math.inf
    seed: int = 0
    whole: int = 10**6
    runs: list[Ran] = field(default_factory=list)
    asked: list[Attempt] = field(default_factory=list)

    def fails_at(self, attempt: Attempt) -> int | None:
        rate = attempt.configuration["lr"]
        if rate > self.threshold and random.Random(f"{self.seed} {len(self.asked)}").random() < self.rate:
            return 4
        return 40 if rate > self.slow and attempt.steps >= 40 else None

    def train(self, attempt: Attempt) -> None:
        self.asked.append(attempt)
        failed = self.fails_at(attempt)
        self.runs.append(
            Ran(attempt.configuration, attempt.seed, attempt.steps, failed is None, len(self.runs), failed,
                "collapsed" if failed else "", made=min(attempt.steps, self.whole))
        )  # fmt: skip

    def finish(self, proposal: Proposal = RESET, **changes: object) -> Remedy:
        for _ in range(200):
            remedy, missing = follow(terms(**changes), proposal, self.runs)
            if not missing:
                return remedy
            assert remedy.status not in ("verified", "rejected") and remedy.unsettled
            self.train(missing[0])
        raise AssertionError("it never ends")


def terms(is_valid: Callable[[dict], bool] = lambda configuration: True, rate: float = 1.0, **wishes: float) -> Terms:
    return Terms(BAD, lambda _, steps: steps, 12, 48, Wishes(**wishes), is_valid, rate)


def test_from_reset_to_verified():
    world = World(threshold=3e-4)
    remedy = world.finish()
    (found,) = remedy.ranges.values()
    assert remedy.status == "verified" and len(remedy.passed) == 3
    assert found.healthy_up_to <= 3e-4 <= found.not_from <= 1.01 * RATIO * found.healthy_up_to
    assert found.settled and found.shown == "collapsed"
    assert remedy.bound == pytest.approx(failure_bound(3)) == pytest.approx(1 - 0.05 ** (1 / 3))
    aims = [attempt.aim.value for attempt in world.asked]
    assert aims == sorted(aims, key=["reset", "range", "verify"].index)
    assert (aims.count("reset"), aims.count("verify")) == (1, 3) and aims.count("range") <= SEARCHES
    verified = world.asked[-3:]
    assert [attempt.seed for attempt in verified] == [0, 1, 2] and {attempt.steps for attempt in verified} == {48}
    assert all(attempt.configuration == {**BAD, **remedy.changes} for attempt in verified)
    assert found.healthy_up_to / remedy.changes["lr"] <= FARTHEST_MARGIN * 1.1


@pytest.mark.parametrize(
    ("world", "proposal", "status", "runs"),
    [
        (World(threshold=0.0), RESET, "rejected", 1),  # a reset that is merely alive
        (World(threshold=1e-3), Proposal({"lr": 1e-6}, (), "an alternative", "measured"), "verified", 3),
        (World(threshold=3e-4, slow=0.0), RESET, "rejected", 1 + SEARCHES + STEPS_BACK + 1),  # never for long
    ],
)
def test_what_it_ends_as_and_costs(world, proposal, status, runs):
    remedy = world.finish(proposal)
    assert remedy.status == status and len(world.asked) <= runs
    assert status == "verified" or (remedy.rejected == "collapsed" and remedy.passed == ())


def test_a_failed_verification_steps_back_and_tries_again():
    remedy = World(threshold=3e-4, slow=5e-6).finish()
    assert remedy.status == "verified" and remedy.stepped_back >= 1 and remedy.changes["lr"] <= 5e-6


def test_more_seeds_and_other_margins_reuse_what_was_run():
    world = World(threshold=3e-4)
    world.finish()
    before = len(world.asked)
    world.finish(verify_seeds=5)
    assert len(world.asked) == before + 2
    world.finish(margin=0.1)
    assert {attempt.aim for attempt in world.asked[before + 2 :]} == {"verify"}


def test_all_seeds_of_a_verification_are_asked_at_once_and_one_unhealthy_run_decides():
    fixed = Proposal({"lr": 1e-6})
    remedy, missing = follow(terms(), fixed, [])
    assert [attempt.seed for attempt in missing] == [0, 1, 2] and not remedy.tried
    assert len(follow(terms(verify_seeds=10**6), fixed, [])[1]) == 64
    second = missing[1]
    failed = Ran(second.configuration, second.seed, 48, False, 0, 3, "collapsed")
    remedy, missing = follow(terms(), fixed, [failed])
    assert (remedy.status, missing) == ("rejected", ())


def test_longer_runs_speak_for_shorter_ones_and_not_the_other_way():
    ran = Ran({}, 0, 48, True, 0)
    assert [ran.answers(steps) for steps in (12, 48, 49)] == [True, True, None]
    late = Ran({}, 0, 48, False, 0, failed_at=40)
    assert [late.answers(steps) for steps in (12, 40, 100)] == [True, False, False]
    drifted = Ran({}, 0, 48, False, 0)
    assert [drifted.answers(steps) for steps in (12, 48)] == [None, False]


@given(whole=st.integers(1, 60))
def test_no_more_steps_are_claimed_than_were_made(whole):
    remedy = World(threshold=1.0, whole=whole).finish()
    assert remedy.status == "verified" and remedy.steps == min(whole, 48)


def test_invalid_values_are_never_asked_for():
    world = World(threshold=1.0)
    remedy = world.finish(
        Proposal({"batch": 64}, (BATCH,), resets=("batch",)), is_valid=lambda c: c["batch"] % 8 == 0 or c["batch"] == 1
    )
    assert remedy.status == "verified" and remedy.changes["batch"] % 8 == 0
    assert all(attempt.configuration["batch"] % 8 == 0 for attempt in world.asked)


# ------------------------------------------------------------------------------------------------------- thresholds


@pytest.mark.parametrize(("rate", "repeats"), [(1.0, 1), (0.96, 1), (0.9, 2), (0.5, 5), (0.2, MOST_REPEATS)])
def test_passes_are_repeated_where_the_failure_came_and_went(rate, repeats):
    world = World(threshold=1.0)  # everything trains
    world.finish(rate=rate)
    assert repeats_for(rate) == repeats
    tried = [attempt.configuration["lr"] for attempt in world.asked if attempt.aim is Aim.RANGE]
    assert tried and all(tried.count(value) == repeats for value in tried)


def test_a_threshold_is_found_though_the_failure_is_random():
    right = 0
    for seed in range(200):
        threshold = 10 ** random.Random(seed).uniform(-5.5, -2.5)
        world = World(threshold, rate=0.7, seed=seed)
        (found,) = world.finish(rate=0.7).ranges.values()
        right += found.healthy_up_to <= threshold
        assert found.not_from >= threshold, "a value that failed is none that trains"
        assert sum(attempt.aim is Aim.RANGE for attempt in world.asked) <= SEARCHES * repeats_for(0.7)
    assert right >= 180  # a pass beyond the threshold is believed wrongly in at most 5 % of its tries


@settings(deadline=None)
@given(st.floats(-7, -1), st.sampled_from([1.0, 0.8, 0.3]), st.floats(-7, -1), st.floats(0, 1), st.integers(0, 99))
def test_whatever_the_world_is_like(threshold, rate, slow, margin, seed):
    world = World(threshold=10**threshold, rate=rate, slow=10**slow, seed=seed)
    remedy = world.finish(margin=margin, rate=rate)
    keys = [(attempt.key, attempt.steps) for attempt in world.asked]
    assert len(keys) == len(set(keys)), "asked twice"
    assert all(GOOD["lr"] <= attempt.configuration["lr"] <= BAD["lr"] for attempt in world.asked)
    assert len(keys) <= 1 + SEARCHES * repeats_for(rate) + 3 * 4, "more than a search and four verifications"
    assert remedy.status in ("verified", "rejected")
    if remedy.status == "verified":
        proofs = [ran for ran in world.runs if ran.number in remedy.passed]
        assert len(proofs) == 3 and all(ran.healthy and ran.steps >= 48 for ran in proofs)
        assert all(ran.configuration == {**BAD, **remedy.changes} for ran in proofs)
        assert remedy.changes["lr"] <= 10**slow or remedy.changes["lr"] == GOOD["lr"]
        if rate == 1:
            assert remedy.changes["lr"] <= max(10**threshold, GOOD["lr"])
