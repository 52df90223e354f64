"""What a bisection tells while it runs, and a snapshot of how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.store.causes import Cause, Report
from bisect_cfg.store.interface import TrialRequest, TrialResult


@dataclass(frozen=True)
class Resumed:
    """The study holds trials already; `lost` of them belonged to a dead process and will be asked again."""

    trials: int
    lost: int


@dataclass(frozen=True)
class TrialStarted:
    """A trial begins."""

    request: TrialRequest


@dataclass(frozen=True)
class TrialFinished:
    """A trial has ended; `outcome` is the bisection's verdict, `result.outcome` the runner's."""

    request: TrialRequest
    result: TrialResult
    outcome: Outcome


@dataclass(frozen=True)
class CauseFound:
    """A cause is proven."""

    cause: Cause


@dataclass(frozen=True)
class Concluded:
    """Nothing is left to ask."""

    report: Report


@dataclass(frozen=True)
class Progress:
    """How far the bisection is.

    Attributes:
        trials: finished ones.
        running: the requests running in this process.
        factors: how many differ.
        ruled_out: factors that are in no cause, as far as is known.
        suspected: factors that may be in the cause looked for now.
        causes: proven ones.
        remaining: the least and the most trials that are still to be expected, if the failure shows whenever it can.
        seconds: how long a trial takes that fails and one that passes, the shorter first; 0.0 before any has ended.
        suspicion: factor -> the probability that it is in a proven cause or in the one looked for now; empty where
            nothing is weighed.
        tried: of each finished trial its bad factors, and what came out, in their order.
        jobs: trials that may run at once.
    """

    trials: int
    running: tuple[TrialRequest, ...]
    factors: int
    ruled_out: tuple[str, ...]
    suspected: tuple[str, ...]
    causes: tuple[Cause, ...]
    remaining: tuple[int, int]
    seconds: tuple[float, float]
    suspicion: Mapping[str, float] = field(default_factory=dict)
    tried: tuple[tuple[frozenset[str], Outcome], ...] = ()
    jobs: int = 1

    @property
    def left(self) -> tuple[float, float]:
        """Seconds that isolating may still take, from the trials that remain and the time that they took so far."""
        least, most = (-(-trials // self.jobs) for trials in self.remaining)
        return least * self.seconds[0], most * self.seconds[1]


BisectionEvent = Resumed | TrialStarted | TrialFinished | CauseFound | Concluded
