"""Healthy, not merely alive: what the bounds let through and what they do not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.common.failures.drift import deviations


def rows(steps=30, **metrics):
    """A run whose metrics are constants, lists, or functions of the step."""
    usual = {
        "loss": 0.0,
        "grad_norm": 1.0,
        "entropy": 2.0,
        "reward": 0.5,
        "reward_std": 0.3,
        "frac_reward_zero_std": 0.1,
    }
    found = []
    for step in range(1, steps + 1):
        row = {"step": step}
        for name, value in {**usual, **metrics}.items():
            row[name] = value(step) if callable(value) else value
        found.append(row)
    return found


GOOD = rows(12)


def names(run, **options):
    return [deviation.metric for deviation in deviations(run, GOOD, **options)]


def test_a_run_like_the_good_one_is_healthy():
    assert names(rows()) == []


@pytest.mark.parametrize(
    "metrics, metric",
    [
        ({"grad_norm": math.inf}, "non-finite"),  # clipping absorbs it, and nothing is learned
        ({"grad_norm": lambda step: math.nan if step == 7 else 1.0}, "grad_norm"),
        ({"reward": lambda step: math.nan if step > 27 else 0.5}, "non-finite"),
        ({"entropy": lambda step: 2.0 * 0.9**step}, "entropy"),
        ({"entropy": lambda step: 0.2 + 0.3 * step}, "entropy"),
        ({"frac_reward_zero_std": lambda step: min(0.95, 0.1 * step)}, "frac_reward_zero_std"),
        ({"grad_norm": lambda step: 0.5**step}, "grad_norm"),
        ({"grad_norm": lambda step: 1.5**step}, "grad_norm"),
        ({"entropy": lambda step: 2.0 if step < 5 else 0.001, "frac_reward_zero_std": 1.0}, "collapse"),
    ],
)
def test_what_is_alive_and_not_healthy(metrics, metric):
    assert metric in names(rows(**metrics))


@pytest.mark.parametrize(
    "metrics",
    [
        {"grad_norm": 1000.0},  # the level is the batch's and the reward scale's, not the health's
        {"grad_norm": lambda step: 50.0 if step == 20 else 1.0},
        {"entropy": lambda step: 2.0 - 0.02 * step},
        {"frac_reward_zero_std": lambda step: 0.1 if step % 2 else 0.9},
        {"frac_reward_zero_std": 0.85},  # two completions a prompt: equal rewards are common from the start
        {"entropy": None, "frac_reward_zero_std": None},  # an older TRL
    ],
)
def test_what_is_no_deviation(metrics):
    run = rows(**metrics)
    run = [{name: value for name, value in row.items() if value is not None} for row in run]
    assert names(run) == []


def test_without_the_share_of_silent_groups_the_spread_of_rewards_speaks():
    def old(run):
        return [{name: value for name, value in row.items() if name != "frac_reward_zero_std"} for row in run]

    fading = old(rows(reward_std=lambda step: 0.3 * 0.8**step))
    assert [d.metric for d in deviations(fading, old(GOOD))] == ["reward_std"]


@pytest.mark.parametrize("steps", [4, 6, 30])
def test_steps_without_a_spread_of_rewards_are_no_lost_gradient(steps):
    """A sparse reward: its groups are equal in every other step, which has no gradient then."""

    def in_every_other(full, silent):
        return lambda step: full if step % 2 else silent

    sparse = {"reward_std": in_every_other(0.005, 0.0), "frac_reward_zero_std": in_every_other(0.5, 1.0)}
    gradient = in_every_other(0.2, 0.0)
    assert names(rows(steps, **sparse, grad_norm=gradient)) == []
    assert names(rows(30, **sparse, grad_norm=lambda step: gradient(step) * 0.5**step)) == ["grad_norm"]


@pytest.mark.parametrize(
    "metric, good, bad, fine",
    [("sampling_logp_difference", 0.015, 0.06, 0.04), ("importance_sampling_ratio", 1.0, 0.17, 0.9)],
)
def test_an_engine_is_held_against_that_of_the_good_run(metric, good, bad, fine):
    def run(value):
        return rows(**{f"sampling/{metric}/mean": value})

    assert [one.metric for one in deviations(run(bad), run(good))] == [f"sampling/{metric}/mean"]
    assert not deviations(run(fine), run(good)) and not deviations(run(bad), run(bad))


def test_a_gradient_scaler_may_look_for_its_scale():
    run = rows(grad_norm=lambda step: math.inf if step <= 4 else 1.0)
    assert names(run, scaler=True) == [] and names(run) == ["grad_norm"]


def test_what_the_good_run_shows_as_well_is_the_scripts():
    constant = rows(reward_std=0.0, frac_reward_zero_std=1.0)
    assert names(constant) != []
    assert [d.metric for d in deviations(constant, constant, usual={"dead-reward"})] == []


@given(st.integers(4, 60), st.floats(0.01, 100), st.floats(0.9, 1.1))
def test_steady_runs_of_any_level_are_healthy(steps, level, wobble):
    run = rows(
        steps, grad_norm=lambda step: level * wobble ** (step % 3), entropy=lambda step: level * wobble ** (step % 2)
    )
    assert names(run) == []


@pytest.mark.parametrize(
    ("metrics", "metric"),
    [
        ({"loss": [2.0, 1.6, 1.2, 1.0], "entropy": [2.0, 1.0, 0.2, 0.1]}, None),  # it learns faster than the good run
        ({"loss": [2.0, 1.8, 2.6, 2.9]}, "loss"),
        ({"grad_norm": [1.0, 1.0, 1.0, 500.0]}, "grad_norm"),
    ],
)
def test_without_rewards_the_loss_speaks(metrics, metric):
    def made(**columns):
        base = {"loss": [2.0, 1.9, 1.8, 1.7], "grad_norm": [1.0], "entropy": [2.0, 1.9, 1.8, 1.7], **columns}
        return [
            {"step": step + 1, **{name: values[min(step, len(values) - 1)] for name, values in base.items()}}
            for step in range(20)
        ]

    found = deviations(made(**metrics), made())
    assert [deviation.metric for deviation in found] == ([metric] if metric else [])
