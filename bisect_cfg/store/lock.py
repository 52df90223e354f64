"""One process at a time: a locked file, which the system unlocks when its process dies, however that is.

The number of the process stands in the file, so that whoever comes second can be told. Processes on other machines are
not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bisect_cfg.common.json_files import private

_held: set[IO[str]] = set()


def _let_go() -> None:
    for stream in _held:
        stream.close()


os.register_at_fork(after_in_child=_let_go)  # a child that outlives its parent would hold the file on


class Held(RuntimeError):
    """Another process has the file, or another part of this one; its number is 0 where it is not known."""

    def __init__(self, process: int) -> None:
        super().__init__(f"process {process}" if process else "another process")
        self.process = process


@contextlib.contextmanager
def locked(path: Path, passing: bool = False) -> Iterator[None]:
    """With a file locked, which is made if it is not there (no link is followed), and removed again where it is only
    for `passing`.

    Raises:
        Held: somebody else has it.
        OSError: it cannot be made.
    """
    with open(private(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK), "r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(int(f"0{stream.read()}")) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        _held.add(stream)
        try:
            yield
        finally:
            _held.discard(stream)
            stream.truncate(0)
            if passing:
                path.unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Whether somebody has locked a file at this moment."""
    with contextlib.suppress(OSError), open(private(path, os.O_RDONLY)) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def place_of(key: str) -> Path:
    """The file to lock for what has no folder of its own."""
    return Path(tempfile.gettempdir(), f"bisect-cfg-{os.getuid()}-{key}.lock")
