"""What the loss of a run says, where something is learnt by it, and the log-probabilities of pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from bisect_cfg.diagnosis import health
from bisect_cfg.diagnosis._rows import (
    ENOUGH,
    FIRST,
    LAST_ROWS,
    QUARTERS,
    TREND_ROWS,
    Row,
    always,
    as_float32,
    column,
    mean,
    points_of,
    rows_with,
)

VANISHED_ROWS, VANISHED_FROM = 5, 0.1
"""So many rows of 0 are no chance; a loss that was below that before may have been rounded to it."""

LOST_ROWS = 8
"""So many gradients of exactly 0 in a row are no steps that were skipped."""

JUMP_ROWS = 4
"""Rows for which a loss stays up after a jump; one or two are a bad batch."""

DISPLACED_NATS, DISPLACED_TIMES = 200.0, 2.5
"""A chosen answer is an answer of some hundred tokens. That its log-probability falls by so much, to so many times what
it was, means that the model would not write it any more."""

PAIR_ROWS, BY_CHANCE, NEAR_CHANCE = 40, 0.05, 0.03
"""The loss of pairs begins at ln 2 = 0.69, and a model that learns to tell them apart leaves it within some tens of
rows; accuracy within this of one half is none."""


def diverged(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A loss that left the level it had held, and did not come back."""
    if not facts.keys() & {"non-finite-gradient", "infinite-gradient", "non-finite-loss"}:
        with_loss = points_of(rows_with(rows, "loss"))
        onset = health.diverged_at_end([{**row.values} for row in with_loss])
        if onset is not None:
            facts["loss-diverged"] = [with_loss[onset - 1], with_loss[onset], with_loss[-1]]


def jumped(facts: dict[str, list[Row]], rows: Sequence[Row]) -> None:
    """A loss that is learnt by, far above its level from one row to the next."""
    rows = rows_with(rows, "loss")
    values = [row.values["loss"] for row in rows]
    if health.has_rewards([row.values for row in rows]) or not all(map(math.isfinite, values)):
        return
    for at in range(ENOUGH, len(values) - JUMP_ROWS):
        level = median(values[at - ENOUGH : at])
        risen = max(health.RISEN_TIMES * level, level + health.RISEN_BY)
        if min(values[:ENOUGH]) >= 0 and all(value > risen for value in values[at : at + JUMP_ROWS]):
            facts["loss-jumped"] = [rows[at - 1], rows[at]]
            return


def always_zero(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A loss of 0 in every row."""
    losses = column(rows, "loss")
    if len(losses) >= ENOUGH and always(losses, lambda value: value == 0):
        facts["no-loss"] = rows_with(rows, "loss")[-LAST_ROWS:]
        # With rewards a loss of 0 is usual; a gradient beside it says that something is learnt.
        if not column(rows, "grad_norm") and not health.has_rewards([row.values for row in rows]):
            facts["no-loss-alone"] = facts["no-loss"]


def vanished(facts: dict[str, list[Row]], rows: Sequence[Row]) -> None:
    """A loss that is learnt by, and is exactly 0 from one row on; what is learnt by heart gets there by and by."""
    rows = rows_with(rows, "loss")
    at = next((at for at in range(len(rows) - 1, -1, -1) if rows[at].values["loss"] != 0), -1)
    if at >= 0 and len(rows) - at - 1 >= VANISHED_ROWS and rows[at].values["loss"] > VANISHED_FROM:
        if not health.has_rewards([row.values for row in rows]):
            facts["loss-vanished"] = [rows[at], rows[at + 1]]


def gradient_lost(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A gradient that is exactly 0 from one row on, beside a loss that is not: the optimizer has nothing any more."""
    rows = rows_with(rows, "loss", "grad_norm")
    if health.has_rewards([row.values for row in rows]):
        return
    at = next((at for at in range(len(rows) - 1, -1, -1) if rows[at].values["grad_norm"] != 0), -1)
    lost = rows[at + 1 :]
    if at >= ENOUGH and len(lost) >= LOST_ROWS and min(row.values["loss"] for row in lost) > VANISHED_FROM:
        facts["gradient-lost"] = [rows[at], lost[0]]


def displaced(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Pairs of which the chosen answers have become as improbable as the rejected ones."""
    chosen = column(rows, "logps/chosen")
    if len(chosen) >= TREND_ROWS and all(map(math.isfinite, chosen)):
        began, ended = median(chosen[:FIRST]), median(chosen[-FIRST:])
        if ended < began - DISPLACED_NATS and ended < DISPLACED_TIMES * began < 0:
            facts["displaced"] = rows_with(rows, "logps/chosen")[:1] + rows_with(rows, "logps/chosen")[-1:]


def of_held_out(rows: Sequence[Row], held_out: Sequence[Row]) -> dict[str, list[Row]]:
    """What rows of a supervised training show together with those of its evaluations.

    Args:
        rows: those of the training.
        held_out: those of its evaluations, with an `eval_loss`.
    """
    facts: dict[str, list[Row]] = {}
    rows, held_out = as_float32(rows), as_float32(held_out)
    losses = [row.values["loss"] for row in rows if "loss" in row.values]
    held_out = [row for row in held_out if math.isfinite(row.values.get("eval_loss", math.nan))]
    if health.has_rewards([row.values for row in rows]) or not held_out or not all(map(math.isfinite, losses)):
        return facts
    accuracy = column(held_out, "eval_accuracy")
    if len(losses) >= PAIR_ROWS and accuracy and abs(accuracy[-1] - 1 / 2) < BY_CHANCE:
        size = len(losses) // QUARTERS
        levels = [median(losses[at * size : (at + 1) * size]) for at in range(QUARTERS)]
        if all(abs(level - math.log(2)) < NEAR_CHANCE for level in levels):
            facts["at-chance"] = [held_out[-1]]
    values = column(held_out, "eval_loss")
    best = min(values)
    risen = len(values) >= ENOUGH and values[-1] > max(2 * best, best + 1 / 2) and values[-3] < values[-2] < values[-1]
    if risen and len(losses) >= 2 * FIRST and mean(losses[-FIRST:]) < mean(losses[:FIRST]):
        facts["held-out-loss-rose"] = [held_out[values.index(best)], held_out[-1]]
    return facts
