"""A process that waits at a good place and forks one child per trial: the warm start.

The tool talks to a waiting server over a Unix socket, in the questions and answers of `protocol`.

Forking is sound only while nothing that cannot be inherited is alive: no CUDA context, no thread of the
script's own. `unsound` says what stands in the way, and then the tool takes a colder start.
"""

import contextlib
import sys

from . import (
    children,
    dataset_rows,
    heartbeat,
    input_files,
    instruments,
    origin,
    protocol,
    ranks,
    record,
    sources,
    training,
    validity,
)
from .imports import when_imported
from .standard_library import json, os, select, signal, socket, threading, time, traceback

# Threads of these names do nothing that a forked child needs: tqdm's monitor only refreshes progress bars.
_HARMLESS_THREADS = ("TMonitor", "tqdm_monitor")

_threads = {"wanted": None, "set": None}  # of torch: how many the script would have, and torch's own function


def keep_single_threaded():
    """Keep torch at one thread while we wait for forks.

    libgomp cannot be forked once a parallel region has run: the child would wait for threads that only the
    parent has. `restore_threads` gives the child what the script would have had.
    """

    def limit(torch):
        _threads.update(wanted=torch.get_num_threads(), set=torch.set_num_threads)
        torch.set_num_threads(1)
        torch.set_num_threads = lambda count: _threads.update(wanted=count)

    when_imported("torch", limit)


def restore_threads(count=None):
    """In the child: torch's own thread count, or at most `count`."""
    torch = sys.modules.get("torch")
    if torch is not None and _threads["set"] is not None:
        torch.set_num_threads = _threads["set"]
        torch.set_num_threads(min(_threads["wanted"], count) if count else _threads["wanted"])


def unsound():
    """Why a fork here would not be sound, or None."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("/dev/nvidia"):
                return "CUDA is already initialised here"
        except OSError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "CUDA is already initialised here"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return "a process group is open here"
    others = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and type(thread).__name__ not in _HARMLESS_THREADS
    ]
    if others:
        return "the script has started threads here: " + ", ".join(sorted(others))
    return None


def _carry(mark):
    """Have this process carry the mark of its run (``NAME=value``) in place of the server's: for what it starts, and
    where the supervisor reads it, in the memory that the kernel shows as the environment it was started with."""
    name, _, value = mark.partition("=")
    os.environ[name] = value
    try:
        with open("/proc/self/stat", "rb") as stream:
            start, end = map(int, stream.read().rpartition(b")")[2].split()[47:49])
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            at = os.pread(memory, end - start, start).find(os.fsencode(name + "="))
            if at >= 0:
                os.pwrite(memory, os.fsencode(mark), start + at)
        finally:
            os.close(memory)
    except (OSError, ValueError):  # not to be had: it is known by its parent
        pass


def _line(message):
    return (json.dumps(protocol.to_json(message)) + "\n").encode()


def _received(end):
    """What has come at an end of a connection; empty once the other end is closed, however it was."""
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


class Server:
    """The waiting process, at a socket. Sending and receiving fail where a script has put a file of its own in the
    socket's place: daemons close what they did not open."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.buffer = b""
        self.children = {}  # pid -> (id, pidfd)
        self.resolver: tuple = ()  # (pid, a socket to it)
        self.answer = b""  # of the resolver, as far as it has come
        self.asked = []  # questions for the resolver, oldest first
        self.deadline = None  # when the resolver must have answered; None while nothing is asked of it

    def send(self, message):
        """Write one message; a closed socket means the tool is gone."""
        try:
            self.socket.sendall(_line(message))
        except OSError:
            self._die()

    def run(self):
        """Serve until the tool hangs up.

        Returns:
            In a forked child its `TrialOrders`; in the server itself a `ForkPoint`, when it is to go on to a later one.
        """
        try:
            return self._serve()
        except BaseException:  # whatever it is: the script must not go on unwatched
            traceback.print_exc()
            self._die()

    def _serve(self):
        while True:
            for line in self._lines():
                question = protocol.read(protocol.Request, json.loads(line))
                if isinstance(question, protocol.ForkPoint):
                    return question
                if isinstance(question, protocol.Resolve):
                    self.asked.append(question)
                    self._ask_resolver()
                elif self._fork(question.id, question.request.folder, question.mark):
                    return question.request

    def _lines(self):
        """Wait for messages, for children that end and for the resolver; yields complete lines."""
        while True:
            waiting = select.poll()  # not select: a script may have a thousand files open
            for handle in (self.socket.fileno(), *(handle for _, handle in self.children.values())):
                waiting.register(handle, select.POLLIN)
            timeout = None
            if self.deadline is not None:
                waiting.register(self.resolver[1].fileno(), select.POLLIN)
                timeout = max(0.0, self.deadline - time.monotonic()) * 1000
            ready = {handle for handle, _ in waiting.poll(timeout)}
            for pid, (number, handle) in list(self.children.items()):
                if handle in ready:
                    _, status = os.waitpid(pid, 0)
                    os.close(handle)
                    del self.children[pid]
                    self.send(protocol.Ended(number, os.waitstatus_to_exitcode(status)))
            if self.deadline is not None:
                if self.resolver[1].fileno() in ready:
                    data = _received(self.resolver[1])
                    self.answer += data
                    if not data or data.endswith(b"\n"):
                        self._resolved()
                elif time.monotonic() >= self.deadline:
                    self._resolved(hangs=True)
            if self.socket.fileno() in ready:
                data = _received(self.socket)
                if not data:
                    self._die()
                self.buffer += data
                *lines, self.buffer = self.buffer.split(b"\n")
                if lines:
                    return lines

    def _fork(self, number, folder, mark):
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # both sides do it, so that neither runs on before it is done
            self.children[pid] = (number, os.pidfd_open(pid))
            self.send(protocol.Forked(number, pid))
            return False
        os.setpgid(0, 0)
        _carry(mark)
        self.socket.close()
        for _, handle in self.children.values():
            os.close(handle)
        if self.resolver:
            self.resolver[1].close()
        log = os.open(os.path.join(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        os.close(log)
        os.close(nothing)
        return True

    # One child answers all questions about configurations: a fork of a large process costs more than building a config,
    # and building one leaves traces (accelerate's shared state) that the trials must not inherit. It is not waited for:
    # trials end, and others begin, while it builds.

    def _ask_resolver(self):
        if not self.asked or self.deadline is not None:
            return
        if not self.resolver:
            self.resolver = self._fork_resolver()
        self.deadline = time.monotonic() + self.asked[0].seconds
        with contextlib.suppress(OSError):  # it has ended; that is readable, too
            self.resolver[1].sendall(_line(self.asked[0].item))

    def _resolved(self, hangs=False):
        (pid, ours), question = self.resolver, self.asked.pop(0)
        try:
            result = protocol.from_json(protocol.BuildAnswer, json.loads(self.answer))
        except (ValueError, TypeError):  # none, or not one of ours
            self.resolver = ()
            ours.close()
            if hangs:
                os.kill(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said = f"took longer than {question.seconds:g} s" if hangs else f"ended the process with status {code}"
            result = protocol.BuildAnswer(error=f"building the configuration {said}", unanswered=True)
        self.answer, self.deadline = b"", None
        self.send(protocol.Resolved(question.id, result))
        self._ask_resolver()

    def _fork_resolver(self):
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            ours.close()
            self.socket.close()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            # What a launcher gave this process would make a config open a process group, and hold the port of every
            # trial to come.
            for name in ranks.LAUNCHED:
                os.environ.pop(name, None)
            try:
                for line in theirs.makefile():  # ends when the server does
                    request = protocol.from_json(protocol.BuildRequest, json.loads(line))
                    theirs.sendall(_line(validity.build(request)))
            finally:  # also of SystemExit: the script does not go on in here
                os._exit(0)
        theirs.close()
        return pid, ours

    def _die(self):
        os._exit(0)  # the supervisor ends what was forked from here


def begin(request, first=True):
    """In the process that carries out a trial (`protocol.TrialOrders`): folder, limits, overrides, environment.

    `first` says whether it is the first process of the run, or one that this has started.
    """
    children.set_variables(request.env)
    ranks.meet_at(request.port)
    place = request.folder if first and not request.launched else ranks.begin(request.folder)
    record.open_folder(place, first)
    input_files.begin(request.opened, first)
    if not request.heartbeat:
        heartbeat.stop()
    elif first:
        heartbeat.open_file(place)
    if first and (request.launched or not request.started):
        instruments.begin(request.instruments, place)
    for part in (sources, origin, dataset_rows, training):
        part.set_orders(request)
