"""The phase after isolation: find values that train, by running them.

What to run is decided by `remedy.order` from what has been run; this module makes the runs, has them judged
(`remedy.terms`) and records them. Stopping it anywhere and starting it again, with the same or other margins, seeds and
weights, goes on from the recorded runs.

The runs are trials of the study like those of the search, which never takes them for its own as they carry no "subset".
What was asked is in the attribute `SAFE`. The run that completes what is recommended is Optuna's best trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optuna.trial import FrozenTrial

from bisect_cfg.common.configuration import Outcome, Purpose, Status, present
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import mask
from bisect_cfg.remedy.order import Look, left, look
from bisect_cfg.remedy.proposals import Safe, ranked
from bisect_cfg.remedy.remedy import MOST_ASKED, Aim, Attempt, Ran, RemedyStatus, Wishes
from bisect_cfg.remedy.terms import Health, Isolated
from bisect_cfg.report.sentences import unhealthy
from bisect_cfg.runner.environments import CannotBuild
from bisect_cfg.runner.plan import Plan, Result, StopRule
from bisect_cfg.runner.verdict import INVALID
from bisect_cfg.store.encoding import SAFE, plain, result_attributes, result_of
from bisect_cfg.store.interface import TrialResult
from bisect_cfg.store.rows import row_of
from bisect_cfg.store.store import Store, Void
from bisect_cfg.study.environments import cures_of
from bisect_cfg.study.loop import Action, run_loop
from bisect_cfg.study.study import Study

FAILED_AT = "failed_at"
"""Attribute of a run: the step at which it was certain not to be healthy."""


def recommend(study: Study) -> None:
    """Look for safe values, where causes are isolated and they are wanted."""
    answer, options, report = study.answer, study.options, present(study.answer.report)
    if not options.recommend or report.status != Status.ISOLATED:
        return
    wishes = Wishes(
        options.margin, options.verify_steps, options.verify_seeds, options.remedies, options.keep,
        study.trials.engine.slots,
    )  # fmt: skip
    cures = cures_of(study, None if answer.known is None else answer.known.entry)
    study.listener.phase("safe values", "looking for safe values")
    isolated = Isolated(study.trials, report, present(answer.bad_run), present(answer.good_run), wishes, cures)
    work = _Work(study, isolated)
    run_loop(work, study.trials.engine)
    safe = work.answer()
    best = {**study.settings.bad, **safe.best.changes} if safe.best else None
    report = replace(report, rows=(*report.rows, *safe.rows), safe_configuration=best)
    study.find(report=report, safe=safe, details={**answer.details, **safe.details})


def begin(store: Store, attempt: Attempt, mode: str) -> int:
    """Write a run before it starts, and how it meets the full learning rate, for people; its number."""
    asked = {
        "configuration": {name: mask(value, name) for name, value in attempt.configuration.items()},
        "seed": attempt.seed,
        "steps": attempt.steps,
        "mode": mode,
    }
    purpose = {"purpose": Purpose.RECOMMEND.value, "run": attempt.aim.value, "reason": attempt.reason}
    return store.begin(store.params(attempt.configuration), {SAFE: plain(asked), **purpose}).number


def finished(store: Store) -> list[FrozenTrial]:
    """The trials of this phase that have ended."""
    return [trial for trial in store.trials(SAFE) if trial.state.is_finished()]


def ran(trial: FrozenTrial, store: Store) -> Ran:
    """What a finished trial says."""
    asked, result = trial.user_attrs[SAFE], result_of(trial)
    seen = result.attributes.get("observation", {})
    configuration = dict(asked["configuration"])
    for factor in store.factors:  # secrets, which stand in no study, are as the factors have them
        for level in (factor.good, factor.bad):
            shown = mask(level, factor.name)
            if shown != level and configuration.get(factor.name) == shown:
                configuration[factor.name] = level
    return Ran(
        configuration,
        asked["seed"],
        asked["steps"],
        result.outcome is Outcome.PASS,
        trial.number,
        trial.user_attrs.get(FAILED_AT),
        result.message,
        result.seconds,
        result.signature if seen.get("died") and result.signature != INVALID else None,
        seen.get("steps"),
    )


@dataclass(eq=False)
class _Begun:
    """A run that was begun; `needed` ends when its result cannot change anything any more."""

    number: int
    attempt: Attempt
    needed: bool = True


class _Work:
    """What the loop works off: run until every remedy is settled, or the budget is spent."""

    def __init__(self, study: Study, isolated: Isolated) -> None:
        self._study, self._options, self._store = study, study.options, study.store
        self._isolated, self._terms = isolated, isolated.terms()
        self.running: list[_Begun] = []

    def _runs(self) -> list[Ran]:
        return [ran(trial, self._store) for trial in finished(self._store)]

    def next_action(self) -> _Begun | Action:
        found = self._look()
        if not found.wanted or self._spent(found):
            return Action.WAIT if self.running else Action.DONE
        if len(self.running) >= self._study.trials.engine.slots:
            return Action.WAIT
        attempt, listener = found.wanted[0], self._study.listener
        listener.safe_runs_left(left(self._terms, self._runs()))
        mode = str(self._isolated.prefix(attempt.configuration, attempt.steps))
        begun = _Begun(begin(self._store, attempt, mode), attempt)
        self.running.append(begun)
        listener.safe_run_started(begun.number, attempt)
        return begun

    def _look(self) -> Look:
        """How things stand; a run that can change nothing any more is ended."""
        found = look(self._terms, self._runs(), [begun.attempt for begun in self.running])
        still = {attempt.key for attempt in found.open}
        for begun in self.running:
            if begun.attempt.aim is Aim.VERIFY and begun.attempt.key not in still:
                begun.needed = False
                self._study.trials.engine.end(begun.number)
        return found

    def _spent(self, found: Look) -> str:
        """Why what is wanted is not run, "" if it may be."""
        return self._study.limits.spent(self._store.count()) if found.wanted else ""

    def asked(self, begun: _Begun) -> Plan:
        configuration, steps = self._isolated.ordered(begun.attempt)
        return self._study.trials.whole(Plan(begun.number, configuration, steps, stop=StopRule.UNHEALTHY, sure=True))

    def record(self, begun: _Begun, result: Result) -> None:
        attempt, steps, run = begun.attempt, begun.attempt.steps, None
        if not begun.needed:
            self._store.void(begun.number, Void.NOT_NEEDED)
            self.running.remove(begun)
            return
        try:
            run = self._study.trials.run_of(result)
            health = self._isolated.health_of(run, attempt)
        except CannotBuild as error:
            health = Health(False, why=str(error).splitlines()[-1])
        outcome = Outcome.PASS if health.healthy else Outcome.FAIL
        told = TrialResult(outcome, health.signature, unhealthy(health), step=health.failed_at)
        if run is not None:
            step = health.failed_at or (run.seen.steps if run.seen.counted else None)
            attributes = {**run.attributes, "horizon": steps}
            told = replace(told, seconds=run.seen.seconds, step=step, attributes=attributes)
            steps = min(steps, run.seen.steps or steps)
        values = result_attributes(told, outcome)
        if health.failed_at is not None:
            values[FAILED_AT] = health.failed_at
        self._store.finish(begun.number, values, outcome, None if run is None else run.intermediate)
        self.running.remove(begun)
        self._study.listener.safe_run_finished(begun.number, replace(attempt, steps=steps), health, told.seconds)

    def close(self, begun: _Begun) -> None:
        self._store.void(begun.number, Void.INTERRUPTED)

    def answer(self) -> Safe:
        """What came out."""
        found, isolated, options, store = self._look(), self._isolated, self._options, self._store
        rank = ranked(found.remedies, options.keep)
        # A million seeds may be wanted; those that ran, or could have been next, are named.
        seeds = min(options.verify_seeds, max([MOST_ASKED, *(len(remedy.passed) for remedy in rank)]))
        best = next((remedy for remedy in rank if remedy.status is not RemedyStatus.REJECTED), None)
        prefix = None
        if best is not None:
            terms = self._terms
            wanted = isolated.prefix({**terms.bad, **best.changes}, terms.verify_steps)
            prefix = replace(wanted, steps=best.steps)
        return Safe(
            tuple(rank),
            tuple(row_of(trial, store.levels) for trial in finished(store)),
            {trial.number: self._details(trial) for trial in finished(store)},
            tuple(isolated.seed(number) for number in range(seeds)),
            prefix,
            self._spent(found),
            frozenset(name.removeprefix("args.") for name in options.keep),
        )

    def _details(self, trial: FrozenTrial) -> JsonObject:
        """What else is worth keeping of a run: what it set beside the factors, and its seed."""
        asked = trial.user_attrs[SAFE]
        extra = {name: value for name, value in asked["configuration"].items() if name not in self._store.levels}
        attributes = trial.user_attrs.get("attributes") or {}
        return {**attributes, "extra": extra, "seed": self._isolated.seed(asked["seed"])}
