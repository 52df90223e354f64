"""The phase after isolation: find values that train, by running them.

What to run is decided by `recommend.remedy` from what has been run; this module runs it, has it judged
(`recommend.isolated`) and records it in the study (`recommend.safe_trials`). Stopping it anywhere and starting it
again, with the same or other margins, seeds and weights, goes on from the recorded runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bisect_cfg.common.configuration import Outcome, Status
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.recommend.attempts import Aim, Attempt, Ran
from bisect_cfg.recommend.isolated import Given, Health, IsolatedScript, Wishes
from bisect_cfg.recommend.isolated_command import IsolatedCommand
from bisect_cfg.recommend.order import left, look
from bisect_cfg.recommend.proposals import ranked
from bisect_cfg.recommend.remedy import MOST_ASKED, Remedy, RemedyStatus
from bisect_cfg.recommend.safe import Safe
from bisect_cfg.recommend.safe_trials import SafeTrials
from bisect_cfg.reports.text import unhealthy
from bisect_cfg.runner.environments import CannotBuild
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.runs import Run
from bisect_cfg.store.store import Void
from bisect_cfg.study.environments import cures_of
from bisect_cfg.study.loop import Action, run_loop
from bisect_cfg.study.study import Study
from bisect_cfg.targets.command import CommandTarget


@dataclass(eq=False)
class _Begun:
    """A run that was begun; `needed` ends when its result cannot change anything any more."""

    number: int
    attempt: Attempt
    needed: bool = True


@dataclass(frozen=True)
class _Result:
    """What came of it; `health` is None where it was not needed any more, `run` where its packages cannot be had."""

    run: Run | None
    health: Health | None = None


class SafeValues:
    """The phase for one script, or command, whose causes are isolated.

    Args:
        study: of this pass.
        isolated: what was isolated.
        trials: of the study, those of this phase.
        given: what is known before the first of them.
    """

    def __init__(self, study: Study, isolated: IsolatedScript, trials: SafeTrials, given: Given) -> None:
        self._study, self._options = study, study.options
        self._isolated, self._trials, self._given = isolated, trials, given
        self.interrupt, self.go_on = study.site.interrupt, study.site.go_on
        self.running: list[_Begun] = []

    def run(self) -> Safe:
        """Run until every remedy is settled, or the budget is spent.

        Raises:
            KeyboardInterrupt: after the running trials were ended and closed.
        """
        run_loop(self, LocalEngine(self.execute, self._options.jobs))
        remedies, attempts = self._look()
        return self._answer(remedies, self._spent(attempts))

    def _runs(self) -> list[Ran]:
        return [*self._given.known, *self._trials.ran()]

    def _spent(self, attempts: Sequence[Attempt]) -> str:
        """Why these are not made, "" if they may be."""
        return self._study.limits.spent(self._study.store.count()) if attempts else ""

    # ------------------------------------------------------------------------------------------- what to run next

    def next_action(self) -> _Begun | Action:
        _, attempts = self._look()
        running = {begun.attempt.key for begun in self.running}
        open_questions = [] if self._spent(attempts) else [one for one in attempts if one.key not in running]
        if not open_questions:
            return Action.WAIT if self.running else Action.DONE
        if len(self.running) >= self._options.jobs:
            return Action.WAIT
        attempt = open_questions[0]
        given, listener = self._given, self._study.listener
        listener.safe_runs_left(left(given.terms, given.proposals, self._runs(), given.budget, self._options.keep))
        number = self._trials.start(attempt, str(self._isolated.prefix(attempt.configuration, attempt.steps)))
        begun = _Begun(number, attempt)
        self.running.append(begun)
        listener.safe_run_started(number, attempt)
        return begun

    def _look(self) -> tuple[list[Remedy], list[Attempt]]:
        """Every remedy as far as it is known, and what is asked next, most wanted first."""
        given, running = self._given, [begun.attempt for begun in self.running]
        remedies, attempts, open_ones = look(
            given.terms, given.proposals, self._runs(), given.budget, self._options.keep, running
        )
        still = {attempt.key for attempt in open_ones}
        for begun in self.running:
            if begun.attempt.aim is Aim.VERIFY and begun.attempt.key not in still:
                begun.needed = False
                self._study.site.end(begun.number)
        return remedies, attempts

    def _answer(self, remedies: Sequence[Remedy], spent: str) -> Safe:
        rank = ranked(remedies, self._options.keep)
        first = self._isolated.seed(0)
        # A million may be wanted; those that ran, or could have been next, are named.
        seeds = min(self._options.verify_seeds, max([MOST_ASKED, *(len(remedy.passed) for remedy in rank)]))
        best = next((remedy for remedy in rank if remedy.status is not RemedyStatus.REJECTED), None)
        prefix = None
        if best is not None:
            wanted = self._isolated.prefix({**self._given.terms.bad, **best.changes}, self._given.terms.verify_steps)
            prefix = replace(wanted, steps=best.steps)
        details = self._trials.details()
        return Safe(
            tuple(rank),
            tuple(self._trials.rows()),
            {number: {**said, "seed": self._isolated.seed(said["seed"])} for number, said in details.items()},
            tuple(first + k for k in range(seeds)),
            prefix,
            spent,
            frozenset(name.removeprefix("args.") for name in self._options.keep),
        )

    # ------------------------------------------------------------------------------------------------- one run

    def execute(self, begun: _Begun) -> _Result:
        """Run it, in whatever thread; nothing is written into the study."""
        configuration, steps = self._isolated.ordered(begun.attempt)
        plan = self._study.trials.whole(Plan(begun.number, configuration, steps, stop=StopRule.UNHEALTHY))
        try:
            run, _ = self._study.site.sure(plan)
        except CannotBuild as error:
            return _Result(None, Health(False, why=str(error).splitlines()[-1]))
        return _Result(run, self._isolated.health_of(run, begun.attempt) if begun.needed else None)

    def record(self, begun: _Begun, result: _Result) -> None:
        run, health, attempt = result.run, result.health, begun.attempt
        if health is None:
            self._trials.store.void(begun.number, Void.NOT_NEEDED)
            self.running.remove(begun)
            return
        seen = None if run is None else run.seen
        values: JsonObject = {
            "seconds": 0.0 if seen is None else round(seen.seconds, 6),
            "step": health.failed_at or (0 if seen is None else seen.steps if seen.counted else None),
            "text": unhealthy(health),
        }
        if run is not None:
            values["attributes"] = {**run.attributes, "horizon": attempt.steps}
        if health.failed_at is not None:
            values["failed_at"] = health.failed_at
        if health.signature is not None:
            values["signature"] = health.signature
        outcome = Outcome.PASS if health.healthy else Outcome.FAIL
        self._trials.finish(begun.number, values, outcome, {} if run is None else run.intermediate)
        self.running.remove(begun)
        made = attempt.steps if seen is None else min(attempt.steps, seen.steps or attempt.steps)
        ended = replace(attempt, steps=made)
        self._study.listener.safe_run_finished(begun.number, ended, health, values["seconds"])

    def close(self, begun: _Begun) -> None:
        self._trials.store.void(begun.number, Void.INTERRUPTED)


def recommend(study: Study) -> None:
    """Look for safe values, where causes are isolated and they are wanted."""
    answer, options, report = study.answer, study.options, study.answer.report
    if not options.recommend or report.status != Status.ISOLATED:
        return
    wishes = Wishes(
        margin=options.margin,
        ratio=options.ratio,
        verify_steps=options.verify_steps,
        verify_seeds=options.verify_seeds,
        remedies=options.remedies,
        keep=options.keep,
        jobs=options.jobs,
        cures=cures_of(study, answer.known and answer.known.entry),
    )
    study.listener.phase("safe values", "looking for safe values")
    kind = IsolatedCommand if isinstance(study.target, CommandTarget) else IsolatedScript

    def folder_of(number: int) -> str:
        return str(answer.details.get(number, {}).get("folder", number))

    isolated = kind(study.trials, report, answer.bad_run, answer.good_run, wishes, folder_of)
    safe = SafeValues(study, isolated, SafeTrials(study.store), isolated.given()).run()
    best = {**study.settings.bad, **safe.best.changes} if safe.best else None
    report = replace(report, rows=(*report.rows, *safe.rows), safe_configuration=best)
    study.find(report=report, safe=safe, details={**answer.details, **safe.details})
