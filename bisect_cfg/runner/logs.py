"""Keeping logs from growing. The supervisor's process uses it: nothing but the standard library is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import BinaryIO

LOG_HEAD = 1 << 20
LOG_TAIL = 3 << 20
"""Bytes of a log that are kept: how it began, and what came before its end. Signatures are read from less."""

LOG_SLACK = 4 << 20
"""A running log may be so much longer before its middle is let go."""

BLOCK = 4096
"""Bytes of a file system's blocks: holes begin and end with one."""


class Log:
    """A log that is being written, by whoever has it open for appending.

    Where the file system can, a hole takes the place of the middle while the log grows, which loses nothing else and
    which no writer notices. Elsewhere the log is cut and its end appended again.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._freed = LOG_HEAD  # up to here it is gone, or head

    def bound(self) -> bool:
        """Let the middle go if there is too much of it; whether there was."""
        with contextlib.suppress(OSError), open(self._path, "r+b", opener=_appending) as log:
            size = os.fstat(log.fileno()).st_size
            if size - self._freed > LOG_TAIL + LOG_SLACK:
                end = (size - LOG_TAIL) // BLOCK * BLOCK
                if _punch(log.fileno(), self._freed, end - self._freed):
                    self._freed = end
                else:
                    _cut(log, size)
                return True
        return False  # there is none, or the disk is full: it is as it is


def shorten(path: str | os.PathLike[str]) -> None:
    """Keep the head and the tail of a log that is no longer written."""
    with contextlib.suppress(OSError), open(path, "r+b", opener=_appending) as log:
        size = os.fstat(log.fileno()).st_size
        if size > LOG_HEAD + LOG_TAIL + LOG_SLACK // 4:
            _cut(log, size)


def _appending(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)


def _cut(log: BinaryIO, size: int) -> None:
    head = log.read(LOG_HEAD)
    head_end = head.rfind(b"\n") + 1 or len(head)
    log.seek(size - LOG_TAIL)
    tail = log.read(LOG_TAIL)
    first_line = tail.find(b"\n", 0, LOG_TAIL // 2) + 1  # the rest of a line says little
    log.truncate(head_end)
    log.write(f"\n[... {size - LOG_TAIL + first_line - head_end} bytes left out here ...]\n\n".encode())
    log.write(tail[first_line:])


def _punch(handle: int, start: int, length: int) -> bool:
    keep_size, punch_hole = 1, 2
    fallocate = ctypes.CDLL(None).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return fallocate(handle, keep_size | punch_hole, start, length) == 0
