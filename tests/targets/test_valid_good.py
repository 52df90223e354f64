"""The good configuration where the library refuses its own defaults: it keeps as little of the user's as it must."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest
from bisect_cfg.targets.captured import Capture, Source
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.factors import Factors

NAMES = ("learning_rate", "bf16", "beta", "num_generations", "temperature", "warmup_steps", "weight_decay", "top_p")
DEFAULTS = dict.fromkeys(NAMES, 0)
USERS = dict.fromkeys(NAMES, 1)


def settings(refuses: Callable[[dict[str, int]], str | None], **options: object) -> Factors:
    """The factors of a config whose defaults are all 0 and the user's values all 1."""

    def resolve(request: BuildRequest) -> BuildAnswer:
        changes = {name: DEFAULTS[name] if value == {"$default": True} else value
                   for name, value in request.overrides.items()}  # fmt: skip
        values = {**request.raw, **changes}
        error = refuses(values)
        return BuildAnswer(values if error is None else None, error)

    types = dict.fromkeys(NAMES, "int")
    args = Source("args", 0, "GRPOConfig", "trl.trainer.grpo_config", USERS, DEFAULTS, types, USERS)
    return Comparison(Capture(args, {}, (("args", 0),), (), {}), resolve, **options).factors()


def varied(found: Factors) -> set[str]:
    return {factor.name for factor in found.varied}


@given(st.sets(st.sampled_from(NAMES), min_size=1, max_size=2))
def test_it_keeps_no_more_than_it_needs(needed: set[str]) -> None:
    """One or two of the user's values are needed; all others vary, and the good level of those is the default."""
    found = settings(lambda values: None if all(values[name] for name in needed) else "ValueError: not here.")
    assert varied(found) == set(NAMES) - needed
    assert set(found.pinned) == needed and all("not valid" in reason for reason in found.pinned.values())
    assert all(f"{name}=1" in found.note for name in needed) and "not here" in found.note
    assert set(found.good.values()) == {0}


def test_of_several_ways_the_one_that_the_library_names() -> None:
    def refuses(values: dict[str, int]) -> str | None:
        return None if values["top_p"] or values["bf16"] else "ValueError: no bf16 here"

    assert "bf16" in settings(refuses).pinned and "top_p" in varied(settings(refuses))


def test_what_the_user_moved_is_not_kept() -> None:
    def refuses(values: dict[str, int]) -> str | None:
        return None if values["bf16"] == 1 else "ValueError: no bf16 here"

    with pytest.raises(InputError, match="no bf16 here"):
        settings(refuses, good={"args.bf16": 0})


def test_more_than_two_are_left_to_the_user() -> None:
    with pytest.raises(InputError, match="--good"):
        settings(lambda values: None if all(values.values()) else "ValueError: all or nothing")
