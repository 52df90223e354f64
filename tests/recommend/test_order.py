"""Which remedy is followed, and when it is enough: against simulated trainings."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.recommend.attempts import Attempt, Ran
from bisect_cfg.recommend.order import MOST_REMEDIES, Budget, left, look
from bisect_cfg.recommend.proposals import loss, ranked
from bisect_cfg.recommend.remedy import Proposal, Terms
from bisect_cfg.recommend.search_range import search_range_of

BAD = {"learning_rate": 1e-2, "model.dtype": "fp16", "optim": "plain", "epsilon": 0.0}
LR = search_range_of("learning_rate", 1e-6, 1e-2)
CANDIDATES = [
    Proposal({"optim": "fused"}, (), "why", "s", ("optim",), 0),
    Proposal({"epsilon": 1e-6}, (), "why", "s", (), 1),
    Proposal({"model.dtype": "fp32"}, (), "", "", ("model.dtype",)),
    Proposal({"learning_rate": 1e-6}, (LR,), "", "", ("learning_rate",)),
]
SECOND = 0.1


def terms() -> Terms:
    return Terms(BAD, lambda configuration, steps: steps, 10, 40)


class World:
    """Runs of a tenth of a second a step; `healthy` says which configurations train."""

    def __init__(self, healthy=lambda configuration: True) -> None:
        self.healthy, self.runs = healthy, []
        self.asked: list[Attempt] = []

    def train(self, attempt: Attempt) -> None:
        self.asked.append(attempt)
        fine = self.healthy(attempt.configuration)
        steps = attempt.steps if fine else 3
        self.runs.append(
            Ran(
                attempt.configuration,
                attempt.seed,
                attempt.steps,
                fine,
                len(self.runs),
                None if fine else 3,
                "" if fine else "collapsed",
                SECOND * steps,
            )
        )

    @property
    def seconds(self) -> float:
        return sum(ran.seconds for ran in self.runs)

    def finish(self, budget: Budget, proposals=CANDIDATES, keep=()):
        for _ in range(300):
            remedies, attempts, _ = look(terms(), proposals, self.runs, budget, keep)
            if not attempts:
                return ranked(remedies, keep)
            self.train(attempts[0])
        raise AssertionError("it never ends")

    def changed(self) -> list[str]:
        """The settings that the runs changed, in order, repeats left out."""
        names = [next(n for n in BAD if q.configuration[n] != BAD[n]) for q in self.asked]
        return list(dict.fromkeys(names))


def test_without_a_budget_one_remedy_is_verified_and_the_rest_is_known():
    world = World()
    remedies = world.finish(Budget(0.0, SECOND))
    assert [remedy.status for remedy in remedies] == ["verified", "open", "open", "open"]
    assert world.changed() == ["optim"] and len(world.asked) == 3
    assert [remedy.tried for remedy in remedies] == [True, False, False, False]


@pytest.mark.parametrize("good_up_to", [1e-6, 1e-4, pytest.param(1e-2, marks=pytest.mark.training)])
def test_what_is_left_is_foreseen_as_long_as_verifications_are_healthy(good_up_to):
    class Foreseen(World):
        def train(self, attempt: Attempt) -> None:
            self.told = [*getattr(self, "told", ()), left(terms(), CANDIDATES[3:], self.runs, Budget(0.0, SECOND))]
            super().train(attempt)

    world = Foreseen(lambda configuration: configuration["learning_rate"] <= good_up_to)
    world.finish(Budget(0.0, SECOND), CANDIDATES[3:])
    assert len(world.asked) > 3
    for made, told in enumerate(world.told):
        assert told.runs[0] <= len(world.asked) - made <= told.runs[1]
        assert 0 < told.seconds[0] <= told.seconds[1]
    assert left(terms(), CANDIDATES[3:], world.runs, Budget(0.0, SECOND)).runs == (0, 0)


def test_the_others_follow_in_order_while_the_budget_lasts():
    one = 3 * 40 * SECOND
    world = World()
    remedies = world.finish(Budget(2.5 * one, SECOND))
    assert world.changed() == ["optim", "epsilon"] and world.seconds == pytest.approx(2 * one)
    assert [remedy.status for remedy in remedies][:2] == ["verified", "verified"]


def test_asked_for_they_are_verified_whatever_it_costs():
    world = World()
    remedies = world.finish(Budget(0.0, SECOND, remedies=3))
    assert [remedy.status for remedy in remedies].count("verified") == 3 and world.changed() == [
        "optim",
        "epsilon",
        "learning_rate",
    ]
    assert [remedy.status for remedy in World().finish(Budget(0.0, SECOND, remedies=9))] == ["verified"] * 4


def test_no_budget_verifies_more_than_anyone_reads():
    proposals = [Proposal({"epsilon": 1e-6 * 2**k}, (), "why", "s", (), k) for k in range(9)]
    remedies = World().finish(Budget(1e9, SECOND), proposals)
    assert [remedy.status for remedy in remedies].count("verified") == MOST_REMEDIES


def test_a_remedy_that_is_not_healthy_costs_one_run_and_the_next_takes_its_place():
    world = World(lambda configuration: configuration["optim"] == "plain")
    remedies = world.finish(Budget(0.0, SECOND))
    assert world.changed() == ["optim", "epsilon"] and len(world.asked) == 1 + 3
    assert [remedy.status for remedy in remedies] == ["verified", "open", "open", "rejected"]


def test_a_remedy_that_steps_back_behind_another_has_to_wait():
    # lr trains in short runs up to 1e-3; longer ones need 1e-6. Stepped back, it gives up more than the other one.
    proposals = [
        Proposal({"learning_rate": 1e-6}, (LR,), "", "", ("learning_rate",)),
        Proposal({"model.dtype": "fp32"}, (), "", "", ("model.dtype",)),
    ]

    class Late(World):
        def train(self, attempt: Attempt) -> None:
            self.healthy = lambda c: (
                c["model.dtype"] == "fp32" or c["learning_rate"] <= (1e-3 if attempt.steps < 40 else 1.1e-6)
            )
            super().train(attempt)

    world = Late()
    remedies = world.finish(Budget(0.0, SECOND), proposals)
    assert remedies[0].changes == {"model.dtype": "fp32"} and remedies[0].status == "verified"
    assert world.changed() == ["learning_rate", "model.dtype"]
    before = [q for q in world.asked if q.aim == "verify" and q.configuration["model.dtype"] == "fp16"]
    assert 1 <= len(before) <= 2, "it stepped back to the end before the other had its turn"


def test_two_remedies_that_come_to_the_same_are_one():
    proposals = [CANDIDATES[2], dataclasses.replace(CANDIDATES[2], why="again", merit=3)]
    remedies, _, _ = look(terms(), proposals, [], Budget(0.0, SECOND))
    assert len(remedies) == 1


def test_with_workers_the_rest_of_the_first_remedy_runs_at_once_and_no_more_than_the_budget_allows():
    _, attempts, _ = look(terms(), CANDIDATES, [], Budget(0.0, SECOND, workers=8))
    assert len(attempts) == 3
    _, attempts, _ = look(terms(), CANDIDATES, [], Budget(2.5 * 3 * 40 * SECOND, SECOND, workers=8))
    assert len(attempts) == 6
    _, rest, _ = look(terms(), CANDIDATES, [], Budget(0.0, SECOND, workers=8), running=attempts[:1])
    assert [q.seed for q in rest] == [1, 2]


def test_one_unhealthy_run_decides_a_verification():
    remedies, attempts, still = look(terms(), CANDIDATES[:1], [], Budget(0.0, SECOND, workers=3))
    assert len(attempts) == 3 == len(still)
    unhealthy = Ran(attempts[1].configuration, attempts[1].seed, 40, False, 0, 3, "collapsed", 1.0)
    remedies, attempts, still = look(terms(), CANDIDATES[:1], [unhealthy], Budget(0.0, SECOND, workers=3))
    assert remedies[0].status == "rejected" and attempts == [] == still


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.floats(0, 100), st.sampled_from([None, 1, 2, 4]))
def test_whatever_the_world_is_like(seed, seconds, remedies):
    chance = random.Random(seed)
    fine = {name: chance.random() < 0.6 for name in BAD}
    limit = 10 ** chance.uniform(-6, -2)

    def healthy(configuration) -> bool:
        name = next(n for n in BAD if configuration[n] != BAD[n])
        return configuration["learning_rate"] <= limit if name == "learning_rate" else fine[name]

    world = World(healthy)
    found = world.finish(Budget(seconds, SECOND, remedies))
    verified = [remedy for remedy in found if remedy.status == "verified"]
    possible = sum(fine[name] for name in ("model.dtype", "optim", "epsilon")) + 1
    assert len(verified) >= min(remedies or 1, possible)
    if remedies is None and len(verified) > 1:
        assert world.seconds <= seconds * 1.25 + 1.0
    assert len({(q.key, q.steps) for q in world.asked}) == len(world.asked), "asked twice"
    assert all(remedy.loss == round(loss(remedy.proposal, remedy.changes), 4) for remedy in found)
