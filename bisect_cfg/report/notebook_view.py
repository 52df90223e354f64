"""What goes on, in a notebook: one output of the cell that is redrawn in place, and stays in the saved notebook.

It is updated by the messages of Jupyter's own protocol (a display with an id), so it needs no widget, no extension of
the page and no other package, and whatever shows notebooks shows it, as text where it shows no HTML.
"""

from __future__ import annotations

import html
import io
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.segment import Segment
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from bisect_cfg.common.words import duration, show
from bisect_cfg.probe.redact import mask
from bisect_cfg.report.answer import Answer
from bisect_cfg.report.events import BisectionEvent, Progress, Wanted
from bisect_cfg.report.figures import ACCENT, FAIL, NEUTRAL, PASS, UNRESOLVED
from bisect_cfg.report.live import View
from bisect_cfg.report.recorded import shared
from bisect_cfg.report.terminal import Cleaned, Hanging, console
from bisect_cfg.targets.factors import Factors

COLUMNS = 100
"""Letters in a line: about what a notebook's page has room for."""

TICK_SECONDS = 1.0
"""How often a clock that counts seconds is redrawn."""

LEAST_SECONDS = 0.2
"""Between two redrawings: a trial of a function may take milliseconds, and each redrawing is a message."""

FRAME = "<pre style='white-space:pre-wrap;line-height:1.35;margin:0'>{}</pre>"


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


THEME = TerminalTheme(
    _rgb(NEUTRAL), _rgb(NEUTRAL),  # what is dim has the colour between these two
    [_rgb(one) for one in (NEUTRAL, FAIL, PASS, UNRESOLVED, ACCENT, ACCENT, ACCENT, NEUTRAL)],
)  # fmt: skip
"""The colours of the plots, which stand out on white and on black."""


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this, whose page shows more than text."""
    python = sys.modules.get("IPython")
    shell: object = python.get_ipython() if python is not None else None
    return getattr(shell, "kernel", None) is not None


def in_page(bundle: dict[str, str]) -> Any:
    """Show a bundle (kind -> text) below the cell; the handle that updates it, of whose type IPython says nothing."""
    from IPython.display import display

    return display(bundle, raw=True, display_id=True)


class NotebookView(View):
    """`View` as one output of a notebook's cell.

    Args:
        display: shows the output first; what it returns updates it. None: in the page, by IPython.
        ticks: whether it has a clock. A thread moves it, so it is for runs that are no forks of this process.
    """

    def __init__(self, display: Callable[[dict[str, str]], Any] | None = None, ticks: bool = True) -> None:
        super().__init__(
            console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor"), live=False
        )
        self._display, self._ticks = display or in_page, ticks
        self._lines: list[RenderableType] = []
        self._handle: Any = None
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        self._over.clear()
        self._handle = self._display(self._bundle())
        if self._ticks:
            threading.Thread(target=self._tick, name="bisect-cfg-clock", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._drawing:
            if self._over.is_set():
                return
            self._over.set()
            if isinstance(error, KeyboardInterrupt):
                self._lines.append(Text("Interrupted; what ran was ended. Run the cell again to go on.", "yellow"))
                # What IPython shows in place of a traceback through our code (and the storage's), which helps nobody.
                vars(error)["_render_traceback_"] = lambda: ["KeyboardInterrupt: nothing is lost."]
            self._draw(now=True)

    def answer(self, answer: Answer, folder: Path) -> None:
        """Nothing: the report that the cell returns shows itself."""

    def _tick(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            self._draw()

    def _changed(self) -> None:
        self._draw()

    def _line(self, line: str | Text | Hanging) -> None:
        with self._drawing:
            self._lines.append(line)
        self._draw()

    def _draw(self, now: bool = False) -> None:
        with self._drawing:
            if self._handle is None or (self._over.is_set() and not now):
                return
            if now or time.monotonic() - self._shown_at >= LEAST_SECONDS:
                self._shown_at = time.monotonic()
                self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        """What is shown now: all that was said, and below it what runs."""
        parts = [] if self._over.is_set() else [self._render()]
        drawn = Segment.simplify(self.console.render(Cleaned(Group(*self._lines, *parts))))
        segments = [one for one in drawn if not one.control]
        words = shared([one.text for one in segments])
        styled = []
        for said, segment in zip(words, segments, strict=True):
            rule = segment.style.get_html_style(THEME) if segment.style else ""
            styled.append(f"<span style='{rule}'>{html.escape(said)}</span>" if rule else html.escape(said))
        return {"text/plain": "".join(words), "text/html": FRAME.format("".join(styled))}


class AskedView(NotebookView):
    """What goes on while a run is made that a reader asked for: that run alone, since the rest was told before."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        if isinstance(wanted, Mapping):
            told = ", ".join(f"{name}: {show(mask(value, str(name)), str(name))}" for name, value in wanted.items())
        else:
            names = wanted if isinstance(wanted, Collection) and not isinstance(wanted, str) else [wanted]
            told = f"only {', '.join(map(str, names))}" if names else "the good configuration"
        self._phase = ("", f"One more trial ({told})")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            took = duration(time.monotonic() - self._phase_since)
            self._lines = [Text(f"{self._phase[1]}, {took} with all that it needs", "dim")]
        super().__exit__(kind, error, trace)

    def phase(self, name: str, detail: str = "") -> None:
        """Walked past."""

    def isolating(self, settings: Factors, progress: Callable[[], Progress]) -> None:
        """Nothing is searched."""

    def event(self, event: BisectionEvent) -> None:
        """Its steps are told."""

    def _line(self, line: str | Text | Hanging) -> None:
        """It was said when it came up."""
