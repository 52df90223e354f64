"""The plan against simulated trainings: every remedy is settled, verified is verified, and nothing is asked twice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.recommend.attempts import Attempt, Ran
from bisect_cfg.recommend.remedy import FARTHEST_MARGIN, Proposal, Remedy, Terms, failure_bound, follow
from bisect_cfg.recommend.search_range import search_range_of

GOOD, BAD = {"lr": 1e-6, "batch": 64}, {"lr": 1e-2, "batch": 1}
LR = search_range_of("lr", GOOD["lr"], BAD["lr"])


@dataclass
class World:
    """A training that fails beyond a learning rate, the earlier the higher it is.

    Attributes:
        threshold: rates above fail.
        step: at which they fail.
        rate: how often.
        slow: rates above this fail as well, but only late.
        late: how late.
        whole: steps after which the training is at its end.
    """

    threshold: float
    step: int = 4
    rate: float = 1.0
    slow: float = float("inf")
    late: int = 40
    seed: int = 0
    whole: int = 10**6
    runs: list[Ran] = field(default_factory=list)
    asked: list[Attempt] = field(default_factory=list)

    def train(self, attempt: Attempt) -> None:
        self.asked.append(attempt)
        rate = attempt.configuration["lr"]
        chance = random.Random(f"{self.seed} {len(self.asked)}").random()
        failed_at = None
        if rate > self.threshold and chance < self.rate:
            failed_at = self.step
        elif rate > self.slow and attempt.steps >= self.late:
            failed_at = self.late
        self.runs.append(
            Ran(
                attempt.configuration,
                attempt.seed,
                attempt.steps,
                failed_at is None,
                len(self.runs),
                failed_at,
                "collapsed" if failed_at else "",
                made=min(attempt.steps, self.whole),
            )
        )


def terms(**changes):
    options = {"steps_for": lambda configuration, steps: steps, "horizon": 12, "verify_steps": 48, "known": (0, 12)}
    return Terms(BAD, **{**options, **changes})


def finish(world: World, asked: Terms, proposal: Proposal | None = None) -> Remedy:
    proposal = proposal or Proposal({"lr": GOOD["lr"]}, (LR,), resets=("lr",))
    for _ in range(200):
        remedy, missing = follow(asked, proposal, world.runs)
        if not missing:
            return remedy
        assert remedy.status not in ("verified", "rejected")
        world.train(missing[0])
    raise AssertionError("it never ends")


def test_from_reset_to_verified():
    world = World(threshold=3e-4)
    remedy = finish(world, terms())
    found = remedy.ranges[0]
    assert remedy.status == "verified" and len(remedy.passed) == 3
    assert found.healthy <= 3e-4 <= found.unhealthy and found.unhealthy / found.healthy <= 1.5 and found.settled
    assert remedy.bound == pytest.approx(failure_bound(3)) == pytest.approx(1 - 0.05 ** (1 / 3))
    verified = world.asked[-3:]
    assert [attempt.seed for attempt in verified] == [0, 1, 2] and {q.steps for q in verified} == {48}
    assert all(attempt.configuration == {**BAD, **remedy.changes} for attempt in verified)
    assert found.healthy / remedy.changes["lr"] <= FARTHEST_MARGIN * 1.1


def test_a_failed_verification_steps_back_and_tries_again():
    world = World(threshold=3e-4, slow=5e-6)
    remedy = finish(world, terms())
    assert remedy.status == "verified" and remedy.stepped_back >= 1 and remedy.changes["lr"] <= 5e-6


def test_what_never_trains_for_long_is_never_called_verified():
    world = World(threshold=3e-4, slow=0.0)
    remedy = finish(world, terms())
    assert remedy.status == "rejected" and remedy.rejected == "collapsed" and remedy.passed == ()


def test_a_reset_that_is_merely_alive_is_rejected_at_once():
    world = World(threshold=0.0)
    remedy = finish(world, terms())
    assert remedy.status == "rejected" and len(world.asked) == 1


def test_a_fixed_remedy_is_only_verified():
    world = World(threshold=1e-3)
    remedy = finish(world, terms(), Proposal({"lr": 1e-6}, (), "an alternative", "measured"))
    assert remedy.status == "verified" and len(world.asked) == 3


def test_more_seeds_and_other_margins_reuse_what_was_run():
    world = World(threshold=3e-4)
    finish(world, terms())
    before = len(world.asked)
    finish(world, terms(verify_seeds=5))
    assert len(world.asked) == before + 2
    finish(world, terms(margin=0.1))
    assert {attempt.aim for attempt in world.asked[before + 2 :]} == {"verify"}


def test_longer_runs_speak_for_shorter_ones_and_not_the_other_way():
    ran = Ran({}, 0, 48, True, 0)
    assert ran.answers(12) is True and ran.answers(48) is True and ran.answers(49) is None
    late = Ran({}, 0, 48, False, 0, failed_at=40)
    assert late.answers(12) is True and late.answers(40) is False and late.answers(100) is False
    drifted = Ran({}, 0, 48, False, 0)
    assert drifted.answers(12) is None and drifted.answers(48) is False


@given(whole=st.integers(1, 60))
def test_no_more_steps_are_claimed_than_were_made(whole):
    world = World(threshold=1.0, whole=whole)
    remedy = finish(world, terms())
    assert remedy.status == "verified" and remedy.steps == min(whole, 48)


def test_invalid_values_are_never_asked_for():
    batch = search_range_of("batch", 64, 1, is_valid=lambda value: value % 8 == 0)
    asked = terms(is_valid=lambda configuration: configuration["batch"] % 8 == 0 or configuration["batch"] == 1)
    world = World(threshold=1.0)
    remedy = finish(world, asked, Proposal({"batch": 64}, (batch,), resets=("batch",)))
    assert remedy.status == "verified"
    assert all(attempt.configuration["batch"] % 8 == 0 for attempt in world.asked)


@pytest.mark.training
@settings(deadline=None)
@given(st.floats(-6, -2), st.sampled_from([1.0, 0.8, 0.3]), st.floats(-7, -2), st.floats(0, 1), st.integers(0, 99))
def test_whatever_the_world_is_like(threshold, rate, slow, margin, seed):
    world = World(threshold=10**threshold, rate=rate, slow=10**slow, seed=seed)
    asked = terms(margin=margin)
    remedy = finish(world, asked)
    keys = [(attempt.key, attempt.steps) for attempt in world.asked]
    assert len(keys) == len(set(keys)), "asked twice"
    assert all(GOOD["lr"] <= attempt.configuration["lr"] <= BAD["lr"] for attempt in world.asked)
    assert remedy.status in ("verified", "rejected")
    if remedy.status == "verified":
        key_steps = {(run.key, run.number): run for run in world.runs}
        proofs = [run for (_, number), run in key_steps.items() if number in remedy.passed]
        assert len(proofs) == 3 and all(run.healthy and run.steps >= 48 for run in proofs)
        assert remedy.changes["lr"] <= 10**slow or remedy.changes["lr"] == GOOD["lr"]
