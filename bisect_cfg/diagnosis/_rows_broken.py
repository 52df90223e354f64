"""NaN and infinity in the rows of a run, and what left its course long before the first of them."""

from __future__ import annotations

import math
import re
from statistics import linear_regression

from bisect_cfg.diagnosis._rows import ENOUGH, LAST_ROWS, OF_RL, Row, rows_with

BROKEN_STREAK = 8
"""Infinite gradients in a row, or NaN ones, after which no gradient scaler is still looking for its scale."""

NAN_ROWS = 3
"""Rows at the end that are NaN: one may be of a batch that a scaler skips."""

DRIFTED_KL = 1.0
"""KL to the reference above which a policy has moved far; NaN after it may be the KL term's own overflow."""

COURSE = ("entropy", "grad_norm", "kl", "clipped_ratio")
"""What tells that a policy leaves its course. Each has to be beyond `DEPARTURE` times the range of the first half of
its rows and of where their trend leads, in each of at least `DEPARTED` rows until the end; a single peak comes back.
Of the KL alone `FAR` times as much says the same."""
DEPARTURE, DEPARTED, FAR = 1.5, 3, 10.0

_REWARD = re.compile(r"rewards?(?:$|[/_](?!chosen|rejected|margins|accuracies))")
_LOGITS = "logits/chosen"
"""The mean of the logits that DPO's trainers log beside the loss, which does not depend on it."""


def look(facts: dict[str, list[Row]], rows: list[Row], broken: list[Row]) -> None:
    """Adds what is not finite to the facts.

    Args:
        facts: fact (of `_row_facts.FACTS`) -> the rows that show it.
        rows: those of the run.
        broken: those with a gradient that is not finite, wherever they are.
    """
    _gradient(facts, rows, broken)
    for asked in (_logps, _loss, _kl, _course, _missing, _reward, _logits):
        asked(facts, rows)


def _gradient(facts: dict[str, list[Row]], rows: list[Row], broken: list[Row]) -> None:
    """A gradient that is not finite to the end, or for long."""
    # One broken step that training recovered from is how a gradient scaler finds its scale.
    norms_rows = rows_with(rows, "grad_norm")
    ends_broken = [row for row in norms_rows[-1:] if not math.isfinite(row.values["grad_norm"])]
    if norms_rows and (ends_broken or _streak(norms_rows, "grad_norm") >= BROKEN_STREAK):
        shown = broken or ends_broken
        late = [row.values["grad_norm"] for row in norms_rows[-BROKEN_STREAK:]]
        if any(map(math.isnan, late)) or any(math.isnan(row.values["grad_norm"]) for row in shown):
            facts["non-finite-gradient"] = shown
        elif len(broken) > 1 or len(norms_rows) == 1:
            facts["infinite-gradient"] = shown
    well = next((row for row in norms_rows if math.isfinite(row.values["grad_norm"])), None)
    if facts and well is not None:
        facts["was-finite"] = [well]


def _loss(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A loss that is not finite."""
    last = rows[-LAST_ROWS:]
    bad_loss = [row for row in rows_with(last, "loss") if not math.isfinite(row.values["loss"])]
    ends_bad = bool(bad_loss) and bad_loss[-1] is rows_with(last, "loss")[-1]
    # A NaN with which the rows end says as much as several, if no gradient was finite all the same.
    lost = ends_bad and math.isnan(bad_loss[-1].values["loss"]) and "grad_norm" not in bad_loss[-1].values
    if lost or (len(bad_loss) > 1 and (ends_bad or len(bad_loss) >= BROKEN_STREAK)):
        facts["non-finite-loss"] = bad_loss


def _kl(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A KL that is infinite, or NaN on its own."""
    was_finite = broken_before = False
    largest_kl = 0.0
    with_kl = rows_with(rows, "kl")
    finite_later = sum(math.isfinite(row.values["kl"]) for row in with_kl)
    for at, row in enumerate(with_kl, 1):
        value = row.values["kl"]
        finite_later -= math.isfinite(value)
        # Now and then a batch has no token for it, and the run goes on.
        goes_on = finite_later >= max(ENOUGH, (len(with_kl) - at) / 2)
        # NaN in everything at once, out of a small kl, came from elsewhere and only shows here too.
        alone = math.isfinite(row.values.get("grad_norm", math.nan)) or largest_kl > DRIFTED_KL
        overflows = math.isinf(value) or (math.isnan(value) and was_finite and not broken_before and alone)
        if overflows and not goes_on:
            facts["kl-overflow"] = [row]
            break
        was_finite |= math.isfinite(value)
        largest_kl = max(largest_kl, value) if math.isfinite(value) else largest_kl
        broken_before |= not math.isfinite(row.values.get("grad_norm", 0.0))


def _course(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """What left its course before that."""
    departed = _left_course(rows)
    if departed and facts.keys() & {"kl-overflow", "non-finite-gradient", "non-finite-loss"}:
        facts["left-course"] = departed
        facts.pop("kl-overflow", None)  # by then everything was lost


def _missing(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Rewards that are None or NaN, after the first that were a number."""
    last = rows[-LAST_ROWS:]
    for name, fact in (("reward", "missing-reward"), ("reward_std", "undefined-spread")):
        if not any(other != name and OF_RL.search(other) for row in last for other in row.values):
            continue  # a column that nobody fills: no training with rewards
        told = rows_with(last, name)
        begun = next((at for at, row in enumerate(told) if not math.isnan(row.values[name])), 0)
        missing = [row for row in told[begun:] if math.isnan(row.values[name])]  # before the first episode has ended
        if missing and not facts.keys() & {"non-finite-gradient"}:
            facts[fact] = missing


def _reward(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A reward that is NaN in the first row in which the gradient is, and not in the row before."""
    first = next((at for at, row in enumerate(rows) if math.isnan(row.values.get("grad_norm", 0.0))), 0)
    before, there = (
        any(_REWARD.match(name) and math.isnan(value) for name, value in row.values.items())
        for row in (rows[first - 1], rows[first])
    )
    if first and there and not before:
        facts["reward-nan"] = [rows[first - 1], rows[first]]


def _logps(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Log-probabilities or rewards of DPO's answers that are logged as NaN to the end; the Trainer prints a loss of 0.0
    for it (logging_nan_inf_filter)."""
    for name in ("logps/chosen", "rewards/chosen"):
        late = [row for row in rows if name in row.values][-NAN_ROWS:]
        if len(late) == NAN_ROWS and all(
            math.isnan(row.values[name]) and re.search(r"\bnan\b", row.text, re.IGNORECASE) for row in late
        ):
            facts["non-finite-logps"] = late


def _logits(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Logits that are logged as NaN (no empty column) in every row, beside a finite loss and gradient."""
    logged = [row for row in rows if _LOGITS in row.values]
    if len(logged) >= ENOUGH and all(
        math.isnan(row.values[_LOGITS])
        and re.search(r"\bnan\b", row.text, re.IGNORECASE)
        and all(math.isfinite(row.values.get(name, 0.0)) for name in ("loss", "grad_norm"))
        for row in logged
    ):
        facts["logits-nan"] = logged[-LAST_ROWS:]


def _left_course(rows: list[Row]) -> list[Row]:
    """The row from which several metrics were far from all they had been, up to the first NaN, and the last finite row.

    Empty for a run that broke within a few rows: those who look for its cause find nothing before it.
    """
    onsets, alone = [], False
    for name in COURSE:
        whole = rows_with(rows, name)
        bad = next((at for at, row in enumerate(whole) if not math.isfinite(row.values[name])), len(whole))
        values = [row.values[name] for row in whole[:bad]]
        usual = values[: len(values) // 2]
        if len(usual) < ENOUGH:
            continue
        trend = linear_regression(range(len(usual)), usual)
        # Entropy that falls and KL that grows little by little, as they do in any run, only goes on.
        low, high = min(usual), max(usual)
        led = [trend.intercept + trend.slope * at for at in range(len(values))]
        inside = [
            min(low, to) / DEPARTURE <= value <= max(high, to) * DEPARTURE
            for value, to in zip(values, led, strict=True)
        ]
        left = len(inside) - next((at for at, holds in enumerate(reversed(inside)) if holds), len(inside))
        if len(values) - left >= DEPARTED:
            onsets.append((whole[left].line, whole[left], whole[bad - 1]))
            alone |= name == "kl" and min(values[-DEPARTED:]) > FAR * high
    if len(onsets) < 2 and not alone:
        return []
    onsets.sort(key=lambda onset: onset[0])
    return [onsets[0][1], onsets[0][2]]


def _streak(rows: list[Row], name: str) -> int:
    """The longest run of non-finite values of one metric."""
    longest = streak = 0
    for row in rows:
        streak = 0 if math.isfinite(row.values[name]) else streak + 1
        longest = max(longest, streak)
    return longest
