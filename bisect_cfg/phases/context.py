"""What every phase works with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bisect_cfg.capture.distributions import Installed, installed_by
from bisect_cfg.capture.script import Script
from bisect_cfg.capture.target import CommandTarget
from bisect_cfg.common.types import Fingerprint
from bisect_cfg.configuration import Outcome
from bisect_cfg.phases.limits import Limits, Spent
from bisect_cfg.phases.options import Options
from bisect_cfg.reports.asked import Wanted
from bisect_cfg.reports.listener import Listener
from bisect_cfg.runner.verdict import Verdict
from bisect_cfg.study.basis import Basis
from bisect_cfg.trials.command_runner import CommandRunner
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.reached import steps_reached
from bisect_cfg.trials.runner import ScriptRunner
from bisect_cfg.trials.runs import Run, load_run


@dataclass
class Context:
    """One pass through the phases.

    Attributes:
        script: the target.
        options: of the user.
        listener: hears of the phases and runs.
        folder: of the study.
        basis: what the study rests on.
        runner: runs trials; what a phase finds out of how, it learns.
        environment: fingerprint of what trains.
        notes: sentences for the user, each said once.
        wanted: a run that a reader asks for in place of an answer; None: nothing of the kind.
        started: when this pass began, on `time.monotonic`'s clock.
    """

    script: Script | CommandTarget
    options: Options
    listener: Listener
    folder: Path
    basis: Basis
    runner: ScriptRunner | CommandRunner
    environment: Fingerprint = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wanted: Wanted | None = None
    started: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Say a sentence to the user, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.listener.note(text)

    @cached_property
    def installed(self) -> Installed:
        """What the interpreter that trains has installed."""
        return installed_by(self.script.python)

    @cached_property
    def failing_step(self) -> int | None:
        """The step at which the run of `--log` failed, as far as it tells; None without one. A log can be large."""
        return None if self.options.log is None else steps_reached(self.options.log) + 1

    @property
    def limits(self) -> Limits:
        """What this pass may take."""
        limit = self.options.max_seconds
        deadline = None if limit is None else self.started + limit
        return Limits(self.options.max_trials, deadline, self.options.flags)

    def check_limits(self) -> None:
        """What comes before the search counts as well.

        Raises:
            Spent: --max-trials or --max-seconds is used up; or a run of a reader's own is all that is wanted.
        """
        if self.wanted is not None:
            raise Spent("Its search has not begun.")
        spent = self.limits.spent(len(list((self.folder / "trials").glob("*/ending.json"))))
        if spent:
            raise Spent(spent)

    def train(self, plan: Plan) -> Run:
        """Make a run that comes before the search.

        Raises:
            Spent: it is not made, as the budget is used up.
        """
        self.check_limits()
        return self.runner.train(plan)

    def made(self, plan: Plan) -> Run:
        """The run of this name: read back if it was made before, made otherwise.

        Raises:
            Spent: it is not made, as the budget is used up.
        """
        return load_run(self.folder, plan.name) or self.train(plan)

    def verdict_of(self, run: Run) -> Verdict:
        """What a run means for the failure under study."""
        return run.judged(self.runner.known.standard)

    def outcome_of(self, run: Run) -> Outcome:
        """Its outcome."""
        return self.verdict_of(run).outcome

    def outcome_of_good(self, run: Run) -> Outcome:
        """The same of a run of the good configuration, whose symptoms are the script's own."""
        return run.judged(self.runner.known.standard.with_usual(run.shown)).outcome
