"""How a pass over a study begins: nothing is known of its target but what the user says."""

from __future__ import annotations

from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.site import Site
from bisect_cfg.runner.trials import Trials
from bisect_cfg.store.inputs import Inputs
from bisect_cfg.study.baselines import Baselines
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
    site = Site(
        target, study.folder, timeout=options.trial_timeout, jobs=options.jobs, devices=options.devices,
        on_progress=study.listener.step,
    )  # fmt: skip
    site.inputs = Inputs(target, study.folder, study.state, sites_of(target.python) if target.probed else ())
    study.target, study.trials = target, Trials(site, target.factors)
    study.answer = Findings(folder=study.folder, script=target, settings=target.factors)
    study.baselines = Baselines(study)
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
