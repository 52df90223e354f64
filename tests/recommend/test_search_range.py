"""Natural scales: equal steps, within the ratio, valid, never outside good and bad."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.recommend.search_range import LINEAR_CELLS, search_range_of


def test_rates_are_measured_in_logarithms():
    search_range = search_range_of("learning_rate", 1e-6, 1e-4)
    assert search_range.kind == "log"
    assert search_range.share(1e-5) == pytest.approx(0.5)
    assert search_range.back(1e-4, 0.5) == pytest.approx(1e-5)
    assert search_range.back(1e-4, 0.5, farthest=3) == pytest.approx(3.3e-5)


def test_betas_are_measured_by_what_is_missing_to_one():
    search_range = search_range_of("adam_beta2", 0.999, 0.9)
    assert search_range.kind == "complement"
    assert search_range.share(0.99) == pytest.approx(0.5)
    assert search_range.back(0.9, 0.5) == pytest.approx(0.99)
    assert list(search_range.values) == sorted(search_range.values, reverse=True)


def test_counts_are_whole_numbers():
    assert search_range_of("num_generations", 8, 2).values == (8, 7, 6, 5, 4, 3, 2)
    long = search_range_of("max_completion_length", 256, 8192)
    assert all(isinstance(value, int) for value in long.values) and len(long.values) < 14
    assert isinstance(long.back(8192, 0.5), int)


def test_a_field_of_floats_is_no_count():
    assert search_range_of("temperature", 1, 4, whole=False).kind == "log"
    assert any(value != int(value) for value in search_range_of("temperature", 1, 4, whole=False).values)


def test_only_valid_values_are_tried():
    search_range = search_range_of("per_device_train_batch_size", 8, 512, is_valid=lambda value: value % 8 == 0)
    assert len(search_range.values) > 5 and all(value % 8 == 0 for value in search_range.values)
    assert search_range_of("num_generations", 8, 2, is_valid=lambda value: False).values == (8, 2)


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("bf16", False, True),
        ("optim", "adamw_torch", "sgd"),
        ("max_grad_norm", 1.0, 0.0),
        ("max_grad_norm", 1.0, 0),
        ("top_k", 0, 50),
        ("warmup_steps", 0.1, 20),
        ("learning_rate", 1e-6, float("nan")),
        ("delta", None, 4.0),
        ("learning_rate", 1e-6, 1e-6),
    ],
)
def test_what_is_no_range(name, good, bad):
    assert search_range_of(name, good, bad) is None


def test_touching_zero_the_range_is_divided_evenly():
    search_range = search_range_of("weight_decay", 0.0, 0.4)
    assert search_range.kind == "linear" and len(search_range.values) == LINEAR_CELLS + 1
    assert search_range.back(0.4, 0.5) == pytest.approx(0.2)
    assert search_range_of("warmup_steps", 0, 80).values[0] == 0


@given(st.floats(1e-12, 1e6), st.floats(1.001, 1e9), st.booleans(), st.sampled_from([1.2, 1.5, 2.0]), st.floats(0, 1))
def test_neighbours_are_within_the_ratio_and_nothing_lies_outside(good, factor, downwards, ratio, share):
    good, bad = (good * factor, good) if downwards else (good, good * factor)
    search_range = search_range_of("learning_rate", good, bad, ratio=ratio)
    values = search_range.values
    assert values[0] == good and values[-1] == bad
    assert list(values) == sorted(values, reverse=downwards) and len(set(values)) == len(values)
    for before, after in pairwise(values):
        assert max(before, after) / min(before, after) <= ratio * (1 + 1e-6)
    cells = abs(math.log(bad / good)) / math.log(ratio) if search_range.kind == "log" else (factor - 1) / (ratio - 1)
    assert len(values) - 1 <= math.ceil(cells) + 1
    for value in values:
        assert min(good, value) <= search_range.back(value, share) <= max(good, value)
