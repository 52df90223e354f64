"""What this tool and a site say to each other: a line of JSON each.

A plan, a target, a result are trees of frozen dataclasses. `encode` writes such a tree as JSON and `decode` makes an
equal one of it. Nothing else can come over the line: a class is looked up by its name, among those of this package that
are plain data, so whoever writes a line cannot have other code run.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

from bisect_cfg.common.json_files import JsonObject

KIND = "$kind"
"""Key of an object that stands for something which JSON has not: the class of this package, or one of the words
"tuple", "set", "path", and "dict" of a mapping whose keys are not all names."""


_MADE: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple, "set": frozenset, "dict": dict,
}  # fmt: skip


def encode(value: object) -> Any:
    """A tree of plain data as JSON has it.

    Raises:
        TypeError: there is something else in it.
    """
    if isinstance(value, enum.Enum):
        return {KIND: _name(value), "value": encode(value.value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return {KIND: "path", "value": str(value)}
    if dataclasses.is_dataclass(value):
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {KIND: _name(value), "fields": fields}
    if isinstance(value, tuple):
        kind = _name(value) if hasattr(value, "_fields") else "tuple"
        return {KIND: kind, "items": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, Set):
        return {KIND: "set", "items": [encode(item) for item in value]}
    if isinstance(value, Mapping):
        if KIND in value or not all(isinstance(key, str) for key in value):
            return {KIND: "dict", "items": [[encode(key), encode(item)] for key, item in value.items()]}
        return {key: encode(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__qualname__} is no plain data")


def decode(data: Any) -> Any:
    """What `encode` was given; mappings are dicts, sets are frozen.

    Raises:
        ValueError: it comes from another version of this package.
    """
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data.get(KIND)
    if kind is None:
        return {key: decode(item) for key, item in data.items()}
    items = [decode(item) for item in data.get("items", ())]
    if kind in _MADE:
        return _MADE[kind](items)
    if kind == "path":
        return Path(data["value"])
    try:
        cls = _class(kind)
        if "value" in data:
            return cls(decode(data["value"]))
        return cls(*items) if "items" in data else cls(**{key: decode(item) for key, item in data["fields"].items()})
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"{kind} is not known here: {error}") from None


def _name(value: object) -> str:
    cls = type(value)
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(kind: str) -> Any:
    module, _, name = kind.partition(":")
    cls = getattr(importlib.import_module(module), name) if module.startswith("bisect_cfg.") else None
    plain = isinstance(cls, type) and (
        dataclasses.is_dataclass(cls) or issubclass(cls, enum.Enum) or hasattr(cls, "_fields")
    )
    if not plain:
        raise TypeError("it is no plain data of this package")
    return cls


def line_of(message: JsonObject) -> bytes:
    """A message as a line."""
    return json.dumps({key: encode(value) for key, value in message.items()}).encode("utf-8", "surrogatepass") + b"\n"


def message_in(line: bytes) -> JsonObject:
    """The message of a line.

    Raises:
        ValueError: it is none.
    """
    return {key: decode(value) for key, value in json.loads(line).items()}
