"""The answer in the words of the terminal, kept for those who were not there: lines of pieces, each with its style.

What the terminal prints rests on more than result.json holds, so the very lines are recorded while it is printed.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console
from rich.segment import Segment
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
    plain = Console()
    lines = (Text.from_ansi(line).render(plain) for line in out.getvalue().strip("\n").split("\n"))
    return [[(_words(one.style), one.text) for one in Segment.simplify(line) if one.text] for line in lines]


def _words(style: Style | None) -> str:
    """A style as the reports write it: "bold", "dim" and the name of a colour."""
    known = style or Style()
    colour = ANSI_COLOURS.get(known.color.number) if known.color else None
    return " ".join(word for word, on in (("bold", known.bold), ("dim", known.dim), (colour, colour)) if on)
