"""Keeping logs from growing."""

from __future__ import annotations

import contextlib
import ctypes
import os

LOG_HEAD = 1 << 20
LOG_TAIL = 3 << 20
"""Bytes of a log that are kept: how it began, and what came before its end. Signatures are read from less."""

LOG_SLACK = 4 << 20
"""A running log may be so much longer before its middle is let go."""


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
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            size = os.fstat(handle).st_size
            if size - self._freed <= LOG_TAIL + LOG_SLACK:
                return False
            end = (size - LOG_TAIL) // 4096 * 4096
            if _punch(handle, self._freed, end - self._freed):
                self._freed = end
            else:
                _cut(handle, size)
            return True
        except OSError:  # a full disk: the log is as it is
            return False
        finally:
            os.close(handle)


def shorten(path: str | os.PathLike[str]) -> None:
    """Keep the head and the tail of a log that is no longer written."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(handle).st_size
            if size > LOG_HEAD + LOG_TAIL + LOG_SLACK // 4:
                _cut(handle, size)
        finally:
            os.close(handle)


def _cut(handle: int, size: int) -> None:
    head = os.pread(handle, LOG_HEAD, 0)
    head_end = head.rfind(b"\n") + 1 or len(head)
    start = size - LOG_TAIL
    tail = os.pread(handle, LOG_TAIL, start)
    first_line = tail.find(b"\n", 0, LOG_TAIL // 2) + 1  # the rest of a line says little
    tail = tail[first_line:]
    os.ftruncate(handle, head_end)
    note = f"\n[... {start + first_line - head_end} bytes left out here ...]\n\n".encode()
    view = memoryview(note + tail)
    while view:
        view = view[os.write(handle, view) :]


def _punch(handle: int, start: int, length: int) -> bool:
    keep_size, punch_hole = 1, 2
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except AttributeError:
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return fallocate(handle, keep_size | punch_hole, start, length) == 0
