"""Edits of a notebook's own file: some lines of a cell, as a span of the JSON text that holds them."""

from __future__ import annotations

import json
import re

from bisect_cfg.common.cells import CellLine, code_cells
from bisect_cfg.rewrite.spans import Span, splice

_NEXT_TEXT = r'(?:",\s*")??'
"""After the end of a line another text may begin, as most writers of notebooks have it."""


def span_in(text: str, place: CellLine, old: str, new: str) -> Span | None:
    """The span that gives some lines of a cell other words; None if the file has these lines otherwise.

    Each text that may be these lines is exchanged, and the cells are read again: with the right one only they differ.
    """
    try:
        cells = code_cells(text)
        before = "".join(line + "\n" for line in cells[place.cell - 1].split("\n")[: place.line - 1])
        after = cells[place.cell - 1][len(before) :]
    except (ValueError, IndexError):
        return None
    if not after.startswith(old) and old.endswith("\n"):  # the last line of a cell
        old, new = old[:-1], new.removesuffix("\n")
    wanted = [*cells[: place.cell - 1], before + new + after[len(old) :], *cells[place.cell :]]
    for in_ascii in (False, True):
        written = (json.dumps(part, ensure_ascii=in_ascii)[1:-1] for part in old.split("\n"))
        for found in re.finditer((r"\\n" + _NEXT_TEXT).join(map(re.escape, written)), text):
            span = Span(*found.span(), json.dumps(new, ensure_ascii=in_ascii)[1:-1])
            if code_cells(splice(text, [span])) == [cell for cell in wanted if cell.strip()]:
                return span
    return None
