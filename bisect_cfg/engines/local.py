"""Trials on this machine."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic

from bisect_cfg.store.interface import Asked, Came


class LocalEngine(Generic[Asked, Came]):
    """Runs trials in processes of this machine; for each of several a thread waits.

    Args:
        site: what runs them: `run` makes one to its end, in whatever thread; it may have the methods of an `Engine`
            that end trials.
        slots: trials that may run at once. With one, the caller's thread waits for it, where Ctrl-C arrives.
        in_place: whether a trial runs in the caller's thread however many there are: a function that is called, as
            simulated oracles are. Then so many are asked for before the first of them is looked at.
    """

    cluster, nodes = None, ()

    def __init__(self, site: Any, slots: int, in_place: bool = False) -> None:
        self.site, self.slots = site, slots
        threads = slots > 1 and not in_place
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="bisect-cfg") if threads else None

    def submit(self, asked: Asked) -> Future[Came]:
        """Begin a trial. What one in the caller's thread raises comes up at once."""
        if self._pool is not None:
            return self._pool.submit(self.site.run, asked)
        future: Future[Came] = Future()
        future.set_result(self.site.run(asked))
        return future

    def leave_out(self, nodes: Collection[str]) -> None:
        """There is this machine alone."""

    def end(self, name: int | str) -> None:
        """End a trial, see `Engine`."""
        self._tell("end", name)

    def interrupt(self) -> None:
        """End all trials, see `Engine`."""
        self._tell("interrupt")

    def go_on(self) -> None:
        """Begin again, see `Engine`."""
        self._tell("go_on")

    def close(self) -> None:
        """End what the site has started, then wait for the threads."""
        self._tell("close")
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _tell(self, what: str, *more: object) -> None:
        """Have the site do it, if it can."""
        getattr(self.site, what, lambda *more: None)(*more)
