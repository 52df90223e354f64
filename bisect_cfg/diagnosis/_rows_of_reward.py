"""A reward that jumps, or that grows while the part of it for right answers goes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import median

from bisect_cfg.diagnosis._rows import QUARTERS, Row, column, mean, points_of, rows_with

GONE_ROWS = 5
NOTHING = 0.01
"""Rows at the end whose reward is below this share of its best level: noise does not give so many of them."""

JUMP_SHARE, JUMP_KL = 0.3, 10.0
"""A reward that rises within a few rows by this share of its best, with KL so many times what it was and the entropy
more than halved, has found a trick: learning takes hundreds of rows for that."""

JUMP_LEVEL = 8
"""Rows whose median is the level before a jump, and after it."""

PART, PART_LEFT, HELD_OUT_LEFT, LATE = 0.05, 0.2, 0.5, 10
"""A part of the reward that was above this, and of which less than that share of its best is left, was given up; what
is measured on held-out data is judged sooner, since nothing pays the policy for giving it up."""

OF_RIGHT_ANSWERS = re.compile(
    r"^rewards/\S*(?:accura|correct|exact|answer|solve|math|code|task)(?!.*std$)", re.IGNORECASE
)
_HELD_OUT = re.compile(
    r"^(?:eval|val|valid|validation|test|held_?out)\w*[/_-]\S*(?:acc\b|accura|correct|exact|pass@|solve|win_?rate)",
    re.IGNORECASE,
)
_PART = re.compile(r"^rewards/(?!(?:chosen|rejected|margins|accuracies)\b)(?!.*/std$)")


def jumped(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A reward that rises at once, with KL and entropy away from all they were."""
    whole = rows_with(points_of(rows), "reward", "kl", "entropy")
    if len(whole) < 2 * JUMP_LEVEL:
        return
    reward, kl, entropy = ([row.values[name] for row in whole] for name in ("reward", "kl", "entropy"))
    if not all(map(math.isfinite, (*reward, *kl, *entropy))):
        return
    ended = [median(values[-JUMP_LEVEL:]) for values in (reward, kl, entropy)]
    for at in range(JUMP_LEVEL, len(whole) - JUMP_LEVEL + 1):
        was, before = (
            (median(values[at - JUMP_LEVEL : at]) for values in (reward, kl)),
            entropy[at - JUMP_LEVEL : at],
        )
        level, far = was
        now = median(reward[at : at + JUMP_LEVEL])
        risen = now - level > JUMP_SHARE * max(abs(value) for value in reward) and ended[0] - level > (now - level) / 2
        if risen and ended[1] > JUMP_KL * max(far, 0.0) > 0 and ended[2] < median(before) / 2:
            facts["reward-jumped"] = [whole[at - 1], whole[at]]
            return


def _total(row: Row) -> float:
    """A row's reward, or the sum of its parts; NaN if it has none."""
    if "reward" in row.values:
        return row.values["reward"]
    parts = [value for name, value in row.values.items() if _PART.match(name)]
    return sum(parts) if parts else math.nan


def part_lost(facts: dict[str, list[Row]], rows: Sequence[Row]) -> None:
    """A reward for right answers that was there and is little any more, while the total reward went up, or that is
    nothing at the end; or right answers to held-out questions."""
    whole = [row for row in rows if math.isfinite(_total(row))]
    if len(whole) < QUARTERS * GONE_ROWS:
        return
    size = len(whole) // QUARTERS
    total = list(map(_total, whole))
    rose = mean(total[-size:]) > mean(total[:size])
    kinds = ((OF_RIGHT_ANSWERS, "part-lost", PART_LEFT), (_HELD_OUT, "held-out-lost", HELD_OUT_LEFT))
    named = [(name, fact, left) for pattern, fact, left in kinds for name in filter(pattern.search, whole[-1].values)]
    for name, fact, left in named:
        values = column(whole, name)
        if len(values) < len(whole) or not all(map(math.isfinite, values)):
            continue
        means = [mean(values[at * size : (at + 1) * size]) for at in range(QUARTERS)]
        ended = mean(values[-max(len(values) // LATE, GONE_ROWS) :])
        given_up = rose and means[-1] < left * max(means)
        if fact == "part-lost" and all(abs(one) <= NOTHING * max(map(abs, total)) for one in total[-GONE_ROWS:]):
            continue  # all of the reward is gone
        if means[0] > PART and (given_up or ended < PART_LEFT * max(means) / 2):
            there = [row for row, value in zip(whole, values, strict=True) if value >= max(means) / 2]
            facts[fact] = [there[-1], Row(whole[-1].line, f"{name} {max(means):.2g} -> {ended:.2g}", {})]
