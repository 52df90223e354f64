"""Natural scales: equal steps, within the ratio, valid, never outside good and bad; and how long a trial must be."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bisect_cfg.remedy.ranges import LINEAR_STEPS, RATIO, ROUNDING, search_range_of
from bisect_cfg.remedy.schedule import LONGEST_WARMUP, left_out, prefix_for, reached_full_rate, warmup_of


@pytest.mark.parametrize(
    ("name", "good", "bad", "kind", "half_way_back"),
    [
        ("learning_rate", 1e-6, 1e-4, "log", 1e-5),
        ("adam_beta2", 0.999, 0.9, "complement", 0.99),
        ("weight_decay", 0.0, 0.4, "linear", 0.2),
        ("temperature", 1.0, 1.5, "linear", 1.2),
        ("max_completion_length", 256, 8192, "log", 1448),
        ("warmup_steps", 0, 80, "linear", 40),
    ],
)
def test_numbers_are_measured_on_their_natural_scale(name, good, bad, kind, half_way_back):
    found = search_range_of(name, good, bad)
    assert (found.kind, found.values[0], found.values[-1]) == (kind, good, bad)
    assert found.back(bad, 0.5) == pytest.approx(half_way_back)
    assert type(found.back(bad, 0.5)) is type(good)


def test_a_margin_can_be_limited_to_a_factor():
    assert search_range_of("learning_rate", 1e-6, 1e-4).back(1e-4, 0.5, farthest=3) == pytest.approx(3.3e-5)


def test_counts_are_whole_numbers():
    assert search_range_of("num_generations", 8, 2).values == (8, 7, 6, 5, 4, 3, 2)
    long = search_range_of("max_completion_length", 256, 8192)
    assert all(isinstance(value, int) for value in long.values) and len(long.values) < 14
    real = search_range_of("temperature", 1, 4, whole=False)  # a field of floats is no count
    assert real.kind == "log" and any(value != int(value) for value in real.values)


def test_only_valid_values_are_tried():
    found = search_range_of("per_device_train_batch_size", 8, 512, is_valid=lambda value: value % 8 == 0)
    assert len(found.values) > 5 and all(value % 8 == 0 for value in found.values)
    assert search_range_of("num_generations", 8, 2, is_valid=lambda value: False).values == (8, 2)
    assert len(search_range_of("weight_decay", 0.0, 0.4).values) == LINEAR_STEPS + 1


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("bf16", False, True),
        ("optim", "adamw_torch", "sgd"),
        ("max_grad_norm", 1.0, 0.0),
        ("top_k", 0, 50),
        ("warmup_steps", 0.1, 20),
        ("learning_rate", 1e-6, math.nan),
        ("delta", None, 4.0),
        ("learning_rate", 1e-6, 1e-6),
    ],
)
def test_what_is_no_range(name, good, bad):
    assert search_range_of(name, good, bad) is None


@example(909474.0, 1.96875, False, 0.0)  # on a linear scale, where two digits are too few
@given(st.floats(1e-12, 1e6), st.floats(1.001, 1e9), st.booleans(), st.floats(0, 1))
def test_neighbours_are_within_the_ratio_and_nothing_lies_outside(good, factor, downwards, share):
    good, bad = (good * factor, good) if downwards else (good, good * factor)
    found = search_range_of("learning_rate", good, bad)
    values = found.values
    assert (values[0], values[-1]) == (good, bad)
    assert list(values) == sorted(values, reverse=downwards) and len(set(values)) == len(values)
    assert all(max(pair) / min(pair) <= RATIO * ROUNDING * 1.001 for pair in pairwise(values))
    steps = abs(math.log(bad / good)) / math.log(RATIO) if found.kind == "log" else (factor - 1) / (RATIO - 1)
    assert len(values) - 1 <= math.ceil(steps + 1e-6)
    for value in values:
        assert min(good, value) <= found.back(value, share) <= max(good, value)


# --------------------------------------------------------------------------------------------------------- schedule


@pytest.mark.parametrize(
    "values, total, warmup",
    [
        ({"warmup_steps": 80}, None, 80),
        ({"warmup_steps": 0.1}, 500, 50),  # transformers 5: below 1 it is a share
        ({"warmup_ratio": 0.03, "warmup_steps": 0}, 1000, 30),
        ({"warmup_ratio": 0.1}, None, None),
        ({"warmup_ratio": 0.1, "max_steps": 200}, None, 20),
        ({"warmup_steps": 80, "lr_scheduler_type": "constant"}, 100, 0),
        ({"warmup_steps": None, "warmup_ratio": None}, 100, 0),
        ({}, None, 0),
    ],
)
def test_warmup(values, total, warmup):
    assert warmup_of(values, total) == warmup


LONG = LONGEST_WARMUP * 12 + 1


@pytest.mark.parametrize(
    "warmup, steps, before, made, skipped, said",
    [
        ({}, 12, 0, 12, False, "at the full learning rate from the first step"),
        ({"warmup_steps": 2}, 48, 0, 48, False, "through the warmup of 2 steps and 46 beyond"),
        ({"warmup_steps": 30}, 12, 0, 42, False, "through the warmup of 30 steps and 12 beyond"),
        ({"warmup_steps": 30}, 12, 25, 17, False, "through the warmup of 5 steps and 12 beyond"),
        ({"warmup_steps": 30}, 12, 40, 12, False, "at the full learning rate from the first step"),
        ({"warmup_steps": LONG}, 12, 0, 12, True, f"without the warmup of {LONG} steps"),
        ({"warmup_ratio": 0.1}, 12, 0, 12, True, "at the full learning rate"),  # of an unknown number of steps
    ],
)
def test_a_trial_goes_on_for_a_horizon_at_the_full_rate(warmup, steps, before, made, skipped, said):
    found = prefix_for(warmup, None, steps, 12, before)
    assert (found.steps, found.skipped) == (made, skipped) and said in str(found)


def test_what_is_left_out_and_a_training_that_ends_in_its_warmup():
    assert left_out({"warmup_steps": 80, "warmup_ratio": None}) == {"warmup_steps": 0}
    assert left_out({"warmup_ratio": 0.1, "warmup_steps": 0}) == {"warmup_ratio": 0}
    found = prefix_for({"warmup_steps": 30}, None, 12, 12)
    assert "no further than the warmup of 30 steps" in str(replace(found, steps=8))


def test_the_full_rate() -> None:
    def warming(steps: int) -> list[dict[str, float]]:
        return [{"step": step, "learning_rate": 1e-5 * min(1, (step - 1) / 80)} for step in range(1, steps + 1)]

    assert reached_full_rate(warming(10), 1e-5) is False and reached_full_rate(warming(90), 1e-5) is True
    assert reached_full_rate([{"step": 1, "loss": 0.0}], 1e-5) is None
