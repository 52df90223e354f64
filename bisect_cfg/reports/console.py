"""The terminal as our reports write to it: texts of other people's files and names are shown, never obeyed."""

from __future__ import annotations

from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.segment import Segment
from rich.text import Text

from bisect_cfg.probe.redact import scrub
from bisect_cfg.reports.text import clean

NARROW = 60
"""Columns of a terminal below which indentation would take too much of it."""

NARROW_INDENT = 2


class Hanging:
    """A text whose lines are indented where a terminal breaks it; where nobody breaks lines it stays one.

    Args:
        words: the text.
        first: columns before it.
        rest: columns before its further lines.
    """

    def __init__(self, words: Text, first: int = 0, rest: int = 7) -> None:
        self.words, self.first, self.rest = words, first, rest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.no_wrap:
            yield Text(" " * self.first) + self.words
            return
        narrow = options.max_width < NARROW
        first, rest = (min(columns, NARROW_INDENT) if narrow else columns for columns in (self.first, self.rest))
        for position, line in enumerate(self.words.wrap(console, options.max_width - max(first, rest))):
            line.rstrip()
            yield Text(" " * (rest if position else first)) + line


class Cleaned:
    """A renderable without the control characters that names, values and logs brought into it.

    Args:
        renderable: anything that rich prints.
    """

    def __init__(self, renderable: ConsoleRenderable | str | Hanging) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(_without_secrets(self._renderable), options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("".join(map(_cleaned, segment.text.splitlines(keepends=True))), segment.style)


def _cleaned(line: str) -> str:
    return clean(line[:-1]) + "\n" if line.endswith("\n") else clean(line)


def _without_secrets(renderable: ConsoleRenderable | str | Hanging) -> ConsoleRenderable | str | Hanging:
    # Before lines are broken: a key that is cut in two is not recognised any more.
    if isinstance(renderable, Hanging):
        words = _without_secrets(renderable.words)
        assert isinstance(words, Text)
        return Hanging(words, renderable.first, renderable.rest)
    words = renderable.plain if isinstance(renderable, Text) else renderable
    if not isinstance(words, str) or (shown := scrub(words)) == words:
        return renderable
    return Text(shown, style=renderable.style if isinstance(renderable, Text) else "")


class _Clean(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [one if isinstance(one, Control) else Cleaned(one) for one in renderables]


def console(**options: Any) -> Console:
    """A console for reports: no markup and no emoji codes in what is printed (a folder may be called ``my [red] dir``),
    nothing that a terminal would obey, and plain unbroken lines where nobody looks.

    Args:
        **options: of `rich.console.Console`.
    """
    # In a notebook's kernel rich would show what is printed on the page, whatever file it is to go to.
    common: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False, **options}
    made = Console(**common)
    if not made.is_terminal and not options:
        made = Console(no_color=True, soft_wrap=True, **common)  # whoever reads it breaks lines
    made.push_render_hook(_Clean())
    return made
