"""One loop for all that is asked and run: decide from the records, submit, record, until nothing is left.

What is asked and recorded is the affair of a `Work`, where it runs that of an engine. Deciding and recording happen in
the thread that called the loop, where Ctrl-C arrives.
"""

from __future__ import annotations

import enum
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol, TypeVar

from bisect_cfg.engines.engine import Engine

LOOK_SECONDS = 1.0
"""How often a wait for parallel trials looks up, so that Ctrl-C arrives, and a limit on the time is met."""

Begun = TypeVar("Begun")
Result = TypeVar("Result")


class Action(enum.Enum):
    """What there is to do where no trial is begun."""

    WAIT = "wait"
    """Nothing before a running trial ends."""
    DONE = "done"


class Work(Protocol[Begun, Result]):
    """What a phase asks and records.

    Attributes:
        running: what was begun and not recorded yet.
    """

    running: list[Begun]

    def next_action(self) -> Begun | Action:
        """Decide from the records; where there is room for one more, write the trial that is wanted as begun, and put
        it into `running`."""
        ...

    def record(self, begun: Begun, result: Result) -> None:
        """Write what came of it, and take it from `running`."""
        ...

    def interrupt(self) -> None:
        """End the processes of all that is running; none starts before `go_on`."""
        ...

    def go_on(self) -> None:
        """Everything that was interrupted has ended."""
        ...

    def close(self, begun: Begun) -> None:
        """Write that it was interrupted, and has no result."""
        ...


def run_loop(work: Work[Begun, Result], engine: Engine[Begun, Result]) -> None:
    """Go on until the work is done. What runs then is not needed any more, and is ended; the engine is closed.

    Raises:
        BaseException: what was raised on the way, KeyboardInterrupt above all, once nothing is left running, in fact or
            on paper.
    """
    futures: dict[Future[Result], Begun] = {}
    try:
        while (action := work.next_action()) is not Action.DONE:
            if action is not Action.WAIT:
                futures[engine.submit(action)] = action
                continue
            ended, _ = wait(futures, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in [one for one in futures if one in ended]:  # in the order in which they were begun
                work.record(futures.pop(future), future.result())
    finally:
        for future in futures:
            future.cancel()
        if work.running:
            work.interrupt()
            wait(futures)
            work.go_on()  # later phases run trials of their own
        for begun in list(work.running):
            work.close(begun)
        work.running.clear()
        engine.close()
