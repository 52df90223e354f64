"""What an engine is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

Asked = TypeVar("Asked")
Asked_contra = TypeVar("Asked_contra", contravariant=True)
Came = TypeVar("Came")
Came_co = TypeVar("Came_co", covariant=True)


class Engine(Protocol[Asked_contra, Came_co]):
    """Runs trials.

    Attributes:
        slots: trials that may run at once.
    """

    slots: int

    def submit(self, asked: Asked_contra) -> Future[Came_co]:
        """Begin a trial. It may be over when this returns."""
        ...

    def close(self) -> None:
        """No trial begins any more; those that run have been ended by now."""
        ...


def in_place(run: Callable[[Asked], Came], asked: Asked) -> Future[Came]:
    """Run a trial here and now. What it raises comes up at once: Ctrl-C arrives in this thread."""
    future: Future[Came] = Future()
    future.set_result(run(asked))
    return future
