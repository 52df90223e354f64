"""The story of a bisection: its phases in their order, and what is told at the end.

Each phase finds something out, by runs and from what ran before, and takes it into the study's answer. The same command
after a crash tells the same story again: whatever was run is read, and the rest is run.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from bisect_cfg.common.configuration import Status
from bisect_cfg.common.fingerprint import fingerprint
from bisect_cfg.common.types import Fingerprint
from bisect_cfg.errors import InputsChanged, NeverConfigured
from bisect_cfg.options import Options
from bisect_cfg.probe import machine
from bisect_cfg.report.events import Listener, Wanted
from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.command_site import CommandSite
from bisect_cfg.runner.runs import written_by_runs
from bisect_cfg.runner.script_site import ScriptSite
from bisect_cfg.runner.trials import Trials
from bisect_cfg.store.folder import Studied, open_study
from bisect_cfg.store.inputs import Inputs
from bisect_cfg.study import command
from bisect_cfg.study.baselines import Baselines
from bisect_cfg.study.data_rows import find_rows
from bisect_cfg.study.factors import find_factors
from bisect_cfg.study.isolate import ask, isolate
from bisect_cfg.study.known_failure import known_failure
from bisect_cfg.study.locate import locate
from bisect_cfg.study.loop import Spent
from bisect_cfg.study.origin import begin_at_checkpoint, find_baselines, remove_checkpoints, say_what_stays
from bisect_cfg.study.prove import prove
from bisect_cfg.study.recommend import recommend
from bisect_cfg.study.reproduce import reproduce
from bisect_cfg.study.study import Phase, Study
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.good import parse_pins, read_good
from bisect_cfg.targets.packages import PACKAGE, read_packages
from bisect_cfg.targets.script import Script, sites_of

OF_SCRIPTS: tuple[Phase, ...] = (
    reproduce, find_factors, find_baselines, isolate, prove, find_rows, locate, recommend,
)  # fmt: skip
OF_COMMANDS: tuple[Phase, ...] = (command.reproduce, command.find_baselines, isolate, recommend)
"""A command of any kind has no probe: its factors are what the user gave, each trial starts from nothing, and a failure
has no place in a stack."""

LIBRARIES = tuple(name for name in machine.NAMES if name != "optuna")
"""With another version of one of these, earlier trials are no longer comparable."""


def bisect(
    target: Script | CommandTarget,
    options: Options,
    listener: Listener,
    wanted: Wanted | None = None,
    begun: Callable[[Path], None] = lambda folder: None,
) -> Findings:
    """Find which settings of a script, or of a command, make it fail.

    Args:
        target: what is run.
        options: of the user.
        listener: hears of the phases and runs.
        wanted: run this one more trial instead.
        begun: told the folder of the study, before anything runs.

    Raises:
        InputError: something about the input stands in the way.
        KeyboardInterrupt: after everything that runs was ended; the study can be resumed.
    """
    started = time.monotonic()
    environment = _environment_of(target)
    studied = Studied(target, options.identity(), storage=options.storage, restart=options.restart)
    if isinstance(target, Script):
        installed, gpus = environment.get("packages", {}), environment.get("gpus") or ()
        libraries = {name: installed.get(name) for name in LIBRARIES}
        studied = replace(studied, libraries=libraries, gpus=[gpu["name"] for gpu in gpus])
    with open_study(studied, options.study, written_by_runs) as (folder, state, store):
        begun(folder)
        with _written(target, folder) as target, _trials_of(target, options, listener, folder) as trials:
            if isinstance(target, Script):
                trials.site.inputs = Inputs(target, folder, state, sites_of(target.python))
            else:
                trials.site.state = state
            study = Study(target, options, listener, folder, state, store, trials, environment, wanted)
            try:
                answer = _answer_of(study)
            except NeverConfigured:
                answer = _as_command(study)
    return replace(answer, seconds=time.monotonic() - started)


def _environment_of(target: Script | CommandTarget) -> Fingerprint:
    """The fingerprint of what trains; empty where no Python is known to."""
    if not target.python:
        return {}
    found = fingerprint(None if target.python == sys.executable else target.python)
    return found if isinstance(target, CommandTarget) else {**found, "launcher": target.launcher}


@contextlib.contextmanager
def _written(target: Script | CommandTarget, folder: Path) -> Iterator[Script | CommandTarget]:
    """The target with what it needs in the study folder (the code of a notebook); no secret is left there."""
    if isinstance(target, CommandTarget):
        yield target
        return
    try:
        yield (written := target.written_in(folder))
    finally:
        with contextlib.suppress(OSError):  # a full disk is reported by what it stopped
            written.written_in(folder, masked=True)


@contextlib.contextmanager
def _trials_of(target: Script | CommandTarget, options: Options, listener: Listener, folder: Path) -> Iterator[Trials]:
    """The trials of a target; afterwards nothing of them runs."""
    how = {"timeout": options.trial_timeout, "devices": options.devices, "on_progress": listener.step}
    if isinstance(target, CommandTarget):
        trials = Trials(CommandSite(target, folder, **how), target.factors)
    else:
        trials = Trials(ScriptSite(target, folder, jobs=options.jobs, **how))
    with contextlib.closing(trials.site):
        yield trials


def _as_command(study: Study) -> Findings:
    """The answer of a script that never builds a training config, as that of a command of any kind.

    Raises:
        NeverConfigured: nothing of it varies as such.
    """
    target = command.as_command(study.target, study.options, study.answer.bad_run)
    if target is None:
        raise
    study.site.close()
    study.note(
        "The script ends before it builds a training config, so it is run as any command: each trial from its "
        "beginning, and it writes where it always does."
    )
    with _trials_of(target, study.options, study.listener, study.folder) as trials:
        trials.site.state = study.state
        return _answer_of(replace(study, target=target, trials=trials))


def _answer_of(study: Study) -> Findings:
    """What came out, once the story is told."""
    try:
        _begin(study)
        study.find(status=tell(study, OF_COMMANDS if isinstance(study.target, CommandTarget) else OF_SCRIPTS))
    except Spent as spent:
        study.note(str(spent))
    except InputsChanged as error:
        if study.bisection is None:  # the causes stand on what ran before
            raise
        study.note(error.message)
        study.find(stopped=error)
    answer, trials = study.answer, study.trials
    if study.bisection is not None:
        best = answer.safe.best if answer.safe is not None else None
        safe = answer.report.safe_configuration if answer.report is not None and answer.report.causes else None
        study.bisection.show(safe, best.passed[-1] if best is not None and best.passed else None)
    if answer.report is None and answer.bad_run is not None:
        study.find(known=known_failure(answer.bad_run, answer.settings, (), study.environment))
    if isinstance(study.target, Script) and study.wanted is None:
        kept = None if study.options.recommend or answer.report is None else trials.origin
        remove_checkpoints(study.folder, kept)
        say_what_stays(study, kept)
    uncounted = isinstance(study.target, CommandTarget) and not (answer.good_run and answer.good_run.seen.counted)
    study.find(
        start=study.site.start,
        horizon=None if uncounted else trials.horizon,
        origin=trials.origin,
        notes=tuple(study.notes),
        environments=trials.packages and study.site.environments,
    )
    return study.answer


def _begin(study: Study) -> None:
    """Take in what the user says, before anything runs."""
    target = study.target
    if isinstance(target, CommandTarget):
        study.find(settings=study.settings)
        study.listener.factors(study.settings)
        return
    for note in target.notebook.notes if target.notebook is not None else ():
        study.note(note)
    path = study.options.good_packages
    levels = {} if path is None else read_packages(path, study.installed)
    study.pins = parse_pins(study.options.pin)
    study.good = {f"{PACKAGE}{name}": level for name, level in levels.items()}
    study.good |= read_good(study.options.good, target.good_file)
    study.baselines = Baselines(study)
    begin_at_checkpoint(study)


def tell(study: Study, phases: tuple[Phase, ...]) -> Status:
    """Go through the phases; how it ended."""
    at = 0
    while at < len(phases):
        if phases[at] is isolate and study.wanted is not None:
            study.find(asked=ask(study))
            break
        said = phases[at](study)
        if isinstance(said, Status):
            return said
        at = at + 1 if said is None else phases.index(said)
    return study.answer.status
