"""Warm starts: processes that wait at a useful point and fork one child, or one for each rank, per trial.

A trial starts at the warmest of the `STARTS` that is sound: "config" forks from a process that has run the script up to
its configuration, "imports" from one that has imported the libraries, "cold" runs the user's command from the start.
`ForkServer` is the tool's side of one waiting process, `bisect_cfg.probe.serve` the other, and their messages are in
`bisect_cfg.probe.protocol`. `Starts` decides which start trials take, and keeps its server.

(For a Python function the supervisor itself is the server, see `bisect_cfg.runner.supervisor`.)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bisect_cfg.common.configuration import present
from bisect_cfg.common.json_files import make_folder, write_json
from bisect_cfg.errors import InputError
from bisect_cfg.probe import protocol
from bisect_cfg.probe.protocol import ORDERS_FILE, BuildAnswer, BuildRequest, ForkPoint, Message, Serve, TrialOrders
from bisect_cfg.runner.environments import Environment
from bisect_cfg.runner.hang import PHASE_SECONDS
from bisect_cfg.runner.ranks import FirstLaunch, free_port
from bisect_cfg.runner.starts import COLD, IMPORTS, STARTS
from bisect_cfg.runner.supervisor import Run, Supervisor
from bisect_cfg.runner.supervisor_process import server_socket
from bisect_cfg.targets.captured import Capture
from bisect_cfg.targets.launch_settings import ACCELERATE, shares_out
from bisect_cfg.targets.launchers import accelerate_launch
from bisect_cfg.targets.script import Script
from bisect_cfg.targets.target import Target

Question = protocol.Trial | protocol.Resolve
Reply = protocol.Ready | protocol.Forked | protocol.Ended | protocol.Resolved
Answer = TypeVar("Answer", protocol.Forked, protocol.Resolved)

BUILD_SECONDS = 120.0
"""Limit for building one configuration. It takes milliseconds; the first may import more modules, and one that opens a
connection may wait for ever."""

ANSWER_SECONDS = 60.0
"""A server answers at once. One that has not within this time, beyond what the task takes, is given up."""

SERVER_PATIENCE = 3.0
"""A server may take this many times as long to its fork point, and a trial to its training, as the first run took to
its training, and at least `PHASE_SECONDS`. That is generous: the second time everything comes from the disk cache."""


class ServerGone(Exception):
    """The server process has ended, or does not answer in time."""


class _Question:
    """A question to a server: the answers so far, and the run that it is to fork a process of."""

    def __init__(self, run: Run | None) -> None:
        self.answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self.run, self.pid = run, 0

    def take(self, answer: Message | None) -> None:
        """Take an answer; None: the server is gone."""
        if self.run is not None and self.pid:
            self.run.record_exit(self.pid, answer.code if isinstance(answer, protocol.Ended) else None)
        elif self.run is not None and isinstance(answer, protocol.Forked):
            self.pid = answer.pid
            self.run.add(self.pid)
        self.answers.put(answer)


class ForkServer:
    """A waiting process: the command with a probe that first imports the modules, then waits. Its log and its orders
    are in the folder. Thread-safe."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        modules: Sequence[str],
        folder: Path,
        supervisor: Supervisor,
    ) -> None:
        path = folder / ORDERS_FILE
        probed, restore = probe_environment(environment, path)
        self._ours, theirs = socket.socketpair()
        with theirs:
            write_json(path, protocol.to_json(Serve(restore, list(modules), server_socket())))
            self._process = supervisor.start(command, probed, folder, server=theirs.fileno())
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, _Question] = {}
        self._ready: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._why_gone = "the script ended before it came to its configuration again"
        threading.Thread(target=self._read, name="fork-server-reader", daemon=True).start()

    def wait_until_ready(self, timeout: float, interrupted: threading.Event) -> str | None:
        """Wait until the process has reached its fork point.

        Returns:
            None if forking there is sound, otherwise why not; also if it does not get there.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not interrupted.is_set():
            with contextlib.suppress(queue.Empty):
                answer = self._ready.get(timeout=0.1)
                return answer.unsound if isinstance(answer, protocol.Ready) else self._why_gone
        return f"the script did not come to its configuration within {timeout:.0f} s"

    def advance(self, fork_at: ForkPoint) -> None:
        """Let a server that waits after the imports run the script up to a fork point."""
        with self._lock, contextlib.suppress(OSError):  # `wait_until_ready` will tell
            self._send(fork_at)

    def fork(self, run: Run, orders: TrialOrders) -> None:
        """Fork a first process of a run.

        Raises:
            ServerGone: there is no answer.
        """
        self._ask(protocol.Trial(next(self._numbers), orders, run.mark), protocol.Forked, ANSWER_SECONDS, run)

    def resolve(self, item: BuildRequest) -> BuildAnswer:
        """Build a configuration object: what it resolves to, or why it is invalid.

        Raises:
            ServerGone: there is no answer.
        """
        question = protocol.Resolve(next(self._numbers), item, BUILD_SECONDS)
        return self._ask(question, protocol.Resolved, ANSWER_SECONDS + BUILD_SECONDS, None).result

    def close(self) -> None:
        """End the server. Runs that were forked from it are lost (`Run.lost`)."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._process.end()

    def _ask(self, message: Question, kind: type[Answer], seconds: float, run: Run | None) -> Answer:
        question = _Question(run)
        try:
            with self._lock:
                self._asked[message.id] = question
                self._send(message)
            answer = question.answers.get(timeout=seconds)
        except (OSError, queue.Empty):
            answer = None
        if not isinstance(answer, kind):
            raise ServerGone
        return answer

    def _send(self, message: Message) -> None:
        self._ours.sendall((json.dumps(protocol.to_json(message)) + "\n").encode())

    def _read(self) -> None:
        try:
            with self._ours.makefile("rb") as stream, contextlib.suppress(OSError):
                for line in stream:
                    self._take(protocol.read(protocol.Reply, json.loads(line)))
        except (ValueError, TypeError, KeyError):  # the script has this socket open, too
            self._why_gone = "the script writes into descriptors that it did not open"
        with self._lock:
            self._ours.close()
            self._ready.put(None)
            for question in self._asked.values():
                question.take(None)

    def _take(self, answer: Reply) -> None:
        if isinstance(answer, protocol.Ready):
            self._ready.put(answer)
            return
        more = isinstance(answer, protocol.Forked)
        question = self._asked.get(answer.id) if more else self._asked.pop(answer.id, None)
        if question is not None:
            question.take(answer)


def probe_environment(
    environment: Mapping[str, str], orders_path: Path
) -> tuple[dict[str, str], dict[str, str | None]]:
    """The environment with the probe's two variables, and what the probe has to restore."""
    site = str(Path(__file__).resolve().parent.parent / "probe" / "site")
    own = environment.get("PYTHONPATH")
    added = {"PYTHONPATH": f"{site}{os.pathsep}{own}" if own else site, "BISECT_CFG_PROBE": str(orders_path)}
    return {**environment, **added}, {name: environment.get(name) for name in added}


class Starts:
    """The start that trials take, and its server, whose log is in the folder. Thread-safe; `interrupted` stops waiting
    for the server."""

    def __init__(self, target: Target, folder: Path, supervisor: Supervisor, interrupted: threading.Event) -> None:
        self.target, self.folder, self.supervisor, self._interrupted = target, folder, supervisor, interrupted
        self.start = COLD  # that trials take; its server starts when a trial needs it
        self.learn(None)
        self._server: ForkServer | None = None
        self._stands_at = COLD  # the start that the server is of; COLD: there is none
        self._lock = threading.RLock()

    def learn(self, capture: Capture | None, seconds: float = 0.0, launched: FirstLaunch | None = None) -> None:
        """Take in what the first run has shown: what the script set, after how many seconds its training began, what a
        launcher started, if there is one."""
        self.capture, self.seconds, self.launched = capture, seconds, launched

    @property
    def _script(self) -> Script:
        assert isinstance(self.target, Script)  # no process of another command has a probe
        return self.target

    @property
    def patience(self) -> float:
        """Seconds for reaching a fork point, or the training."""
        return max(PHASE_SECONDS, SERVER_PATIENCE * self.seconds)

    def close(self) -> None:
        """End the server."""
        with self._lock:
            if self._server is not None:
                self._server.close()
            self._server, self._stands_at = None, COLD

    def start_at(self, start: str) -> str | None:
        """Have trials take a start from now on, and bring up its server.

        Returns:
            None if it is there and forking is sound, otherwise why not; then trials start as before.
        """
        fork_point, capture = STARTS[start].fork_point, self.capture
        if start != COLD and capture is not None and capture.started and self.launched is None:
            if fork_point is not None or not capture.forked:  # a fork has what the script's own process has imported
                return "the training runs in another process, which the script starts"
        if fork_point is not None and self.launched is not None and self.launched.several:
            return "a launcher tells each process its number when it starts"
        with self._lock:
            reason = self._bring_up(start)
            if reason is None:
                self.start = start
            return reason

    def fork(self, request: TrialOrders) -> Run | None:
        """Fork a trial from the server, one process for each that the launcher would start; None if that is impossible
        now."""
        with self._lock:
            if self.start == COLD or self.start_at(self.start) is not None:
                return None
            server = present(self._server)
        each = [request]
        if self.launched is not None:
            processes = request.processes or self.launched.typed
            environments = self.launched.environments(free_port(), Path(request.folder), processes, request.env)
            each = [replace(request, launched=True, env={**given, **request.env}) for given in environments]
        run = self.supervisor.open(Path(request.folder))
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

    def cold(
        self, request: TrialOrders, port: int, environment: Environment | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """The command of a cold trial whose processes meet at the port, and additional environment variables; with the
        packages of an environment in place of the user's."""
        script, launched, logs = self._script, self.launched, Path(request.folder) / "launcher"
        variables: Mapping[str, str] = {}
        if environment is not None:
            script, variables = script.under(environment.python), environment.variables
            launched = launched and replace(launched, words=(environment.python, *launched.words[1:]))
        processes = request.processes or (1 if launched is None else launched.typed)
        launch = None
        if request.launcher == ACCELERATE:
            launch = script.launch
            if launch is None or launch.kind == "python":
                launch = accelerate_launch(launch, str(script.runs), script.python)
        elif launched is None or (request.launcher is None and processes == launched.typed):
            return script.command_at(port, logs), dict(variables)
        elif processes > 1 or (request.launcher is None and shares_out(launched.given[0], request.env)):
            launch = script.launch
        launched = present(launched)
        if launch is None:
            return list(launched.words), {**launched.shared, **variables}
        command = launch.with_processes(processes, launched.typed).command(script.arguments, port, logs)
        return command, dict(variables)

    def resolve(self, item: BuildRequest) -> BuildAnswer:
        """Build one configuration object with the user's libraries; see the probe's `build`.

        Raises:
            InputError: no server can be started.
        """
        for _ in range(2):
            with self._lock:
                if self._server is None:
                    reason = self._bring_up(IMPORTS if self.start == COLD else self.start)
                    if reason is not None:
                        raise InputError(
                            f"The process in which configurations are checked cannot be started: {reason}.",
                            f"Its log is {self.folder / 'log.txt'}.",
                        )
                server = present(self._server)
            try:
                return server.resolve(item)
            except ServerGone:
                self._lose(server)
        return BuildAnswer(error="building this configuration ends the process", unanswered=True)

    def _lose(self, server: ForkServer) -> None:
        with self._lock:
            if self._server is server:
                self.close()

    def _bring_up(self, start: str) -> str | None:
        """Bring up the server of a start, whatever start trials take; returns as `start_at`."""
        if start == self._stands_at:
            return None
        if start == COLD or self._stands_at != IMPORTS:  # one that has run the script cannot go back
            self.close()
        if start == COLD:
            return None
        fork_point, reason = STARTS[start].fork_point, None
        if self._server is None:
            self._server = self._new_server()
            reason = self._server.wait_until_ready(self.patience, self._interrupted)
        if reason is None and fork_point is not None:
            self._server.advance(fork_point(present(self.capture)))
            reason = self._server.wait_until_ready(self.patience, self._interrupted)
        if reason is not None:
            self.close()
            return reason
        self._stands_at = start
        return None

    def _new_server(self) -> ForkServer:
        make_folder(self.folder)
        modules = () if self.capture is None or self.capture.prepares else self.capture.modules
        launched, command, shared = self.launched, self.target.command, dict[str, str]()
        if launched is not None:
            command, shared = list(launched.words), launched.shared
        elif self.capture is not None and self.capture.started:  # the script is not run, but these libraries train
            python = self.capture.environment.get("executable") or self.target.python
            command = [str(python), str(self._script.runs), *self.target.arguments]
        environment = {**os.environ, **shared}
        return ForkServer(command, environment, modules, self.folder, self.supervisor)
