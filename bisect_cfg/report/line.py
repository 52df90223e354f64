"""A line of the answer: a label, a text, and a kind, by which an encoder decides on columns and colours."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.words import show
from bisect_cfg.probe.redact import HIDDEN, hides

TEXT, GUILTY, EDIT, COMMAND, NOTE, DIM = "text", "guilty", "edit", "command", "note", "dim"
"""Kinds of lines: GUILTY is a setting of a cause with its good value behind `GOOD`, EDIT an old and a new text with
`ARROW` between them, COMMAND is there to be pasted and never broken."""

GOOD, ARROW = "  good: ", "  ->  "

LABEL_WIDTH = 8
"""Columns of the labels."""

VALUE_LENGTH = 200
"""Characters of a value that are shown: a path is shown whole, a table of a dataset is not."""

BY_HAND = "By hand:"
"""What cannot be edited is to be written as it stands after this."""


class Line(NamedTuple):
    """A line of the answer; a label of "" continues the part before it."""

    label: str
    text: str
    kind: str = TEXT
    detail: bool = False


class Commands(NamedTuple):
    """What can be typed about a study: its folder, as it is to be named, and how `bisect-cfg` is called."""

    folder: Path
    program: str

    def typed(self, name: str, *options: str) -> str:
        """A command on the study."""
        return " ".join([self.program, name, shlex.quote(str(self.folder)), *options])


def as_text(lines: Iterable[Line]) -> str:
    """Lines as plain text, labels in one column; an edit stands below its place."""
    texts = (f"{line.label:<{LABEL_WIDTH}}{'  ' * (line.kind == EDIT)}{line.text}" for line in lines)
    return "\n".join(map(str.rstrip, texts))


def value_of(name: str, value: Value) -> str:
    """A value without a secret, and not at any length."""
    words = HIDDEN if hides(name, value) else show(value, name)
    return words if len(words) <= VALUE_LENGTH else words[: VALUE_LENGTH - 3] + "..."
