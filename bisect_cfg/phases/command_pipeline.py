"""A command of any kind through the phases: reproduce, the good side, isolate, verify.

What is isolated and how is the same as for a training script. There is no probe: factors are what the user gave, each
trial starts the command from nothing, and a failure has no place in a stack.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from bisect_cfg.capture.target import CommandTarget
from bisect_cfg.configuration import Configuration, Outcome, Purpose
from bisect_cfg.errors import InputError
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.isolate import isolate
from bisect_cfg.phases.known import known_failure
from bisect_cfg.phases.limits import Spent
from bisect_cfg.phases.options import Options
from bisect_cfg.phases.recommend import find_safe_values
from bisect_cfg.phases.reproduce import FOLDER, LINES_SHOWN, study_failure
from bisect_cfg.reports.listener import Listener
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.study.basis import add_written, changed_files, save_basis
from bisect_cfg.study.folder import open_study
from bisect_cfg.trials.command_runner import CommandRunner, load_command_run
from bisect_cfg.trials.files import tail_of_log
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.runner import REPRODUCTION_STEPS, horizon_for
from bisect_cfg.trials.runs import Run
from bisect_cfg.trials.start_points import COLD
from bisect_cfg.trials.verdict import CANNOT_RUN, SKIPPED, judge

GOOD = "good-cold"
"""The folder of the run of the good side among the trials."""


def bisect_command(target: CommandTarget, options: Options, listener: Listener) -> Answer:
    """Find which settings of a command make it fail.

    Raises:
        InputError: something about the input stands in the way.
        KeyboardInterrupt: after everything that runs was ended; the study can be resumed.
    """
    started = time.monotonic()
    with open_study(target, options.study, options.identity(), options.restart) as (folder, basis):
        runner = CommandRunner(
            target, folder, timeout=options.trial_timeout, devices=options.devices, on_progress=listener.step
        )
        try:
            answer = _answered(Context(target, options, listener, folder, basis, runner))
        finally:
            runner.close()
    return replace(answer, seconds=time.monotonic() - started)


def _answered(context: Context) -> Answer:
    parts: dict[str, Any] = {"settings": context.runner.settings}
    try:
        context.listener.factors(context.runner.settings)
        bad_run = parts["bad_run"] = _reproduced(context)
        if bad_run.seen.failure is None:
            return _answer(context, "no_failure", **parts)
        good_run = parts["good_run"] = _good(context)
        if _outcome(context, good_run) is not Outcome.PASS:
            return _answer(context, "baseline_fails", **parts)
    except Spent as spent:
        context.note(str(spent))
        return _answer(context, "inconclusive", **parts)
    context.runner.learn(usual=frozenset(symptom.kind for symptom in good_run.seen.symptoms))
    bisection, report = isolate(context, bad_run, [], good_run)
    details = bisection.details()
    safe = None
    if context.options.recommend and report.status == "isolated":
        safe = find_safe_values(context, bisection, report, bad_run, good_run, details)
        details = {**details, **safe.details}
        best = {**context.runner.settings.bad, **safe.best.changes} if safe.best else None
        report = replace(report, rows=(*report.rows, *safe.rows), safe_configuration=best)
    return _answer(context, report.status, **parts, report=report, details=details, safe=safe)


def _reproduced(context: Context) -> Run:
    """See the command fail with its bad side."""
    options, runner = context.options, context.runner
    new = load_command_run(context.folder, FOLDER) is None
    context.listener.phase(
        *(("reproduce", "running your command as it is, to see it fail") if new else _resumed(context))
    )
    run = _run(context, FOLDER, runner.settings.bad, options.steps or REPRODUCTION_STEPS, until_it_dies=True)
    failure = run.seen.failure
    context.listener.run_finished(Purpose.BAD_BASELINE, run, Outcome.FAIL if failure else Outcome.PASS)
    if new:  # a file that the command names and writes is no input
        add_written(context.basis, changed_files(context.script, context.basis))
        save_basis(context.folder, context.basis)
    if failure is not None:
        study_failure(context, run)
        # One that printed no metrics before it failed may print some where it does not.
        runner.learn(horizon=options.steps or horizon_for(run.seen.step or 1))
    return run


def _resumed(context: Context) -> tuple[str, str]:
    return "resume", f"continuing the study in {context.folder}"


def _good(context: Context) -> Run:
    """See it pass with the good side."""
    context.listener.phase("good baseline", "making sure that the good configuration works")
    run = _run(context, GOOD, context.runner.settings.good, context.runner.horizon)
    context.listener.run_finished(Purpose.GOOD_BASELINE, run, _outcome(context, run))
    return run


def _outcome(context: Context, run: Run) -> Outcome:
    """What the run of the good side says; silent symptoms of it are the command's own."""
    return judge(run.seen, context.runner.known.is_failure, frozenset(run.seen.silent_kinds))[0]


def _run(context: Context, name: int | str, configuration: Configuration, steps: int | None, **how: bool) -> Run:
    """One of the two runs before the search; read back if it was made before.

    Raises:
        InputError: the command cannot be run, or says that it cannot be judged: then no trial says anything.
    """
    run = load_command_run(context.folder, name)
    if run is None or _says_nothing(run):  # what stood in its way may be gone now
        try:
            run = context.train(Plan(name, configuration, steps, **how))
        except OSError as error:
            raise InputError(f"{context.script.typed[0]} cannot be started: {error.strerror}.") from None
    died = run.seen.died
    if _says_nothing(run):
        side = "bad" if name == FOLDER else "good"
        log = "\n".join("    " + line for line in tail_of_log(run.folder / "log.txt", LINES_SHOWN))
        what = f"ended with exit status {died.name}, so it cannot be run"
        if died.kind == SKIPPED:
            what = "says that it cannot be judged (exit status 125)"
        raise InputError(
            f"With the {side} side the command {what}. It was: {context.script.shown}",
            f"Its last lines ({run.folder / 'log.txt'}):\n{log}" if log else "It printed nothing.",
        )
    return run


def _says_nothing(run: Run) -> bool:
    return run.seen.died is not None and run.seen.died.kind in (CANNOT_RUN, SKIPPED)


def _answer(context: Context, status: str, **parts: Any) -> Answer:
    good_run, bad_run, report = (parts.get(name) for name in ("good_run", "bad_run", "report"))
    if bad_run is not None:
        causes = report.causes if report is not None else ()
        parts["known"] = known_failure(bad_run, parts.get("settings"), causes, context.environment)
    return Answer(
        status,
        context.folder,
        context.script,
        start=COLD,
        horizon=context.runner.horizon if good_run is not None and good_run.seen.counted else None,
        notes=tuple(context.notes),
        **parts,
    )
