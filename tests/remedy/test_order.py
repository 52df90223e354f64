"""Which remedy is followed, and when it is enough: against simulated trainings."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.common.configuration import Configuration
from bisect_cfg.remedy.order import left, look
from bisect_cfg.remedy.proposals import loss, ranked
from bisect_cfg.remedy.ranges import search_range_of
from bisect_cfg.remedy.remedy import Attempt, Proposal, Ran, Remedy, Terms, Wishes

BAD = {"learning_rate": 1e-2, "model.dtype": "fp16", "optim": "plain", "epsilon": 0.0}
OPTIM = Proposal({"optim": "fused"}, (), "why", "s", ("optim",), 0)
EPSILON = Proposal({"epsilon": 1e-6}, (), "why", "s", (), 1)
DTYPE = Proposal({"model.dtype": "fp32"}, resets=("model.dtype",))
RATE = Proposal({"learning_rate": 1e-6}, (search_range_of("learning_rate", 1e-6, 1e-2),), resets=("learning_rate",))
ALL = [OPTIM, EPSILON, DTYPE, RATE]
SECOND = 0.1


def case(proposals: Sequence[Proposal] = ALL, **wishes: int) -> Terms:
    return Terms(BAD, lambda _, steps: steps, 10, 40, Wishes(**wishes), proposals=proposals, pace=SECOND)


class World:
    """Runs of a tenth of a second a step; `healthy` says which configurations train for so many steps."""

    def __init__(self, healthy: Callable[[Configuration, int], bool] = lambda configuration, steps: True) -> None:
        self.healthy, self.runs, self.asked = healthy, [], []

    def train(self, one: Attempt) -> None:
        self.asked.append(one)
        fine = self.healthy(one.configuration, one.steps)
        failed_at, text = (None, "") if fine else (3, "collapsed")
        seconds = SECOND * (one.steps if fine else 3)
        number = len(self.runs)
        self.runs.append(Ran(one.configuration, one.seed, one.steps, fine, number, failed_at, text, seconds))

    def finish(self, terms: Terms) -> list[Remedy]:
        for _ in range(300):
            found = look(terms, self.runs)
            if not found.wanted:
                return ranked(found.remedies)
            self.train(found.wanted[0])
        raise AssertionError("it never ends")

    def changed(self) -> list[str]:
        """The settings that the runs changed, in order, repeats left out."""
        return list(dict.fromkeys(changed(one.configuration) for one in self.asked))


def changed(configuration: Configuration) -> str:
    return next(name for name in BAD if configuration[name] != BAD[name])


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (1, ["optim"]),
        (3, ["optim", "epsilon", "learning_rate"]),
        (9, ["optim", "epsilon", "learning_rate", "model.dtype"]),
    ],
)
def test_as_many_remedies_are_verified_as_are_wanted(wanted, names):
    world = World()
    remedies = world.finish(case(remedies=wanted))
    assert [remedy.status for remedy in remedies] == ["verified"] * len(names) + ["open"] * (4 - len(names))
    assert world.changed() == names
    assert [remedy.tried for remedy in remedies] == [remedy.status == "verified" for remedy in remedies]


def test_a_remedy_that_is_not_healthy_costs_one_run_and_the_next_takes_its_place():
    world = World(lambda configuration, steps: configuration["optim"] == "plain")
    remedies = world.finish(case())
    assert world.changed() == ["optim", "epsilon"] and len(world.asked) == 1 + 3
    assert [remedy.status for remedy in remedies] == ["verified", "open", "open", "rejected"]


def test_a_remedy_that_steps_back_behind_another_has_to_wait():
    # The rate trains in short runs up to 1e-3; longer ones need 1e-6. Stepped back, it gives up more than the dtype.
    world = World(
        lambda configuration, steps: (
            configuration["model.dtype"] == "fp32" or configuration["learning_rate"] <= (1e-3 if steps < 40 else 1.1e-6)
        )
    )
    remedies = world.finish(case(proposals=[RATE, DTYPE]))
    assert (remedies[0].changes, remedies[0].status) == ({"model.dtype": "fp32"}, "verified")
    before = [q for q in world.asked if q.aim == "verify" and changed(q.configuration) == "learning_rate"]
    assert 1 <= len(before) <= 2, "it stepped back to the end before the other had its turn"


def test_a_remedy_that_trains_is_verified_before_others_are_looked_at():
    """However little of the way it can go."""
    world = World(lambda configuration, steps: configuration["learning_rate"] <= 1.6e-6)
    remedies = world.finish(case(proposals=[RATE, DTYPE]))
    assert remedies[0].status == "verified" and world.changed() == ["learning_rate"]
    assert loss(remedies[0].proposal, remedies[0].changes) > loss(DTYPE, DTYPE.changes)


def test_two_remedies_that_come_to_the_same_are_one():
    found = look(case(proposals=[DTYPE, dataclasses.replace(DTYPE, why="again", merit=3)]), [])
    assert len(found.remedies) == 1


def test_the_runs_of_as_many_remedies_as_are_wanted_may_run_at_once():
    several = case(jobs=8)
    wanted = look(several, []).wanted
    assert len(wanted) == 3
    assert len(look(case(remedies=2, jobs=8), []).wanted) == 6
    assert [one.seed for one in look(several, [], wanted[:1]).wanted] == [1, 2]
    # One unhealthy run decides a verification: what else of it is running is not open any more.
    unhealthy = Ran(wanted[1].configuration, wanted[1].seed, 40, False, 0, 3, "collapsed", 1.0)
    found = look(case(proposals=[OPTIM], jobs=8), [unhealthy], [wanted[0], wanted[2]])
    assert found.remedies[0].status == "rejected" and found.wanted == [] == found.open


@pytest.mark.parametrize("good_up_to", [1e-6, 1e-4, pytest.param(1e-2, marks=pytest.mark.training)])
def test_what_is_left_is_foreseen_as_long_as_verifications_are_healthy(good_up_to):
    terms, told = case(proposals=[RATE]), []

    class Foreseen(World):
        def train(self, one: Attempt) -> None:
            told.append(left(terms, self.runs))
            super().train(one)

    world = Foreseen(lambda configuration, steps: configuration["learning_rate"] <= good_up_to)
    world.finish(terms)
    assert len(world.asked) > 3
    for made, one in enumerate(told):
        assert one.runs[0] <= len(world.asked) - made <= one.runs[1]
        assert 0 < one.seconds[0] <= one.seconds[1]
    assert left(terms, world.runs).runs == (0, 0)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]))
def test_whatever_the_world_is_like(seed, remedies):
    chance = random.Random(seed)
    fine = {name: chance.random() < 0.6 for name in BAD}
    limit = 10 ** chance.uniform(-6, -2)

    def healthy(configuration: Configuration, steps: int) -> bool:
        name = changed(configuration)
        return configuration["learning_rate"] <= limit if name == "learning_rate" else fine[name]

    world = World(healthy)
    found = world.finish(case(remedies=remedies))
    verified = [remedy for remedy in found if remedy.status == "verified"]
    assert all(healthy({**BAD, **remedy.changes}, 40) for remedy in verified)
    possible = sum(fine[name] for name in ("model.dtype", "optim", "epsilon")) + 1
    assert len(verified) == min(remedies, possible)
    assert len({(one.key, one.steps) for one in world.asked}) == len(world.asked), "asked twice"
    assert all(remedy.loss == round(loss(remedy.proposal, remedy.changes), 4) for remedy in found)
