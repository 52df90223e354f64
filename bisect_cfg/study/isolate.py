"""Isolate: the search over the settings, in the study's store."""

from __future__ import annotations

import linecache
from collections.abc import Mapping

from bisect_cfg.common.configuration import Status, present
from bisect_cfg.common.parameters import odds_of
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import Raised
from bisect_cfg.remedy.proposals import weight
from bisect_cfg.runner.runs import Run
from bisect_cfg.store.causes import Trial
from bisect_cfg.store.encoding import result_of
from bisect_cfg.store.folder import ANEW
from bisect_cfg.store.store import StudyMismatch
from bisect_cfg.study.bisection import Bisection
from bisect_cfg.study.known_failure import known_failure
from bisect_cfg.study.study import Study
from bisect_cfg.targets.good import check_type

FRAMES_READ = 3
"""So many of the innermost frames of a traceback have their lines read for names of settings."""


def isolate(study: Study) -> None:
    """Search until the causes are known and complete, or the budget is spent."""
    study.listener.phase("isolate", "")
    bisection = study.bisection = _bisection(study)
    study.listener.isolating(study.settings, bisection.progress)
    report = bisection.search()
    known = known_failure(present(study.answer.bad_run), study.settings, report.causes, study.environment)
    study.find(status=Status(report.status), report=report, details=bisection.details(), known=known)


def ask(study: Study) -> Trial:
    """Run what a reader asks for, in a study whose two ends are known."""
    settings, wanted = study.settings, present(study.wanted)
    types = settings.capture.args.types
    if isinstance(wanted, Mapping):
        for name, value in wanted.items():
            check_type(name, value, types.get(name, ""))
    bisection = _bisection(study)
    number = bisection.ask(wanted, types)
    return next(trial for trial in bisection.rows() if trial.number == number)


def _bisection(study: Study) -> Bisection:
    """The bisection of the settings, with all that was run before it, and what its trials have shown."""
    options, settings, bad_run = study.options, study.settings, present(study.answer.bad_run)
    failure = present(bad_run.shown.signature)
    odds = odds_of(list(settings.bad), "risk", failure.kind, _said_of(bad_run))
    try:
        bisection = Bisection(
            settings.good,
            settings.bad,
            study.trials,
            storage=study.store,
            jobs=study.trials.engine.slots,
            first=options.first,
            confidence=options.confidence,
            prior=dict(zip(settings.bad, odds, strict=True)) if odds else "risk",
            confirm=options.confirm,
            loss={name: weight(name, options.keep) for name in settings.bad},
            work=settings.work_of_each(),
            on_event=study.listener.event,
            limits=study.limits,
        )
    except StudyMismatch as error:
        raise InputError(str(error), ANEW) from None
    bad, good = [_number(run) for run in (bad_run, *study.again)], _number(present(study.answer.good_run))
    recorded, since = bisection.recorded, max((one.trials for one in study.state.rejected), default=0)
    recorded.count({**dict.fromkeys(bad, recorded.problem.full), good: 0}, since)
    done = (trial for trial in recorded.all() if trial.state.is_finished() and trial.number != bad[0])
    study.trials.recall([result_of(trial) for trial in done])
    return bisection


def _number(run: Run) -> int:
    return int(run.folder.name)


def _said_of(run: Run) -> str:
    """What a failing run said about itself: its message, and the lines of code that the exception left."""
    exception = run.failing[1].event(Raised) or Raised("", "", [])
    lines = [linecache.getline(path, line) for path, line, _ in exception.frames[-FRAMES_READ:]]
    return "\n".join([run.seen.message, exception.message, *lines])
