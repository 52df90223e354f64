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

Run as ``python -S -E supervisor_process.py DESCRIPTOR STUDY [unwatched]``; for a function of the user's it is forked
from the caller's process instead, holds the function, and forks each trial. Only the standard library is imported. A
message to it is four bytes of length and JSON; it answers in lines of JSON.
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
import sys
import time
from collections.abc import Callable, Iterator

MARK = "BISECT_CFG_STUDY"
"""Environment variable that all processes of a study carry: ``STUDY.RUN``, the number in `RUN_DIGITS` digits."""

RUN_DIGITS = 8

ENDING_SECONDS = 10.0
"""For how long what is left of a run is looked for and ended. A killed process is gone in milliseconds, unless the
kernel holds it (a driver, a network disk)."""

TRACKER_SECONDS = 1.0
"""How long a tracker of `multiprocessing` may take to remove what the ended processes have left in shared memory; it
takes milliseconds."""

TICK_SECONDS = 0.1
"""How often the logs of running trials are looked at."""

LOOK_SECONDS = 0.5
"""How often the processes of running trials are looked at. Importing torch and what trains with it takes seconds."""

ENDING_TICK_SECONDS = 0.002
"""How often a run that is being ended is looked at."""

HELLO_SECONDS = 1.0
"""A process that has loaded torch has so long to say hello. One that has a probe did before."""

LOG_HEAD = 1 << 20
LOG_TAIL = 3 << 20
"""Bytes of a log that are kept: how it began, and what came before its end. Signatures are read from less."""

LOG_SLACK = 4 << 20
"""A running log may be so much longer before its middle is let go."""

FAILED = 70
"""Exit status of a process of ours whose code broke (EX_SOFTWARE)."""

UNWATCHED = "unwatched"
"""Third argument of the program: no probe is in what it starts."""

_TRACKER = b"multiprocessing.resource_tracker"

# What the kernel says of a file that the probe maps into every process it watches, and of torch's libraries.
_HELLO, _TORCH = b"/probe/site/sitecustomize.py", b"/libtorch"

# Fields of /proc/PID/stat after the name.
_STATE, _PARENT, _GROUP, _SESSION, _THREADS, _STARTED, _STACK = 0, 1, 2, 3, 17, 19, 25

# Signals that we ignore, and those that Python ignores: for what we start all is as it was for the tool.
_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_LIBC = ctypes.CDLL(None)
_fork, _getpid, _exit = os.fork, os.getpid, os._exit


def fork(main: Callable[[], object]) -> int:
    """Process id of a child that calls `main` and ends: with status 0, or `FAILED` if anything was raised in it.

    The child never comes back from here. The system call is inside, so that nothing can be raised between the two; the
    outer clause is for what is raised in the inner one.
    """
    ours = _getpid()
    try:
        try:
            pid = _fork()
            if pid:
                return pid
            main()
            _exit(0)
        finally:
            if _getpid() != ours:
                _exit(FAILED)
    finally:
        if _getpid() != ours:
            _exit(FAILED)


# ------------------------------------------------------------------------------------------------------- processes


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    fields = _stat(pid)
    return fields is not None and _runs(fields)


def descendants(root: int) -> list[int]:
    """Running processes below `root`, parents first."""
    found, waiting = [], [root]
    while waiting:
        for pid in _children(waiting.pop()):
            waiting.append(pid)
            if alive(pid):
                found.append(pid)
    return found


def marked(study: str) -> list[int]:
    """Process ids whose initial environment has the mark of this study."""
    found, user = [], os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if user and os.stat(f"/proc/{name}").st_uid != user:
                    continue
            except OSError:  # ended meanwhile
                continue
            if _run_in_environment(int(name), study) is not None:
                found.append(int(name))
    return found


def _run_in_environment(pid: int, study: str) -> int | None:
    """The number in the mark of this study that a process carries, None if it has none."""
    _, found, rest = (b"\0" + _read(f"/proc/{pid}/environ")).partition(f"\0{MARK}={study}.".encode())
    digits = rest[:RUN_DIGITS]
    return int(digits) if found and digits.isdigit() else None


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the name, the state first."""
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(b")")[2].split() if text else None


def _runs(fields: list[bytes]) -> bool:
    """Whether it is more than a zombie; a process is like one as well while other threads outlive its first."""
    return fields[_STATE] not in (b"Z", b"X") or int(fields[_THREADS]) > 1


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as stream:
                found += map(int, stream.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):  # a kernel without these files
                return _children_by_parent(pid)
        except OSError:
            continue
    return found


def _children_by_parent(pid: int) -> list[int]:
    stats = ((int(name), _stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return [one for one, fields in stats if fields is not None and int(fields[_PARENT]) == pid]


def _ended() -> Iterator[tuple[int, int]]:
    """Our children that have ended, and how (wait statuses)."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


class Ending:
    """Kills processes until none is left; those that remove what the others leave in shared memory end after them."""

    def __init__(self) -> None:
        self._until = time.monotonic() + ENDING_SECONDS
        self._alone: float | None = None  # since when only trackers are left

    def kill(self, processes: list[int], sure: bool = True) -> bool:
        """Kill those that there still are; whether that is to be repeated. `sure`: whether there are no others."""
        now = time.monotonic()
        if now > self._until or (sure and not processes):
            return False
        ending = [pid for pid in processes if _TRACKER not in _read(f"/proc/{pid}/cmdline")]
        if not ending:
            self._alone = self._alone or now
        for pid in ending or (processes if now >= (self._alone or now) + TRACKER_SECONDS else ()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return True


def _end_everything(study: str) -> None:
    """End what descends from this process, the subreaper of it, and what carries the mark of the study."""
    ending = Ending()
    while True:
        for _ in _ended():
            pass
        if not ending.kill([*descendants(os.getpid()), *marked(study)]):
            return
        time.sleep(ENDING_TICK_SECONDS)


# ------------------------------------------------------------------------------------------------------- logs


class Log:
    """A log that is being written, by whoever has it open for appending.

    Where the file system can, a hole takes the place of the middle while the log grows, which loses nothing else and
    which no writer notices. Elsewhere the log is cut and its end appended again.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._freed = LOG_HEAD  # up to here it is gone, or head

    def bound(self) -> bool:
        """Let the middle go if there is too much of it; whether there was."""
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            size = os.fstat(handle).st_size
            if size - self._freed <= LOG_TAIL + LOG_SLACK:
                return False
            end = (size - LOG_TAIL) // 4096 * 4096
            if _punch(handle, self._freed, end - self._freed):
                self._freed = end
            else:
                _cut(handle, size)
            return True
        except OSError:  # a full disk: the log is as it is
            return False
        finally:
            os.close(handle)


def shorten(path: str | os.PathLike[str]) -> None:
    """Keep the head and the tail of a log that is no longer written."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(handle).st_size
            if size > LOG_HEAD + LOG_TAIL + LOG_SLACK // 4:
                _cut(handle, size)
        finally:
            os.close(handle)


def _cut(handle: int, size: int) -> None:
    head = os.pread(handle, LOG_HEAD, 0)
    head_end = head.rfind(b"\n") + 1 or len(head)
    start = size - LOG_TAIL
    tail = os.pread(handle, LOG_TAIL, start)
    first_line = tail.find(b"\n", 0, LOG_TAIL // 2) + 1  # the rest of a line says little
    tail = tail[first_line:]
    os.ftruncate(handle, head_end)
    note = f"\n[... {start + first_line - head_end} bytes left out here ...]\n\n".encode()
    view = memoryview(note + tail)
    while view:
        view = view[os.write(handle, view) :]


def _punch(handle: int, start: int, length: int) -> bool:
    keep_size, punch_hole = 1, 2
    try:
        fallocate = _LIBC.fallocate
    except AttributeError:
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return fallocate(handle, keep_size | punch_hole, start, length) == 0


# ------------------------------------------------------------------------------------------------------- the processes


def keep(
    handle: int,
    study: str,
    *,
    watched: bool,
    call: Callable[[bytes, int], None] | None = None,
    mask: set[signal.Signals] | None = None,
) -> None:
    """Be the keeper: fork the supervisor, and when it is gone end what it has left.

    Args:
        handle: the socket to the tool.
        study: the mark's first part.
        watched: whether a probe watches what is started.
        call: what a run is where it is no program: of its message and of the descriptor for its answer.
        mask: the signals that the tool blocks, where all of them have been blocked for the fork.
    """
    tool = os.getppid()
    actions = {number: signal.getsignal(number) for number in (*_OURS, signal.SIGCHLD)}
    for number in _OURS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gc.freeze()  # what the caller's process has left to be collected is not ours to finalise
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    kept, keeping = os.pipe()

    def supervise() -> None:
        os.close(keeping)
        with contextlib.closing(Supervisor(handle, study, kept, tool, actions, watched, call)) as supervisor:
            supervisor.run()

    pid = fork(supervise)
    os.close(handle)
    os.close(kept)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            break
    if status:
        _end_everything(study)


class _Run:
    """What the supervisor knows of a run."""

    def __init__(self, folder: str | None, lasting: bool) -> None:
        self.log = None if folder is None else Log(os.path.join(folder, "log.txt"))
        self.lasting = lasting
        self.ending: Ending | None = None


class Supervisor:
    """The supervisor; see `keep`.

    Args:
        handle: the socket to the tool.
        study: the mark's first part.
        kept: readable when the keeper is gone.
        tool: process id of the tool.
        actions: what the tool does on the signals that are ours here.
        watched: whether a probe watches what is started.
        call: what a run is where it is no program.
    """

    def __init__(
        self,
        handle: int,
        study: str,
        kept: int,
        tool: int,
        actions: dict[int, object],
        watched: bool,
        call: Callable[[bytes, int], None] | None,
    ) -> None:
        os.set_inheritable(handle, False)
        self._socket, self._study, self._actions, self._call = socket.socket(fileno=handle), study, actions, call
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
        woken, wakes = os.pipe()
        for end in (woken, wakes):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._woken, self._over = woken, [kept]
        with contextlib.suppress(AttributeError, OSError):  # an old kernel, or gone already: the socket says it
            # What the tool forks may have the socket open, and hide its end.
            self._over.append(os.pidfd_open(tool))
        self._waiting = select.poll()
        for end in (self._socket.fileno(), self._woken, *self._over):
            self._waiting.register(end, select.POLLIN)

    def run(self) -> None:
        """Until the tool or the keeper is gone."""
        while True:
            ready = {end for end, _ in self._waiting.poll(self._pause())}
            if self._woken in ready:
                with contextlib.suppress(OSError):
                    os.read(self._woken, 4096)
            self._reap()
            if ready.intersection(self._over) or (self._socket.fileno() in ready and not self._obey()):
                return
            self._tend()

    def close(self) -> None:
        """End everything."""
        self._socket.close()
        _end_everything(self._study)

    def _pause(self) -> float | None:
        """Milliseconds until there is something to do without being told."""
        if not self._runs:
            return None
        if any(run.ending is not None for run in self._runs.values()):
            return 1000 * ENDING_TICK_SECONDS
        return 1000 * (TICK_SECONDS / 10 if self._grown else TICK_SECONDS)

    # --------------------------------------------------------------------------------------------- messages

    def _obey(self) -> bool:
        handles: list[int] = []
        try:
            header, passed, _, _ = self._socket.recvmsg(4, 1024)
            handles += [number for _, _, data in passed for number in struct.unpack(f"{len(data) // 4}i", data)]
            for handle in handles:
                os.set_inheritable(handle, False)
            if not header:
                return False
            header += self._exactly(4 - len(header))
            message = json.loads(self._exactly(struct.unpack("!I", header)[0]))
            number = message["run"]
            if message["op"] == "end":
                self._end(number)
            elif message["op"] == "add":
                self._add(number, message["pid"])
            else:
                self._look()  # what is there by now is not of this run
                self._runs[number] = _Run(message["folder"], message["lasting"])
                if message["op"] == "start":
                    self._start(number, message, handles)
        except OSError:
            return False
        finally:
            for handle in handles:
                os.close(handle)
        return True

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise OSError(errno.EPIPE, "the tool is gone")
            data += more
        return data

    def _tell(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # the tool is gone, as the next reading will show
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    # --------------------------------------------------------------------------------------------- starting

    def _start(self, number: int, message: dict, handles: list[int]) -> None:
        failed, failing = os.pipe()
        pid = fork(lambda: self._become(number, message, handles, failing))
        os.close(failing)
        error = b""
        while more := os.read(failed, 16):  # ends when `exec` closes the other end
            error += more
        os.close(failed)
        if error:
            os.waitpid(pid, 0)
            del self._runs[number]
            self._tell(run=number, error=int(error))
            return
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
        free = max([2, *message["numbers"]]) + 1  # first all out of the way of each other
        output, *kept = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, free) for handle in handles]
        failing, nothing = (fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, free) for handle in (failing, nothing))
        pairs = zip(kept, message["numbers"], strict=True)
        for source, target in ((nothing, 0), (output, 1), (output, 2), *pairs):
            os.dup2(source, target)
        environment = {_bytes(name): _bytes(value) for name, value in message["environment"]}
        command = [_bytes(word) for word in message["command"]]
        try:
            os.chdir(_bytes(message["cwd"]))
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(failing, f"{error.errno or errno.ENOEXEC}".encode())

    def _add(self, number: int, pid: int) -> None:
        """A process is a first process of a run, with all that it has started by now."""
        for one in (pid, *descendants(pid)):
            fields = _stat(one)
            if fields is not None:
                self._whose[one, fields[_STARTED]] = number
        self._groups[pid] = number  # it leads its own

    def _reap(self) -> None:
        for pid, status in _ended():
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
        """All that runs below us, by process id its fields of `_stat`; finds whose each is."""
        seen, whose, zombies = {}, {}, set()
        self._sure = True
        waiting: list[tuple[int, tuple[int, bytes] | None]] = [(pid, None) for pid in _children(os.getpid())]
        for pid, parent in waiting:
            fields = _stat(pid)
            key = pid, fields[_STARTED] if fields is not None else b""
            if fields is None or not _runs(fields):
                zombies.add(key)
                self._sure &= key in self._zombies  # one that has just ended may have left children behind our back
                continue
            whose[key] = self._whose.get(key)
            if whose[key] not in self._runs:
                whose[key] = self._run_of(pid, fields, parent is not None, whose.get(parent))
            if whose[key] is not None:
                for group in (fields[_GROUP], fields[_SESSION]):
                    self._groups.setdefault(int(group), whose[key])
            seen[pid] = fields
            waiting += [(child, key) for child in _children(pid)]
        self._whose, self._zombies = whose, zombies
        return seen

    def _run_of(self, pid: int, fields: list[bytes], has_parent: bool, parents: int | None) -> int | None:
        """The run of a process of which it is not known; None if that cannot be told while several go on."""
        going = [number for number, run in self._runs.items() if not run.lasting]
        number = _run_in_environment(pid, self._study)
        if number in going:
            return number
        if has_parent:
            return parents
        for group in (fields[_GROUP], fields[_SESSION]):
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
        processes = [pid for pid, fields in seen.items() if self._whose[pid, fields[_STARTED]] == number]
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
        keys = {(pid, fields[_STARTED], fields[_STACK]): pid for pid, fields in seen.items()}
        self._said_hello &= keys.keys()
        for key in keys.keys() - self._said_hello:
            maps = _read(f"/proc/{keys[key]}/maps")
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
        command = _read(f"/proc/{pid}/cmdline").decode("utf-8", "backslashreplace").split("\0")
        number = self._whose[pid, fields[_STARTED]]
        for one in list(self._runs) if number is None else [number]:
            if self._runs[one].ending is None:
                self._tell(run=one, unwatched=pid, command=command)
                self._end(one)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")  # see `text_of` in `supervisor`: one byte, one character


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    keep(int(sys.argv[1]), sys.argv[2], watched=UNWATCHED not in sys.argv[3:])
