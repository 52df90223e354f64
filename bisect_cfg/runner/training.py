"""The end of a run whose training is in a process that the script has started.

The script's own process would go on after that: it copies a checkpoint, uploads, starts over. So the run is over when
the training is. The probe says so (event ``over``, see its `lineage`) and stands still; where only a shell waits for
the training, the tool sees it go, and is a moment late.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import GO_ON_FILE, Completed, Over, Started, TrainBegin, Unwatched
from bisect_cfg.runner.ranks import WORD_SECONDS, Ranks, died_of
from bisect_cfg.runner.supervisor import Run
from bisect_cfg.runner.traces import Traces


def check_watched(traces: Traces) -> None:
    """A run that was ended because something in it could not be watched is the user's to change.

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
    """A `Run` that ends with its training, wherever under it that runs.

    Args:
        child: the run.
        traces: what the probe writes; whoever polls reads them.
    """

    def __init__(self, child: Run, traces: Traces) -> None:
        self.pid = child.pid
        self._child, self._traces = child, traces
        self._looked = 0
        self._trainer: int | None = None
        self._end: int | None = None
        self._word_seconds = 0.0
        self._gone: float | None = None
        self._code: int | None = None
        self._ranks = Ranks(traces)
        self._went_on = 0  # after the training of this number

    def probed(self) -> dict[Path, int | None]:
        """Folder of a process in which a probe tells, on the signal for it, where it is -> its process id."""
        self._ranks.read()
        if self._ranks.all:
            return self._ranks.pids()
        started = self._traces.event(Started)
        return {self._traces.events.path.parent: self._trainer or (started.pid if started is not None else self.pid)}

    def end(self) -> None:
        """End all of it. Returns when nothing of it is left."""
        self._child.end()

    def wait(self, seconds: float) -> int | None:
        """Exit code of the training, or of the first process if that ends before it; None after so many seconds."""
        if self._code is not None:
            return self._code
        self._let_go_on()
        code = self._child.wait(seconds)
        if code is not None:
            self._ranks.read()
            self._ranks.code(self._child.codes)  # so that it is written down how each has ended
        else:
            code = self._of_the_training()
            if code is not None:
                self.end()
        self._code = code
        if code is not None and self._end is not None:
            os.close(self._end)
            self._end = None
        return code

    def _let_go_on(self) -> None:
        """Let a first run go on after a training that ended well. One that did not is what the run is about."""
        done = self._traces.completed
        if done is None or self._traces.begun is None or done.number == self._went_on:
            return
        self._went_on = done.number
        if not self._traces.symptoms(True):
            (self._traces.events.path.parent / GO_ON_FILE.format(done.number)).touch(mode=0o600)

    def _of_the_training(self) -> int | None:
        self._ranks.read()
        if self._ranks.all:
            return self._ranks.code(self._child.codes)
        rows = self._traces.events.rows
        for row in rows[self._looked :]:
            if isinstance(row, Over):
                return row.code
            if isinstance(row, Completed):
                self._trainer = self._gone = None
                if self._end is not None:
                    os.close(self._end)
                    self._end = None
            if isinstance(row, TrainBegin) and not row.first and row.pid not in (None, self.pid):
                self._trainer = row.pid
                self._word_seconds = WORD_SECONDS if _is_python(row.parent) else 0.0
                try:
                    self._end = os.pidfd_open(self._trainer)
                except OSError:
                    self._gone = time.monotonic()
        self._looked = len(rows)
        if self._end is not None and self._gone is None and select.select([self._end], [], [], 0)[0]:
            self._gone = time.monotonic()
        if self._gone is None:
            return None
        code = _code_of_zombie(self._trainer)
        if code is None and time.monotonic() - self._gone >= self._word_seconds:
            code = died_of(self._traces.events.path.parent) or 1
        return code


def _is_python(pid: int | None) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False


def _code_of_zombie(pid: int | None) -> int | None:
    """Exit code of a process that has ended and that nobody has waited for yet; None otherwise."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] == "Z" else None
