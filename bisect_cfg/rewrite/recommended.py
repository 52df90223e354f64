"""What result.json says of a change: its two values, the places to edit, and what no edit changes."""

from __future__ import annotations

from typing import Any

import msgspec

from bisect_cfg.store.causes import Part


class Change(Part, frozen=True):
    """What a setting is changed from, and to."""

    before: Any = msgspec.field(name="from", default=None)
    to: Any = None


class ShownEdit(Part, frozen=True):
    """A place to change; `file` None: the command line. `apply` needs the span, the text to put there, and the hashes
    of the file before and after all edits; without them it cannot be written."""

    old: str
    new: str
    settings: tuple[str, ...]
    file: str | None = None
    line: int | None = None
    cell: int | None = None
    start: int | None = None
    end: int | None = None
    text: str | None = None
    before: str | None = None
    after: str | None = None


class Unplaced(Part, frozen=True):
    """A setting that no edit changes: why not, and what to write instead."""

    setting: str
    why: str
    add: str


class Recommended(Part, frozen=True):
    """What `apply` writes."""

    changes: dict[str, Change] = {}
    edits: tuple[ShownEdit, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    command: str | None = None
