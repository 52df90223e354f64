"""Edits of a YAML file, or of JSON, which is YAML too.

The marks of PyYAML say where each key and value stands, and that part alone is exchanged: a round trip through
ruamel.yaml rewrites the indentation and spaces of other lines. The result is read again by PyYAML, the reader of
TrlParser and transformers, and counts only if nothing but the setting differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.common.files import load_json, load_yaml
from bisect_cfg.rewrite.place import Change, Piece, Place, changes_only, plain, same, splice, whole_lines, without_item

_ALIAS = re.compile(r"\s*:\s*(?P<alias>\*[^\s,\[\]{}]+)")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""The anchor and the tag before a value."""

_INTERPOLATION = re.compile(r"\$\{[^}:]*?(?P<name>\w+)\}")
"""Of OmegaConf: ``${training.lr}``."""


@dataclass(frozen=True)
class _Entry:
    """A key of a mapping, and its value."""

    key: yaml.ScalarNode
    value: yaml.Node
    mapping: yaml.MappingNode
    parent: _Entry | None

    @property
    def name(self) -> str:
        return str(self.key.value)


def read(path: Path, text: str) -> Value:
    """The content of a file; None if it has none, or is not what its name says."""
    try:
        return load_json(text) if _is_json(path) else load_yaml(text)
    except ValueError:
        return None


def places(path: Path, text: str, change: Change, names: Collection[str]) -> list[Place]:
    """Where the text gives a value to one of the names."""
    found = []
    for entry in _entries(text):
        is_key = entry.parent is not None and entry.parent.name == change.field
        if entry.name not in names or (change.field and change.key in names and not is_key):
            continue
        value = _value(entry.value)
        inner = _INTERPOLATION.fullmatch(value) if isinstance(value, str) else None
        start, (_, end) = entry.key.start_mark.index, _span(text, entry.key, entry.value)
        found.append(
            Place(
                start,
                " ".join(text[start:end].split()),
                same(value, change.old),
                lambda new, entry=entry: _put(path, text, entry, names, new),
                (inner["name"],) if inner else (),
            )
        )
    return found


def added(path: Path, text: str, values: Configuration, fields: Collection[str]) -> Piece | None:
    """The piece that adds settings to the mapping that holds most of the training config; None if none does."""
    mappings: dict[int, list[_Entry]] = {}
    for entry in _entries(text):
        mappings.setdefault(entry.mapping.start_mark.index, []).append(entry)
    ranked = sorted(mappings.values(), key=lambda entries: sum(entry.name in fields for entry in entries))
    if not ranked or not any(entry.name in fields for entry in ranked[-1]):
        return None
    last = ranked[-1][-1]
    pairs = [
        f"{json.dumps(name) if _is_json(path) else name}: {_written(path, value)}" for name, value in values.items()
    ]
    _, end = _span(text, last.key, last.value)
    if last.mapping.flow_style:
        return _checked(path, text, (end, end, "".join(f", {pair}" for pair in pairs)), values, values)
    end = text.find("\n", end) if "\n" in text[end:] else len(text)
    ending = "\r\n" if text[:end].endswith("\r") else "\n"
    end -= ending == "\r\n"
    lines = "".join(f"{ending}{' ' * last.key.start_mark.column}{pair}" for pair in pairs)
    return _checked(path, text, (end, end, lines), values, values)


def without(path: Path, text: str, name: str) -> str | None:
    """The text without the entries of this name; None if they cannot be removed."""
    for entry in reversed([entry for entry in _entries(text) if entry.name == name]):
        text = splice(text, _removed(text, entry)[0])
    return text if not any(entry.name == name for entry in _entries(text)) else None


def count(path: Path, text: str, fields: Collection[str]) -> int:
    """How many settings of a training config the text holds."""
    return sum(entry.name in fields for entry in _entries(text))


# ------------------------------------------------------------------------------------------------------- reading


def _entries(text: str) -> list[_Entry]:
    """Every entry of every mapping, each once: an alias counts where its anchor is."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    seen: set[int] = set()

    def walk(node: yaml.Node, parent: _Entry | None) -> Iterator[_Entry]:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from walk(item, parent)
        elif isinstance(node, yaml.MappingNode):
            in_force = {key.value: key for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and in_force[key.value] is key:  # of two the last one counts
                    entry = _Entry(key, value, node, parent)
                    yield entry
                    yield from walk(value, entry)

    return list(walk(root, None)) if root is not None else []


def _value(node: yaml.Node) -> Value:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError):  # a tag of somebody's own, a date that is none
        return None
    finally:
        loader.dispose()


def _end(node: yaml.Node) -> int:
    """Where a node's own text ends; a block's mark is where the next one begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return node.end_mark.index
    last = node.value[-1]
    return max(map(_end, last)) if isinstance(last, tuple) else _end(last)


def _span(text: str, key: yaml.Node, value: yaml.Node) -> tuple[int, int]:
    """Where a value stands, without its anchor and tag; of an alias, the alias."""
    alias = _ALIAS.match(text, key.end_mark.index)
    if alias:
        return alias.span("alias")
    start, end = value.start_mark.index, _end(value)
    end = max(start, start + len(text[start:end].rstrip()))  # of a block scalar, not the lines below
    return min(_PROPERTIES.match(text, start).end(), end), end


# ------------------------------------------------------------------------------------------------------- writing


def _put(path: Path, text: str, entry: _Entry, names: Collection[str], new: Value) -> Piece | None:
    if new is None:
        piece, gone = _removed(text, entry)
        return _checked(path, text, piece, (*names, gone), {})
    start, end = _span(text, entry.key, entry.value)
    old, new = entry.value, plain(new)
    if isinstance(old, yaml.SequenceNode) and isinstance(new, (list, tuple)) and new and text[start] == "-":
        indent = start - text.rfind("\n", 0, start) - 1
        between = ("\r\n" if "\r\n" in text else "\n") + " " * indent
        written = between.join(f"- {_written(path, item)}" for item in new)
    else:
        style = old.style if isinstance(old, yaml.ScalarNode) else None
        written = _written(path, new, style, bool(entry.mapping.flow_style))
        if text[start - 1] == ":":  # a key without a value
            written = f" {written}"
    return _checked(path, text, (start, end, written), names, dict.fromkeys(names, new))


def _written(path: Path, value: Value, style: str | None = None, in_flow: bool = False) -> str:
    """A value in one line. PyYAML writes 1.0e-06, which every reader takes for a number.

    Args:
        path: of the file.
        value: the value.
        style: the quotes of the text that it replaces.
        in_flow: whether it stands in braces, where more texts need quotes.
    """
    if _is_json(path):
        return json.dumps(value)
    style = style if isinstance(value, str) and style in ("'", '"') else None
    line = yaml.safe_dump(
        [value] if in_flow else value,
        default_flow_style=True,
        default_style=style,
        width=float("inf"),
        sort_keys=False,
        allow_unicode=True,
    ).splitlines()[0]
    return line[1:-1] if in_flow else line


def _is_json(path: Path) -> bool:
    return path.suffix == ".json"


def _removed(text: str, entry: _Entry) -> tuple[Piece, str]:
    """The piece that removes an entry, and the entry's name; a mapping that it leaves empty goes with it."""
    while len(entry.mapping.value) == 1 and entry.parent is not None and entry.parent.value is entry.mapping:
        entry = entry.parent
    spans = [
        (key.start_mark.index, max(key.end_mark.index, _span(text, key, value)[1]))
        for key, value in entry.mapping.value
    ]
    own = next(span for span in spans if span[0] == entry.key.start_mark.index)
    if entry.mapping.flow_style:
        return without_item(text, spans, own), entry.name
    return (*(whole_lines(text, *own, closing=":") or own), ""), entry.name


def _checked(path: Path, text: str, piece: Piece, names: Collection[str], wanted: Configuration) -> Piece | None:
    """The piece, if with it the file holds what is wanted and nothing else differs; see `changes_only`."""
    before, after = read(path, text), read(path, splice(text, piece))
    return piece if changes_only(before, after, names, wanted) else None
