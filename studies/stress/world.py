"""What surrounds a run: fresh folders, what was touched in them, and the processes that are still there.

Linux only: processes are found in /proc.
"""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import time
from pathlib import Path

BY_DESIGN = ("bydesign", "__pycache__")
"""Beginnings of names that the scripts of this study write themselves."""

LINGER = 5.0
"""Seconds that processes have to be gone after the tool ended."""

Snapshot = dict[str, tuple[object, ...]]


def snapshot(folders: list[Path], leave_out: list[Path]) -> Snapshot:
    """Every path below `folders` with kind, mode, size and content (or where a link leads)."""
    found: Snapshot = {}
    outside = {str(path) for path in leave_out}

    def look(path: str) -> None:
        if path in outside or os.path.basename(path).startswith(BY_DESIGN):
            return
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            found[path] = ("link", os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):
            found[path] = ("folder", mode)
            for name in sorted(os.listdir(path)):
                look(os.path.join(path, name))
        elif stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                found[path] = ("file", mode, status.st_size, hashlib.sha256(file.read()).hexdigest())
        else:
            found[path] = ("other", stat.S_IFMT(status.st_mode))

    for folder in folders:
        look(str(folder))
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What appeared, went away or changed."""
    lines = [f"appeared: {path}" for path in sorted(after.keys() - before.keys())]
    lines += [f"went away: {path}" for path in sorted(before.keys() - after.keys())]
    lines += [f"changed: {path}" for path in sorted(before.keys() & after.keys()) if before[path] != after[path]]
    return lines


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def marked(marker: str) -> dict[int, str]:
    """Living processes that belong to a case: process id to command line.

    Such are those whose environment, command line, folder or open files hold `marker` (part of a path that only this
    case uses), and their descendants.
    """
    needle = marker.encode()
    found: dict[int, str] = {}
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        pid, where = int(name), f"/proc/{name}"
        fields = _read(f"{where}/stat").rpartition(b")")[2].split()
        if len(fields) < 2 or fields[0] in (b"Z", b"X"):
            continue
        parents[pid] = int(fields[1])
        line = _read(f"{where}/cmdline")
        if needle in line or needle in _read(f"{where}/environ") or any(marker in path for path in _open(where)):
            found[pid] = line.replace(b"\0", b" ").decode(errors="replace")[:200]
    while more := [pid for pid, parent in parents.items() if parent in found and pid not in found]:
        found.update((pid, "a child of the one before") for pid in more)
    return found


def _open(where: str) -> list[str]:
    """The working directory and the open files of the process whose /proc folder this is."""
    try:
        return [
            os.readlink(f"{where}/cwd"),
            *(os.readlink(f"{where}/fd/{n}") for n in os.listdir(f"{where}/fd")),
        ]
    except OSError:
        return []


def left(marker: str) -> dict[int, str]:
    """Those still alive `LINGER` seconds from now; returns as soon as there are none. They are ended."""
    end = time.monotonic() + LINGER
    while (alive := marked(marker)) and time.monotonic() < end:
        time.sleep(0.1)
    end_all(alive)
    return alive


def end_all(pids: dict[int, str]) -> None:
    """Kill these processes of the case."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
