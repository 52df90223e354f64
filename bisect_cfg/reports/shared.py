"""What is made to be shown to others: texts without home directories and user names.

A study's folder keeps paths, since it is resumed by them; what is pasted into an issue or mailed has `~` and `user` in
their place. Secrets are masked before anything is written down (`probe.secrets`).
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Iterator
from functools import cache

from bisect_cfg.configuration import Value
from bisect_cfg.probe.secrets import scrub

_HOMES = re.compile(r"(?<![\w.-])(?:/home|/Users|/export/home|[A-Za-z]:\\Users)[/\\]([^/\\\s'\":,;]+)")
"""Where people's directories lie on Linux, macOS and Windows."""

EVERYBODY = frozenset(
    ("root", "user", "users", "admin", "ubuntu", "debian", "ec2-user", "jovyan", "runner", "nobody", "default", "home")
)
"""Accounts that name nobody; their names are ordinary words."""

NAME = "user"
"""What stands in place of a name."""


def shared(value: Value) -> Value:
    """A copy of plain data in which no text gives away a home directory, a user's name or a secret.

    Args:
        value: a text, or lists and dicts of texts, numbers and None.
    """
    names = {name for words in _texts(value) for name in _HOMES.findall(words)}
    home = os.path.expanduser("~")
    try:
        names.add(getpass.getuser())
    except (KeyError, OSError):  # a user without an entry, in a container
        pass
    names = {name for name in names if name.lower() not in EVERYBODY and len(name) > 1}
    people = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?![\w-])")
    own = re.compile(rf"(?<![\w.-]){re.escape(home)}(?=[/\s'\":,;)\]]|$)") if len(home) > 1 else None

    @cache
    def without(words: str) -> str:
        if own is not None and home in words:
            words = own.sub("~", words)
        words = _HOMES.sub("~", words)
        return scrub(people.sub(NAME, words) if names else words)

    return _mapped(value, without)


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
