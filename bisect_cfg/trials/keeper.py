"""A tiny process that outlives the tool by a moment: whatever happens to the tool, no trial is left behind.

The tool writes ``+PGID`` when a process group starts and ``-PGID`` when it has ended. End of file means that the
tool is gone, by Ctrl-C, by SIGKILL or because its work is done: the keeper kills the groups that are still there,
then every process that carries the study's mark in its environment (a daemon that left its group), and ends.

Run as ``python -S -E keeper.py MARK``; imports nothing but the standard library, so it starts in milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time

ROUNDS = 500
"""How often to look again for marked processes, a hundredth of a second apart: one that is just being started can be
missed, and a killed one takes a moment to be gone."""


def marked(mark: str) -> list[int]:
    """Process ids whose initial environment holds `mark` (``NAME=value``)."""
    found, wanted, user = [], mark.encode(), os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if user and os.stat(f"/proc/{name}").st_uid != user:
                    continue
                with open(f"/proc/{name}/environ", "rb") as stream:
                    environment = stream.read()
                if wanted in environment and wanted in environment.split(b"\0"):
                    found.append(int(name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def main(mark: str) -> None:
    """Keep the list until end of file, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line[1:])
        groups.add(number) if line[0] == "+" else groups.discard(number)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue
    for _ in range(ROUNDS):
        left = marked(mark)
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
