"""What every phase works with: one pass over a study, what it has found so far, and the runs that it makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bisect_cfg.common.configuration import Outcome, Purpose, Status, Value, present
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.errors import InputError
from bisect_cfg.options import Options
from bisect_cfg.report.events import Listener, Wanted
from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run, last_lines, result_of
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import SKIPPED, Verdict
from bisect_cfg.store.encoding import QUESTION, TWO_ENDS, result_attributes
from bisect_cfg.store.state import State
from bisect_cfg.store.store import Store, Void
from bisect_cfg.study.bisection import Bisection
from bisect_cfg.study.loop import Limits, Spent
from bisect_cfg.study.told_in_log import steps_reached
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import Installed, installed_by
from bisect_cfg.targets.target import Target

SEVERAL = frozenset({Purpose.WARM_START, Purpose.BAD_AGAIN})
"""Purposes of which a study has several runs, so that reports say which one it was."""

Phase = Callable[["Study"], "Status | Phase | None"]
"""A status ends the story; a phase is gone back to, after what changed was written down; None: on to the next."""


@dataclass
class Study:
    """One pass through the phases."""

    target: Target
    options: Options
    listener: Listener
    folder: Path
    state: State  # what the study rests on, and what was decided that no trial can tell
    store: Store
    # what all trials have in common; a phase that learns more of it sets it there
    trials: Trials = field(default=None)  # type: ignore[assignment]  # `begin` sets it
    environment: Fingerprint = field(default_factory=Fingerprint)  # of what trains
    wanted: Wanted | None = None  # one more trial that a reader asks for, in place of an answer
    notes: list[str] = field(default_factory=list)  # sentences for the user, each said once
    started: float = field(default_factory=time.monotonic)
    good: dict[str, Value] = field(default_factory=dict)  # what the user says of the good configuration
    pins: dict[str, Value] = field(default_factory=dict)  # settings that are the same in all runs, and their values
    sides: Any = None  # `GoodSides`, whose module imports this one
    baselines: Any = None  # `Baselines`, whose module imports this one
    again: tuple[Run, ...] = ()  # further runs of the bad configuration that count
    bisection: Bisection | None = None  # of the settings; None before the search
    answer: Findings = field(init=False)  # what was found so far

    def __post_init__(self) -> None:
        self.answer = Findings(folder=self.folder, script=self.target)

    def close(self) -> None:
        """End everything that was started; nothing of the study runs afterwards."""
        if self.trials is not None:
            self.trials.engine.close()

    def find(self, **found: Any) -> None:  # fields of the answer: `replace` refuses others
        """Take something into the answer."""
        self.answer = replace(self.answer, **found)

    def note(self, text: str) -> None:
        """Say a sentence to the user, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.listener.note(text)

    @property
    def site(self) -> Site:
        """What runs the trials."""
        return self.trials.site

    @property
    def settings(self) -> Factors:
        """What varies, once it is known."""
        return self.trials.settings

    @property
    def good_side(self) -> dict[str, Value]:
        """What is known of the good configuration before it is compared: what the user says counts first."""
        return {**self.sides.values, **self.good}

    @cached_property
    def installed(self) -> Installed:
        """What the interpreter that trains has installed."""
        return installed_by(self.target.python)

    @cached_property
    def failing_step(self) -> int | None:
        """The step at which the run of `--log` failed; None without a log. A log can be large."""
        return None if self.options.log is None else steps_reached(self.options.log) + 1

    @property
    def limits(self) -> Limits:
        """What this pass may take."""
        limit = self.options.max_seconds
        deadline = None if limit is None else self.started + limit
        return Limits(self.options.max_trials, deadline, flags=True)

    # -------------------------------------------------------------------------------------------------------- runs

    def before(self, question: str) -> Run | None:
        """The run that has answered a question (a plan's name); None if none has, or one of a command that could not be
        run or judged: what stood in its way may be gone now."""
        number = self.store.number_of(question)
        run = None if number is None else self.site.load(number)
        return None if run is None or run.says_nothing else run

    def made(self, plan: Plan, limited: bool = True) -> Run:
        """The run that answers the question of a plan: an earlier one, or one that is made now; see `train`."""
        return self.before(str(plan.name)) or self.train(plan, limited)

    def train(self, plan: Plan, limited: bool = True) -> Run:
        """Make a run that is none of the search, as a trial of the study; the plan's name is the question. No limits
        hold where a run only adds to an answer that stands.

        Raises:
            Spent: it is not made, as a limit is reached, or a run of the reader's choice is all that is wanted.
            InputError: it could not be run, or says that it cannot be judged: then no trial says anything.
        """
        if limited and self.wanted is not None:
            raise Spent("Its search has not begun.")
        spent = self.limits.spent(self.store.count()) if limited else ""
        if spent:
            raise Spent(spent)
        question = str(plan.name)
        asked = {QUESTION: question, "purpose": plan.purpose.value, "reason": ""}
        if plan.purpose in SEVERAL:
            asked["run"] = question
        # It has no parameters: Optuna lets no choices of a setting change, and the good side may until the search.
        number = self.store.begin({}, asked).number
        try:
            home = self.answer.bad_run.node if self.answer.bad_run is not None else ""
            run = self.trials.train(replace(plan, name=number, node=plan.node or home))
        except BaseException:
            self.store.void(number, Void.INTERRUPTED)
            raise
        ends, good = plan.purpose in TWO_ENDS, plan.purpose is Purpose.GOOD_BASELINE
        result = self.trials.judged(run) if ends else result_of(run, self.verdict_of(run))
        outcome = self.outcome_of_good(run) if good else result.outcome
        self.store.finish(number, result_attributes(result, outcome), outcome, result.intermediate)
        bad = plan.purpose is Purpose.BAD_BASELINE
        odd = outcome is not Outcome.PASS if good else bad and run.shown.signature is None
        others = set(self.trials.engine.nodes) - {run.node} if odd and run.node and not plan.node else ()
        if others:  # is it the node?
            other = self.train(replace(plan, node=min(others)), limited)
            if self.outcome_of_good(other) is Outcome.PASS if good else other.shown.signature is not None:
                does = ("fails", "passes") if good else ("passes", "fails")
                side = "good" if good else "bad"
                self.note(
                    f"The {side} configuration {does[0]} on {run.node} and {does[1]} on {other.node}: no more runs are "
                    f"made on {run.node}."
                )
                self.trials.engine.leave_out({run.node})
                return other
        if run.says_nothing:
            side, died = "bad" if plan.purpose is Purpose.BAD_BASELINE else "good", present(run.seen.died)
            what = f"ended with exit status {died.name}, so it cannot be run"
            if died.kind == SKIPPED:
                what = "says that it cannot be judged (exit status 125)"
            raise InputError(f"With the {side} side the command {what}. It was: {self.target.shown}", last_lines(run))
        return run

    def verdict_of(self, run: Run) -> Verdict:
        """What a run means for the failure under study."""
        return run.judged(self.trials.standard)

    def outcome_of(self, run: Run) -> Outcome:
        """The outcome of a run."""
        return self.verdict_of(run).outcome

    def outcome_of_good(self, run: Run) -> Outcome:
        """The outcome of a run of the good configuration, whose symptoms are the script's own."""
        return run.judged(self.trials.standard.with_usual(run.shown)).outcome
