"""The odds before any trial: steered by what is risky, overridable, flat on request."""

from __future__ import annotations

import pytest

from bisect_cfg.search.prior import BY_FAILURE, HARMLESS, RISK, odds_of, risk_of

NAMES = ("bf16", "learning_rate", "per_device_train_batch_size", "logging_steps", "num_processes", "unheard_of")


def test_overridable_and_flat() -> None:
    assert odds_of(NAMES, "flat", "signal") == ()
    assert odds_of(NAMES, {"bf16": 3}) == (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert odds_of(NAMES, "risk") == (10.0, 25.0, 3.0, 0.05, 5.0, 1.0)
    with pytest.raises(ValueError, match="positive"):
        odds_of(NAMES, {"bf16": 0})
    with pytest.raises(ValueError, match="flat"):
        odds_of(NAMES, "risky")


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


def test_every_entry_has_a_reason_and_no_group_is_named_twice() -> None:
    assert all(odds > 0 and reason for odds, reason in [*RISK.values(), *HARMLESS.values()])
    for groups in BY_FAILURE.values():
        names = [name for group, _ in groups for name in group]
        assert len(names) == len(set(names)) and all(factor > 0 for _, factor in groups)


def test_the_kinds_are_those_of_signatures() -> None:
    from bisect_cfg.diagnosis.signature import Signature

    documented = Signature.__doc__ or ""
    assert all(f"`{kind}`" in documented for kind in BY_FAILURE)
