"""What one run is to be, as plain data, when it is over before its end, and what is known that all runs go by."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from bisect_cfg.capture.settings import Settings
from bisect_cfg.configuration import Configuration, Purpose
from bisect_cfg.probe.protocol import CheckpointOrders, Encoded, InstrumentOrders, Origin
from bisect_cfg.runner.environments import Packages
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Standard

AFTER_SYMPTOM_STEPS = 20
"""How many steps a run that is to die by itself goes on after a silent failure is certain: something harder may follow,
and then that is the failure to study."""

PACE_STEPS = 3
"""After so many steps the pace of a run is known. (Or before, where it has used up their time.)"""


class StopRule(enum.StrEnum):
    """When a run has shown what it is for, before its horizon."""

    FAILURE = "failure"
    """A silent failure under study is certain."""
    UNHEALTHY = "unhealthy"
    """It shows anything that the good run does not."""
    DEATH = "death"
    """Never: it is to die by itself, also of NaN weights, but for `AFTER_SYMPTOM_STEPS` after a silent failure."""


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        name: of its folder, the number of the trial; before that is known, the question of a run that is none of the
            search.
        configuration: factor name -> value.
        steps: optimizer steps, None for all the script has.
        purpose: what it is for.
        start: the start to take; None: that of the trials now.
        patience: when silence is a hang; None: scaled from the runs so far.
        stop: when it is over before its horizon.
        training: the number of the training that it is about, before that is known; None: the first that fails.
        overrides: encoded overrides in place of those that `configuration` means (before it is known).
        least_seconds: of training that the run makes at least, also after `steps`.
        checkpoints: how it saves checkpoints of ours on the way; None: it saves none.
        instruments: what to find out besides; None for an ordinary trial.
        exchanged: row of the dataset -> the row in its place; None: none, and which rows a step takes is not noted.
        environment: further environment variables.
        max_seconds: from its start; a run that takes longer cannot be afforded and is ended. None: as long as it takes.
        max_step_seconds: the same for each of its first `PACE_STEPS` steps.
    """

    name: int | str
    configuration: Configuration
    steps: int | None
    purpose: Purpose = Purpose.SEARCH
    start: str | None = None
    patience: Patience | None = None
    stop: StopRule = StopRule.FAILURE
    training: int | None = None
    overrides: Mapping[str, Encoded] | None = None
    least_seconds: float = 0.0
    checkpoints: CheckpointOrders | None = None
    instruments: InstrumentOrders | None = None
    exchanged: Mapping[int, int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    max_seconds: float | None = None
    max_step_seconds: float | None = None

    def has_shown(self, traces: Traces, standard: Standard) -> bool:
        """Whether what is seen so far settles what the run is for."""
        found = traces.symptoms(traces.completed is not None)
        if self.stop is StopRule.FAILURE:
            return standard.failure is not None and standard.failure.is_among(found)
        if self.stop is StopRule.UNHEALTHY:
            return any(symptom.kind not in standard.usual for symptom in found)
        over = traces.completed is not None
        return bool(found) and (over or traces.metrics.rows[-1]["step"] >= found[0].step + AFTER_SYMPTOM_STEPS)

    def is_too_costly(self, traces: Traces, seconds: float) -> bool:
        """Whether a run takes longer than can be afforded, so many seconds after its start."""
        if self.max_seconds is not None and seconds > self.max_seconds:
            return True
        if self.max_step_seconds is None or (begun := traces.begun) is None:
            return False
        rows = traces.metrics.rows
        now = rows[PACE_STEPS - 1]["time"] if len(rows) >= PACE_STEPS else seconds
        return now - begun.time > PACE_STEPS * self.max_step_seconds


@dataclass(frozen=True)
class Known:
    """What is known of the script and its failure; a phase that learns more replaces it.

    Attributes:
        settings: its settings and factors; None before the first run.
        standard: what runs are held against.
        packages: how trials come to other packages; None where none are varied.
        horizon: optimizer steps of a trial; None before the failure was seen. It grows when that comes later.
        origin: where trials begin; None: at the beginning of the training.
    """

    settings: Settings | None = None
    standard: Standard = Standard()
    packages: Packages | None = None
    horizon: int | None = None
    origin: Origin | None = None
