"""A process that waits at a good place and forks one child per trial: the warm start.

The tool talks to a waiting server over a Unix socket, one JSON object a line:

- ``{"op": "trial", "id": 3, "request": {...}}`` -> ``{"id": 3, "pid": 4711}`` at once and
  ``{"id": 3, "exit": -8}`` when the child has ended (a negative number is the signal that killed it);
- ``{"op": "resolve", "id": 4, "items": [...]}`` -> ``{"id": 4, "results": [...]}``: builds configuration objects
  in a child of its own and says what they resolve to, or why they are invalid;
- ``{"op": "advance", "fork_at": {...}}``: a server that waits after the imports runs the script up to that point
  and waits there;
- end of file: the tool is gone, so are we, with every child.

Forking is sound only while nothing that cannot be inherited is alive: no CUDA context, no thread of the
script's own. `unsound` says what stands in the way, and then the tool takes a shallower level.
"""

import json
import os
import select
import signal
import sys
import threading

from . import capture, instruments, opened, quiet, record, secrets, values, watch
from .imports import when_imported

# Threads of these names do nothing that a forked child needs: tqdm's monitor only refreshes progress bars.
_HARMLESS_THREADS = ("TMonitor", "tqdm_monitor")

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
    others = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and type(thread).__name__ not in _HARMLESS_THREADS
    ]
    if others:
        return "the script has started threads here: " + ", ".join(sorted(others))
    return None


class Server:
    """The waiting process."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.buffer = b""
        self.children = {}  # pid -> (id, pidfd)
        self.resolver = None  # (pid, stream of questions, stream of answers)

    def send(self, message):
        """Write one message; a closed socket means the tool is gone."""
        data = (json.dumps(message) + "\n").encode()
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError:
                self._die()

    def run(self):
        """Serve until the tool hangs up.

        Returns:
            In a forked child ``("trial", request)``; in the server itself ``("advance", fork_at)``, when it is to
            go on to a later point.
        """
        while True:
            for line in self._lines():
                message = json.loads(line)
                if message["op"] == "trial":
                    if self._fork(message["id"], message["request"]["folder"]):
                        return "trial", message["request"]
                elif message["op"] == "resolve":
                    self._resolve(message)
                elif message["op"] == "advance":
                    return "advance", message["fork_at"]

    def _lines(self):
        """Wait for messages and for children that end; yields complete lines."""
        while True:
            waiting = [self.descriptor, *(handle for _, handle in self.children.values())]
            ready, _, _ = select.select(waiting, [], [])
            for pid, (number, handle) in list(self.children.items()):
                if handle in ready:
                    _, status = os.waitpid(pid, 0)
                    os.close(handle)
                    del self.children[pid]
                    self.send({"id": number, "exit": os.waitstatus_to_exitcode(status)})
            if self.descriptor in ready:
                data = os.read(self.descriptor, 1 << 16)
                if not data:
                    self._die()
                self.buffer += data
                *lines, self.buffer = self.buffer.split(b"\n")
                if lines:
                    return lines

    def _fork(self, number, folder):
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            try:
                os.setpgid(pid, pid)  # both sides do it, so that neither runs on before it is done
            except OSError:
                pass
            self.children[pid] = (number, os.pidfd_open(pid))
            self.send({"id": number, "pid": pid})
            return False
        os.setpgid(0, 0)
        os.close(self.descriptor)
        for _, handle in self.children.values():
            os.close(handle)
        if self.resolver is not None:
            self.resolver[1].close()
            self.resolver[2].close()
        log = os.open(os.path.join(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        os.close(log)
        os.close(nothing)
        return True

    def _resolve(self, message):
        # One child answers all such questions: a fork of a large process costs more than building a config, and
        # building one leaves traces (accelerate's shared state) that the trials must not inherit.
        results = []
        for item in message["items"]:
            if self.resolver is None:
                self.resolver = self._fork_resolver()
            results.append(self._ask_resolver(item))
        self.send({"id": message["id"], "results": results})

    def _ask_resolver(self, item):
        pid, questions, answers = self.resolver
        try:
            questions.write(json.dumps(item) + "\n")
            questions.flush()
            line = answers.readline()
        except OSError:
            line = ""
        if line:
            return json.loads(line)
        questions.close()
        answers.close()
        _, status = os.waitpid(pid, 0)
        self.resolver = None
        code = os.waitstatus_to_exitcode(status)
        return {"error": f"building the configuration ended the process with status {code}"}

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
            with os.fdopen(child_reads) as questions, os.fdopen(child_writes, "w") as answers:
                for line in questions:  # ends when the server does
                    answers.write(json.dumps(build(json.loads(line))) + "\n")
                    answers.flush()
            os._exit(0)
        os.close(child_reads)
        os.close(child_writes)
        return pid, os.fdopen(we_write, "w"), os.fdopen(we_read)

    def _die(self):
        for pid in self.children:
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass
        os._exit(0)


def build(item):
    """Build one configuration object from recorded raw values and overrides; say what it resolves to.

    Args:
        item: ``{"module", "cls", "raw": {field: encoded}, "overrides": {field: encoded}}``.

    Returns:
        ``{"values": {field: encoded}, "reads": [field, ...]}`` or ``{"error": text, "reads": [...]}``. `reads` names
        the fields the library looked at: a configuration that agrees in those resolves, or fails, in the same way.
    """
    import importlib
    import warnings

    warnings.simplefilter("ignore")
    capture.state.before = None
    reads = set()
    try:
        cls = getattr(importlib.import_module(item["module"]), item["cls"])
        defaults = capture.defaults_of(cls)
        watched = _reading(cls, reads)
        thing = watched.__new__(watched)
        for name, value in defaults.items():
            setattr(thing, name, value)
        for name, value in item["raw"].items():
            try:
                setattr(thing, name, values.decode(value))
            except ValueError:
                pass  # an opaque object: its default stands in for it
        capture.apply(thing, item["overrides"], defaults)
        quiet.silence(thing)
        thing.output_dir = os.devnull  # never created: resolving only checks
        reads.clear()
        if hasattr(thing, "__post_init__"):
            with capture.unwatched(thing):  # our own hook would look at every field
                thing.__post_init__()
    except Exception as error:
        return {"error": secrets.scrub(f"{type(error).__name__}: {error}"), "reads": sorted(reads)}
    read = sorted(reads & set(defaults))
    return {"values": {name: values.encode(getattr(thing, name, None), name) for name in defaults}, "reads": read}


_reading_classes = {}


def _reading(cls, reads):
    """A subclass of `cls` that notes in `reads` which attributes are looked at."""
    if cls not in _reading_classes:

        def __getattribute__(self, name):
            _reading_classes[cls][1].add(name)
            return super(watched, self).__getattribute__(name)

        watched = type(cls.__name__, (cls,), {"__getattribute__": __getattribute__, "__module__": cls.__module__})
        _reading_classes[cls] = [watched, reads]
    _reading_classes[cls][1] = reads
    return _reading_classes[cls][0]


def begin(request, first=True):
    """In the process that carries out a trial: folder, limits, overrides, environment.

    `first` says whether it is the first process of the run, or one that this has started; ``started`` in the request,
    that the latter trains.
    """
    record.open_folder(request["folder"], first)
    opened.begin(request.get("opened"))
    if first and not request.get("started"):
        instruments.begin(request.get("instruments"), request["folder"])
    for name, value in request.get("env", {}).items():
        os.environ[name] = value
    capture.state.overrides = request.get("overrides", {})
    if request.get("targets"):
        capture.state.targets = request["targets"]
    capture.state.before = None
    watch.limits.steps = request.get("steps")
    watch.limits.stop_when_non_finite = request.get("stop_when_non_finite", True)
