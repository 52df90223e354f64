"""Our end of the supervisor (`bisect_cfg.runner.supervisor_process`), and the runs that it starts and ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import JsonObject, private
from bisect_cfg.probe.protocol import EVENTS_FILE, Unwatched, event_row
from bisect_cfg.probe.secrets import mask_arguments
from bisect_cfg.runner import supervisor_process
from bisect_cfg.runner.processes import MARK, RUN_DIGITS

COMMAND_CHARACTERS = 2000
"""So much of a command line is written down."""

CODE_SECONDS = 1.0
"""Once nothing of a run is left, how long the exit code of a forked process may be on its way to us."""


class Run:
    """A first process, or several that train together, and everything that descends from them. Thread-safe.

    Args:
        supervisor: that ends it.
        number: of it.
        folder: of it; None if it has none.

    Attributes:
        pids: of its first processes; each leads a group of its own.
        codes: process id -> exit code, as `subprocess` gives it, of those that have ended.
        lost: whether the server that it was forked from is gone: how it would have ended nobody knows.
    """

    def __init__(self, supervisor: Supervisor, number: int, folder: Path | None) -> None:
        self.pids, self.codes, self.lost = list[int](), dict[int, int](), False
        self._supervisor, self._number, self._folder = supervisor, number, folder
        self._changed = threading.Condition()
        self._error: int | None = None
        self._ended = self._gone = False

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self.pids[0]

    @property
    def mark(self) -> str:
        """What its processes carry in their environment, as ``NAME=value``."""
        return f"{MARK}={self._supervisor.study}.{self._number:0{RUN_DIGITS}}"

    def probed(self) -> dict[Path, int | None]:
        """Processes that say where they are when asked: none that is known of."""
        return {}

    def poll(self) -> int | None:
        """The first exit code that is none of success, or 0, once all first processes have ended; None before.

        Raises:
            InputError: the supervisor was ended by somebody, so that nobody knows.
        """
        with self._changed:
            if self.pids and all(pid in self.codes for pid in self.pids):
                return next((self.codes[pid] for pid in self.pids if self.codes[pid]), 0)
            if self._gone and not self._ended:
                raise _gone()
            return None

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end, for so long at most; returns and raises as `poll`."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or self.poll() is not None, seconds)
            return self.poll()

    def add(self, pid: int) -> None:
        """A server has forked a first process of it."""
        with self._changed:
            self.pids.append(pid)
        self._supervisor.send({"op": "add", "run": self._number, "pid": pid})

    def came_to(self, pid: int, code: int | None) -> None:
        """How a first process has ended; None: the server is gone that would have said it."""
        with self._changed:
            self.lost |= code is None
            self.codes[pid] = -signal.SIGKILL if code is None else code
            self._changed.notify_all()

    def end(self) -> None:
        """End it. Returns when nothing of it is left."""
        if not self._ended and self._supervisor.send({"op": "end", "run": self._number}):
            with self._changed:
                self._changed.wait_for(lambda: self._gone or self._ended)
        if self._gone and not self._ended:
            self._supervisor.close()
        with self._changed:
            self._changed.wait_for(lambda: self._gone or all(pid in self.codes for pid in self.pids), CODE_SECONDS)

    # What the supervisor says.

    def begun(self, program: str | None = None) -> None:
        """Wait until it has started.

        Raises:
            OSError: it cannot be started.
            InputError: the supervisor was ended by somebody.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._gone or self.pids or self._error)
            if self._error:
                raise OSError(self._error, os.strerror(self._error), program)
            if not self.pids:
                raise _gone()

    def told(self, message: JsonObject) -> None:
        """Take in a message about it."""
        if "unwatched" in message and self._folder is not None:
            command = " ".join(mask_arguments(message["command"])).strip()[:COMMAND_CHARACTERS]
            event = event_row(Unwatched(command, message["unwatched"]), 0.0)
            with contextlib.suppress(OSError), open(self._folder / EVENTS_FILE, "ab", opener=private) as stream:
                stream.write(json.dumps(event).encode() + b"\n")
        with self._changed:
            if "exit" in message:
                self.codes[message["pid"]] = message["exit"]
            elif "pid" in message:
                self.pids.append(message["pid"])
            self._error = message.get("error")
            self._ended |= "ended" in message
            self._gone |= "gone" in message
            self._changed.notify_all()


def _gone() -> InputError:
    return InputError(
        "The process from which bisect-cfg starts its runs was ended from outside.",
        "Run the same command again to continue.",
    )


class Supervisor:
    """The process from which everything of a study descends. Thread-safe; close it when done.

    Args:
        watched: whether a probe watches what it starts; then a run is ended in which torch was loaded and no probe.
        call: what a run is where it is no program: a function of its message and of the descriptor for its answer. The
            supervisor is then forked from this process, as it is now, and each run from the supervisor.

    Attributes:
        study: the first part of the mark that all its processes carry.
        pid: of the keeper, from which it descends itself.
    """

    def __init__(self, watched: bool = True, call: Callable[[bytes, int], None] | None = None) -> None:
        self.study = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._runs: dict[int, Run] = {}
        self._gone = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, theirs = socket.socketpair()
        with theirs:
            if call is None:
                self._process = self._start(theirs, watched)
                self.pid = self._process.pid
            else:
                self.pid = self._fork(theirs, call)
        threading.Thread(target=self._read, name="supervisor-reader", daemon=True).start()

    def _start(self, theirs: socket.socket, watched: bool) -> subprocess.Popen[bytes]:
        words = [str(theirs.fileno()), self.study, str(watched), str(Path(__file__).parents[2])]
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            [sys.executable, "-SIc", supervisor_process.PROGRAM, *words],
            stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, pass_fds=[theirs.fileno()],
        )  # fmt: skip

    def _fork(self, theirs: socket.socket, call: Callable[[bytes, int], None]) -> int:
        for stream in (sys.stdout, sys.stderr):  # else each run prints again what we have buffered
            with contextlib.suppress(Exception):
                stream.flush()

        def keep() -> None:
            os.setsid()
            self._socket.close()
            supervisor_process.Supervisor(theirs.detach(), self.study, False, call).keep(before)

        # Until the keeper ignores them, signals wait: they are for this process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            return supervisor_process.fork(keep)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: str = "log.txt",
        pass_fds: Sequence[int] = (),
        *,
        lasting: bool = False,
    ) -> Run:
        """Start a command in a session of its own and in our working directory.

        Args:
            command: program and arguments.
            environment: all of it; the run's mark is added.
            folder: of the run; its ``log.txt`` is kept from growing, and word of why the run was ended is left in it.
            log: file in the folder for what it prints.
            pass_fds: descriptors that it keeps under their numbers.
            lasting: whether it stays while other runs come and go.

        Raises:
            OSError: the command cannot be started.
            InputError: the supervisor was ended by somebody.
        """
        run = self._new(folder)
        name, _, mark = run.mark.partition("=")
        message = {
            "op": "start",
            "command": [text_of(word) for word in command],
            "environment": [[text_of(one), text_of(text)] for one, text in {**environment, name: mark}.items()],
            "cwd": text_of(os.getcwd()),
            "numbers": list(pass_fds),
        }
        with open(folder / log, "ab", opener=private) as stream:
            self.send(self._about(run, message, lasting), [stream.fileno(), *pass_fds])
        run.begun(command[0])
        return run

    def call(self, message: bytes, answer: int) -> Run:
        """Start a run that is a call; `answer` is the descriptor for its answer.

        Raises:
            InputError: the supervisor was ended by somebody.
        """
        run = self._new(None)
        self.send(self._about(run, {"op": "start", "call": message.decode("latin-1")}, False), [answer])
        run.begun()
        return run

    def open(self, folder: Path) -> Run:
        """A run whose first processes a server is going to fork; see `Run.add`. `folder` as in `start`."""
        run = self._new(folder)
        self.send(self._about(run, {"op": "open"}, False))
        return run

    def close(self) -> None:
        """Let the supervisor clean up and end; returns when nothing of the study runs any more."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        if self._process is not None:
            self._process.wait()
        else:
            with contextlib.suppress(ChildProcessError):  # waited for already
                os.waitpid(self.pid, 0)

    def send(self, message: JsonObject, descriptors: Sequence[int] = ()) -> bool:
        """Tell the supervisor something; whether it is there."""
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

    def _new(self, folder: Path | None) -> Run:
        with self._lock:
            number = next(self._numbers)
            self._runs[number] = run = Run(self, number, folder)
            if self._gone:
                run.told({"gone": True})
        return run

    def _about(self, run: Run, message: JsonObject, lasting: bool) -> JsonObject:
        folder = None if run._folder is None else str(run._folder.resolve())
        return {**message, "run": run._number, "folder": folder, "lasting": lasting}

    def _read(self) -> None:
        with self._socket.makefile("rb") as stream, contextlib.suppress(OSError):
            for line in stream:
                message = json.loads(line)
                with self._lock:
                    run = self._runs.get(message["run"])
                    if "ended" in message or "error" in message:
                        self._runs.pop(message["run"], None)
                if run is not None:
                    run.told(message)
        with self._lock:
            self._gone = True
            self._socket.close()
            for run in self._runs.values():
                run.told({"gone": True})


def text_of(text: str) -> str:
    """What the operating system gets for `text`, one character a byte: the supervisor may know another encoding."""
    return os.fsencode(text).decode("latin-1")
