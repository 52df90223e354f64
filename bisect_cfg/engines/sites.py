"""Trials at sites that are processes of their own, wherever they are; the tool's end of the lines.

An engine process brings sites up and passes lines on (`bisect_cfg.engines.ray_process`). What it says here, a line of
JSON each: ``up`` (a site has started in a slot, on which node, with which GPUs), ``line`` (what that site says),
``down`` (it is gone, and why), ``all_up`` (no more are expected), ``failed`` (there will be none). What it is told:
``line``, for a slot. When its input ends, it ends all sites.

*Lost is never an outcome.* Each attempt at a plan has a number. When a site is gone or silent, its attempt is over,
whatever it says later, and the plan waits for another site, on another node if there is one. What loses its place
`LOST_TIMES` times is not tried again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.common.json_files import JsonObject, private, write_text
from bisect_cfg.common.words import count
from bisect_cfg.engines.lines import line_of, message_in
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest
from bisect_cfg.runner.fork_server import Starts
from bisect_cfg.runner.plan import Plan, Result
from bisect_cfg.runner.ranks import FirstLaunch
from bisect_cfg.runner.site import COLD_OTHER, Site
from bisect_cfg.runner.starts import COLD
from bisect_cfg.targets.captured import Capture
from bisect_cfg.targets.target import Target

Found = TypeVar("Found")

LOST_TIMES = 3
"""What has lost its place so many times is not run again: it may be what takes the machine down."""

SILENT_SECONDS = 60.0
"""A site that has said nothing for so long, not even that it is alive, is lost: its machine stands still, or cannot be
reached. Half of the time within which the trial is to run elsewhere."""

INTERRUPT_SECONDS = 2.5
"""So long sites have to end their runs when the user interrupts; what has not ended then ends with them."""

CLOSE_SECONDS = 20.0
"""The same for the engine process, which ends all sites: a daemon that ignores signals takes a site seconds to end."""

OF_THE_MACHINE = (
    "HOSTNAME", "TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR", "DISPLAY", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "DBUS_SESSION_BUS_ADDRESS", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "JOURNAL_STREAM",
    "INVOCATION_ID",
)  # fmt: skip
OF_THE_JOB = ("SLURM_", "SLURMD_", "RAY_", "PMI_", "PMIX_", "OMPI_", "PBS_", "LSB_", "KUBERNETES_", "BISECT_CFG_")
"""Variables, and beginnings of variables, that say something about one machine or one job: no site gets them of the
user's environment (docs/cluster.md lists them)."""

WORD_FILE = "word"
"""File of the study folder with a random word: a site that reads it sees the folder."""


@dataclass(eq=False)
class _Attempt:
    """A plan that is to run, or runs."""

    plan: Plan
    future: Future[Result]
    number: int = 0
    lost: list[str] = field(default_factory=list)  # nodes on which its site was lost
    rows: list[Row] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    """A place for one trial: what is known of the site that is there."""

    number: int
    node: str
    heard: float
    ready: bool = False
    refused: str = ""
    failures: int = 0  # sites that have ended before they said anything
    attempt: _Attempt | None = None
    stale: bool = False  # it was given up, and may still run what it was given
    told: int = 0  # how much of `SiteEngine._learned` it was told
    asked: set[int] = field(default_factory=set)


class SiteEngine:
    """Runs plans at sites; see the module. `close` it when done.

    Args:
        command: of the engine process.
        target: what is run.
        folder: the study folder, which every node must see.
        timeout: see `Site`.
        slots: at most so many.
        files: path -> hash of what the trials read: a node on which it differs is not used.
        environment: what trains here.
        log: file in the folder for what the engine process and its sites print.
        on_progress: see `Progress`; called in a thread of its own.
        note: called with sentences for the user, in the same thread.

    Attributes:
        site: says what can be built and forked at the sites.
        lost: how many attempts have lost their place.

    Raises:
        InputError: there is no site.
    """

    def __init__(
        self,
        command: Sequence[str],
        target: Target,
        folder: Path,
        *,
        slots: int,
        timeout: float | None = None,
        files: Mapping[str, str | None] | None = None,
        environment: Fingerprint | None = None,
        log: str = "engine.log",
        on_progress: Callable[[int | str, Sequence[Row], int | None], None] = lambda *told: None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.lost, self._nodes = 0, set[str]()
        self._changed = threading.Condition()
        self._slots: dict[int, _Slot] = {}
        self._waiting: deque[_Attempt] = deque()
        self._answers: dict[int, JsonObject] = {}
        self._numbers = itertools.count(1)
        self._learned: list[JsonObject] = []
        self._failed: Exception | None = None
        self._interrupted = False
        self._closed = False
        self._on_progress, self._note = on_progress, note
        self._files, self._environment = dict(files or {}), environment or Fingerprint()
        self._word = os.urandom(16).hex()
        self._setup = {"folder": str(folder.absolute()), "timeout": timeout, "word": WORD_FILE}
        write_text(folder / WORD_FILE, self._word)
        self._target, self._folder = target, folder
        self.site = Site(target, folder, timeout=timeout)
        self.site.starts = _StartsElsewhere(self)
        self._log = folder / log
        with open(self._log, "ab", opener=private) as stream:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stream}
            self._process: Any = subprocess.Popen(command, **pipes, start_new_session=True)
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._failed or self.slots >= slots or self._settled())
                if self._failed is not None:
                    raise self._failed
                if not self.slots:
                    raise InputError(f"No node can run the trials: {self._refusals()}.")
        except BaseException:
            self.close()
            raise
        if refusals := self._refusals():
            self._note(f"Not used: {refusals}.")

    @property
    def slots(self) -> int:
        """Sites that trials can be given to."""
        return sum(slot.ready or slot.attempt is not None for slot in self._slots.values())

    @property
    def cluster(self) -> JsonObject:
        """What result.json says of it."""
        return {"slots": self.slots, "nodes": sorted(self._nodes), "lost": self.lost}

    # ------------------------------------------------------------------------------------------------- what is asked

    def submit(self, plan: Plan) -> Future[Result]:
        """Run a plan at the next site that is free.

        Raises:
            InputError: there are no sites any more.
        """
        with self._changed:
            if self._failed is not None:
                raise self._failed
            attempt = _Attempt(plan, Future())
            attempt.future.set_running_or_notify_cancel()  # it is ended, not cancelled
            self._waiting.append(attempt)
            self._hand_out()
            return attempt.future

    def ask(self, what: str, about: object) -> Any:
        """Ask a site; another one, if that is lost.

        Raises:
            InputError: what the site raised; or there are no sites any more.
        """
        while True:
            with self._changed:
                slot = self._wait_for(self._first)
                number = next(self._numbers)
                slot.asked.add(number)
                self._tell_learned(slot)
                self._say(slot, op="ask", number=number, what=what, about=about)
                answer = self._wait_for(functools.partial(self._answers.pop, number, None))
            if "error" in answer:
                raise InputError(*answer["error"])
            if "value" in answer:
                return answer["value"]

    def _wait_for(self, look: Callable[[], Found | None]) -> Found:
        """Wait until there is something, or no site any more; the lock is held."""
        while (found := look()) is None:
            if self._failed is not None:
                raise self._failed
            self._changed.wait()
        return found

    def learn(self, **message: object) -> None:
        """Have all sites know something, those that are yet to come, too."""
        with self._changed:
            self._learned.append(message)

    def end(self, name: int | str) -> None:
        """End a run, see `Engine`."""
        with self._changed:
            for slot, attempt in self._running():
                if attempt.plan.name == name:
                    self._say(slot, op="end", name=name)

    def interrupt(self) -> None:
        """End all runs, see `Engine`; what has not ended in time is given up."""
        with self._changed:
            self._interrupted = True
            for attempt in self._waiting:
                attempt.future.set_exception(KeyboardInterrupt())
            self._waiting.clear()
            for slot, _ in self._running():
                self._say(slot, op="interrupt")
        threading.Timer(INTERRUPT_SECONDS, self._give_up_interrupted).start()

    def go_on(self) -> None:
        """Begin again, see `Engine`."""
        with self._changed:
            self._interrupted = False
            for slot in self._slots.values():
                self._say(slot, op="go_on")

    def close(self) -> None:
        """End all sites, and the engine process."""
        with self._changed:
            self._closed = True
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.site.close()
        (self._folder / WORD_FILE).unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------ what is decided

    def _running(self) -> list[tuple[_Slot, _Attempt]]:
        return [(slot, slot.attempt) for slot in self._slots.values() if slot.attempt is not None]

    def _first(self) -> _Slot | None:
        """The site that is asked: one that is ready, with the lowest number, so that its server serves again."""
        return min((slot for slot in self._slots.values() if slot.ready), key=lambda slot: slot.number, default=None)

    def _settled(self) -> bool:
        """Whether all sites that there are have said what they see, and some have."""
        return bool(self._slots) and all(slot.ready or slot.refused for slot in self._slots.values()) and self._all_up

    _all_up = False

    def _hand_out(self) -> None:
        """Give what waits to sites that are free: an attempt that lost its place to another node, if there is one."""
        for attempt in list(self._waiting):
            free = [slot for slot in self._slots.values() if slot.ready and slot.attempt is None and not slot.stale]
            if not free:
                return
            slot = min(free, key=lambda one: (attempt.lost.count(one.node), one.number))
            self._waiting.remove(attempt)
            attempt.number, slot.attempt, attempt.rows = next(self._numbers), attempt, []
            self._tell_learned(slot)
            start = self.site.starts.start
            self._say(slot, op="run", attempt=attempt.number, start=start, plan=attempt.plan)

    def _lose(self, slot: _Slot, why: str) -> None:
        """A site is gone, or was given up: ask again what it was asked."""
        slot.ready = False
        for number in slot.asked:
            self._answers[number] = {}
        slot.asked.clear()
        attempt, slot.attempt = slot.attempt, None
        if attempt is not None:
            self.lost += 1
            attempt.lost.append(slot.node)
            name = attempt.plan.name
            if self._interrupted:
                attempt.future.set_exception(KeyboardInterrupt())
            elif len(attempt.lost) >= LOST_TIMES:
                attempt.future.set_result(Result(name, lost=tuple(attempt.lost)))
            else:
                self._note(f"Trial {name} lost its place on {slot.node} ({why}); it is run again.")
                self._waiting.appendleft(attempt)
        self._hand_out()
        self._changed.notify_all()

    def _give_up_interrupted(self) -> None:
        with self._changed:
            for slot, _ in self._running() if self._interrupted else ():
                slot.stale = True
                self._lose(slot, "interrupted")

    def _fail(self, error: Exception) -> None:
        """There are no sites any more: nothing that runs comes to an end."""
        self._failed = self._failed or error
        for attempt in [*self._waiting, *(attempt for _, attempt in self._running())]:
            attempt.future.set_exception(self._failed)
        self._waiting.clear()
        for slot in self._slots.values():
            slot.attempt, slot.ready = None, False
        self._changed.notify_all()

    def _unlike(self, hello: JsonObject) -> str:
        """Why the trials of this study cannot run where a site says this; "" if they can."""
        version = metadata.version("bisect-cfg")
        if hello["version"] != version:
            return f"has bisect-cfg {hello['version']}, not {version}"
        if not hello["sees"]:
            return f"does not see the study folder {self._folder.absolute()}"
        for path, was in self._files.items():
            if hello["hashes"].get(path) != was:
                return f"has another {path}" if hello["hashes"].get(path) else f"does not see {path}"
        theirs, ours = hello["fingerprint"], self._environment
        for name, version in ours.get("packages", {}).items():
            other = theirs.get("packages", {}).get(name)
            if other != version:
                return f"has {name} {other}, not {version}" if other else f"has no {name}"
        gpus = ", ".join(sorted({gpu["name"] for gpu in theirs.get("gpus") or ()}))
        if not hasattr(self, "_gpus"):
            self._gpus = gpus  # the study is that of the first site
        return "" if gpus == self._gpus else f"has {gpus or 'no GPU'}, not {self._gpus or 'none'}"

    def _refusals(self) -> str:
        """Which nodes are not used, and why."""
        nodes = {slot.node: slot.refused for slot in self._slots.values() if slot.refused}
        of = len({slot.node for slot in self._slots.values()})
        reasons = Counter(nodes.values())
        return "; ".join(
            f"{number} of {count(of, 'node')} {why if number == 1 else _of_several(why)}"
            if of > 1
            else f"the node {why}"
            for why, number in reasons.items()
        )

    # ------------------------------------------------------------------------------------------------ what is said

    def _say(self, slot: _Slot, **message: object) -> None:
        line = json.dumps({"op": "line", "slot": slot.number, "line": line_of(message).decode()}) + "\n"
        with contextlib.suppress(OSError, ValueError):  # the reader tells
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _tell_learned(self, slot: _Slot) -> None:
        environments = self.site.environments
        if environments is not None and not any(one.get("op") == "environments" for one in self._learned):
            self._learned.append({"op": "environments", "folder": environments.folder, "base": environments.base})
        for message in self._learned[slot.told :]:
            self._say(slot, **message)
        slot.told = len(self._learned)

    def _read(self) -> None:
        try:
            for line in self._process.stdout:
                message = json.loads(line)
                with self._changed:
                    getattr(self, f"_on_{message.pop('op')}")(**message)
                    self._changed.notify_all()
        except Exception as error:  # a fault of ours: whoever waits is told
            with self._changed:
                self._fail(error)
        with self._changed:
            if not self._closed:
                self._fail(
                    InputError(
                        "The cluster is gone: the process that holds the sites has ended.",
                        f"Every trial so far is kept. When the cluster is there again, run the same command to go on. "
                        f"What was said last stands in {self._log}.",
                    )
                )

    def _watch(self) -> None:
        """Give up sites that say nothing any more; say to all that somebody listens."""
        while not self._closed and self._failed is None:
            time.sleep(1.0)
            with self._changed:
                for one in self._slots.values():
                    self._say(one, op="alive")
                for slot, _ in self._running():
                    if time.monotonic() - slot.heard > SILENT_SECONDS:
                        slot.stale = True
                        self._lose(slot, f"silent for {SILENT_SECONDS:.0f} s")

    def _on_failed(self, message: str, advice: str = "") -> None:
        self._fail(InputError(message, advice))

    def _on_all_up(self) -> None:
        self._all_up = True

    def _on_up(self, slot: int, node: str, devices: list[str], jobs: int) -> None:
        if slot in self._slots:
            self._lose(self._slots[slot], "its site started again")
        one = _Slot(slot, node, time.monotonic(), failures=self._slots[slot].failures if slot in self._slots else 0)
        self._slots[slot] = one
        setup = {**self._setup, "devices": devices, "jobs": jobs, "name": f"-{slot}"}
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in OF_THE_MACHINE and not name.startswith(OF_THE_JOB)
        }
        self._say(
            one, op="hello", target=self._target, setup=setup, environment=environment, cwd=os.getcwd(),
            files=list(self._files), word=self._word,
        )  # fmt: skip

    def _on_down(self, slot: int, why: str) -> None:
        if slot in self._slots:
            one = self._slots[slot]
            one.failures += 1
            if one.failures >= LOST_TIMES:
                one.refused = f"cannot start a site, as {self._log} says"
            self._lose(one, why)

    def _on_line(self, slot: int, line: str) -> None:
        one, message = self._slots[slot], message_in(line.encode())
        one.heard = time.monotonic()
        op = message.pop("op")
        if one.stale:  # what it was given runs elsewhere by now
            if op == "end":
                one.stale, one.ready = False, True
                self._say(one, op="go_on")
                self._hand_out()
            else:
                self._say(one, op="interrupt")
            return
        if op == "hello":
            one.failures, one.refused = 0, self._unlike(message)
            one.ready = not one.refused
            self._nodes |= {one.node} if one.ready else set()
            self._hand_out()
        elif op == "answer" and message["number"] in one.asked:
            one.asked.remove(message["number"])
            self._answers[message["number"]] = message
        elif op == "progress" and one.attempt is not None and message["name"] == one.attempt.plan.name:
            one.attempt.rows += message["rows"]
            self._on_progress(message["name"], one.attempt.rows, message["steps"])
        elif op == "end" and one.attempt is not None and message["attempt"] == one.attempt.number:
            self._take(one, one.attempt.future, message)

    def _take(self, slot: _Slot, future: Future[Result], message: JsonObject) -> None:
        """Take in how an attempt ended."""
        slot.attempt = None
        if "result" in message:
            result = message["result"]
            if result.check == COLD_OTHER:
                self.site.starts.start = COLD
            future.set_result(result)
        elif "error" in message:
            future.set_exception(InputError(*message["error"]))
        elif "interrupted" in message:
            future.set_exception(KeyboardInterrupt())
        else:
            future.set_exception(RuntimeError(f"a site on {slot.node}: {message['fault']}"))
        self._hand_out()


def _of_several(why: str) -> str:
    """What is said of one node, of several."""
    return why.replace("has ", "have ", 1) if why.startswith("has ") else why.replace("does not", "do not", 1)


class _StartsElsewhere(Starts):
    """The start that trials take, where sites bring up the servers."""

    def __init__(self, engine: SiteEngine) -> None:
        site = engine.site
        super().__init__(site.target, site.starts.folder, site.starts.supervisor, threading.Event())
        self._engine = engine
        site.checks.build = self.resolve

    def learn(self, capture: Capture | None, seconds: float = 0.0, launched: FirstLaunch | None = None) -> None:
        """Take in what the first run has shown, here and at all sites."""
        super().learn(capture, seconds, launched)
        if capture is not None:
            self._engine.learn(op="learn", capture=capture, seconds=seconds, launched=launched)

    def start_at(self, start: str) -> str | None:
        """Have trials take a start from now on, if a site says that it is sound."""
        reason: str | None = self._engine.ask("start_at", start)
        if reason is None:
            self.start = start
        return reason

    def resolve(self, item: BuildRequest) -> BuildAnswer:
        """Build one configuration object at a site."""
        answer: BuildAnswer = self._engine.ask("resolve", item)
        return answer
