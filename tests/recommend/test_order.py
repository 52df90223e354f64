"""Which way out is followed, and when it is enough: against simulated trainings."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.recommend.order import MOST_REMEDIES, Budget, look
from bisect_cfg.recommend.plan import Problem, Start
from bisect_cfg.recommend.runs import Question, Ran
from bisect_cfg.recommend.scale import axis_of
from bisect_cfg.recommend.ways import loss, ranked

BAD = {"learning_rate": 1e-2, "model.dtype": "fp16", "optim": "plain", "epsilon": 0.0}
LR = axis_of("learning_rate", 1e-6, 1e-2)
STARTS = [
    Start({"optim": "fused"}, (), "why", "s", ("optim",), 0),
    Start({"epsilon": 1e-6}, (), "why", "s", (), 1),
    Start({"model.dtype": "fp32"}, (), "", "", ("model.dtype",)),
    Start({"learning_rate": 1e-6}, (LR,), "", "", ("learning_rate",)),
]
SECOND = 0.1


def problem() -> Problem:
    return Problem(BAD, lambda configuration, steps: steps, 10, 40)


class World:
    """Runs of a tenth of a second a step; `healthy` says which configurations train."""

    def __init__(self, healthy=lambda configuration: True) -> None:
        self.healthy, self.runs = healthy, []
        self.asked: list[Question] = []

    def train(self, question: Question) -> None:
        self.asked.append(question)
        fine = self.healthy(question.configuration)
        steps = question.steps if fine else 3
        self.runs.append(
            Ran(
                question.key,
                question.steps,
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

    def finish(self, budget: Budget, starts=STARTS, keep=()):
        for _ in range(300):
            ways, questions, _ = look(problem(), starts, self.runs, budget, keep)
            if not questions:
                return ranked(ways, keep)
            self.train(questions[0])
        raise AssertionError("it never ends")

    def changed(self) -> list[str]:
        """The settings that the runs changed, in order, repeats left out."""
        names = [next(n for n in BAD if q.configuration[n] != BAD[n]) for q in self.asked]
        return list(dict.fromkeys(names))


def test_without_a_budget_one_way_is_verified_and_the_rest_is_known():
    world = World()
    ways = world.finish(Budget(0.0, SECOND))
    assert [way.status for way in ways] == ["verified", "open", "open", "open"]
    assert world.changed() == ["optim"] and len(world.asked) == 3
    assert [way.tried for way in ways] == [True, False, False, False]


def test_the_others_follow_in_order_while_the_budget_lasts():
    one = 3 * 40 * SECOND
    world = World()
    ways = world.finish(Budget(2.5 * one, SECOND))
    assert world.changed() == ["optim", "epsilon"] and world.seconds == pytest.approx(2 * one)
    assert [way.status for way in ways][:2] == ["verified", "verified"]


def test_asked_for_they_are_verified_whatever_it_costs():
    world = World()
    ways = world.finish(Budget(0.0, SECOND, remedies=3))
    assert [way.status for way in ways].count("verified") == 3 and world.changed() == [
        "optim",
        "epsilon",
        "learning_rate",
    ]
    assert [way.status for way in World().finish(Budget(0.0, SECOND, remedies=9))] == ["verified"] * 4


def test_no_budget_verifies_more_than_anyone_reads():
    starts = [Start({"epsilon": 1e-6 * 2**k}, (), "why", "s", (), k) for k in range(9)]
    ways = World().finish(Budget(1e9, SECOND), starts)
    assert [way.status for way in ways].count("verified") == MOST_REMEDIES


def test_a_way_that_is_not_healthy_costs_one_run_and_the_next_takes_its_place():
    world = World(lambda configuration: configuration["optim"] == "plain")
    ways = world.finish(Budget(0.0, SECOND))
    assert world.changed() == ["optim", "epsilon"] and len(world.asked) == 1 + 3
    assert [way.status for way in ways] == ["verified", "open", "open", "rejected"]


def test_a_way_that_steps_back_behind_another_has_to_wait():
    # lr trains in short runs up to 1e-3; longer ones need 1e-6. Stepped back, it gives up more than the other way.
    starts = [
        Start({"learning_rate": 1e-6}, (LR,), "", "", ("learning_rate",)),
        Start({"model.dtype": "fp32"}, (), "", "", ("model.dtype",)),
    ]

    class Late(World):
        def train(self, question: Question) -> None:
            self.healthy = lambda c: (
                c["model.dtype"] == "fp32" or c["learning_rate"] <= (1e-3 if question.steps < 40 else 1.1e-6)
            )
            super().train(question)

    world = Late()
    ways = world.finish(Budget(0.0, SECOND), starts)
    assert ways[0].changes == {"model.dtype": "fp32"} and ways[0].status == "verified"
    assert world.changed() == ["learning_rate", "model.dtype"]
    before = [q for q in world.asked if q.part == "verify" and q.configuration["model.dtype"] == "fp16"]
    assert 1 <= len(before) <= 2, "it stepped back to the end before the other had its turn"


def test_two_ways_that_come_to_the_same_are_one():
    starts = [STARTS[2], dataclasses.replace(STARTS[2], why="again", merit=3)]
    ways, _, _ = look(problem(), starts, [], Budget(0.0, SECOND))
    assert len(ways) == 1


def test_with_workers_the_rest_of_the_first_way_runs_at_once_and_no_more_than_the_budget_allows():
    _, questions, _ = look(problem(), STARTS, [], Budget(0.0, SECOND, workers=8))
    assert len(questions) == 3
    _, questions, _ = look(problem(), STARTS, [], Budget(2.5 * 3 * 40 * SECOND, SECOND, workers=8))
    assert len(questions) == 6
    _, rest, _ = look(problem(), STARTS, [], Budget(0.0, SECOND, workers=8), running=questions[:1])
    assert [q.seed for q in rest] == [1, 2]


def test_one_unhealthy_run_decides_a_verification():
    ways, questions, still = look(problem(), STARTS[:1], [], Budget(0.0, SECOND, workers=3))
    assert len(questions) == 3 == len(still)
    unhealthy = Ran(questions[1].key, 40, False, 0, 3, "collapsed", 1.0)
    ways, questions, still = look(problem(), STARTS[:1], [unhealthy], Budget(0.0, SECOND, workers=3))
    assert ways[0].status == "rejected" and questions == [] == still


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
    ways = world.finish(Budget(seconds, SECOND, remedies))
    verified = [way for way in ways if way.status == "verified"]
    possible = sum(fine[name] for name in ("model.dtype", "optim", "epsilon")) + 1
    assert len(verified) >= min(remedies or 1, possible)
    if remedies is None and len(verified) > 1:
        assert world.seconds <= seconds * 1.25 + 1.0
    assert len({(q.key, q.steps) for q in world.asked}) == len(world.asked), "asked twice"
    assert all(way.loss == round(loss(way.start, way.changes), 4) for way in ways)
