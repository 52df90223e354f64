"""Changes of a TOML file, made by tomlkit, which leaves all else as it is. What comes out is read back by Python's own
reader, and counts only if nothing but the setting has another value."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.common.files import load_toml
from bisect_cfg.recommend.edits._place import Change, Occurrence, plain, same

_Keys = tuple[str | int, ...]
"""The way to a value: keys of tables, and indices of arrays."""

_ELSE = "\0"
"""A value that no file has, to see on which line a value stands."""


def read(path: Path, text: str) -> Value:
    """The content of a file that configures a run; None if it is no TOML."""
    try:
        return load_toml(text)
    except ValueError:
        return None


def places(path: Path, text: str, change: Change, names: Collection[str]) -> list[Occurrence]:
    """Where a file gives a value to one of the names; see `_yaml.places`."""
    found = []
    for keys, value in _values(read(path, text)):
        is_key = len(keys) > 1 and keys[-2] == change.field
        if keys[-1] not in names or (change.field and change.key in names and not is_key):
            continue
        lines, other = text.splitlines(), (_with(text, keys, _ELSE) or "").splitlines()
        line = next((n for n, (a, b) in enumerate(zip(lines, other, strict=False), 1) if a != b), 1)
        found.append(
            Occurrence(
                path,
                line,
                lines[line - 1].strip(),
                same(value, change.old),
                put=lambda new, keys=keys: _with(text, keys, plain(new)),
            )
        )
    return found


def added(path: Path, text: str, values: Configuration, fields: Collection[str]) -> str | None:
    """The text with further settings, in the table that holds the most of the training config; None if none does."""
    counts: dict[_Keys, int] = {}
    for keys, _ in _values(read(path, text)):
        counts[keys[:-1]] = counts.get(keys[:-1], 0) + (keys[-1] in fields)
    table = max(reversed(counts), key=lambda keys: counts[keys], default=())  # of equal ones the last, as in YAML
    if not counts.get(table):
        return None
    after: str | None = text
    for name, value in values.items():
        after = None if after is None else _with(after, (*table, name), plain(value))
    return after


def count(text: str, fields: Collection[str]) -> int:
    """How many settings of a training config a file holds."""
    return sum(keys[-1] in fields for keys, _ in _values(read(Path(), text)))


def _values(value: Value, keys: _Keys = ()) -> Iterator[tuple[_Keys, Value]]:
    """Every key of every table, with what it holds."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*keys, key), item
            yield from _values(item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _values(item, (*keys, index))


def _with(text: str, keys: _Keys, new: Value) -> str | None:
    """The text with another value there; without the key, if it is None. None if that cannot be said in TOML."""
    wanted = copy.deepcopy(tomllib.loads(text))
    try:
        document = tomlkit.parse(text)
        for tables in (document, wanted):
            table = tables
            for key in keys[:-1]:
                table = table[key]
            if new is None:
                del table[keys[-1]]
            else:
                table[keys[-1]] = new
        after = tomlkit.dumps(document)
        return after if tomllib.loads(after) == wanted else None
    except (TOMLKitError, ValueError, TypeError, LookupError):
        return None
