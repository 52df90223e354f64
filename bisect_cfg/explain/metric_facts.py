"""What metric rows show: facts, in the words that the knowledge files match on.

`facts` asks each of `_QUESTIONS` of the rows of a run; an answer is the rows that show it. A fact is not yet a failure:
some, like a reward of 0 in the last rows, only mean something beside others. What trials call a failure too (collapse,
divergence, no gradient, dead rewards, numbers that stay non-finite) is `common.failures.health`'s to say. The loss says
little in GRPO, where it is zero on healthy runs; gradient norm, entropy and the spread of rewards say much.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median

from bisect_cfg.common.failures import drift, health
from bisect_cfg.common.failures.metric_rows import LARGEST, MetricRow, Rows, is_of_training

__all__ = ["FACTS", "MetricRow", "Rows", "facts"]

EVIDENCE = 3  # rows shown for a fact

FIRST, ENOUGH, TREND_ROWS, QUARTERS, POINTS = 5, 4, 20, 4, 400
"""Rows that say how a run began; from which "all rows" means something; from which a growth is a trend, told by the
quarters of a run; to which a longer run is averaged before `health` looks at it."""

ALWAYS = 0.95  # share of rows that counts as all of them: an evaluation, a skipped step
GROWTH, LARGE = 100.0, 10.0
"""Growth of the median grad_norm from first to last quarter, and a median, that healthy GRPO (0.05 to 2) never has."""

DIVERGED_KL, DRIFTED_KL = 5.0, 1.0
"""Healthy runs have a KL below about 1: beyond, a NaN may be the KL's own overflow; beyond 5, a policy is far off."""

NOISE = health.NOISE_SHARE  # of the entropy it began with is that of noise
LEFT = 0.1  # of the length of a lost policy's answers this share is next to nothing

JUMP_ROWS, VANISHED_ROWS, LOST_ROWS, LEARNING = 4, 5, 8, 0.1
"""Rows for which a loss stays up after a jump (two are a bad batch); of a loss, of a gradient of exactly 0 that are no
chance; the loss above which there was something to learn."""

JUMP_LEVEL, JUMP_SHARE, JUMP_KL = 8, 0.3, 10.0
"""A reward that rises between two medians of so many rows by this share of its best, with so many times the KL and half
the entropy, has found a trick: learning takes hundreds of rows for that."""

ROUNDED = 0.05
"""Mean difference of a token's log-probability between engine and trainer up to which their weights are the same."""

MEMORY_TIMES, MEMORY_STILL = 1.5, 0.2
"""Host memory grows without end at so many times its first quarter's, with this share of the growth in each quarter:
what fills a cache levels off."""

PART, PART_LEFT = 0.05, 0.2  # a part of the reward was there above this, and is gone below this share of its best
FAR_BELOW = 0.75  # share of the longest completion below which a mean length is none of answers that were cut off

_OF_RL = re.compile(r"(?:reward|kl|ratio|advantages?)\b|.*(?:completion|rollout|actor|response|clip_ratio|policy)")
_REWARD = re.compile(r"rewards?(?:$|[/_](?!chosen|rejected|margins|accuracies))")
_RIGHT_ANSWERS = re.compile(r"rewards/\S*(?:accura|correct|exact|answer|solve|math|code|task)(?!.*std$)")
_MEMORY = re.compile(r"(?!.*(?:gpu|cuda)).*(?:(?:cpu|host|ram|sys\w*)_?mem|mem\w*_(?:cpu|host|ram)|(?:\b|_)rss(?:_|$))")

Shown = Sequence[MetricRow]


class _Run:
    """The rows of a training, with what several questions need."""

    def __init__(self, rows: Shown) -> None:
        rows = [replace(row, values=_as_of_a_policy(row.values)) for row in rows]
        self.summary = [row for row in rows if "train_runtime" in row.values]
        self.evaluated = [row for row in self.of("eval_loss", of=rows) if math.isfinite(row.values["eval_loss"])]
        self.rows = [row for row in rows if row.values and is_of_training(row)]

    def of(self, *names: str, of: Shown | None = None) -> list[MetricRow]:
        """The rows that have these metrics."""
        return [row for row in (self.rows if of is None else of) if row.values.keys() >= {*names}]

    def column(self, name: str) -> list[float]:
        """The values of a metric."""
        return _column(self.rows, name)

    def always(self, name: str, holds: Callable[[float], bool] = lambda value: value == 0) -> list[MetricRow]:
        """The rows that have a metric, if it holds of it in nearly all of them, and in all of the last ones."""
        held = list(map(holds, self.column(name)))
        most = len(held) >= ENOUGH and all(held[-ENOUGH:]) and sum(held) >= ALWAYS * len(held)
        return self.of(name) if most else []

    @functools.cached_property
    def rewarded(self) -> bool:
        """Whether it learns from rewards: its loss says little then."""
        return health.has_rewards([row.values for row in self.rows])

    @functools.cached_property
    def points(self) -> list[MetricRow]:
        """At most `POINTS` rows: the mean of neighbours where there are more, so that noise is no change."""
        size = -(-len(self.rows) // POINTS) or 1
        parts = [self.rows[at : at + size] for at in range(0, len(self.rows), size)]
        return [replace(one[0], values={name: _mean(_column(one, name)) for name in one[0].values}) for one in parts]

    @functools.cached_property
    def symptoms(self) -> dict[str, int]:
        """The kinds that `health` sees, and the place among `points` where it was certain."""
        steps = [{**row.values, "step": at} for at, row in enumerate(self.points)]
        # Its rule for a loss needs sixteen steps, since a run may go on; in a log that is over half of them are enough.
        longer = [*steps, *({**row, "step": len(steps) - 1} for row in steps[-health.COLLAPSE_WINDOW :])]
        found = {symptom.kind: symptom.step for symptom in health.symptoms(steps, ended=True)}
        risen = [symptom.step for symptom in health.symptoms(longer, ended=True) if symptom.kind == "diverged"]
        return {**found, **({"diverged": risen[0]} if risen else {})}

    def came_back(self, at: int, *names: str) -> bool:
        """Whether all of these metrics that had left their level by a place are half of the way back at the end; of
        entropy, which falls as the task is learnt again, a quarter."""
        back = []
        for name in names:
            values = [row.values.get(name, math.nan) for row in self.points]
            parts = values[: max(at - health.COLLAPSE_WINDOW, FIRST)], values[max(at - 1, 0) : at + 1], values[at + 1 :]
            before, there, late = (list(filter(math.isfinite, part)) for part in parts)
            if before and there and len(late) >= ENOUGH:
                level, lost, ended = median(before), median(there), median(late[-LOST_ROWS:])
                if abs(lost - level) > max(abs(lost), abs(level)) / 2:
                    back.append((ended - lost) / (level - lost) > (1 / 4 if name == "entropy" else 1 / 2))
        return bool(back) and all(back)


def _as_of_a_policy(values: dict[str, float]) -> dict[str, float]:
    """Values as float32, without the reward of a reward model or of DPO's chosen answers, and with an entropy in place
    of a loss of it."""
    values = {n: math.copysign(math.inf, v) if abs(v) > LARGEST else v for n, v in values.items()}
    pairs = values.keys() >= {"accuracy", "reward", "loss"} and not any(
        name != "reward" and (_OF_RL.match(name) or name == "entropy") for name in values
    )
    if values.keys() >= {"margin", "min_reward", "max_reward"} or pairs:
        values.pop("reward", None)
    if values.get("entropy", 0.0) < 0:
        values["entropy"] = -values["entropy"]
    return values


def _column(rows: Shown, name: str) -> list[float]:
    return [row.values[name] for row in rows if name in row.values]


def _mean(values: Sequence[float]) -> float:
    try:
        return fmean(values)
    except ValueError:  # of infinities of both signs
        return math.nan


def _finite(*columns: Sequence[float]) -> bool:
    return all(math.isfinite(value) for column in columns for value in column)


def _quarters(values: Sequence[float], level: Callable[[Sequence[float]], float] = _mean) -> list[float]:
    size = max(len(values) // QUARTERS, 1)
    return [level(values[at * size : (at + 1) * size]) for at in range(QUARTERS)]


# ---- numbers that are not finite


def _broken(run: _Run, nan: bool) -> list[MetricRow]:
    """Rows without a finite gradient, one of them NaN or none, of a run that ends so or had many in a row: one alone
    is a scaler finding its scale."""
    rows = run.of("grad_norm")
    bad = [row for row in rows if not math.isfinite(row.values["grad_norm"])]
    steps = [{"step": at, "grad_norm": row.values["grad_norm"]} for at, row in enumerate(rows)]
    stays = bool(bad) and (bad[-1] is rows[-1] or bool(health.symptoms(steps, ended=False)))
    is_nan = any(math.isnan(row.values["grad_norm"]) for row in bad)
    return bad if stays and is_nan is nan and (nan or len(bad) > 1 or len(rows) == 1) else []


def _was_finite(run: _Run) -> Shown:
    finite = [row for row in run.of("grad_norm") if math.isfinite(row.values["grad_norm"])]
    return finite[:1] if _broken(run, nan=True) or _broken(run, nan=False) else ()


def _non_finite_loss(run: _Run) -> Shown:
    rows = run.of("loss")
    bad = [row for row in rows if not math.isfinite(row.values["loss"])]
    ends_bad = bool(bad) and bad[-1] is rows[-1]
    alone = ends_bad and math.isnan(bad[-1].values["loss"]) and "grad_norm" not in bad[-1].values
    return bad if alone or (len(bad) > 1 and (ends_bad or len(bad) >= health.NON_FINITE_STREAK)) else ()


def _kl_overflow(run: _Run) -> Shown:
    largest, finite_before, rows = 0.0, False, run.of("kl")
    for at, row in enumerate(rows):
        value, gradient = row.values["kl"], row.values.get("grad_norm", math.nan)
        if math.isfinite(value):
            largest, finite_before = max(largest, value), True
            if not math.isfinite(row.values.get("grad_norm", 0.0)):
                return ()  # all was lost before
            continue
        later = sum(math.isfinite(row.values["kl"]) for row in rows[at:])  # a batch without a token for it
        goes_on = later >= max(ENOUGH, (len(rows) - at) / 2)
        own = math.isinf(value) or (finite_before and (math.isfinite(gradient) or largest > DRIFTED_KL))
        return [row] if own and not goes_on else ()
    return ()


def _missing(name: str) -> Callable[[_Run], Shown]:
    """Rows with a NaN after the first number, or all; a column that nobody fills is no training with rewards."""

    def rows(run: _Run) -> Shown:
        told = run.of(name)
        if _broken(run, nan=True) or not any(n != name and _OF_RL.match(n) for row in told for n in row.values):
            return ()
        begun = next((at for at, row in enumerate(told) if not math.isnan(row.values[name])), 0)
        return [row for row in told[begun:] if math.isnan(row.values[name])]

    return rows


def _reward_nan(run: _Run) -> Shown:
    first = next((at for at, row in enumerate(run.rows) if math.isnan(row.values.get("grad_norm", 0.0))), 0)
    pair = run.rows[first - 1 : first + 1] if first else []
    there = [any(_REWARD.match(name) and math.isnan(value) for name, value in row.values.items()) for row in pair]
    return pair if there == [False, True] else ()


def _logits_nan(run: _Run) -> Shown:
    rows = run.of("logits/chosen")
    finite = all(_finite([row.values.get(name, 0.0) for name in ("loss", "grad_norm")]) for row in rows)
    return run.always("logits/chosen", math.isnan) if finite else ()


# ---- the policy


def _collapse(run: _Run) -> Shown:
    at = run.symptoms.get("collapse")
    if at is None or run.came_back(at, "reward", "entropy"):
        return ()
    return [run.points[max(at - health.COLLAPSE_WINDOW, 0)], run.points[at], run.points[-1]]


def _kl_diverged(run: _Run) -> Shown:
    kls, rewards = run.column("kl"), run.column("reward")
    late = kls[-max(len(kls) // QUARTERS**2, ENOUGH) :]
    if min(len(kls), len(rewards)) < QUARTERS * ENOUGH or not _finite(late) or min(late) <= DIVERGED_KL:
        return ()
    best = max(_mean(rewards[:FIRST]), *_quarters(rewards))
    near = [row for row in run.of("kl") if row.values["kl"] <= max(DRIFTED_KL, 2 * median(kls[:FIRST]))]
    return [(near or run.rows)[-1], run.rows[-1]] if best > 0 and _mean(rewards[-FIRST:]) < best / 2 else ()


def _all_clipped(run: _Run) -> Shown:
    return run.always("clipped_ratio", lambda share: share >= health.CUT_OFF)


def _entropy_rose(run: _Run) -> Shown:
    """Of a lost policy that writes noise."""
    values = list(filter(math.isfinite, run.column("entropy")))
    lost = len(values) > FIRST and _collapse(run)
    return run.of("entropy")[-1:] if lost and median(values[-FIRST:]) > NOISE * median(values[:FIRST]) else ()


def _length_fell(run: _Run) -> Shown:
    """Of a lost policy, from the median of the first rows to that of the last."""
    values = list(filter(math.isfinite, run.column("length")))
    lost = len(values) > FIRST and (_collapse(run) or _kl_diverged(run))
    return run.of("length")[-1:] if lost and median(values[-FIRST:]) < LEFT * median(values[:FIRST]) else ()


def _ends_unseen(run: _Run) -> Shown:
    rows = run.of("length", "completions/max_length")
    shares = [row.values["length"] / row.values["completions/max_length"] for row in rows
              if row.values["completions/max_length"] > 0]  # fmt: skip
    return rows if len(shares) >= TREND_ROWS and median(shares) < FAR_BELOW and _all_clipped(run) else ()


# ---- rewards


def _dead_reward(run: _Run) -> Shown:
    """Equal rewards in all groups, to the last row; those of a task that has been learnt say nothing."""
    rewards = run.column("reward")
    grown = len(rewards) >= ENOUGH and _mean(rewards[:FIRST]) < _mean(rewards[-FIRST:])
    if grown and min(rewards[-FIRST:]) > 0.9 * max(1.0, *rewards):
        return ()
    constant = len({*rewards}) == 1 and not run.column("reward_std") and run.always("grad_norm")
    equal = run.always("reward_std") or run.always("frac_reward_zero_std", lambda share: share >= 1)
    return equal or (run.of("reward") if constant else ())


def _is_unrisen(run: _Run) -> bool:
    """Whether the reward is no higher in the last quarter, by a tenth of the largest; unknown is no."""
    rewards = run.column("reward")
    if len(rewards) < TREND_ROWS or not _finite(rewards):
        return False
    quarters = _quarters(rewards)
    return quarters[-1] - quarters[0] <= max(map(abs, rewards)) / 10


def _cut_off_in_vain(run: _Run) -> Shown:
    """A reward that a lost policy had earned was earned by answers that were cut off as well."""
    if _collapse(run) or _kl_diverged(run):
        return ()
    return _all_clipped(run) if _dead_reward(run) or _is_unrisen(run) else ()


def _reward_jumped(run: _Run) -> Shown:
    rows, size = [row for row in run.points if row.values.keys() >= {"reward", "kl", "entropy"}], JUMP_LEVEL
    reward, kl, entropy = ([row.values[name] for row in rows] for name in ("reward", "kl", "entropy"))
    if len(rows) < 2 * size or not _finite(reward, kl, entropy):
        return ()
    for at in range(size, len(rows) - size + 1):
        was, now = median(reward[at - size : at]), median(reward[at : at + size])
        far, wide = median(kl[at - size : at]), median(entropy[at - size : at])
        risen = now - was > JUMP_SHARE * max(map(abs, reward)) and median(reward[-size:]) - was > (now - was) / 2
        if risen and median(kl[-size:]) > JUMP_KL * far > 0 and median(entropy[-size:]) < wide / 2:
            return rows[at - 1 : at + 1]
    return ()


def _part_lost(run: _Run) -> Shown:
    """A reward for right answers that was given up: little of it is left, and the total rose, or it is nothing."""
    rows, total = run.of("reward"), run.column("reward")
    if len(total) < TREND_ROWS or not _finite(total):
        return ()
    rose = _quarters(total)[-1] > _quarters(total)[0]
    if max(map(abs, total[-FIRST:])) <= max(map(abs, total)) / 100:
        return ()  # all of the reward is gone
    for name in filter(_RIGHT_ANSWERS.match, rows[-1].values):
        values = run.column(name)
        if len(values) == len(total) and _finite(values) and (parts := _quarters(values))[0] > PART:
            ended, best = _mean(values[-max(len(values) // 10, FIRST) :]), max(parts)
            if (rose and parts[-1] < PART_LEFT * best) or ended < PART_LEFT / 2 * best:
                return [[row for row in rows if row.values.get(name, 0.0) >= best / 2][-1], rows[-1]]
    return ()


# ---- loss and gradient


def _loss_diverged(run: _Run) -> Shown:
    at = run.symptoms.get("diverged")
    if at is None or _broken(run, nan=True) or _non_finite_loss(run) or run.came_back(at, "loss"):
        return ()
    return [run.points[max(at - health.RISEN_STEPS, 0)], run.points[at], run.points[-1]]


def _loss_jumped(run: _Run) -> Shown:
    rows = run.of("loss")
    values = [row.values["loss"] for row in rows]
    if run.rewarded or not _finite(values) or min(values[:ENOUGH], default=0) < 0:
        return ()
    for at in range(ENOUGH, len(values) - JUMP_ROWS):
        level = median(values[at - ENOUGH : at])
        if min(values[at : at + JUMP_ROWS]) > max(health.RISEN_TIMES * level, level + health.RISEN_BY):
            return rows[at - 1 : at + 1]
    return ()


def _zero_from_a_row_on(run: _Run, name: str, zeros: int) -> list[MetricRow]:
    """The last row of a supervised training in which a metric was not 0, and those after it, if they are so many."""
    rows = run.of("loss", name)
    at = next((at for at in range(len(rows) - 1, -1, -1) if rows[at].values[name] != 0), -1)
    return rows[at:] if not run.rewarded and at >= 0 and len(rows) - at - 1 >= zeros else []


def _loss_vanished(run: _Run) -> Shown:
    rows = _zero_from_a_row_on(run, "loss", VANISHED_ROWS)
    return rows[:2] if rows and rows[0].values["loss"] > LEARNING else ()


def _gradient_lost(run: _Run) -> Shown:
    rows = _zero_from_a_row_on(run, "grad_norm", LOST_ROWS)
    learning = bool(rows) and min(row.values["loss"] for row in rows[1:]) > LEARNING
    return rows[:2] if learning and rows[0] not in run.rows[:ENOUGH] else ()


def _is_large(norm: float) -> bool:
    return LARGE < norm < math.inf


def _growing_gradient(run: _Run) -> Shown:
    norms = run.column("grad_norm")
    quarters = _quarters(norms, median) if len(norms) >= TREND_ROWS and _finite(norms) else [0.0]
    return [run.rows[0], run.rows[-1]] if quarters[-1] > GROWTH * quarters[0] > 0 else ()


def _held_out_loss_rose(run: _Run) -> Shown:
    values, losses = [row.values["eval_loss"] for row in run.evaluated], run.column("loss")
    if run.rewarded or len(values) < ENOUGH or len(losses) < 2 * FIRST or not _finite(losses):
        return ()
    best = min(values)
    risen = values[-1] > max(2 * best, best + 1 / 2) and values[-3] < values[-2] < values[-1]
    falls = _mean(losses[-FIRST:]) < _mean(losses[:FIRST])
    return [run.evaluated[values.index(best)], run.evaluated[-1]] if risen and falls else ()


# ---- engine and machine


def _biased_ratio(run: _Run) -> Shown:
    """A filter acts from the first row on; a ratio that falls later is drift."""
    ratios, apart = run.column("ratio"), run.column("engine_difference")
    low = len(ratios) >= ENOUGH and max(median(ratios), median(ratios[:FIRST])) < drift.RATIO_FLOOR
    of_sums = len(apart) >= ENOUGH and median(apart) < ROUNDED
    return run.of("ratio") if low or (of_sums and ratios and median(ratios) > 1 / drift.RATIO_FLOOR) else ()


def _engine_drifts(run: _Run) -> Shown:
    apart = run.column("engine_difference")
    far = len(apart) >= TREND_ROWS and _finite(apart) and _quarters(apart)[-1] > health.ENGINE_APART
    return run.of("engine_difference")[-1:] if far and _is_unrisen(run) else ()


def _memory_grew(run: _Run) -> Shown:
    for name in filter(_MEMORY.match, run.rows[-1].values if run.rows else ()):
        values = list(filter(math.isfinite, run.column(name)))
        quarters = _quarters(values, median) if len(values) >= TREND_ROWS else [0.0]
        growth = [after - before for before, after in zip(quarters, quarters[1:], strict=False)]
        if 0 < quarters[0] * MEMORY_TIMES < quarters[-1] and min(growth) > MEMORY_STILL * sum(growth):
            return [run.of(name)[0], run.of(name)[-1]]
    return ()


def _no_steps(run: _Run) -> Shown:
    trained = any(row.values.get(name, 0) > 0 for row in run.summary for name in ("loss", "epoch", "step"))
    return run.summary if not run.rows and not trained else ()


_QUESTIONS: tuple[tuple[str, str, Callable[[_Run], Shown]], ...] = (
    ("rows", "metric rows were printed", lambda run: run.rows[:1] + run.rows[1:][-1:]),
    ("non-finite-gradient", "grad_norm is NaN, and stays so", lambda run: _broken(run, nan=True)),
    ("infinite-gradient", "grad_norm is infinite more than once, never NaN", lambda run: _broken(run, nan=False)),
    ("was-finite", "grad_norm was finite in other rows", _was_finite),
    ("non-finite-loss", "loss is NaN, or infinite more than once", _non_finite_loss),
    ("reward-nan", "a reward or its spread is NaN in the row in which the gradient first is", _reward_nan),
    ("logits-nan", "the logged logits are NaN in every row, the loss and the gradient are not", _logits_nan),
    ("kl-overflow", "kl is infinite, or NaN after having been finite", _kl_overflow),
    ("missing-reward", "reward is None or NaN", _missing("reward")),
    ("undefined-spread", "reward_std is NaN", _missing("reward_std")),
    ("dead-reward", "all rewards of a group are equal, from the first rows to the last", _dead_reward),
    ("reward-jumped", "the reward jumped up, and KL and entropy broke away with it", _reward_jumped),
    ("part-lost", "the reward for right answers is gone, while the total did not fall", _part_lost),
    ("collapse", "the policy collapsed, and did not come back", _collapse),
    ("kl-diverged", "kl to the reference has exploded, and half of the reward is gone", _kl_diverged),
    ("entropy-rose", "the entropy of a lost policy is that of noise", _entropy_rose),
    ("length-fell", "the answers became a few tokens long", _length_fell),
    ("all-clipped", "every completion was cut off at max_completion_length", _all_clipped),
    ("cut-off-in-vain", "every completion was cut off, and the reward never rose", _cut_off_in_vain),
    ("ends-unseen", "nearly every completion counts as cut off, though most are far below the longest", _ends_unseen),
    ("loss-diverged", "the loss rose far above the level it had held, and stayed there to the end", _loss_diverged),
    ("loss-jumped", "the loss jumped from one row to the next, far above what it was", _loss_jumped),
    ("loss-vanished", "the loss fell from one row to the next to exactly 0, and stays there", _loss_vanished),
    ("no-gradient", "grad_norm is exactly 0, from the first rows to the last", lambda run: run.always("grad_norm")),
    ("gradient-lost", "grad_norm is exactly 0 from one row on; the loss is not", _gradient_lost),
    ("growing-gradient", "grad_norm grew a hundredfold", _growing_gradient),
    ("large-gradient", "grad_norm is above 10 in nearly all rows", lambda run: run.always("grad_norm", _is_large)),
    ("no-learning-rate", "learning_rate is exactly 0 in every row",
     lambda run: run.always("learning_rate") if len(run.rows) > 2 * ENOUGH else ()),
    ("held-out-loss-rose", "the loss on held-out data doubled, while that of training fell", _held_out_loss_rose),
    ("biased-ratio", "the importance sampling ratio is far from 1, from the first row on", _biased_ratio),
    ("engine-drifts", "the engine's probabilities are far off the trainer's; the reward hardly rose", _engine_drifts),
    ("memory-grew", "the host memory that is used grew from the first rows to the last", _memory_grew),
    ("no-steps", "the run ended without one training step", _no_steps),
)  # fmt: skip

FACTS = {name: words for name, words, _ in _QUESTIONS}
"""The facts and what they mean; a knowledge entry may match on any of them."""


def facts(rows: Sequence[MetricRow]) -> dict[str, list[MetricRow]]:
    """The facts that the rows of a run show, in the order of its steps: name -> up to `EVIDENCE` rows that show it."""
    run = _Run(rows)
    shown = {name: list(question(run)) for name, _, question in _QUESTIONS}
    return {name: found[: EVIDENCE - 1] + found[EVIDENCE - 1 :][-1:] for name, found in shown.items() if found}
