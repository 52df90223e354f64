"""What an engine is: where trials run. Whoever asks for one submits it, and does not know which engine it is."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol, TypeVar

Asked = TypeVar("Asked")
Asked_contra = TypeVar("Asked_contra", contravariant=True)
Result = TypeVar("Result")


class Engine(Protocol[Asked_contra, Result]):
    """Runs trials.

    Attributes:
        slots: trials that may run at once.
    """

    slots: int

    def submit(self, asked: Asked_contra) -> Future[Result]:
        """Begin a trial. It may be over when this returns."""
        ...

    def close(self) -> None:
        """No trial begins any more; those that run have been ended by now."""
        ...
