"""A training script through the phases, in order: reproduce, factors, start, isolate, locate, recommend.

`bisect_cfg.phases.bisection` knows how to isolate causes for any runner. What comes before it is specific to a script:
run the user's own command once, cold, to see how it fails and what it sets; find a faster sound way to start trials and
show that it fails the same way there; make sure that the good configuration works and can be afforded.

Everything that is found on the way lies in the study folder, and every phase first looks there: the same command after
a crash goes on where it was.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bisect_cfg.capture.distributions import PACKAGE, read_packages
from bisect_cfg.capture.names import parse_pins, read_good
from bisect_cfg.capture.script import Script
from bisect_cfg.capture.target import CommandTarget
from bisect_cfg.capture.template import own_flags, text_of
from bisect_cfg.common.fingerprint import fingerprint
from bisect_cfg.configuration import Outcome, Status, Value
from bisect_cfg.errors import InputsChanged, NeverConfigured
from bisect_cfg.phases.building import not_rebuilt
from bisect_cfg.phases.command_pipeline import as_command, command_answer
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.ending import ended, with_safe_values
from bisect_cfg.phases.factors import find_factors, say_what_is_not_in_force
from bisect_cfg.phases.isolate import ask, isolate
from bisect_cfg.phases.isolate_data import isolate_rows
from bisect_cfg.phases.limits import Spent
from bisect_cfg.phases.locate import locate
from bisect_cfg.phases.options import Options
from bisect_cfg.phases.origin import (
    begin_at_checkpoint,
    find_origin,
    give_up_origin,
    remove_checkpoints,
    say_what_stays,
)
from bisect_cfg.phases.prove import always_showed, prove
from bisect_cfg.phases.reproduce import reproduce
from bisect_cfg.phases.start import Baselines, with_defaults_of_the_moved, without_risky_defaults
from bisect_cfg.probe import packages
from bisect_cfg.reports.asked import Wanted
from bisect_cfg.reports.listener import Listener
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.study.folder import open_study
from bisect_cfg.trials.inputs import Inputs, written_by_runs
from bisect_cfg.trials.runner import ScriptRunner

LIBRARIES = tuple(name for name in packages.NAMES if name != "optuna")
"""Another version of one of these, or one more or less, and the trials of before say nothing any more."""


def bisect_script(
    script: Script,
    options: Options,
    listener: Listener,
    wanted: Wanted | None = None,
    begun: Callable[[Path], None] = lambda folder: None,
) -> Answer:
    """Find which settings of a script make it fail.

    Args:
        script: the target.
        options: of the user.
        listener: hears of the phases and runs.
        wanted: run this one more trial instead.
        begun: told the folder of the study, before anything runs.

    Raises:
        InputError: something about the input stands in the way.
        KeyboardInterrupt: after everything that runs was ended; the study can be resumed.
    """
    started = time.monotonic()
    found = fingerprint(None if script.python == sys.executable else script.python)
    environment = {**found, "launcher": "python" if script.launch is None else script.launch.kind}
    installed = environment.get("packages", {})
    libraries = {name: installed.get(name) for name in LIBRARIES}
    gpus = [gpu["name"] for gpu in environment.get("gpus") or ()]
    opened = open_study(script, options.study, options.identity(), options.restart, libraries, gpus, written_by_runs)
    with opened as (folder, basis):
        begun(folder)
        script = script.written_in(folder)
        runner = ScriptRunner(
            script,
            folder,
            timeout=options.trial_timeout,
            jobs=options.jobs,
            devices=options.devices,
            inputs=Inputs(script, folder, basis),
            on_progress=listener.step,
        )
        context = Context(script, options, listener, folder, basis, runner, environment, wanted=wanted)
        try:
            answer = _answered(context)
            if wanted is None:
                kept = None if options.recommend or answer.report is None else answer.origin
                remove_checkpoints(folder, kept)
                say_what_stays(context, kept)
        except NeverConfigured:
            target = as_command(script, options)
            if target is None:
                raise
            runner.close()
            context.note(
                f"The script ends before it builds a training config, so what varies is {_named(target)}. Each trial "
                "runs it from its beginning as it stands, and it writes where it always does."
            )
            answer = command_answer(replace(context, script=target))
        finally:
            runner.close()
            with contextlib.suppress(OSError):  # a full disk is told by what it stopped
                script.written_in(folder, masked=True)
    return replace(answer, seconds=time.monotonic() - started)


def _named(target: CommandTarget) -> str:
    """What varies of a command that is a script."""
    settings = [factor.name for factor in target.sides.factors if not factor.name.startswith(PACKAGE)]
    return " and ".join([*([", ".join(settings)] if settings else []), "what is installed"])


def _answered(context: Context) -> Answer:
    """From the reproduction on."""
    for note in context.script.notebook.notes if context.script.notebook is not None else ():
        context.note(note)
    pins = parse_pins(context.options.pins)
    good = {**_good_packages(context), **read_good(context.options.good, context.script.good_file)}
    begin_at_checkpoint(context)
    answer = Answer(Status.INCONCLUSIVE, context.folder, context.script)
    try:
        answer = replace(answer, bad_run=reproduce(context, pins))
        if answer.bad_run.shown.signature is None:
            say_what_is_not_in_force(context, answer.bad_run)
            answer = replace(answer, status=Status.NO_FAILURE)
        else:
            answer = _compared(context, Baselines(context), answer, good, pins)
    except Spent as spent:
        context.note(str(spent))
    return ended(context, answer)


def _good_packages(context: Context) -> dict[str, str]:
    """What --good-packages says, as settings."""
    path = context.options.good_packages
    levels = {} if path is None else read_packages(path, context.installed)
    return {f"{PACKAGE}{name}": level for name, level in levels.items()}


def _compared(
    context: Context, baselines: Baselines, answer: Answer, good: dict[str, Value], pins: dict[str, Value]
) -> Answer:
    """From the factors on: the failing configuration against one good one."""
    runner, bad_run = context.runner, answer.bad_run
    safer = without_risky_defaults(bad_run, good, pins)
    settings = find_factors(context, baselines, bad_run, {**safer, **good} if baselines.spared_risks else good, pins)
    if not settings.factors:
        context.note(
            "No setting differs from the good configuration: the failure is in the script, the data or the "
            "environment, or the good configuration must be changed with --good."
        )
        _say_what_else_could_vary(context)
        return replace(answer, status=Status.BASELINE_FAILS, settings=settings)

    again, good_run = find_origin(context, baselines, bad_run)
    answer = replace(answer, settings=runner.settings, good_run=good_run)
    if good_run is None:
        runs = [bad_run, *again]
        packages = runner.known.packages
        why = (
            f"Your configuration failed in 1 of {len(runs)} runs, and never again: too rarely to tell which setting "
            "makes it fail, if a setting does. If it fails more often elsewhere, run bisect-cfg there; if later, give "
            "--steps N."
        )
        if packages is not None and packages.varied and again:
            why = not_rebuilt(again[-1], len(again), runner.settings)
        context.note(why)
        return replace(answer, again=tuple(again))
    if context.outcome_of_good(good_run) is Outcome.FAIL and safer and not baselines.spared_risks:
        named = ", ".join(f"{name}={value}" for name, value in safer.items())
        context.note(f"The library's own defaults fail as well; trying a good configuration with {named}.")
        baselines.spare_risks()
        return _compared(context, baselines, answer, good, pins)
    if context.outcome_of_good(good_run) is not Outcome.PASS:
        _say_what_else_could_vary(context)
        return replace(answer, status=Status.BASELINE_FAILS, rows=isolate_rows(context, None))
    for symptom in good_run.shown.symptoms:
        context.note(f"About the good configuration: {symptom.text}.")
    runner.learn(standard=runner.known.standard.with_usual(good_run.shown))

    if context.wanted is not None:
        return replace(answer, asked=ask(context, bad_run, again, good_run))
    bisection, answer = isolate(context, answer, again)
    try:
        report = answer.report
        answer = replace(answer, proven=prove(context, report, answer.details))
        if answer.proven is False:
            if always_showed(report) and give_up_origin(context, bad_run, len(answer.details)):
                answer = replace(answer, status=Status.INCONCLUSIVE, report=None, details={}, proven=None)
                return _compared(context, baselines, answer, good, pins)
            report = replace(report, complete=False)
        report = with_defaults_of_the_moved(context, baselines.moved, settings.factors, report)
        answer = replace(answer, report=report)
        answer = replace(answer, rows=isolate_rows(context, answer.report))
        answer = replace(answer, place=locate(context, answer.report, bad_run))
        answer = with_safe_values(context, bisection, answer)
    except InputsChanged as error:  # the causes stand on what ran before
        context.note(error.message)
        answer = replace(answer, stopped=error)
    return answer


def _say_what_else_could_vary(context: Context) -> None:
    """The flags of the script's own, which are in all runs as the user has them."""
    script, capture = context.script, context.runner.starts.capture
    if script.notebook is not None or capture is None:
        return
    known = {name for built in (capture.args, *capture.others.values()) for name in built.types}
    flags = own_flags(script.arguments, known)
    if flags:
        first = next(iter(flags))  # one value of the bad side, and it is any command; the others stand in it
        sides = ["--bad", f"{first}={text_of(flags[first])}"]
        sides += [word for name in flags for word in ("--good", f"{name}=none")]
        context.note(
            f"The script's own {', '.join(f'--{name}' for name in flags)} had no part in this: all runs had what you "
            "typed. To vary that as well (none: the flag is left out; or give the value that works): "
            f"bisect-cfg bisect {shlex.join(sides)} -- {script.shown}"
        )
