"""Which of several versions is behind: packages of one environment that came out months apart seldom fit each other."""

from __future__ import annotations

import calendar
import functools
import re
from collections.abc import Collection, Mapping
from pathlib import Path

TABLE = Path(__file__).parent / "releases.yaml"

APART = 4
"""Months between two releases from which on the older one is called behind. TRL and transformers come out monthly."""


@functools.cache
def _table() -> dict[str, dict[str, int]]:
    import yaml

    return yaml.safe_load(TABLE.read_text(encoding="utf-8"))


def month_of(package: str, version: str) -> int | None:
    """The month in which a version came out, as year * 12 + month - 1; None if that is not known."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if not found:
        return None
    if package.startswith("unsloth") and int(found[1]) >= 2024:  # unsloth counts by dates
        return int(found[1]) * 12 + int(found[2]) - 1
    released = _table().get(package, {}).get(found.group())
    return None if released is None else released // 100 * 12 + released % 100 - 1


def behind(packages: Mapping[str, str], involved: Collection[str]) -> str:
    """Says which package is months behind another one, as a step to take; "" if none is.

    Args:
        packages: package -> version, as far as a log tells them.
        involved: those that the failure is about; the one behind has to be one of them.
    """
    dated = {name: month for name, version in packages.items() if (month := month_of(name, version)) is not None}
    if len(dated) < 2:
        return ""
    oldest, newest = min(dated, key=dated.__getitem__), max(dated, key=dated.__getitem__)
    if dated[newest] - dated[oldest] < APART or oldest not in involved:
        return ""

    def shown(name: str) -> str:
        year, month = divmod(dated[name], 12)
        return f"{name} {packages[name]} ({calendar.month_name[month + 1]} {year})"

    return (
        f"of the versions that the log prints, {shown(oldest)} is far behind {shown(newest)}: update it first "
        f"(pip install -U {oldest})"
    )
