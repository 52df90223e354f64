"""The last handler: what ends a command, in two lines and with a status that says so; never a traceback.

What the machine or the user can do to a command (no space, no permission, a closed pipe, too few descriptors, a
damaged database) is told as such. What is left is a fault of ours: status 70, a file that has the details, and where to
send it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from bisect_cfg.probe.redact import scrub

USAGE = 2
"""Exit status for what the user or the machine has to change."""

INTERNAL = 70
"""Exit status for a fault of ours, EX_SOFTWARE of sysexits.h: 1 has a meaning of its own."""

CLOSED_PIPE = 141
"""Exit status when nobody reads any more what we print (`| head`): that of a program which SIGPIPE ended."""

GOES_ON = "Nothing recorded is lost: run the same command again to continue."


class OutputGone(Exception):
    """Standard output or error cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class AbnormalEnd:
    """How a command that did not come to its own end is told.

    Attributes:
        status: exit status.
        message: what happened, one line; "" for nothing at all.
        advice: what to do.
        goes_on: whether the study is as good as before; if not, it has to begin anew.
    """

    status: int
    message: str = ""
    advice: str = ""
    goes_on: bool = True


_SYSTEM = {
    errno.ENOSPC: ("no space is left on the device", "Make room."),
    errno.EDQUOT: ("your disk quota is exceeded", "Make room."),
    errno.EFBIG: ("a file grew larger than is allowed here", "Raise the limit of file sizes (ulimit -f)."),
    errno.EROFS: ("the file system is read-only", "Name a study folder elsewhere with --study."),
    errno.EACCES: ("permission denied", "Check who may write there, or name another study folder with --study."),
    errno.EPERM: (
        "the operation is not permitted",
        "Check who may write there, or name another study folder with --study.",
    ),
    errno.EMFILE: (
        "too many files are open",
        "Raise the limit (ulimit -n 1024), or run fewer trials at once with --jobs.",
    ),
    errno.ENFILE: ("too many files are open on this machine", "End what holds them, or run fewer trials with --jobs."),
    errno.EAGAIN: (
        "no further process can be started",
        "Raise the limit (ulimit -u), or run fewer trials with --jobs.",
    ),
    errno.ENOMEM: ("there is not enough memory", "Run fewer trials at once with --jobs."),
    errno.ENAMETOOLONG: (
        "a name is longer than the file system allows",
        "Name a study folder with a shorter path with --study.",
    ),
    errno.EIO: ("the device reports an error", "See the kernel's log."),
    errno.ESTALE: ("a network file system has lost the file", "Mount it again."),
    errno.ENOTCONN: ("a network file system is not connected", "Mount it again."),
}
"""What the operating system refuses, in words, and what helps."""

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)

_RESTART = "Start over with --restart (the old study is kept beside it)."
_DAMAGED = ("the study's database is damaged", _RESTART, False)
_DATABASE = {
    "disk is full": ("no space is left for the database", "Make room.", True),
    "disk i/o error": ("the database's files cannot be read or written", "Make room, or check the disk.", True),
    "readonly database": ("the study's database cannot be written", "Check who may write there.", True),
    "unable to open database": (
        "the study's database cannot be opened",
        "Check that its folder is there, and who may write in it.",
        True,
    ),
    "malformed": _DAMAGED,
    "not a database": _DAMAGED,
    "no such table": _DAMAGED,
    "no such column": ("the study's database is of another version of Optuna", _RESTART, False),
    "is locked": ("another process holds the study's database", "Wait for it to end.", True),
}
"""What a database's driver says -> what that means, what helps, and whether the study goes on once it has been done."""


def explained(error: BaseException) -> AbnormalEnd | None:
    """What an exception means if the user or the machine is behind it, None if it is a fault of ours."""
    if isinstance(error, OutputGone):
        if error.error.errno in (errno.EPIPE, errno.EBADF, errno.ECONNRESET):
            return AbnormalEnd(CLOSED_PIPE)
        what = _SYSTEM.get(error.error.errno or 0, (error.error.strerror or str(error.error), ""))[0]
        return AbnormalEnd(USAGE, f"The output cannot be written: {what}.", GOES_ON)
    for one in _chain(error):
        if isinstance(one, OSError):
            found = _of_the_system(one)
            if found:
                return found
        if isinstance(one, RuntimeError) and "start new thread" in str(one):
            return _of_the_system(OSError(errno.EAGAIN, str(one)))
        if _is_of_database(one):
            text = str(one).lower()
            for words, (what, advice, goes_on) in _DATABASE.items():
                if words in text:
                    message = f"{what[0].upper()}{what[1:]}."
                    return AbnormalEnd(USAGE, message, f"{advice} {GOES_ON}" if goes_on else advice, goes_on)
    if isinstance(error, MemoryError):
        return AbnormalEnd(USAGE, "There is not enough memory.", GOES_ON)
    return None


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is behind an error: a library that is being imported may make an error of its own of it."""
    return any(isinstance(one, KeyboardInterrupt) for one in _chain(error))


def refused_by_machine(error: BaseException) -> bool:
    """Whether room or permission is what a database lacks: beginning anew would not help."""
    found = explained(error)
    return found is not None and found.goes_on


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _of_the_system(error: OSError) -> AbnormalEnd | None:
    name = error.filename if isinstance(error.filename, str) else os.fsdecode(error.filename or b"")
    where = f": {name}" if name else ""
    if error.errno in _SYSTEM:
        what, advice = _SYSTEM[error.errno]
    elif error.errno in _GONE and name:
        # A file of the study, or the folder we are in, that was there a moment ago.
        return AbnormalEnd(
            USAGE,
            f"{name} is gone, or is not a file that can be used: {error.strerror}.",
            "If the study's folder was moved or deleted while it was in use, name its new place with --study, "
            "or begin a new study.",
        )
    elif error.errno == errno.ENOENT:
        return AbnormalEnd(USAGE, "The folder you are in does not exist any more.", "Change to one that does.")
    else:
        return None
    return AbnormalEnd(USAGE, f"{what[0].upper()}{what[1:]}{where}.", f"{advice} {GOES_ON}")


def _is_of_database(error: BaseException) -> bool:
    return any(cls.__module__.split(".")[0] in ("sqlalchemy", "sqlite3", "optuna") for cls in type(error).__mro__)


def internal(error: BaseException) -> AbnormalEnd:
    """A fault of ours: the details go into a file."""
    said = scrub(f"{type(error).__name__}: {error}".strip()).splitlines()[0][:300]
    path = keep(error)
    report = f"It happened in {_innermost(error)}. Please report it with your command."
    if path:
        report = f"The details are in {path}. Please report it with your command and that file (read it first: it "
        report += "contains paths and names of yours)."
    return AbnormalEnd(
        INTERNAL,
        f"Internal error: {said}. This is a fault of bisect-cfg, not of your run.",
        f"{report} {GOES_ON}",
    )


def keep(error: BaseException) -> str | None:
    """Write the traceback of an error into a file of its own; None where that cannot be done."""
    text = scrub("".join(traceback.format_exception(error)))
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="bisect-cfg-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(f"{' '.join(sys.version.split())}\n{text}")
        return path
    return None


def _innermost(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "an unknown place"


# --------------------------------------------------------------------------------------------------- standard output


class _Stream(io.TextIOBase):
    """Standard output that says when it cannot be written: an `OSError` from it is none of the study's files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputGone(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputGone(error) from None
        except ValueError:  # closed
            pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors


def prepare() -> None:
    """Ready this process: any text can be written whatever the locale, and nothing prints a traceback of its own."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # started with a closed descriptor
            stream = open(os.devnull, "w")
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, _Stream(stream))
    logging.lastResort = None  # the database's pool logs tracebacks of errors that we tell ourselves
    threading.excepthook = lambda told: None if told.exc_value is None else _of_a_thread(told.exc_value)


def _of_a_thread(error: BaseException) -> None:
    # A thread that dies is told where its work is missed; the details are kept all the same.
    if explained(error) is None:
        keep(error)


def leave(status: int) -> None:
    """End the process with this status, whatever becomes of what is still to be printed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OutputGone as gone:
            ended = explained(gone)
            if status == 0 and ended is not None:
                status = ended.status
                with contextlib.suppress(Exception):
                    print(f"bisect-cfg: {ended.message}", file=sys.stderr, flush=True) if ended.message else None
            _discard(stream)
    sys.exit(status)


def discard_output() -> None:
    """Nothing that is still buffered is written: whoever read it has gone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OutputGone:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    with contextlib.suppress(Exception):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
