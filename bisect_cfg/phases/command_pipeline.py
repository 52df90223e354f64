"""A command of any kind through the phases: reproduce, the good side, isolate, verify.

What is isolated and how is the same as for a training script. There is no probe: factors are what the user gave, each
trial starts the command from nothing, and a failure has no place in a stack.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bisect_cfg.capture.distributions import PACKAGE
from bisect_cfg.capture.script import Script
from bisect_cfg.capture.target import CommandTarget, find_target
from bisect_cfg.common.fingerprint import fingerprint
from bisect_cfg.configuration import Configuration, Outcome, Purpose, Status
from bisect_cfg.errors import InputError
from bisect_cfg.phases.building import both_environments, not_rebuilt
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.ending import ended, with_safe_values
from bisect_cfg.phases.isolate import ask, isolate
from bisect_cfg.phases.limits import Spent
from bisect_cfg.phases.options import Options
from bisect_cfg.phases.reproduce import LINES_SHOWN, study_failure
from bisect_cfg.reports.asked import Wanted
from bisect_cfg.reports.listener import Listener
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.runner.traces import tail_of_log
from bisect_cfg.runner.verdict import CANNOT_RUN, SKIPPED
from bisect_cfg.study.basis import add_written, changed_files, save_basis
from bisect_cfg.study.folder import open_study
from bisect_cfg.trials.command_runner import CommandRunner, load_command_run
from bisect_cfg.trials.plan import Plan, StopRule
from bisect_cfg.trials.runner import REPRODUCTION_STEPS
from bisect_cfg.trials.runs import FIRST, Run
from bisect_cfg.trials.trial_runner import horizon_for

REBUILT = "bad-rebuilt"
REBUILT_TRIES = 3
"""The folders of the runs in the user's environment as it was built anew, and how often the command may pass there: a
failure can be random."""

GOOD = "good-cold"
"""The folder of the run of the good side among the trials."""


def bisect_command(
    target: CommandTarget,
    options: Options,
    listener: Listener,
    wanted: Wanted | None = None,
    begun: Callable[[Path], None] = lambda folder: None,
) -> Answer:
    """Find which settings of a command make it fail; see `bisect_script`.

    Raises:
        InputError: something about the input stands in the way.
        KeyboardInterrupt: after everything that runs was ended; the study can be resumed.
    """
    started = time.monotonic()
    with open_study(target, options.study, options.identity(), options.restart) as (folder, basis):
        begun(folder)
        runner = _runner(target, options, listener, folder)
        environment = fingerprint(target.python) if target.python else {}
        try:
            context = Context(target, options, listener, folder, basis, runner, environment, wanted=wanted)
            answer = _answered(context)
        finally:
            runner.close()
    return replace(answer, seconds=time.monotonic() - started)


def command_answer(context: Context) -> Answer:
    """Find which settings of a command make it fail, in a study that is open.

    Args:
        context: of this pass, whose script is the command; its runner is another one's and is not used.
    """
    runner = _runner(context.script, context.options, context.listener, context.folder)
    try:
        return _answered(replace(context, runner=runner), seen=True)
    finally:
        runner.close()


def as_command(script: Script, options: Options) -> CommandTarget | None:
    """A script as a command of any kind, where its packages are to vary; None where none are, or it is a notebook.

    Args:
        script: as the user starts it.
        options: as given; what the good side says of a training config has no meaning for a command and is left out.

    Raises:
        InputError: what is installed does not differ, or cannot be varied.
    """
    packages = [one for one in options.good if (one if isinstance(one, str) else one[0]).startswith(PACKAGE)]
    if script.notebook is not None or not (packages or options.good_packages):
        return None
    find = functools.partial(
        find_target,
        script.command,
        pins=options.pins,
        only=options.only,
        excluded=options.excluded,
        good_packages=options.good_packages,
        python=script.python,
    )
    try:
        return find(good=options.good)
    except InputError:
        return find(good=packages)


def _runner(target: CommandTarget, options: Options, listener: Listener, folder: Path) -> CommandRunner:
    return CommandRunner(
        target, folder, timeout=options.trial_timeout, devices=options.devices, on_progress=listener.step
    )


def _answered(context: Context, seen: bool = False) -> Answer:
    """From the first run on, which was `seen` if it was made before this."""
    answer = Answer(Status.INCONCLUSIVE, context.folder, context.script, context.runner.settings)
    try:
        context.listener.factors(context.runner.settings)
        answer = replace(answer, bad_run=_reproduced(context, seen))
        answer = _compared(context, answer)
    except Spent as spent:
        context.note(str(spent))
    answer = ended(context, answer)
    counted = answer.good_run is not None and answer.good_run.seen.counted
    return answer if counted else replace(answer, horizon=None)


def _compared(context: Context, answer: Answer) -> Answer:
    """From there on: the failing command against the good one."""
    if answer.bad_run.shown.signature is None:
        return replace(answer, status=Status.NO_FAILURE)
    again = _rebuilt(context)
    if again and context.outcome_of(again[-1]) is not Outcome.FAIL:
        return replace(answer, again=tuple(again))
    answer = replace(answer, good_run=_good(context))
    if context.outcome_of_good(answer.good_run) is not Outcome.PASS:
        return replace(answer, status=Status.BASELINE_FAILS)
    context.runner.learn(standard=context.runner.known.standard.with_usual(answer.good_run.shown))
    if context.wanted is not None:
        return replace(answer, asked=ask(context, answer.bad_run, again, answer.good_run))
    bisection, answer = isolate(context, answer, again)
    return with_safe_values(context, bisection, answer)


def _reproduced(context: Context, seen: bool) -> Run:
    """See the command fail with its bad side."""
    options, runner = context.options, context.runner
    new = load_command_run(context.folder, FIRST) is None
    if not seen:
        context.listener.phase(
            *(("reproduce", "running your command as it is, to see it fail") if new else _resumed(context))
        )
    run = _run(context, FIRST, runner.settings.bad, options.steps or REPRODUCTION_STEPS, StopRule.DEATH)
    failure = run.shown.signature
    context.listener.run_finished(Purpose.BAD_BASELINE, run, Outcome.FAIL if failure else Outcome.PASS)
    if new:  # a file that the command names and writes is no input
        add_written(context.basis, changed_files(context.script, context.basis))
        save_basis(context.folder, context.basis)
    if failure is not None:
        study_failure(context, run)
        # One that printed no metrics before it failed may print some where it does not.
        runner.learn(horizon=options.steps or horizon_for(run.shown.step or 1))
    return run


def _rebuilt(context: Context) -> list[Run]:
    """Build the environments between which packages vary, and see the command fail in the bad one as in the user's own.

    Returns:
        The runs there, the last of which fails if any does; none if no package is another one in any trial.
    """
    runner = context.runner
    if not runner.settings.overrides(runner.settings.good):
        return []
    packages = both_environments(context, runner.settings)
    runner.learn(packages=packages)
    context.listener.phase("rebuilt", "making sure that it fails in an environment built anew as well")
    runs: list[Run] = []
    while len(runs) < REBUILT_TRIES and (not runs or context.outcome_of(runs[-1]) is Outcome.PASS):
        runs.append(_run(context, f"{REBUILT}-{len(runs) + 1}", runner.settings.bad, runner.horizon))
        context.listener.run_finished(Purpose.BAD_AGAIN, runs[-1], context.outcome_of(runs[-1]))
    if context.outcome_of(runs[-1]) is not Outcome.FAIL:
        context.note(not_rebuilt(runs[-1], len(runs), runner.settings))
    return runs


def _resumed(context: Context) -> tuple[str, str]:
    return "resume", f"continuing the study in {context.folder}"


def _good(context: Context) -> Run:
    """See it pass with the good side."""
    context.listener.phase("good baseline", "making sure that the good configuration works")
    run = _run(context, GOOD, context.runner.settings.good, context.runner.horizon)
    context.listener.run_finished(Purpose.GOOD_BASELINE, run, context.outcome_of_good(run))
    return run


def _run(
    context: Context,
    name: int | str,
    configuration: Configuration,
    steps: int | None,
    stop: StopRule = StopRule.FAILURE,
) -> Run:
    """One of the two runs before the search; read back if it was made before.

    Raises:
        InputError: the command cannot be run, or says that it cannot be judged: then no trial says anything.
    """
    run = load_command_run(context.folder, name)
    if run is None or _says_nothing(run):  # what stood in its way may be gone now
        try:
            run = context.train(Plan(name, configuration, steps, stop=stop))
        except OSError as error:
            raise InputError(f"{context.script.typed[0]} cannot be started: {error.strerror}.") from None
    died = run.seen.died
    if _says_nothing(run):
        side = "bad" if name == FIRST else "good"
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
