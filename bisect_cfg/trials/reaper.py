"""A small process that everything of a study descends from, and that outlives the tool: nothing is left behind.

It starts what the tool asks it to start, and is the *child subreaper* of it all: a process whose parent has ended comes
to it, whatever session or environment it has given itself. (The tool itself is never a subreaper: it may be a
notebook's kernel, whose other children are none of our business.) While runs go on, it

- waits for its children and tells the tool how they ended;
- ends a run in which a process has loaded torch that no probe watches (`Guard`), unless it is told that none does;
- keeps the logs from growing (`Log`).

End of file on its socket means that the tool is gone, by Ctrl-C, by SIGKILL or because its work is done: then it ends
every descendant, and every process that carries the study's mark, and itself.

Run as ``python -S -E reaper.py DESCRIPTOR MARK [unwatched]``, by the tool's own interpreter; only the standard library
is imported. A message is four bytes of length and JSON; `Reaper` in `bisect_cfg.trials.process` is the other end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator

PR_SET_CHILD_SUBREAPER = 36

ENDING_SECONDS = 5.0
"""For how long what is left is looked for and ended. A killed process is gone in milliseconds, unless the kernel holds
it."""

TRACKER_SECONDS = 1.0
"""How long a tracker of `multiprocessing` may take to remove what the ended processes have left in shared memory; it
takes milliseconds."""

TICK_SECONDS = 0.1
"""How often the logs of running trials are looked at."""

GUARD_SECONDS = 0.5
"""How often the processes of running trials are looked at. Importing torch and what trains with it takes seconds."""

ANSWER_SECONDS = 1.0
"""A process that has loaded torch has so long to show that a probe watches it. One that has a probe shows it before."""

LOG_HEAD = 1 << 20
LOG_TAIL = 3 << 20
"""Bytes of a log that are kept: how it began, and what came before its end. Signatures are read from less."""

LOG_SLACK = 4 << 20
"""A running log may be so much longer before its middle is let go."""

_TRACKER = b"multiprocessing.resource_tracker"

# What the kernel says of a file that we map into every watched process.
_ANSWER = b"/probe/site/sitecustomize.py"
_TORCH = b"/libtorch"

UNGUARDED = "unwatched"
"""Third argument of the program: no probe is in what it starts."""

# Signals that we ignore, and those that Python ignores: for what we start all is as it was for the tool.
_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)


# ------------------------------------------------------------------------------------------------------- processes


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in (b"Z", b"X")


def descendants(root: int) -> list[int]:
    """Running processes below `root`, parents first."""
    found, waiting = [], [root]
    while waiting:
        for pid in _children(waiting.pop()):
            waiting.append(pid)
            if alive(pid):
                found.append(pid)
    return found


def marked(mark: str) -> list[int]:
    """Process ids whose initial environment holds `mark` (``NAME=value``)."""
    found, wanted, user = [], mark.encode(), os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if user and os.stat(f"/proc/{name}").st_uid != user:
                    continue
                with open(f"/proc/{name}/environ", "rb") as stream:
                    environment = stream.read()
                if wanted in environment and wanted in environment.split(b"\0"):
                    found.append(int(name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the name, the state first."""
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(b")")[2].split() if text else None


def _shown(command):
    """A command line as it may be written down: without secrets (see the probe's `secrets`, which is all it needs)."""
    import importlib.util

    # The probe is a package of the standard library's only, but here nothing of ours is on the path.
    name, folder = (
        "_bisect_cfg_probe",
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "probe"),
    )
    try:
        if name not in sys.modules:
            init = os.path.join(folder, "__init__.py")
            spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[folder])
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        module = importlib.import_module(name + ".secrets")
        return " ".join(module.mask_arguments(command)).strip()
    except Exception:  # the reaper lives on, whatever became of our files
        return command[0]


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
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields is not None and int(fields[1]) == pid:
                found.append(int(name))
    return found


def _ended() -> Iterator[tuple[int, int]]:
    """Our children that have ended, and how (wait statuses)."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, status


def end_descendants(root: int, others: Callable[[], list[int]] = list) -> None:
    """Kill what descends from this process, and others, until nothing is left; for `ENDING_SECONDS` at most.

    Args:
        root: this process, the subreaper of the rest.
        others: further processes to end.
    """

    def left() -> list[int]:
        for _ in _ended():
            pass
        return [*descendants(root), *others()]

    end_all(left, ENDING_SECONDS)


def end_all(left: Callable[[], list[int]], seconds: float) -> None:
    """Kill processes until none is left; those that remove what the others leave in shared memory end after them.

    Args:
        left: those that there still are.
        seconds: for how long, at most.
    """
    begun = time.monotonic()
    alone = None  # since when only trackers are left
    while time.monotonic() < begun + seconds:
        processes = left()
        if not processes:
            return
        ending = [pid for pid in processes if not is_tracker(pid)]
        if not ending:
            alone = alone or time.monotonic()
        for pid in ending or (processes if time.monotonic() >= alone + TRACKER_SECONDS else ()):
            _kill(pid)
        time.sleep(0.002)


def is_tracker(pid: int) -> bool:
    """Whether a process is the one that removes shared memory after those that made it."""
    return _TRACKER in _read(f"/proc/{pid}/cmdline")


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------------- the guard


class Guard:
    """Finds processes that have loaded torch and that no probe watches: they could train, and nobody would know."""

    def __init__(self) -> None:
        self._answered: set[tuple[object, ...]] = set()
        self._since: dict[tuple[object, ...], float] = {}

    def look(self, root: int) -> list[int]:
        """Such processes below `root` that have had their time to answer."""
        found, seen, now = [], set(), time.monotonic()
        for pid in descendants(root):
            fields = _stat(pid)
            if fields is None:
                continue
            # Start time and the stack's random place: an `exec`, after which a probe must answer anew, changes the
            # latter.
            key = (pid, fields[19], fields[25])
            seen.add(key)
            if key in self._answered:
                continue
            maps = _read(f"/proc/{pid}/maps")
            if _ANSWER in maps:
                self._answered.add(key)
            elif _TORCH in maps and any(_TORCH in line and b"x" in line[:60] for line in maps.splitlines()):
                # Executable: a debugger that reads torch's symbols maps the file, but not so.
                if now - self._since.setdefault(key, now) >= ANSWER_SECONDS:
                    found.append(pid)
        self._answered &= seen
        self._since = {key: since for key, since in self._since.items() if key in seen}
        return found


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
    import ctypes

    keep_size, punch_hole = 1, 2
    try:
        fallocate = ctypes.CDLL(None).fallocate
    except AttributeError:
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    return fallocate(handle, keep_size | punch_hole, start, length) == 0


# ------------------------------------------------------------------------------------------------------- the process


class _Process:
    """What runs when this file is started as a program."""

    def __init__(self, descriptor: int, mark: str, unwatched: str = "") -> None:
        import socket

        os.set_inheritable(descriptor, False)
        self._socket, self._mark = socket.socket(fileno=descriptor), mark
        self._started: dict[int, int] = {}  # process id -> number of the request
        self._runs: dict[int, tuple[str, Log]] = {}  # process id of a run's first process -> its folder and log
        self._guard = None if unwatched else Guard()
        self._child_ended, ended = os.pipe()
        for end in (self._child_ended, ended):
            os.set_blocking(end, False)
        self._signals = {number: _inherited(number) for number in _OURS}
        for number in _OURS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        become_subreaper()

    def run(self) -> None:
        """Until the tool is gone and nothing is left."""
        next_guard = 0.0
        wait = TICK_SECONDS
        while True:
            ready, _, _ = select.select([self._socket, self._child_ended], [], [], wait if self._runs else None)
            if self._child_ended in ready:
                with contextlib.suppress(OSError):
                    os.read(self._child_ended, 4096)
            self._reap()
            if self._socket in ready and not self._obey():
                break
            grown = [log.bound() for _, log in self._runs.values()]
            wait = TICK_SECONDS / 10 if any(grown) else TICK_SECONDS
            if self._guard is not None and self._runs and time.monotonic() >= next_guard:
                for pid in self._guard.look(os.getpid()):
                    self._end_run_of(pid)
                next_guard = time.monotonic() + GUARD_SECONDS
        self._end_all()

    # --------------------------------------------------------------------------------------------- messages

    def _obey(self) -> bool:
        try:
            header, passed, _, _ = self._socket.recvmsg(4, 1024)
            handles = [number for _, _, data in passed for number in struct.unpack(f"{len(data) // 4}i", data)]
            for handle in handles:
                os.set_inheritable(handle, False)
            header += self._exactly(4 - len(header)) if header else b""
            data = self._exactly(struct.unpack("!I", header)[0]) if header else b""
        except OSError:
            return False
        if not data:
            return False
        message = json.loads(data)
        try:
            if message["op"] == "start":
                self._start(message, handles)
            elif message["op"] == "add":
                self._add(message["pid"], message["folder"])
            elif message["op"] == "remove":
                self._runs.pop(message["pid"], None)
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

    # --------------------------------------------------------------------------------------------- runs

    def _add(self, pid: int, folder: str) -> None:
        self._runs[pid] = folder, Log(os.path.join(folder, "log.txt"))

    def _start(self, message: dict, handles: list[int]) -> None:
        reads, writes = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                self._become(message, handles, writes)
            except OSError as error:
                os.write(writes, f"{error.errno or errno.ENOEXEC}".encode())
            finally:
                os._exit(127)
        os.close(writes)
        said = b""
        while more := os.read(reads, 16):  # ends when `exec` closes the other end
            said += more
        os.close(reads)
        if said:
            os.waitpid(pid, 0)
            self._tell(id=message["id"], error=int(said))
            return
        self._started[pid] = message["id"]
        self._add(pid, message["folder"])
        self._tell(id=message["id"], pid=pid)

    def _become(self, message: dict, handles: list[int], writes: int) -> None:
        """In the child: be the program. `handles` are the output, and what keeps its number."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, action in self._signals.items():
            signal.signal(number, action)
        for number in _PYTHONS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(_bytes(message["cwd"]))
        numbers = message["numbers"]
        free = max([2, *numbers]) + 1  # first all out of the way of each other
        output, *kept = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, free) for handle in handles]
        writes_now = fcntl.fcntl(writes, fcntl.F_DUPFD_CLOEXEC, free)
        nothing = fcntl.fcntl(os.open(os.devnull, os.O_RDONLY), fcntl.F_DUPFD_CLOEXEC, free)
        for source, target in ((nothing, 0), (output, 1), (output, 2), *zip(kept, numbers, strict=True)):
            os.dup2(source, target)
        environment = {_bytes(name): _bytes(value) for name, value in message["environment"]}
        command = [_bytes(word) for word in message["command"]]
        try:
            os.execvpe(command[0], command, environment)
        except OSError as error:
            os.write(writes_now, f"{error.errno or errno.ENOEXEC}".encode())
            os._exit(127)

    def _reap(self) -> None:
        for pid, status in _ended():
            number = self._started.pop(pid, None)
            if number is not None:  # else one that came to us when its parent ended
                self._tell(id=number, exit=os.waitstatus_to_exitcode(status))

    def _end_run_of(self, pid: int) -> None:
        """End the run that a process belongs to, and leave word in its folder; all runs, if that cannot be told."""
        command = _shown(_read(f"/proc/{pid}/cmdline").decode("utf-8", "backslashreplace").split("\0"))
        parents, one = [], pid
        while one > 1 and one != os.getpid() and len(parents) < 1000:
            parents.append(one)
            fields = _stat(one)
            one = int(fields[1]) if fields else 0
        first = next((one for one in parents if one in self._runs), None)
        roots = [first] if first is not None else list(self._runs)
        line = json.dumps({"event": "unwatched", "pid": pid, "command": command[:2000]}) + "\n"
        for root in roots:
            with contextlib.suppress(OSError):
                path = os.path.join(self._runs[root][0], "events.jsonl")
                handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                os.write(handle, line.encode())
                os.close(handle)
        _kill(pid)
        for root in roots:
            for one in descendants(root):
                _kill(one)
            _kill(root)

    def _end_all(self) -> None:
        self._socket.close()
        end_descendants(os.getpid(), lambda: marked(self._mark))


def _inherited(number: int) -> signal.Handlers:
    return signal.SIG_IGN if signal.getsignal(number) is signal.SIG_IGN else signal.SIG_DFL


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")  # see `_text_of` in `process`: one byte, one character


def become_subreaper() -> None:
    """Have processes whose parent has ended become children of this one, if they descend from it."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    _Process(int(sys.argv[1]), *sys.argv[2:]).run()
