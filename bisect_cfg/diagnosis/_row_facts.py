"""What the rows of a run's metrics say went wrong: facts, in the words the knowledge files match on.

Loss says little: in GRPO it is zero on healthy runs. Gradient norm, entropy and the spread of rewards say much.
Collapse is `health`'s, asked of the last stretch between change points. Nothing is read here: `_metrics` finds the
rows in a log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, linear_regression, median, stdev

from bisect_cfg.diagnosis import health


@dataclass(frozen=True)
class Row:
    line: int
    text: str
    values: dict[str, float]


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
    "no-reward": "the reward is exactly 0 in every row",
    "no-gradient": "grad_norm is exactly 0, from the first rows to the last",
    "at-chance": "the loss stays at ln 2, and held-out pairs are told apart by chance alone",
    "held-out-loss-rose": "the loss on held-out data has doubled since its best, while that of training fell",
    "all-clipped": "every completion was cut off at max_completion_length",
    "loss-vanished": "the loss fell from one row to the next to exactly 0, and stays there",
    "no-loss": "loss is exactly 0, from the first row to the last",
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
    "large-gradient": "grad_norm is above 10 in most rows",
    "engine-differs": "the engine's log-probabilities are more than 1 away from the trainer's, in all of the last rows",
    "biased-ratio": "the importance sampling ratio is far from 1, from the first row on",
    "no-steps": "the run ended without one training step",
}
"""The facts and what they mean; a knowledge entry may match on any of them."""
KNOWN = {
    "loss",
    "grad_norm",
    "reward",
    "reward_std",
    "entropy",
    "kl",
    "frac_reward_zero_std",
    "clipped_ratio",
    "learning_rate",
}
"""Names by which a row of a table or a file is told from other numbers."""

LAST_ROWS = 256
ENOUGH = 4
"""Rows before "all rows" means anything: two or three equal groups happen on healthy runs."""

FIRST = 5
"""Rows that say how a run began."""

MOST = 0.9
"""Share of groups, all of whose completions get the same reward, that leaves next to nothing to learn from."""

ALWAYS = 0.95
"""Share of rows that counts as all of them: a row of an evaluation, a step that was skipped."""

GROWTH = 100.0
"""Growth of the median grad_norm, first to last quarter, that no healthy run shows."""

TREND_ROWS = 20
"""Rows from which on such a growth is a trend: five in each quarter, of which a single peak moves no median."""

LARGE = 10.0
"""grad_norm of healthy GRPO runs lies between 0.05 and about 2 before clipping; only beside other clues does a larger
one mean something."""

DRIFTED_KL = 1.0
"""KL to the reference above which a policy has moved far; NaN after it may be the KL term's own overflow."""

DIVERGED_KL = 5.0
"""KL above which, with half of the reward gone, a policy has left its reference; healthy runs stay below about 1."""

QUARTERS = 4
"""A trend is told by the quarters of a run: as many rows in each as say something, and late is the last of them."""

NOTHING_LEFT = 8
"""Rows without any signal at the end of a run that had one: it has nothing to learn from any more."""

GONE_ROWS = 5
NOTHING = 0.01
"""Rows at the end whose reward is below this share of its best level: noise does not give so many of them."""

NARROW = 0.05
NO_CHOICE = 0.01
SOLVED = BEST = 0.9
GIVEN_UP = 0.02
"""Where the spread of the rewards is below that share of its beginning, all completions are alike: because the task is
solved, or, with an entropy below `NO_CHOICE` and a reward below `SOLVED`, or where one reward that had been above
`GIVEN_UP` is exactly 0, because the policy writes one answer."""

CERTAIN, CERTAIN_SHARE = 0.06, 0.1
"""Entropy below both, this and this share of its beginning, where the reward rises no more: the policy has nothing left
to choose from, whatever the reward. Healthy runs of that entropy begin with little, or still learn."""

RISEN = 2.0
"""Entropy that has risen by this factor, in a policy that has collapsed, tells that it prints noise."""

STUMPS = 0.1
"""Length of the answers, as a share of that of the beginning, below which they are no answers any more, if the task is
not solved and all of a group get the same."""

LOST = 2
"""Rows at the end without any reward; beside a message that says why they count, alone they are nothing."""

LITTLE = 0.1
"""A reward below it, where the best is 1 or so, is small."""

DISPLACED_NATS, DISPLACED_TIMES = 200.0, 2.5
"""A chosen answer is an answer of some hundred tokens. That its log-probability falls by so much, to so many times what
it was, means that the model would not write it any more."""

ROUNDING = 1e-6
"""A mean of rewards that grew by less has not grown: rewards are printed with six digits or so."""

ABRUPT = 0.1
"""... which counts where the reward jumped by this share of itself at that row, and stayed."""

_ENGINE_DIFFERS, LOST_BY_THE_ENGINE = "engine_difference", 3
"""The mean difference of a token's log-probability between engine and trainer: 0.01 or so where both have the same
weights, and above 1 in so many rows where they have not (slime logs 6 for rubbish)."""

RATIO_FLOOR = 0.8
"""A mean sampling ratio below this throws a fifth of the gradient away; top_k=50 gives 0.17."""

COURSE = ("entropy", "grad_norm", "kl", "clipped_ratio")
"""What tells that a policy leaves its course. Each has to be beyond `DEPARTURE` times the range of the first half of
its rows and of where their trend leads, in each of at least `DEPARTED` rows until the end; a single peak comes back.
Of the KL alone `FAR` times as much says the same."""
DEPARTURE, DEPARTED, FAR = 1.5, 3, 10.0

BROKEN_STREAK = 8
"""Infinite gradients in a row, or NaN ones, after which no gradient scaler is still looking for its scale."""

POINTS = 400
"""Points of a series that change points are looked for in; a longer one is averaged."""

NAN_ROWS = 3
"""Rows at the end that are NaN: one may be of a batch that a scaler skips."""

_OF_REWARD_MODEL = {"margin", "min_reward", "max_reward"}
"""What is logged where a reward model is trained: the mean of its rewards is an offset that means nothing."""

_REWARD = re.compile(r"rewards?(?:$|[/_](?!chosen|rejected|margins|accuracies))")
_LOGITS = "logits/chosen"
"""The mean of the logits that DPO's trainers log beside the loss, which does not depend on it."""

OF_RL = re.compile(r"^(?:reward|kl|ratio|advantages?)\b|completion|rollout|actor|response|clip_ratio|policy|reward_std")
"""Names of metrics that only a training with rewards has; DPO's `rewards/chosen` are none of them."""


def _column(rows: Sequence[Row], name: str) -> list[float]:
    return [row.values[name] for row in rows if name in row.values]


def _rows_with(rows: Sequence[Row], *names: str) -> list[Row]:
    return [row for row in rows if row.values.keys() >= {*names}]


def _loss_vanished(facts: dict[str, list[Row]], rows: Sequence[Row]) -> None:
    """A loss that is learnt by, and is exactly 0 from one row on; what is learnt by heart gets there by and by."""
    at = next((at for at in range(len(rows) - 1, -1, -1) if rows[at].values["loss"] != 0), -1)
    if at >= 0 and len(rows) - at - 1 >= VANISHED_ROWS and rows[at].values["loss"] > VANISHED_FROM:
        if not health.has_rewards([row.values for row in rows]):
            facts["loss-vanished"] = [rows[at], rows[at + 1]]


VANISHED_ROWS, VANISHED_FROM = 5, 0.1
"""So many rows of 0 are no chance; a loss that was below that before may have been rounded to it."""


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
    entropies = _column(rows, "entropy")
    if not entropies or max(entropies) >= 0:
        return rows
    return [
        replace(row, values=row.values | {"entropy": -row.values["entropy"]}) if "entropy" in row.values else row
        for row in rows
    ]


def _reward_nan(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A reward that is NaN in the first row in which the gradient is, and not in the row before."""
    first = next((at for at, row in enumerate(rows) if math.isnan(row.values.get("grad_norm", 0.0))), 0)
    before, there = (
        any(_REWARD.match(name) and math.isnan(value) for name, value in row.values.items())
        for row in (rows[first - 1], rows[first])
    )
    if first and there and not before:
        facts["reward-nan"] = [rows[first - 1], rows[first]]


def _logps_nan(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Log-probabilities or rewards of DPO's answers that are logged as NaN to the end; the Trainer prints a loss of 0.0
    for it (logging_nan_inf_filter)."""
    for name in ("logps/chosen", "rewards/chosen"):
        late = [row for row in rows if name in row.values][-NAN_ROWS:]
        if len(late) == NAN_ROWS and all(
            math.isnan(row.values[name]) and re.search(r"\bnan\b", row.text, re.IGNORECASE) for row in late
        ):
            facts["non-finite-logps"] = late


def _logits_nan(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Logits that are logged as NaN (no empty column) in every row, beside a finite loss and gradient."""
    logged = [row for row in rows if _LOGITS in row.values]
    if len(logged) >= ENOUGH and all(
        math.isnan(row.values[_LOGITS])
        and re.search(r"\bnan\b", row.text, re.IGNORECASE)
        and all(math.isfinite(row.values.get(name, 0.0)) for name in ("loss", "grad_norm"))
        for row in logged
    ):
        facts["logits-nan"] = logged[-LAST_ROWS:]


def facts_of(rows: list[Row], broken: list[Row], finished: Row | None) -> dict[str, list[Row]]:
    """What rows show: fact (of `FACTS`) -> the rows that show it.

    Args:
        rows: those of the run, evenly spread where it has very many.
        broken: those with a gradient that is not finite, wherever they are.
        finished: the trainer's summary, where it tells of no training step.
    """
    facts: dict[str, list[Row]] = {}
    rows = _as_of_a_policy(rows)
    if not rows:
        return {"no-steps": [finished]} if finished else {}
    last = rows[-LAST_ROWS:]

    # One broken step that training recovered from is how a gradient scaler finds its scale.
    norms_rows = _rows_with(rows, "grad_norm")
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
    _logps_nan(facts, rows)
    bad_loss = [row for row in _rows_with(last, "loss") if not math.isfinite(row.values["loss"])]
    ends_bad = bool(bad_loss) and bad_loss[-1] is _rows_with(last, "loss")[-1]
    # A NaN with which the rows end says as much as several, if no gradient was finite all the same.
    lost = ends_bad and math.isnan(bad_loss[-1].values["loss"]) and "grad_norm" not in bad_loss[-1].values
    if lost or (len(bad_loss) > 1 and (ends_bad or len(bad_loss) >= BROKEN_STREAK)):
        facts["non-finite-loss"] = bad_loss
    was_finite = broken_before = False
    largest_kl = 0.0
    with_kl = _rows_with(rows, "kl")
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
    departed = _left_course(rows)
    if departed and facts.keys() & {"kl-overflow", "non-finite-gradient", "non-finite-loss"}:
        facts["left-course"] = departed
        facts.pop("kl-overflow", None)  # by then everything was lost
    for name, fact in (("reward", "missing-reward"), ("reward_std", "undefined-spread")):
        if not any(other != name and OF_RL.search(other) for row in last for other in row.values):
            continue  # a column that nobody fills: no training with rewards
        told = _rows_with(last, name)
        begun = next((at for at, row in enumerate(told) if not math.isnan(row.values[name])), 0)
        missing = [row for row in told[begun:] if math.isnan(row.values[name])]  # before the first episode has ended
        if missing and not facts.keys() & {"non-finite-gradient"}:
            facts[fact] = missing
    _reward_nan(facts, rows)
    _logits_nan(facts, rows)
    _signal(facts, rows)
    _collapse(facts, rows)
    if not facts.keys() & {"non-finite-gradient", "infinite-gradient", "non-finite-loss"}:
        with_loss = _points(_rows_with(rows, "loss"))
        onset = health.diverged_at_end([{**row.values} for row in with_loss])
        if onset is not None:
            facts["loss-diverged"] = [with_loss[onset - 1], with_loss[onset], with_loss[-1]]
    told_otherwise = {
        "dead-reward",
        "no-gradient",
        "all-clipped",
        "nothing-left",
        "kl-diverged",
        "collapse",
        "loss-diverged",
    }
    rewards = _column(rows, "reward")
    if not facts.keys() & told_otherwise:
        entropy = _column(rows, "entropy")
        if _gone(rewards) or _cut_short(rows) or _narrowed(rows, rewards, _column(rows, "reward_std")):
            facts["one-answer"] = [_last_as_it_began(rows), rows[-1]]
        elif _certain(entropy, rewards):
            level = CERTAIN_SHARE * median(entropy[:FIRST])
            until = [row for row in _rows_with(rows, "entropy") if row.values["entropy"] > level]
            facts["one-answer"] = [until[-1], rows[-1]]
        elif not rewards and all(row.values.keys() & KNOWN == {"entropy"} for row in rows) and _faded(entropy):
            until = [row for row in rows if row.values["entropy"] >= CERTAIN]
            facts["one-answer"] = [until[-1], rows[-1]]
    for name in ("collapse", "one-answer", "kl-diverged", "loss-diverged", "nothing-left"):
        if len(facts.get(name, ())) > 1 and (
            changed := _changed_at(rows, facts[name][1 if name != "one-answer" else 0])
        ):
            facts[name] = [*facts[name][:2], changed]
            if name == "collapse" and _OF_SURROUNDINGS.search(changed.text) and not _OF_POLICY.search(changed.text):
                facts["surroundings-broke"] = [changed]
    _jumped(facts, _rows_with(rows, "loss"))
    _grown_memory(facts, rows)
    _reward_jumped(facts, rows)
    _part_lost(facts, rows)
    rates = _column(rows, "learning_rate")
    if len(rates) > 2 * ENOUGH and not any(rates):
        facts["no-learning-rate"] = rows[-1:]
    if facts.keys() & {"collapse", "one-answer"}:
        for name, fell, rose in (("entropy", "entropy-fell", "entropy-rose"), ("length", "length-fell", "")):
            values = [value for value in _column(rows, name) if math.isfinite(value)]
            began, ended = (median(part) for part in (values[:FIRST], values[-FIRST:])) if values else (0.0, 0.0)
            if ended < CERTAIN_SHARE * began:
                facts[fell] = [rows[-1]]
            elif rose and ended > RISEN * began > 0:
                facts[rose] = [rows[-1]]
        if _grew_to_the_limit(rows):
            facts["length-rose"] = [rows[-1]]
    losses = _column(rows, "loss")
    if len(losses) >= ENOUGH and _always(losses, lambda value: value == 0):
        facts["no-loss"] = _rows_with(rows, "loss")[-LAST_ROWS:]
    _loss_vanished(facts, _rows_with(rows, "loss"))
    chosen = _column(rows, "logps/chosen")
    if len(chosen) >= TREND_ROWS and all(map(math.isfinite, chosen)):
        first, last = median(chosen[:FIRST]), median(chosen[-FIRST:])
        if last < first - DISPLACED_NATS and last < DISPLACED_TIMES * first < 0:
            facts["displaced"] = _rows_with(rows, "logps/chosen")[:1] + _rows_with(rows, "logps/chosen")[-1:]
    norms = _column(rows, "grad_norm")
    late = norms[-max(len(norms) // QUARTERS, 1) :]
    if len(norms) >= TREND_ROWS and all(map(math.isfinite, late)):
        before = median(norms[: max(len(norms) // QUARTERS, 1)])
        if 0 < before < math.inf and median(late) > GROWTH * before:
            facts["growing-gradient"] = [rows[0], rows[-1]]
    if len(norms) >= ENOUGH and median(norms) > LARGE and all(map(math.isfinite, norms)):
        facts["large-gradient"] = [rows[-1]]
    differ = _rows_with(rows, _ENGINE_DIFFERS)[-LOST_BY_THE_ENGINE:]
    if len(differ) == LOST_BY_THE_ENGINE and min(_column(differ, _ENGINE_DIFFERS)) > 1:
        facts["engine-differs"] = differ
    # A sampling filter acts from the first row on; a ratio that falls later is drift.
    ratios = _column(rows, "ratio")
    if len(ratios) >= ENOUGH and median(ratios) < RATIO_FLOOR and median(ratios[:FIRST]) < RATIO_FLOOR:
        facts["biased-ratio"] = _rows_with(last, "ratio")
    return facts


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

JUMP_SHARE, JUMP_KL = 0.3, 10.0
"""A reward that rises within a few rows by this share of its best, with KL so many times what it was and the entropy
more than halved, has found a trick: learning takes hundreds of rows for that."""

PART, PART_LEFT, HELD_OUT_LEFT, LATE = 0.05, 0.2, 0.5, 10
"""A part of the reward that was above this, and of which less than that share of its best is left, was given up; what
is measured on held-out data is judged sooner, since nothing pays the policy for giving it up."""

JUMP_ROWS = 4
"""Rows for which a loss stays up after a jump; one or two are a bad batch."""


def _changed_at(rows: Sequence[Row], onset: Row) -> Row | None:
    """What else broke at a row, as a row whose text says it."""
    at = next((index for index, row in enumerate(rows) if row.line >= onset.line), 0)
    before, after = rows[max(at - CHANGED_ROWS, 0) : at], rows[at + 1 : at + 1 + CHANGED_ROWS]
    if min(len(before), len(after)) < ENOUGH:
        return None
    found: list[tuple[float, str]] = []
    for name in before[-1].values:
        one, other = (_column(part, name) for part in (before, after))
        if min(len(one), len(other)) < ENOUGH or not all(map(math.isfinite, (*one, *other))):
            continue
        was, now, spread = median(one), median(other), stdev(one)
        if abs(now - was) > max(CHANGED_TIMES * spread, CHANGED_SHARE * abs(was), ROUNDING):
            found.append((abs(now - was) / max(spread, ROUNDING), f"{name} {was:.3g} -> {now:.3g}"))
    if not found:
        return None
    told = [text for _, text in sorted(found, reverse=True)[:CHANGED_MOST]]
    return Row(onset.line, f"what changed there: {', '.join(told)}", {})


def _jumped(facts: dict[str, list[Row]], rows: Sequence[Row]) -> None:
    """A loss that is learnt by, far above its level from one row to the next."""
    values = [row.values["loss"] for row in rows]
    if health.has_rewards([row.values for row in rows]) or not all(map(math.isfinite, values)):
        return
    for at in range(ENOUGH, len(values) - JUMP_ROWS):
        level = median(values[at - ENOUGH : at])
        risen = max(health.RISEN_TIMES * level, level + health.RISEN_BY)
        if min(values[:ENOUGH]) >= 0 and all(value > risen for value in values[at : at + JUMP_ROWS]):
            facts["loss-jumped"] = [rows[at - 1], rows[at]]
            return


def _reward_jumped(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A reward that rises at once, with KL and entropy away from all they were."""
    whole = _rows_with(_points(rows), "reward", "kl", "entropy")
    if len(whole) < 2 * CHANGED_ROWS:
        return
    reward, kl, entropy = ([row.values[name] for row in whole] for name in ("reward", "kl", "entropy"))
    if not all(map(math.isfinite, (*reward, *kl, *entropy))):
        return
    ended = [median(values[-CHANGED_ROWS:]) for values in (reward, kl, entropy)]
    for at in range(CHANGED_ROWS, len(whole) - CHANGED_ROWS + 1):
        was, before = (
            (median(values[at - CHANGED_ROWS : at]) for values in (reward, kl)),
            entropy[at - CHANGED_ROWS : at],
        )
        level, far = was
        now = median(reward[at : at + CHANGED_ROWS])
        risen = now - level > JUMP_SHARE * max(abs(value) for value in reward) and ended[0] - level > (now - level) / 2
        if risen and ended[1] > JUMP_KL * max(far, 0.0) > 0 and ended[2] < median(before) / 2:
            facts["reward-jumped"] = [whole[at - 1], whole[at]]
            return


_OF_RIGHT_ANSWERS = re.compile(
    r"^rewards/\S*(?:accura|correct|exact|answer|solve|math|code|task)(?!.*std$)", re.IGNORECASE
)
_HELD_OUT = re.compile(
    r"^(?:eval|val|valid|validation|test|held_?out)\w*[/_-]\S*(?:acc\b|accura|correct|exact|pass@|solve|win_?rate)",
    re.IGNORECASE,
)
_PART = re.compile(r"^rewards/(?!(?:chosen|rejected|margins|accuracies)\b)(?!.*/std$)")


def _total(row: Row) -> float:
    """A row's reward, or the sum of its parts; NaN if it has none."""
    if "reward" in row.values:
        return row.values["reward"]
    parts = [value for name, value in row.values.items() if _PART.match(name)]
    return sum(parts) if parts else math.nan


def _part_lost(facts: dict[str, list[Row]], rows: Sequence[Row]) -> None:
    """A reward for right answers that was there and is little any more, while the total reward went up, or that is
    nothing at the end; or right answers to held-out questions."""
    whole = [row for row in rows if math.isfinite(_total(row))]
    if len(whole) < QUARTERS * GONE_ROWS:
        return
    size = len(whole) // QUARTERS
    total = list(map(_total, whole))
    rose = fmean(total[-size:]) > fmean(total[:size])
    kinds = ((_OF_RIGHT_ANSWERS, "part-lost", PART_LEFT), (_HELD_OUT, "held-out-lost", HELD_OUT_LEFT))
    named = [(name, fact, left) for pattern, fact, left in kinds for name in filter(pattern.search, whole[-1].values)]
    for name, fact, left in named:
        values = _column(whole, name)
        if len(values) < len(whole) or not all(map(math.isfinite, values)):
            continue
        means = [fmean(values[at * size : (at + 1) * size]) for at in range(QUARTERS)]
        ended = fmean(values[-max(len(values) // LATE, GONE_ROWS) :])
        given_up = rose and means[-1] < left * max(means)
        if fact == "part-lost" and all(abs(one) <= NOTHING * max(map(abs, total)) for one in total[-GONE_ROWS:]):
            continue  # all of the reward is gone
        if means[0] > PART and (given_up or ended < PART_LEFT * max(means) / 2):
            there = [row for row, value in zip(whole, values, strict=True) if value >= max(means) / 2]
            facts[fact] = [there[-1], Row(whole[-1].line, f"{name} {max(means):.2g} -> {ended:.2g}", {})]


def of_held_out(rows: Sequence[Row], held_out: Sequence[Row]) -> dict[str, list[Row]]:
    """What rows of a supervised training show together with those of its evaluations.

    Args:
        rows: those of the training.
        held_out: those of its evaluations, with an `eval_loss`.
    """
    facts: dict[str, list[Row]] = {}
    losses = [row.values["loss"] for row in rows if "loss" in row.values]
    held_out = [row for row in held_out if math.isfinite(row.values.get("eval_loss", math.nan))]
    if health.has_rewards([row.values for row in rows]) or not held_out or not all(map(math.isfinite, losses)):
        return facts
    accuracy = _column(held_out, "eval_accuracy")
    if len(losses) >= PAIR_ROWS and accuracy and abs(accuracy[-1] - 1 / 2) < BY_CHANCE:
        size = len(losses) // QUARTERS
        levels = [median(losses[at * size : (at + 1) * size]) for at in range(QUARTERS)]
        if all(abs(level - math.log(2)) < NEAR_CHANCE for level in levels):
            facts["at-chance"] = [held_out[-1]]
    values = _column(held_out, "eval_loss")
    best = min(values)
    risen = len(values) >= ENOUGH and values[-1] > max(2 * best, best + 1 / 2) and values[-3] < values[-2] < values[-1]
    if risen and len(losses) >= 2 * FIRST and fmean(losses[-FIRST:]) < fmean(losses[:FIRST]):
        facts["held-out-loss-rose"] = [held_out[values.index(best)], held_out[-1]]
    return facts


PAIR_ROWS, BY_CHANCE, NEAR_CHANCE = 40, 0.05, 0.03
"""The loss of pairs begins at ln 2 = 0.69, and a model that learns to tell them apart leaves it within some tens of
rows; accuracy within this of one half is none."""


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


def _left_course(rows: list[Row]) -> list[Row]:
    """The row from which several metrics were far from all they had been, up to the first NaN, and the last finite row.

    Empty for a run that broke within a few rows: those who look for its cause find nothing before it.
    """
    onsets, alone = [], False
    for name in COURSE:
        whole = _rows_with(rows, name)
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


def _signal(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Runs that have had nothing to learn from, from the first rows to the last."""
    norms = _column(rows, "grad_norm")
    if len(norms) >= ENOUGH and _always(norms, lambda value: value == 0):
        facts["no-gradient"] = _rows_with(rows, "grad_norm")[-LAST_ROWS:]
    spread, dead_groups = _column(rows, "reward_std"), _column(rows, "frac_reward_zero_std")
    rewards = _column(rows, "reward")
    dead = len(spread) >= ENOUGH and _always(spread, lambda value: value == 0)
    dead = dead or (len(dead_groups) >= ENOUGH and _always(dead_groups, lambda value: value >= 1))
    # verl has no spread within a group, but the best and the worst score of all.
    ranges = _rows_with(rows, "critic/score/max", "critic/score/min")
    apart = [row.values["critic/score/max"] - row.values["critic/score/min"] for row in ranges]
    dead = dead or (len(apart) >= ENOUGH and _always(apart, lambda value: value == 0))
    # Where no spread is logged: a mean that never moves, and no gradient.
    dead = dead or (
        not spread and not apart and "no-gradient" in facts and len(rewards) >= ENOUGH and len({*rewards}) == 1
    )
    # Rewards that differ from row to row by prompt, with equal ones in each group, and at their best: nothing to learn
    # any more, which is no failure.
    grown = len(rewards) >= ENOUGH and fmean(rewards[:FIRST]) < fmean(rewards[-FIRST:]) - ROUNDING
    solved = grown and min(rewards[-FIRST:]) > max(SOLVED, BEST * max(rewards))
    if dead and not solved:
        facts["dead-reward"] = (
            _rows_with(rows, "reward_std")[-LAST_ROWS:]
            or _rows_with(rows, "frac_reward_zero_std")[-LAST_ROWS:]
            or ranges[-LAST_ROWS:]
            or _rows_with(rows, "reward")[-LAST_ROWS:]
        )
        if len(rewards) >= ENOUGH and not any(rewards):
            facts["no-reward"] = _rows_with(rows, "reward")[-LAST_ROWS:]
    silent = [
        row for row in rows[-NOTHING_LEFT:] if row.values.get("grad_norm") == 0 and row.values.get("reward_std") == 0
    ]
    if len(silent) == NOTHING_LEFT < len(rewards) == len(rows) and not facts.keys() & {"dead-reward", "no-gradient"}:
        same = next((at for at, value in enumerate(reversed(rewards)) if value != rewards[-1]), len(rewards))
        before = rewards[max(len(rewards) - same - FIRST, 0) : len(rewards) - same]
        # A task that is learnt gets there little by little.
        if same >= NOTHING_LEFT and before and abs(rewards[-1] - fmean(before)) > ABRUPT * abs(rewards[-1]):
            facts["nothing-left"] = silent
    kls = _column(rows, "kl")
    late_kl = kls[-max(len(kls) // (QUARTERS * QUARTERS), ENOUGH) :]
    if min(len(kls), len(rewards)) >= QUARTERS * ENOUGH and all(map(math.isfinite, late_kl)):
        size = len(rewards) // QUARTERS
        best = max(fmean(rewards[:FIRST]), *(fmean(rewards[at * size : (at + 1) * size]) for at in range(QUARTERS)))
        if min(late_kl) > DIVERGED_KL and best > 0 and fmean(rewards[-FIRST:]) < best / 2:
            # PPO's KL is summed over an answer, and begins above what a mean over its tokens reaches.
            usual = max(DRIFTED_KL, 2 * median(kls[:FIRST]))
            near = [row for row in rows if row.values.get("kl", math.inf) <= usual]
            facts["kl-diverged"] = [near[-1] if near else rows[0], rows[-1]]
    clipped = _column(rows, "clipped_ratio")
    if len(clipped) >= ENOUGH and _always(clipped, lambda value: value >= health.CUT_OFF):
        facts["all-clipped"] = _rows_with(rows, "clipped_ratio")[-LAST_ROWS:]
    if len(rewards) > LOST and not any(rewards[-LOST:]) and any(rewards):
        facts["reward-lost"] = _rows_with(rows, "reward")[-LOST:]
    if len(rewards) >= TREND_ROWS and all(map(math.isfinite, rewards)):
        began, ended = (fmean(part) for part in (rewards[: len(rewards) // 2], rewards[len(rewards) // 2 :]))
        if max(abs(began), abs(ended)) < LITTLE and ended < 2 * abs(began):
            facts["unrewarded"] = [rows[0], rows[-1]]


def _gone(rewards: Sequence[float]) -> bool:
    """Whether a reward that was well above 0 for most of the run is nothing in all of the last rows."""
    if len(rewards) < QUARTERS * GONE_ROWS or not all(map(math.isfinite, rewards)):
        return False
    size = len(rewards) // QUARTERS
    level = max(fmean(rewards[at : at + size]) for at in range(0, len(rewards) - size + 1, size))
    nothing = [abs(value) <= NOTHING * level for value in rewards]
    tail = next((at for at, value in enumerate(reversed(nothing)) if not value), len(nothing))
    before = nothing[: len(nothing) - tail]
    return level > 0 and tail >= GONE_ROWS and bool(before) and sum(before) <= (1 - ALWAYS) * len(before)


def _cut_short(rows: Sequence[Row]) -> bool:
    """Whether the answers have become stumps, which cost half of the best reward and more than had been gained."""
    whole = _rows_with(rows, "reward", "length")
    if len(whole) < QUARTERS * GONE_ROWS:
        return False
    rewards, lengths = ([row.values[name] for row in whole] for name in ("reward", "length"))
    size = len(whole) // QUARTERS
    best = max(fmean(rewards[at : at + size]) for at in range(0, len(rewards) - size + 1, size))
    short = median(lengths[-size:]) < STUMPS * median(lengths[:size])
    return short and fmean(rewards[-size:]) < min(best / 2, fmean(rewards[:size]))


def _grew_to_the_limit(rows: Sequence[Row]) -> bool:
    """Whether nearly all answers are cut off at the end, which most were not at the beginning."""
    cut = _column(rows, "clipped_ratio")
    if len(cut) > 2 * FIRST:
        return median(cut[:FIRST]) < 1 / 2 and median(cut[-FIRST:]) >= health.CUT_OFF
    lengths = [value for value in _column(rows, "length") if math.isfinite(value)]
    if len(lengths) < TREND_ROWS:
        return False
    last = lengths[-FIRST:]  # where the limit is not logged: they do not differ any more
    return median(last) > RISEN * median(lengths[:FIRST]) and max(last) - min(last) < NARROW * max(last)


def _last_as_it_began(rows: Sequence[Row]) -> Row:
    """The row from which on the first of what was lost stays nearer to its end than to its beginning."""
    left = []
    for name in ("reward_std", "length", "entropy", "reward"):
        told = [row for row in _rows_with(rows, name) if math.isfinite(row.values[name])]
        began, ended = (median(_column(part, name)) for part in (told[:FIRST], told[-FIRST:])) if told else (0.0, 0.0)
        if 0 < began and ended < began / 2:
            left.append([row for row in told if row.values[name] > (began + ended) / 2][-1])
    return min(left, key=lambda row: row.line, default=rows[0])


def _unsolved(rows: Sequence[Row], rewards: Sequence[float]) -> bool:
    """Whether a reward is well below the usual 1: those for right answers, if they are logged, or else the whole one.

    Args:
        rows: the last ones.
        rewards: the last ones of the run.
    """
    right = [name for name in rows[-1].values if _OF_RIGHT_ANSWERS.search(name)]
    of_parts = [values for name in right if (values := _column(rows, name)) and all(map(math.isfinite, values))]
    return all(max(values, default=math.inf) < SOLVED for values in of_parts or [rewards])  # none says nothing


def _narrowed(rows: Sequence[Row], rewards: Sequence[float], spread: Sequence[float]) -> bool:
    """Whether the completions of a group have become alike, though the task is not solved."""
    if len(spread) < 2 * FIRST or not all(map(math.isfinite, (*spread, *rewards))):
        return False
    if median(spread[-FIRST:]) > NARROW * median(spread[:FIRST]):
        return False
    first, last = rows[:FIRST], rows[-FIRST:]
    lengths = [_column(part, "length") for part in (first, last)]
    if all(lengths) and median(lengths[1]) < STUMPS * median(lengths[0]) and _unsolved(last, rewards[-FIRST:]):
        return True
    sure = all(row.values.get("entropy", 1.0) < NO_CHOICE for row in last)
    entropies = [_column(part, "entropy") for part in (first, last)]
    level = CERTAIN_SHARE * median(entropies[0]) if entropies[0] else 0.0
    if len(entropies[1]) == len(last) and max(entropies[1]) < min(level, CERTAIN) and _unsolved(last, rewards[-FIRST:]):
        return True
    alike = sure and all(row.values.get("frac_reward_zero_std", 0.0) > MOST for row in last)
    if alike and _unsolved(last, rewards[-FIRST:]):
        return True
    # One of several rewards was given up for the others.
    parts = [name for name in rows[-1].values if name.startswith("rewards/") and not name.endswith("/std")]
    return any(
        all(row.values.get(name) == 0 for row in last) and fmean(row.values.get(name, 0.0) for row in first) > GIVEN_UP
        for name in parts
    )


def _certain(entropy: Sequence[float], rewards: Sequence[float]) -> bool:
    """Whether hardly any entropy is left of what there was, and the reward, which is not at its best, rises no more."""
    if min(len(entropy), len(rewards)) < TREND_ROWS or not all(map(math.isfinite, (*entropy, *rewards))):
        return False
    late = median(entropy[-(len(entropy) // QUARTERS) :])
    if late >= CERTAIN or late >= CERTAIN_SHARE * median(entropy[:FIRST]):
        return False
    size = len(rewards) // QUARTERS
    before, ended = rewards[-2 * size : -size], rewards[-size:]
    # a mean of so many rows that differ by chance moves by that much
    noise = 2 * stdev(ended) / math.sqrt(size)
    return fmean(ended) < SOLVED and fmean(ended) <= fmean(before) + noise


def _faded(entropy: Sequence[float]) -> bool:
    """Whether an entropy that was there is next to nothing in the last quarter of its rows."""
    if len(entropy) < TREND_ROWS or not all(map(math.isfinite, entropy)):
        return False
    late = entropy[-(len(entropy) // QUARTERS) :]
    return max(late) < CERTAIN and median(late) < NO_CHOICE < CERTAIN_SHARE * median(entropy[:FIRST])


def _always(values: Sequence[float], holds: Callable[[float], bool]) -> bool:
    """In nearly all rows, in all of the last ones, and in the first."""
    return all(map(holds, values[-ENOUGH:])) and sum(map(holds, values)) >= ALWAYS * len(values)


def _streak(rows: list[Row], name: str) -> int:
    """The longest run of non-finite values of one metric."""
    longest = streak = 0
    for row in rows:
        streak = 0 if math.isfinite(row.values[name]) else streak + 1
        longest = max(longest, streak)
    return longest


def _collapse(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Whether the policy is collapsed at the end of the run, and since when."""
    points = _points(rows)
    steps = [{**row.values, "step": index} for index, row in enumerate(points)]
    suspected = health.collapse(steps)
    if suspected is None:
        return
    # Where the windows of the running rule begin is asked as well: a short run has too few rows for change points.
    windows = (health.COLLAPSE_STREAK, health.COLLAPSE_WINDOW, health.GONE_STEPS)
    begins = [max(suspected.step + 1 - size, 1) for size in windows]
    for first in [*_last_stretches(points), *begins]:
        if health.lost_at_end(steps, first):
            facts["collapse"] = [points[max(first - 1, 0)], points[first], points[-1]]
            return


def _last_stretches(points: list[Row]) -> list[int]:
    """Where the last stretch of the run may begin: its change points, later ones first.

    Only a log that is suspected gets here, so that no other one pays for the import of ruptures, and scipy with it.
    """
    columns = [
        name
        for name in ("reward", "entropy", "frac_reward_zero_std", "reward_std")
        if all(name in row.values for row in points)
    ]
    shortest = 3
    if not columns or len(points) < 4 * shortest:
        return []
    import numpy
    import ruptures

    series = numpy.array([[row.values[name] for name in columns] for row in points], dtype=float)
    series = numpy.nan_to_num(series, nan=0.0, posinf=0.0, neginf=0.0)
    spread = series.std(axis=0)
    series = (series - series.mean(axis=0)) / numpy.where(spread > 0, spread, 1.0)
    search = ruptures.KernelCPD(kernel="linear", min_size=shortest).fit(series)
    # A change has to explain more than noise does: the usual penalty of the Bayesian information criterion.
    found = search.predict(pen=2.0 * len(columns) * math.log(len(points)))
    return [change for change in reversed(found) if 0 < change < len(points)]


def _points(rows: list[Row]) -> list[Row]:
    """At most so many rows: the mean of neighbours where there are more."""
    size = -(-len(rows) // POINTS)
    if size <= 1:
        return rows
    points = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        names = set.intersection(*(set(row.values) for row in part))
        points.append(
            Row(part[0].line, part[0].text, {name: fmean(row.values[name] for row in part) for name in names})
        )
    return points
