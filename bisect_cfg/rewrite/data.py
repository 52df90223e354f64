"""Places in YAML, JSON and TOML: where a text gives a value to a name, and how another one is written there.

Where the text of a value ends is not taken from a parser's marks, which differ by format. Each text that may be the
value is exchanged for a mark, and the file is read again by the reader of its format: where the mark is then the value
of the key, and nothing else differs, that text is it. Every edit is checked in the same way (`proven`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bisect_cfg.common.configuration import Configuration, Value, present
from bisect_cfg.common.files import load_json, load_toml, load_yaml
from bisect_cfg.rewrite.spans import Change, Piece, Place, Span, plain, same, splice

Keys = tuple[str | int, ...]
"""The way to a value: keys of mappings, and indices of lists."""

_MARK = "bisect-cfg"
"""In place of a value. Written with quotes it is a text in all formats."""

_INTERPOLATION = re.compile(r"\$\{[^}:]*?(?P<name>\w+)\}")
"""Of OmegaConf: ``${training.lr}``."""

_MOST_ENDS = 40
"""So many brackets and commas after the beginning of a value are tried as its end."""

_COMMENT = re.compile(r"(?:[ \t]+#.*|[ \t]*)\r?$")


def read(path: Path, text: str) -> Value:
    """The content of a file, a mapping as a rule; None if it is not what its name says."""
    try:
        suffix = path.suffix
        content = load_json(text) if suffix == ".json" else load_toml(text) if suffix == ".toml" else load_yaml(text)
    except ValueError:
        return None
    return {} if content is None else content


def places(path: Path, text: str, change: Change, names: Collection[str]) -> list[Place]:
    """Where the text gives a value to one of the names."""
    content, found = read(path, text), []
    for entry in _entries(path, text, names):
        if change.field and change.key in names and not all(keys[-2:-1] == (change.field,) for keys in entry.ways):
            continue
        value = _at(content, entry.ways[0])
        inner = _INTERPOLATION.fullmatch(value) if isinstance(value, str) else None
        shown = " ".join(text[entry.key : entry.end].split())
        read_from = (inner["name"],) if inner else ()
        found.append(Place(entry.key, shown, same(value, change.old), entry.put, read_from))
    return found


def added(path: Path, text: str, values: Configuration, fields: Collection[str]) -> Piece | None:
    """The piece that adds settings to the mapping that holds most of the training config; None if none does."""
    content, counts = read(path, text), dict[Keys, int]()
    for keys, _ in items_in(content):
        counts[keys[:-1]] = counts.get(keys[:-1], 0) + (keys[-1] in fields)
    table = max(reversed(counts), key=lambda keys: counts[keys], default=())  # of equal ones the last
    if not counts.get(table):
        return None
    goal = {(*table, name): plain(value) for name, value in values.items()}
    for entry in (
        one for key in reversed(_at(content, table)) for one in _entries(path, text, [key]) if (*table, key) in one.ways
    ):
        quote, equals = present(re.match(r"""(["']?)[\w.-]+["']?([ \t]*[:=])""", text[entry.key :])).groups()
        indent = text[text.rfind("\n", 0, entry.key) + 1 : entry.key]
        between = " " if indent.strip() else ("\r\n" if "\r\n" in text else "\n") + indent
        pairs = [f"{between}{quote}{key}{quote}{equals} {_value_text(path, plain(new))}" for key, new in values.items()]
        end = entry.end + len(present(re.match(r".*?(?=\r?$)", text[entry.end :], re.MULTILINE))[0])
        for start, new in ((end, "".join(pairs)), (entry.end, "".join(f",{pair}" for pair in pairs))):
            if proven(path, text, splice(text, [Span(start, start, new)]), goal):
                return Piece(start, start, new, goal)
    return None


def proven(path: Path, text: str, after: str, goal: Mapping[Keys, Value]) -> bool:
    """Whether a new text of a file holds what the old one does, but for what is to be there."""
    wanted = {"": json.loads(json.dumps(read(path, text)))}  # no alias is shared
    for keys, value in goal.items():
        _at(wanted[""], keys[:-1])[keys[-1]] = value
    return _exactly(read(path, after)) == _exactly(wanted[""])


def items_in(value: Value, keys: Keys = ()) -> Iterator[tuple[Keys, Value]]:
    """All entries of all mappings in a value, with the ways to them."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict):
            yield (*keys, key), item
        yield from items_in(item, (*keys, key))


def count(path: Path, text: str, fields: Collection[str]) -> int:
    """How many settings of a training config the text holds."""
    return sum(keys[-1] in fields for keys, _ in items_in(read(path, text)))


def _exactly(value: Value) -> str:
    """A content as text: 1 is neither 1.0 nor true."""
    return json.dumps(json.loads(json.dumps(value)), sort_keys=True)


def _at(value: Any, keys: Keys) -> Any:
    for key in keys:
        value = value[key]
    return value


# ------------------------------------------------------------------------------------------------------------ entries


@dataclass(frozen=True)
class _Entry:
    """A value as a text has it.

    Attributes:
        path: of the file.
        key: where its key begins.
        start, end: of the value.
        blank: what is missing before the value.
        ways: to the value in the content; several where an alias repeats it.
    """

    path: Path
    key: int
    start: int
    end: int
    blank: str
    ways: tuple[Keys, ...]

    def put(self, new: Value) -> Piece | None:
        if new is None and self.path.suffix == ".toml":
            return None
        text = self.blank + _value_text(self.path, plain(new))
        return Piece(self.start, self.end, text, dict.fromkeys(self.ways, plain(new)))


def _entries(path: Path, text: str, names: Collection[str]) -> Iterator[_Entry]:
    """Where keys of these names have their values."""
    either = "|".join(map(re.escape, names))
    for found in re.finditer(rf"""(?<![\w-])(["']?)(?:{either})\1[ \t]*[:=][ \t]*""", text):
        key, start = found.span()
        blank = " " if text[start - 1] == ":" else ""
        for end in _ends(text, start):
            after = splice(text, [Span(start, end, f'{blank}"{_MARK}"')])
            ways = tuple(keys for keys, value in items_in(read(path, after)) if keys[-1] in names and value == _MARK)
            if ways and proven(path, text, after, dict.fromkeys(ways, _MARK)):
                yield _Entry(path, key, start, end, blank, ways)
                break


def _ends(text: str, start: int) -> Iterator[int]:
    """Where the value that begins there may end, the longest text first; a comment after it is no part of it."""
    line = present(re.match(r".*?(?=\r?$)", text[start:], re.MULTILINE))[0]
    ends = [len(_COMMENT.sub("", line)), len(line.rstrip())]
    if text[start : start + 1] in ("[", "{"):
        ends += [found.end() for found in re.finditer(r"[\]}]", text[start:])][:_MOST_ENDS]
    ends += [found.start() for found in re.finditer(r"\s*[,}\]]", line)][:-_MOST_ENDS:-1]
    yield from (start + end for end in ends)


def _value_text(path: Path, value: Value) -> str:
    """A value in one line. PyYAML writes 1.0e-06, which every reader of YAML takes for a number."""
    if path.suffix in (".json", ".toml"):
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.rstrip("\n")[1:-1]
