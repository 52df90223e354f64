"""The process that everything of a study descends from: it starts runs, ends them whole, and outlives its tool by
nothing.

A *run* is a first process, or several, and whatever descends from them: also daemons in sessions of their own, with
closed descriptors, ignored signals and an empty environment. The supervisor is the *child subreaper*: a process whose
parent has ended comes to it. (The tool never is: it may be a notebook's kernel, whose other children are none of our
business.) Whose a process is, it finds when it first sees it, and keeps:

- the run whose mark (``BISECT_CFG_STUDY=STUDY.RUN``) it carries in its environment, unless that run is a lasting one, a
  server from which other runs are forked;
- else its parent's; an orphan's by its process group or session;
- else that of the only run that goes on: what nobody can attribute while several do is ended with the last of them.

Between the tool and the supervisor stands a *keeper*, which only waits. It is a subreaper as well: if the supervisor
is killed, the keeper ends what that has left. If the keeper is killed, or the tool is gone (by Ctrl-C, by SIGKILL or
because its work is done), the supervisor ends everything and itself.

While runs go on, the supervisor also

- ends a run in which a process has loaded torch and no probe has said hello (`Supervisor._unwatched`), unless it is
  told that none will;
- keeps the logs from growing (`Log`).

It runs in the tool's own interpreter (`PROGRAM`); for a function of the user's it is forked from the caller's process
instead, holds the function, and forks each trial. Only the standard library is imported. A message to it is four bytes
of length and JSON; it answers in lines of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable

from bisect_cfg.runner import processes
from bisect_cfg.runner.logs import Log
from bisect_cfg.runner.processes import GROUP, MARK, RUN_DIGITS, SESSION, STACK, STARTED, Ending, fork

TICK_SECONDS = 0.1
"""How often the logs of running trials are looked at."""

LOOK_SECONDS = 0.5
"""How often the processes of running trials are looked at. Importing torch and what trains with it takes seconds."""

HELLO_SECONDS = 1.0
"""A process that has loaded torch has so long to say hello. One that has a probe did before."""

PROGRAM = (
    "import sys; sys.path.append(sys.argv[4]); from bisect_cfg.runner.supervisor_process import Supervisor; "
    "Supervisor(int(sys.argv[1]), sys.argv[2], sys.argv[3] == 'True').keep()"
)
"""Of ``python -SIc``; its arguments are those of `Supervisor` and the folder in which this package is."""

# What the kernel says of a file that the probe maps into every process it watches, and of torch's libraries.
_HELLO, _TORCH = b"/probe/site/sitecustomize.py", b"/libtorch"

# Signals that we ignore, and those that Python ignores: for what we start all is as it was for the tool.
_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_LIBC = ctypes.CDLL(None)


class _Run:
    """What the supervisor knows of a run."""

    def __init__(self, folder: str | None, lasting: bool) -> None:
        self.log = None if folder is None else Log(os.path.join(folder, "log.txt"))
        self.lasting = lasting
        self.ending: Ending | None = None


class Supervisor:
    """The supervisor, and its keeper.

    Args:
        handle: the socket to the tool.
        study: the mark's first part.
        watched: whether a probe watches what is started.
        call: what a run is where it is no program: of its message and of the descriptor for its answer.
    """

    def __init__(
        self, handle: int, study: str, watched: bool, call: Callable[[bytes, int], None] | None = None
    ) -> None:
        os.set_inheritable(handle, False)
        self._socket, self._study, self._call = socket.socket(fileno=handle), study, call
        self._tool = os.getppid()
        self._actions = {number: signal.getsignal(number) for number in (*_OURS, signal.SIGCHLD)}
        self._runs: dict[int, _Run] = {}
        self._first: dict[int, int] = {}  # process id of a first process that we have started -> its run
        self._whose: dict[tuple[int, bytes], int | None] = {}  # process id and its start -> run
        self._zombies: set[tuple[int, bytes]] = set()
        self._sure = True  # whether all that ran during the last look was seen
        self._groups = {os.getpgrp(): -1, os.getsid(0): -1}  # number of a process group or session -> run
        self._said_hello: set[tuple[object, ...]] = set()
        self._torch_since: dict[tuple[object, ...], float] | None = {} if watched else None
        self._next_look = 0.0
        self._grown = False  # whether a log grows fast

    def keep(self, mask: set[signal.Signals] | None = None) -> None:
        """Be the keeper: fork the supervisor, and when it is gone end what it has left.

        Args:
            mask: the signals that the tool blocks, where all of them have been blocked for the fork.
        """
        for number in _OURS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        gc.freeze()  # what the caller's process has left to be collected is not ours to finalise
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
        """Be the supervisor until the tool or the keeper (`kept` is readable then) is gone, then end everything."""
        os.close(keeping)
        woken, wakes = os.pipe()
        for end in (woken, wakes):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._woken, self._over = woken, [kept]
        with contextlib.suppress(AttributeError, OSError):  # an old kernel, or gone already: the socket says it
            # What the tool forks may have the socket open, and hide its end.
            self._over.append(os.pidfd_open(self._tool))
        try:
            self._run()
        finally:
            self._socket.close()
            processes.end_everything(self._study)

    def _run(self) -> None:
        waiting = select.poll()
        for end in (self._socket.fileno(), self._woken, *self._over):
            waiting.register(end, select.POLLIN)
        while True:
            ready = {end for end, _ in waiting.poll(self._pause())}
            if self._woken in ready:
                with contextlib.suppress(OSError):
                    os.read(self._woken, 4096)
            self._reap()
            if ready.intersection(self._over) or (self._socket.fileno() in ready and not self._obey()):
                return
            self._tend()

    def _pause(self) -> float | None:
        """Milliseconds until there is something to do without being told."""
        if not self._runs:
            return None
        if any(run.ending is not None for run in self._runs.values()):
            return 1000 * processes.ENDING_TICK_SECONDS
        return 1000 * (TICK_SECONDS / 10 if self._grown else TICK_SECONDS)

    # --------------------------------------------------------------------------------------------- messages

    def _obey(self) -> bool:
        """Do what the tool asks for; whether it is there."""
        try:
            header, passed, _, _ = self._socket.recvmsg(4, 1024, socket.MSG_CMSG_CLOEXEC)
            header += self._exactly(4 - len(header))
            message = json.loads(self._exactly(struct.unpack("!I", header)[0]))
        except OSError:
            return False
        number = message["run"]
        if message["op"] == "end":
            self._end(number)
        elif message["op"] == "add":
            self._add(number, message["pid"])
        else:
            self._look()  # what is there by now is not of this run
            self._runs[number] = _Run(message["folder"], message["lasting"])
        if message["op"] == "start":
            handles = [handle for _, _, data in passed for handle in struct.unpack(f"{len(data) // 4}i", data)]
            try:
                self._start(number, message, handles)
            except OSError as error:
                del self._runs[number]
                self._tell(run=number, error=error.errno)
            for handle in handles:
                os.close(handle)
        return True

    def _exactly(self, count: int) -> bytes:
        """So many bytes.

        Raises:
            OSError: the tool is gone.
        """
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise OSError("the tool is gone")
            data += more
        return data

    def _tell(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the tool is gone, as the next reading will show
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    # --------------------------------------------------------------------------------------------- starting

    def _start(self, number: int, message: dict, handles: list[int]) -> None:
        """Fork its first process.

        Raises:
            OSError: it cannot be forked, or is no program.
        """
        failed, failing = os.pipe()
        try:
            pid = fork(lambda: self._become(number, message, handles, failing))
        finally:
            os.close(failing)
        with open(failed, "rb") as stream:
            error = stream.read()  # ends when `exec` closes the other end
        if error:
            os.waitpid(pid, 0)
            raise OSError(int(error), "")
        self._first[pid] = number
        self._add(number, pid)
        self._tell(run=number, pid=pid)

    def _become(self, number: int, message: dict, handles: list[int], failing: int) -> None:
        """In the child: be the program, or make the call. `handles` are the output, and what keeps its number."""
        signal.set_wakeup_fd(-1)
        for one, action in self._actions.items():
            ours = one in _OURS and action is not signal.SIG_IGN
            signal.signal(one, signal.SIG_DFL if ours or action is None else action)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should the keeper go with us
        nothing = os.open(os.devnull, os.O_RDONLY)
        if self._call is not None:
            os.dup2(nothing, 0)
            for handle in (failing, self._socket.fileno(), self._woken, *self._over):
                os.close(handle)
            os.environ[MARK] = f"{self._study}.{number:0{RUN_DIGITS}}"
            self._call(_bytes(message["call"]), handles[0])
            return
        for one in _PYTHONS:
            signal.signal(one, signal.SIG_DFL)
        environment = {_bytes(name): _bytes(value) for name, value in message["environment"]}
        command = [_bytes(word) for word in message["command"]]
        free = max([2, *message["numbers"]]) + 1  # first all out of the way of each other
        try:
            failing, nothing, output, *kept = (
                fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, free) for handle in (failing, nothing, *handles)
            )
            pairs = zip(kept, message["numbers"], strict=True)
            for source, target in ((nothing, 0), (output, 1), (output, 2), *pairs):
                os.dup2(source, target)
            os.chdir(_bytes(message["cwd"]))
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(failing, f"{error.errno or errno.ENOEXEC}".encode())

    def _add(self, number: int, pid: int) -> None:
        """A process is a first process of a run, with all that it has started by now."""
        for one in (pid, *processes.descendants(pid)):
            fields = processes.stat_of(one)
            if fields is not None:
                self._whose[one, fields[STARTED]] = number
        self._groups[pid] = number  # it leads its own

    def _reap(self) -> None:
        for pid, status in processes.ended():
            number = self._first.pop(pid, None)
            if number is not None:  # else one that came to us when its parent ended
                self._tell(run=number, pid=pid, exit=os.waitstatus_to_exitcode(status))

    # --------------------------------------------------------------------------------------------- looking and ending

    def _tend(self) -> None:
        """Bound the logs, find who is watched by nobody, and end what is to be ended."""
        self._grown = any([run.log.bound() for run in self._runs.values() if run.log is not None])
        now = time.monotonic()
        if self._runs and now >= self._next_look:
            seen = self._look()
            for pid in self._unwatched(seen):
                self._end_unwatched(pid, seen[pid])
            self._next_look = now + LOOK_SECONDS
        for number in [number for number, run in self._runs.items() if run.ending is not None]:
            self._go_on_ending(number)

    def _look(self) -> dict[int, list[bytes]]:
        """All that runs below us, by process id its fields of `stat_of`; finds whose each is."""
        seen, whose, zombies = {}, {}, set()
        self._sure = True
        waiting: list[tuple[int, tuple[int, bytes] | None]] = [(pid, None) for pid in processes.children(os.getpid())]
        for pid, parent in waiting:
            fields = processes.stat_of(pid)
            key = pid, fields[STARTED] if fields is not None else b""
            if fields is None or not processes.runs(fields):
                zombies.add(key)
                self._sure &= key in self._zombies  # one that has just ended may have left children behind our back
                continue
            whose[key] = self._whose.get(key)
            if whose[key] not in self._runs:
                whose[key] = self._run_of(pid, fields, parent is not None, whose.get(parent))
            if whose[key] is not None:
                for group in (fields[GROUP], fields[SESSION]):
                    self._groups.setdefault(int(group), whose[key])
            seen[pid] = fields
            waiting += [(child, key) for child in processes.children(pid)]
        self._whose, self._zombies = whose, zombies
        return seen

    def _run_of(self, pid: int, fields: list[bytes], has_parent: bool, parents: int | None) -> int | None:
        """The run of a process of which it is not known; None if that cannot be told while several go on."""
        going = [number for number, run in self._runs.items() if not run.lasting]
        number = processes.run_in_environment(pid, self._study)
        if number in going:
            return number
        if has_parent:
            return parents
        for group in (fields[GROUP], fields[SESSION]):
            number = self._groups.get(int(group))
            if number in going:
                return number
        there = going or list(self._runs)
        return there[0] if len(there) == 1 else None

    def _end(self, number: int) -> None:
        run = self._runs.get(number)
        if run is None:
            self._tell(run=number, ended=True)
        elif run.ending is None:
            run.ending = Ending()

    def _go_on_ending(self, number: int) -> None:
        seen = self._look()
        processes = [pid for pid, fields in seen.items() if self._whose[pid, fields[STARTED]] == number]
        if self._runs[number].ending.kill(processes, self._sure):
            return
        del self._runs[number]
        self._groups = {group: owner for group, owner in self._groups.items() if owner != number}
        self._reap()
        self._tell(run=number, ended=True)

    def _unwatched(self, seen: dict[int, list[bytes]]) -> list[int]:
        """Processes that have loaded torch and in which no probe has said hello: they could train, unseen."""
        if self._torch_since is None:
            return []
        found, now, before, self._torch_since = [], time.monotonic(), self._torch_since, {}
        # The stack's random place: an `exec`, after which a probe must say hello anew, changes it.
        keys = {(pid, fields[STARTED], fields[STACK]): pid for pid, fields in seen.items()}
        self._said_hello &= keys.keys()
        for key in keys.keys() - self._said_hello:
            maps = processes.read(f"/proc/{keys[key]}/maps")
            if _HELLO in maps:
                self._said_hello.add(key)
            elif _TORCH in maps and any(_TORCH in line and b"x" in line[:60] for line in maps.splitlines()):
                # Executable: a debugger that reads torch's symbols maps the file, but not so.
                self._torch_since[key] = before.get(key, now)
                if now - self._torch_since[key] >= HELLO_SECONDS:
                    found.append(keys[key])
        return found

    def _end_unwatched(self, pid: int, fields: list[bytes]) -> None:
        """End the run of a process and say why; all of them, if its own cannot be told."""
        command = processes.read(f"/proc/{pid}/cmdline").decode("utf-8", "backslashreplace").split("\0")
        number = self._whose[pid, fields[STARTED]]
        for one in list(self._runs) if number is None else [number]:
            if self._runs[one].ending is None:
                self._tell(run=one, unwatched=pid, command=command)
                self._end(one)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")  # see `text_of` in `supervisor`: one byte, one character


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, int(value), 0, 0, 0)
