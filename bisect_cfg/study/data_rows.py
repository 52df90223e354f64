"""Rows: which rows of the dataset make a step fail, by exchanging them for rows on which the training was healthy.

The same search as for settings: a row of the failing step is a factor, its other level a row that an earlier step has
taken. All other settings are those of the cause, or the user's own where the good configuration fails as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bisect_cfg.common.configuration import Configuration, Outcome, Purpose, Status, configuration_of, present
from bisect_cfg.common.failures.signature import is_sampling_error
from bisect_cfg.common.words import count
from bisect_cfg.report.data_rows import FoundRows, RowsOfStep, name_of, row_of
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Trials
from bisect_cfg.store.interface import TrialRequest, TrialResult
from bisect_cfg.store.storage import BESIDE
from bisect_cfg.study.bisection import Bisection
from bisect_cfg.study.study import Study

SPACE = "rows"
"""The space that is searched here, and the question of the run that shows which rows the failing step takes."""


LEAD = 4
"""Steps that a trial makes before the failing one, at least: what broke the weights may have come a little before they
showed it, and these steps are compared with the first run's. What fails no later is not suspected to be a row's."""

NO_ROW = ("hang", "non-finite", "signal")
"""Kinds of failures that are not suspected to be a row's by their step alone: most come of the training before."""


UNNAMED = "it decides when a row comes, and the rows of this dataset cannot be put first: they have no names"
"""Why what shuffles the data is not varied where it is a stream, or has a loader of its own."""


def rows_of(run: Run) -> RowsOfStep | None:
    """The rows that the failing step of a run has taken, or the failing batches of an evaluation, in all its processes;
    None if they were not noted."""
    step, failing = (run.shown.step or 0) + run.seen.before, run.evaluating
    evaluated = bool(failing)
    events = [event for one in run.taken for event in one if event.evaluated == evaluated]
    failing = failing or [event for event in events if event.step == step]
    lengths = dict(pair for event in failing for pair in zip(event.rows, event.characters, strict=False))
    if not lengths:
        return None
    before = [event for event in events if event not in failing and (evaluated or event.step < step)]
    healthy = tuple(dict.fromkeys(row for event in before for row in event.rows))
    return RowsOfStep(step, tuple(lengths), tuple(lengths.values()), healthy, failing[-1].total, evaluated)


def _may_be_a_row(study: Study) -> bool:
    """Whether the failure looks like one of a row: the data alone does it, or the longest rows; an evaluation died; a
    step failed of itself after healthy ones."""
    trials, run = study.trials, present(study.answer.bad_run)
    if trials.origin is not None:
        return trials.origin.checkpoint is None
    if trials.longest_first and run.seen.died is not None:
        return True
    if trials.needs_training or run.shown.silent:
        return False
    return bool(run.evaluating) or (_died_late(run) and any(run.taken))


def _died_late(run: Run) -> bool:
    """Whether a step failed of itself after healthy ones."""
    died, step = run.seen.died, run.shown.step_of_training or 0
    return died is not None and died.kind not in NO_ROW and not is_sampling_error(died) and step > LEAD


def may_be_unnamed_row(study: Study) -> bool:
    """Whether the failure looks like one of a row, and nobody can say which rows its step has taken."""
    run = present(study.answer.bad_run)
    unnamed = rows_of(run) is None and (bool(run.evaluating) or not any(run.taken))
    return study.target.probed and unnamed and _died_late(run)


class _ExchangedRows:
    """Runs trials in which some rows are exchanged; a `Runner`.

    Attributes:
        of: the rows that may be at fault; None before that is known.
        lengths: text in each row that a run has taken.
        trained: rows with which a run has trained.
    """

    def __init__(self, trials: Trials, configuration: Configuration) -> None:
        self._trials, self._configuration = trials, configuration
        self.of: RowsOfStep | None = None
        self.lengths: dict[int, int | None] = {}
        self.trained: set[int] = set()
        self.judged = trials.judged
        self._of_others: dict[str, bool] = {}  # folder of a run that failed -> whether rows did it that are not `of`

    def run(self, request: TrialRequest) -> TrialResult:
        """Train with the rows that a configuration names: row -> row in its place."""
        exchanged = {row_of(name): row for name, row in request.configuration.items() if isinstance(row, int)}
        plan = self.plan(f"{SPACE}-{request.number}", exchanged)
        run = self._trials.train(plan)
        result = self.judged(run)
        self.see(run, rows_of(run) if result.outcome is Outcome.FAIL else None, frozenset(plan.exchanged or ()))
        return result

    def classify(self, result: TrialResult, mask: int = 0, reference: TrialResult | None = None) -> Outcome:
        """What a recorded result means. What fails after it has come through all that may be at fault fails of other
        rows: with these it passes."""
        outcome = self._trials.classify(result)
        folder = result.attributes.get("folder")
        if outcome is not Outcome.FAIL or folder is None:
            return outcome
        if folder not in self._of_others:
            run = self._trials.site.load(folder)
            self._of_others[folder] = run is not None and self._came_through(rows_of(run))
        return Outcome.PASS if self._of_others[folder] else outcome

    @property
    def elsewhere(self) -> bool:
        """Whether a run failed where it takes none of the rows: others do it there."""
        return any(self._of_others.values())

    def _came_through(self, at: RowsOfStep | None) -> bool:
        if at is None or self.of is None or at.evaluated != self.of.evaluated:
            return False
        return {*self.of.rows} <= {*at.healthy} - {*at.rows}

    def see(self, run: Run, at: RowsOfStep | None, exchanged: frozenset[int] = frozenset()) -> None:
        """Take in how long the rows are that a run has taken, up to those at which it failed; of those that were
        exchanged it has taken others."""
        events = [event for one in run.taken for event in one if event.evaluated == present(self.of).evaluated]
        self.lengths.update(pair for event in events for pair in zip(event.rows, event.characters, strict=False))
        last = run.seen.before + run.seen.steps
        healthy = at.healthy if at is not None else [row for one in events if one.step <= last for row in one.rows]
        self.trained.update({*healthy} - exchanged)

    def plan(self, name: str, exchanged: Mapping[int, int]) -> Plan:
        """A run with some rows exchanged."""
        wanted = {row: other for row, other in exchanged.items() if row != other}
        return Plan(name, self._configuration, self._trials.horizon, purpose=Purpose.CHECK, exchanged=wanted)

    def is_valid(self, configuration: Configuration) -> str | None:
        """Any row may be exchanged."""
        return None


def find_rows(study: Study) -> None:
    """Find the rows of the dataset that make the failing step fail, if that is asked for or looks like it.

    Trials begin where they did before. Where the good configuration fails, too, all settings are the user's.
    """
    report, settings = study.answer.report, study.settings
    asked = study.options.isolate_data
    if may_be_unnamed_row(study):
        study.note(
            "A row of the dataset may take part, which cannot be named: the dataset is a stream, or has a loader of "
            "its own, or is one of several. What shuffles it was not varied: it would only move the failure."
        )
        return
    if not (asked or _may_be_a_row(study)) or (report is not None and not report.causes):
        return
    named, configuration = None, settings.bad
    if report is not None and report.causes[0].evidence.fails.subset is not None:
        named = tuple(sorted(report.causes[0].evidence.fails.subset))
        configuration = configuration_of(named, settings.good, settings.bad)
    study.listener.phase(SPACE, "seeing which rows of the dataset the failing step takes")
    rows = _ExchangedRows(study.trials, configuration)
    run = study.made(rows.plan(SPACE, {}), limited=False)
    if study.outcome_of(run) is not Outcome.FAIL:
        study.note("It was run once more to record its rows and did not fail, so no row was looked for.")
        return
    at = rows_of(run)
    of = rows.of = _at_fault(at, rows_of(present(study.trials.failed)))
    others = [] if of is None else of.others()
    if of is not None and others:
        rows.see(run, at)
        study.listener.phase(SPACE, f"which of the {count(len(of.rows), 'row')} of {of.place} make it fail")
        found = _searched(study, rows, run, of, others, named)
        if asked or found.guilty or study.trials.origin is not None:
            study.find(rows=found)
    elif asked and of is None:
        study.note("Which rows of the dataset a step takes cannot be told here.")
    elif asked and of is not None:
        study.note(f"Step {of.step} takes every row of the dataset: there is none to put in the place of another.")


def _at_fault(of: RowsOfStep | None, by_user: RowsOfStep | None) -> RowsOfStep | None:
    """The rows that may be at fault: those of the step at which the user's run failed, of which a trial may take only
    some at the step at which it fails."""
    if of is None or by_user is None or of.evaluated != by_user.evaluated or not {*of.rows} < {*by_user.rows}:
        return of
    lengths = dict(zip(of.rows, of.characters, strict=True))
    characters = tuple(map(lengths.get, by_user.rows))
    healthy = tuple(row for row in of.healthy if row not in by_user.rows) or by_user.healthy
    return replace(by_user, characters=characters, healthy=healthy, failing=of.rows)


def _searched(
    study: Study, rows: _ExchangedRows, run: Run, of: RowsOfStep, others: Sequence[int], named: tuple[str, ...] | None
) -> FoundRows:
    """What the search over them finds."""
    exchanged = dict(zip(of.rows, others, strict=True))
    bisection = Bisection(
        {name_of(row): other for row, other in exchanged.items()},
        {name_of(row): row for row in of.rows},
        rows,
        storage=study.store.storage,
        study_name=f"{study.store.study.study_name}{BESIDE}rows of {of.place}",
        identity={"settings": None if named is None else list(named)},
        prior=of.odds(),
        confidence=study.options.confidence,
        limits=study.limits,
    )
    bisection.add({name_of(row): row for row in of.rows}, rows.judged(run), Purpose.BAD_BASELINE)
    report = bisection.search()
    trained = max((rows.lengths.get(row) or 0 for row in rows.trained), default=0)
    of = replace(of, characters=tuple(map(rows.lengths.get, of.rows)), trained_characters=trained)
    found = FoundRows(of, (), exchanged, named, len(report.rows), report.complete and not rows.elsewhere)
    note = ""
    if report.status == Status.BASELINE_FAILS:
        note = f"With other rows in place of those of {of.place} it fails as well: it is none of those rows."
    elif not report.causes:
        note = f"No row of {of.place} could be proven to be at fault.{of.longest()}"
    if note:
        return replace(found, others=None, note=note)
    guilty = tuple(tuple(sorted(map(row_of, cause.parameters))) for cause in report.causes)
    kept = {row: exchanged[row] for rows_of_cause in guilty for row in rows_of_cause}
    return replace(found, guilty=guilty, others=kept)
