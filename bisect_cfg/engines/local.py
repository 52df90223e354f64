"""Trials on this machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic

from bisect_cfg.engines.engine import Asked, Result


class LocalEngine(Generic[Asked, Result]):
    """Runs trials in processes of this machine; for each of several a thread waits.

    Args:
        run: makes one trial, in whatever thread; it starts its processes and ends them.
        slots: trials that may run at once. With one, the caller's thread waits for it, where Ctrl-C arrives.
    """

    def __init__(self, run: Callable[[Asked], Result], slots: int) -> None:
        self.slots, self._run = slots, run
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="bisect-cfg") if slots > 1 else None

    def submit(self, asked: Asked) -> Future[Result]:
        """Begin a trial."""
        return in_place(self._run, asked) if self._pool is None else self._pool.submit(self._run, asked)

    def close(self) -> None:
        """Wait for the threads, whose trials have been ended."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def in_place(run: Callable[[Asked], Result], asked: Asked) -> Future[Result]:
    """Run a trial here and now. What it raises comes up at once: Ctrl-C arrives in this thread."""
    future: Future[Result] = Future()
    future.set_result(run(asked))
    return future
