"""The end of a pass, of a script or of any command: safe values where they are wanted, and what is always told."""

from __future__ import annotations

from dataclasses import replace

from bisect_cfg.configuration import Status
from bisect_cfg.phases.bisection import Bisection
from bisect_cfg.phases.building import cures_of
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.known import known_failure
from bisect_cfg.phases.recommend import find_safe_values
from bisect_cfg.reports.outcome import Answer


def with_safe_values(context: Context, bisection: Bisection, answer: Answer) -> Answer:
    """The answer with safe values, where causes are isolated and they are wanted.

    Args:
        context: of this pass.
        bisection: of whose study the runs are trials.
        answer: with the report of the isolation.
    """
    report, known = answer.report, answer.known
    if not context.options.recommend or report.status != Status.ISOLATED:
        return answer
    cures = cures_of(context, known and known.entry)
    safe = find_safe_values(context, bisection, report, answer.bad_run, answer.good_run, answer.details, cures)
    best = {**context.runner.settings.bad, **safe.best.changes} if safe.best else None
    report = replace(report, rows=(*report.rows, *safe.rows), safe_configuration=best)
    return replace(answer, report=report, safe=safe, details={**answer.details, **safe.details})


def ended(context: Context, answer: Answer) -> Answer:
    """The answer with what is known however far a pass came."""
    runner, known, packages = context.runner, answer.known, context.runner.known.packages
    if answer.report is None and answer.bad_run is not None:
        known = known_failure(answer.bad_run, answer.settings, (), context.environment)
    return replace(
        answer,
        known=known,
        start=runner.start,
        horizon=runner.horizon,
        origin=runner.known.origin,
        notes=tuple(context.notes),
        environments=packages and packages.environments,
    )
