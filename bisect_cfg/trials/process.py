"""Starting the target's process, following it while it runs, ending it with all it started."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import JsonObject, private
from bisect_cfg.probe.protocol import STACK_SIGNAL
from bisect_cfg.trials import reaper as reaper_module
from bisect_cfg.trials.files import Traces
from bisect_cfg.trials.patience import Patience, Pulse, Silence

MARK = "BISECT_CFG_STUDY"
"""Environment variable that all processes of a study carry, so that none can hide from the clean-up."""

POLL_SECONDS = 0.02
"""How often a running trial is looked at: short beside the shortest trial, costly to nobody (about 0.1 ms a look)."""

STACK_DUMP_SECONDS = 1.0
"""How long a hanging process gets to write its Python stacks before it is killed."""

KILL_SECONDS = 10.0
"""A killed process is gone in milliseconds, unless the kernel holds it (a driver, a network disk); no longer than this
is waited for it."""

LAST_SECONDS = 2.0
"""An exception that nothing has caught is the end of a run. The process gets this long to end by itself, with its
traceback printed and a status of its own; one whose other threads or exit handlers keep it alive is ended then."""


class Reaper:
    """Our end of the reaper process (see `bisect_cfg.trials.reaper`). Thread-safe; close it when done.

    Args:
        watched: whether a probe watches what it starts; then a run in which another process has loaded torch is ended.
    """

    def __init__(self, watched: bool = True) -> None:
        self.mark = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[JsonObject]] = {}
        self._gone = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-S",
                    "-E",
                    reaper_module.__file__,
                    str(theirs.fileno()),
                    f"{MARK}={self.mark}",
                    *([] if watched else [reaper_module.UNGUARDED]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        threading.Thread(target=self._read, name="reaper-reader", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process that everything of the study descends from."""
        return self._process.pid

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: int,
        pass_fds: Sequence[int] = (),
    ) -> LaunchedChild:
        """Start a command in a session of its own and in our working directory.

        Args:
            command: program and arguments.
            environment: all of it; the study's mark is added.
            folder: of the run; its ``log.txt`` is kept from growing, and word of why the run was ended is left in it.
            output: descriptor for what it prints.
            pass_fds: descriptors that it keeps under their numbers.

        Raises:
            OSError: the command cannot be started.
            InputError: the reaper process was ended by somebody.
        """
        answers: queue.SimpleQueue[JsonObject] = queue.SimpleQueue()
        message = {
            "op": "start",
            "command": [_text_of(word) for word in command],
            "environment": [
                [_text_of(name), _text_of(text)] for name, text in {**environment, MARK: self.mark}.items()
            ],
            "cwd": _text_of(os.getcwd()),
            "folder": str(folder.resolve()),
            "numbers": list(pass_fds),
        }
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answers
        if not self._send({**message, "id": number}, [output, *pass_fds]):
            raise _reaper_gone()
        answer = answers.get()
        if "gone" in answer:
            raise _reaper_gone()
        if "error" in answer:
            raise OSError(answer["error"], os.strerror(answer["error"]), command[0])
        return LaunchedChild(answer["pid"], answers)

    def add(self, pid: int, folder: Path) -> None:
        """A run has started as a fork of something else; `folder` as in `start`."""
        self._send({"op": "add", "pid": pid, "folder": str(folder.resolve())})

    def remove(self, pid: int) -> None:
        """A run has ended, or has been ended."""
        self._send({"op": "remove", "pid": pid})

    def close(self) -> None:
        """Let the reaper clean up and end; returns when nothing of the study runs any more."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._process.wait()

    def _send(self, message: JsonObject, descriptors: Sequence[int] = ()) -> bool:
        data = json.dumps(message).encode()
        with self._lock:
            try:
                if self._gone:
                    return False
                socket.send_fds(self._socket, [struct.pack("!I", len(data))], list(descriptors))
                self._socket.sendall(data)
            except (OSError, ValueError):
                return False
        return True

    def _read(self) -> None:
        with self._socket.makefile("rb") as stream, contextlib.suppress(OSError):
            for line in stream:
                answer = json.loads(line)
                with self._lock:
                    answers = self._waiting.get(answer["id"])
                    if "pid" not in answer:
                        self._waiting.pop(answer["id"], None)
                if answers is not None:
                    answers.put(answer)
        with self._lock:
            self._gone = True
            for answers in self._waiting.values():
                answers.put({"gone": True})


def _text_of(text: str) -> str:
    """What the operating system gets for `text`, one character a byte: the reaper may know another encoding."""
    return os.fsencode(text).decode("latin-1")


def _reaper_gone() -> InputError:
    return InputError(
        "The process from which bisect-cfg starts its runs was ended from outside.",
        "Run the same command again to continue.",
    )


class LaunchedChild:
    """A process that the reaper has started for us."""

    def __init__(self, pid: int, answers: queue.SimpleQueue[JsonObject]) -> None:
        self.pid = pid
        self.pids, self.codes = [pid], dict[int, int]()
        self._answers = answers
        self._lock = threading.Lock()
        self._code: int | None = None
        self._gone = False

    def poll(self) -> int | None:
        """Exit code as `subprocess` gives it, None while it runs.

        Raises:
            InputError: the reaper was ended by somebody, so that nobody knows.
        """
        return self._take(block=False)

    def wait(self) -> int:
        """Wait for its end; returns and raises as `poll`."""
        return self._take(block=True)

    def _take(self, block: bool) -> int | None:
        with self._lock:
            if self._code is None and not self._gone:
                try:
                    answer = self._answers.get(block)
                except queue.Empty:
                    return None
                self._code = answer.get("exit")
                self._gone = self._code is None
            if self._gone:
                raise _reaper_gone()
            return self._code


class Sweep:
    """Ends what trials leave behind outside of their process groups: daemons, helpers in sessions of their own.

    Such a process descends from the reaper. It is a trial's if it was not there before the trial; while several trials
    run at once nobody can tell whose it is, and it is ended with the last of them.

    Args:
        reaper: of the study.
    """

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._lock = threading.Lock()
        self._running = 0
        self._known: set[int] = set()

    @contextlib.contextmanager
    def around(self, spared_groups: Callable[[], Collection[int]]) -> Iterator[None]:
        """Around one trial.

        Args:
            spared_groups: asked at the end for the process groups of servers, which may have been started meanwhile.
        """
        with self._lock:
            if self._running == 0:
                self._known = set(reaper_module.descendants(self._reaper.pid))
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self._end(spared_groups())

    def _end(self, spared: Collection[int]) -> None:
        deadline = time.monotonic() + KILL_SECONDS
        while time.monotonic() < deadline:
            there = reaper_module.descendants(self._reaper.pid)
            left = [pid for pid in there if pid not in self._known and _group(pid) not in spared]
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
    pids: list[int]
    """Of it and of those that were started beside it; each leads a group of its own."""
    codes: dict[int, int]
    """Exit codes that are known of those, while others of them run."""

    def poll(self) -> int | None:
        """Its exit code (negative for a signal) once it has ended, None before."""
        ...


class Followed(Child, Protocol):
    """A run that is followed to its end."""

    def watched(self) -> list[int]:
        """Processes of it that say where they are when asked."""
        ...

    def end(self) -> None:
        """End it at once."""
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
    reaper: Reaper,
    pass_fds: Sequence[int] = (),
) -> LaunchedChild:
    """Start a command in a session of its own, its output in ``folder/log``; see `Reaper.start`."""
    with open(folder / log, "ab", opener=private) as stream:
        return reaper.start(command, environment, folder, stream.fileno(), pass_fds)


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
        _await(child)
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


def _await(child: Child) -> None:
    # A killed process is gone in milliseconds, but it must be *seen* gone: its GPU memory is needed next.
    deadline = time.monotonic() + KILL_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS / 20)
