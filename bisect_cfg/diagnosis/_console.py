"""Rows of metrics as trainers of many makes print them for people: names with capitals and blanks, in frames, under
each other, several lines a step.

`_metrics` reads what most trainers print, at the speed of memory. Where it finds nothing, what a log says of numbers
is read here, slowly and by one rule: a number that stands behind a known name belongs to the row that is open, and a
name that comes a second time opens the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set

from bisect_cfg.diagnosis._plain_text import plain

FEWEST_NAMES, FEWEST_ROWS = 2, 8
"""Known names that most rows must have, and rows, before they are a run's: a reward alone may be a completion's."""

MOST = 0.8
"""Share of the rows that must have so many names."""

LONGEST = 2000
"""Characters of a line; longer ones are printed data."""

_OF_METRICS = ("reward", "loss", "entropy", "score", "return")
_OF_ROWS = (*_OF_METRICS, "rew_mean", "kl", "norm", "step", "iter", "episode")
"""Of the first a run's text has many; of these each line that is looked at has one."""
_OF_A_ROW, _VALUE = re.compile("|".join(_OF_ROWS)), re.compile(r"\d|nan\b|inf\b")
"""What is quickly seen of a line that may be a row's."""
_PAIR = re.compile(
    r"(?P<name>[A-Za-z][\w./-]*(?: [A-Za-z][\w./-]*){0,3})['\"]? *(?:[:=|│]|\s) *['\"]?"
    r"(?P<value>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?[Nn]a[Nn]|[-+]?[Ii]nf)(?![\w.:%-]|/(?!\d))"
)
_STEP = re.compile(
    r"^(?:.*[ /])?(?:(?:global|train(?:ing)?)[ _])?(?:step|iter(?:ation)?|episode|update)s?$", re.IGNORECASE
)
_NOT_LEARNT_BY = re.compile(r"mismatch|kl_reward|target|coef|penalty|max|min\b|best|limit|scale", re.IGNORECASE)
"""Numbers beside the metrics that have their names in them."""


def rows_of(
    text: str,
    first: int,
    canonical: Callable[[str], str],
    known: Set[str],
    row_of: Callable[[int, Mapping[str, object]], object],
) -> list:
    """The rows that a text prints; none if it is no run's.

    Args:
        text: whole lines.
        first: the number of the first one.
        canonical: the name that a metric goes by.
        known: those of them that tell a row.
        row_of: makes a row of a line's number and its values by name.
    """
    lowered = text.lower()
    if sum(map(lowered.count, _OF_METRICS)) < FEWEST_NAMES * FEWEST_ROWS - FEWEST_ROWS // 2:
        return []
    found = [(line, values) for line, values in _records(text, first, canonical, known) if values.keys() & known]
    whole = [one for one in found if len(one[1].keys() & {*known, "length"}) >= FEWEST_NAMES]
    if len(whole) < FEWEST_ROWS or len(whole) < MOST * len(found):
        return []
    made = (row_of(line, values) for line, values in whole)
    return [row for row in made if row is not None]


def _records(
    text: str, first: int, canonical: Callable[[str], str], known: Set[str]
) -> Iterator[tuple[int, dict[str, object]]]:
    values: dict[str, object] = {}
    seen: set[str] = set()  # the names as they are printed
    begun = first
    for number, (line, lowered) in enumerate(zip(text.split("\n"), text.lower().split("\n"), strict=True), first):
        if len(line) > LONGEST or not _VALUE.search(lowered) or not _OF_A_ROW.search(lowered):
            continue
        for printed, name, value in _numbers(plain(line), canonical, known):
            again = name in values and values[name] != value if name == "step" else printed in seen
            if again:
                yield begun, values
                values, seen = {}, set()
            if not values:
                begun = number
            seen.add(printed)
            values.setdefault(name, value)
    if values:
        yield begun, values


def _numbers(line: str, canonical: Callable[[str], str], known: Set[str]) -> Iterator[tuple[str, str, object]]:
    for found in _PAIR.finditer(line):
        name = found["name"].strip()
        if _STEP.match(name):
            yield name, "step", found["value"]
        elif not _NOT_LEARNT_BY.search(name):
            plain_name = re.sub(r"[/_](?:avg|mean)$", "", name.replace(".", "").replace(" ", "_").lower())
            called = canonical(plain_name)
            if called in known or called == "length":
                yield name, called, found["value"]
