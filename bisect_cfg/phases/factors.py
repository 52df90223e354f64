"""Factors: what the first run was seen to set, against the good configuration."""

from __future__ import annotations

from dataclasses import replace

from bisect_cfg.capture.captured import read_capture
from bisect_cfg.capture.distributions import PACKAGE
from bisect_cfg.capture.launched import (
    ACCELERATE,
    LAUNCHER,
    PROCESSES,
    findings,
    given_to_each,
    launcher_levels,
    unheard,
)
from bisect_cfg.capture.names import check_name
from bisect_cfg.capture.settings import Settings, build_settings
from bisect_cfg.configuration import Configuration
from bisect_cfg.phases.building import both_environments
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.start import Baselines
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, RankBegin
from bisect_cfg.runner.fork_server import FirstRun
from bisect_cfg.trials.ranks import FirstLaunch, launched_in
from bisect_cfg.trials.runs import Run


def find_factors(
    context: Context, baselines: Baselines, bad_run: Run, good: Configuration, pins: Configuration
) -> Settings:
    """Compare the settings of the user with the good ones.

    Args:
        context: of this pass.
        baselines: bring up the process in which configurations are resolved.
        bad_run: the reproduction.
        good: what the user says of the good configuration.
        pins: settings that are the same in all runs.

    Raises:
        InputError: a name after --keep is none of the script's.
    """
    context.listener.phase("factors", "comparing your settings with the good ones")
    runner, options = context.runner, context.options

    def build(request: BuildRequest) -> BuildAnswer:
        """In the process that the trials will be forked from."""
        next((start for start in baselines.allowed() if baselines.come_up(start)), None)
        return runner.starts.resolve(request)

    capture, launched = read_capture(bad_run.traces.events.rows), None
    launch = context.script.launch
    kind = "python" if launch is None else launch.kind
    say_what_is_not_in_force(context, bad_run)
    if launch is not None:
        launched = launched_in(bad_run.traces, context.script.arguments) if capture.started else None
    levels = launcher_levels(kind, capture.args.world_size, capture.args.devices, capture.asked)
    free = LAUNCHER not in (*pins, *options.excluded) and (not options.only or LAUNCHER in options.only)
    by_accelerate = free and levels is not None and good.get(LAUNCHER, levels[0]) == ACCELERATE
    if by_accelerate and launched is None and not capture.started:
        launched = FirstLaunch(tuple(context.script.command), given_to_each(capture.args.devices), 1)
    if launched is not None:
        several = by_accelerate or len(launched.given) > 1 or good.get(PROCESSES, 1) != 1
        launched = replace(launched, several=several)
    begun = bad_run.traces.begun
    runner.starts.learn(FirstRun(capture, begun.time if begun else bad_run.seen.seconds, launched))
    named = any(name.startswith(PACKAGE) for name in (*good, *pins))
    installed = context.installed if named else None
    settings = build_settings(
        capture,
        lambda item: runner.checks.resolve(item, build),
        good=good,
        pins=pins,
        only=options.only,
        excluded=options.excluded,
        installed=installed,
        launcher=kind,
        relaunched=launched is not None,
    )
    runner.learn(settings=settings)
    for note in settings.notes:
        context.note(note)
    if installed is not None:
        runner.learn(packages=both_environments(context, settings))
    context.listener.factors(settings)
    known = dict.fromkeys([*(factor.name for factor in settings.factors), *capture.args.types], "")
    for name in options.keep:
        check_name(name.removeprefix("args."), known, "--keep")
    return settings


def say_what_is_not_in_force(context: Context, run: Run) -> None:
    """Say what the launcher was asked for and the training does not have: it may be why a run does not fail."""
    launch, capture = context.script.launch, read_capture(run.traces.events.rows)
    if launch is None or capture is None:
        return
    rank, together = run.traces.event(RankBegin), capture.args.world_size
    started = together if rank is None else rank.world_size
    asked = launch.processes_asked(context.script.arguments)
    flags = launch.before if launch.kind == "accelerate" else ()
    for text in (*findings(launch.kind, asked, started, together, capture.asked), *unheard(flags, capture.asked)):
        context.note(text)
