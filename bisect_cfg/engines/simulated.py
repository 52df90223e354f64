"""Trials that are no processes: a function called in place, as simulated oracles are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic

from bisect_cfg.engines.engine import Asked, Result
from bisect_cfg.engines.local import in_place


class SimulatedEngine(Generic[Asked, Result]):
    """Calls a function of the user's within `submit`, in the caller's thread.

    Args:
        run: makes one trial.
        slots: trials that are asked for before the first of them is looked at, as if they ran at once.
    """

    def __init__(self, run: Callable[[Asked], Result], slots: int) -> None:
        self.slots, self._run = slots, run

    def submit(self, asked: Asked) -> Future[Result]:
        """Make a trial."""
        return in_place(self._run, asked)

    def close(self) -> None:
        """Nothing is left running."""
