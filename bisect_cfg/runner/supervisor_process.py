"""The supervisor: the process that everything of a study descends from. It starts runs, ends each run as a whole, and
never survives its tool.

A *run* is one or several first processes and all that descends from them, including daemons in their own session with
closed descriptors, ignored signals and an empty environment. The supervisor is the *child subreaper*, so orphans become
its children. (The tool never is: it may be a notebook's kernel, whose other children do not concern us.) A process
that is seen for the first time belongs to

- the run whose mark (``BISECT_CFG_STUDY=STUDY.RUN``) is in its environment, unless that run is a fork server;
- the run of its parent; for an orphan, of its process group or session;
- the only run that is active. With several active runs it is unassigned, and ends with the last of them.

Between tool and supervisor stands a *keeper*, which only waits. It is a subreaper too: if the supervisor is killed, the
keeper ends what is left. If the keeper is killed or the tool is gone, the supervisor ends everything and itself.

It runs in the tool's interpreter (`PROGRAM`). For a trial that is a Python function it is forked from the caller's
process instead, holds the function, and forks each trial. It imports only the standard library. A request is one byte
that carries descriptors: of a pickle in memory, then those to hand on. It answers in lines of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pickle
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bisect_cfg.runner import processes
from bisect_cfg.runner.processes import MARK, RUN_DIGITS, Ending, Process, fork

SCAN_SECONDS = 0.5
"""How often the processes of active runs are looked at. Importing torch and a trainer takes seconds."""

PROBE_SECONDS = 1.0
"""How long a process that has loaded torch may go without a probe. The probe is normally there before torch."""

MOST_DESCRIPTORS = 8
"""Descriptors that a request can carry. A run is given two at most."""

PROGRAM = (
    "import sys; sys.path.append(sys.argv[4]); from bisect_cfg.runner.supervisor_process import Supervisor; "
    "Supervisor(int(sys.argv[1]), sys.argv[2], sys.argv[3] == 'True').keep()"
)
"""For ``python -SIc``. Its arguments are those of `Supervisor`, and the folder that contains this package."""

# In /proc/PID/maps: a file that the probe maps into every process it watches, and torch's libraries.
_PROBE, _TORCH = b"/probe/site/sitecustomize.py", b"/libtorch"

# Signals that the supervisor ignores, and those that Python ignores. A run gets them as the tool had them.
_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_LIBC = ctypes.CDLL(None)


def server_socket() -> int:
    """The descriptor of a fork server's end of its socket: one that no process has when it starts, below its limit."""
    return min(200, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)


@dataclass
class _Run:
    """An active run."""

    lasting: bool  # whether it is a fork server
    ending: Ending | None = None


@dataclass
class _Known:
    """A process that was seen before."""

    run: int | None
    probed: bool = False
    torch_since: float | None = None  # since when it has torch without a probe


class Supervisor:
    """The supervisor, and its keeper. `handle` is the socket to the tool, whose side has the same arguments."""

    def __init__(
        self, handle: int, study: str, watched: bool, call: Callable[[bytes, int], None] | None = None
    ) -> None:
        os.set_inheritable(handle, False)
        self._socket, self._study, self._watched, self._call = socket.socket(fileno=handle), study, watched, call
        self._tool = os.getppid()
        self._actions = {number: signal.getsignal(number) for number in (*_OURS, signal.SIGCHLD)}
        self._runs: dict[int, _Run] = {}
        self._first: dict[int, int] = {}  # process id of a first process started here -> its run
        self._known: dict[tuple[int, int], _Known] = {}  # by process id and start time
        self._groups: dict[int, int] = {}  # process group or session -> run
        self._zombies: set[tuple[int, int]] = set()
        self._complete = True  # whether the last scan has surely seen every running process
        self._next_scan = 0.0

    def keep(self, mask: Iterable[int] | None = None) -> None:
        """Be the keeper: fork the supervisor, wait for it, and end what it has left. `mask`: of the tool, if all
        signals were blocked for the fork."""
        for number in _OURS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        gc.freeze()  # do not run finalizers of the caller's objects
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        kept, keeping = os.pipe()
        pid = fork(lambda: self._supervise(kept, keeping))
        self._socket.close()
        os.close(kept)
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                break
        if status:
            processes.end_everything(self._study)

    def _supervise(self, kept: int, keeping: int) -> None:
        """Be the supervisor until the tool or the keeper (`kept` becomes readable) is gone, then end everything."""
        os.close(keeping)
        self._wakeup, wakes = os.pipe()
        for end in (self._wakeup, wakes):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._deaths = [kept]
        with contextlib.suppress(AttributeError, OSError):  # an old kernel, or gone already: the socket tells
            # Children that the tool forks inherit the socket and would hide its end.
            self._deaths.append(os.pidfd_open(self._tool))
        try:
            self._serve()
        finally:
            self._socket.close()
            processes.end_everything(self._study)

    def _serve(self) -> None:
        waiting = select.poll()
        for end in (self._socket.fileno(), self._wakeup, *self._deaths):
            waiting.register(end, select.POLLIN)
        while True:
            seconds = None if not self._runs else SCAN_SECONDS
            if any(run.ending is not None for run in self._runs.values()):
                seconds = processes.ENDING_TICK_SECONDS
            ready = {end for end, _ in waiting.poll(seconds and 1000 * seconds)}
            if self._wakeup in ready:
                with contextlib.suppress(OSError):
                    os.read(self._wakeup, 4096)
            self._reap()
            if ready.intersection(self._deaths) or (self._socket.fileno() in ready and not self._handle_request()):
                return
            self._maintain()

    # --------------------------------------------------------------------------------------------- requests

    def _handle_request(self) -> bool:
        """Read and carry out one request; False if the tool is gone."""
        try:
            byte, handles, _, _ = socket.recv_fds(self._socket, 1, MOST_DESCRIPTORS)
        except OSError:
            return False
        if not byte:
            return False
        for handle in handles:
            os.set_inheritable(handle, False)
        with open(handles.pop(0), "rb") as stream:
            asked = pickle.load(stream)
        number = asked["run"]
        if asked["op"] == "end":
            self._end(number)
        elif asked["op"] == "add":
            self._add(number, asked["pid"])
        else:
            self._scan()  # processes that exist already do not belong to this run
            self._runs[number] = _Run(asked["lasting"])
        if asked["op"] == "start":
            self._start(number, asked, handles)
        for handle in handles:
            os.close(handle)
        return True

    def _answer(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the tool is gone, as the next read will show
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    # --------------------------------------------------------------------------------------------- starting

    def _start(self, number: int, asked: dict[str, Any], handles: list[int]) -> None:
        """Fork the first process of a run."""
        pid = fork(lambda: self._run_child(number, asked, handles))
        self._first[pid] = number
        self._add(number, pid)
        self._answer(run=number, pid=pid)

    def _run_child(self, number: int, asked: dict[str, Any], handles: list[int]) -> None:
        """In the child: become the program, or make the call. `handles`: the output, and a fork server's socket."""
        signal.set_wakeup_fd(-1)
        for one, action in self._actions.items():
            ours = one in _OURS and action is not signal.SIG_IGN
            signal.signal(one, signal.SIG_DFL if ours or action is None else action)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # in case the keeper dies together with us
        nothing, mark = os.open(os.devnull, os.O_RDONLY), f"{self._study}.{number:0{RUN_DIGITS}}"
        os.dup2(nothing, 0)
        if self._call is not None:
            for handle in (nothing, self._socket.fileno(), self._wakeup, *self._deaths):
                os.close(handle)
            os.environ[MARK] = mark
            self._call(asked["call"], handles[0])
            return
        for one in _PYTHONS:
            signal.signal(one, signal.SIG_DFL)
        for source, target in zip((handles[0], *handles), (1, 2, server_socket()), strict=False):
            os.dup2(source, target)
        try:
            os.chdir(asked["cwd"])
            os.execvpe(asked["command"][0], asked["command"], {**asked["environment"], MARK.encode(): mark.encode()})
        except OSError as error:  # as a shell has it
            os.write(2, b"%s: %s\n" % (asked["command"][0], str(error.strerror).encode()))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def _add(self, number: int, pid: int) -> None:
        """Assign a first process, and all that it has started by now, to a run."""
        for one in (processes.process(pid), *processes.descendants(pid)):
            self._known[one.pid, one.started] = _Known(number)
        self._groups[pid] = number  # it leads its own group

    def _reap(self) -> None:
        for pid, status in processes.ended():
            number = self._first.pop(pid, None)
            if number is not None:  # else an adopted orphan
                self._answer(run=number, pid=pid, exit=os.waitstatus_to_exitcode(status))

    # --------------------------------------------------------------------------------------------- ending

    def _maintain(self) -> None:
        """Look for processes without a probe, and go on with what is being ended."""
        if self._runs and time.monotonic() >= self._next_scan:
            running = self._scan()
            if self._watched:
                self._end_unwatched(running)
            self._next_scan = time.monotonic() + SCAN_SECONDS
        for number, run in list(self._runs.items()):
            if run.ending is not None:
                self._continue_ending(number, run.ending)

    def _scan(self) -> list[Process]:
        """All running processes below the supervisor, each assigned to a run if that can be told."""
        below = processes.descendants(os.getpid())
        zombies = {(one.pid, one.started) for one in below if not one.runs}
        self._complete = zombies <= self._zombies  # a new one may just have orphaned children that were not listed
        running = [one for one in below if one.runs]
        before, self._known, self._zombies = self._known, {}, zombies
        runs: dict[int, int | None] = {}  # by process id
        for one in running:
            known = before.get((one.pid, one.started)) or _Known(None)
            if known.run not in self._runs:
                known.run = self._run_of(one, runs)
            if known.run is not None:
                for group in {one.group, one.session} - {os.getpgrp()}:  # ours, before it leads its own
                    self._groups.setdefault(group, known.run)
            self._known[one.pid, one.started] = known
            runs[one.pid] = known.run
        return running

    def _run_of(self, one: Process, runs: dict[int, int | None]) -> int | None:
        """The run of a process that was not seen before, None if it cannot be told. `runs`: those of its ancestors."""
        active = [number for number, run in self._runs.items() if not run.lasting]
        marked = processes.run_in_environment(one.pid, self._study)
        if marked in active:
            return marked
        if one.parent != os.getpid():
            return runs.get(one.parent)
        for group in (one.group, one.session):
            if self._groups.get(group) in active:
                return self._groups[group]
        candidates = active or list(self._runs)
        return candidates[0] if len(candidates) == 1 else None

    def _end(self, number: int) -> None:
        run = self._runs.get(number)
        if run is None:
            self._answer(run=number, ended=True)
        elif run.ending is None:
            run.ending = Ending()

    def _continue_ending(self, number: int, ending: Ending) -> None:
        left = [one.pid for one in self._scan() if self._known[one.pid, one.started].run == number]
        if ending.kill(left, self._complete):
            return
        del self._runs[number]
        self._groups = {group: run for group, run in self._groups.items() if run != number}
        self._reap()
        self._answer(run=number, ended=True)

    def _end_unwatched(self, running: list[Process]) -> None:
        """End the runs of processes that have loaded torch and have no probe: they could train and overwrite the user's
        files. If the process belongs to no run for sure, all runs are ended."""
        for one in running:
            known, now = self._known[one.pid, one.started], time.monotonic()
            if known.probed:
                continue
            maps = processes.read(f"/proc/{one.pid}/maps")
            known.probed = _PROBE in maps
            # Only executable maps count: a debugger maps the file to read torch's symbols.
            if known.probed or not any(_TORCH in line and b"x" in line[:60] for line in maps.splitlines()):
                known.torch_since = None
                continue
            known.torch_since = known.torch_since or now
            if now - known.torch_since >= PROBE_SECONDS:
                command = processes.read(f"/proc/{one.pid}/cmdline").decode("utf-8", "backslashreplace").split("\0")
                for number in list(self._runs) if known.run is None else [known.run]:
                    if self._runs[number].ending is None:
                        self._answer(run=number, unwatched=one.pid, command=command)
                        self._end(number)


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, int(value), 0, 0, 0)
