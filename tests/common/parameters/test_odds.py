"""The odds before any trial: steered by what is risky, overridable, flat on request."""

from __future__ import annotations

import pytest

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.parameters import names_it, odds_of, risk_of, table

NAMES = (
    "bf16",
    "learning_rate",
    "per_device_train_batch_size",
    "logging_steps",
    "num_processes",
    "unheard_of",
)


def test_overridable_and_flat() -> None:
    assert odds_of(NAMES, "flat", "signal") == ()
    assert odds_of(NAMES, {"bf16": 3}) == (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert odds_of(NAMES, "risk") == (10.0, 25.0, 3.0, 0.05, 5.0, 1.0)


@pytest.mark.parametrize(
    "failure, first",
    [
        ("", "learning_rate"),
        ("signal", "bf16"),
        ("non-finite", "learning_rate"),
        ("collapse", "learning_rate"),
        ("out-of-memory", "per_device_train_batch_size"),
        ("hang", "num_processes"),
        ("exception", "learning_rate"),
    ],
)
def test_how_it_fails_says_whom_to_suspect_first(failure: str, first: str) -> None:
    assert max(NAMES, key=lambda name: risk_of(name, failure)) == first


def test_dotted_names_are_known_by_their_last_part() -> None:
    assert risk_of("model.dtype") == risk_of("dtype") and risk_of("launch.num_processes") == 5.0
    assert risk_of("packages.torch") == 3.0 and risk_of("packages") == 1.0


def test_a_renamed_setting_is_as_risky_as_it_was() -> None:
    for kind in ("", "out-of-memory"):
        assert risk_of("activation_checkpointing", kind) == risk_of("gradient_checkpointing", kind) != 1.0


def test_the_kinds_are_those_of_signatures() -> None:
    documented = Signature.__doc__ or ""
    assert all(f"`{kind}`" in documented for kind in table().failures)


@pytest.mark.parametrize(
    ("text", "name", "named"),
    [
        ("Number of reward weights (2) must match", "reward_weights", True),
        ("got args.learning_rate=nan", "learning_rate", True),
        ("import async_lru", "lr", False),
        ("bf16 is not supported", "bf16", True),
        ("alphabeta", "beta", False),
        ("kwargs[0] of num_generations", "peft.num_generations", True),
    ],
)
def test_a_message_names_a_setting_in_words_or_as_an_identifier(text: str, name: str, named: bool) -> None:
    assert names_it(text, name) is named


def test_a_named_setting_is_likelier() -> None:
    plain = odds_of(("reward_weights", "beta"), "risk")
    told = odds_of(("reward_weights", "beta"), "risk", said="Number of reward weights (2)")
    assert told[0] > 10 * plain[0] and told[1] == plain[1]
