"""The terminal shows texts of others and obeys none of them; no secret reaches it."""

from __future__ import annotations

import io

import pytest
from rich.control import Control
from rich.text import Text

from bisect_cfg.reports.console import console

KEY = "hf_" + "a1B2" * 8


def printed(what: object, **options: object) -> str:
    out = io.StringIO()
    console(file=out, **options).print(what)
    return out.getvalue()


@pytest.mark.parametrize("wrap", [str, Text])
def test_markup_and_codes_are_only_text(wrap):
    assert printed(wrap("my [red] dir :smile: 17"), width=80) == "my [red] dir :smile: 17\n"
    assert printed(wrap("a\x1b[31mred\x1b[0m\x07 b\nc"), width=80) == "ared b\nc\n"


@pytest.mark.parametrize("wrap", [str, Text])
def test_a_key_is_masked_even_where_a_line_would_break_it(wrap):
    shown = printed(wrap(f"token={KEY} is set"), width=20)
    assert KEY not in shown.replace("\n", "") and "***" in shown


def test_our_own_controls_work():
    assert printed(Control.home(), force_terminal=True) == "\x1b[H"
