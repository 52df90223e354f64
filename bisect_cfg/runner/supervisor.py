"""The tool's side of the supervisor (`bisect_cfg.runner.supervisor_process`), and the runs that it starts and ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bisect_cfg.common.json_files import JsonObject, private
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import Unwatched
from bisect_cfg.probe.redact import mask_arguments
from bisect_cfg.runner import supervisor_process
from bisect_cfg.runner.processes import MARK, RUN_DIGITS, fork
from bisect_cfg.runner.traces import add_event

COMMAND_CHARACTERS = 2000
"""Characters of a command line that are recorded."""

CODE_SECONDS = 1.0
"""How long to wait for the exit code of a forked process when nothing of its run is left: the server reports it."""


class SupervisorKilled(InputError):
    """The supervisor is gone, and nothing can be started any more."""

    def __init__(self) -> None:
        super().__init__(
            "The process from which bisect-cfg starts its runs was ended from outside.",
            "Run the same command again to continue.",
        )


class Run:
    """One or several first processes, and everything that descends from them. Thread-safe."""

    def __init__(self, supervisor: Supervisor, number: int, folder: Path | None) -> None:
        self.pids = list[int]()  # the first processes; each leads its own process group
        self.codes = dict[int, int]()  # process id -> exit code as in `subprocess`, of those that have ended
        self.lost = False  # whether the server that it was forked from is gone, so that its exit codes say nothing
        self._supervisor, self._number, self._folder = supervisor, number, folder
        self._changed = threading.Condition()
        self._ended = False  # nothing of it is left
        self._gone = False  # the supervisor is

    @property
    def pid(self) -> int:
        """Its first process."""
        return self.pids[0]

    @property
    def mark(self) -> str:
        """The variable in the environment of its processes, as ``NAME=value``."""
        return f"{MARK}={self._supervisor.study}.{self._number:0{RUN_DIGITS}}"

    def probed(self) -> dict[Path, int | None]:
        """Folder -> process that writes its stacks there on a signal: none is known."""
        return {}

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until all first processes have ended: the first nonzero exit code, or 0; None after the timeout.

        Raises:
            SupervisorKilled: it was.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._gone or (self.pids and self._exited()), seconds)
            if self.pids and self._exited():
                return next((self.codes[pid] for pid in self.pids if self.codes[pid]), 0)
            if self._gone and not self._ended:
                raise SupervisorKilled
            return None

    def _exited(self) -> bool:
        return all(pid in self.codes for pid in self.pids)

    def wait_for_start(self) -> None:
        """Wait for its first process.

        Raises:
            SupervisorKilled: it was.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._gone or self.pids)
            if not self.pids:
                raise SupervisorKilled

    def end(self) -> None:
        """End it; returns when nothing of it is left."""
        if not self._ended and self._supervisor.send({"op": "end", "run": self._number}):
            with self._changed:
                self._changed.wait_for(lambda: self._gone or self._ended)
        if self._gone and not self._ended:
            self._supervisor.close()
        with self._changed:
            self._changed.wait_for(lambda: self._gone or self._exited(), CODE_SECONDS)

    def add(self, pid: int) -> None:
        """Add a first process that a server has forked."""
        with self._changed:
            self.pids.append(pid)
        self._supervisor.send({"op": "add", "run": self._number, "pid": pid})

    def record_exit(self, pid: int, code: int | None) -> None:
        """Record how a process from `add` has ended; None: its server is gone and nobody knows."""
        with self._changed:
            self.lost |= code is None
            self.codes[pid] = -signal.SIGKILL if code is None else code
            self._changed.notify_all()

    def on_answer(self, answer: JsonObject) -> None:
        """Take in what the supervisor says about it."""
        if "unwatched" in answer and self._folder is not None:
            command = " ".join(mask_arguments(answer["command"])).strip()[:COMMAND_CHARACTERS]
            with contextlib.suppress(OSError):
                add_event(self._folder, Unwatched(command, answer["unwatched"]))
        with self._changed:
            if "exit" in answer:
                self.codes[answer["pid"]] = answer["exit"]
            elif "pid" in answer:
                self.pids.append(answer["pid"])
            self._ended |= "ended" in answer
            self._gone |= "gone" in answer
            self._changed.notify_all()


class Supervisor:
    """The process from which everything of a study descends. Thread-safe; close it when done.

    Args:
        watched: whether started processes are expected to have a probe; then a run that loads torch without is ended.
        call: what to run instead of programs: a function of the message and of a descriptor for the answer. Then the
            supervisor is forked from this process, as it is now, and each run from the supervisor.
    """

    def __init__(self, watched: bool = True, call: Callable[[bytes, int], None] | None = None) -> None:
        self.study = uuid.uuid4().hex  # first part of the mark that all its processes have
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._runs: dict[int, Run] = {}
        self._gone = False
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, theirs = socket.socketpair()
        with theirs:
            if call is None:
                words = [str(theirs.fileno()), self.study, str(watched), str(Path(__file__).parents[2])]
                command = [sys.executable, "-SIc", supervisor_process.PROGRAM, *words]
                nothing, kept = subprocess.DEVNULL, [theirs.fileno()]
                self._process = subprocess.Popen(
                    command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, pass_fds=kept
                )
                self.pid = self._process.pid  # of the keeper
            else:
                self.pid = self._fork(theirs, call)
        threading.Thread(target=self._read, name="supervisor-reader", daemon=True).start()

    def _fork(self, theirs: socket.socket, call: Callable[[bytes, int], None]) -> int:
        for stream in (sys.stdout, sys.stderr):  # else each run prints our buffers again
            with contextlib.suppress(Exception):
                stream.flush()

        def keep() -> None:
            os.setsid()
            self._socket.close()
            supervisor_process.Supervisor(theirs.detach(), self.study, False, call).keep(before)

        # Signals are for this process: they wait until the keeper ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            return fork(keep)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: str = "log.txt",
        server: int | None = None,
    ) -> Run:
        """Start a command in its own session and in our working directory, with its output in a file of the folder. One
        that cannot be started ends with status 126 or 127, as in a shell.

        Args:
            command, folder, log: what is started, and where its output goes.
            environment: all variables but the mark.
            server: of a fork server, the descriptor to inherit as `supervisor_process.server_socket()`.

        Raises:
            SupervisorKilled: it was.
        """
        asked = {
            "op": "start",
            "command": [os.fsencode(word) for word in command],
            "environment": {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
            "cwd": os.fsencode(os.getcwd()),
        }
        with open(folder / log, "ab", opener=private) as stream:
            handles = [stream.fileno()] if server is None else [stream.fileno(), server]
            run = self._begin(asked, folder, handles, lasting=server is not None)
        run.wait_for_start()
        return run

    def call(self, message: bytes, answer: int) -> Run:
        """Start a run that makes the call with this message; `answer` is the descriptor for its answer.

        Raises:
            SupervisorKilled: it was.
        """
        run = self._begin({"op": "start", "call": message}, None, [answer])
        run.wait_for_start()
        return run

    def open(self, folder: Path) -> Run:
        """A run whose first processes a server is going to fork: see `Run.add`."""
        return self._begin({"op": "open"}, folder)

    def close(self) -> None:
        """End the supervisor; returns when nothing of the study runs any more."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        if self._process is not None:
            self._process.wait()
        else:
            with contextlib.suppress(ChildProcessError):  # waited for already
                os.waitpid(self.pid, 0)

    def send(self, asked: JsonObject, descriptors: Sequence[int] = ()) -> bool:
        """Send a request; False if the supervisor is gone."""
        with open(os.memfd_create("request"), "w+b") as stream, self._lock:
            pickle.dump(asked, stream)
            stream.seek(0)
            try:
                socket.send_fds(self._socket, [b"."], [stream.fileno(), *descriptors])
            except (OSError, ValueError):
                return False
        return True

    def _begin(
        self, asked: JsonObject, folder: Path | None, descriptors: Sequence[int] = (), lasting: bool = False
    ) -> Run:
        with self._lock:
            number = next(self._numbers)
            self._runs[number] = run = Run(self, number, folder)
            if self._gone:
                run.on_answer({"gone": True})
        self.send({**asked, "run": number, "lasting": lasting}, descriptors)
        return run

    def _read(self) -> None:
        with self._socket.makefile("rb") as stream, contextlib.suppress(OSError):
            for line in stream:
                answer = json.loads(line)
                with self._lock:
                    run = self._runs.get(answer["run"])
                    if "ended" in answer:
                        self._runs.pop(answer["run"], None)
                if run is not None:
                    run.on_answer(answer)
        with self._lock:
            self._gone = True
            self._socket.close()
            for run in self._runs.values():
                run.on_answer({"gone": True})
