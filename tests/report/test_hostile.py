"""Texts of others are shown and never obeyed, and no secret is shown, wherever an answer goes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.control import Control
from rich.text import Text

from bisect_cfg.report.answer import Answer, write_answer
from bisect_cfg.report.html import page
from bisect_cfg.report.line import as_text
from bisect_cfg.report.lines import lines_of
from bisect_cfg.report.markdown import as_json, as_markdown
from bisect_cfg.report.notebook import StudyReport
from bisect_cfg.report.recorded import Recorded, read
from bisect_cfg.report.terminal import console, print_answer
from bisect_cfg.store.causes import Levels
from tests.report.cases import CASES, ONE

KEY = "hf_" + "a1B2" * 8
SCRIPT = "<script>alert(1)</script>"
EVIL = f"x\x1b[2J\x1b]0;t\x07\u202e{SCRIPT}```|{KEY}"
"""What a name, a value or a message may hold: orders to a terminal, a page and Markdown, and a key."""


def printed(what: object, **options: object) -> str:
    out = io.StringIO()
    console(file=out, **options).print(what)
    return out.getvalue()


@pytest.mark.parametrize("wrap", [str, Text])
def test_markup_and_codes_are_only_text(wrap: type) -> None:
    assert printed(wrap("my [red] dir :smile: 17"), width=80) == "my [red] dir :smile: 17\n"
    assert printed(wrap("a\x1b[31mred\x1b[0m\x07 b\nc"), width=80) == "ared b\nc\n"


@pytest.mark.parametrize("wrap", [str, Text])
def test_a_key_is_masked_even_where_a_line_would_break_it(wrap: type) -> None:
    shown = printed(wrap(f"token={KEY} is set"), width=20)
    assert KEY not in shown.replace("\n", "") and "***" in shown


def test_our_own_controls_work() -> None:
    assert printed(Control.home(), force_terminal=True) == "\x1b[H"


def hostile(answer: Answer) -> Answer:
    """The same answer with such texts wherever there may be some."""
    causes = [
        replace(one, text=EVIL, companions=(EVIL,), signature=EVIL,
                levels={**one.levels, EVIL: Levels(EVIL, EVIL)})
        for one in answer.causes
    ]  # fmt: skip
    known = answer.recommendation
    if known is not None:
        edits = [replace(edit, old=EVIL, new=EVIL) for edit in known.edits]
        known = replace(known, edits=tuple(edits), first=EVIL, why=EVIL, unsettled=(EVIL,), diff=f"-{EVIL}\n+{EVIL}\n")
    trials = [
        replace(trial, values={**trial.values, EVIL: EVIL}, reason=EVIL, signature=EVIL) for trial in answer.trials
    ]
    return replace(
        answer,
        causes=tuple(causes),
        recommendation=known,
        trials=tuple(trials),
        notes=(*answer.notes, EVIL),
        simulated=EVIL,
        not_varied={EVIL: EVIL},
        failure=answer.failure and replace(answer.failure, message=EVIL, text=EVIL, signature=EVIL),
        good_failure=answer.good_failure and replace(answer.good_failure, text=EVIL),
        environment={**answer.environment, EVIL: EVIL},
        target=replace(answer.target, script=EVIL, command=EVIL),
    )


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_it_reaches_anybody(name: str, tmp_path: Path) -> None:
    answer = hostile(CASES[name])
    out = io.StringIO()
    print_answer(console(file=out, width=70, force_terminal=True, no_color=True), answer, Path(f"s {EVIL}"), True)
    terminal = out.getvalue().replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    write_answer(answer, tmp_path)
    found = read(tmp_path)
    cell = StudyReport(Recorded(None, found.answer))
    html, markdown = page(found), as_markdown(found)
    shown = {
        "terminal": terminal, "lines": as_text(lines_of(answer, Path(EVIL))), "page": html.partition("<script>")[0],
        "markdown": markdown, "json": json.dumps(json.loads(as_json(found)), ensure_ascii=False),
        "cell": cell._repr_html_(), "text": str(cell), "factors": cell.factors._repr_html_() + repr(cell.factors),
    }  # fmt: skip
    for where, text in shown.items():
        assert not {"\x1b", "\x07", "\u202e"} & set(text), where
        assert KEY not in "".join(text.split()), where
    assert "&lt;script&gt;" in html and SCRIPT not in html and SCRIPT not in shown["cell"] + cell.factors._repr_html_()
    fenced = [line for line in markdown.splitlines() if line.startswith("```")]
    assert len(fenced) % 2 == 0 and SCRIPT not in "".join(
        line for line in markdown.splitlines() if line.startswith("| ")
    )


def test_a_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    write_answer(hostile(ONE), tmp_path)
    html = page(read(tmp_path))
    assert "default-src 'none'" in html and len(html.encode()) < 6e6
    start = html.partition("<script>")[0]
    assert " src=" not in start and "<link" not in start and "@import" not in start and "url(" not in start
