"""What the rows of a run's metrics say went wrong: facts, in the words the knowledge files match on.

Loss says little: in GRPO it is zero on healthy runs. Gradient norm, entropy and the spread of rewards say much. Each
question is asked in a module of its own kind (`_rows_broken`, `_rows_of_policy`, `_rows_of_reward`, `_rows_of_loss`);
some are asked only where others have found nothing, so their order counts. Nothing is read here: `_metrics` finds the
rows in a log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median, stdev

from bisect_cfg.diagnosis import _rows_broken, _rows_of_loss, _rows_of_policy, _rows_of_reward
from bisect_cfg.diagnosis._rows import (
    ENOUGH,
    FIRST,
    LAST_ROWS,
    OF_RL,
    QUARTERS,
    ROUNDING,
    TREND_ROWS,
    Row,
    as_float32,
    column,
    mean,
    rows_with,
)

FACTS = {
    "rows": "rows of metrics were printed",
    "non-finite-gradient": "grad_norm is NaN, or infinite more than once",
    "was-finite": "grad_norm was finite in other rows",
    "non-finite-logps": "the answers' log-probabilities are NaN in the last rows, whatever the loss is printed as",
    "infinite-gradient": "grad_norm is infinite more than once, never NaN",
    "non-finite-loss": "loss is NaN, or infinite more than once",
    "left-course": "entropy, gradient or length left their course long before the first NaN",
    "reward-nan": "a reward or its spread is NaN in the row in which the gradient first is",
    "logits-nan": "the logged logits are NaN in every row, the loss and the gradient are not",
    "kl-overflow": "kl is infinite, or NaN after having been finite",
    "missing-reward": "reward is None or NaN",
    "undefined-spread": "reward_std is NaN",
    "dead-reward": "all rewards of a group are equal, from the first rows to the last",
    "no-reward": "the reward is exactly 0 in nearly every row",
    "no-gradient": "grad_norm is exactly 0, from the first rows to the last",
    "at-chance": "the loss stays at ln 2, and held-out pairs are told apart by chance alone",
    "held-out-loss-rose": "the loss on held-out data has doubled since its best, while that of training fell",
    "ends-unseen": "nearly every completion counts as cut off, though their lengths lie far below the longest",
    "gradient-lost": "grad_norm is exactly 0 from one row on, and was not before; the loss is not",
    "all-clipped": "every completion was cut off at max_completion_length",
    "loss-vanished": "the loss fell from one row to the next to exactly 0, and stays there",
    "no-loss": "loss is exactly 0, from the first row to the last",
    "no-loss-alone": "loss is exactly 0 in every row, beside no rewards and no gradient",
    "entropy-rose": "entropy rose",
    "entropy-fell": "entropy fell to almost nothing",
    "length-fell": "the answers became a few tokens long",
    "length-rose": "the answers grew until nearly all of them are cut off",
    "reward-lost": "the reward of the last rows is exactly 0, and was not before",
    "unrewarded": "the reward is small and did not rise from the first rows to the last",
    "displaced": "the log-probabilities of the chosen answers have fallen with those of the rejected ones",
    "collapse": "the policy collapsed, and did not come back",
    "nothing-left": "from some row on the rewards of every group are equal and grad_norm is 0, to the end",
    "one-answer": "the reward, one part of it or the choice between completions is gone, and does not come back",
    "kl-diverged": "kl to the reference has exploded, and half of the reward is gone",
    "loss-diverged": "the loss rose far above the level it had held, and stayed there to the end",
    "reward-jumped": "the reward jumped up from one level to another, and KL and entropy broke away with it",
    "no-learning-rate": "learning_rate is exactly 0 in every row",
    "held-out-lost": "the reward rose, and of what is measured on held-out data less than half is left",
    "part-lost": "one of the rewards, that for right answers, is gone, while the total did not fall",
    "loss-jumped": "the loss jumped from one row to the next, far above what it was",
    "surroundings-broke": "with the reward, what the environment gives broke off; the policy did not change",
    "memory-grew": "the memory that is used grew from the first rows to the last",
    "growing-gradient": "grad_norm grew a hundredfold",
    "stalled": "the log ends in a long silence, without an error",
    "standing": "the log ends while the run starts, retries or has no step yet",
    "ray-silent": "nothing came after Ray's start, for a long time",
    "large-gradient": "grad_norm is above 10 in most rows",
    "engine-differs": "the engine's log-probabilities are more than 1 away from the trainer's, in all of the last rows",
    "engine-drifts": "the engine's log-probabilities are more than 0.15 off the trainer's; the reward hardly rose",
    "ratio-of-sums": "the importance sampling ratio is far from 1, and the log-probability of a token hardly differs",
    "biased-ratio": "the importance sampling ratio is far from 1, from the first row on",
    "no-steps": "the run ended without one training step",
}
"""The facts and what they mean; a knowledge entry may match on any of them."""

GROWTH = 100.0
"""Growth of the median grad_norm, first to last quarter, that no healthy run shows."""

LARGE = 10.0
"""grad_norm of healthy GRPO runs lies between 0.05 and about 2 before clipping; only beside other clues does a larger
one mean something."""

_ENGINE_DIFFERS, LOST_BY_THE_ENGINE = "engine_difference", 3
"""The mean difference of a token's log-probability between engine and trainer: 0.01 or so where both have the same
weights, and above 1 in so many rows where they have not (slime logs 6 for rubbish)."""

DRIFTED_APART, HARDLY = 0.15, 0.1
"""The same beside a reward that ends where it began (or above it by chance, or by this share): other kernels and
roundings give less (slime asks for less than 0.01, an engine in FP8 has some hundredths)."""

ROUNDED_APART = 0.05
"""... and below this the weights are the same."""

RATIO_FLOOR = 0.8
"""A mean sampling ratio below this throws a fifth of the gradient away; top_k=50 gives 0.17."""

_OF_REWARD_MODEL = {"margin", "min_reward", "max_reward"}
"""What is logged where a reward model is trained: the mean of its rewards is an offset that means nothing."""

_OF_SURROUNDINGS = re.compile(
    r"(?:^|[ /_])(?:env|tools?|search\w*|sandbox|turns?|empty\w*|retriev\w*|judge\w*)(?=[/_ ])"
)
_OF_POLICY = re.compile(r"\b(?:entropy|kl|grad_norm) ")
_OF_MEMORY = re.compile(
    r"(?:cpu|host|ram|sys\w*)_?mem|mem\w*_(?:cpu|host|ram)|(?:^|[/_.])(?:rss|ram)(?:_|$)|cpu_memory"
)
CHANGED_ROWS, CHANGED_TIMES, CHANGED_SHARE, CHANGED_MOST = 8, 6.0, 0.5, 5
"""A metric broke where a run did if the median of so many rows after it is so many of its usual deviations, and this
share of itself, away from that of so many rows before; that many are told, the farthest first."""

MEMORY_TIMES, MEMORY_STILL = 1.5, 0.2
"""Memory grows without end if it ends at so many times its first quarter's, with this share of the growth in the last
quarter: what fills a cache levels off."""


def facts_of(rows: list[Row], broken: list[Row], finished: Row | None) -> dict[str, list[Row]]:
    """What rows show: fact (of `FACTS`) -> the rows that show it.

    Args:
        rows: those of the run, evenly spread where it has very many.
        broken: those with a gradient that is not finite, wherever they are.
        finished: the trainer's summary, where it tells of no training step.
    """
    facts: dict[str, list[Row]] = {}
    rows = _as_of_a_policy(as_float32(rows))
    if not rows:
        return {"no-steps": [finished]} if finished else {}
    _rows_broken.look(facts, rows, broken)
    _rows_of_policy.without_signal(facts, rows)
    _rows_of_policy.collapse(facts, rows)
    _rows_of_loss.diverged(facts, rows)
    _rows_of_policy.one_answer(facts, rows)
    _broke_with_it(facts, rows)
    _rows_of_policy.since(facts, rows)
    _rows_of_loss.jumped(facts, rows)
    _grown_memory(facts, rows)
    _rows_of_reward.jumped(facts, rows)
    _rows_of_reward.part_lost(facts, rows)
    _no_rate(facts, rows)
    _rows_of_policy.shape(facts, rows)
    for asked in (
        _rows_of_loss.always_zero,
        _rows_of_loss.vanished,
        _rows_of_loss.gradient_lost,
        _rows_of_loss.displaced,
    ):
        asked(facts, rows)
    for asked in (_large_gradient, _engine, _ratio):
        asked(facts, rows)
    return facts


def _of_pairs(row: Row) -> bool:
    """Whether it is of DPO, as LLaMA-Factory's trainer_log.jsonl has it: the reward of the chosen answers, and
    how often it is the larger one; nothing of answers that were generated."""
    names = row.values.keys()
    return names >= {"accuracy", "reward", "loss"} and not any(
        name != "reward" and (OF_RL.search(name) or name == "entropy") for name in names
    )


def _as_of_a_policy(rows: list[Row]) -> list[Row]:
    """The rows without rewards that are none of a policy's, and with an entropy in place of a loss of it."""
    rows = [
        replace(row, values={name: value for name, value in row.values.items() if name != "reward"})
        if row.values.keys() >= _OF_REWARD_MODEL or _of_pairs(row)
        else row
        for row in rows
    ]
    entropies = column(rows, "entropy")
    if not entropies or max(entropies) >= 0:
        return rows
    return [
        replace(row, values=row.values | {"entropy": -row.values["entropy"]}) if "entropy" in row.values else row
        for row in rows
    ]


def _broke_with_it(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """What else broke where the run did, and where that was."""
    for name in ("collapse", "one-answer", "kl-diverged", "loss-diverged", "nothing-left"):
        if len(facts.get(name, ())) > 1 and (
            changed := _changed_at(rows, facts[name][1 if name != "one-answer" else 0])
        ):
            facts[name] = [*facts[name][:2], changed]
            if name == "collapse" and _OF_SURROUNDINGS.search(changed.text) and not _OF_POLICY.search(changed.text):
                facts["surroundings-broke"] = [changed]


def _changed_at(rows: Sequence[Row], onset: Row) -> Row | None:
    """What else broke at a row, as a row whose text says it."""
    at = next((index for index, row in enumerate(rows) if row.line >= onset.line), 0)
    before, after = rows[max(at - CHANGED_ROWS, 0) : at], rows[at + 1 : at + 1 + CHANGED_ROWS]
    if min(len(before), len(after)) < ENOUGH:
        return None
    found: list[tuple[float, str]] = []
    for name in before[-1].values:
        one, other = (column(part, name) for part in (before, after))
        if min(len(one), len(other)) < ENOUGH or not all(map(math.isfinite, (*one, *other))):
            continue
        was, now, spread = median(one), median(other), stdev(one)
        if abs(now - was) > max(CHANGED_TIMES * spread, CHANGED_SHARE * abs(was), ROUNDING):
            found.append((abs(now - was) / max(spread, ROUNDING), f"{name} {was:.3g} -> {now:.3g}"))
    if not found:
        return None
    told = [text for _, text in sorted(found, reverse=True)[:CHANGED_MOST]]
    return Row(onset.line, f"what changed there: {', '.join(told)}", {})


def _no_rate(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    rates = column(rows, "learning_rate")
    if len(rates) > 2 * ENOUGH and not any(rates):
        facts["no-learning-rate"] = rows[-1:]


def _large_gradient(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    norms = column(rows, "grad_norm")
    late = norms[-max(len(norms) // QUARTERS, 1) :]
    if len(norms) >= TREND_ROWS and all(map(math.isfinite, late)):
        before = median(norms[: max(len(norms) // QUARTERS, 1)])
        if 0 < before < math.inf and median(late) > GROWTH * before:
            facts["growing-gradient"] = [rows[0], rows[-1]]
    if len(norms) >= ENOUGH and median(norms) > LARGE and all(map(math.isfinite, norms)):
        facts["large-gradient"] = [rows[-1]]


def _engine(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    differ = rows_with(rows, _ENGINE_DIFFERS)[-LOST_BY_THE_ENGINE:]
    if len(differ) == LOST_BY_THE_ENGINE and min(column(differ, _ENGINE_DIFFERS)) > 1:
        facts["engine-differs"] = differ
        return
    apart, rewards = column(rows, _ENGINE_DIFFERS), column(rows, "reward")
    if min(len(apart), len(rewards)) < TREND_ROWS or not all(map(math.isfinite, (*apart, *rewards))):
        return
    size = len(rewards) // QUARTERS
    began, ended = rewards[:size], rewards[-size:]
    by_chance = 2 * stdev(began) / math.sqrt(size)
    if median(apart[-FIRST:]) > DRIFTED_APART and mean(ended) <= mean(began) + max(by_chance, HARDLY * mean(began)):
        facts["engine-drifts"] = differ


def _ratio(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A sampling ratio that throws much of the gradient away, or multiplies it."""
    ratios, apart = column(rows, "ratio"), column(rows, _ENGINE_DIFFERS)
    # A sampling filter acts from the first row on; a ratio that falls later is drift.
    low = len(ratios) >= ENOUGH and median(ratios) < RATIO_FLOOR and median(ratios[:FIRST]) < RATIO_FLOOR
    of_sums = len(apart) >= ENOUGH and median(apart) < ROUNDED_APART
    high = len(ratios) >= ENOUGH and median(ratios) > 1 / RATIO_FLOOR and of_sums
    if low or high:
        facts["biased-ratio"] = rows_with(rows[-LAST_ROWS:], "ratio")
    if (low and of_sums) or high:
        facts["ratio-of-sums"] = facts["biased-ratio"]


def _grown_memory(facts: dict[str, list[Row]], rows: Sequence[Row]) -> None:
    """Host memory that grows to the end of the rows."""
    names = [name for name in rows[-1].values if _OF_MEMORY.search(name) and "gpu" not in name and "cuda" not in name]
    for name in names:
        values = [row.values[name] for row in rows if name in row.values and math.isfinite(row.values[name])]
        if len(values) < TREND_ROWS:
            continue
        size = len(values) // QUARTERS
        quarters = [median(values[at * size : (at + 1) * size]) for at in range(QUARTERS)]
        growth = quarters[-1] - quarters[0]
        steps = [after - before for before, after in zip(quarters, quarters[1:], strict=False)]
        if 0 < quarters[0] * MEMORY_TIMES < quarters[-1] and min(steps) > MEMORY_STILL * growth:
            text = f"{name} grew from {values[0]:.4g} to {values[-1]:.4g} in {len(values)} rows"
            facts["memory-grew"] = [Row(rows[-1].line, text, {})]
