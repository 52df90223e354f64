"""What a view hears of while the phases go on, and at their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.remedy.order import Left
from bisect_cfg.remedy.remedy import Attempt
from bisect_cfg.remedy.terms import Health
from bisect_cfg.reports.events import BisectionEvent, Progress
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.runner.runs import Run
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.sides import Sides


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

    def factors(self, settings: Factors | Sides) -> None:
        """The factors are known."""

    def isolating(self, settings: Factors | Sides, progress: Callable[[], Progress]) -> None:
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

    def answer(self, answer: Answer, result: JsonObject) -> None:
        """The answer stands, and `result` is written as result.json; nothing follows."""
