"""Whether the policy of a run still has something to choose from and to learn from, as its rows tell.

Collapse is `health`'s, asked of the last stretch between change points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, stdev

from bisect_cfg.diagnosis import health
from bisect_cfg.diagnosis._rows import (
    ALWAYS,
    ENOUGH,
    FIRST,
    KNOWN,
    LAST_ROWS,
    QUARTERS,
    ROUNDING,
    TREND_ROWS,
    Row,
    always,
    column,
    mean,
    points_of,
    rows_with,
)
from bisect_cfg.diagnosis._rows_broken import DRIFTED_KL
from bisect_cfg.diagnosis._rows_of_reward import GONE_ROWS, NOTHING, OF_RIGHT_ANSWERS

MOST = 0.9
"""Share of groups, all of whose completions get the same reward, that leaves next to nothing to learn from."""

DIVERGED_KL = 5.0
"""KL above which, with half of the reward gone, a policy has left its reference; healthy runs stay below about 1."""

NOTHING_LEFT = 8
"""Rows without any signal at the end of a run that had one: it has nothing to learn from any more."""

LONGEST, FAR_BELOW = "completions/max_length", 0.75
"""The longest completion of a step, and the share of it below which a mean length is not that of answers that were cut
off at it. (Prompts of several lengths, or several turns, leave a little less than the limit.)"""

ABRUPT = 0.1
"""... which counts where the reward jumped by this share of itself before them, and stayed."""

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


def without_signal(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Runs that have had nothing to learn from: from the first rows to the last, or from some row on."""
    for asked in (_dead, _nothing_left, _kl_diverged, _limits):
        asked(facts, rows)


def _dead(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Runs that have had nothing to learn from, from the first rows to the last."""
    norms = column(rows, "grad_norm")
    if len(norms) >= ENOUGH and always(norms, lambda value: value == 0):
        facts["no-gradient"] = rows_with(rows, "grad_norm")[-LAST_ROWS:]
    spread, dead_groups = column(rows, "reward_std"), column(rows, "frac_reward_zero_std")
    rewards = column(rows, "reward")
    dead = len(spread) >= ENOUGH and always(spread, lambda value: value == 0)
    dead = dead or (len(dead_groups) >= ENOUGH and always(dead_groups, lambda value: value >= 1))
    # verl has no spread within a group, but the best and the worst score of all.
    ranges = rows_with(rows, "critic/score/max", "critic/score/min")
    apart = [row.values["critic/score/max"] - row.values["critic/score/min"] for row in ranges]
    dead = dead or (len(apart) >= ENOUGH and always(apart, lambda value: value == 0))
    # Where no spread is logged: a mean that never moves, and no gradient.
    dead = dead or (
        not spread and not apart and "no-gradient" in facts and len(rewards) >= ENOUGH and len({*rewards}) == 1
    )
    # Rewards that differ from row to row by prompt, with equal ones in each group, and at their best: nothing to learn
    # any more, which is no failure.
    grown = len(rewards) >= ENOUGH and mean(rewards[:FIRST]) < mean(rewards[-FIRST:]) - ROUNDING
    solved = grown and min(rewards[-FIRST:]) > max(SOLVED, BEST * max(rewards))
    if dead and not solved:
        facts["dead-reward"] = (
            rows_with(rows, "reward_std")[-LAST_ROWS:]
            or rows_with(rows, "frac_reward_zero_std")[-LAST_ROWS:]
            or ranges[-LAST_ROWS:]
            or rows_with(rows, "reward")[-LAST_ROWS:]
        )
        if len(rewards) >= ENOUGH and always(rewards, lambda value: value == 0):
            facts["no-reward"] = rows_with(rows, "reward")[-LAST_ROWS:]


def _nothing_left(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """No signal any more, from some row on, in a run that had one."""
    rewards = column(rows, "reward")
    silent = [
        row for row in rows[-NOTHING_LEFT:] if row.values.get("grad_norm") == 0 and row.values.get("reward_std") == 0
    ]
    if len(silent) == NOTHING_LEFT < len(rewards) == len(rows) and not facts.keys() & {"dead-reward", "no-gradient"}:
        same = next((at for at, value in enumerate(reversed(rewards)) if value != rewards[-1]), len(rewards))
        before = rewards[max(len(rewards) - same - FIRST, 0) : len(rewards) - same]
        # A task that is learnt gets there little by little.
        if same >= NOTHING_LEFT and before and abs(rewards[-1] - mean(before)) > ABRUPT * abs(rewards[-1]):
            facts["nothing-left"] = silent


def _kl_diverged(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A policy far from its reference, and half of the reward gone."""
    rewards = column(rows, "reward")
    kls = column(rows, "kl")
    late_kl = kls[-max(len(kls) // (QUARTERS * QUARTERS), ENOUGH) :]
    if min(len(kls), len(rewards)) >= QUARTERS * ENOUGH and all(map(math.isfinite, late_kl)):
        size = len(rewards) // QUARTERS
        best = max(mean(rewards[:FIRST]), *(mean(rewards[at * size : (at + 1) * size]) for at in range(QUARTERS)))
        if min(late_kl) > DIVERGED_KL and best > 0 and mean(rewards[-FIRST:]) < best / 2:
            # PPO's KL is summed over an answer, and begins above what a mean over its tokens reaches.
            usual = max(DRIFTED_KL, 2 * median(kls[:FIRST]))
            near = [row for row in rows if row.values.get("kl", math.inf) <= usual]
            facts["kl-diverged"] = [near[-1] if near else rows[0], rows[-1]]


def _limits(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Answers that are all cut off, and rewards that are gone or were never there."""
    rewards = column(rows, "reward")
    clipped = column(rows, "clipped_ratio")
    if len(clipped) >= ENOUGH and always(clipped, lambda value: value >= health.CUT_OFF):
        facts["all-clipped"] = rows_with(rows, "clipped_ratio")[-LAST_ROWS:]
        # What is cut off at one limit is of one length.
        both = rows_with(rows, "length", LONGEST)
        shares = [row.values["length"] / row.values[LONGEST] for row in both if row.values[LONGEST] > 0]
        if len(shares) >= TREND_ROWS and median(shares) < FAR_BELOW:
            facts["ends-unseen"] = both[-LAST_ROWS:]
    if len(rewards) > LOST and not any(rewards[-LOST:]) and any(rewards):
        facts["reward-lost"] = rows_with(rows, "reward")[-LOST:]
    if len(rewards) >= TREND_ROWS and all(map(math.isfinite, rewards)):
        began, ended = (mean(part) for part in (rewards[: len(rewards) // 2], rewards[len(rewards) // 2 :]))
        if max(abs(began), abs(ended)) < LITTLE and ended < 2 * abs(began):
            facts["unrewarded"] = [rows[0], rows[-1]]


def collapse(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Whether the policy is collapsed at the end of the run, and since when."""
    points = points_of(rows)
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


def one_answer(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """A choice that is gone by other signs than those of a collapse."""
    told_otherwise = {
        "dead-reward",
        "no-gradient",
        "all-clipped",
        "nothing-left",
        "kl-diverged",
        "collapse",
        "loss-diverged",
    }
    rewards = column(rows, "reward")
    if not facts.keys() & told_otherwise:
        entropy = column(rows, "entropy")
        if _gone(rewards) or _cut_short(rows) or _narrowed(rows, rewards, column(rows, "reward_std")):
            facts["one-answer"] = [_last_as_it_began(rows), rows[-1]]
        elif _certain(entropy, rewards):
            level = CERTAIN_SHARE * median(entropy[:FIRST])
            until = [row for row in rows_with(rows, "entropy") if row.values["entropy"] > level]
            facts["one-answer"] = [until[-1], rows[-1]]
        elif not rewards and all(row.values.keys() & KNOWN == {"entropy"} for row in rows) and _faded(entropy):
            until = [row for row in rows if row.values["entropy"] >= CERTAIN]
            facts["one-answer"] = [until[-1], rows[-1]]


def since(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """Where a reward that was lost little by little had begun to fall: what breaks at last is told from there on."""
    for name in ("collapse", "one-answer"):
        if name not in facts:
            continue
        told = facts[name][0]
        rewarded = [row for row in rows_with(rows, "reward") if math.isfinite(row.values["reward"])]
        if len(rewarded) < TREND_ROWS:
            return
        half = max(len(rewarded) // SMOOTHED // 2, FIRST // 2)
        smooth = [
            median(row.values["reward"] for row in rewarded[max(at - half, 0) : at + half + 1])
            for at in range(len(rewarded))
        ]
        best, ended = max(smooth), smooth[-1]
        before = [row for row, level in zip(rewarded, smooth, strict=True) if level >= best - FALLEN * (best - ended)]
        if before[-1].line < told.line:
            facts[name] = [before[-1], *facts[name][1:]]


SMOOTHED, FALLEN = 40, 0.25
"""The level of a reward is the median of this part of its rows; it has begun to fall when this share of its fall is
behind it, which is more than levels go up and down by chance."""


def shape(facts: dict[str, list[Row]], rows: list[Row]) -> None:
    """What became of the entropy and the answers of a policy that is lost."""
    if not facts.keys() & {"collapse", "one-answer", "kl-diverged"}:
        return
    for name, fell, rose in (("entropy", "entropy-fell", "entropy-rose"), ("length", "length-fell", "")):
        values = [value for value in column(rows, name) if math.isfinite(value)]
        began, ended = (median(part) for part in (values[:FIRST], values[-FIRST:])) if values else (0.0, 0.0)
        if ended < CERTAIN_SHARE * began:
            facts[fell] = [rows[-1]]
        elif rose and ended > RISEN * began > 0:
            facts[rose] = [rows[-1]]
    if _grew_to_the_limit(rows):
        facts["length-rose"] = [rows[-1]]


def _gone(rewards: Sequence[float]) -> bool:
    """Whether a reward that was well above 0 for most of the run is nothing in all of the last rows."""
    if len(rewards) < QUARTERS * GONE_ROWS or not all(map(math.isfinite, rewards)):
        return False
    size = len(rewards) // QUARTERS
    level = max(mean(rewards[at : at + size]) for at in range(0, len(rewards) - size + 1, size))
    nothing = [abs(value) <= NOTHING * level for value in rewards]
    tail = next((at for at, value in enumerate(reversed(nothing)) if not value), len(nothing))
    before = nothing[: len(nothing) - tail]
    return level > 0 and tail >= GONE_ROWS and bool(before) and sum(before) <= (1 - ALWAYS) * len(before)


def _cut_short(rows: Sequence[Row]) -> bool:
    """Whether the answers have become stumps, which cost half of the best reward and more than had been gained."""
    whole = rows_with(rows, "reward", "length")
    if len(whole) < QUARTERS * GONE_ROWS:
        return False
    rewards, lengths = ([row.values[name] for row in whole] for name in ("reward", "length"))
    size = len(whole) // QUARTERS
    best = max(mean(rewards[at : at + size]) for at in range(0, len(rewards) - size + 1, size))
    short = median(lengths[-size:]) < STUMPS * median(lengths[:size])
    return short and mean(rewards[-size:]) < min(best / 2, mean(rewards[:size]))


def _grew_to_the_limit(rows: Sequence[Row]) -> bool:
    """Whether nearly all answers are cut off at the end, which most were not at the beginning."""
    cut = column(rows, "clipped_ratio")
    if len(cut) > 2 * FIRST:
        return median(cut[:FIRST]) < 1 / 2 and median(cut[-FIRST:]) >= health.CUT_OFF
    lengths = [value for value in column(rows, "length") if math.isfinite(value)]
    if len(lengths) < TREND_ROWS:
        return False
    last = lengths[-FIRST:]  # where the limit is not logged: they do not differ any more
    return median(last) > RISEN * median(lengths[:FIRST]) and max(last) - min(last) < NARROW * max(last)


def _last_as_it_began(rows: Sequence[Row]) -> Row:
    """The row from which on the first of what was lost stays nearer to its end than to its beginning."""
    left = []
    for name in ("reward_std", "length", "entropy", "reward"):
        told = [row for row in rows_with(rows, name) if math.isfinite(row.values[name])]
        began, ended = (median(column(part, name)) for part in (told[:FIRST], told[-FIRST:])) if told else (0.0, 0.0)
        if 0 < began and ended < began / 2:
            left.append([row for row in told if row.values[name] > (began + ended) / 2][-1])
    return min(left, key=lambda row: row.line, default=rows[0])


def _unsolved(rows: Sequence[Row], rewards: Sequence[float]) -> bool:
    """Whether a reward is well below the usual 1: those for right answers, if they are logged, or else the whole one.

    Args:
        rows: the last ones.
        rewards: the last ones of the run.
    """
    right = [name for name in rows[-1].values if OF_RIGHT_ANSWERS.search(name)]
    of_parts = [values for name in right if (values := column(rows, name)) and all(map(math.isfinite, values))]
    return all(max(values, default=math.inf) < SOLVED for values in of_parts or [rewards])  # none says nothing


def _narrowed(rows: Sequence[Row], rewards: Sequence[float], spread: Sequence[float]) -> bool:
    """Whether the completions of a group have become alike, though the task is not solved."""
    if len(spread) < 2 * FIRST or not all(map(math.isfinite, (*spread, *rewards))):
        return False
    if median(spread[-FIRST:]) > NARROW * median(spread[:FIRST]):
        return False
    first, last = rows[:FIRST], rows[-FIRST:]
    lengths = [column(part, "length") for part in (first, last)]
    if all(lengths) and median(lengths[1]) < STUMPS * median(lengths[0]) and _unsolved(last, rewards[-FIRST:]):
        return True
    sure = all(row.values.get("entropy", 1.0) < NO_CHOICE for row in last)
    entropies = [column(part, "entropy") for part in (first, last)]
    level = CERTAIN_SHARE * median(entropies[0]) if entropies[0] else 0.0
    if len(entropies[1]) == len(last) and max(entropies[1]) < min(level, CERTAIN) and _unsolved(last, rewards[-FIRST:]):
        return True
    alike = sure and all(row.values.get("frac_reward_zero_std", 0.0) > MOST for row in last)
    if alike and _unsolved(last, rewards[-FIRST:]):
        return True
    # One of several rewards was given up for the others.
    parts = [name for name in rows[-1].values if name.startswith("rewards/") and not name.endswith("/std")]
    return any(
        all(row.values.get(name) == 0 for row in last) and mean(row.values.get(name, 0.0) for row in first) > GIVEN_UP
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
    return mean(ended) < SOLVED and mean(ended) <= mean(before) + noise


def _faded(entropy: Sequence[float]) -> bool:
    """Whether an entropy that was there is next to nothing in the last quarter of its rows."""
    if len(entropy) < TREND_ROWS or not all(map(math.isfinite, entropy)):
        return False
    late = entropy[-(len(entropy) // QUARTERS) :]
    return max(late) < CERTAIN and median(late) < NO_CHOICE < CERTAIN_SHARE * median(entropy[:FIRST])


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
