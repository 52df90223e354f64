"""Rows of metrics in a table that pandas printed: columns under their names, each line with its index before it.

Or without it, as `to_string(index=False)` has them: then there are as many numbers in a line as names.
A table that is too wide goes on below, with the same indices, after a backslash at the end of each line; one that is
too long has dots in its middle (https://pandas.pydata.org/docs/user_guide/options.html).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

Row = TypeVar("Row")

_HEAD = re.compile(r"^ +(?P<names>[A-Za-z_][\w./]*(?: +[A-Za-z_][\w./]*)+) *(?P<goes_on>\\?)$")
_LINE = re.compile(r"^(?P<index>\d+) +(?P<cells>\S.*?) *\\?$")
_BREAK = re.compile(r"^(?:\.\.\.?|\s*|\[\d+ rows x \d+ columns\])[ .]*\\?$")
_NUMBER = re.compile(r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|inf)|NaN|nan|None|<NA>")

FEWEST = 3
"""Lines under a head from which on it is one."""


def frames(text: str, first: int, row_of: Callable[[int, Mapping[str, object]], Row | None]) -> list[Row]:
    """The rows of the tables in a text.

    Args:
        text: whole lines.
        first: the number of the first one.
        row_of: makes a row of a line's number and its values by name; None if none of them is a metric.
    """
    lines = text.split("\n")
    values: dict[tuple[int, str], dict[str, object]] = {}  # by the table, and the index in it
    places: dict[tuple[int, str], int] = {}
    table, goes_on, at = 0, False, 0
    while at < len(lines):
        head = _HEAD.match(lines[at].rstrip("\r"))
        at += 1
        if head is None:
            continue
        names, found = head["names"].split(), []
        while at < len(lines):
            line = _LINE.match(lines[at].rstrip("\r"))
            cells = line["cells"].split() if line else []
            alone = lines[at].split()
            if line and len(cells) == len(names):
                found.append((line["index"], cells, first + at))
            elif len(alone) == len(names) and all(map(_NUMBER.fullmatch, alone)):
                found.append((str(at), alone, first + at))
            elif line or not _BREAK.match(lines[at].rstrip("\r")):
                break
            at += 1
        if len(found) >= FEWEST:
            table += not goes_on
            goes_on = bool(head["goes_on"])
            for index, cells, place in found:
                values.setdefault((table, index), {}).update(zip(names, cells, strict=True))
                places.setdefault((table, index), place)
    rows = (row_of(places[key], {name: _value(cell) for name, cell in named.items()}) for key, named in values.items())
    return [row for row in rows if row is not None]


def _value(cell: str) -> object:
    return None if cell in ("None", "<NA>") else cell
