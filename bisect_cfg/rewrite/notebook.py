"""Edits of a notebook's own file: a part of a cell, as a span of the JSON text that holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import scanstring
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.cells import place_in, script_of
from bisect_cfg.common.files import read_text
from bisect_cfg.rewrite.spans import Piece

_BLANK = re.compile(r"[ \t\n\r]*")
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CHARACTER = re.compile(rf"{_PAIR}|\\u[0-9a-fA-F]{{4}}|\\.|[^\\]", re.DOTALL)
"""One character of a text as JSON writes it."""

_VALUE = json.JSONDecoder(strict=False)


class InFile(NamedTuple):
    """The text of a notebook's file, and pieces of it; None for one that is another text there than in the script."""

    text: str
    pieces: list[Piece | None]


class _Cell(NamedTuple):
    """The source of a code cell, and where each of its characters stands in the file, the end included."""

    source: str
    offsets: list[int]


def pieces_of(path: Path, script: str, pieces: Sequence[Piece]) -> InFile:
    """Pieces of the script that a notebook amounts to, as pieces of the notebook's file."""
    try:
        text = read_text(path)
        cells = [cell for cell in _code_cells(text) if cell.source.strip()]
    except (OSError, ValueError, LookupError, TypeError):
        return InFile("", [None] * len(pieces))
    return InFile(text, [_in_file(cells, path, script, piece) for piece in pieces])


def _in_file(cells: Sequence[_Cell], path: Path, script: str, piece: Piece) -> Piece | None:
    start, end, new = piece
    place = place_in(script, script.count("\n", 0, start) + 1, script_of(path, path.parent))
    if place is None or place.cell > len(cells):
        return None
    cell = cells[place.cell - 1]
    first = script.rfind("\n", 0, start) + 1
    own = sum(len(line) + 1 for line in cell.source.split("\n")[: place.line - 1])  # where the same line begins there
    if cell.source[own : own + end - first] not in (script[first:end], script[first:end].removesuffix("\n")):
        return None
    at = [cell.offsets[min(own + index - first, len(cell.source))] for index in (start, end)]
    return at[0], at[1], json.dumps(new, ensure_ascii=False)[1:-1]


def _code_cells(text: str) -> Iterator[_Cell]:
    top = _members(text, _BLANK.match(text.removeprefix("\ufeff")).end() + text.startswith("\ufeff"))
    sheets = (
        [_members(text, start) for _, start, _ in _parts(text, top["worksheets"][0])] if "worksheets" in top else [top]
    )
    for sheet in sheets:
        for _, start, _ in _parts(text, sheet["cells"][0]):
            cell = _members(text, start)
            if _VALUE.raw_decode(text, cell["cell_type"][0])[0] == "code":
                span = cell.get("source") or cell["input"]
                lines = [span] if text[span[0]] == '"' else [part[1:] for part in _parts(text, span[0])]
                offsets = [
                    found.start() for start, end in lines for found in _CHARACTER.finditer(text, start + 1, end - 1)
                ]
                source = "".join(_VALUE.raw_decode(text, start)[0] for start, _ in lines)
                yield _Cell(source, [*offsets, lines[-1][1] - 1 if lines else span[0]])


def _members(text: str, start: int) -> dict[str, tuple[int, int]]:
    return {key: (begin, end) for key, begin, end in _parts(text, start)}


def _parts(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Of an object, or array, that begins there: key ("" in an array), start and end of each value."""
    closing = {"{": "}", "[": "]"}[text[start]]
    at = _BLANK.match(text, start + 1).end()
    while text[at] != closing:
        key = ""
        if closing == "}":
            key, at = scanstring(text, at + 1)
            at = _BLANK.match(text, _BLANK.match(text, at).end() + 1).end()  # over the colon
        _, end = _VALUE.raw_decode(text, at)
        yield key, at, end
        at = _BLANK.match(text, end).end()
        if text[at] == ",":
            at = _BLANK.match(text, at + 1).end()
