"""What a bisection tells while it runs, and a snapshot of how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bisect_cfg.configuration import Outcome
from bisect_cfg.study.causes import Cause, Report
from bisect_cfg.study.interface import TrialRequest, TrialResult


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
        remaining: a rough estimate of the trials still needed.
        seconds: mean duration of a trial so far.
        suspicion: factor -> the probability that it is in a proven cause or in the one looked for now; empty where
            nothing is weighed.
    """

    trials: int
    running: tuple[TrialRequest, ...]
    factors: int
    ruled_out: tuple[str, ...]
    suspected: tuple[str, ...]
    causes: tuple[Cause, ...]
    remaining: int
    seconds: float
    suspicion: Mapping[str, float] = field(default_factory=dict)


BisectionEvent = Resumed | TrialStarted | TrialFinished | CauseFound | Concluded
