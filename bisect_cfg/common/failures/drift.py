"""Healthy, not merely alive: what the metrics of a run must show before a value of it is recommended.

A high learning rate collapses the policy without one NaN; a gradient norm of infinity that clipping absorbs leaves the
weights where they were, and the run "passes". So a run counts as healthy only if it shows no symptom of
`common.failures.health`, all its metrics are finite throughout, and the metrics of `BOUNDS` and the share of groups
without a signal have not drifted farther from where they began than allowed, measured against the drift of the good
run. Drift, not level: batch size, loss type and reward scale move the level of a gradient norm by orders of magnitude
and harm nothing.

Pure functions of the rows that the probe writes (see `common.failures.health` for what a row holds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from bisect_cfg.common.failures import health
from bisect_cfg.common.failures.collapse import Row, finite

START_STEPS = 3
"""A run's own beginning is its first steps: the first is taken before any update, three even out a single batch."""

LATE_SHARE, LATE_STEPS = 1 / 3, 5
"""... and its end the last third, five steps at least: groups without a signal come and go from batch to batch."""


class Bound(NamedTuple):
    """How far one metric may drift, from the level of the first steps to the median of the last ones."""

    metric: str
    level: Callable[[Sequence[float]], float]  # of the first steps
    least: float  # share of it that must be left, or of what the good run keeps, if that is less
    most: float  # share of it that is allowed, or of what the good run comes to, if that is more


BOUNDS = (
    # Healthy training lowers entropy by tens of percent over hundreds of steps; measured collapses lose 90 % and more
    # within a few (from 5.54 to 0.51 by step 7 at a learning rate of 0.1). Stricter than what is called a collapse at
    # once, as what is lost in a short trial goes on being lost; a policy that dissolves into noise is lost as well.
    Bound("entropy", max, 0.3, 3.0),
    # For trainers that do not log frac_reward_zero_std.
    Bound("reward_std", max, 0.1, math.inf),
    # Below, there is nothing left to learn from; above, it has diverged. Single spikes of 10 are common and clipped
    # (grad_norm is logged before clipping); the median of the last steps is not moved by them.
    Bound("grad_norm", median, 0.01, 100.0),
)
BOUNDS_WITHOUT_REWARDS = (
    # Batches differ by tens of percent, medians of several by less.
    Bound("loss", median, 0.0, 1.2),
    BOUNDS[-1],
)

SIGNAL_KEPT = 0.2
"""Share of the good run's groups with different rewards (1 - frac_reward_zero_std) that must be left: below, four of
five batches that the good run learns from are silent. Or of those that the run began with, if they were fewer: with
two completions a prompt equal rewards are common from the start."""

SCALER_STEPS = health.NON_FINITE_STREAK
"""With fp16=True the gradient scaler may skip its first few steps with an infinite grad_norm while it finds its
scale."""


RATIO_FLOOR = 0.8
"""A mean importance ratio of engine and trainer below this throws a fifth of the gradient away; top_k=50 gives 0.17
(https://github.com/huggingface/trl/issues/6789)."""

APART_TIMES, APART = 3.0, 0.05
"""Engine and trainer may be so many times as far apart as in the good run, or this far: rounding differs by 0.01."""


@dataclass(frozen=True)
class Deviation:
    """Why a run is not healthy."""

    metric: str  # which one; the kind of symptom for those of `common.failures.health`
    text: str  # one line for people
    step: int | None = None  # the step at which it was certain, None if only the end of the run shows it


def deviations(
    rows: Sequence[Row], good: Sequence[Row], *, usual: Collection[str] = (), scaler: bool = False
) -> list[Deviation]:
    """What keeps a run from being healthy, most severe first; empty for a healthy one. `usual` are the kinds of symptom
    that the good run shows as well: they are the script's. With fp16=True a gradient `scaler` is at work."""
    symptoms = [one for one in health.symptoms(rows, ended=True) if one.kind not in usual]
    found = [Deviation(symptom.kind, symptom.text, symptom.step) for symptom in symptoms]
    if any(symptom.kind == "collapse" for symptom in symptoms):
        return found
    found += () if found else _non_finite(rows, good, scaler)
    return [*found, *_drifts(rows, good, "dead-reward" in usual), *_engine(rows, good)]


def _non_finite(rows: Sequence[Row], good: Sequence[Row], scaler: bool) -> Iterator[Deviation]:
    for name in health.WATCHED:
        judged = rows[SCALER_STEPS:] if scaler and name == "grad_norm" else rows
        odd = health.not_finite(judged, name)
        if odd and not health.not_finite(good, name):
            step, value = odd[0]
            yield Deviation(name, f"{name} is {value} at {len(odd)} of {len(rows)} steps", step)


def _drifts(rows: Sequence[Row], good: Sequence[Row], dead: bool) -> Iterator[Deviation]:
    """What drifted too far; `dead`: whether the rewards of the good run are all equal, so that theirs say nothing."""
    silent, usual = (finite(one, "frac_reward_zero_std") for one in (rows, good))
    for bound in BOUNDS if health.has_rewards(rows) else BOUNDS_WITHOUT_REWARDS:
        if bound.metric != "reward_std":
            found = _drifted(bound, rows, good)
        elif dead:
            continue
        else:
            found = _silenced(silent, usual) if silent and usual else _drifted(bound, rows, good)
        if found is not None:
            yield found


def _engine(rows: Sequence[Row], good: Sequence[Row]) -> Iterator[Deviation]:
    """An engine that writes the completions and is farther from the trainer than in the good run. That is a matter of
    level: weights that never arrived are wrong from the first step on."""
    apart, ratio = _late(finite(rows, health.ENGINE_DIFFERENCE)), _late(finite(rows, health.ENGINE_RATIO))
    usual, kept = finite(good, health.ENGINE_DIFFERENCE), finite(good, health.ENGINE_RATIO)
    if apart and median(apart) > max(APART, APART_TIMES * median(usual or [0.0])):
        yield Deviation(health.ENGINE_DIFFERENCE, f"{health.ENGINE_DIFFERENCE} is {median(apart):.2g}")
    if ratio and median(ratio) < RATIO_FLOOR * min(1.0, median(kept or [1.0])):
        yield Deviation(health.ENGINE_RATIO, f"{health.ENGINE_RATIO} is {median(ratio):.2g}")


def _silenced(silent: Sequence[float], usual: Sequence[float]) -> Deviation | None:
    end, began = fmean(_late(silent)), fmean(silent[:START_STEPS])
    if 1 - end >= SIGNAL_KEPT * (1 - max(fmean(usual), began)):
        return None
    text = f"{end:.0%} of the groups have equal rewards, {fmean(usual):.0%} in the good run"
    return Deviation("frac_reward_zero_std", text)


def _drifted(bound: Bound, rows: Sequence[Row], good: Sequence[Row]) -> Deviation | None:
    here, reference = _drift(bound, rows), _drift(bound, good)
    if here is None:
        return None
    start, end = here
    kept, usual = end / start, reference[1] / reference[0] if reference is not None else 1.0
    name = "the loss" if bound.metric == "loss" else bound.metric
    if kept < bound.least * min(1.0, usual):
        return Deviation(bound.metric, f"{name} fell from {start:.3g} to {end:.2g}")
    if kept > bound.most * max(1.0, usual):
        return Deviation(bound.metric, f"{name} rose from {start:.3g} to {end:.3g}")
    return None


def _drift(bound: Bound, rows: Sequence[Row]) -> tuple[float, float] | None:
    """A metric at the beginning and at the end; None where it says nothing. A step in which all rewards of a group are
    equal has no gradient, however healthy the policy is: such steps are counted, and their gradients left out."""
    told = [row for row in rows if health.dead_groups(row) is not True] if bound.metric == "grad_norm" else rows
    values = finite(told, bound.metric)
    if len(values) <= START_STEPS:
        return None
    start = bound.level(values[:START_STEPS])
    return (start, median(_late(values[1:]))) if start > 0 else None


def _late(values: Sequence[float]) -> Sequence[float]:
    return values[-max(LATE_STEPS, round(LATE_SHARE * len(values))) :]
