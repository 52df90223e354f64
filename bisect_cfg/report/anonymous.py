"""What is made to be shown to others: texts without home directories and user names.

A study's folder keeps paths, since it is resumed by them; what is pasted into an issue or mailed has `~` and `user` in
their place. Secrets are masked before anything is written down (`probe.redact`).
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from functools import cache
from typing import TypeVar, cast

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.words import clean
from bisect_cfg.report.answer import of_plain, plain
from bisect_cfg.report.recorded import Recorded

_HOMES = re.compile(r"(?<![\w.-])(?:/home|/Users|/export/home|[A-Za-z]:\\Users)[/\\]([^/\\\s'\":,;]+)")
"""Where people's directories lie on Linux, macOS and Windows."""

EVERYBODY = frozenset(
    ("root", "user", "users", "admin", "ubuntu", "debian", "ec2-user", "jovyan", "runner", "nobody", "default", "home")
)
"""Accounts that name nobody; their names are ordinary words."""

NAME = "user"
"""What stands in place of a name."""


Plain = TypeVar("Plain")


def shared(value: Plain) -> Plain:
    """A copy of plain data in which no text gives away a home directory, a user's name or a secret, or turns around
    what stands beside it.

    Args:
        value: a text, or lists and dicts of texts, numbers and None.
    """
    home = os.path.expanduser("~")
    others = {name for words in _texts(value) for name in _HOMES.findall(words)}
    try:
        own = {getpass.getuser()}
    except (KeyError, OSError):  # a user without an entry, in a container
        own = set()
    here = re.compile(rf"(?<![\w.-]){re.escape(home)}(?=[/\s'\":,;)\]]|$)") if len(home) > 1 else None
    # Somebody whose directory is named may be called as a thing is (/home/data): only where it must be a name.
    placed = _any_of(others | own, r"(?<=/){}(?=[/@])|(?<![\w.-]){}(?=@)")
    alone = _any_of(own, r"(?<![\w.-]){}(?![\w-]|\.\w)")

    @cache
    def without(words: str) -> str:
        if here is not None and home in words:
            words = here.sub("~", words)
        words = _HOMES.sub("~", words)
        for names in (placed, alone):
            words = names.sub(NAME, words) if names is not None else words
        return clean(words)

    return cast(Plain, _mapped(value, without))


def anonymous(recorded: Recorded) -> Recorded:
    """The same study without what gives somebody away."""
    return replace(recorded, answer=of_plain(shared(plain(recorded.answer))))


def _any_of(names: Set[str], pattern: str) -> re.Pattern[str] | None:
    """A pattern with any of these names where it has braces; None if none of them names a person."""
    found = sorted((name for name in names if name.lower() not in EVERYBODY and len(name) > 1), key=len, reverse=True)
    return re.compile(pattern.replace("{}", f"(?:{'|'.join(map(re.escape, found))})")) if found else None


def _mapped(value: Value, change: Callable[[str], str]) -> Value:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    return value


def _texts(value: Value) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
