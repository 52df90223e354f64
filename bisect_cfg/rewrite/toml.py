"""Edits of a TOML file. tomlkit changes the value and keeps all else; the result is read again by Python's own reader,
and counts only if nothing but the setting differs."""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.common.files import load_toml
from bisect_cfg.rewrite.place import Change, Piece, Place, plain, same

_Keys = tuple[str | int, ...]
"""The way to a value: keys of tables, and indices of arrays."""

_ELSE = "\0"
"""A value that no file has, to see where a value stands."""


def read(path: Path, text: str) -> Value:
    """The content of a file; None if it is not TOML."""
    try:
        return load_toml(text)
    except ValueError:
        return None


def places(path: Path, text: str, change: Change, names: Collection[str]) -> list[Place]:
    """Where the text gives a value to one of the names."""
    found = []
    for keys, value in _values(read(path, text)):
        is_key = len(keys) > 1 and keys[-2] == change.field
        if keys[-1] not in names or (change.field and change.key in names and not is_key):
            continue
        start, _, _ = _with(text, {keys: _ELSE}) or (0, 0, "")
        line = text[text.rfind("\n", 0, start) + 1 :].partition("\n")[0].strip()
        put = lambda new, keys=keys: _with(text, {keys: plain(new)})  # noqa: E731
        found.append(Place(start, line, same(value, change.old), put))
    return found


def added(path: Path, text: str, values: Configuration, fields: Collection[str]) -> Piece | None:
    """The piece that adds settings to the table that holds most of the training config; None if none does."""
    counts: dict[_Keys, int] = {}
    for keys, _ in _values(read(path, text)):
        counts[keys[:-1]] = counts.get(keys[:-1], 0) + (keys[-1] in fields)
    table = max(reversed(counts), key=lambda keys: counts[keys], default=())  # of equal ones the last, as in YAML
    return _with(text, {(*table, name): plain(value) for name, value in values.items()}) if counts.get(table) else None


def count(path: Path, text: str, fields: Collection[str]) -> int:
    """How many settings of a training config the text holds."""
    return sum(keys[-1] in fields for keys, _ in _values(read(path, text)))


def _values(value: Value, keys: _Keys = ()) -> Iterator[tuple[_Keys, Value]]:
    """Every key of every table, with what it holds."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*keys, key), item
            yield from _values(item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _values(item, (*keys, index))


def _with(text: str, values: dict[_Keys, Value]) -> Piece | None:
    """The piece that sets values, and removes the keys whose value is None; None if TOML cannot say that."""
    try:
        wanted, document = copy.deepcopy(tomllib.loads(text)), tomlkit.parse(text)
        for keys, new in values.items():
            for table in (document, wanted):
                for key in keys[:-1]:
                    table = table[key]
                if new is None:
                    del table[keys[-1]]
                else:
                    table[keys[-1]] = new
        after = tomlkit.dumps(document)
        if tomllib.loads(after) != wanted:
            return None
    except (TOMLKitError, ValueError, TypeError, LookupError):
        return None
    start = len(os.path.commonprefix([text, after]))
    same_end = len(os.path.commonprefix([text[start:][::-1], after[start:][::-1]]))
    return start, len(text) - same_end, after[start : len(after) - same_end]
