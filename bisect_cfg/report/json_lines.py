"""What goes on, for programs: each event as one line of JSON, the last one the answer (docs/json-lines.md)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from bisect_cfg.common.configuration import UNSET, Outcome, Purpose, Value
from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.json_files import strict
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask, scrub
from bisect_cfg.remedy.order import Left
from bisect_cfg.remedy.remedy import Attempt
from bisect_cfg.remedy.terms import Health
from bisect_cfg.report import sentences
from bisect_cfg.report.answer import SCHEMA, Answer, plain
from bisect_cfg.report.events import BisectionEvent, CauseFound, Listener, Progress, TrialFinished, TrialStarted
from bisect_cfg.report.insights import learned
from bisect_cfg.report.live import described
from bisect_cfg.runner.runs import Run
from bisect_cfg.targets.factors import Factors

STEP_SECONDS = 1.0
"""Of one trial at most one step is told in so many seconds: a reader wants to see that it goes on."""


class JsonLines(Listener):
    """Writes each event as one object in one line, at once."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._writing = out, threading.Lock()
        self._names: list[str] = []
        self._settings: Factors
        self._ask_progress: Callable[[], Progress]
        self._progress: Progress | None = None
        self._told: dict[int | str, float] = {}

    def __enter__(self) -> Self:
        self._tell("start", schema=SCHEMA)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._tell("interrupted")
        elif isinstance(error, InputError):
            self._tell("error", message=error.message, advice=error.advice)
        elif isinstance(error, Exception):
            self._tell("error", message=f"{type(error).__name__}: {error}", advice="")

    def phase(self, name: str, detail: str = "") -> None:
        self._tell("phase", name=name, text=detail)

    def note(self, text: str) -> None:
        self._tell("note", text=text)

    def step(self, number: int | str, rows: Sequence[Row], horizon: int | None) -> None:
        now = time.monotonic()
        if rows and now - self._told.get(number, -STEP_SECONDS) >= STEP_SECONDS:
            self._told[number] = now
            self._tell("step", trial=number, steps=len(rows), horizon=horizon, metrics=rows[-1])

    def run_finished(self, purpose: Purpose, run: Run, outcome: Outcome | None) -> None:
        seen = run.seen
        self._tell(
            "run_finished",
            folder=run.folder.name,
            purpose=purpose.value,
            outcome=None if outcome is None else outcome.value,
            text="" if run.shown.signature is None else sentences.failure(run.shown),
            steps=seen.steps if seen.counted else None,
            seconds=round(seen.seconds, 3),
        )

    def factors(self, settings: Factors) -> None:
        self._tell(
            "factors",
            factors=[
                {"name": one.name, **{at: mask(_level(getattr(one, at)), one.name) for at in ("good", "bad")}}
                for one in settings.varied
            ],
            not_varied=settings.not_varied,
        )

    def isolating(self, settings: Factors, progress: Callable[[], Progress]) -> None:
        self._settings, self._names = settings, [factor.name for factor in settings.varied]
        self._ask_progress = progress
        self._how_far()

    def event(self, event: BisectionEvent) -> None:
        match event:
            case TrialStarted(request):
                self._tell(
                    "trial_started",
                    trial=request.number,
                    subset=[name for name in self._names if name in request.subset],
                    purpose=request.purpose.value,
                    reason=request.reason,
                )
            case TrialFinished(request, result, outcome):
                before = self._progress.tried if self._progress is not None else ()
                self._tell(
                    "trial_finished",
                    trial=request.number,
                    subset=[name for name in self._names if name in request.subset],
                    outcome=outcome.value,
                    signature=result.signature,
                    step=result.step_of_training,
                    seconds=round(result.seconds, 3),
                    learned=learned(request.subset, outcome, before, self._names),
                )
                self._how_far()
            case CauseFound(cause):
                levels = {
                    name: {level: _level(value) for level, value in values.items()}
                    for name, values in cause.values.items()
                }
                self._tell("cause", parameters=levels)

    def safe_runs_left(self, left: Left) -> None:
        self._tell("safe_runs_left", trials_left=left.runs, seconds_left=[round(one, 3) for one in left.seconds])

    def safe_run_started(self, number: int, attempt: Attempt) -> None:
        self._tell("safe_run_started", trial=number, text=described(attempt, self._settings), horizon=attempt.steps)

    def safe_run_finished(self, number: int, attempt: Attempt, health: Health, seconds: float) -> None:
        self._tell(
            "safe_run_finished",
            trial=number,
            healthy=health.healthy,
            text=sentences.unhealthy(health),
            steps=attempt.steps,
            seconds=round(seconds, 3),
        )

    def answer(self, answer: Answer, folder: Path) -> None:
        self._tell("answer", result=plain(answer))

    def _how_far(self) -> None:
        self._progress = now = self._ask_progress()
        self._tell(
            "progress",
            trials=now.trials,
            trials_left=now.remaining,
            seconds_left=[round(seconds, 3) for seconds in now.left],
            suspicion=now.suspicion,
            ruled_out=now.ruled_out,
        )

    def _tell(self, event: str, **content: Value) -> None:
        plain = {name: scrub(value) if isinstance(value, str) else value for name, value in content.items()}
        line = json.dumps(mask(strict({"event": event, "time": round(time.time(), 3), **plain})))
        with self._writing:
            self._out.write(line + "\n")
            self._out.flush()


def _level(value: Value) -> Value:
    return str(value) if value is UNSET else value
