"""How a pass over a study begins: nothing is known of its target but what the user says."""

from __future__ import annotations

from pathlib import Path

from bisect_cfg.common.words import count
from bisect_cfg.engines.cluster import MOST_SLOTS, ray_command
from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.engines.sites import SiteEngine
from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.trials import PlanEngine, Trials
from bisect_cfg.store.inputs import Inputs, files_of, hash_of
from bisect_cfg.study.baselines import Baselines
from bisect_cfg.study.good_sides import GoodSides
from bisect_cfg.study.origin import begin_at_checkpoint
from bisect_cfg.study.study import Study
from bisect_cfg.targets.good import parse_pins, read_good
from bisect_cfg.targets.packages import PACKAGE, read_packages
from bisect_cfg.targets.script import sites_of
from bisect_cfg.targets.target import Target


def begin(study: Study, target: Target) -> None:
    """Go on with a target; what was found of another one, and ran of it, has ended.

    Raises:
        InputError: what the user says of it cannot be read.
    """
    study.close()
    options = study.options
    study.target, study.trials = target, Trials(_engine(study, target), target.factors)
    sites = sites_of(target.python) if target.probed else ()
    study.trials.longest_first = options.longest_first
    study.trials.inputs = Inputs(target, study.folder, study.state, sites)
    study.answer = Findings(folder=study.folder, script=target, settings=target.factors)
    study.baselines, study.sides = Baselines(study), GoodSides()
    study.__dict__.pop("installed", None)  # of another interpreter, perhaps
    for note in target.notes:
        study.note(note)
    if target.factors is not None:  # they are made of what the user says
        study.listener.factors(target.factors)
        return
    path = options.good_packages
    levels = {} if path is None else read_packages(path, study.installed)
    study.pins = parse_pins(options.pin)
    study.good = {f"{PACKAGE}{name}": level for name, level in levels.items()}
    study.good |= read_good(options.good, target.good_file)
    begin_at_checkpoint(study)


def _engine(study: Study, target: Target) -> PlanEngine:
    """Where the trials run."""
    options, step = study.options, study.listener.step
    if options.on is None:
        jobs, each = options.jobs, options.gpus_per_trial or 1
        devices = [",".join(options.devices[first : first + each]) for first in range(0, len(options.devices), each)]
        site = Site(
            target, study.folder, timeout=options.trial_timeout, jobs=jobs, devices=devices, on_progress=step
        )  # fmt: skip
        return LocalEngine(site, jobs)
    study.listener.phase("cluster", "bringing up sites on the cluster")
    slots = options.slots or MOST_SLOTS
    files = [Path(path) for path in files_of(target, study.state)]
    engine = SiteEngine(
        ray_command(options.on, slots, options.gpus_per_trial), target, study.folder, slots=slots,
        timeout=options.trial_timeout, files={str(path): hash_of(path) for path in files if path.is_file()},
        environment=study.environment, on_progress=step, note=study.note,
    )  # fmt: skip
    told = engine.cluster
    where = f"{count(told['slots'], 'slot')} on {count(len(told['nodes']), 'node')}"
    study.listener.phase("cluster", f"running trials in {where}")
    return engine
