"""Runs that do not die and yet go wrong: what the metrics of the steps say.

Every function is pure: rows of metrics in, symptoms out. A row has what the trainer logged at one optimizer
step (`step`, `loss`, `grad_norm`, `entropy`, `reward_std`, `frac_reward_zero_std`, `kl`, `learning_rate`, ...).
A metric that an older TRL does not log is absent, and nothing is concluded from it.

What is *not* a symptom in GRPO: a loss of zero with a gradient (with one iteration and beta 0 the loss is zero
by construction), a grad_norm above max_grad_norm (it is logged before clipping), a learning rate of 0 in the
first step of a warmup, a reward missing on steps that reuse completions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Row = dict[str, Any]

COLLAPSE_SHARE = 0.05
"""A policy is collapsed when its entropy is below this share of what it began with. Measured collapses fall from
5.5 to below 0.01 within a few steps; healthy training lowers entropy by tens of percent over hundreds of steps."""

COLLAPSE_DEAD_GROUPS = 0.9
"""... and at least this share of the groups has equal rewards, so that no gradient is left to recover by."""

COLLAPSE_STREAK = 3
"""... in this many steps in a row: single batches can be degenerate by chance."""

COLLAPSE_WINDOW, COLLAPSE_MOST = 8, 7
"""Some collapsed policies stumble on: now and then one group differs, or the entropy comes back for a step. So one of
these also counts, in all but one of eight steps: the groups dead at an entropy below `LOW_SHARE` of what it began with
(a sparse reward leaves dead groups too, but keeps the entropy); or the entropy below `COLLAPSE_SHARE` while the reward
is lower than it began (a policy that has learnt its task has little entropy as well)."""

LOW_SHARE = 1 / 3

DEAD_STEPS = 5
"""A run without any gradient (or any spread of rewards) is called dead after this many steps, all of them so.
A sparse reward can leave a few batches without a signal; five of five from the start leave nothing to learn from."""

NON_FINITE_STREAK = 8
"""A metric is called non-finite for good after this many steps in a row. An fp16 GradScaler starts at 2**16 and
may skip a handful of steps with an infinite grad_norm while it finds its scale; that is no failure."""

NON_FINITE_AT_END = 3
"""... or when the run ends with this many."""

WATCHED = ("loss", "grad_norm", "kl", "reward", "entropy")
"""Metrics that must be finite, most telling first."""


@dataclass(frozen=True)
class Symptom:
    """Something wrong in a run that goes on.

    Attributes:
        kind: "non-finite", "collapse", "no-gradient" or "dead-reward".
        name: the metric, for "non-finite".
        step: the step at which it was certain.
        text: one line for people.
    """

    kind: str
    name: str
    step: int
    text: str


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return None if value is None or isinstance(value, (bool, str)) else float(value)


def non_finite(rows: Sequence[Row], ended: bool) -> list[Symptom]:
    """Metrics that stay NaN or infinite."""
    found = []
    for name in WATCHED:
        streak = 0
        values = [(row["step"], _number(row, name)) for row in rows if _number(row, name) is not None]
        for position, (step, value) in enumerate(values):
            streak = 0 if math.isfinite(value) else streak + 1
            last = ended and position == len(values) - 1
            if streak >= NON_FINITE_STREAK or (last and streak >= min(NON_FINITE_AT_END, len(values)) > 0):
                found.append(Symptom("non-finite", name, step, f"{name} is {value} in {streak} steps in a row"))
                break
    return found


def _dead_groups(row: Row) -> bool | None:
    share = _number(row, "frac_reward_zero_std")
    if share is not None:
        return share >= COLLAPSE_DEAD_GROUPS
    spread = _number(row, "reward_std")
    return None if spread is None else spread == 0


def collapse(rows: Sequence[Row]) -> Symptom | None:
    """A policy that began with entropy and has lost nearly all of it, and with it every difference of reward."""
    with_entropy = [row for row in rows if _number(row, "entropy") is not None]
    if with_entropy:
        start = max(_number(row, "entropy") for row in with_entropy[:COLLAPSE_STREAK])
        if not start > 0:
            return None
        began = _rewards(with_entropy[:COLLAPSE_STREAK])
        for end in range(COLLAPSE_STREAK, len(with_entropy) + 1):
            text = _collapsed(with_entropy[max(end - COLLAPSE_WINDOW, 0) : end], start, began)
            if text:
                return Symptom("collapse", "", with_entropy[end - 1]["step"], text)
        return None
    # TRL before 0.18 logs no entropy: a spread of rewards and a gradient that were there and are gone for good.
    alive, streak = False, 0
    for row in rows:
        dead = _dead_groups(row) is True and _number(row, "grad_norm") == 0
        alive = alive or not dead
        streak = streak + 1 if dead else 0
        if alive and streak >= 2 * COLLAPSE_STREAK:
            return Symptom("collapse", "", row["step"], "rewards became all equal and grad_norm 0, and stayed so")
    return None


def _rewards(rows: Sequence[Row]) -> list[float]:
    return [value for value in (_number(row, "reward") for row in rows) if value is not None]


def _collapsed(rows: Sequence[Row], start: float, began: Sequence[float]) -> str:
    """Whether the policy is collapsed at the last of up to `COLLAPSE_WINDOW` rows, and what shows it; "" if it is not.

    `start` is the entropy of the first steps, `began` are their rewards.
    """
    entropies = [_number(row, "entropy") for row in rows]
    fell = f"entropy fell from {start:.3g} to {entropies[-1]:.2g}"
    streak = zip(rows[-COLLAPSE_STREAK:], entropies[-COLLAPSE_STREAK:], strict=True)
    if all(entropy < COLLAPSE_SHARE * start and _dead_groups(row) is not False for row, entropy in streak):
        return f"{fell}, rewards all equal"
    if len(rows) < COLLAPSE_WINDOW:
        return ""
    dead = sum(_dead_groups(row) is True for row in rows)
    if dead >= COLLAPSE_MOST and sum(entropy < LOW_SHARE * start for entropy in entropies) >= COLLAPSE_MOST:
        return f"{fell}, rewards all equal in {dead} of {COLLAPSE_WINDOW} steps"
    now = _rewards(rows)
    if not began or not now or not fmean(now) < fmean(began):
        return ""
    low = sum(entropy < COLLAPSE_SHARE * start for entropy in entropies)
    return f"{fell}, and the reward fell" if low >= COLLAPSE_MOST else ""


def never_learning(rows: Sequence[Row]) -> Symptom | None:
    """A run that has had nothing to learn from in any of its first steps."""
    first = [row for row in rows if _number(row, "grad_norm") is not None][:DEAD_STEPS]
    if len(first) < DEAD_STEPS:
        return None
    step = first[-1]["step"]
    judged = [_dead_groups(row) for row in first if _dead_groups(row) is not None]
    if judged and all(judged):
        return Symptom("dead-reward", "", step, f"all rewards of a group equal in each of the first {DEAD_STEPS} steps")
    if all(_number(row, "grad_norm") == 0 for row in first):
        return Symptom("no-gradient", "", step, f"grad_norm is 0 in each of the first {DEAD_STEPS} steps")
    return None


def symptoms(rows: Sequence[Row], ended: bool) -> list[Symptom]:
    """All symptoms, most severe first.

    Args:
        rows: metrics in the order of the steps.
        ended: whether the run is over; some judgements need its end.
    """
    found = non_finite(rows, ended)
    for symptom in (collapse(rows), never_learning(rows)):
        if symptom is not None:
            found.append(symptom)
    return found


def remarks(rows: Sequence[Row]) -> list[str]:
    """Oddities worth a line in the report though the run is not called failed for them."""
    found = []
    for name in WATCHED:
        odd = [row["step"] for row in rows if (v := _number(row, name)) is not None and not math.isfinite(v)]
        if odd:
            value = next(_number(row, name) for row in rows if row["step"] == odd[0])
            found.append(f"{name} is {value} at {len(odd)} of {len(rows)} steps (first at step {odd[0]})")
    return found
