"""What a launcher was asked for: the settings of a launch, and whether the training has them."""

from __future__ import annotations

from bisect_cfg.capture.launched import Asked, asked_of, variables_of

ASKED = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_FSDP": "true"}


def test_what_is_not_as_in_the_plain_launch():
    found = asked_of(ASKED, {"distributed_type": "FSDP", "mixed_precision": "bf16"})
    assert found == [Asked("launch.mixed_precision", "bf16"), Asked("launch.distributed_type", "FSDP")]
    assert asked_of({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_FSDP": "false", "RANK": "0"}, {}) == []


def test_what_was_asked_for_and_is_not_in_force():
    """accelerate 1.15 trains with DDP where FSDP is asked for on a CPU."""
    found = asked_of(ASKED, {"distributed_type": "MULTI_CPU", "mixed_precision": "no"})
    assert [one.reason for one in found] == [
        "it was asked for and is not in force: the training has no",
        "it was asked for and is not in force: the training has MULTI_CPU",
    ]


def test_a_level_is_environment_variables():
    assert variables_of("launch.mixed_precision", "no") == {"ACCELERATE_MIXED_PRECISION": "no"}
    assert variables_of("launch.distributed_type", "NO") == {
        "ACCELERATE_USE_FSDP": None,
        "ACCELERATE_USE_DEEPSPEED": None,
    }
