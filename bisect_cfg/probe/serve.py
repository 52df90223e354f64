"""A process that waits at a good place and forks one child per trial: the warm start.

The tool talks to a waiting server over a Unix socket, in the questions and answers of `protocol`.

Forking is sound only while nothing that cannot be inherited is alive: no CUDA context, no thread of the
script's own. `unsound` says what stands in the way, and then the tool takes a colder start.
"""

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
from .standard_library import json, os, select, signal, threading, time, traceback

# Threads of these names do nothing that a forked child needs: tqdm's monitor only refreshes progress bars.
_HARMLESS_THREADS = ("TMonitor", "tqdm_monitor")

# How long a process that has closed its pipe may take to be gone.
_ENDING_SECONDS = 2.0

_threads = {"wanted": None}


def keep_single_threaded():
    """Keep torch at one thread while we wait for forks.

    libgomp cannot be forked once a parallel region has run: the child would wait for threads that only the
    parent has. `restore_threads` gives the child what the script would have had.
    """

    def limit(torch):
        _threads["wanted"] = torch.get_num_threads()
        original = torch.set_num_threads
        original(1)

        def set_num_threads(count):
            _threads["wanted"] = count

        torch.set_num_threads = set_num_threads
        _threads["restore"] = lambda: setattr(torch, "set_num_threads", original)

    when_imported("torch", limit)


def restore_threads(count=None):
    """In the child: torch's own thread count, or at most `count`."""
    torch = sys.modules.get("torch")
    if torch is None or _threads["wanted"] is None:
        return
    if "restore" in _threads:
        _threads.pop("restore")()
    wanted = _threads["wanted"]
    torch.set_num_threads(min(wanted, count) if count else wanted)


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


def _identity(descriptor):
    """What a descriptor stands for, None if it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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


def _end(pid, patience):
    """End a child that should end by itself within so many seconds; its status as `os.waitpid` gives it."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)  # its number is its own until it is waited for
    return os.waitpid(pid, 0)[1]


class Server:
    """The waiting process."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.socket = _identity(descriptor)
        self.buffer = b""
        self.children = {}  # pid -> (id, pidfd)
        self.resolver = None  # (pid, where it is asked, where it answers)
        self.answer = b""  # of the resolver, as far as it has come
        self.asked = []  # questions for the resolver, oldest first
        self.deadline = None  # when the resolver must have answered; None while nothing is asked of it

    def send(self, message):
        """Write one message; a closed socket means the tool is gone."""
        self._check()
        data = _line(message)
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError:
                self._die()

    def _check(self):
        # A script may close what it did not open (daemons do), and then the number is that of a file of its own.
        if _identity(self.descriptor) != self.socket:
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
        self._check()
        while True:
            for line in self._lines():
                question = protocol.read(protocol.Request, json.loads(line))
                if isinstance(question, protocol.Advance):
                    return question.fork_at
                if isinstance(question, protocol.Resolve):
                    self.asked.append(question)
                    self._ask_resolver()
                elif self._fork(question.id, question.request.folder, question.mark):
                    return question.request

    def _lines(self):
        """Wait for messages, for children that end and for the resolver; yields complete lines."""
        while True:
            waiting = select.poll()  # not select: a script may have a thousand files open
            for handle in (self.descriptor, *(handle for _, handle in self.children.values())):
                waiting.register(handle, select.POLLIN)
            timeout = None
            if self.deadline is not None:
                waiting.register(self.resolver[2], select.POLLIN)
                timeout = max(0.0, self.deadline - time.monotonic()) * 1000
            ready = {handle for handle, _ in waiting.poll(timeout)}
            for pid, (number, handle) in list(self.children.items()):
                if handle in ready:
                    _, status = os.waitpid(pid, 0)
                    os.close(handle)
                    del self.children[pid]
                    self.send(protocol.Ended(number, os.waitstatus_to_exitcode(status)))
            if self.deadline is not None:
                if self.resolver[2] in ready:
                    data = os.read(self.resolver[2], 1 << 16)
                    self.answer += data
                    if not data or data.endswith(b"\n"):
                        self._resolved()
                elif time.monotonic() >= self.deadline:
                    self._resolved(hangs=True)
            if self.descriptor in ready:
                data = os.read(self.descriptor, 1 << 16)
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
            try:
                os.setpgid(pid, pid)  # both sides do it, so that neither runs on before it is done
            except OSError:
                pass
            self.children[pid] = (number, os.pidfd_open(pid))
            self.send(protocol.Forked(number, pid))
            return False
        os.setpgid(0, 0)
        _carry(mark)
        os.close(self.descriptor)
        for _, handle in self.children.values():
            os.close(handle)
        if self.resolver is not None:
            for handle in self.resolver[1:]:
                os.close(handle)
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
        if self.resolver is None:
            self.resolver = self._fork_resolver()
        self.deadline = time.monotonic() + self.asked[0].seconds
        data = _line(self.asked[0].item)
        try:
            while data:
                data = data[os.write(self.resolver[1], data) :]
        except OSError:
            pass  # it has ended; that is readable, too

    def _resolved(self, hangs=False):
        pid, *handles = self.resolver
        question = self.asked.pop(0)
        try:
            result = protocol.from_json(protocol.BuildAnswer, json.loads(self.answer))
        except (ValueError, TypeError):  # none, or not one of ours
            self.resolver = None
            status = _end(pid, 0.0 if hangs else _ENDING_SECONDS)
            for handle in handles:
                os.close(handle)
            code = os.waitstatus_to_exitcode(status)
            said = f"took longer than {question.seconds:g} s" if hangs else f"ended the process with status {code}"
            result = protocol.BuildAnswer(error=f"building the configuration {said}", unanswered=True)
        self.answer, self.deadline = b"", None
        self.send(protocol.Resolved(question.id, result))
        self._ask_resolver()

    def _fork_resolver(self):
        child_reads, we_write = os.pipe()
        we_read, child_writes = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            os.close(we_write)
            os.close(we_read)
            os.close(self.descriptor)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            # What a launcher gave this process would make a config open a process group, and hold the port of every
            # trial to come.
            for name in ranks.LAUNCHED:
                os.environ.pop(name, None)
            try:
                with os.fdopen(child_reads) as questions, os.fdopen(child_writes, "w") as answers:
                    for line in questions:  # ends when the server does
                        request = protocol.from_json(protocol.BuildRequest, json.loads(line))
                        answers.write(_line(validity.build(request)).decode())
                        answers.flush()
            finally:  # also of SystemExit: the script does not go on in here
                os._exit(0)
        os.close(child_reads)
        os.close(child_writes)
        return pid, we_write, we_read

    def _die(self):
        os._exit(0)  # the supervisor ends what was forked from here


def _line(message):
    return (json.dumps(protocol.to_json(message)) + "\n").encode()


def begin(request, first=True):
    """In the process that carries out a trial (`protocol.TrialOrders`): folder, limits, overrides, environment.

    `first` says whether it is the first process of the run, or one that this has started.
    """
    children.set_variables(request.env)
    ranks.meet_at(request.port)
    place = request.folder if first and not request.launched else ranks.begin(request.folder)
    record.open_folder(place, first, request.folder)
    input_files.begin(request.opened, first)
    if not request.heartbeat:
        heartbeat.stop()
    elif first:
        heartbeat.open_file(place)
    if first and (request.launched or not request.started):
        instruments.begin(request.instruments, place)
    for part in (sources, origin, dataset_rows, training):
        part.set_orders(request)
