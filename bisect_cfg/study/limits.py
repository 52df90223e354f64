"""How much a study may take: trials in all, and time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bisect_cfg.errors import flag_of


class Spent(Exception):
    """No further run is wanted: the budget is used up."""


@dataclass(frozen=True)
class Limits:
    """The limits that the user has set.

    Attributes:
        max_trials: of the study in all, earlier passes included; None for no limit.
        deadline: until when runs may begin, on `time.monotonic`'s clock; None: for ever.
        flags: whether the limits were given on a command line, where their names are `--max-trials`, `--max-seconds`.
    """

    max_trials: int | None = None
    deadline: float | None = None
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
