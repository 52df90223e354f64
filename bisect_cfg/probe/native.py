"""Takes the native backtrace of a process that a fatal signal has stopped, then ends it.

``python -S -E native.py PID FOLDER GDB``: started by `instruments` beside the process it watches, whose fault handlers
end in `pause`, so that the stack of the fault is still there. Waits until faulthandler has written the Python stack,
lets gdb attach, writes ``native.txt``, and kills the process.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import protocol  # runs as a script: its own folder comes first

POLL_SECONDS = 0.05

GDB_SECONDS = 180
"""gdb reads the symbols of all of torch first: a few seconds from memory, minutes from a network disk."""

FRAMES = 30

LIBRARIES = ("libc.so", "libc10.so")
"""Read at once: every stack of torch passes through them."""

INNERMOST = 6
"""Frames under the fault that must be readable; what called torch is known from the Python stack."""

ROUNDS = 5
"""How often gdb is asked. torch comes with gigabytes of libraries, of which a stack passes through few: gdb reads only
those that the stack so far is known to pass through, which then shows the next one."""


def main(pid, folder, gdb):
    """Wait for the fault, write down its stack, end the process."""
    stacks = Path(folder, protocol.STACKS_FILE)
    while not stacks.exists() or "Fatal Python error" not in stacks.read_text(errors="replace"):
        if os.getppid() != pid:  # it has ended by itself
            return
        time.sleep(POLL_SECONDS)
    text = backtrace(pid, gdb)
    handle = os.open(os.path.join(folder, protocol.NATIVE_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, text.encode())
    os.kill(pid, signal.SIGKILL)


def backtrace(pid, gdb):
    """The native stack of a process as gdb prints it, or what gdb said instead."""
    known, text = set(LIBRARIES), ""
    for _ in range(ROUNDS):
        command = [gdb, "-nx", "-batch", "-p", str(pid)]
        for setting in ("auto-load off", "debuginfod enabled off", "width 0", "auto-solib-add off"):
            command += ["-iex", "set " + setting]
        for name in sorted(known):
            command += ["-ex", "sharedlibrary " + re.escape(name)]
        command += ["-ex", f"bt {FRAMES}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=GDB_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            return text or str(error)
        if "#0" not in done.stdout:
            return text or done.stdout + done.stderr
        text = done.stdout
        frames = text.rpartition("<signal handler called>")[2].strip().splitlines()[:INNERMOST]
        passed = {path.rpartition("/")[2] for path in re.findall(r" from (\S+)$", "\n".join(frames), re.MULTILINE)}
        if passed <= known:
            break
        known |= passed
    return text


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
