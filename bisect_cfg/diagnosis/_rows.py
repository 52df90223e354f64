"""Rows of metrics, and what is asked of any of them; `_row_facts` says what they show."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean


@dataclass(frozen=True)
class Row:
    line: int
    text: str
    values: dict[str, float]


KNOWN = {
    "loss",
    "grad_norm",
    "reward",
    "reward_std",
    "entropy",
    "kl",
    "frac_reward_zero_std",
    "clipped_ratio",
    "learning_rate",
}
"""Names by which a row of a table or a file is told from other numbers."""

OF_RL = re.compile(r"^(?:reward|kl|ratio|advantages?)\b|completion|rollout|actor|response|clip_ratio|policy|reward_std")
"""Names of metrics that only a training with rewards has; DPO's `rewards/chosen` are none of them."""

LAST_ROWS = 256
ENOUGH = 4
"""Rows before "all rows" means anything: two or three equal groups happen on healthy runs."""

FIRST = 5
"""Rows that say how a run began."""

ALWAYS = 0.95
"""Share of rows that counts as all of them: a row of an evaluation, a step that was skipped."""

TREND_ROWS = 20
"""Rows from which on such a growth is a trend: five in each quarter, of which a single peak moves no median."""

QUARTERS = 4
"""A trend is told by the quarters of a run: as many rows in each as say something, and late is the last of them."""

ROUNDING = 1e-6
"""A mean of rewards that grew by less has not grown: rewards are printed with six digits or so."""

POINTS = 400
"""Points of a series that change points are looked for in; a longer one is averaged."""

LARGEST = 3.5e38
"""What a float32 can hold; sums of numbers beyond it overflow here as well."""


def as_float32(rows: Sequence[Row]) -> list[Row]:
    """The rows with infinity in place of numbers that are it in the run."""
    return [
        replace(row, values={name: _as_float32(value) for name, value in row.values.items()})
        if any(abs(value) > LARGEST for value in row.values.values())
        else row
        for row in rows
    ]


def _as_float32(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) > LARGEST else value


def column(rows: Sequence[Row], name: str) -> list[float]:
    return [row.values[name] for row in rows if name in row.values]


def rows_with(rows: Sequence[Row], *names: str) -> list[Row]:
    return [row for row in rows if row.values.keys() >= {*names}]


def always(values: Sequence[float], holds: Callable[[float], bool]) -> bool:
    """In nearly all rows, in all of the last ones, and in the first."""
    return all(map(holds, values[-ENOUGH:])) and sum(map(holds, values)) >= ALWAYS * len(values)


def points_of(rows: list[Row]) -> list[Row]:
    """At most so many rows: the mean of neighbours where there are more."""
    size = -(-len(rows) // POINTS)
    if size <= 1:
        return rows
    averaged = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        names = set.intersection(*(set(row.values) for row in part))
        averaged.append(
            Row(part[0].line, part[0].text, {name: mean(row.values[name] for row in part) for name in names})
        )
    return averaged


def mean(values: Iterable[float]) -> float:
    """NaN of nothing, and where infinities of both signs are among them."""
    try:
        return fmean(values)
    except ValueError:
        return math.nan
