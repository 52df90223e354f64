"""Isolate: the search over a script's settings, in the study's store."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import replace

import optuna
from sqlalchemy.exc import SQLAlchemyError

from bisect_cfg.capture.names import convert
from bisect_cfg.capture.settings import Settings
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.configuration import Purpose, Status
from bisect_cfg.crash import refused_by_machine
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import JsonObject, digest
from bisect_cfg.parameters.odds import odds_of
from bisect_cfg.phases.bisection import Bisection
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.known import known_failure
from bisect_cfg.probe.protocol import Raised
from bisect_cfg.recommend.proposals import weight
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.study.basis import identity_of, save_basis
from bisect_cfg.study.encoding import SUBSET, result_of
from bisect_cfg.study.storage import cannot_open, open_storage, sqlite_storage, study_name
from bisect_cfg.study.store import StudyMismatch
from bisect_cfg.trials.runs import Run, purpose_again

ANEW = "Start over with --restart (the old study is kept beside it), or name another folder with --study."

FRAMES_READ = 3
"""So many of the innermost frames of a traceback have their lines read for names of settings."""


def isolate(context: Context, answer: Answer, again: Sequence[Run]) -> tuple[Bisection, Answer]:
    """Search until the causes are known and complete, or the budget is spent.

    Args:
        context: of this pass; its runner knows the factors, the start and the failure.
        answer: with the two baselines.
        again: further runs of the bad configuration that count.

    Returns:
        The bisection, for what other phases add to its study, and the answer with what it reports.

    Raises:
        InputError: the storage cannot be opened, or holds something else.
    """
    context.listener.phase("isolate", "")
    bisection = opened(context, answer.bad_run, again, answer.good_run)
    context.listener.isolating(context.runner.settings, bisection.progress)
    report = bisection.search()
    known = known_failure(answer.bad_run, context.runner.settings, report.causes, context.environment)
    return bisection, replace(
        answer, status=Status(report.status), report=report, details=bisection.details(), known=known
    )


def opened(context: Context, bad_run: Run, again: Sequence[Run], good_run: Run) -> Bisection:
    """The bisection with all that was run before it, and what its trials have shown; see `isolate`."""
    runner, settings = context.runner, context.runner.settings
    bisection = _bisection(context, bad_run)
    bisection.store.since = max((one["trials"] for one in context.basis.get("given_up", ())), default=0)
    bisection.add(settings.bad, runner.judged(bad_run, None), Purpose.BAD_BASELINE)
    for run in again:
        bisection.add(settings.bad, runner.judged(run, runner.horizon), purpose_again(run.start), run.folder.name)
    bisection.add(settings.good, runner.judged(good_run, runner.horizon), Purpose.GOOD_BASELINE)
    runner.recall(result_of(trial) for trial in bisection.store.trials(SUBSET) if trial.state.is_finished())
    return bisection


def ask(context: Context, bad_run: Run, again: Sequence[Run], good_run: Run) -> JsonObject:
    """Run what a reader asks for, in a study whose two ends are known.

    Args:
        context: of this pass; knows what is asked for.
        bad_run: the reproduction.
        again: further runs of the bad configuration that count.
        good_run: the good baseline.

    Returns:
        Its row in the form of result.json.
    """
    settings = context.runner.settings
    types = settings.capture.args.types if isinstance(settings, Settings) else {}
    wanted = context.wanted
    if isinstance(wanted, Mapping):
        wanted = {name: convert(name, value, types.get(name, ""))[0] for name, value in wanted.items()}
    bisection = opened(context, bad_run, again, good_run)
    number = bisection.ask(wanted, types)
    return next(row for row in bisection.rows() if row["number"] == number)


def _bisection(context: Context, bad_run: Run) -> Bisection:
    options, settings, failure = context.options, context.runner.settings, bad_run.shown.signature
    odds = odds_of(list(settings.bad), options.prior, failure.kind, _said_of(bad_run))
    try:
        storage, name, identity = _study_in_storage(context, failure)
        return Bisection(
            settings.good,
            settings.bad,
            context.runner,
            storage=storage,
            study_name=name,
            identity=identity,
            jobs=options.jobs,
            first=options.first,
            confidence=options.confidence,
            prior=dict(zip(settings.bad, odds, strict=True)) if odds else options.prior,
            confirm=options.confirm,
            loss={name: weight(name, options.keep) for name in settings.bad},
            work=settings.work_of_each(),
            on_event=context.listener.event,
            limits=context.limits,
        )
    except StudyMismatch as error:
        raise InputError(str(error), ANEW) from None
    except (SQLAlchemyError, ImportError) as error:
        if refused_by_machine(error):
            raise
        if options.storage:
            raise cannot_open(options.storage, error) from None
        raise cannot_open(context.folder / "study.db", error, ANEW) from None


def _said_of(run: Run) -> str:
    """What a failing run said about itself: its message, and the lines of code that the exception left."""
    exception = run.failing[1].event(Raised) or Raised("", "", [])
    lines = [linecache.getline(path, line) for path, line, _ in exception.frames[-FRAMES_READ:]]
    return "\n".join([run.seen.message, exception.message, *lines])


def _study_in_storage(
    context: Context, failure: Signature
) -> tuple[optuna.storages.BaseStorage, str, dict[str, object]]:
    """The storage, the study's name there, and what tells it from the others."""
    address, basis = context.options.storage, context.basis
    factors = {factor.name: [factor.good, factor.bad] for factor in context.runner.settings.factors}
    identity = identity_of(basis, str(failure), factors)
    if not address:
        return sqlite_storage(context.folder / "study.db"), context.script.name, identity
    storage, names = open_storage(address), basis.setdefault("studies", {})
    if digest(address) not in names:
        names[digest(address)] = study_name(storage, context.script.name, identity, basis.get("anew", False))
        save_basis(context.folder, basis)
    return storage, names[digest(address)], identity
