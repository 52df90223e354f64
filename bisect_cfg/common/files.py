"""What a user names is opened here and nowhere else: a regular file within a size. And what it holds is read here, one
function a format, so that nothing in it is a trap: no alias that grows into millions of values, no nesting without end,
no text that cannot be written again, and a wrong type is said with the key that has it.

All of it is said as `OSError` (the file) or `ValueError` (its content), whose text can be shown.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Hashable, Iterator
from functools import cache
from typing import Any

LARGEST = 64 << 20
"""Bytes of a file that is read whole: a notebook with its pictures, the result of a study of thousands of trials."""

DEEPEST, MOST_VALUES = 60, 200_000
"""How deeply values may be nested, and how many a YAML file may hold once its aliases are written out."""

_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
_NO_JSON = ("timestamp", "binary", "set", "omap", "pairs")
"""Tags of YAML whose values no setting can be."""

_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$")


class Trap(ValueError):
    """Data that can be read and must not be used: it contains itself, grows without end, or cannot be written."""


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8", largest: int = LARGEST) -> str:
    """The text of a file that a user named; see `read_bytes`. Raises UnicodeDecodeError if it is none."""
    return read_bytes(path, largest).decode(encoding)


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """The content of a file that a user named, or of what a link to it leads to.

    Raises:
        OSError: it is not there, is no regular file, or has more than so many bytes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer would be waited for
    with open(handle, "rb") as stream:
        known = os.fstat(handle)
        if not stat.S_ISREG(known.st_mode):
            kind = next((kind for holds, kind in _KINDS if holds(known.st_mode)), "a device")
            raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
        content = (stream.read(largest + 1) or b"") if known.st_size <= largest else b""  # None: nothing yet, in /proc
        if known.st_size > largest or len(content) > largest:
            raise OSError(errno.EFBIG, f"it has more than {largest >> 20} MB", str(path))
    return content


@contextlib.contextmanager
def _not_too_deep() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@_not_too_deep()
def load_json(text: str, ours: bool = False) -> Any:
    """What a JSON text holds; names of files in `ours`, which the tool wrote, may be no text (PEP 383)."""
    return json.loads(text) if ours else _checked(json.loads(text))


@_not_too_deep()
def load_toml(text: str) -> dict[str, Any]:
    """What a TOML text holds; a date is its text."""
    content: dict[str, Any] = _checked(json.loads(json.dumps(tomllib.loads(text), default=str)))
    return content


@_not_too_deep()
def load_yaml(text: str, settings: bool = False) -> Any:
    """What a YAML text holds, of the kinds that JSON has: a date is its text, and names are texts. In `settings`, which
    a person wrote for us, ``1e-6`` is a number, as YAML 1.2 has it, and a name comes once. An error says the line."""
    import yaml

    try:
        loader = _loader(settings)(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MOST_VALUES:
            raise Trap(f"its aliases stand for more than {MOST_VALUES:,} values")
        return _checked(loader.construct_document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or str(error)
        kind = Trap if isinstance(error, yaml.constructor.ConstructorError) else ValueError
        raise kind(f"line {mark.line + 1}: {said}" if mark else said) from None
    except (AttributeError, KeyError, TypeError) as error:  # of PyYAML's own: !!bool 5, !!timestamp x
        raise ValueError(f"a value is not what its tag says ({error})") from None


@cache
def _loader(settings: bool) -> type:
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
        yaml_constructors = {
            tag: constructor
            for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
            if tag is None or tag.rpartition(":")[2] not in _NO_JSON
        }

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            if settings and len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise yaml.constructor.ConstructorError(None, None, f"{twice} comes twice", node.start_mark)
            return {str(key): value for key, value in super().construct_mapping(node, deep=True).items()}

    if settings:
        Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    return Loader


def _size(node: Any, known: dict[int, int | None]) -> int:
    """How many values a node of YAML stands for, aliases written out; `known` is of the nodes that were counted."""
    if id(node) not in known:
        known[id(node)] = None
        parts = node.value if isinstance(node.value, list) else []
        flat = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_size(part, known) for part in flat)
    size = known[id(node)]
    if size is None:
        raise Trap("it contains itself, which no setting can")
    return size


def _checked(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Trap(f"{value[:40]!r} has half of a character in it") from None
    for part in (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
        _checked(part, depth + 1)
    return value
