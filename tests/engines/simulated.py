"""Sites that are made up, on a virtual clock, in the thread that asks: hundreds of bisections in seconds, the same at
each run. What they do with a plan is drawn, or said by the test; what the engine does about it is the real one."""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bisect_cfg.common.configuration import Configuration, Outcome
from bisect_cfg.engines import sites
from bisect_cfg.engines.lines import encode
from bisect_cfg.engines.site_process import ALONE_SECONDS
from bisect_cfg.runner.plan import Plan, Result
from bisect_cfg.store.interface import TrialRequest, TrialResult
from bisect_cfg.study import loop
from bisect_cfg.targets.script import Script

TICK = 5.0
"""How often simulated sites say that they are there, and the engine looks after them."""

FOREVER = 20_000.0
"""Virtual seconds after which a test that still waits has failed."""

CHAOS = {"dies": 0.12, "hangs": 0.08, "twice": 0.08, "faults": 0.04, "takes the machine down": 0.01}
"""What a site does with a plan instead of running it to its end, and how often."""


@dataclass
class Made:
    """A site that is made up, in its slot."""

    slot: int
    node: str
    up: bool = False
    silent: bool = False  # neither says nor hears anything
    heard: float = 0.0  # when the tool has told it something
    life: int = 0  # how often it was started
    unread: list[tuple[Any, dict]] = field(default_factory=list)
    runs: dict[int | str, int] = field(default_factory=dict)  # plan that runs -> number of the attempt


class Simulated(sites.SiteEngine):
    """A `SiteEngine` whose engine process and sites are made up.

    Args:
        clock: by which all goes: `now` is set here.
        folder: the study folder.
        nodes: of each slot.
        outcome: (configuration, node) -> what a run there shows.
        chaos: what a site does with a plan -> how often.
        versions: node -> torch there, if it is another one.
    """

    def __init__(
        self,
        clock: SimpleNamespace,
        folder: Path,
        nodes: Sequence[str],
        outcome: Callable[[Configuration, str], Outcome],
        *,
        seed: int = 0,
        chaos: Mapping[str, float] = CHAOS,
        versions: Mapping[str, str] | None = None,
        slots: int | None = None,
    ) -> None:
        self.clock, self.notes, self.outcome = clock, [], outcome
        self.disk: dict[int | str, tuple[Outcome, str]] = {}  # what the runs of plans have shown, and where
        self.faulted: set[int | str] = set()
        self.runs, self.ended, self.study, self.deadly = 0, 0, 0, set()
        self.did: dict[str, int] = dict.fromkeys(chaos, 0)
        self._rng, self._chaos, self._versions = random.Random(seed), chaos, versions or {}
        self._made = [Made(slot, node) for slot, node in enumerate(nodes)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        super().__init__(
            (), Script(folder / "train.py"), folder, slots=slots or len(nodes), note=self.notes.append,
            environment={"packages": {"torch": "2.10.0"}},
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- in place of the process

    def _start(self, command: Sequence[str]) -> Any:
        for site in self._made:
            self._later(0.0, lambda site=site: self._bring_up(site))
        self._later(0.0, lambda: self._hear({"op": "all_up"}))
        self._later(TICK, self._tick)
        return SimpleNamespace(stdin=SimpleNamespace(close=lambda: None), wait=lambda seconds: None)

    def end(self, name: int | str) -> None:
        self.ended += 1
        super().end(f"{self.study}-{name}")

    def _wait_for(self, there: Callable[[], object]) -> None:
        self.go_on_until(lambda: self._failed or there())
        super()._wait_for(there)

    def wait(self, futures: Collection[Future], timeout: float | None = None, return_when: str = "") -> tuple[set, set]:
        """As `concurrent.futures.wait`, in virtual time, and without the timeout: nothing else happens meanwhile."""
        some = any if return_when == FIRST_COMPLETED else all
        self.go_on_until(lambda: some(future.done() for future in futures))
        return {future for future in futures if future.done()}, {future for future in futures if not future.done()}

    def go_on_until(self, there: Callable[[], object]) -> None:
        """Let happen what happens."""
        since = self.clock.now
        while not there():
            self.clock.now, _, happens = heapq.heappop(self._events)
            assert self.clock.now < since + FOREVER, "nothing will ever come of it"
            happens()

    def _later(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.clock.now + seconds, next(self._order), happens))

    def _tick(self) -> None:
        for site in self._made:
            if site.up and not site.silent:
                if self.clock.now - site.heard > ALONE_SECONDS:
                    self._take_down(site, 1.0)
                else:
                    self._tell(site, op="alive")
        self._look_after()
        self._later(TICK, self._tick)

    # ------------------------------------------------------------------------------------------------- the sites

    def _bring_up(self, site: Made) -> None:
        site.up, site.silent, site.heard, site.life, site.unread = True, False, self.clock.now, site.life + 1, []
        self._hear({"op": "up", "slot": site.slot, "node": site.node, "devices": [], "jobs": 1})

    def _take_down(self, site: Made, until: float) -> None:
        site.up = False
        site.runs.clear()
        self._hear({"op": "down", "slot": site.slot, "why": "it fell"})
        self._later(until, lambda: self._bring_up(site))

    def _tell(self, site: Made, **message: object) -> None:
        self._hear({"op": "line", "slot": site.slot, "line": json.dumps(encode(message))})

    def _say(self, slot: Any, **message: Any) -> None:
        site, slot.said = self._made[slot.number], self.clock.now
        if site.silent:  # it reads that when it wakes up
            site.unread.append((slot, message))
        elif site.up:
            site.heard = self.clock.now
            getattr(self, f"_site_{message.pop('op')}", lambda *told, **more: None)(site, **message)

    def _site_hello(self, site: Made, setup: dict, **about: object) -> None:
        torch = self._versions.get(site.node, "2.10.0")
        told = {"version": metadata.version("bisect-cfg"), "sees": True, "hashes": {}}
        self._later(0.1, self._alive(site, op="hello", fingerprint={"packages": {"torch": torch}}, **told))

    def _site_run(self, site: Made, number: int, plan: Plan, **start: str) -> None:
        self.runs += 1
        site.runs[plan.name] = number
        seconds, what = self._rng.lognormvariate(4, 0.7), self._drawn()
        if what is not None:
            self.did[what] += 1
        if what == "takes the machine down":  # wherever it runs
            self.deadly.add(plan.name)
        if what == "dies" or plan.name in self.deadly:
            away = self._rng.choice((1.0, 30.0, 300.0, 3000.0))
            self._later(seconds * self._rng.random(), self._in_this_life(site, lambda: self._take_down(site, away)))
        elif what == "faults" and plan.name not in self.faulted:  # the same fault everywhere ends the study
            self.faulted.add(plan.name)
            self._later(seconds, self._alive(site, op="answer", number=number, fault=["OSError: no space left"]))
        else:
            if what == "hangs":
                self._later(seconds * self._rng.random(), self._in_this_life(site, lambda: self._silence(site)))
            self._later(seconds, self._in_this_life(site, lambda: self._end(site, number, plan)))
            if what == "twice":
                self._later(seconds * 1.5, self._in_this_life(site, lambda: self._answer(site, number, plan)))

    def _drawn(self) -> str | None:
        at = self._rng.random()
        for what, often in self._chaos.items():
            if (at := at - often) < 0:
                return what
        return None

    def _silence(self, site: Made) -> None:
        site.silent = True
        self._later(self._rng.uniform(5, 200), self._in_this_life(site, lambda: self._wake(site)))

    def _wake(self, site: Made) -> None:
        site.silent = False
        for name, number in list(site.runs.items()):  # what came of it meanwhile
            if name in self.disk:
                self._tell(site, op="answer", number=number, value=Result(name))
        unread, site.unread = site.unread, []
        for slot, message in unread:
            self._say(slot, **message)

    def _end(self, site: Made, number: int, plan: Plan) -> None:
        if site.runs.get(plan.name) == number:
            self.disk[plan.name] = self.outcome(plan.configuration, site.node), site.node
            if not site.silent:
                self._answer(site, number, plan)

    def _answer(self, site: Made, number: int, plan: Plan) -> None:
        site.runs.pop(plan.name, None)
        self._tell(site, op="answer", number=number, value=Result(plan.name))

    def _site_end(self, site: Made, name: int | str) -> None:
        number = site.runs.pop(name, None)
        if number is not None:
            self._later(0.1, self._alive(site, op="answer", number=number, value=Result(name)))

    def _site_interrupt(self, site: Made) -> None:
        for number in site.runs.values():
            self._later(0.1, self._alive(site, op="answer", number=number, interrupted=[]))
        site.runs.clear()

    def _alive(self, site: Made, **message: object) -> Callable[[], None]:
        return self._in_this_life(site, lambda: site.silent or self._tell(site, **message))

    def _in_this_life(self, site: Made, happens: Callable[[], object]) -> Callable[[], None]:
        life = site.life
        return lambda: happens() and None if site.up and site.life == life else None


@contextmanager
def virtual(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> Iterator[Simulated]:
    """A simulated engine, by whose clock the engine and the loop go."""
    clock = SimpleNamespace(now=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(sites, "time", SimpleNamespace(monotonic=lambda: clock.now))
        engine = Simulated(clock, *args, **options)
        patch.setattr(loop, "wait", engine.wait)
        try:
            yield engine
        finally:
            engine.close()


@dataclass
class Runner:
    """Has a simulated engine run the trials of a search, of a study with this name."""

    engine: Simulated
    study: int = 0

    def is_valid(self, configuration: Configuration) -> str | None:
        return None

    def run(self, request: TrialRequest) -> TrialResult:
        raise NotImplementedError

    def asked(self, request: TrialRequest) -> Plan:
        self.engine.study = self.study
        return Plan(f"{self.study}-{request.number}", request.configuration, None)

    def told(self, result: Result) -> TrialResult:
        if result.lost:
            return TrialResult(Outcome.UNRESOLVED, "lost", f"lost on {', '.join(result.lost)}")
        outcome, node = self.engine.disk[result.name]
        signature = "ValueError" if outcome is Outcome.FAIL else None
        return TrialResult(outcome, signature, attributes={"node": node})
