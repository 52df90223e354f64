"""Following a run while it goes on, and ending it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from bisect_cfg.probe.protocol import STACK_SIGNAL
from bisect_cfg.trials.files import Traces
from bisect_cfg.trials.patience import Patience, Pulse, Silence

POLL_SECONDS = 0.02
"""How often a running trial is looked at: short beside the shortest trial, costly to nobody (about 0.1 ms a look)."""

STACK_DUMP_SECONDS = 1.0
"""How long a hanging process gets to write its Python stacks before it is killed."""

LAST_SECONDS = 2.0
"""An exception that nothing has caught is the end of a run. The process gets this long to end by itself, with its
traceback printed and a status of its own; one whose other threads or exit handlers keep it alive is ended then."""


class Followed(Protocol):
    """A run that is followed to its end."""

    pid: int
    """Of its first process."""

    def poll(self) -> int | None:
        """Its exit code (negative for a signal) once it has ended, None before."""
        ...

    def watched(self) -> list[int]:
        """Processes of it that say where they are when asked."""
        ...

    def end(self) -> None:
        """End it. Returns when nothing of it is left."""
        ...


@dataclass(frozen=True)
class Ending:
    """How a followed process came to its end.

    Attributes:
        exit_code: None where we ended it.
        hang: why it was called a hang, None if it was not.
        seconds: it took.
        longest_silence: in training and outside of named slow phases, in seconds.
        phases: name of a slow phase -> its longest silence, in seconds.
        costly: whether it was ended because it takes longer than can be afforded.
    """

    exit_code: int | None
    hang: str | None
    seconds: float
    longest_silence: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    costly: bool = False


def follow(
    child: Followed,
    traces: Traces,
    patience: Patience,
    *,
    enough: Callable[[Traces], bool] = lambda traces: False,
    progress: Callable[[Traces], None] = lambda traces: None,
    interrupted: threading.Event | None = None,
    costly: Callable[[Traces, float], bool] = lambda traces, seconds: False,
) -> Ending:
    """Follow a process to its end, or end it: when it hangs, when enough is known, when we are interrupted.

    Args:
        child: the run.
        traces: where its probe writes.
        patience: when silence is a hang.
        enough: called after every new row; True ends the run (a silent failure is certain).
        progress: called after every new row or event, for a live view.
        interrupted: set by another thread to end the run.
        costly: called all the time with the seconds since the start; True ends the run, which cannot be afforded.

    Raises:
        KeyboardInterrupt: `interrupted` was set.
    """
    start = time.monotonic()
    silence, pulse = Silence(patience), Pulse(traces.metrics.path.parent)
    over: float | None = None  # when its last exception was seen

    def ending(code: int | None, hang: str | None = None) -> Ending:
        seconds = time.monotonic() - start
        return Ending(code, hang, seconds, round(silence.longest, 3), dict(silence.phases))

    def hangs() -> str | None:
        steps, training = len(traces.metrics.rows), traces.begun is not None and traces.completed is None
        written = (len(traces.events.rows), steps)
        return silence.look(time.monotonic(), written, pulse.read(), training, steps)

    def look(code: int | None) -> Ending | None:
        nonlocal over
        if traces.read():
            progress(traces)
            if code is None and enough(traces):
                return ending(None)
        if code is not None:
            return ending(code)
        if interrupted is not None and interrupted.is_set():
            raise KeyboardInterrupt
        if over is None and traces.died:
            over = time.monotonic()
        if over is not None:
            return ending(None) if time.monotonic() - over > LAST_SECONDS else None
        if costly(traces, time.monotonic() - start):
            return replace(ending(None), costly=True)
        if hangs() is not None:
            _dump_stacks(child)
            traces.read()
            hang = hangs()
            if hang is not None:  # it has not stirred meanwhile
                return ending(None, hang)
        return None

    try:
        return attend(child, look)
    finally:
        pulse.close()


def attend(child: Followed, look: Callable[[int | None], Ending | None]) -> Ending:
    """Look at a run until it is over; then nothing of it is left.

    Args:
        child: the run.
        look: called all the time with its exit code, None while it runs; says how it ended, None if it goes on.
    """
    end = end_of(child.pid)
    try:
        while True:
            found = look(child.poll())
            if found is not None:
                return found
            if end is None:
                time.sleep(POLL_SECONDS)
            elif select.select([end], [], [], POLL_SECONDS)[0]:
                time.sleep(POLL_SECONDS / 20)  # it has ended; its exit code is on the way to us
    finally:
        child.end()
        if end is not None:
            os.close(end)


def end_of(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, or None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # ended already, or an old kernel
        return None


def _dump_stacks(child: Followed) -> None:
    for pid in child.watched():
        with contextlib.suppress(OSError):
            os.kill(pid, STACK_SIGNAL)
    time.sleep(STACK_DUMP_SECONDS)
