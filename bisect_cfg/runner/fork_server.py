"""Warm starts: processes that wait at a good place and fork one child, or one for each rank, per trial.

A trial starts at the warmest of the `STARTS` that is sound: "config" forks from a process that has run the script up to
its configuration, "imports" from one that has imported the libraries, "cold" runs the user's command from the start.
`ForkServer` is our side of one waiting process; the other is `bisect_cfg.probe.serve`, and what they say to each other
is in `bisect_cfg.probe.protocol`. `Starts` says which start trials take, and keeps the server of it.

(A function has its server as well: the supervisor itself, see `bisect_cfg.runner.supervisor`.)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_cfg.capture.captured import Capture
from bisect_cfg.capture.command import accelerate_launch
from bisect_cfg.capture.launched import ACCELERATE, shares_out
from bisect_cfg.capture.script import Script
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import make_folder, write_json
from bisect_cfg.probe import protocol
from bisect_cfg.probe.protocol import ORDERS_FILE, BuildAnswer, BuildRequest, ForkPoint, Message, Serve, TrialOrders
from bisect_cfg.runner.environments import Environment
from bisect_cfg.runner.hang import PHASE_SECONDS
from bisect_cfg.runner.ports import free_port
from bisect_cfg.runner.ranks import FirstLaunch
from bisect_cfg.runner.starts import COLD, IMPORTS, STARTS
from bisect_cfg.runner.supervisor import Run, Supervisor

BUILD_SECONDS = 120.0
"""How long building one configuration may take. It takes milliseconds; the first may import what was not imported yet,
and one that opens a connection may wait for ever."""

ANSWER_SECONDS = 60.0
"""A server answers at once; one that has not within this time beyond what it was asked for is no longer to be used."""

SERVER_PATIENCE = 3.0
"""A server, or a trial, gets this many times as long to reach its fork point, or its training, as the first run took
to get to its training; and never less than `PHASE_SECONDS`."""

LIVING = 3
"""So many servers live at once besides the user's own environment's: each holds the imported libraries, a gigabyte or
two, and bringing one up again takes seconds."""

MOST_BYTES = 64 << 20
"""No answer is as long as this: whatever it is, it is not from the server."""


class ServerGone(Exception):
    """The server process ended; whatever was asked of it has no answer."""


class ForkServer:
    """A waiting process.

    Args:
        command: the user's command.
        environment: with the probe's variables in place.
        orders: without the socket.
        orders_path: the file its orders are written to; its folder holds the log.
        supervisor: starts it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        orders: Serve,
        orders_path: Path,
        supervisor: Supervisor,
    ) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            write_json(orders_path, protocol.to_json(replace(orders, socket=theirs.fileno())))
            handles = [theirs.fileno()]
            self._process = supervisor.start(command, environment, orders_path.parent, pass_fds=handles, lasting=True)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Callable[[Message | None], None]] = {}  # number of a question -> who takes its answers
        self._ready: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._gone = False
        self._why_gone = "the script ended before it came to its configuration again"
        threading.Thread(target=self._read, name="fork-server-reader", daemon=True).start()

    def wait_until_ready(self, timeout: float, interrupted: threading.Event) -> str | None:
        """Wait until the process has reached its fork point.

        Returns:
            None if forking there is sound, otherwise why not (also when it never got there).
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not interrupted.is_set():
            try:
                answer = self._ready.get(timeout=0.1)
            except queue.Empty:
                continue
            return answer.unsound if isinstance(answer, protocol.Ready) else self._why_gone
        return f"the script did not come to its configuration within {timeout:.0f} s"

    def advance(self, fork_at: ForkPoint) -> None:
        """Let a server that waits after the imports run the script up to a later fork point."""
        with self._lock, contextlib.suppress(OSError):  # wait_until_ready will tell
            self._send(protocol.Advance(fork_at))

    def fork(self, run: Run, orders: TrialOrders) -> None:
        """Fork a first process of a run.

        Raises:
            ServerGone: the server has ended.
        """
        forked: list[int] = []
        answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

        def take(answer: Message | None) -> None:
            if forked:
                run.came_to(forked[0], answer.code if isinstance(answer, protocol.Ended) else None)
                return
            if isinstance(answer, protocol.Forked):
                forked.append(answer.pid)
                run.add(answer.pid)
            answers.put(answer)

        self._ask(lambda number: protocol.Trial(number, orders, run.mark), take)
        if not isinstance(_first(answers, ANSWER_SECONDS), protocol.Forked):
            raise ServerGone

    def resolve(self, item: BuildRequest) -> BuildAnswer:
        """Build a configuration object without training: what it resolves to, or why it is invalid.

        Raises:
            ServerGone: the server has ended.
        """
        answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._ask(lambda number: protocol.Resolve(number, item, BUILD_SECONDS), answers.put)
        answer = _first(answers, ANSWER_SECONDS + BUILD_SECONDS)
        if not isinstance(answer, protocol.Resolved):
            raise ServerGone
        return answer.result

    def close(self) -> None:
        """End the server. What was forked from it is lost (`Run.lost`)."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._process.end()

    def _send(self, message: Message) -> None:
        self._ours.sendall((json.dumps(protocol.to_json(message)) + "\n").encode())

    def _ask(self, question: Callable[[int], Message], take: Callable[[Message | None], None]) -> None:
        with self._lock:
            if self._gone:
                raise ServerGone
            number = next(self._numbers)
            self._waiting[number] = take
            try:
                self._send(question(number))
            except OSError:
                raise ServerGone from None

    def _read(self) -> None:
        buffer = b""
        try:
            while data := self._receive():
                *lines, buffer = (buffer + data).split(b"\n")
                if len(buffer) > MOST_BYTES:
                    raise ValueError("no answer")
                for line in lines:
                    self._take(protocol.read(protocol.Reply, json.loads(line)))
        except (ValueError, TypeError, KeyError):  # the user's code has this socket open, too, before it is forked
            self._why_gone = "the script writes into descriptors that it did not open"
        with self._lock:
            self._gone = True
            self._ours.close()
            self._ready.put(None)
            for take in self._waiting.values():
                take(None)

    def _receive(self) -> bytes:
        try:
            return self._ours.recv(1 << 16)
        except OSError:
            return b""

    def _take(self, answer: Message) -> None:
        if isinstance(answer, protocol.Ready):
            self._ready.put(answer)
            return
        with self._lock:
            take = self._waiting.get(answer.id)
            if not isinstance(answer, protocol.Forked):  # the last that is said to it
                self._waiting.pop(answer.id, None)
        if take is not None:
            take(answer)


def _first(answers: queue.SimpleQueue[Message | None], seconds: float) -> Message | None:
    """The next answer; None: the server is gone.

    Raises:
        ServerGone: none came in time.
    """
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        raise ServerGone from None


def probe_environment(
    environment: Mapping[str, str], orders_path: Path
) -> tuple[dict[str, str], dict[str, str | None]]:
    """The user's environment with the probe's two variables, and what the probe has to restore."""
    site = str(Path(__file__).resolve().parent.parent / "probe" / "site")
    own = environment.get("PYTHONPATH")
    added = {
        "PYTHONPATH": os.pathsep.join([site, own]) if own else site,
        "BISECT_CFG_PROBE": str(orders_path),
    }
    restore = {name: environment.get(name) for name in added}
    return {**environment, **added}, restore


IMPORTED_BY_ALL = ("torch", "transformers", "trl", "trl.trainer.grpo_trainer", "trl.trainer.grpo_config")
IMPORTED_BY_SOME = ("datasets", "peft", "accelerate", "bitsandbytes", "vllm", "deepspeed")
"""What takes seconds to import. Until the first run has shown what a script imports, these are imported ahead for it:
the first always, the others where its text names them."""

PREPARING = "preparing"
"""In place of a start: the server imports libraries, and runs none of the user's code yet."""


def probable_imports(script: Path) -> list[str]:
    """Modules worth importing ahead of a script, save those that a file beside it would shadow."""
    try:
        text = script.read_text(errors="replace")
    except OSError:
        text = ""
    wanted = [*IMPORTED_BY_ALL, *(name for name in IMPORTED_BY_SOME if re.search(rf"\b{name}\b", text))]
    folder = script.resolve().parent

    def shadowed(name: str) -> bool:
        top = name.split(".")[0]
        return (folder / top).is_dir() or (folder / f"{top}.py").exists()

    return [name for name in wanted if not shadowed(name)]


def imports_ahead(capture: Capture) -> tuple[str, ...]:
    """Modules that a process may import before it runs the script.

    accelerate's `notebook_launcher` starts nothing once bitsandbytes is imported, which peft does, and TRL's trainers
    import peft. Where only the processes that it forks import these, the script's own must not have them.
    """
    if capture.prepares:
        return ()
    if capture.forked and "bitsandbytes" in capture.modules:
        return tuple(name for name in capture.modules if name.split(".")[0] not in ("bitsandbytes", "peft", "trl"))
    return capture.modules


class ServersByEnvironment:
    """The starts in environments with other packages. Thread-safe.

    Args:
        own: those in the user's own environment, which say how.
    """

    def __init__(self, own: Starts) -> None:
        self._own = own
        self._there: dict[str, Starts] = {}  # that was used last stands last
        self._used: Counter[str] = Counter()  # by trials that run
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def at(self, environment: Environment | None) -> Iterator[Starts]:
        """The starts for a trial in this environment, None for the user's own; they stand while the trial runs."""
        if environment is None:
            yield self._own
            return
        key = environment.folder.name
        with self._lock:
            starts = self._there.pop(key, None) or self._own.under(environment)
            self._there[key] = starts
            self._used[key] += 1
            idle = [other for other in self._there if not self._used[other]]
            for other in idle[: max(0, len(self._there) - LIVING)]:
                self._there.pop(other).close()
        try:
            yield starts
        finally:
            with self._lock:
                self._used[key] -= 1

    def close(self) -> None:
        """End all servers but the own environment's."""
        with self._lock:
            for starts in self._there.values():
                starts.close()
            self._there.clear()


@dataclass(frozen=True)
class FirstRun:
    """What the first run has shown of how the script starts.

    Attributes:
        capture: what the script set.
        seconds: until its training began.
        launched: what the user's launcher started; None where there is no launcher.
    """

    capture: Capture
    seconds: float = 0.0
    launched: FirstLaunch | None = None


class Starts:
    """The start that trials take, and the server behind it. Thread-safe.

    Args:
        script: what is run.
        folder: the study folder.
        supervisor: starts the server.
        interrupted: whether waiting for the server is to be given up.
        first: what the first run has shown; None before it is over.
        environment: with other packages, in which all that is started here runs; None for the user's own.

    Attributes:
        start: that trials take.
        first: what the first run has shown; None before it is over.
        folder: of the server, with its log.
        variables: environment variables that all that is started here has besides.
    """

    def __init__(
        self,
        script: Script,
        folder: Path,
        supervisor: Supervisor,
        interrupted: threading.Event,
        first: FirstRun | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.variables: Mapping[str, str] = {} if environment is None else environment.variables
        self.start = COLD
        self.first = first
        self.folder = folder / ("server" if environment is None else f"server-{environment.folder.name}")
        self._script, self._supervisor, self._interrupted = script, supervisor, interrupted
        self._server: ForkServer | None = None
        self._stands_at = ""  # the start that the server is of, or PREPARING
        self._lock = threading.RLock()

    def under(self, environment: Environment) -> Starts:
        """The same in an environment with other packages; at a colder start where this one cannot be had there."""
        script, first, launched = self._script.under(environment.python), self.first, self.launched
        if launched is not None:
            first = replace(first, launched=replace(launched, words=(environment.python, *launched.words[1:])))
        starts = Starts(script, self.folder.parent, self._supervisor, self._interrupted, first, environment)
        order = tuple(STARTS)
        for start in order[order.index(self.start) :]:
            if starts.start_at(start) is None:
                break
        return starts

    @property
    def capture(self) -> Capture | None:
        """What the first run has shown of the script; None before."""
        return None if self.first is None else self.first.capture

    @property
    def launched(self) -> FirstLaunch | None:
        """What the user's launcher started in the first run; None before, and where there is no launcher."""
        return None if self.first is None else self.first.launched

    @property
    def patience(self) -> float:
        """Seconds for reaching a fork point, or the training. The second time everything comes from the disk cache, so
        this is generous."""
        return max(PHASE_SECONDS, SERVER_PATIENCE * (0.0 if self.first is None else self.first.seconds))

    def learn(self, first: FirstRun) -> None:
        """The first run is over; call it before anything but `prepare`."""
        self.first = first

    def recall(self, start: str) -> None:
        """Have trials take a start that they took before, in this study; the server comes up when one needs it."""
        self.start = start

    def close(self) -> None:
        """End the server."""
        with self._lock:
            if self._server is not None:
                self._server.close()
            self._server, self._stands_at = None, ""

    def prepare(self) -> None:
        """Let a process import the libraries while the first run goes on; it runs none of the user's code yet."""
        with self._lock:
            if self._server is None:
                self._server = self._new_server(probable_imports(self._script.path))
                self._stands_at = PREPARING

    def start_at(self, start: str) -> str | None:
        """Have trials take a start from now on; brings up the process that they are forked from.

        Returns:
            None if it stands and forking it is sound, otherwise why not.
        """
        fork_point, capture = STARTS[start].fork_point, self.capture
        if start != COLD and capture is not None and capture.started and self.launched is None:
            if fork_point is not None or not capture.forked:  # a fork has what the script's own process has imported
                return "the training runs in another process, which the script starts"
        if fork_point is not None and self.launched is not None and self.launched.several:
            return "a launcher tells each process its number when it starts"
        with self._lock:
            reason = self._stand(start)
            if reason is None:
                self.start = start
            return reason

    def fork(self, request: TrialOrders) -> Run | None:
        """Fork a trial from the server, a process for each that the launcher would start; None if the server is gone,
        or no longer to be used."""
        with self._lock:
            if self.start == COLD or self.start_at(self.start) is not None:
                return None
            server = self._server
        each = [request]
        if self.launched is not None:
            processes = request.processes or self.launched.typed
            environments = self.launched.environments(free_port(), Path(request.folder), processes, request.env)
            each = [replace(request, launched=True, env={**given, **request.env}) for given in environments]
        run = self._supervisor.open(Path(request.folder))
        try:
            for orders in each:
                server.fork(run, orders)
            return run
        except BaseException as error:
            run.end()
            if not isinstance(error, ServerGone):
                raise
            self._lose(server)
            return None

    def cold(self, request: TrialOrders, port: int) -> tuple[list[str], dict[str, str]]:
        """The command that starts a trial from nothing, and environment variables that it needs besides.

        Args:
            request: what the probe is told.
            port: where its processes are to meet.
        """
        script, launched, logs = self._script, self.launched, Path(request.folder) / "launcher"
        processes = request.processes or (1 if launched is None else launched.typed)
        launch = None
        if request.launcher == ACCELERATE:
            launch = script.launch
            if launch is None or launch.kind == "python":
                launch = accelerate_launch(launch, str(script.runs), script.python)
        elif launched is None or (request.launcher is None and processes == launched.typed):
            return script.command_at(port, logs), dict(self.variables)
        elif processes > 1 or (request.launcher is None and shares_out(launched.given[0], request.env)):
            launch = script.launch
        if launch is None:
            return list(launched.words), {**launched.shared, **self.variables}
        command = launch.with_processes(processes, launched.typed).command(script.arguments, port, logs)
        return command, dict(self.variables)

    def resolve(self, item: BuildRequest) -> BuildAnswer:
        """Build one configuration object in the user's environment; see the probe's `build`.

        Raises:
            InputError: no server can be started.
        """
        for _ in range(2):
            with self._lock:
                if self._stands_at in ("", PREPARING):
                    reason = self._stand(IMPORTS if self.start == COLD else self.start)
                    if reason is not None:
                        raise InputError(
                            f"The process in which configurations are checked cannot be started: {reason}.",
                            f"Its log is {self.folder / 'log.txt'}.",
                        )
                server = self._server
            try:
                return server.resolve(item)
            except ServerGone:
                self._lose(server)
        return BuildAnswer(error="building this configuration ends the process", unanswered=True)

    def _has_advanced(self) -> bool:
        """Whether the server has run part of the script."""
        start = STARTS.get(self._stands_at)
        return start is not None and start.fork_point is not None

    def _lose(self, server: ForkServer) -> None:
        with self._lock:
            if self._server is server:
                self.close()

    def _stand(self, start: str) -> str | None:
        """Bring up the server of a start, whatever start trials take; as `start_at`."""
        if self._server is not None and start == self._stands_at:
            return None
        if self._has_advanced() or (start == COLD and self._server is not None):
            self.close()  # it cannot go back
        if start == COLD:
            return None
        other = self.launched is not None and list(self.launched.words) != self._script.command
        ahead = () if self.capture is None else imports_ahead(self.capture)
        early = self.capture is not None and (self.capture.prepares or ahead != self.capture.modules)
        if self._stands_at == PREPARING and self.capture is not None and (other or early):
            self.close()  # what it imported, it imported too early
        fresh = self._server is None
        if fresh:
            self._server = self._new_server(ahead)
        reason = None
        if fresh or self._stands_at == PREPARING:
            reason = self._server.wait_until_ready(self.patience, self._interrupted)
        fork_point = STARTS[start].fork_point
        if reason is None and fork_point is not None:
            self._server.advance(fork_point(self.capture))
            reason = self._server.wait_until_ready(self.patience, self._interrupted)
        if reason is not None:
            self.close()
            return reason
        self._stands_at = start
        return None

    def _new_server(self, modules: Sequence[str]) -> ForkServer:
        make_folder(self.folder)
        orders_path = self.folder / ORDERS_FILE
        launched = self.launched
        shared = {} if launched is None else launched.shared
        environment, restore = probe_environment({**os.environ, **shared, **self.variables}, orders_path)
        command = self._script.command
        if launched is not None:
            command = list(launched.words)
        elif self.capture is not None and self.capture.started:  # never run, but its libraries must be those that train
            python = self.capture.environment.get("executable") or self._script.python
            command = [str(python), str(self._script.runs), *self._script.arguments]
        return ForkServer(command, environment, Serve(restore, list(modules)), orders_path, self._supervisor)
