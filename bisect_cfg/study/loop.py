"""One loop for all that is asked and run: decide from the records, submit, record, until nothing is left or a limit is
reached.

What is asked and recorded is the affair of a `Work`, where it runs that of an engine, and what they say to each other
plain data. Deciding and recording happen in the thread that called the loop, where Ctrl-C arrives.
"""

from __future__ import annotations

import enum
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bisect_cfg.errors import flag_of
from bisect_cfg.store.interface import Asked, Came, Engine

LOOK_SECONDS = 1.0
"""How often a wait for parallel trials looks up, so that Ctrl-C arrives, and a limit on the time is met."""

Begun = TypeVar("Begun")
Asked_co = TypeVar("Asked_co", covariant=True)
Came_contra = TypeVar("Came_contra", contravariant=True)


class Spent(Exception):
    """No further run is wanted: the budget is used up."""


@dataclass(frozen=True)
class Limits:
    """The limits that the user has set."""

    max_trials: int | None = None  # of the study in all, earlier passes included; None for no limit
    deadline: float | None = None  # until when runs may begin, on `time.monotonic`'s clock; None: for ever
    # whether the limits were given on a command line, where their names are `--max-trials`, `--max-seconds`
    flags: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline; None: for ever."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def spent(self, done: int) -> str:
        """Why no further run begins after so many trials; "" while one may."""
        if self.max_trials is not None and done >= self.max_trials:
            return f"Stopped after {done} trial{'' if done == 1 else 's'}, as {self._called('max_trials')} asks."
        if self.seconds_left == 0:
            return f"Stopped when the time was up, as {self._called('max_seconds')} asks."
        return ""

    def _called(self, name: str) -> str:
        return flag_of(name) if self.flags else name


class Action(enum.Enum):
    """What there is to do where no trial is begun."""

    WAIT = "wait"
    """Nothing before a running trial ends."""
    DONE = "done"


class Work(Protocol[Begun, Asked_co, Came_contra]):
    """What a phase asks and records."""

    running: list[Begun]  # what was begun and not recorded yet

    def next_action(self) -> Begun | Action:
        """Decide from the records; where there is room for one more, write the trial that is wanted as begun, and put
        it into `running`."""

    def asked(self, begun: Begun) -> Asked_co:
        """What the engine is asked for it."""

    def record(self, begun: Begun, result: Came_contra) -> None:
        """Write what came of it, and take it from `running`."""

    def close(self, begun: Begun) -> None:
        """Write that it was interrupted, and has no result."""


def run_loop(work: Work[Begun, Asked, Came], engine: Engine[Asked, Came]) -> None:
    """Go on until the work is done. What runs then is not needed any more, and is ended. Whatever is raised on the way,
    KeyboardInterrupt above all, comes up once nothing is left running, in fact or on paper."""
    futures: dict[Future[Came], Begun] = {}
    try:
        while (action := work.next_action()) is not Action.DONE:
            if action is not Action.WAIT:
                futures[engine.submit(work.asked(action))] = action
                continue
            ended, _ = wait(futures, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in [one for one in futures if one in ended]:  # in the order in which they were begun
                work.record(futures.pop(future), future.result())
    finally:
        for future in futures:
            future.cancel()
        if work.running:
            engine.interrupt()
            wait(futures)
            engine.go_on()  # later phases run trials of their own
        for begun in list(work.running):
            work.close(begun)
        work.running.clear()
