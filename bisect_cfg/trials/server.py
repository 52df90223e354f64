"""Our side of a warm start: a process that waits at a fork point and makes one child per trial.

The other side is `bisect_cfg.probe.serve`; what they say to each other is in `bisect_cfg.probe.protocol`. A reader
thread hands each answer to whoever waits for it, so that several trials can run at once.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bisect_cfg.jsonfile import write_json
from bisect_cfg.probe import protocol
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, ForkPoint, Message, TrialOrders
from bisect_cfg.runner.supervisor import Run, Supervisor

BUILD_SECONDS = 120.0
"""How long building one configuration may take. It takes milliseconds; the first may import what was not imported yet,
and one that opens a connection may wait for ever."""

ANSWER_SECONDS = 60.0
"""A server answers at once; one that has not within this time beyond what it was asked for is no longer to be used."""

MOST_BYTES = 64 << 20
"""No answer is as long as this: whatever it is, it is not from the server."""


class ServerGone(Exception):
    """The server process ended; whatever was asked of it has no answer."""


Replies = queue.SimpleQueue[Message | None]
"""What the server says to one question; None: it is gone."""


class TrialServer:
    """A waiting process.

    Args:
        command: the user's command.
        environment: with the probe's variables in place.
        orders: without the socket.
        orders_path: the file its orders are written to; its folder holds the log.
        log: name of the log.
        supervisor: starts it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        orders: protocol.Serve,
        orders_path: Path,
        log: str,
        supervisor: Supervisor,
    ) -> None:
        self._ours, theirs = socket.socketpair()
        write_json(orders_path, protocol.to_json(replace(orders, socket=theirs.fileno())))
        with theirs:
            handles = [theirs.fileno()]
            self._process = supervisor.start(command, environment, orders_path.parent, log, handles, lasting=True)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Replies] = {}
        self._forking: dict[int, Run] = {}  # number of the question -> the run that it asks a process for
        self._forked: dict[int, tuple[Run, int]] = {}  # the same with the process, once that is there
        self._ready: Replies = queue.SimpleQueue()
        self._gone = False
        self._why_gone = "the script ended before it came to its configuration again"
        threading.Thread(target=self._read, name="trial-server-reader", daemon=True).start()

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
        answers = self._ask(lambda number: protocol.Trial(number, orders, run.mark), run)
        if not isinstance(_answer(answers, ANSWER_SECONDS), protocol.Forked):
            raise ServerGone

    def resolve(self, items: Sequence[BuildRequest]) -> list[BuildAnswer]:
        """Build configuration objects without training: what they resolve to, or why they are invalid.

        Raises:
            ServerGone: the server has ended.
        """
        answers = self._ask(lambda number: protocol.Resolve(number, list(items), BUILD_SECONDS))
        answer = _answer(answers, ANSWER_SECONDS + BUILD_SECONDS * len(items))
        if not isinstance(answer, protocol.Resolved):
            raise ServerGone
        return answer.results

    def close(self) -> None:
        """End the server. What was forked from it is lost (`Run.lost`)."""
        try:
            self._ours.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._process.end()

    def _send(self, message: Message) -> None:
        self._ours.sendall((json.dumps(protocol.to_json(message)) + "\n").encode())

    def _ask(self, question: Callable[[int], Message], run: Run | None = None) -> Replies:
        answers: Replies = queue.SimpleQueue()
        with self._lock:
            if self._gone:
                raise ServerGone
            number = next(self._numbers)
            self._waiting[number] = answers
            if run is not None:
                self._forking[number] = run
            try:
                self._send(question(number))
            except OSError:
                raise ServerGone from None
        return answers

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
            self._ready.put(None)
            for answers in self._waiting.values():
                answers.put(None)
            for run, pid in self._forked.values():
                run.came_to(pid, None)

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
            if isinstance(answer, protocol.Ended):
                run, pid = self._forked.pop(answer.id, (None, 0))
                if run is not None:
                    run.came_to(pid, answer.code)
                return
            run = self._forking.pop(answer.id, None)
            if run is not None and isinstance(answer, protocol.Forked):
                self._forked[answer.id] = run, answer.pid
                run.add(answer.pid)
            waiting = self._waiting.pop(answer.id, None)
        if waiting is not None:
            waiting.put(answer)


def _answer(answers: Replies, seconds: float) -> Message | None:
    """The next answer.

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
