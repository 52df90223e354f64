"""Edits of YAML, JSON and TOML.

Where the text of a value ends is not taken from a parser's marks, which differ by format. Each text that may be the
value is exchanged for a mark, and the file is read again by the reader of its format: where the mark is then the value
of the key, and nothing else differs, that text is it. Every edit is checked in the same way: with it the file holds the
wanted value, and nothing else differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.files import load_json, load_toml, load_yaml
from bisect_cfg.rewrite.spans import Change, Piece, Place, plain, removals, same, splice

Keys = tuple[str | int, ...]
"""The way to a value: keys of mappings, and indices of lists."""

_MARK = "bisect-cfg"
"""In place of a value. Written with quotes it is a text in all formats."""

_GONE = object()
"""In place of a value that is not there."""

_MOST_ENDS = 40
"""So many brackets and commas after the beginning of a value are tried as its end."""

_INTERPOLATION = re.compile(r"\$\{[^}:]*?(?P<name>\w+)\}")
"""Of OmegaConf: ``${training.lr}``."""

_ITEMS = re.compile(r"(?P<before>(?:#.*)?(?P<between>\r?\n[ \t]*))-[ \t].*(?:(?:[ \t]*\r?\n)+[ \t]*-[ \t].*)*")
"""A list of YAML whose items have a line each."""

_COMMENT = re.compile(r"(?:[ \t]+#.*|[ \t]*)\r?$")


def read(path: Path, text: str) -> Value:
    """The content of a file, a mapping as a rule; None if it is not what its name says."""
    try:
        content = {".json": load_json, ".toml": load_toml}.get(path.suffix, load_yaml)(text)
    except ValueError:
        return None
    return {} if content is None else content


def places(path: Path, text: str, change: Change, names: Collection[str]) -> list[Place]:
    """Where the text gives a value to one of the names."""
    content, found = read(path, text), []
    for one in _values(path, text, content, names):
        if change.field and change.key in names and not all(keys[-2:-1] == (change.field,) for keys in one.ways):
            continue
        value = _at(content, one.ways[0])
        inner = _INTERPOLATION.fullmatch(value) if isinstance(value, str) else None

        def put(new: Value, one: _Written = one) -> Piece | None:
            if new is not None:
                piece = one.start, one.end, one.text(path, plain(new))
                return _checked(path, text, [piece], dict.fromkeys(one.ways, plain(new)))
            emptied = {keys[:-1]: None for keys in one.ways if len(_at(content, keys[:-1])) == 1 < len(keys)}
            gone = _checked(path, text, removals(text, one.key, one.end), dict.fromkeys(one.ways, _GONE))
            return gone or (_checked(path, text, removals(text, one.key, one.end), emptied) if emptied else None)

        shown = " ".join(text[one.key : one.end].split())
        found.append(Place(one.key, shown, same(value, change.old), put, (inner["name"],) if inner else ()))
    return found


def added(path: Path, text: str, values: Configuration, fields: Collection[str]) -> Piece | None:
    """The piece that adds settings to the mapping that holds most of the training config; None if none does."""
    content, counts = read(path, text), dict[Keys, int]()
    for keys in _keys_in(content):
        counts[keys[:-1]] = counts.get(keys[:-1], 0) + (keys[-1] in fields)
    table = max(reversed(counts), key=lambda keys: counts[keys], default=())  # of equal ones the last
    wanted = {(*table, name): plain(value) for name, value in values.items()}
    for last in reversed(_at(content, table)) if counts.get(table) else ():
        for one in _values(path, text, content, [last]):
            quote, equals = re.match(r"""(["']?)[\w.-]+["']?([ \t]*[:=])""", text[one.key :]).groups()
            indent = text[text.rfind("\n", 0, one.key) + 1 : one.key]
            between = " " if indent.strip() else ("\r\n" if "\r\n" in text else "\n") + indent
            pairs = [
                f"{between}{quote}{name}{quote}{equals} {_value_text(path, plain(value))}"
                for name, value in values.items()
            ]
            end = one.end + len(re.match(r".*?(?=\r?$)", text[one.end :], re.MULTILINE)[0])
            pieces = [(end, end, "".join(pairs)), (one.end, one.end, "".join(f",{pair}" for pair in pairs))]
            if (piece := _checked(path, text, pieces, wanted)) is not None:
                return piece
    return None


def without(path: Path, text: str, name: str) -> str | None:
    """The text without the entries of this name; None if they cannot be removed."""
    for place in reversed(places(path, text, Change(name, None, None), [name])):
        piece = place.put(None)
        text = text if piece is None else splice(text, piece)
    return text if count(path, text, [name]) == 0 else None


def count(path: Path, text: str, fields: Collection[str]) -> int:
    """How many settings of a training config the text holds."""
    return sum(keys[-1] in fields for keys in _keys_in(read(path, text)))


# ------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class _Written:
    """A value as a text has it.

    Attributes:
        key: where its key begins.
        start, end: of the value; of a list in lines of its own, from its first item on.
        between: of such a list, what stands between two items; "" of all else.
        space: a blank, where none stands before the value.
        ways: to the value in the content; several where an alias repeats it.
    """

    key: int
    start: int
    end: int
    between: str
    space: str
    ways: tuple[Keys, ...] = ()

    def text(self, path: Path, value: Value) -> str:
        """How another value is written there."""
        if self.between and isinstance(value, (list, tuple)) and value:
            return self.between.join(f"- {_value_text(path, item)}" for item in value)
        return self.space + _value_text(path, value)

    @property
    def mark(self) -> tuple[str, Value]:
        """The mark as it is written there, and as it is read."""
        return (f'- "{_MARK}"', [_MARK]) if self.between else (f'{self.space}"{_MARK}"', _MARK)


def _values(path: Path, text: str, content: Value, names: Collection[str]) -> Iterator[_Written]:
    """Where keys of these names have their values."""
    either = "|".join(map(re.escape, names))
    for found in re.finditer(rf"""(?<![\w-])(["']?)(?:{either})\1[ \t]*[:=][ \t]*""", text):
        for one in _readings(text, *found.span()):
            written, mark = one.mark
            differ = _differences(content, read(path, splice(text, (one.start, one.end, written))))
            if differ and all(keys and keys[-1] in names and value == mark for keys, value in differ.items()):
                yield replace(one, ways=tuple(differ))
                break


def _readings(text: str, key: int, start: int) -> Iterator[_Written]:
    """What the value may be that begins there, the longest text first; a comment after it is no part of it."""
    if items := _ITEMS.match(text, start):
        end = items.start() + len(_COMMENT.sub("", items[0]))
        yield _Written(key, items.end("before"), end, items["between"], "")
    line = re.match(r".*?(?=\r?$)", text[start:], re.MULTILINE)[0]
    ends = [len(_COMMENT.sub("", line)), len(line.rstrip())]
    if text[start : start + 1] in ("[", "{"):
        ends += [found.end() for found in re.finditer(r"[\]}]", text[start:])][:_MOST_ENDS]
    ends += [found.start() for found in re.finditer(r"\s*[,}\]]", line)][:-_MOST_ENDS:-1]
    for end in ends:
        yield _Written(key, start, start + end, "", " " if text[start - 1] == ":" else "")


def _value_text(path: Path, value: Value) -> str:
    """A value in one line. PyYAML writes 1.0e-06, which every reader of YAML takes for a number."""
    if path.suffix in (".json", ".toml"):
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.rstrip("\n")[1:-1]


# ------------------------------------------------------------------------------------------------------------ content


def _checked(path: Path, text: str, pieces: Iterable[Piece], wanted: Mapping[Keys, Value]) -> Piece | None:
    """The first piece with which the text differs as wanted, and in nothing else."""
    content = read(path, text)
    for piece in pieces:
        differ = _differences(content, read(path, splice(text, piece)))
        if differ.keys() == wanted.keys() and all(equal(value, wanted[keys]) for keys, value in differ.items()):
            return piece
    return None


def _keys_in(value: Value, keys: Keys = ()) -> Iterator[Keys]:
    """The ways to all entries of all mappings."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict):
            yield (*keys, key)
        yield from _keys_in(item, (*keys, key))


def _at(value: Value, keys: Keys) -> Value:
    for key in keys:
        value = value[key]
    return value


def _differences(old: Value, new: Value, keys: Keys = ()) -> dict[Keys, Value]:
    """The ways to what differs -> the new value, or `_GONE`. A list of plain values counts as a whole."""
    both: list[tuple[str | int, Value, Value]] = []
    if isinstance(old, dict) and isinstance(new, dict):
        both = [(key, old.get(key, _GONE), new.get(key, _GONE)) for key in {**old, **new}]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and any(map(_has_keys, old)):
        both = [(number, *pair) for number, pair in enumerate(zip(old, new, strict=True))]
    if both:
        return {way: value for key, a, b in both for way, value in _differences(a, b, (*keys, key)).items()}
    return {} if type(old) is type(new) and equal(old, new) else {keys: new}


def _has_keys(value: Value) -> bool:
    return isinstance(value, (dict, list))
