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
import itertools
import json
import os
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.common.json_files import JsonObject, private, write_text
from bisect_cfg.engines.lines import line_of, message_in
from bisect_cfg.engines.nodes import refusals
from bisect_cfg.engines.starts_elsewhere import StartsElsewhere
from bisect_cfg.errors import InputError
from bisect_cfg.runner.plan import Plan, Result
from bisect_cfg.runner.site import COLD_OTHER, Progress, Site
from bisect_cfg.runner.starts import COLD
from bisect_cfg.targets.target import Target

LOST_TIMES = 3
"""What has lost its place so many times is not run again: it may be what takes the machine down."""

SILENT_SECONDS = 60.0
"""A site that has said nothing for so long, not even that it is alive, is lost: its machine stands still, or cannot be
reached. Half of the time within which the trial is to run elsewhere."""

INTERRUPT_SECONDS = 2.5
"""So long sites have to end their runs when the user interrupts; what has not ended then is given up."""

EMPTY_SECONDS = 600.0
"""So long a trial waits for any site to come up again, before it is said that there are none any more."""

LOOK_SECONDS, ALIVE_SECONDS = 0.2, 1.0
"""How often it is looked what is silent or was interrupted, and how often a site hears that the tool is there."""

CLOSE_SECONDS = 20.0
"""The same for the engine process, which ends all sites: a daemon that ignores signals takes a site seconds to end."""

WORD_FILE = "word"
"""File of the study folder with a random word: a site that reads it sees the folder."""

LOG = "engine.log"
"""File of the study folder for what the engine process and its sites print."""


class _SiteLost(Exception):
    """The site that was asked is gone."""


@dataclass(eq=False)
class _Attempt:
    """A plan that is to run, or runs."""

    plan: Plan
    future: Future[Result]
    number: int = 0
    lost: list[str] = field(default_factory=list)  # nodes on which its site was lost, or could not run it
    faults: int = 0  # how often a site could not
    rows: list[Row] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    """A place for one trial, and the site that is there."""

    number: int
    node: str
    heard: float
    ready: bool | None = None  # whether it can run trials; None before it has said hello
    attempt: _Attempt | None = None
    told: int = 0  # how much of `SiteEngine._learned` it was told
    asked: dict[int, Future[Any]] = field(default_factory=dict)
    said: float = 0.0  # when it was told something last


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
        on_progress: see `Progress`; called in a thread of its own.
        note: called with sentences for the user, in the same thread.
        on_hello: called with each node that is heard of and what is installed there, in the same thread.

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
        on_progress: Progress = lambda *told: None,
        note: Callable[[str], None] = lambda text: None,
        on_hello: Callable[[str, Fingerprint], None] = lambda node, found: None,
    ) -> None:
        self.lost = 0
        self._nodes: set[str] = set()  # that have run, or can run, trials
        self._left_out: set[str] = set()
        self._unused: dict[str, str] = {}  # node -> why it is not used
        self._failures: Counter[int] = Counter()  # slot -> sites there that have ended before they said anything
        self._changed = threading.Condition()
        self._slots: dict[int, _Slot] = {}
        self._waiting: deque[_Attempt] = deque()
        self._numbers = itertools.count(1)
        self._learned: list[JsonObject] = []
        self._failed: Exception | None = None
        self._closed = self._all_up = self._begun = False
        self._seen = time.monotonic()  # when a trial did not wait for a site last
        self._give_up_at: float | None = None  # when what was interrupted and has not ended is given up
        self._on_progress, self._note, self._on_hello = on_progress, note, on_hello
        self._files, self._environment = dict(files or {}), environment or Fingerprint()
        self._gpus: str | None = None  # of the first site, whose study it is
        self._word = os.urandom(16).hex()
        self._setup = {"folder": str(folder.absolute()), "timeout": timeout, "word": WORD_FILE}
        write_text(folder / WORD_FILE, self._word)
        self._target, self._folder = target, folder
        self.site = Site(target, folder, timeout=timeout)
        self.site.starts = StartsElsewhere(self.site, self.learn, self.ask)
        self._process: Any = self._start(command)
        try:
            with self._changed:
                self._wait_for(lambda: self.slots >= slots or self._settled())
                if not self.slots:
                    raise InputError(f"No node can run the trials: {refusals(self._unused, self._nodes)}.")
        except BaseException:
            self.close()
            raise
        if self._unused:
            self._note(f"{refusals(self._unused, self._nodes)}.")
        self._begun = True

    def _start(self, command: Sequence[str]) -> Any:
        """Start the engine process, and the threads that hear it."""
        with open(self._folder / LOG, "ab", opener=private) as stream:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stream}
            process = subprocess.Popen(command, **pipes, start_new_session=True)
        threading.Thread(target=self._read, args=(process.stdout,), name="engine-reader", daemon=True).start()
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()
        return process

    @property
    def slots(self) -> int:
        """Sites that trials can be given to."""
        return sum(bool(slot.ready) for slot in self._slots.values())

    @property
    def nodes(self) -> set[str]:
        """See `Engine`."""
        with self._changed:
            return {slot.node for slot in self._slots.values() if slot.ready} - self._left_out

    def leave_out(self, nodes: Collection[str]) -> None:
        """See `Engine`."""
        with self._changed:
            self._left_out |= set(nodes)

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
                self._wait_for(lambda: self.slots)
                # That with the lowest number, so that its server serves again.
                slot = min((slot for slot in self._slots.values() if slot.ready), key=lambda slot: slot.number)
                number = next(self._numbers)
                answer = slot.asked[number] = Future[Any]()
                self._tell_learned(slot)
                self._say(slot, op="ask", number=number, what=what, about=about)
            with contextlib.suppress(_SiteLost):
                return answer.result()

    def _wait_for(self, there: Callable[[], object]) -> None:
        """Wait until something is so, or there are no sites any more; the lock is held."""
        self._changed.wait_for(lambda: self._failed or there())
        if self._failed is not None:
            raise self._failed

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
            for attempt in [one for one in self._waiting if one.plan.name == name]:  # it has lost its place
                self._waiting.remove(attempt)
                attempt.future.set_result(Result(name))

    def interrupt(self) -> None:
        """End all runs, see `Engine`; what has not ended in time is given up."""
        with self._changed:
            self._give_up_at = time.monotonic() + INTERRUPT_SECONDS
            for attempt in self._waiting:
                attempt.future.set_exception(KeyboardInterrupt())
            self._waiting.clear()
            for slot, _ in self._running():
                self._say(slot, op="interrupt")

    def go_on(self) -> None:
        """Begin again, see `Engine`."""
        with self._changed:
            self._give_up_at = None
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

    def _settled(self) -> bool:
        """Whether all sites that there are have said what they see."""
        there = [slot.ready is not None for slot in self._slots.values()]
        return self._all_up and all(there) and bool(there or self._unused)

    def _hand_out(self) -> None:
        """Give what waits to sites that are free: an attempt that lost its place to another node, if there is one."""
        up = [slot for slot in self._slots.values() if slot.ready and slot.node not in self._left_out]
        there = {slot.node for slot in up}
        for attempt in list(self._waiting):
            wish = attempt.plan.node if attempt.plan.node in there else ""
            free = [slot for slot in up if slot.attempt is None and wish in ("", slot.node)]
            if not free:
                continue
            self._waiting.remove(attempt)
            slot = min(free, key=lambda one: (attempt.lost.count(one.node), one.number))
            attempt.number, slot.attempt, attempt.rows = next(self._numbers), attempt, []
            self._tell_learned(slot)
            start = self.site.starts.start
            self._say(slot, op="run", number=attempt.number, start=start, plan=attempt.plan)

    def _lose(self, slot: _Slot, why: str) -> None:
        """A site is gone, or is given up: nothing that it says counts, until another one is up in its slot. What it was
        asked is asked again."""
        self._slots.pop(slot.number, None)
        for answer in slot.asked.values():
            answer.set_exception(_SiteLost())
        if slot.attempt is not None:
            self._again(slot, slot.attempt, why)
        self._hand_out()

    def _again(self, slot: _Slot, attempt: _Attempt, why: str, fault: Exception | None = None) -> None:
        """Have run again what has lost its place, or what a site could not run, whose disk may be full."""
        self.lost += 1
        attempt.lost.append(slot.node)
        attempt.faults += fault is not None
        name = attempt.plan.name
        if self._give_up_at is not None:
            attempt.future.set_exception(KeyboardInterrupt())
        elif len(attempt.lost) < LOST_TIMES:
            self._note(f"Trial {name} lost its place on {slot.node} ({why}); it is run again.")
            self._waiting.appendleft(attempt)
        elif attempt.faults == LOST_TIMES:
            attempt.future.set_exception(fault)
        else:
            attempt.future.set_result(Result(name, lost=tuple(attempt.lost)))

    def _fail(self, error: Exception) -> None:
        """There are no sites any more: nothing that runs comes to an end."""
        self._failed = self._failed or error
        running = [attempt.future for attempt in (*self._waiting, *(attempt for _, attempt in self._running()))]
        for future in (*running, *(future for slot in self._slots.values() for future in slot.asked.values())):
            future.set_exception(self._failed)
        self._waiting.clear()
        self._slots.clear()
        self._changed.notify_all()

    def _unlike(self, hello: JsonObject) -> str:
        """What keeps the trials of this study from running where a site says this; "" if nothing does."""
        version = metadata.version("bisect-cfg")
        if hello["version"] != version:
            return f"bisect-cfg {hello['version']}, not {version}"
        if not hello["sees"]:
            return f"no sight of the study folder {self._folder.absolute()}"
        for path, was in self._files.items():
            if hello["hashes"].get(path) != was:
                return f"another {path}" if hello["hashes"].get(path) else f"no {path}"
        theirs = hello["fingerprint"]
        for name, version in self._environment.get("packages", {}).items():
            other = theirs.get("packages", {}).get(name)
            if other != version:
                return f"{name} {other}, not {version}" if other else f"no {name}"
        gpus = ", ".join(sorted({gpu["name"] for gpu in theirs.get("gpus") or ()})) or "no GPU"
        self._gpus = self._gpus or gpus
        return "" if gpus == self._gpus else f"{gpus}, not {self._gpus}"

    # ------------------------------------------------------------------------------------------------ what is said

    def _say(self, slot: _Slot, **message: object) -> None:
        slot.said = time.monotonic()
        line = json.dumps({"op": "line", "slot": slot.number, "line": line_of(message).decode()}) + "\n"
        with contextlib.suppress(OSError, ValueError):  # the reader tells
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _tell_learned(self, slot: _Slot) -> None:
        environments = self.site.environments
        if environments is not None and not any(one["op"] == "environments" for one in self._learned):
            self._learned.append({"op": "environments", "folder": environments.folder, "base": environments.base})
        for message in self._learned[slot.told :]:
            self._say(slot, **message)
        slot.told = len(self._learned)

    def _read(self, said: Iterable[bytes]) -> None:
        gone: Exception = _gone("the process that holds the sites has ended", self._folder / LOG)
        try:
            for line in said:
                self._hear(json.loads(line))
        except Exception as error:  # a fault of ours: whoever waits is told
            gone = error
        with self._changed:
            if not self._closed:
                self._fail(gone)

    def _hear(self, message: JsonObject) -> None:
        """Take in what the engine process says."""
        with self._changed:
            getattr(self, f"_on_{message.pop('op')}")(**message)
            self._changed.notify_all()

    def _watch(self) -> None:
        while not self._closed and self._failed is None:
            time.sleep(LOOK_SECONDS)
            self._look_after()

    def _look_after(self) -> None:
        """Give up sites that say nothing any more; say to all that somebody listens."""
        with self._changed:
            now = time.monotonic()
            for slot in list(self._slots.values()):
                if now - slot.said > ALIVE_SECONDS:
                    self._say(slot, op="alive")
                if now - slot.heard > SILENT_SECONDS:
                    self._lose(slot, f"silent for {SILENT_SECONDS:.0f} s")
            self._seen = now if self.slots or not self._waiting else self._seen
            if now - self._seen > EMPTY_SECONDS:
                self._fail(_gone(f"no site has come up for {EMPTY_SECONDS / 60:.0f} minutes", self._folder / LOG))
            for slot, _ in self._running() if self._give_up_at is not None and now > self._give_up_at else ():
                self._lose(slot, "interrupted")

    def _on_failed(self, message: str, advice: str = "") -> None:
        self._fail(InputError(message, advice))

    def _on_all_up(self) -> None:
        self._all_up = True

    def _on_up(self, slot: int, node: str, devices: list[str], jobs: int) -> None:
        if slot in self._slots:
            self._lose(self._slots[slot], "its site started again")
        one = self._slots[slot] = _Slot(slot, node, time.monotonic())
        setup = {**self._setup, "devices": devices, "jobs": jobs, "name": f"-{slot}", "node": node}
        self._say(
            one, op="hello", target=self._target, setup=setup, environment=dict(os.environ), cwd=os.getcwd(),
            files=list(self._files), word=self._word,
        )  # fmt: skip

    def _on_down(self, slot: int, why: str) -> None:
        if (one := self._slots.get(slot)) is not None:
            self._failures[slot] += 1
            if self._failures[slot] >= LOST_TIMES:
                self._unused[one.node] = f"no site that starts, as {self._folder / LOG} says"
            self._lose(one, why)

    def _on_line(self, slot: int, line: str) -> None:
        if (one := self._slots.get(slot)) is None:  # it was given up
            return
        one.heard = time.monotonic()
        message = message_in(line.encode())
        op = message.pop("op")
        attempt = one.attempt
        if op == "hello":
            self._failures[slot] = 0
            self._on_hello(one.node, message["fingerprint"])
            unlike = self._unlike(message)
            one.ready = not unlike
            if unlike:
                if self._begun and one.node not in self._unused:
                    self._note(f"{one.node} has {unlike}: not used.")
                self._unused[one.node] = unlike
            else:
                self._nodes.add(one.node)
                self._unused.pop(one.node, None)
            self._hand_out()
        elif op == "progress" and attempt is not None and message["name"] == attempt.plan.name:
            attempt.rows += message["rows"]
            self._on_progress(message["name"], attempt.rows, message["steps"])
        elif op == "answer":
            self._take(one, **message)

    def _take(self, slot: _Slot, number: int, **told: Any) -> None:
        """Take in what a site says to what it was asked, or how an attempt ended."""
        future, attempt = slot.asked.pop(number, None), slot.attempt
        if attempt is not None and attempt.number == number:
            future, slot.attempt = attempt.future, None
            if "value" in told and told["value"].check == COLD_OTHER:
                self.site.starts.start = COLD
        if future is not None and "value" in told:
            future.set_result(told["value"])
        elif attempt is not None and future is attempt.future and "fault" in told:
            self._again(slot, attempt, told["fault"][0], RuntimeError(*told["fault"]))
        elif future is not None:
            errors = {"error": InputError, "interrupted": KeyboardInterrupt, "fault": RuntimeError}
            ((kind, words),) = told.items()
            future.set_exception(errors[kind](*words))
        self._hand_out()


def _gone(why: str, log: Path) -> InputError:
    return InputError(
        f"The cluster is gone: {why}.",
        "Every trial so far is kept. When the cluster is there again, run the same command to go on. "
        f"What was said last stands in {log}.",
    )
