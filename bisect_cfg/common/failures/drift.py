"""Healthy, not merely alive: what the metrics of a run must show before a value of it is recommended.

A high learning rate collapses the policy without one NaN; a gradient norm of infinity that clipping absorbs leaves the
weights where they were, and the run "passes". So a run counts as healthy only if it shows no symptom of
`common.failures.health`, all its metrics are finite throughout, and entropy, spread of rewards, gradient norm and
the share of groups without a signal have not drifted farther from where they began than the bounds below allow,
measured against the drift of the good run. Drift, not level: batch size, loss type and reward scale move the level of
a gradient norm by orders of magnitude and harm nothing.

Pure functions of the rows that the probe writes (see `common.failures.health` for what a row holds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import median

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.failures import health
from bisect_cfg.common.failures.health import Row

START_STEPS = 3
"""A run's own beginning is its first steps: the first is taken before any update, three even out a single batch."""

LATE_SHARE = 1 / 3
LATE_STEPS = 5
"""... and its end the last third, five steps at least: groups without a signal come and go from batch to batch."""

ENTROPY_KEPT = 0.3
"""The end must keep this share of the entropy that the good run keeps. Healthy training lowers entropy by tens of
percent over hundreds of steps; measured collapses lose 90 % and more within a few (from 5.54 to 0.51 by step 7 at a
learning rate of 0.1). Three times stricter than what is called a collapse at once, as what is lost in a short trial
goes on being lost."""

ENTROPY_RISEN = 3.0
"""... and must not have more than this many times of it: a policy that dissolves into noise is lost as well."""

SIGNAL_KEPT = 0.2
"""Share of the good run's groups with different rewards (1 - frac_reward_zero_std) that must be left: below, four of
five batches that the good run learns from are silent. Or of those that the run began with, if they were fewer: with
two completions a prompt equal rewards are common from the start."""

SPREAD_KEPT = 0.1
"""For trainers that do not log frac_reward_zero_std: the share of reward_std that must be left."""

LOSS_RISEN = 1.2
"""Where there are no rewards, the loss must not end above its beginning by more than this, beyond what it does in the
good run: batches differ by tens of percent, medians of several by less."""

GRADIENT_KEPT = 0.01
"""A gradient norm that has fallen below this share of its beginning has nothing left to learn from."""

GRADIENT_RISEN = 100.0
"""A gradient norm that has risen this much has diverged. Single spikes of 10 are common and clipped (grad_norm is
logged before clipping); the median of the last steps is not moved by them."""

SCALER_STEPS = health.NON_FINITE_STREAK
"""With fp16=True the gradient scaler may skip its first few steps with an infinite grad_norm while it finds its
scale."""

FULL_RATE = 0.98
"""The full learning rate counts as reached at this share of it: a scheduler can begin to decay at its very peak."""

Drift = tuple[float, float, float]
"""A metric at its beginning, at its end, and the end as a share of the beginning."""


@dataclass(frozen=True)
class Deviation:
    """Why a run is not healthy.

    Attributes:
        metric: which one; the kind of symptom for those of `common.failures.health`.
        text: one line for people.
        step: the step at which it was certain, None if only the end of the run shows it.
    """

    metric: str
    text: str
    step: int | None = None


def deviations(
    rows: Sequence[Row], good: Sequence[Row], *, usual: Collection[str] = (), scaler: bool = False
) -> list[Deviation]:
    """What keeps a run from being healthy, most severe first; empty for a healthy one.

    Args:
        rows: its metrics, in the order of the steps.
        good: those of the good run.
        usual: kinds of symptom that the good run shows as well: they are the script's.
        scaler: whether a gradient scaler is at work (fp16=True).
    """
    found = [
        Deviation(symptom.kind, symptom.text, symptom.step)
        for symptom in health.symptoms(rows, ended=True)
        if symptom.kind not in usual
    ]
    if not found:
        found += _non_finite(rows, good, scaler)
    for check in (_entropy, _signal, _gradient) if health.has_rewards(rows) else (_loss, _gradient):
        deviation = check(rows, good)
        if deviation is not None and not any(symptom.metric == "collapse" for symptom in found):
            if not (deviation.metric in ("frac_reward_zero_std", "reward_std") and "dead-reward" in usual):
                found.append(deviation)
    return found


def reached_full_rate(rows: Sequence[Row], learning_rate: Value) -> bool | None:
    """Whether a run came to the learning rate that was asked for; None if it does not say."""
    seen = _values(rows, "learning_rate")
    if not seen or not isinstance(learning_rate, (int, float)):
        return None
    return max(seen) >= FULL_RATE * learning_rate


# ---------------------------------------------------------------------------------------------------- the checks


def _non_finite(rows: Sequence[Row], good: Sequence[Row], scaler: bool) -> list[Deviation]:
    found = []
    for name in health.WATCHED:
        judged = rows[SCALER_STEPS:] if scaler and name == "grad_norm" else rows
        odd = [row for row in judged if (value := health.number(row, name)) is not None and not math.isfinite(value)]
        if odd and not any(not math.isfinite(health.number(row, name) or 0.0) for row in good):
            value = health.number(odd[0], name)
            text = f"{name} is {value} at {len(odd)} of {len(rows)} steps"
            found.append(Deviation(name, text, odd[0]["step"]))
    return found


def _entropy(rows: Sequence[Row], good: Sequence[Row]) -> Deviation | None:
    return _strayed("entropy", _drift(rows, "entropy", max), _drift(good, "entropy", max), ENTROPY_KEPT, ENTROPY_RISEN)


def _loss(rows: Sequence[Row], good: Sequence[Row]) -> Deviation | None:
    here, reference = _drift(rows, "loss", median), _drift(good, "loss", median)
    if here is not None and here[2] > LOSS_RISEN * max(1.0, reference[2] if reference is not None else 1.0):
        return Deviation("loss", f"the loss rose from {here[0]:.3g} to {here[1]:.3g}")
    return None


def _signal(rows: Sequence[Row], good: Sequence[Row]) -> Deviation | None:
    silent, reference = _values(rows, "frac_reward_zero_std"), _values(good, "frac_reward_zero_std")
    if silent and reference:
        end, usual, began = _mean(_late(silent)), _mean(reference), _mean(silent[:START_STEPS])
        if 1 - end < SIGNAL_KEPT * (1 - max(usual, began)):
            text = f"{end:.0%} of the groups have equal rewards, {usual:.0%} in the good run"
            return Deviation("frac_reward_zero_std", text)
        return None
    here, there = _drift(rows, "reward_std", max), _drift(good, "reward_std", max)
    if here is not None and here[2] < SPREAD_KEPT * min(1.0, there[2] if there is not None else 1.0):
        return Deviation("reward_std", f"reward_std fell from {here[0]:.3g} to {here[1]:.2g}")
    return None


def _gradient(rows: Sequence[Row], good: Sequence[Row]) -> Deviation | None:
    here, reference = _drift(rows, "grad_norm", median), _drift(good, "grad_norm", median)
    return _strayed("grad_norm", here, reference, GRADIENT_KEPT, GRADIENT_RISEN)


def _strayed(name: str, here: Drift | None, reference: Drift | None, least: float, most: float) -> Deviation | None:
    """A metric of which too little is left, or that has grown too much, beyond the good run's own drift."""
    if here is None:
        return None
    start, end, kept = here
    usual = reference[2] if reference is not None else 1.0
    if kept < least * min(1.0, usual):
        return Deviation(name, f"{name} fell from {start:.3g} to {end:.2g}")
    if kept > most * max(1.0, usual):
        return Deviation(name, f"{name} rose from {start:.3g} to {end:.3g}")
    return None


# ---------------------------------------------------------------------------------------------------- arithmetic


def _values(rows: Sequence[Row], name: str) -> list[float]:
    """The finite values of a metric."""
    found = (health.number(row, name) for row in rows)
    return [value for value in found if value is not None and math.isfinite(value)]


def _late(values: Sequence[float]) -> Sequence[float]:
    return values[-max(LATE_STEPS, round(LATE_SHARE * len(values))) :]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _drift(rows: Sequence[Row], name: str, begin: Callable[[Sequence[float]], float]) -> Drift | None:
    """Of a metric; None if there is none."""
    values = _values(rows, name)
    if len(values) <= START_STEPS:
        return None
    start, end = begin(values[:START_STEPS]), median(_late(values[1:]))
    return (start, end, end / start) if start > 0 else None
