"""Looking past the warmup: how long a trial must be to have met the full learning rate.

A healthy first 20 steps under an 80-step warmup mean nothing: the same rate without it collapses by step 7 (measured).
A trial stays a prefix of the user's real run, so where that can be afforded it is simply run on until the warmup is
over and a whole horizon has passed at the full rate. Where the warmup is longer than that, the trial leaves it out and
begins at the full rate, which is the harder test, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import Configuration, Value, is_number
from bisect_cfg.common.failures.health import Row
from bisect_cfg.common.parameters import parameter
from bisect_cfg.probe.protocol import PlannedSteps
from bisect_cfg.runner.traces import Traces

LONGEST_WARMUP = 5
"""A trial is run through a warmup of at most so many horizons. Beyond, its trials would spend nearly all their time
at rates that show nothing."""


FULL_RATE = 0.98
"""The full learning rate counts as reached at this share of it: a scheduler can begin to decay at its very peak."""


@dataclass(frozen=True)
class Prefix:
    """How a trial meets the full learning rate."""

    steps: int  # optimizer steps to run
    warmup: int  # steps of warmup in the user's schedule
    skipped: bool  # whether these trials leave the warmup out

    def __str__(self) -> str:
        warmup = f"the warmup of {self.warmup} step{'' if self.warmup == 1 else 's'}"
        if self.skipped:
            return f"at the full learning rate from the first step, without {warmup}"
        if not self.warmup:
            return "at the full learning rate from the first step"
        if self.steps <= self.warmup:  # the training ends there
            return f"no further than {warmup}"
        return f"through {warmup} and {self.steps - self.warmup} beyond"


def total_steps(traces: Traces) -> int | None:
    """How many steps the user's own run would have, as the trainer said when it began; None if it did not."""
    told = traces.event(PlannedSteps)
    return None if told is None else told.max_steps


def warmup_of(values: Configuration, total: int | None) -> int | None:
    """Steps of warmup under a training config (bare names) in a run of so many steps; None if it is a share of an
    unknown number of steps."""
    if parameter("warmup_steps").idle(values):
        return 0
    given = (values.get(name) for name in ("warmup_steps", "warmup_ratio", "max_steps"))
    steps, ratio, most = (value if is_number(value) else 0 for value in given)
    if steps >= 1:
        return math.ceil(steps)
    share = steps or ratio  # transformers 5 reads a warmup_steps below 1 as a share
    if not share:
        return 0
    total = int(most) if total is None else total
    return math.ceil(share * total) if total > 0 else None


def prefix_for(values: Configuration, total: int | None, steps: int, horizon: int, before: int = 0) -> Prefix:
    """How a trial of a configuration that wants `steps` steps meets the full rate for at least a horizon.

    Args:
        values: settings of the training config, by bare name.
        total: steps of the user's whole run, if known.
        steps: wanted anyway.
        horizon: steps at the full rate that say something.
        before: steps of the training that the trial does not make, as it begins after them.
    """
    warmup = warmup_of(values, total)
    if warmup is None:
        return Prefix(steps, 0, True)
    warmup = max(warmup - before, 0)
    if warmup > LONGEST_WARMUP * horizon and warmup + horizon > steps:
        return Prefix(steps, warmup, True)
    return Prefix(max(steps, warmup + horizon) if warmup else steps, warmup, False)


def left_out(values: Configuration) -> dict[str, Value]:
    """What a trial sets in order to begin at the full rate."""
    return {name: 0 for name in ("warmup_steps", "warmup_ratio") if values.get(name)}


def reached_full_rate(rows: Sequence[Row], learning_rate: Value) -> bool | None:
    """Whether a run came to the learning rate that was asked for; None if its metric rows do not say."""
    seen = [rate for row in rows if is_number(rate := row.get("learning_rate"))]
    return max(seen) >= FULL_RATE * learning_rate if seen and is_number(learning_rate) else None
