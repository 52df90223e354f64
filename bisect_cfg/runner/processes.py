"""Processes as /proc shows them: what descends from which, what carries the mark of a study; forking and ending them.

psutil would say the same, but not in the milliseconds in which the supervisor starts and looks.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator

MARK = "BISECT_CFG_STUDY"
"""Environment variable that all processes of a study carry: ``STUDY.RUN``, the number in `RUN_DIGITS` digits."""

RUN_DIGITS = 8

ENDING_SECONDS = 10.0
"""For how long what is left of a run is looked for and ended. A killed process is gone in milliseconds, unless the
kernel holds it (a driver, a network disk)."""

TRACKER_SECONDS = 1.0
"""How long a tracker of `multiprocessing` may take to remove what the ended processes have left in shared memory; it
takes milliseconds."""

ENDING_TICK_SECONDS = 0.002
"""How often a run that is being ended is looked at."""

FAILED = 70
"""Exit status of a process of ours whose code broke (EX_SOFTWARE)."""

STATE, PARENT, GROUP, SESSION, THREADS, STARTED, STACK = 0, 1, 2, 3, 17, 19, 25
"""Fields of `stat_of`. The place of the stack is another one after each `exec`."""

_TRACKER = b"multiprocessing.resource_tracker"

_fork, _getpid, _exit = os.fork, os.getpid, os._exit


def fork(main: Callable[[], object]) -> int:
    """Process id of a child that calls `main` and ends: with status 0, or `FAILED` if anything was raised in it.

    The child never comes back from here. The system call is inside, so that nothing can be raised between the two; the
    outer clause is for what is raised in the inner one.
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


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    fields = stat_of(pid)
    return fields is not None and runs(fields)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    caught = re.search(rb"^SigCgt:\s*(\w+)", read(f"/proc/{pid}/status"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def descendants(root: int) -> list[int]:
    """Running processes below `root`, parents first."""
    found, waiting = [], [root]
    while waiting:
        for pid in children(waiting.pop()):
            waiting.append(pid)
            if alive(pid):
                found.append(pid)
    return found


def marked(study: str) -> list[int]:
    """Process ids whose initial environment has the mark of this study."""
    found, user = [], os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if user and os.stat(f"/proc/{name}").st_uid != user:
                    continue
            except OSError:  # ended meanwhile
                continue
            if run_in_environment(int(name), study) is not None:
                found.append(int(name))
    return found


def run_in_environment(pid: int, study: str) -> int | None:
    """The number in the mark of this study that a process carries, None if it has none."""
    _, found, rest = (b"\0" + read(f"/proc/{pid}/environ")).partition(f"\0{MARK}={study}.".encode())
    digits = rest[:RUN_DIGITS]
    return int(digits) if found and digits.isdigit() else None


def stat_of(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the name, the state first."""
    text = read(f"/proc/{pid}/stat")
    return text.rpartition(b")")[2].split() if text else None


def runs(fields: list[bytes]) -> bool:
    """Whether it is more than a zombie; a process is like one as well while other threads outlive its first."""
    return fields[STATE] not in (b"Z", b"X") or int(fields[THREADS]) > 1


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as stream:
                found += map(int, stream.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):  # a kernel without these files
                return _children_by_parent(pid)
        except OSError:
            continue
    return found


def _children_by_parent(pid: int) -> list[int]:
    stats = ((int(name), stat_of(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return [one for one, fields in stats if fields is not None and int(fields[PARENT]) == pid]


def ended() -> Iterator[tuple[int, int]]:
    """Our children that have ended, and how (wait statuses)."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


class Ending:
    """Kills processes until none is left; those that remove what the others leave in shared memory end after them."""

    def __init__(self) -> None:
        self._until = time.monotonic() + ENDING_SECONDS
        self._alone: float | None = None  # since when only trackers are left

    def kill(self, processes: list[int], sure: bool = True) -> bool:
        """Kill those that there still are; whether that is to be repeated. `sure`: whether there are no others."""
        now = time.monotonic()
        if now > self._until or (sure and not processes):
            return False
        ending = [pid for pid in processes if _TRACKER not in read(f"/proc/{pid}/cmdline")]
        if not ending:
            self._alone = self._alone or now
        for pid in ending or (processes if now >= (self._alone or now) + TRACKER_SECONDS else ()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return True


def end_everything(study: str) -> None:
    """End what descends from this process, the subreaper of it, and what carries the mark of the study."""

    def left() -> list[int]:
        for _ in ended():
            pass
        return [*descendants(os.getpid()), *marked(study)]

    ending = Ending()
    while ending.kill(left() or left()):  # what ends just now may hide its children the first time
        time.sleep(ENDING_TICK_SECONDS)
