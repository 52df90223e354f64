"""How risky a setting is, before any trial: prior odds of taking part in a cause.

The odds steer which question comes first and so how many trials an answer takes. They never decide an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def odds_of(names: Sequence[str], prior: str | Mapping[str, float]) -> tuple[float, ...]:
    """The odds of each name: all 1 for "flat", from the table for "risk", else from the mapping.

    Raises:
        ValueError: an unknown prior, or odds that are not positive.
    """
    if prior in ("risk", "flat"):
        return (1.0,) * len(names)
    if isinstance(prior, str):
        raise ValueError(f"prior must be 'risk', 'flat' or a mapping of names to odds, not {prior!r}")
    odds = tuple(float(prior.get(name, 1.0)) for name in names)
    if any(not value > 0 for value in odds):
        raise ValueError("prior odds must be positive")
    return odds
