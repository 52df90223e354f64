"""One loop for all that is asked and run: decide from the records, begin, conduct, record, until nothing is left.

What is asked, run and recorded is the affair of a `Work`; when, and in which thread, is the loop's. Deciding and
recording happen in the thread that called it, where Ctrl-C arrives; trials run there too, or in threads of their own
where several run at once.
"""

from __future__ import annotations

import enum
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

LOOK_SECONDS = 1.0
"""How often a wait for parallel trials looks up, so that Ctrl-C arrives, and a limit on the time is met."""

Begun = TypeVar("Begun")
Came = TypeVar("Came")


class Turn(enum.Enum):
    """What there is to do where no trial is begun."""

    WAIT = "wait"
    """Nothing before a running trial ends."""
    DONE = "done"


class Work(Protocol[Begun, Came]):
    """What a phase asks, runs and records.

    Attributes:
        running: what was begun and not recorded yet.
    """

    running: list[Begun]

    def turn(self) -> Begun | Turn:
        """Decide from the records; where there is room for one more, write the trial that is wanted as begun, and put
        it into `running`."""
        ...

    def conduct(self, begun: Begun) -> Came:
        """Run it, in whatever thread; nothing is written into the study."""
        ...

    def record(self, begun: Begun, came: Came) -> None:
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


def work_off(work: Work[Begun, Came], jobs: int) -> None:
    """Go on until the work is done. What runs then is not needed any more, and is ended.

    Args:
        work: what to do.
        jobs: trials that may run at once.

    Raises:
        BaseException: what was raised on the way, KeyboardInterrupt above all, once nothing is left running, in fact or
            on paper.
    """
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="bisect-cfg") if jobs > 1 else None
    futures: dict[Future[Came], Begun] = {}
    try:
        while (turn := work.turn()) is not Turn.DONE:
            if turn is not Turn.WAIT and pool is None:
                work.record(turn, work.conduct(turn))
            elif turn is not Turn.WAIT:
                futures[pool.submit(work.conduct, turn)] = turn
            else:
                ended, _ = wait(futures, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
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
        if pool is not None:
            pool.shutdown()
