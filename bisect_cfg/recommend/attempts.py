"""What is asked and what was run, while looking for safe values: the records that every decision is made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from bisect_cfg.common.configuration import Configuration


class Aim(StrEnum):
    """What a run is asked for. The values are what studies record."""

    RESET = "reset"
    """Is it healthy at all with the settings reset?"""
    RANGE = "range"
    """How far can one of them go?"""
    VERIFY = "verify"
    """Does the whole of it train on, longer and with other seeds?"""


@dataclass(frozen=True)
class Attempt:
    """One run that is needed.

    Attributes:
        configuration: the settings, complete: factors, and whatever else an alternative sets.
        seed: 0 for the user's own, k for the k-th other one.
        steps: how many optimizer steps it has to say something about.
        aim: what it is asked for.
        reason: one sentence for people.
    """

    configuration: Configuration
    seed: int
    steps: int
    aim: Aim
    reason: str

    @property
    def key(self) -> str:
        """Equal for runs of the same configuration and seed."""
        return key_of(self.configuration, self.seed)


def key_of(configuration: Configuration, seed: int) -> str:
    """Names a configuration with a seed."""
    return json.dumps([dict(configuration), seed], sort_keys=True, default=repr)


@dataclass(frozen=True)
class Ran:
    """A run that was made.

    Attributes:
        configuration: as of an `Attempt`.
        seed: the same.
        steps: how far it was meant to go.
        healthy: whether it was.
        failed_at: the step at which it was certain not to be; None if its end shows it, or if it is healthy.
        number: of the trial.
        text: why it is not healthy.
        seconds: that it took, 0 if it was made for another purpose.
        made: optimizer steps that it made, fewer than `steps` where its training ends before; None if nobody counts.
    """

    configuration: Configuration
    seed: int
    steps: int
    healthy: bool
    number: int
    failed_at: int | None = None
    text: str = ""
    seconds: float = 0.0
    made: int | None = None

    @property
    def length(self) -> int:
        """Optimizer steps that it speaks for."""
        return self.steps if self.made is None else min(self.steps, self.made)

    @cached_property
    def key(self) -> str:
        """Equal to that of the attempt which it was made for."""
        return key_of(self.configuration, self.seed)

    def answers(self, steps: int) -> bool | None:
        """Whether a run of so many steps is healthy, as far as this one tells."""
        if self.healthy:
            return True if self.steps >= steps else None
        if self.failed_at is None:
            return False if self.steps <= steps else None
        return self.failed_at > steps
