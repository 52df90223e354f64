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

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate


class Log:
    """A log that is being written, by whoever has it open for appending.

    A hole takes the place of the middle while the log grows, which loses nothing else and which no writer notices. A
    file system without holes (some network disks) has the whole log until the run is over.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._freed = LOG_HEAD  # up to here it is gone, or head

    def bound(self) -> None:
        """Let the middle go if there is too much of it."""
        with contextlib.suppress(OSError), _opened(self._path) as log:  # there is none yet, perhaps
            size = os.fstat(log.fileno()).st_size
            if size - self._freed > LOG_TAIL + LOG_SLACK:
                end = (size - LOG_TAIL) // BLOCK * BLOCK
                where = ctypes.c_longlong(self._freed), ctypes.c_longlong(end - self._freed)
                ctypes.CDLL(None).fallocate(log.fileno(), _KEEP_SIZE | _PUNCH_HOLE, *where)
                self._freed = end


def shorten(path: str | os.PathLike[str]) -> None:
    """Keep the head and the tail of a log that is no longer written."""
    with contextlib.suppress(OSError), _opened(path) as log:
        size = os.fstat(log.fileno()).st_size
        if size <= LOG_HEAD + LOG_TAIL + LOG_SLACK // 4:
            return
        head = log.read(LOG_HEAD)
        head_end = head.rfind(b"\n") + 1 or len(head)
        log.seek(size - LOG_TAIL)
        tail = log.read(LOG_TAIL)
        first_line = tail.find(b"\n", 0, LOG_TAIL // 2) + 1  # the rest of a line says little
        log.truncate(head_end)
        log.seek(head_end)
        log.write(f"\n[... {size - LOG_TAIL + first_line - head_end} bytes left out here ...]\n\n".encode())
        log.write(tail[first_line:])


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    return open(path, "r+b", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW))
