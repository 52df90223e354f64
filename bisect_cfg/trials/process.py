"""Starting the target's process, following it while it runs, ending it with all it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bisect_cfg.trials import keeper as keeper_module
from bisect_cfg.trials.files import Traces

MARK = "BISECT_CFG_STUDY"
"""Environment variable that all processes of a study carry, so that none can hide from the clean-up."""

POLL_SECONDS = 0.02
"""How often a running trial is looked at: short beside the shortest trial, dear to nobody (about 0.1 ms a look)."""

STACK_DUMP_SECONDS = 1.0
"""How long a hanging process gets to write its Python stacks before it is killed."""

KILL_SECONDS = 10.0
"""A killed process is gone in milliseconds, unless the kernel holds it (a driver, a network disk); no longer than this
is waited for it."""

STACK_SIGNAL = signal.SIGRTMIN + 9
"""Must equal `bisect_cfg.probe.boot.STACK_SIGNAL`; the probe imports nothing of ours, and we nothing of it."""


class Keeper:
    """Our end of the keeper process (see `bisect_cfg.trials.keeper`). Thread-safe; close it when done."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", keeper_module.__file__, f"{MARK}={self.mark}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _tell(self, line: str) -> None:
        with self._lock:
            try:
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError):
                pass

    def add(self, group: int) -> None:
        """A process group has started."""
        self._tell(f"+{group}")

    def remove(self, group: int) -> None:
        """A process group has ended, or has been ended."""
        self._tell(f"-{group}")

    def close(self) -> None:
        """Let the keeper clean up and end; returns when nothing of the study runs any more."""
        with self._lock:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        self._process.wait()


class Sweep:
    """Ends what trials leave behind outside of their process groups: daemons, helpers in sessions of their own.

    Such a process is no child of ours, but it carries the study's mark. It is a trial's if it was not there before
    the trial; while several trials run at once nobody can tell whose it is, and it is ended with the last of them.

    Args:
        mark: of the study.
    """

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}"
        self._lock = threading.Lock()
        self._running = 0
        self._known: set[int] = set()

    @contextlib.contextmanager
    def around(self, spared_group: Callable[[], int | None]) -> Iterator[None]:
        """Around one trial.

        Args:
            spared_group: asked at the end for the process group of a server, which may have been started meanwhile.
        """
        with self._lock:
            if self._running == 0:
                self._known = set(keeper_module.marked(self._mark))
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self._end(spared_group())

    def _end(self, spared: int | None) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:
            left = [pid for pid in keeper_module.marked(self._mark) if pid not in self._known and _group(pid) != spared]
            if not left:
                return
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS / 4)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


class Child(Protocol):
    """A trial's process, wherever it was started from."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code (negative for a signal) once it has ended, None before."""
        ...


def kill_group(pid: int) -> None:
    """End a process group at once."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    log: str,
    keeper: Keeper,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, its output in ``folder/log``, and tell the keeper."""
    with (folder / log).open("ab") as stream:
        process = subprocess.Popen(
            list(command),
            env={**environment, MARK: keeper.mark},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    keeper.add(process.pid)
    return process


@dataclass(frozen=True)
class Patience:
    """How long a process may stay silent before it is called a hang, in seconds.

    Attributes:
        before_training: until training begins (loading data and models counts here).
        first_step: from the start of training to the end of the first optimizer step.
        step: between two optimizer steps.
    """

    before_training: float
    first_step: float
    step: float


@dataclass(frozen=True)
class Ending:
    """How a followed process came to its end; `exit_code` is None where we ended it."""

    exit_code: int | None
    hang: str | None
    seconds: float


def follow(
    child: Child,
    traces: Traces,
    patience: Patience,
    *,
    enough: Callable[[Traces], bool] = lambda traces: False,
    progress: Callable[[Traces], None] = lambda traces: None,
    interrupted: threading.Event | None = None,
) -> Ending:
    """Follow a process to its end, or end it: when it hangs, when enough is known, when we are interrupted.

    Args:
        child: the process; it leads its own process group.
        traces: where its probe writes.
        patience: when silence is a hang.
        enough: called after every new row; True ends the run (a silent failure is certain).
        progress: called after every new row or event, for a live view.
        interrupted: set by another thread to end the run.

    Raises:
        KeyboardInterrupt: `interrupted` was set.
    """
    start = last = time.monotonic()
    end = _end_of(child.pid)
    try:
        while True:
            code = child.poll()
            if traces.read():
                last = time.monotonic()
                progress(traces)
                if code is None and enough(traces):
                    return Ending(None, None, time.monotonic() - start)
            if code is not None:
                return Ending(code, None, time.monotonic() - start)
            if interrupted is not None and interrupted.is_set():
                raise KeyboardInterrupt
            silent = time.monotonic() - last
            limit, what = _limit(traces, patience)
            if silent > limit:
                _dump_stacks(child)
                traces.read()
                return Ending(None, f"no {what} for {silent:.0f} s", time.monotonic() - start)
            if end is None:
                time.sleep(POLL_SECONDS)
            elif select.select([end], [], [], POLL_SECONDS)[0]:
                time.sleep(POLL_SECONDS / 20)  # it has ended; its exit code is on the way to us
    finally:
        kill_group(child.pid)
        _await(child)
        if end is not None:
            os.close(end)


def _end_of(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, or None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # ended already, or an old kernel
        return None


def _limit(traces: Traces, patience: Patience) -> tuple[float, str]:
    if traces.metrics.rows:
        return patience.step, "optimizer step"
    if traces.event("train_begin"):
        return patience.first_step, "optimizer step"
    return patience.before_training, "start of training"


def _dump_stacks(child: Child) -> None:
    try:
        os.kill(child.pid, STACK_SIGNAL)
        time.sleep(STACK_DUMP_SECONDS)
    except OSError:
        pass


def _await(child: Child) -> None:
    # A killed process is gone in milliseconds, but it must be *seen* gone: its GPU memory is needed next.
    deadline = time.monotonic() + KILL_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS / 20)
