"""What the phases of a study have found, of which `answer_of` makes the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bisect_cfg.common.configuration import Status, present
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputsChanged
from bisect_cfg.explain.match import Match
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.remedy.proposals import Safe
from bisect_cfg.report.contrast import Contrast
from bisect_cfg.report.data_rows import FoundRows
from bisect_cfg.rewrite.places import Places, places_of
from bisect_cfg.runner.environments import Environments
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.where import Where
from bisect_cfg.store.causes import Report, Trial
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.target import Target


@dataclass(frozen=True)
class Findings:
    """What came out so far."""

    folder: Path  # the study folder
    script: Target  # the target
    status: Status = Status.INCONCLUSIVE  # how it ended
    settings: Factors | None = None  # the factors; None if it did not come to that
    bad_run: Run | None = None  # the first reproduction
    good_run: Run | None = None  # the run of the good configuration that counts; None if it did not come to that
    again: tuple[Run, ...] = ()  # further runs of the bad configuration, where it failed once and never again
    report: Report | None = None  # of the bisection proper; None if it did not come to that
    start: str = COLD  # how trials' processes came to be: "config", "imports" or "cold"
    horizon: int | None = None  # steps per trial
    origin: Origin | None = None  # where the trials began; None: at the beginning of the training
    # where they did not begin at step 0, whether the claims showed the same there; None: not run
    proven: bool | None = None
    # how a setting that can change nothing changed the outcome, in sentences; "" if it did not, or was not tried
    placebo: str = ""
    notes: tuple[str, ...] = ()  # sentences for the user
    # by trial number, what the runner kept of it (folder, steps, remarks, ...).
    details: Mapping[int, JsonObject] = field(default_factory=dict)
    seconds: float = 0.0  # wall-clock time of this call
    known: Match | None = None  # the known failure that it is, None if it is none
    place: Where | None = None  # where the failure happens; None if it was not looked for, or nothing came out
    contrast: Contrast | None = None  # what only failing runs say; None if that was not looked for, or is nothing
    safe: Safe | None = None  # what was found to train; None if it did not come to that
    # what ended this call before its time, though the causes are known; None if nothing did
    stopped: InputsChanged | None = None
    asked: Trial | None = None  # the run that a reader asked for; None if there is none
    environments: Environments | None = None  # in which trials ran with other packages; None if none did
    cluster: JsonObject | None = None  # where the trials of this call ran, as `answer` has it; None: on this machine
    rows: FoundRows | None = None  # of the dataset that make the failing step fail; None if they were not looked for
    tried: tuple[str, ...] = ()  # the good sides that were tried beside a good configuration that fails as well
    reasons: tuple[str, ...] = ()  # the likeliest reasons that it does

    @cached_property
    def places(self) -> Places:
        """Where the settings of the run are written; its factors must be known. Reads the user's files."""
        return places_of(self.script, present(self.settings), self.bad_run)
