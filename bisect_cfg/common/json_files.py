"""Files that are there whole or not at all, whoever is killed while they are written; only their owner can read them.

A study holds the user's paths, arguments and settings. Its files are its owner's alone, and no secret is in them. Its
folder may have come from elsewhere: what is written there must not end up where a link in it leads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from bisect_cfg.probe.redact import mask

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
JsonObject = dict[str, Any]
"""What JSON calls an object, as it is read and written."""

OWNER_ONLY = 0o600
"""Mode of every file of a study; its folders have `FOLDER_MODE`."""

FOLDER_MODE = 0o700

_writing = threading.Lock()


def private(path: str | os.PathLike[str], flags: int) -> int:
    """An `opener` for `open` that makes a new file readable by its owner only, and follows no link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, OWNER_ONLY)


def make_folder(path: Path) -> None:
    """Make a folder of a study that only its owner can enter; nothing happens if it is there."""
    path.mkdir(FOLDER_MODE, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text, all or nothing; a link or a pipe of that name is replaced, not followed. What UTF-8 cannot hold
    (bytes of a file name) is written as it was. An OSError leaves nothing half-written."""
    temporary = path.with_name(path.name + ".new")
    with _writing:  # of one study one process writes, but perhaps several of its threads
        try:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            with open(temporary, "x", encoding="utf-8", errors="surrogateescape", opener=private) as stream:
                stream.write(text)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def write_json(path: Path, data: object, masked: Callable[[Any], object] = mask) -> None:
    """Write `data` without its secrets, which `masked` takes out; what JSON cannot hold is written as its `repr`."""
    plain = masked(json.loads(json.dumps(data, default=repr)))
    write_text(path, json.dumps(plain, indent=1) + "\n")


def strict(value: object) -> Any:
    """A copy that JSON can hold: NaN and infinity, which it has not, as text, and what else it lacks as its `repr`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [strict(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)


def digest(value: object) -> str:
    """A short name for a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:16]
