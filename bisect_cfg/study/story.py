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
from bisect_cfg.common.fingerprint import Fingerprint, fingerprint
from bisect_cfg.errors import InputsChanged
from bisect_cfg.options import Options
from bisect_cfg.probe import machine
from bisect_cfg.report.events import Listener, Wanted
from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.runs import written_by_runs
from bisect_cfg.store.folder import open_study
from bisect_cfg.store.state import State
from bisect_cfg.study.begin import begin
from bisect_cfg.study.data_rows import find_rows
from bisect_cfg.study.factors import find_factors
from bisect_cfg.study.isolate import ask, isolate
from bisect_cfg.study.known_failure import known_failure
from bisect_cfg.study.locate import locate
from bisect_cfg.study.loop import Spent
from bisect_cfg.study.origin import find_baselines, remove_checkpoints, say_what_stays
from bisect_cfg.study.prove import prove
from bisect_cfg.study.recommend import recommend
from bisect_cfg.study.reproduce import reproduce
from bisect_cfg.study.study import Phase, Study
from bisect_cfg.targets.target import Target

PHASES: tuple[Phase, ...] = (
    reproduce, find_factors, find_baselines, isolate, prove, find_rows, locate, recommend,
)  # fmt: skip

LIBRARIES = tuple(name for name in machine.NAMES if name != "optuna")
"""With another version of one of these, earlier trials are no longer comparable."""


def bisect(
    target: Target,
    options: Options,
    listener: Listener,
    wanted: Wanted | None = None,
    begun: Callable[[Path], None] = lambda folder: None,
) -> Findings:
    """Find which settings of a script, or of a command, make it fail; or run the one more trial that is wanted. `begun`
    is told the folder of the study, before anything runs.

    Raises:
        InputError: something about the input stands in the way.
        KeyboardInterrupt: after everything that runs was ended; the study can be resumed.
    """
    started = time.monotonic()
    environment = _environment_of(target)
    now = State(target.identity(), options.identity())
    if target.probed:
        installed = environment.get("packages", {})
        now.libraries = {name: installed.get(name) for name in LIBRARIES}
        now.gpus = sorted({gpu["name"] for gpu in environment.get("gpus") or ()})
    opened = open_study(
        target, now, options.study, storage=options.storage, restart=options.restart, written=written_by_runs
    )
    with opened as (folder, state, store), _written(target, folder) as target:
        begun(folder)
        study = Study(target, options, listener, folder, state, store, environment=environment, wanted=wanted)
        with contextlib.closing(study):
            return replace(_answer_of(study), seconds=time.monotonic() - started)


def _environment_of(target: Target) -> Fingerprint:
    """The fingerprint of what trains; empty where no Python is known to."""
    if not target.python:
        return {}
    found = fingerprint(None if target.python == sys.executable else target.python)
    return {**found, "launcher": target.launcher} if target.launcher else found


@contextlib.contextmanager
def _written(target: Target, folder: Path) -> Iterator[Target]:
    """The target with what it needs in the study folder (the code of a notebook); no secret is left there."""
    try:
        yield (written := target.written_in(folder))
    finally:
        with contextlib.suppress(OSError):  # a full disk is reported by what it stopped
            written.written_in(folder, masked=True)


def _answer_of(study: Study) -> Findings:
    """What came out, once the story is told."""
    try:
        begin(study, study.target)
        study.find(status=tell(study))
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
        study.bisection.recorded.show(safe, best.passed[-1] if best is not None and best.passed else None)
    if answer.report is None and answer.bad_run is not None:
        study.find(known=known_failure(answer.bad_run, answer.settings, (), study.environment))
    if study.wanted is None:
        kept = None if study.options.recommend or answer.report is None else trials.origin
        remove_checkpoints(study.folder, kept)
        say_what_stays(study, kept)
    counted = answer.good_run.seen.counted if answer.good_run is not None else study.target.probed
    study.find(
        start=study.site.starts.start,
        horizon=trials.horizon if counted else None,
        origin=trials.origin,
        notes=tuple(study.notes),
        environments=trials.packages and study.site.environments,
        cluster=trials.engine.cluster,
    )
    return study.answer


def tell(study: Study, phases: tuple[Phase, ...] = PHASES) -> Status:
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
