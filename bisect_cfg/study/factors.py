"""Factors: what the first run was seen to set, against the good configuration."""

from __future__ import annotations

from dataclasses import replace

from bisect_cfg.common.configuration import Name, Status, present
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import RankBegin
from bisect_cfg.runner.ranks import FirstLaunch, launched_in
from bisect_cfg.runner.runs import Run
from bisect_cfg.study.data_rows import UNNAMED, may_be_unnamed_row
from bisect_cfg.study.environments import both_environments
from bisect_cfg.study.study import Phase, Study
from bisect_cfg.targets.captured import Capture, read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.good import typed_values
from bisect_cfg.targets.launch_settings import (
    ACCELERATE,
    LAUNCHER,
    PROCESSES,
    Accelerate,
    ask_accelerate,
    findings,
    given_to_each,
    launcher_levels,
    unheard,
)
from bisect_cfg.targets.launchers import PROGRAM
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.suggestions import check_name


def find_factors(study: Study) -> Status | Phase | None:
    """Compare the settings of the user with the good ones.

    Raises:
        InputError: a name after --keep is none of the script's.
    """
    if study.target.factors is not None:  # they are known
        study.trials.packages = both_environments(study, study.settings)
        return None
    study.listener.phase("factors", "comparing your settings with the good ones")
    try:
        if _compare(study):
            return None
        another = study.sides.go_on(study, None)
    except InputError:
        if not study.sides.name:
            raise
        another = study.sides.take_up(study, study.answer.bad_run)
    if another:
        return find_factors
    study.sides.end(study)
    return Status.BASELINE_FAILS


def _compare(study: Study) -> bool:
    """Find what differs from the good side in force; whether anything does."""
    site, bad_run, options = study.site, present(study.answer.bad_run), study.options
    capture = present(read_capture(bad_run.traces.events.rows, configured=False))
    capture = capture.with_accelerate(_accelerate(study, capture))
    named, _ = typed_values(study.good_side, capture, "the good configuration")
    capture = replace(capture, named=named)
    say_what_is_not_in_force(study, bad_run)
    if not capture.args.built:
        study.note(
            "Your run dies before it builds its training config, so what varies are settings of the script's own. "
            "Options of the config were not varied: the failure comes before there are any."
        )
    if study.target.launcher == PROGRAM and capture.args.place is not None:
        study.note(f"What trains in {study.target.shown} is {capture.args.place[0]}.")
    begun, launched = bad_run.traces.begun, _launched(study, capture)
    site.starts.learn(capture, begun.time if begun else bad_run.seen.seconds, launched)
    packages_named = any(name.startswith(PACKAGE) for name in (*study.good_side, *study.pins))
    settings = study.trials.known_settings = Comparison(
        capture,
        lambda request: site.checks.resolve(request, study.baselines.resolve),
        good=study.good_side,
        pins=study.pins,
        only=options.only,
        excluded=options.exclude,
        order_kept=UNNAMED if may_be_unnamed_row(study) else "",
        installed=study.installed if packages_named else None,
        launcher=study.target.launcher,
        relaunched=launched is not None and study.target.launcher != PROGRAM,
    ).factors()
    study.find(settings=settings)
    if settings.note:
        study.note(settings.note)
    if packages_named:
        study.trials.packages = both_environments(study, settings)
    study.listener.factors(settings)
    known = dict.fromkeys([*(factor.name for factor in settings.varied), *capture.args.types], "")
    for name in options.keep:
        check_name(str(Name.of(name)), known, "--keep")
    return bool(settings.varied)


def _launched(study: Study, capture: Capture) -> FirstLaunch | None:
    """What the user's launcher has started, or accelerate would start in its place; None where neither has a part."""
    launched, good, options, script = None, study.good_side, study.options, study.target
    if script.launch is not None and capture.started:
        launched = launched_in(present(study.answer.bad_run).traces, script.arguments)
    levels = launcher_levels(script.launcher, capture.args.world_size, capture.args.devices, capture.asked)
    free = LAUNCHER not in (*study.pins, *options.exclude) and (not options.only or LAUNCHER in options.only)
    by_accelerate = free and levels is not None and good.get(LAUNCHER, levels[0]) == ACCELERATE
    if by_accelerate and launched is None and not capture.started:
        launched = FirstLaunch(tuple(script.command), given_to_each(capture.args.devices), 1)
    if launched is None:
        return None
    several = by_accelerate or len(launched.given) > 1 or good.get(PROCESSES, 1) != 1
    return replace(launched, several=several)


def _accelerate(study: Study, capture: Capture) -> Accelerate:
    """accelerate, asked where it has a part in the launch or a setting of it is named."""
    launch, options = study.target.launch, study.options
    flags = launch.flags if launch is not None and launch.kind == "accelerate" else ()
    names = (*study.good_side, *study.pins, *options.only, *options.exclude)
    named = any(name.startswith("launch.") and name not in Accelerate().types for name in names)
    if flags or named or any(name.startswith(("ACCELERATE_", "FSDP_")) for name in capture.given):
        return ask_accelerate(study.target.python, flags)
    return Accelerate()


def say_what_is_not_in_force(study: Study, run: Run) -> None:
    """Say what the launcher was asked for and the training does not have: it may be why a run does not fail."""
    capture = read_capture(run.traces.events.rows)
    launch = study.target.launch
    if capture is None or launch is None:
        return
    rank, together = run.traces.event(RankBegin), capture.args.world_size
    started = together if rank is None else rank.world_size
    accelerate = _accelerate(study, capture)
    asked = launch.processes_asked(study.target.arguments) or accelerate.processes
    for text in (*findings(launch.kind, asked, started, together, capture.asked), *unheard(accelerate, capture.asked)):
        study.note(text)
