"""A plan: what one run is to do, as plain data, and when it is over before its horizon; and what came of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import Configuration, Purpose
from bisect_cfg.common.failures.health import number, step_of
from bisect_cfg.probe import protocol
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Standard

AFTER_SYMPTOM_STEPS = 20
"""Steps that a run makes after a silent failure is certain, if it is to die by itself: a crash that follows is then the
failure to study."""

PACE_STEPS = 3
"""The pace of a run is known after so many steps, or earlier if it has used up their time."""


class StopRule(enum.StrEnum):
    """When a run has shown what it is for, before its horizon."""

    FAILURE = "failure"
    """When the silent failure under study is certain."""
    UNHEALTHY = "unhealthy"
    """When it has a symptom that the good run does not have."""
    DEATH = "death"
    """Never, not even for NaN weights; only `AFTER_SYMPTOM_STEPS` after a silent failure."""


@dataclass(frozen=True)
class Plan:
    """One run. A phase says what it asks; what all trials of the study have in common is added by `Trials.whole`."""

    name: int | str  # the folder: the number of the trial; or the question, until it has one
    configuration: Configuration
    steps: int | None  # optimizer steps; None for all the script has
    purpose: Purpose = Purpose.SEARCH
    start: str | None = None  # None: the one that trials take now
    stop: StopRule = StopRule.FAILURE
    least_seconds: float = 0.0  # of training, which it makes even after `steps`
    checkpoints: protocol.CheckpointOrders | None = None  # how it saves checkpoints for us
    instruments: protocol.InstrumentOrders | None = None  # what to find out besides
    exchanged: Mapping[int, int] | None = None
    """Dataset row -> the one that takes its place; None: the text in the rows of a step is not measured."""
    max_seconds: float | None = None  # after so long it is ended as too costly,
    max_step_seconds: float | None = None  # or by the pace of its first `PACE_STEPS` steps
    sure: bool = False
    """Whether another failure than the one under study is run once more, cold, in the folder ``NAME-cold``: it may come
    from a warm start."""
    node: str = ""  # where it is to run, if that is there; "": anywhere
    patience: Patience | None = None  # when silence is a hang; None: by the runs so far

    # What the trials of a study have in common.
    standard: Standard = Standard()  # what it is held against while it goes on
    overrides: Mapping[str, protocol.Encoded] | None = None  # what the probe changes; None: what `configuration` means
    targets: protocol.Targets | None = None  # which objects it changes; None: those of the study's settings
    origin: protocol.Origin | None = None  # where the training begins; None: at its beginning
    failing: protocol.FailingData | None = None  # what it takes of its data before all else
    opened: protocol.InputPlaces | None = None  # where it is noted which files are opened
    requirements: Sequence[str] | None = None  # lines of a requirements file; None: the user's environment
    work: float = 1.0  # how much longer its steps are expected to take than those of the good configuration
    repeats: bool = False  # whether it runs the bad configuration, of which it is known how it hangs

    def has_shown(self, traces: Traces) -> bool:
        """Whether what is seen so far settles what the run is for."""
        over = traces.completed is not None
        found = traces.symptoms(over)
        if self.stop is StopRule.FAILURE:
            return self.standard.failure is not None and self.standard.failure.is_among(found)
        if self.stop is StopRule.UNHEALTHY:
            return any(symptom.kind not in self.standard.usual for symptom in found)
        return bool(found) and (over or step_of(traces.metrics.rows[-1]) >= found[0].step + AFTER_SYMPTOM_STEPS)

    def is_too_costly(self, traces: Traces, seconds: float) -> bool:
        """Whether a run takes longer than can be afforded, so many seconds after its start."""
        if self.max_seconds is not None and seconds > self.max_seconds:
            return True
        if self.max_step_seconds is None or traces.begun is None:
            return False
        rows = traces.metrics.rows
        now = number(rows[PACE_STEPS - 1], "time") if len(rows) >= PACE_STEPS else None
        return (seconds if now is None else now) - traces.begun.time > PACE_STEPS * self.max_step_seconds


@dataclass(frozen=True)
class Result:
    """What came of a plan. Its run is in the study folder."""

    name: int | str  # the folder of the run that counts
    check: str = ""  # what the cold run has shown that `Plan.sure` asks for; "" if there was none
    refused: str = ""  # why it could not be run at all
    lost: tuple[str, ...] = ()  # the machines that were lost while it ran there, where it has no result for that
