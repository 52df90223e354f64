"""Changes of a YAML file, or of JSON, which is YAML too.

PyYAML says where in the text each key and value stands, and only that piece is exchanged. (A round trip
through a document that knows its comments, as ruamel.yaml makes it, would set indentation and spaces of
other lines anew.) What comes out is read back by PyYAML, the reader of TrlParser and transformers, and
counts only if nothing but the setting has another value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.files import load_json, load_yaml
from bisect_cfg.recommend.edits._place import Change, Occurrence, plain, same, splice, whole_lines, without_item

_ALIAS = re.compile(r"\s*:\s*(?P<alias>\*[^\s,\[\]{}]+)")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""The anchor and the tag before a value."""

_INTERPOLATION = re.compile(r"\$\{[^}:]*?(?P<name>\w+)\}")
"""OmegaConf's: ``${training.lr}``."""


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
    """The content of a file that configures a run.

    Returns:
        What it holds; None if it holds nothing, or is not what its name says.
    """
    try:
        return load_json(text) if _is_json(path) else load_yaml(text)
    except ValueError:
        return None


def places(path: Path, text: str, change: Change, names: Collection[str]) -> list[Occurrence]:
    """Where a file gives a value to one of the names.

    Args:
        path: of the file.
        text: of the file.
        change: what is looked for.
        names: what it may be called.
    """
    found = []
    for entry in _entries(text):
        is_key = entry.parent is not None and entry.parent.name == change.field
        if entry.name not in names or (change.field and change.key in names and not is_key):
            continue
        value = _value(entry.value)
        inner = _INTERPOLATION.fullmatch(value) if isinstance(value, str) else None
        _, end = _span(text, entry.key, entry.value)
        found.append(
            Occurrence(
                path,
                entry.key.start_mark.line + 1,
                " ".join(text[entry.key.start_mark.index : end].split()),
                same(value, change.old),
                (inner["name"],) if inner else (),
                lambda new, entry=entry: _put(path, text, entry, names, new),
            )
        )
    return found


def added(path: Path, text: str, values: Configuration, fields: Collection[str]) -> str | None:
    """The text with further settings, in the mapping that holds the most of the training config.

    Args:
        path: of the file.
        text: of the file.
        values: name -> value.
        fields: of the training config.

    Returns:
        None if no mapping of the file holds a training config.
    """
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
        return _checked(path, text, splice(text, (end, end, "".join(f", {pair}" for pair in pairs))), values, values)
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    ending = "\r\n" if text[:stop].endswith("\r") else "\n"
    stop -= ending == "\r\n"
    lines = "".join(f"{ending}{' ' * last.key.start_mark.column}{pair}" for pair in pairs)
    return _checked(path, text, splice(text, (stop, stop, lines)), values, values)


def without(text: str, name: str) -> str | None:
    """The text without the entries of this name; None if they cannot be taken out."""
    for entry in reversed([entry for entry in _entries(text) if entry.name == name]):
        text, _ = _removed(text, entry)
    return text if not any(entry.name == name for entry in _entries(text)) else None


def count(text: str, fields: Collection[str]) -> int:
    """How many settings of a training config a file holds."""
    return sum(entry.name in fields for entry in _entries(text))


# ------------------------------------------------------------------------------------------------------- reading


def _entries(text: str) -> list[_Entry]:
    """Every entry of every mapping, each once: what an alias repeats is where its anchor is."""
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
    except yaml.YAMLError:  # a tag of somebody's own
        return None
    finally:
        loader.dispose()


def _end(node: yaml.Node) -> int:
    """Where a node's own text ends; the parser's mark of a block is where the next one begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return node.end_mark.index
    last = node.value[-1]
    return max(map(_end, last)) if isinstance(last, tuple) else _end(last)


def _span(text: str, key: yaml.Node, value: yaml.Node) -> tuple[int, int]:
    """Where a value stands, without its anchor and tag; of an alias, where that stands."""
    alias = _ALIAS.match(text, key.end_mark.index)
    if alias:
        return alias.span("alias")
    start, end = value.start_mark.index, _end(value)
    end = max(start, start + len(text[start:end].rstrip()))  # of a block scalar, not the lines below
    return min(_PROPERTIES.match(text, start).end(), end), end


# ------------------------------------------------------------------------------------------------------- writing


def _put(path: Path, text: str, entry: _Entry, names: Collection[str], new: Value) -> str | None:
    if new is None:
        after, gone = _removed(text, entry)
        return _checked(path, text, after, (*names, gone), {})
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
    return _checked(path, text, splice(text, (start, end, written)), names, dict.fromkeys(names, new))


def _written(path: Path, value: Value, style: str | None = None, in_flow: bool = False) -> str:
    """A value in one line. PyYAML writes 1.0e-06, which every reader takes for a number.

    Args:
        path: of the file.
        value: the value.
        style: the quotes of the text that it replaces.
        in_flow: whether it stands in braces, where more text needs quotes.
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


def _removed(text: str, entry: _Entry) -> tuple[str, str]:
    """The text without an entry, and its name; a mapping that would be left empty goes with it."""
    while len(entry.mapping.value) == 1 and entry.parent is not None and entry.parent.value is entry.mapping:
        entry = entry.parent
    spans = [
        (key.start_mark.index, max(key.end_mark.index, _span(text, key, value)[1]))
        for key, value in entry.mapping.value
    ]
    own = next(span for span in spans if span[0] == entry.key.start_mark.index)
    if entry.mapping.flow_style:
        return without_item(text, spans, own), entry.name
    return splice(text, (*(whole_lines(text, *own, closing=":") or own), "")), entry.name


def _checked(path: Path, before: str, after: str, names: Collection[str], wanted: Configuration) -> str | None:
    """The new text, if all that has another value now is what was wanted; None otherwise.

    Args:
        path: of the file.
        before: the old text.
        after: the new one.
        names: of which some shall have changed.
        wanted: name -> value; a name that is not in it shall be gone.
    """
    changed = list(_differences(read(path, before) or {}, read(path, after) or {}))
    fine = all(
        name in names and (value is _GONE if name not in wanted else value is not _GONE and equal(value, wanted[name]))
        for name, value in changed
    )
    return after if changed and fine else None


_GONE = object()


def _differences(old: Value, new: Value, name: Value = None) -> Iterator[tuple[Value, Value]]:
    """(key, new value) of what differs; an item of a list goes by the list's key."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if key not in old:
                yield key, new[key]
            else:
                yield from _differences(old[key], new.get(key, _GONE), key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and any(map(_has_keys, old)):
        for left, right in zip(old, new, strict=True):
            yield from _differences(left, right, name)
    elif type(old) is not type(new) or not equal(old, new):
        yield name, new


def _has_keys(value: Value) -> bool:
    return isinstance(value, (dict, list))
