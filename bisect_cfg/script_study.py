"""What goes into the bisection of a training script and what comes out: options, the view's interface, the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bisect_cfg.capture.names import Assignment, as_given
from bisect_cfg.capture.script import Script, hash_of
from bisect_cfg.capture.settings import Settings
from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.errors import InputsChanged
from bisect_cfg.localise import Place
from bisect_cfg.recommend.case import Judgement
from bisect_cfg.recommend.phase import Safe
from bisect_cfg.recommend.plan import MARGIN
from bisect_cfg.recommend.runs import Question
from bisect_cfg.recommend.scale import DEFAULT_RATIO
from bisect_cfg.trials.runs import Run
from bisect_cfg.trials.verdict import Observation


@dataclass(frozen=True)
class Options:
    """What the command line can say; see `bisect-cfg bisect --help`."""

    study: Path | None = None
    good: tuple[Assignment, ...] = ()
    pins: tuple[Assignment, ...] = ()
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    steps: int | None = None
    trial_timeout: float | None = None
    jobs: int = 1
    devices: tuple[str, ...] = ()
    strategy: str = "adaptive"
    failure: str | None = None
    first: bool = False
    confirm: int | None = None
    confidence: float = 0.95
    prior: str = "risk"
    start: str | None = None
    max_trials: int | None = None
    max_seconds: float | None = None
    storage: str | None = None
    restart: bool = False
    where: bool = True
    recommend: bool = True
    margin: float = MARGIN
    ratio: float = DEFAULT_RATIO
    verify_steps: int | None = None
    verify_seeds: int = 3
    remedies: int | None = None
    keep: tuple[str, ...] = ()
    frontier: int | None = None

    def identity(self) -> dict[str, Any]:
        """The options that change what the trials mean; a study keeps them."""
        return {
            "good": sorted(_with_hash(as_given(text)) for text in self.good),
            "pins": sorted(map(as_given, self.pins)),
            "only": sorted(self.only),
            "except": sorted(self.excluded),
            "failure": self.failure,
            "steps": self.steps,
        }


def _with_hash(good: str) -> str:
    """What follows --good: where it is a file, its content counts."""
    path = Path(good)
    return f"{good} {hash_of(path)}" if "=" not in good and path.is_file() else good


class Listener:
    """What a view hears of; every method may be overridden, none must be."""

    def phase(self, name: str, detail: str = "") -> None:
        """A new phase begins."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def step(self, number: int | str, steps: int, horizon: int | None) -> None:
        """A trial has made a step."""

    def run_finished(self, purpose: Purpose, run: Run, outcome: Outcome | None) -> None:
        """One of the runs before the bisection proper is over."""

    def reproduced(self, seen: Observation, horizon: int) -> None:
        """The failure under study is known."""

    def factors(self, settings: Settings) -> None:
        """The factors are known."""

    def isolating(self, bisection: Any) -> None:
        """The bisection proper begins."""

    def event(self, event: Any) -> None:
        """An event of the bisection proper (see `bisect_cfg.bisection`)."""

    def safe_run_started(self, number: int, question: Question) -> None:
        """A run that looks for safe values begins."""

    def safe_run_finished(self, number: int, question: Question, judgement: Judgement, seconds: float) -> None:
        """... and has ended."""


@dataclass(frozen=True)
class Answer:
    """What came out, for the reports.

    Attributes:
        status: as in result.json.
        folder: the study folder.
        script: the target.
        settings: the factors; None if it did not come to that.
        bad_run: the first reproduction.
        good_run: the run of the good configuration that counts; None if it did not come to that.
        again: further runs of the bad configuration, where it failed once and never again.
        report: of the bisection proper; None if it did not come to that.
        start: how trials' processes came to be: "config", "imports" or "cold".
        horizon: steps per trial.
        notes: sentences for the user.
        details: by trial number, what the runner kept of it (folder, steps, remarks, ...).
        seconds: wall-clock time of this call.
        place: where the failure happens; None if it was not looked for, or nothing came out.
        safe: what was found to train; None if it did not come to that.
        stopped: what ended this call before its time, though the causes are known; None if nothing did.
    """

    status: str
    folder: Path
    script: Script
    settings: Settings | None = None
    bad_run: Run | None = None
    good_run: Run | None = None
    again: tuple[Run, ...] = ()
    report: Any = None
    start: str = "cold"
    horizon: int | None = None
    notes: tuple[str, ...] = ()
    details: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    place: Place | None = None
    safe: Safe | None = None
    stopped: InputsChanged | None = None
