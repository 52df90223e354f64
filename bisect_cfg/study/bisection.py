"""`Bisection`: ask, run, record, until nothing is left to ask.

The search decides (`bisect_cfg.search`), a `Runner` runs, the store remembers (`bisect_cfg.store`); this module passes
the word between them. At every step the question is recomputed from the store, so that stopping and starting again,
here or elsewhere, changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack

import optuna

from bisect_cfg.common.configuration import (
    RECORDED,
    UNSET,
    Configuration,
    Factor,
    Outcome,
    Purpose,
    Status,
    check_value,
    configuration_of,
    difference,
    equal,
    shown,
)
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.common.parameters import odds_of
from bisect_cfg.common.words import count
from bisect_cfg.kinds import is_runner
from bisect_cfg.options import OF_BISECTIONS, BisectionOptions, check_named, checked, with_options
from bisect_cfg.report.events import BisectionEvent, Concluded, Progress, Resumed
from bisect_cfg.runner.function import UNUSABLE, FunctionRunner, TrialFunction, identity_of, result_of_answer
from bisect_cfg.search import Ask, Conclusion, Problem, Record, look
from bisect_cfg.search.problem import bits
from bisect_cfg.store.causes import Levels, Report, Trial
from bisect_cfg.store.encoding import SUBSET, WANTED
from bisect_cfg.store.interface import Runner, TrialResult
from bisect_cfg.store.rows import rows_of
from bisect_cfg.store.sampler import BisectionSampler, Classify, SearchTrials
from bisect_cfg.store.store import Store
from bisect_cfg.study.ask import REASON, asked_run, check_valid
from bisect_cfg.study.isolation import Isolation
from bisect_cfg.study.loop import Limits
from bisect_cfg.targets.captured import NOTHING_SEEN
from bisect_cfg.targets.factors import Factor as Varied
from bisect_cfg.targets.factors import Factors

if TYPE_CHECKING:
    from bisect_cfg.report.events import Wanted
    from bisect_cfg.report.notebook import StudyReport
    from bisect_cfg.report.notebook_view import NotebookView


class Bisection:
    """Find which of the settings that differ between two configurations make a run fail.

    Example:
        ```python
        report = Bisection(
            good={"bf16": False, "lr": 1e-6}, bad={"bf16": True, "lr": 1e-3}, trial=lambda c: not c["bf16"]
        ).run()
        report.causes[0].parameters  # ("bf16",)
        ```

    Args:
        good: the configuration that works, dotted name -> value.
        bad: the one that fails. Its order is the user's order of the factors.
        trial: ``trial(configuration)`` returns an `Outcome`, True (pass), False (fail), None (unresolved) or a
            `TrialResult`; an exception is a failure with that signature. Or a `Runner`.
        is_valid: ``is_valid(configuration)`` returns whether it can be built (or why not, as text); costs nothing, is
            asked often. What it raises comes up to the caller.
        isolation: "process" runs the function in a forked child, "none" in place. Not used with a `Runner`.
        storage: an Optuna storage or URL (``sqlite:///study.db``); None keeps the study in memory.
        study_name: name of the study in the storage.
        seed: reserved for decisions at random; there are none, equal records give equal questions.
        max_trials: stop after this many runs, with what is known by then.
        jobs: trials to run at once.
        **options: listed below.

    Raises:
        TypeError: an argument is none of the kind that it should be.
        ValueError: an unknown prior or isolation, or a number out of its range.
        StudyMismatch: the storage holds a study of that name for other configurations, or of another identity.
    """

    def __init__(
        self,
        good: Configuration,
        bad: Configuration,
        trial: TrialFunction | Runner,
        is_valid: TrialFunction | None = None,
        isolation: str = "process",
        storage: str | optuna.storages.BaseStorage | Store | None = None,
        study_name: str | None = None,
        seed: int = 0,
        max_trials: int | None = None,
        jobs: int = 1,
        **options: Unpack[BisectionOptions],
    ) -> None:
        check_named(
            good=good, bad=bad, trial=trial, is_valid=is_valid, isolation=isolation, storage=storage,
            study_name=study_name, max_trials=max_trials, jobs=jobs,
        )  # fmt: skip
        given = SimpleNamespace(**checked(OF_BISECTIONS, options, "Bisection"))
        self.good, self.bad, self.seed = dict(good), dict(bad), seed
        for side, configuration in (("good", self.good), ("bad", self.bad)):
            for name, value in configuration.items():
                check_value(f"{name} in {side}", value)
        self.factors = difference(self.good, self.bad)
        taken = sorted(RECORDED.intersection(factor.name for factor in self.factors))
        if taken:
            raise ValueError(f"{taken[0]} is a column of the table of trials: call the setting something else")
        how = (is_valid, isolation, given.timeout, given.deterministic)
        function: Any = trial  # unless it is a runner
        runner: Runner = trial if is_runner(trial) else FunctionRunner(function, *how)
        self._runner = runner
        names = tuple(factor.name for factor in self.factors)

        @functools.cache
        def why_not(mask: int) -> str | None:
            return runner.is_valid(configuration_of([names[i] for i in bits(mask)], self.good, self.bad))

        self._why_not = why_not
        loss, work = given.loss or {}, given.work or {}
        problem = Problem(
            names, lambda mask: why_not(mask) is None, odds_of(names, given.prior), first=given.first,
            confidence=given.confidence,
            confirm=given.confirm, jobs=int(jobs), loss=tuple(float(loss.get(name, 1.0)) for name in names),
            work=tuple(math.log(work.get(name, 1.0)) for name in names) if work else (),
        )  # fmt: skip
        identity = identity_of(function) if given.identity is None and not is_runner(trial) else given.identity
        self._store = _opened(storage, study_name, self.factors, identity)
        self.recorded = SearchTrials(
            self._store, problem, getattr(runner, "classify", None) or _verdict(given.is_failure)
        )
        self._store.study.sampler = BisectionSampler(self.recorded)
        self._on_event = given.on_event
        self._view: NotebookView | None = None
        self._progress = given.on_event is None if given.progress is None else given.progress
        self._isolation = Isolation(self.recorded, runner, self.good, self.bad, self._tell)
        self._max_trials, self._max_seconds, self._limits = max_trials, given.max_seconds, given.limits

    @property
    def study(self) -> optuna.Study:
        """The Optuna study behind it."""
        return self._store.study

    def run(self) -> StudyReport:
        """Run trials until the answer stands, or the budget is spent.

        Returns:
            The report, with its plots; `StudyReport.ask` runs one more trial. Calling it again on a finished study
            returns it without any trial.

        Raises:
            KeyboardInterrupt: after the running trials were ended and recorded as interrupted.
            TypeError: the trial function returned something that says neither pass nor fail; that run does not count.
            Exception: whatever `is_valid` raised.
        """
        from bisect_cfg.report.answer import plain
        from bisect_cfg.report.answer_of import answer_of_report
        from bisect_cfg.report.notebook import of_function

        with self._shown():
            report = self.search()
        self.recorded.show(report.safe_configuration if report.causes else None)
        answer = answer_of_report(report)
        self._store.conclude(plain(answer))
        return of_function(answer, self.rows, self.ask)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """With what goes on shown, in a notebook."""
        from bisect_cfg.report.notebook_view import NotebookView, in_notebook

        if not (self._progress and in_notebook()):
            yield
            return
        with NotebookView(ticks=False) as view:
            varied = tuple(Varied(one.name, "script", one.good, one.bad, None) for one in self.factors)
            view.isolating(Factors(NOTHING_SEEN, varied), self.progress)
            self._view = view
            try:
                yield
            finally:
                self._view = None

    def _tell(self, event: BisectionEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
        if self._view is not None:
            self._view.event(event)

    def search(self) -> Report:
        """As `run`, with the report as plain data."""
        runner = self._runner
        apart = runner.standing(self.good, self.bad) if isinstance(runner, FunctionRunner) else contextlib.nullcontext()
        with self._store.alive(), apart:
            lost = sum(SUBSET in one.user_attrs or WANTED in one.user_attrs for one in self._store.lost)
            known = len(self.recorded.records())
            if known or lost:
                self._tell(Resumed(known, lost))
            conclusion = self._refused_side() or self._isolation.run(self._from_now())
        report = self.recorded.report(conclusion, self.good, self.bad, self._isolation.stopped)
        self._tell(Concluded(report))
        return report

    def ask(self, wanted: Wanted, others: Iterable[str] = ()) -> int:
        """Run one more trial, of somebody's own choice, and record it; the number of the trial.

        Args:
            wanted: names of the settings that are bad, all others good; or values in place of those of the bad
                configuration.
            others: names that may be given a value although they are in neither configuration.

        Raises:
            InputError: a name that is not known, or a configuration that is not valid.
            KeyboardInterrupt: after the trial was ended and recorded as interrupted.
        """
        asked = asked_run(wanted, self.factors, self.good, self.bad, others)
        check_valid(asked, self._runner.is_valid(asked.configuration))
        trials = self.recorded
        with self._store.alive():
            if asked.subset is None:
                trial = trials.begin_wanted(asked.changes, REASON)
            else:
                trial = trials.begin(Ask(trials.mask_of(asked.subset), 0, Purpose.ASKED, REASON))
            self._isolation.run_alone(trial, asked.configuration, asked.subset or frozenset())
        return trial.number

    def add(self, configuration: Configuration, result: object, purpose: str) -> None:
        """Record a trial that was run before the bisection started; it counts. Repeating the call does nothing.

        Args:
            configuration: what was run; each factor must have its good or its bad value.
            result: what came out: whatever `trial` may return.
            purpose: a `Purpose`, or its value: "bad baseline".

        Raises:
            TypeError: the result is nothing that `trial` may return.
            ValueError: a factor has neither of its values, or there is no such purpose.
        """
        came = result_of_answer(result)
        if came.signature == UNUSABLE:
            raise TypeError(came.message)
        mask = 0
        for index, factor in enumerate(self.factors):
            value = configuration.get(factor.name, UNSET)
            if equal(value, factor.bad):
                mask |= 1 << index
            elif not equal(value, factor.good):
                raise ValueError(f"{factor.name}={shown(value)} is neither the good nor the bad value")
        self.recorded.add(Ask(mask, 0, Purpose(purpose)), came)

    def details(self) -> dict[int, JsonObject]:
        """By trial number, what the runner kept of it, and the suspicion of each factor when it was asked."""
        every = {trial.number: trial.user_attrs for trial in self.study.get_trials(deepcopy=False)}
        asked = {n: {"suspicion": known["suspicion"]} for n, known in every.items() if "suspicion" in known}
        return {n: {**known.get("attributes", {}), **asked.get(n, {})} for n, known in every.items()}

    def progress(self) -> Progress:
        """A snapshot for a live view; cheap enough to take after every event."""
        records = self.recorded.records()
        state = look(self.recorded.problem, records)
        finished = [r for r in records if r.outcome is not None]
        names = self.recorded.problem.names
        return Progress(
            len(finished),
            tuple(begun.request for begun in list(self._isolation.running)),
            len(self.factors),
            tuple(names[i] for i in bits(state.ruled_out)),
            tuple(names[i] for i in bits(state.suspected)),
            tuple(map(self.recorded.cause, state.causes)),
            state.remaining,
            _seconds(finished),
            dict(zip(names, state.suspicion, strict=False)),  # () where nothing is weighed
            tuple((frozenset(self.recorded.names(r.subset)), r.outcome) for r in finished if r.outcome is not None),
            self.recorded.problem.jobs,
        )

    def _repr_html_(self) -> str:
        """The notebook's view: the settings that differ, and how far it is."""
        from bisect_cfg.report.notebook import factor_frame

        progress = self.progress()
        levels = {name: Levels(good, bad) for name, (good, bad) in self._store.levels.items()}
        guilty = frozenset(name for cause in progress.causes for name in cause.parameters)
        done = count(progress.trials, "trial")
        told = f"{count(len(levels), 'setting')} that differ, {done} done"
        frame = factor_frame(levels, guilty, progress.suspicion, settled=False)
        return f"<p>{told}</p>{frame.to_html(index=False)}"

    def rows(self) -> list[Trial]:
        """The trials, those that are running as well."""
        return rows_of(self._store.study.get_trials(deepcopy=False), self._store.levels)

    def _from_now(self) -> Limits:
        """The limits of a run that begins now."""
        deadline = None if self._max_seconds is None else time.monotonic() + self._max_seconds
        return self._limits or Limits(self._max_trials, deadline)

    def _refused_side(self) -> Conclusion | None:
        """The answer where one of the two configurations is not valid and was not run; None if both are."""
        seen = {record.subset for record in self.recorded.records()}
        full = self.recorded.problem.full
        for side, mask, status in (("good", 0, Status.BASELINE_FAILS), ("bad", full, Status.INCONCLUSIVE)):
            reason = self._why_not(mask) if mask not in seen and self.factors else None
            if reason is not None:
                return Conclusion(status, notes=(f"The {side} configuration is not valid: {reason}.",))
        return None


with_options(Bisection, OF_BISECTIONS)


def _opened(
    storage: str | optuna.storages.BaseStorage | Store | None,
    name: str | None,
    factors: Sequence[Factor],
    identity: JsonObject | None,
) -> Store:
    """The store of a bisection: a new one, or that of a study which holds runs already."""
    if not isinstance(storage, Store):
        return Store(factors, storage, name, identity)
    storage.vary(factors)
    storage.settle(identity or {})
    return storage


def _verdict(is_failure: Callable[[TrialResult], bool] | None) -> Classify:
    """What a bisection says of a result; None while the failure under study is not known yet."""

    def classify(result: TrialResult, mask: int, reference: TrialResult | None) -> Outcome | None:
        if result.outcome is not Outcome.FAIL:
            return result.outcome
        if mask == 0:  # whatever makes the good configuration fail, it is no baseline
            return Outcome.FAIL
        if is_failure is not None:
            return Outcome.FAIL if is_failure(result) else Outcome.UNRESOLVED
        if reference is None:
            return None
        return Outcome.FAIL if result.signature == reference.signature else Outcome.UNRESOLVED

    return classify


def _seconds(finished: Sequence[Record]) -> tuple[float, float]:
    """How long a trial takes that fails and one that passes, by their medians, the shorter first: the first one of all
    started cold and took longer than those to come."""
    kinds = ([r.seconds for r in finished if r.outcome is outcome] for outcome in (Outcome.FAIL, Outcome.PASS))
    medians = sorted(statistics.median(kind) for kind in kinds if kind)
    return (medians[0], medians[-1]) if medians else (0.0, 0.0)
