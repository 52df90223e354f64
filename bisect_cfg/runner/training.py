"""The end of a run whose training is in a process that the script has started.

The script's own process would go on after that: it copies a checkpoint, uploads, starts over. So the run is over when
the training is. The probe reports that (event ``over``, see its `children`) and waits. If only a shell waits for the
training, the tool notices its end a moment late.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import GO_ON_FILE, Completed, Over, Started, TrainBegin, Unwatched
from bisect_cfg.runner.processes import Process, process
from bisect_cfg.runner.ranks import GRACE_SECONDS, Ranks, died_of
from bisect_cfg.runner.supervisor import Run
from bisect_cfg.runner.traces import Traces


def check_watched(traces: Traces) -> None:
    """Raise an error if a run was ended because something in it had no probe.

    Raises:
        InputError: what it was, and what to do.
    """
    unwatched = traces.event(Unwatched)
    if unwatched is not None:
        raise InputError(
            "The run was ended: it started a program that loaded torch where bisect-cfg cannot watch it, and what "
            f"cannot be watched could overwrite your files: {unwatched.command}",
            "Name the script that trains as TARGET; or have it started with the environment that its parent has "
            "(no `env -i`, no `sudo`) and by a Python that reads it (without -I, -E or -S).",
        )


class Training:
    """A `Run` that ends with its training, whichever process of it trains. The caller reads `traces`."""

    def __init__(self, child: Run, traces: Traces) -> None:
        self.pid = child.pid
        self._child, self._traces, self._folder = child, traces, traces.events.path.parent
        self._ranks = Ranks(traces)
        self._looked = 0  # events seen
        self._trainer: Process | None = None  # if it is not the first process
        self._gone: float | None = None  # when it was first seen gone
        self._grace_seconds = 0.0  # how long its parent may then take to report how it ended
        self._code: int | None = None
        self._went_on = 0  # number of the last training after which the script went on

    def probed(self) -> dict[Path, int | None]:
        """Folder of a process whose probe writes its stacks on a signal -> its process id."""
        self._ranks.read()
        if self._ranks.all:
            return self._ranks.pids()
        started = self._traces.event(Started)
        first = self.pid if started is None else started.pid
        return {self._folder: first if self._trainer is None else self._trainer.pid}

    def end(self) -> None:
        """End it; returns when nothing of it is left."""
        self._child.end()

    def wait(self, seconds: float) -> int | None:
        """Exit code of the training, or of the first process if that ends earlier; None after the timeout."""
        if self._code is None:
            self._let_go_on()
            self._code = self._child.wait(seconds)
            self._ranks.read()
            if self._code is not None:
                self._ranks.code(self._child.codes)  # records how each has ended
            else:
                self._code = self._training_code()
                if self._code is not None:
                    self.end()  # at once: a shell that has waited for the training goes on
        return self._code

    def _let_go_on(self) -> None:
        """Let the script of a first run go on after a training that ended well. Otherwise the run is about that one."""
        done = self._traces.completed
        if done is None or self._traces.begun is None or done.number == self._went_on:
            return
        self._went_on = done.number
        if not self._traces.symptoms(True):
            (self._folder / GO_ON_FILE.format(done.number)).touch(mode=0o600)

    def _training_code(self) -> int | None:
        if self._ranks.all:
            return self._ranks.code(self._child.codes)
        rows = self._traces.events.rows
        for row in rows[self._looked :]:
            if isinstance(row, Over):
                return row.code
            if isinstance(row, Completed):
                self._trainer = None
            if isinstance(row, TrainBegin) and not row.first and row.pid not in (None, self.pid):
                self._trainer, self._gone = process(row.pid), None
                self._grace_seconds = GRACE_SECONDS if _is_python(row.parent) else 0.0
        self._looked = len(rows)
        if self._trainer is None:
            return None
        now = process(self._trainer.pid)
        same = now.started == self._trainer.started != 0
        if same and now.runs:
            return None
        if same:  # a zombie: its parent has not waited for it yet
            return os.waitstatus_to_exitcode(now.status)
        self._gone = self._gone or time.monotonic()
        return (died_of(self._folder) or 1) if time.monotonic() - self._gone >= self._grace_seconds else None


def _is_python(pid: int | None) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
