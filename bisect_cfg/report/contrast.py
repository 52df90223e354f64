"""What only failing runs say: the first metric that leaves the range of the passing runs, and lines of their logs.

The runs are those of the proof of a cause: the same seed, one setting apart. Pure; `bisect_cfg.study.contrast` reads
them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import equal
from bisect_cfg.common.failures import health
from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.text import normalise
from bisect_cfg.store.causes import Trial

LEAST_VALUES = 3
"""So many values of a metric in passing runs, at least, tell how far it goes by itself."""

BEYOND = 1.0
"""A value is beyond that range if it lies farther outside of it than so many times its width: with other settings a
metric takes other values, and only what stands out is said."""

WIDTH = 0.05
"""The range is taken to be so wide at least, as a share of its largest value: a constant metric has none."""

NOT_COMPARED = re.compile(r"^(?:step|time|training|epoch|num_tokens|learning_rate|.*(?:time|per_second).*)$")
"""Metrics that follow from a setting, or count: that they differ says nothing."""

LINES, LENGTH = 3, 200
"""Lines of log that are shown, and characters of each."""

_DIES = re.compile(r"Traceback \(most recent call last\)|Fatal Python error")
"""From here on a log tells of the failure itself, which is said elsewhere."""

_PROGRESS = re.compile(r"^\{'\w+': |\d%\|")
"""A metric row, a bar."""


@dataclass(frozen=True)
class Told:
    """What a run told: its metric rows, and the lines of its log."""

    rows: Sequence[Row]
    lines: Sequence[str]


@dataclass(frozen=True)
class StandsOut:
    """A value of a failing run (NaN and infinity as text), and the range of those of the passing ones."""

    metric: str
    step: int
    value: float | str
    lowest: float
    highest: float


@dataclass(frozen=True)
class Contrast:
    """What only failing runs say."""

    metric: StandsOut | None  # the first that stands out; None if none does
    lines: tuple[str, ...]  # of their logs, which no passing run has


def one_apart(rows: Sequence[Trial], passing: Collection[int]) -> tuple[list[int], list[int]]:
    """The numbers of failing runs of one configuration, and of those of some passing ones from which it differs in one
    setting: the configuration with most of these."""
    of_passing = [row for row in rows if row.number in passing and row.passed]
    found: tuple[list[int], list[int]] = ([], [])
    for failing in (row for row in rows if row.failed):
        others = [row.number for row in of_passing if len(_differing(row, failing)) == 1]
        if len(others) > len(found[1]):
            same = (row for row in rows if row.failed and not _differing(row, failing))
            found = [row.number for row in same], others
    return found


def _differing(one: Trial, other: Trial) -> set[str]:
    return {name for name in one.values.keys() | other.values.keys() if not _same(one, other, name)}


def _same(one: Trial, other: Trial, name: str) -> bool:
    return name in one.values and name in other.values and equal(one.values[name], other.values[name])


def contrast(failing: Sequence[Told], passing: Sequence[Told]) -> Contrast | None:
    """What every failing run says and no passing one does; None if that is nothing."""
    if not failing or not passing:
        return None
    metrics = [{one.metric: one for one in _standing_out(told, passing)} for told in failing]
    shared = [one for name, one in metrics[0].items() if all(name in others for others in metrics)]
    found = Contrast(min(shared, key=lambda one: one.step, default=None), tuple(_lines(failing, passing))[:LINES])
    return found if found.metric or found.lines else None


def _standing_out(told: Told, passing: Sequence[Told]) -> Iterator[StandsOut]:
    """Of each metric the first value that stands out; those that say most first."""
    for name in dict.fromkeys((*health.WATCHED, *(name for row in told.rows for name in row))):
        known = [value for one in passing for row in one.rows if (value := health.number(row, name)) is not None]
        if NOT_COMPARED.match(name) or len(known) < LEAST_VALUES or not all(map(math.isfinite, known)):
            continue
        lowest, highest = min(known), max(known)
        margin = BEYOND * max(highest - lowest, WIDTH * max(abs(lowest), abs(highest)))
        for row in told.rows:
            value = health.number(row, name)
            if value is not None and not lowest - margin <= value <= highest + margin:
                shown = value if math.isfinite(value) else str(value)
                yield StandsOut(name, int(health.number(row, "step") or 0), shown, lowest, highest)
                break


def _lines(failing: Sequence[Told], passing: Sequence[Told]) -> Iterator[str]:
    usual = {normalise(line) for told in passing for line in told.lines}
    others = [{normalise(line) for line in told.lines} for told in failing[1:]]
    said = {""}
    for line in failing[0].lines:
        if _DIES.search(line):
            return
        form = normalise(line)
        if form not in said | usual and all(form in one for one in others) and not _PROGRESS.search(line):
            said.add(form)
            yield line.strip()[:LENGTH]
