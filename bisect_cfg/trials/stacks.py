"""What faulthandler writes when a process dies of a signal, or is asked where it is: the one place that reads
it."""

from __future__ import annotations

import re
import signal

SIGNALS = {
    "Floating point exception": signal.SIGFPE,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
}
"""What it calls the signals that it handles."""

_FATAL = re.compile(r"Fatal Python error: (?P<what>.+)")
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


def fatal_signal(stacks: str) -> signal.Signals | None:
    """The signal that the process died of; None if it says nothing of one."""
    found = _FATAL.search(stacks)
    return SIGNALS.get(found["what"].strip()) if found else None


def stack_frames(stacks: str) -> list[tuple[str, int, str]]:
    """(path, line, function) of the thread that died (of the main thread in a hang), innermost first."""
    _, found, after = stacks.rpartition("Current thread")
    text = after if found else stacks[stacks.rfind("Thread 0x") :]
    rows = _FRAME.finditer(text.split("\n\n")[0])
    return [(match["path"], int(match["line"]), match["function"]) for match in rows]
