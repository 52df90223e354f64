"""The frontier of a cause as a plan: which runs count for it, which is asked for next, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bisect_cfg.recommend.attempts import Aim, Ran
from bisect_cfg.recommend.joint import Pair, known_points, mapped, next_attempt, pairs
from bisect_cfg.recommend.remedy import Terms
from bisect_cfg.recommend.search_range import SearchRange, search_range_of

GOOD = {"learning_rate": 1e-6, "temperature": 1.0, "optim": "adamw_torch_fused", "beta": 0.0}
BAD = {"learning_rate": 0.03, "temperature": 0.2, "optim": "adamw_torch", "beta": 0.1}
TERMS = Terms(BAD, lambda configuration, steps: steps, horizon=12, verify_steps=48)


def range_for(name: str, changes: Any) -> SearchRange | None:
    return search_range_of(name, GOOD[name], BAD[name])


PAIR = pairs(GOOD, [("learning_rate", "temperature")], [("learning_rate",)], range_for)[0]


def ran(changes: dict, healthy: bool, *, steps: int = 12, failed_at: int | None = None, seed: int = 0) -> Ran:
    return Ran({**BAD, **changes}, seed, steps, healthy, 1, failed_at)


def test_there_is_a_frontier_of_two_numbers_only() -> None:
    assert [each.name for each in PAIR.ranges] == ["temperature", "learning_rate"], "how far the rate may go"
    assert pairs(GOOD, [("learning_rate", "optim")], [("optim",)], range_for) == []
    assert pairs(GOOD, [("learning_rate",)], [("learning_rate",)], range_for) == []
    two = pairs(GOOD, [("learning_rate", "temperature"), ("optim",)], [("learning_rate", "optim")], range_for)
    assert two == [Pair(PAIR.ranges, {"optim": "adamw_torch_fused"})], "the other cause is reset meanwhile"


def test_runs_count_that_differ_from_the_users_configuration_in_the_two_settings_only() -> None:
    runs = [
        ran({"learning_rate": 1e-3}, True),
        ran({"temperature": 0.5}, False, failed_at=7),
        ran({"learning_rate": 1e-3, "beta": 0.0}, True),  # something else
        ran({"learning_rate": 2e-3}, True, steps=4),  # too short to say
        ran({"learning_rate": 4e-3}, False, steps=48, failed_at=30, seed=2),  # healthy for a trial's horizon
        ran({"learning_rate": 5e-3, "model.dtype": "float32"}, True),
    ]
    assert [
        (p.values["learning_rate"], p.values["temperature"], p.healthy) for p in known_points(TERMS, PAIR, runs)
    ] == [
        (1e-3, 0.2, True),
        (0.03, 0.5, False),
        (4e-3, 0.2, True),
    ]


@pytest.mark.training
@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 3.0), st.floats(0.6, 1.1))
def test_the_questions_lead_to_the_frontier_and_end(power: float, reach: float) -> None:
    def healthy(configuration: dict) -> bool:
        shares = [each.share(configuration[each.name]) / reach for each in PAIR.ranges]
        return sum(share**power for share in shares) < 1

    assume(not healthy(BAD))
    runs: list[Ran] = []
    while (attempt := next_attempt(TERMS, PAIR, runs)) is not None:
        assert attempt.aim == Aim.FRONTIER and attempt.steps == 12
        assert {n: v for n, v in attempt.configuration.items() if v != BAD[n]}.keys() <= {
            "learning_rate",
            "temperature",
        }
        runs.append(Ran(attempt.configuration, 0, 12, healthy(attempt.configuration), len(runs)))
    assert len(runs) <= 30
    found = mapped(TERMS, PAIR, runs)
    assert found.undecided == 0
    for temperature, safe, unsafe in zip(PAIR.ranges[0].values, found.safe, found.unsafe, strict=True):
        if safe is not None:
            assert healthy({**BAD, "temperature": temperature, "learning_rate": safe})
        if unsafe is not None and (temperature, unsafe) != (0.2, 0.03):
            assert not healthy({**BAD, "temperature": temperature, "learning_rate": unsafe})
