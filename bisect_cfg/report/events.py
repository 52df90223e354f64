"""What a view hears of while the phases go on and at their end: the events of a bisection, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from bisect_cfg.common.configuration import Outcome, Purpose, Value
from bisect_cfg.common.failures.health import Row
from bisect_cfg.remedy.order import Left
from bisect_cfg.remedy.remedy import Attempt
from bisect_cfg.remedy.terms import Health
from bisect_cfg.report.answer import Answer
from bisect_cfg.runner.runs import Run
from bisect_cfg.store.causes import Cause, Report
from bisect_cfg.store.interface import TrialRequest, TrialResult
from bisect_cfg.targets.factors import Factors

Wanted = str | Collection[str] | Mapping[str, Value]
"""A run that a reader asks for: names of the settings that are bad, all others good; or values in place of those of the
bad configuration."""


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
    """How far the bisection is."""

    trials: int  # finished ones
    running: tuple[TrialRequest, ...]  # the requests running in this process
    factors: int  # how many differ
    ruled_out: tuple[str, ...]  # factors that are in no cause, as far as is known
    suspected: tuple[str, ...]  # factors that may be in the cause looked for now
    causes: tuple[Cause, ...]  # proven ones
    # the least and the most trials that are still to be expected, if the failure shows whenever it can
    remaining: tuple[int, int]
    # how long a trial takes that fails and one that passes, the shorter first; 0.0 before any has ended.
    seconds: tuple[float, float]
    # factor -> the probability that it is in a proven cause or in the one looked for now; empty where nothing is
    # weighed
    suspicion: Mapping[str, float] = field(default_factory=dict)
    # of each finished trial its bad factors, and what came out, in their order
    tried: tuple[tuple[frozenset[str], Outcome], ...] = ()
    jobs: int = 1  # trials that may run at once

    @property
    def left(self) -> tuple[float, float]:
        """Seconds that isolating may still take, from the trials that remain and the time that they took so far."""
        least, most = (-(-trials // self.jobs) for trials in self.remaining)
        return least * self.seconds[0], most * self.seconds[1]


BisectionEvent = Resumed | TrialStarted | TrialFinished | CauseFound | Concluded


class Listener:
    """What a view hears of, from its `__enter__` to its `__exit__`; every method may be overridden, none must be."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over, by this error if there is one."""

    def phase(self, name: str, detail: str = "") -> None:
        """A new phase begins."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def step(self, number: int | str, rows: Sequence[Row], horizon: int | None) -> None:
        """A trial goes on: the metrics of the steps that it has made so far, of at most `horizon`. May be called from
        the thread of the trial."""

    def run_finished(self, purpose: Purpose, run: Run, outcome: Outcome | None) -> None:
        """One of the runs before the bisection proper is over."""

    def factors(self, settings: Factors) -> None:
        """The factors are known."""

    def isolating(self, settings: Factors, progress: Callable[[], Progress]) -> None:
        """The bisection proper begins, over the settings that are left to vary; how far it is can be asked at any
        time."""

    def event(self, event: BisectionEvent) -> None:
        """An event of the bisection proper."""

    def safe_runs_left(self, left: Left) -> None:
        """What is still to be run while safe values are looked for."""

    def safe_run_started(self, number: int, attempt: Attempt) -> None:
        """A run that looks for safe values begins."""

    def safe_run_finished(self, number: int, attempt: Attempt, health: Health, seconds: float) -> None:
        """... and has ended."""

    def answer(self, answer: Answer, folder: Path) -> None:
        """The answer stands, and is written into the folder of the study; nothing follows."""
