"""Files on disk, and what edits make of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_cfg.rewrite.edits import Edits, Places, edits_of
from bisect_cfg.rewrite.spans import Change

LR = Change("learning_rate", 2e-2, 1.7e-5)


def places(
    files: Mapping[Path, str], arguments: tuple[str, ...] = (), launcher: tuple[str, ...] = (), **known: Any
) -> Places:
    """Where the settings of a run are that these files configured, by their names."""
    python = {path: text for path, text in files.items() if path.suffix in (".py", ".ipynb")}
    rest = {path: text for path, text in files.items() if path not in python}
    words = ("launch", *launcher, "train.py", *arguments)
    return Places(words, len(arguments), len(launcher) + 1, python, rest, **known)


def edited(name: str, text: str, *changes: Change, **known: Any) -> tuple[str, list[str]]:
    """The text of one file with the changes, and the settings that are not placed."""
    found = edits_of(places({Path(name): text}, **known), changes)
    return found.after(Path(name)), missing(found)


def missing(found: Edits) -> list[str]:
    return [one.setting for one in found.unplaced]


def flags(found: Edits) -> list[tuple[str, str]]:
    """The edits of the command line: old and new words."""
    return [(one.old, one.new) for one in found.shown() if one.file is None]
