"""The terminal: the answer's lines in columns, and texts of other people's files and names shown, never obeyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.segment import Segment
from rich.text import Text

from bisect_cfg.common.words import clean, program
from bisect_cfg.probe.redact import scrub
from bisect_cfg.report.answer import Answer
from bisect_cfg.report.line import ARROW, COMMAND, DIM, EDIT, GOOD, GUILTY, LABEL_WIDTH, NOTE, Line
from bisect_cfg.report.lines import lines_of

STYLES = {NOTE: "yellow", DIM: "dim", COMMAND: "cyan"}

APART = ("CAUSE", "FIX", "APPLY", "RUN", "RESULT")
"""Labels before which a line is left free; RUN stands with APPLY."""

NARROW = 60
"""Columns of a terminal below which indentation would take too much of it."""

NARROW_INDENT = 2


class Hanging:
    """A text whose `rest`, where a terminal breaks it, has so many columns before it; elsewhere it stays one line."""

    def __init__(self, words: Text, rest: int) -> None:
        self.words, self.rest = words, rest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.no_wrap:
            yield self.words
            return
        rest = min(self.rest, NARROW_INDENT) if options.max_width < NARROW else self.rest
        left, indent = self.words.copy(), 0
        left.expand_tabs()
        while left:
            line, *more = left.wrap(console, options.max_width - indent)
            left = left[len(line) :] if more else Text()
            left = left[len(left.plain) - len(left.plain.lstrip()) :]
            line.rstrip()
            yield Text(" " * indent) + line
            indent = rest


class Cleaned:
    """A renderable without the control characters that names, values and logs brought into it."""

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
        return Hanging(words, renderable.rest)
    words = renderable.plain if isinstance(renderable, Text) else renderable
    if not isinstance(words, str) or (shown := scrub(words)) == words:
        return renderable
    return Text(shown, style=renderable.style if isinstance(renderable, Text) else "")


class _Clean(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [one if isinstance(one, Control) else Cleaned(one) for one in renderables]


def console(**options: Any) -> Console:
    """A console for reports: no markup and no emoji codes in what is printed (a folder may be called ``my [red] dir``),
    nothing that a terminal would obey, and plain unbroken lines where nobody looks."""
    # In a notebook's kernel rich would show what is printed on the page, whatever file it is to go to.
    common: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False, **options}
    made = Console(**common)
    if not made.is_terminal and not options:
        made = Console(no_color=True, soft_wrap=True, **common)  # whoever reads it breaks lines
    made.push_render_hook(_Clean())
    return made


def print_answer(to: Console, answer: Answer, folder: Path | None = None, verbose: bool = False) -> None:
    """The answer, the cause and what to do last; verbose: with the lines that only add to it."""
    to.print()
    before = ""
    for line in lines_of(answer, folder, program()):
        if verbose or not line.detail:
            if line.label.startswith(APART) and (before, line.label) != ("APPLY", "RUN"):
                to.print()
            _print_line(to, line)
            before = line.label or before


def _print_line(to: Console, line: Line) -> None:
    label = Text(f"{line.label:<{LABEL_WIDTH}}", style="bold")
    text = Text.assemble(label, _styled(line))
    if line.kind == COMMAND:
        to.print(text, soft_wrap=True)  # not broken into lines: it is there to be copied
    else:
        to.print(Hanging(text, rest=LABEL_WIDTH + 2 * (line.kind in (EDIT, GUILTY))))


def _styled(line: Line) -> Text:
    if line.kind == GUILTY:
        yours, gap, good = line.text.partition(GOOD)
        return Text.assemble((yours, "bold red"), (gap + good, "green"))
    if line.kind == EDIT:
        old, arrow, new = line.text.partition(ARROW)
        return Text.assemble("  ", (old, "red" if arrow else "green"), arrow, (new, "green"))
    return Text(line.text, style=STYLES.get(line.kind, ""))
