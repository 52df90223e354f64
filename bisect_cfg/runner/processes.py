"""Processes as /proc shows them: what descends from which, what carries the mark of a study; forking and ending them.

psutil would say the same, but not in the milliseconds in which the supervisor starts and looks.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

MARK = "BISECT_CFG_STUDY"
"""Environment variable that all processes of a study carry: ``STUDY.RUN``, the number in `RUN_DIGITS` digits."""

RUN_DIGITS = 8

ENDING_SECONDS = 10.0
"""How long to go on killing what is left of a run. A killed process is gone in milliseconds, unless the kernel holds it
(a driver, a network disk)."""

TRACKER_SECONDS = 1.0
"""How long the resource tracker of `multiprocessing` may take to remove what killed processes have left in shared
memory. It takes milliseconds."""

ENDING_TICK_SECONDS = 0.002
"""How often the processes of a run that is being ended are checked."""

FAILED = 70
"""Exit status of a forked process whose own code raised (EX_SOFTWARE)."""

_TRACKER = b"multiprocessing.resource_tracker"

_fork, _getpid, _exit = os.fork, os.getpid, os._exit


class Process(NamedTuple):
    """A process at one moment.

    `started` (0: there is none) tells it from an earlier process of the same number. A zombie does not run; its
    `status` is that of `os.waitpid`. A process whose main thread has ended runs as long as another thread does.
    """

    pid: int
    parent: int = 0
    group: int = 0
    session: int = 0
    started: int = 0
    status: int = 0
    runs: bool = False


def process(pid: int) -> Process:
    """The process of this number, as it is now."""
    text = read(f"/proc/{pid}/stat")
    if not text:
        return Process(pid)
    state, *numbers = text.rpartition(b")")[2].split()
    parent, group, session = map(int, numbers[:3])
    threads, started, status = (int(numbers[place]) for place in (16, 18, 48))
    return Process(pid, parent, group, session, started, status, state not in (b"Z", b"X") or threads > 1)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    return process(pid).runs


def descendants(root: int) -> list[Process]:
    """All processes below `root`, parents first, zombies included."""
    children: dict[int, list[Process]] = defaultdict(list)
    for one in map(process, _all()):
        children[one.parent].append(one)
    found = [Process(root)]
    for parent in found:
        found += children[parent.pid]
    return found[1:]


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def run_in_environment(pid: int, study: str) -> int | None:
    """The run in the mark of this study in the environment of a process; None if it has none."""
    _, found, rest = (b"\0" + read(f"/proc/{pid}/environ")).partition(f"\0{MARK}={study}.".encode())
    digits = rest[:RUN_DIGITS]
    return int(digits) if found and digits.isdigit() else None


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    caught = re.search(rb"^SigCgt:\s*(\w+)", read(f"/proc/{pid}/status"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def read(path: str) -> bytes:
    """Content of a file, empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def fork(main: Callable[[], object]) -> int:
    """Fork a child that calls `main` and ends, with status `FAILED` if anything is raised; returns its process id.

    The child never returns into the caller's code. The fork is inside of `try`, so that nothing can be raised in
    between; the outer `finally` is for an exception in the inner one.
    """
    ours = _getpid()
    try:
        try:
            pid = _fork()
            if pid:
                return pid
            main()
            _exit(0)
        finally:
            if _getpid() != ours:
                _exit(FAILED)
    finally:
        if _getpid() != ours:
            _exit(FAILED)


def ended() -> Iterator[tuple[int, int]]:
    """Wait for all children that have ended: process ids and wait statuses."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


class Ending:
    """Kills processes until none is left; resource trackers last, since they clean up after the others."""

    def __init__(self) -> None:
        self._until = time.monotonic() + ENDING_SECONDS
        self._trackers_since: float | None = None  # since when only trackers are left

    def kill(self, pids: list[int], complete: bool = True) -> bool:
        """Kill these; whether to look again. `complete`: whether there are surely no others."""
        now = time.monotonic()
        if now > self._until or (complete and not pids):
            return False
        ending = [pid for pid in pids if _TRACKER not in read(f"/proc/{pid}/cmdline")]
        if not ending:
            self._trackers_since = self._trackers_since or now
            ending = pids if now >= self._trackers_since + TRACKER_SECONDS else []
        for pid in ending:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return True


def end_everything(study: str) -> None:
    """End all descendants of this process, a subreaper, and all processes with the mark of the study."""

    def left() -> list[int]:
        for _ in ended():
            pass
        marked = [pid for pid in _all() if pid != os.getpid() and run_in_environment(pid, study) is not None]
        return [one.pid for one in descendants(os.getpid()) if one.runs] + marked

    ending = Ending()
    while ending.kill(left() or left()):  # twice: the children of one that is just ending can be missed
        time.sleep(ENDING_TICK_SECONDS)
