"""The last handler: how a command ends, whatever is raised in it: in two lines and with a status, never a traceback.

What the machine or the user can do to a command (no space, no permission, a closed pipe, too few descriptors, a
damaged database) is said in the system's own words. What is left is a fault of ours: status 70, and a file that has the
details.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bisect_cfg import interrupts
from bisect_cfg.common.text import plain
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import scrub

USAGE = 2
"""Exit status for what the user or the machine has to change."""

INTERNAL = 70
"""Exit status for a fault of ours, EX_SOFTWARE of sysexits.h: 1 has a meaning of its own."""

CLOSED_PIPE = 141
"""Exit status when nobody reads any more what we print (`| head`): that of a program which SIGPIPE ended."""

GOES_ON = "Nothing recorded is lost: run the same command again to continue."

DAMAGED = ("malformed", "not a database", "no such table", "no such column")
REFUSED = ("disk is full", "disk i/o error", "readonly database", "unable to open database", "is locked")
"""What a database's driver says of its file, and of the machine."""


class Ended(NamedTuple):
    """How a command ended that did not come to its own end: its exit status, what happened, what to do."""

    status: int
    message: str = ""
    advice: str = ""


class OutputGone(Exception):
    """Standard output or error cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def run(command: Callable[[], int]) -> None:
    """Run a command and end the process with its exit status, whatever is raised."""
    status = interrupts.INTERRUPTED
    try:
        prepare()
        try:
            status = command()
        except SystemExit as asked:  # what a shell asked for at a TAB is printed
            status = asked.code if isinstance(asked.code, int) else 0
        except BaseException as error:
            ended = ended_by(error)
            status = ended.status
            if isinstance(error, OutputGone):
                flush()
            with contextlib.suppress(OutputGone):
                complain(ended.message and f"bisect-cfg: {ended.message}", ended.advice)
        interrupts.let_end()
        status = flush(status)
    except KeyboardInterrupt:  # while it was told how it ended
        interrupts.let_end()
    sys.exit(status)


def complain(*texts: str) -> None:
    """Tell the user, on standard error: no secrets, and nothing that a terminal would obey."""
    for text in filter(None, texts):
        lines = (plain(line.expandtabs()) for line in scrub(text).split("\n"))
        print("\n".join("".join(filter(str.isprintable, line)) for line in lines), file=sys.stderr, flush=True)


def ended_by(error: BaseException) -> Ended:
    """What an exception means for a command that it ends."""
    if isinstance(error, InputError):
        return Ended(error.status, error.message, error.advice)
    for one in _chain(error):  # a library may make an error of its own of it
        if isinstance(one, KeyboardInterrupt):
            said = "Interrupted; nothing is lost. Run the same command again to continue."
            return Ended(interrupts.status_of(one), advice=said)
    return explained(error) or _internal(error)


def explained(error: BaseException) -> Ended | None:
    """What an exception means if the user or the machine is behind it, None if it is a fault of ours."""
    if isinstance(error, OutputGone):
        if error.error.errno in (errno.EPIPE, errno.EBADF, errno.ECONNRESET):
            return Ended(CLOSED_PIPE)
        return Ended(USAGE, f"The output cannot be written: {error.error.strerror or error.error}.", GOES_ON)
    for one in _chain(error):
        if any(cls.__name__ == "DatabaseError" for cls in type(one).__mro__):  # SQLAlchemy's, or the driver's own
            text = (str(one).splitlines() or [""])[0]
            if any(words in text.lower() for words in DAMAGED):
                advice = "Start over with --restart (the old study is kept beside it)."
                return Ended(USAGE, f"The study's database is damaged: {text.rstrip('.')}.", advice)
            if any(words in text.lower() for words in REFUSED):
                return Ended(USAGE, f"The study's database cannot be read or written: {text}.", GOES_ON)
        elif isinstance(one, OSError) and one.errno is not None:
            name = one.filename if isinstance(one.filename, str) else os.fsdecode(one.filename or b"")
            return Ended(USAGE, f"{one.strerror}{f': {name}' if name else ''}.", f"Once that is mended: {GOES_ON}")
        elif isinstance(one, MemoryError) or "start new thread" in str(one):
            return Ended(USAGE, f"The machine has no memory or process left: {one}.", f"Fewer --jobs help. {GOES_ON}")
    return None


def refused_by_machine(error: BaseException) -> bool:
    """Whether room or permission is what a database lacks: beginning anew would not help."""
    found = explained(error)
    return found is not None and GOES_ON in found.advice


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _internal(error: BaseException) -> Ended:
    """A fault of ours: the details go into a file."""
    said = scrub(f"{type(error).__name__}: {error}".strip()).splitlines()[0][:300]
    where = keep(error)
    report = f"Please report it with your command and the details in {where} (read it first: it names paths of yours)."
    if where is None:
        report = f"Please report it with your command and this: {scrub(traceback.format_exception(error)[-2].strip())}"
    return Ended(
        INTERNAL, f"Internal error: {said}. This is a fault of bisect-cfg, not of your run.", f"{report} {GOES_ON}"
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


# --------------------------------------------------------------------------------------------------- standard output


def _guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of standard output that says when it cannot be written: an `OSError` from it is none of the study's
    files, and the libraries that print would take it for one of theirs."""

    def guarded(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as error:
            raise OutputGone(error) from None

    return guarded


def prepare() -> None:
    """Ready this process: any text can be written whatever the locale, and nothing prints a traceback of its own."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # started with a closed descriptor
            stream = open(os.devnull, "w")
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")
        stream.write, stream.flush = _guarded(stream.write), _guarded(stream.flush)
        setattr(sys, name, stream)
    logging.lastResort = None  # the database's pool logs tracebacks of errors that we tell ourselves
    threading.excepthook = lambda told: None if told.exc_value is None else _of_a_thread(told.exc_value)


def _of_a_thread(error: BaseException) -> None:
    # A thread that dies is told where its work is missed; the details are kept all the same.
    if explained(error) is None:
        keep(error)


def flush(status: int = 0) -> int:
    """Write what is still buffered, or drop it where nobody can read it; the exit status: that of output which is gone,
    if nothing else went wrong."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            with contextlib.suppress(ValueError):  # closed
                stream.flush()
        except OutputGone as gone:
            ended = explained(gone)
            if status == 0 and ended is not None:
                status = ended.status
                with contextlib.suppress(Exception):
                    complain(ended.message and f"bisect-cfg: {ended.message}")
            with contextlib.suppress(Exception):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
    return status
