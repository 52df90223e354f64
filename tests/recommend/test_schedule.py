"""How long a trial must be to have met the full learning rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bisect_cfg.recommend.schedule import LONGEST_WARMUP, left_out, prefix_for, warmup_of


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


def test_a_trial_goes_on_for_a_horizon_at_the_full_rate():
    found = prefix_for({"warmup_steps": 30}, None, 12, 12)
    assert (found.steps, found.skipped) == (42, False) and "through the warmup of 30 steps" in str(found)
    assert prefix_for({"warmup_steps": 2}, None, 48, 12).steps == 48
    assert prefix_for({}, None, 12, 12).steps == 12
    assert "no further than the warmup of 30 steps" in str(replace(found, steps=8))


def test_a_warmup_too_long_to_wait_for_is_left_out_and_said_so():
    long = LONGEST_WARMUP * 12 + 1
    found = prefix_for({"warmup_steps": long}, None, 12, 12)
    assert (found.steps, found.skipped) == (12, True)
    assert f"without the warmup of {long} steps" in str(found)
    assert left_out({"warmup_steps": long, "warmup_ratio": None}) == {"warmup_steps": 0}
    assert left_out({"warmup_ratio": 0.1, "warmup_steps": 0}) == {"warmup_ratio": 0}


def test_a_share_of_an_unknown_whole_is_left_out():
    assert prefix_for({"warmup_ratio": 0.1}, None, 12, 12).skipped
