"""Make the pictures of the README: run a bisection, and keep what its terminal shows.

    python docs/picture.py

runs the README's own command, and writes docs/run.svg (the whole run and its answer) and docs/live.svg (the live view
in the middle of it).
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from bisect_cfg.api import run
from bisect_cfg.common.failures.health import Row
from bisect_cfg.options import Options
from bisect_cfg.report.live import View
from bisect_cfg.report.terminal import console

DOCS = Path(__file__).resolve().parent
STUDY = "studies/trl_2906"
COLUMNS = 100
LIVE_TRIAL, LIVE_STEP = 2, 2
"""The live view is kept at this step of the trial that is this one of the search."""

NO_FONTS = re.sub(r"\s*@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""A picture that fetches nothing."""


class Photographed(View):
    """Plain lines, and once the live view as it would look."""

    def __init__(self, shown: Console, picture: Console) -> None:
        super().__init__(shown, live=False)
        self._picture: Console | None = picture
        self._searched: set[int | str] = set()

    def step(self, number: int | str, rows: Sequence[Row], horizon: int | None) -> None:
        super().step(number, rows, horizon)
        if self._progress is not None and self._phase[0] != "safe values":
            self._searched.add(number)
        if len(self._searched) >= LIVE_TRIAL and len(rows) >= LIVE_STEP and self._picture is not None:
            self._picture.print(self._render())
            self._picture = None


def recording() -> Console:
    """A console of a terminal that nobody sees, and that remembers."""
    return console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")


def main() -> None:
    """Run, and write the pictures."""
    whole, live = recording(), recording()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shutil.copytree(DOCS.parent / STUDY, STUDY, ignore=shutil.ignore_patterns("bisect-cfg-studies"))
        title = f"bisect-cfg bisect {STUDY}"
        whole.print(f"$ {title}")
        with Photographed(whole, live) as view:
            run(STUDY, (), Options(), view)
    for name, picture in (("run", whole), ("live", live)):
        picture.print()  # the last line would be cut
        text = picture.export_svg(title=title, code_format=NO_FONTS, unique_id=name)
        (DOCS / f"{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
