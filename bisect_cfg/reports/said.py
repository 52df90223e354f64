"""The answer in the words of the terminal, kept for those who were not there: lines of pieces, each with its style.

What the terminal prints rests on more than result.json holds, so the very lines are recorded while it is printed.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console
from rich.style import Style
from rich.text import Text

from bisect_cfg.reports.console import console

UNBROKEN = 100_000
"""Columns of a terminal on which no line is broken."""

ANSI_COLOURS = {1: "red", 2: "green", 3: "yellow", 6: "cyan"}
"""The numbers that terminals know these by."""

Line = list[tuple[str, str]]
"""Pieces of a line: the style in rich's words ("bold red", "dim", ""), and the text."""


def said(show: Callable[[Console], None]) -> list[Line]:
    """What `show` prints on a terminal.

    Args:
        show: prints to the console that it is given.
    """
    out = io.StringIO()
    show(console(file=out, force_terminal=True, color_system="standard", width=UNBROKEN, legacy_windows=False))
    return [_pieces(Text.from_ansi(line)) for line in out.getvalue().strip("\n").split("\n")]


def _pieces(line: Text) -> Line:
    pieces: Line = []
    for position, letter in enumerate(line.plain):
        spans = [span.style for span in line.spans if span.start <= position < span.end]
        style = " ".join(dict.fromkeys(word for one in spans for word in _words(one)))
        if pieces and pieces[-1][0] == style:
            pieces[-1] = (style, pieces[-1][1] + letter)
        else:
            pieces.append((style, letter))
    return pieces


def _words(style: str | Style) -> list[str]:
    """A style as the reports write it: "bold", "dim" and the name of a colour."""
    known = Style.parse(style) if isinstance(style, str) else style
    words = [word for word, on in (("bold", known.bold), ("dim", known.dim)) if on]
    return words + ([ANSI_COLOURS[known.color.number]] if known.color and known.color.number in ANSI_COLOURS else [])
