"""Runs that do not die and yet go wrong: what the metric rows of the steps say.

`RULES` is the table of everything that is judged: six failures, and two remarks for which no run is called failed.
Below it stand the finer bounds, then one section a rule; `symptoms` and `Watch` put them together. To add a failure,
write its row in the table, its function of the metric rows, and that one's name in `LOOKS` at the end. To add a remark,
write its row and a part of `remarks`: it sees the rows of one run alone. What compares with the good run is in
`drift`. Verdicts, reports and result.json have it then, in the words of the table.

Every function is pure: metric rows in, symptoms out. A row has what the trainer logged at one optimizer step (`step`,
`loss`, `grad_norm`, `entropy`, `reward_std`, `frac_reward_zero_std`, `kl`, `learning_rate`, ...). A metric that an
older TRL does not log is absent, and nothing is concluded from it.

What is *not* a symptom in GRPO: a loss of zero with a gradient (with one iteration and beta 0 the loss is zero by
construction), a grad_norm above max_grad_norm (it is logged before clipping), a learning rate of 0 in the first step
of a warmup, a reward missing on steps that reuse completions. A policy that has learnt its task has little entropy and
equal rewards too; the reward tells it from a collapsed one.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from statistics import fmean, median, stdev

Row = Mapping[str, float | str | None]  # metrics of one optimizer step, by name, and its `step` and `time`


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong with a run that goes on."""

    kind: str
    words: str  # what such a run does; of a remark what was odd, "{}" standing for the metric
    failure: bool  # whether the run is called failed for it; otherwise it is a remark
    bound: float  # the number that decides first; the finer ones are below the table
    reason: str  # why that number
    source: str  # where it was measured or is written


RULES = (  # most severe first
    Rule("non-finite", "shows a number that is not finite", True, 8,
         "NaN or infinite in so many steps in a row: a gradient scaler may skip a handful while it finds its scale",
         "torch.amp.GradScaler begins at 2**16 and halves at each overflow"),
    Rule("collapse", "collapses the policy", True, 0.05,
         "entropy below this share of what it began with, and no group whose rewards differ to recover by",
         "measured collapses fall from 5.5 to below 0.01 in a few steps; healthy training loses tens of percent"),
    Rule("diverged", "diverges", True, 3.0,
         "a loss that is learnt by, at so many times what it began with; single batches differ by tens of percent",
         "a model that no longer knows its language goes from 1 or 2 to 7 and more"),
    Rule("no-gradient", "learns nothing", True, 5,
         "grad_norm exactly 0 in each of so many first steps: a sparse reward leaves a few batches without a signal",
         "chosen: five of five from the start leave nothing to learn from"),
    Rule("dead-reward", "learns nothing", True, 5,
         "all rewards of a group equal in each of so many first steps", "chosen, as for no-gradient"),
    Rule("engine-drifts", "learns from completions of other weights than its own", True, 0.15,
         "mean difference between the engine's and the trainer's log-probabilities of the same tokens; "
         "rounding differs by 0.01", "0.015 and 0.201 in https://github.com/huggingface/trl/issues/5312"),
    Rule("slow", "steps became much slower", False, 10.0,
         "a step so many times as long as usual; no failure, since a run is slow for many reasons",
         "chosen; nothing is decided by it"),
)  # fmt: skip
ODDITIES = {
    "non-finite": "{} was NaN or infinite",
    **{rule.kind: rule.words for rule in RULES if not rule.failure},
}
"""What was odd, by the kind of a remark, about the metric of that name."""
_SEVERITY = {rule.kind: place for place, rule in enumerate(RULES)}
_BOUND = {rule.kind: rule.bound for rule in RULES}
SILENT_KINDS = tuple(rule.kind for rule in RULES if rule.failure and rule.kind != "non-finite")
"""Kinds of a run that neither dies nor computes anything non-finite, and learns nothing."""

WATCHED = ("loss", "grad_norm", "kl", "reward", "entropy")  # must be finite; most telling first

_REWARDS = ("reward", "reward_std", "frac_reward_zero_std")
_OF_A_POLICY = ("actor/", "critic/", "completions/", "completion_length", "response_length", "clipped_ratio", "policy/")
"""Metrics that only training by rewards has, where the reward itself is not among them."""

REWARD, OF_REWARDS = "reward", "rewards/"
"""A reward that is not finite is a failure in a single step already: no scaler makes it, its step learns nothing, and
such rewards come and go with the completions. Those of single functions, by their prefix, are NaN where a function did
not apply, so that only an infinite one counts."""

_OF_A_FUNCTION = re.compile(rf"{OF_REWARDS}(?!.*/std$)(.+?)(?:/mean)?")
"""A reward function's name in the metric of its mean; TRL before 0.16 has no other metric of it, and no "/mean"."""

NON_FINITE_STREAK, NON_FINITE_AT_END = int(_BOUND["non-finite"]), 3
"""Steps in a row in which another metric is not finite; fewer are enough where the run ends with them."""

COLLAPSE_SHARE, COLLAPSE_DEAD_GROUPS, COLLAPSE_STREAK = _BOUND["collapse"], 0.9, 3
"""Collapsed: entropy below the first share, this share of the groups with equal rewards, in so many steps in a row."""

COLLAPSE_WINDOW, COLLAPSE_MOST, LOW_SHARE = 8, 7, 1 / 3
"""Some collapsed policies stumble on: a group differs, or the entropy comes back for a step. So in all but one of eight
steps these count too: dead groups at an entropy below `LOW_SHARE` (a sparse reward leaves dead groups, but keeps the
entropy), or an entropy below `COLLAPSE_SHARE` while the reward is lower than it began."""

NOISE_SHARE, CUT_OFF = 2.0, 0.95
"""Where the reward is gone: entropy above this multiple of its start is noise (healthy training with a raised upper
clip doubles it at most), and this share of completions at the length limit are answers that no longer end."""

FALLEN, FALLEN_DEVIATIONS, FALLEN_BACK = 0.5, 5.0, 0.1
"""The reward is gone when it has lost this share of its best, and so many standard errors of a window (the best of many
windows is two or three above the mean by luck), and is back where it began to within this share of the gain."""

GIVEN_UP, SLOWLY = 0.25, 8
"""A policy without entropy has learnt its task if it gave up no more than this share of the reward it had gained, and
its entropy took so many steps to vanish; measured collapses take one or two."""

GONE, GONE_STEPS, BELOW_START = 0.15, 16, 0.4
"""No more than this share of the best reward left in so many steps is a collapse, whatever the other metrics say; so is
a reward below this share of its beginning, after more had been learnt: a broken tool or judge looks like this."""

ROUNDED = 1e-6
"""A spread of rewards of at most this share of the reward is none: torch's `std` of eight equal float32 values of 0.41
is 3e-8, and TRL counts such a group as one that differs."""

STILL = 0.01
"""A gradient norm of at most this share of the largest counts as none in steps without any signal: what pulls there is
the KL term alone (TRL before 0.19 has beta=0.04); 3e-4 and less was measured in a collapsed policy."""

BY_CHANCE, RECENT = 1e-6, 40
"""A row of steps without any signal is a change if what came before (so many steps, or all: a sparse reward may become
sparser) would show such a row by chance this seldom."""

DEAD_STEPS = int(_BOUND["dead-reward"])
"""Steps after which a run without any gradient, or any spread of rewards, is called dead."""

ENGINE_DIFFERENCE, ENGINE_RATIO = "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean"
"""What TRL logs of an engine that writes the completions; the ratio corrects for the difference."""

ENGINE_APART, ENGINE_STEPS = _BOUND["engine-drifts"], 5
"""So far apart in so many steps in a row: a single batch of few tokens is chance."""

DIVERGED_TIMES, RISEN_TIMES, RISEN_BY, RISEN_STEPS = _BOUND["diverged"], 2.0, 2.0, 16
"""A loss has also diverged at both this many times its best level and this many nats above it, in so many steps (a
spike of a dozen may come back): training from nothing begins at 11 or 12 nats, and a model that fell back to the
frequencies of words is at 7. The nats keep out a text known by heart, and other data in the middle of a run."""

SLOW_TIMES, SLOW_SECONDS = _BOUND["slow"], 1.0
"""A slow step takes so many times as long as usual, and this long at least: below, it is the machine that stumbles."""


@dataclass(frozen=True)
class Symptom:
    """Something wrong in a run that goes on."""

    kind: str  # of a rule
    name: str  # the metric, for "non-finite"; "" for the others
    step: int  # at which it was certain
    text: str  # one line for people


def number(row: Row, name: str) -> float | None:
    """A metric of a step; None where it is missing or no number."""
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def not_finite(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    """Step and value of the rows in which a metric is NaN or infinite."""
    told = ((row["step"], number(row, name)) for row in rows)
    return [(step, value) for step, value in told if value is not None and not math.isfinite(value)]


def has_rewards(rows: Sequence[Row]) -> bool:
    """Whether a run learns from rewards: its loss says little then. Otherwise its entropy does, which falls with it."""
    return any(number(row, name) is not None for row in rows for name in _REWARDS)


def symptoms(rows: Sequence[Row], ended: bool, earlier: Sequence[Row] = ()) -> list[Symptom]:
    """All symptoms, most severe first, of rows in the order of their steps.

    `ended` says whether the run is over; some judgements need its end. `earlier` rows are of the same training, which
    went on from a checkpoint: what is lost now was there then, and what was lost then shows at the first step.
    """
    return Watch().symptoms(rows, ended, earlier)


class Watch:
    """Looks at a run while it goes on, at each of its rows once."""

    def __init__(self) -> None:
        self._begin((), ())

    def _begin(self, rows: Sequence[Row], earlier: Sequence[Row]) -> None:
        self._first, self._taken, self._earlier = rows[:1], 0, earlier
        self._unending, self._collapsing, self._diverging = _Unending(), _Collapsing(), _Diverging()
        self._engine = _EngineApart()
        for row in earlier:
            self._collapsing.take(row)
            self._diverging.take(row)

    def symptoms(self, rows: Sequence[Row], ended: bool, earlier: Sequence[Row] = ()) -> list[Symptom]:
        """As `symptoms`, of all rows that there are by now. Those of another training begin a new watch."""
        goes_on = len(rows) >= self._taken > 0 and rows[0] is self._first[0] and earlier is self._earlier
        if not goes_on:
            self._begin(rows, earlier)
        for row in rows[self._taken :]:
            for watch in (self._unending, self._collapsing, self._diverging, self._engine):
                watch.take(row)
        self._taken = len(rows)
        found = self._unending.found(ended)
        looked = (look(rows) for look in LOOKS)
        for symptom in (self._collapsing.found(), self._diverging.found(), self._engine.found, *looked):
            if symptom is not None and rows:
                found.append(replace(symptom, step=max(symptom.step, 1)))
        return sorted(found, key=lambda symptom: _SEVERITY[symptom.kind])


class _Unending:
    """Metrics that stay NaN or infinite."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(WATCHED, 0)  # how many there were
        self._streaks = dict.fromkeys(WATCHED, 0)
        self._last: dict[str, tuple[int, float]] = {}  # of each streak: step and value
        self._found: dict[str, Symptom] = {}

    def take(self, row: Row) -> None:
        """One more step."""
        if REWARD not in self._found and (name := _broken_reward(row)):
            self._found[REWARD] = Symptom("non-finite", REWARD, row["step"], f"{name} is {number(row, name)}")
        for name in WATCHED:
            if (value := number(row, name)) is None:
                continue
            self._values[name] += 1
            self._streaks[name] = 0 if math.isfinite(value) else self._streaks[name] + 1
            self._last[name] = row["step"], value
            if self._streaks[name] >= NON_FINITE_STREAK and name not in self._found:
                self._found[name] = self._symptom(name)

    def found(self, ended: bool) -> list[Symptom]:
        """Those for which that is certain; where the run is over, after fewer steps."""
        shown = dict(self._found)
        for name in WATCHED:
            if ended and name not in shown and self._streaks[name] >= min(NON_FINITE_AT_END, self._values[name]) > 0:
                shown[name] = self._symptom(name)
        return [shown[name] for name in WATCHED if name in shown]

    def _symptom(self, name: str) -> Symptom:
        step, value = self._last[name]
        return Symptom("non-finite", name, step, f"{name} is {value} in {self._streaks[name]} steps in a row")


def _broken_reward(row: Row) -> str:
    """The metric by which a step had a reward that is not finite; "" if it had none."""
    broken = [name for name in row if (value := number(row, name)) is not None and not math.isfinite(value)]
    if REWARD in broken:
        return REWARD
    return next((name for name in broken if name.startswith(OF_REWARDS) and math.isinf(row[name])), "")


class _Diverging:
    """A loss that has risen far above what it was, and stays there, where the loss is what is learnt by."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._best, self._found = math.inf, None  # the best level it had held; the symptom
        self._begun, self._of_a_policy = False, False

    def take(self, row: Row) -> None:
        """One more step."""
        policy = not self._begun and any(name.startswith(_OF_A_POLICY) for name in row)
        self._begun, self._of_a_policy = True, self._of_a_policy or policy or has_rewards([row])
        loss = number(row, "loss")
        if loss is None or not math.isfinite(loss):
            return
        self._of_a_policy |= loss < 0  # a policy's is around 0, and negative at times
        self._losses.append(loss)
        values, end = self._losses, len(self._losses)
        if self._found is not None or end < COLLAPSE_STREAK + COLLAPSE_WINDOW:
            return
        window, longer = values[end - COLLAPSE_WINDOW :], values[max(end - RISEN_STEPS, 0) :]
        if end > RISEN_STEPS + COLLAPSE_WINDOW:
            self._best = min(self._best, median(values[end - RISEN_STEPS - COLLAPSE_WINDOW : end - RISEN_STEPS]))
        start = fmean(values[:COLLAPSE_STREAK])
        risen = max(RISEN_TIMES * self._best, self._best + RISEN_BY)
        if _most(window, lambda loss: loss > DIVERGED_TIMES * start) or _most(longer, lambda loss: loss > risen):
            told = f"the loss rose from {min(self._best, start):.3g} to {fmean(window):.3g}"
            self._found = Symptom("diverged", "", row["step"], told)

    def found(self) -> Symptom | None:
        learnt_by = not self._of_a_policy and bool(self._losses) and fmean(self._losses[:COLLAPSE_STREAK]) > 0
        return self._found if learnt_by else None


class _EngineApart:
    """An engine whose probabilities stay far from the trainer's: other weights, or another computation."""

    def __init__(self) -> None:
        self._streak: list[float] = []
        self.found: Symptom | None = None

    def take(self, row: Row) -> None:
        """One more step."""
        apart = number(row, ENGINE_DIFFERENCE)
        if apart is None:
            return
        self._streak = [*self._streak, apart] if apart > ENGINE_APART else []
        if len(self._streak) == ENGINE_STEPS and self.found is None:
            told = f"{ENGINE_DIFFERENCE} is {fmean(self._streak):.2g} in {ENGINE_STEPS} steps in a row"
            self.found = Symptom("engine-drifts", "", row["step"], told)


class _Collapsing:
    """A policy that has lost nearly all entropy, or all it had gained, and with it every difference of reward."""

    def __init__(self) -> None:
        self._past, self._judged = _Past(), []
        self._found: Symptom | None = None
        self._rewards = False

    def take(self, row: Row) -> None:
        """One more step."""
        self._rewards = self._rewards or has_rewards([row])
        if self._found is not None or all(number(row, name) is None for name in ("entropy", *_REWARDS)):
            return
        past, judged = self._past, self._judged
        past.take(row)
        judged.append(row)
        if len(judged) < COLLAPSE_STREAK:
            return
        windows = (judged[-size:] for size in (COLLAPSE_STREAK, COLLAPSE_WINDOW, GONE_STEPS) if len(judged) >= size)
        shown = (text for window in windows if (text := _lost(window, past)))
        if text := next(shown, "") or _silent(past, judged[len(judged) - past.streak :]):
            self._found = Symptom("collapse", "", row["step"], text)

    def found(self) -> Symptom | None:
        return self._found if self._rewards else None


class _Past:
    """What the steps so far were like: where they began, the best they reached, how often they had no signal."""

    def __init__(self) -> None:
        self.entropies: list[float] = []  # the first ones
        self.began: list[float] = []  # the first rewards
        self.clipped: list[float] = []  # the first shares of cut off completions
        self.best = -math.inf  # mean of the best window of rewards so far
        self.noise = 0.0  # standard error of that mean
        self.silent = [0]  # how many of the steps up to each were without a signal
        self.streak = 0  # ... and how many in a row are now
        self.still = 0  # of these, with next to no gradient
        self.steepest = 0.0  # the largest grad_norm of a step with a signal
        self.entropy = False  # whether any step had one
        self.fading = 0  # steps with an entropy between `LOW_SHARE` and `COLLAPSE_SHARE` of the first
        self._window: list[float] = []
        self._rewards: list[float] = []  # in the order of their size

    def take(self, row: Row) -> None:
        """One more step."""
        entropy, reward = number(row, "entropy"), number(row, "reward")
        for first, value in ((self.entropies, entropy), (self.clipped, _clipped(row))):
            if value is not None and len(first) < COLLAPSE_STREAK:
                first.append(value)
        silent, gradient = _signalless(row), number(row, "grad_norm")
        self.silent.append(self.silent[-1] + silent)
        self.streak = self.streak + 1 if silent else 0
        if gradient is not None and math.isfinite(gradient) and not silent:
            self.steepest = max(self.steepest, gradient)
        flat = silent and gradient is not None and gradient <= STILL * self.steepest
        self.still = self.still + 1 if flat else 0
        self.entropy |= entropy is not None
        low = self.start > 0 and _below(row, self.start, LOW_SHARE)
        self.fading += low and not _below(row, self.start, COLLAPSE_SHARE)
        if reward is not None and math.isfinite(reward):
            if len(self.began) < COLLAPSE_WINDOW:
                self.began.append(reward)
            insort(self._rewards, reward)
            self._window = [*self._window[1 - COLLAPSE_WINDOW :], reward]
            mean = fmean(self._window)
            if len(self._window) >= COLLAPSE_WINDOW // 2 and mean > self.best:
                self.best, self.noise = mean, stdev(self._window) / math.sqrt(len(self._window))

    @property
    def start(self) -> float:
        """The entropy it began with."""
        return max(self.entropies, default=0.0)

    def keeps(self, rewards: Sequence[float]) -> bool:
        """Whether these rewards are above those it began with, and hold most of what had been gained."""
        if not self.began or not rewards:
            return False
        now, began = fmean(rewards), fmean(self.began)
        allowed = max(GIVEN_UP * (self.best - began), FALLEN_DEVIATIONS * self.noise)
        return now > began and not self.best - now > allowed

    def fallen(self, rewards: Sequence[float], left: float = 1 - FALLEN) -> bool:
        """Whether these last rewards have lost what had been reached, and lie where the run began or below."""
        if not rewards or len(self.began) < COLLAPSE_STREAK or not math.isfinite(self.best):
            return False
        now, began = fmean(rewards), fmean(self.began)
        noise = max(self.noise, stdev(self.began) / math.sqrt(len(self.began)))
        back = now <= began + FALLEN_BACK * max(self.best - began, 0.0)
        # Of a sparse reward many steps have nothing at all: so many in a row must be no chance.
        others, as_low = len(self._rewards) - len(rewards), bisect_right(self._rewards, max(rewards)) - len(rewards)
        if min((as_low + 1) / (others + 2), 1.0) ** len(rewards) >= BY_CHANCE:
            return False
        return back and self.best - now > max((1 - left) * abs(self.best), FALLEN_DEVIATIONS * noise)


def _lost(rows: Sequence[Row], past: _Past) -> str:
    """Whether the policy is collapsed in all of the last steps, `rows`, and what shows it; "" if it is not."""
    start, rewards = past.start, _rewards(rows)
    entropy = number(rows[-1], "entropy")
    fell = f"entropy fell from {start:.3g} to {entropy:.2g}" if entropy is not None else ""
    learnt = past.fading >= SLOWLY and past.keeps(rewards)
    with_entropy = start > 0 and all(number(row, "entropy") is not None for row in rows)
    dead = [dead_groups(row) for row in rows]
    if with_entropy and not learnt:
        vanished = [_below(row, start, COLLAPSE_SHARE) for row in rows]
        if all(vanished) and not any(one is False for one in dead):
            return f"{fell}, rewards all equal"
        if len(rows) >= COLLAPSE_WINDOW:
            if _most(dead, lambda one: one is True) and _most(rows, lambda row: _below(row, start, LOW_SHARE)):
                return f"{fell}, rewards all equal in {dead.count(True)} of {len(rows)} steps"
            began = past.began[:COLLAPSE_STREAK]
            if began and rewards and fmean(rewards) < fmean(began) and _most(vanished, bool):
                return f"{fell}, and the reward fell"
    if len(rows) < COLLAPSE_WINDOW or not past.fallen(rewards):
        return ""
    down = f"the reward fell from {past.best:.3g} to {fmean(rewards):.2g}"
    if with_entropy and _most(rows, lambda row: (number(row, "entropy") or 0.0) > NOISE_SHARE * start):
        return f"{down}, and entropy rose from {start:.3g} to {entropy:.2g}: the policy answers noise"
    # Long answers alone are no collapse: as long as rewards are there and differ, and there is a gradient, it learns.
    nothing = _most(rows, _signalless) or past.fallen(rewards, GONE)
    cut_off = _most(rows, lambda row: (_clipped(row) or 0.0) >= CUT_OFF) and any(map(_clipped, rows))
    if nothing and max(past.clipped, default=1.0) < CUT_OFF and cut_off:
        return f"{down}, and every completion is cut off"
    if len(rows) >= GONE_STEPS and past.fallen(rewards, GONE):
        return f"{down}, and stayed there"
    began = fmean(past.began)
    if len(rows) >= GONE_STEPS and began > 0 and max(rewards) < began and fmean(rewards) < BELOW_START * began:
        return f"{down}, far below the {began:.2g} it began with, and stayed there"
    return ""


def _silent(past: _Past, rows: Sequence[Row]) -> str:
    """Steps at the end, `rows`, without any signal, after a time that had one, and nothing of the reward left."""
    streak, before = past.streak, len(past.silent) - 1 - past.streak
    if streak < 2 * COLLAPSE_STREAK or before < 1:
        return ""
    recent = max(before - RECENT, 0)
    of_all = (past.silent[before] + 1) / (before + 2)
    share = max(of_all, (past.silent[before] - past.silent[recent] + 1) / (before - recent + 2))
    rewards = _rewards(rows)
    unrisen = not rewards or not past.began or fmean(rewards) <= fmean(past.began[:COLLAPSE_STREAK]) + 1e-9
    if not past.entropy and past.still >= streak and unrisen and share**streak < BY_CHANCE**0.5:
        # TRL before 0.20 logs no entropy: a spread of rewards and a gradient that were there and are gone for good.
        return "rewards became all equal and grad_norm next to 0, and stayed so"
    if share**streak < BY_CHANCE and past.fallen(rewards):
        return f"the reward fell from {past.best:.3g} to {fmean(rewards):.2g}, all equal in {streak} steps in a row"
    return ""


def _most(values: Sequence, holds: Callable) -> bool:
    """In all but one of eight steps."""
    return sum(map(holds, values)) * COLLAPSE_WINDOW >= COLLAPSE_MOST * len(values)


def _below(row: Row, start: float, share: float) -> bool:
    entropy = number(row, "entropy")
    return entropy is not None and entropy < share * start


def dead_groups(row: Row) -> bool | None:
    """Whether (nearly) all groups of a step have equal rewards; None if that was not logged."""
    share, equal = number(row, "frac_reward_zero_std"), _equal(row, "reward", "reward_std")
    if share is None:
        return equal
    rounded = bool(equal) and number(row, "reward_std") != 0  # equal to us, and not to what counted the groups
    return share >= COLLAPSE_DEAD_GROUPS or rounded


def _equal(row: Row, mean: str, spread: str) -> bool | None:
    """Whether rewards do not differ by more than the mean of equal ones is rounded by; None if that was not logged."""
    apart = number(row, spread)
    return None if apart is None else apart <= ROUNDED * abs(number(row, mean) or 0.0)


def _signalless(row: Row) -> bool:
    """Whether a step had nothing to learn from."""
    dead = dead_groups(row)
    return number(row, "grad_norm") == 0 if dead is None else dead


def _rewards(rows: Sequence[Row]) -> list[float]:
    values = (number(row, "reward") for row in rows)
    return [value for value in values if value is not None and math.isfinite(value)]


def _clipped(row: Row) -> float | None:
    """The share of completions that were cut off; None if it was not logged."""
    share = number(row, "clipped_ratio")
    return number(row, "completions/clipped_ratio") if share is None else share


def never_learning(rows: Sequence[Row]) -> Symptom | None:
    """A run that has had nothing to learn from in any of its first steps."""
    first = list(islice((row for row in rows if number(row, "grad_norm") is not None), DEAD_STEPS))
    if len(first) < DEAD_STEPS:
        return None
    step, judged = first[-1]["step"], [dead for row in first if (dead := dead_groups(row)) is not None]
    if judged and all(judged):
        text = f"all rewards of a group equal in each of the first {DEAD_STEPS} steps"
        return Symptom("dead-reward", "", step, "; ".join([text, *odd_rewards(first)]))
    if all(number(row, "grad_norm") == 0 for row in first):
        return Symptom("no-gradient", "", step, f"grad_norm is 0 in each of the first {DEAD_STEPS} steps")
    return None


def odd_rewards(rows: Sequence[Row]) -> Iterator[str]:
    """What is odd about the reward functions, of steps in which all rewards of a group are equal."""
    spreading = []
    for mean in dict.fromkeys(name for row in rows for name in row if _OF_A_FUNCTION.fullmatch(name)):
        name = _OF_A_FUNCTION.fullmatch(mean)[1]
        equal = {_equal(row, mean, f"{OF_REWARDS}{name}/std") for row in rows}
        if len({number(row, mean) for row in rows}) == 1 and False not in equal:
            yield f"{name} gives {number(rows[0], mean):.4g} every time"
        elif equal == {True}:
            yield f"{name} gives all completions of a step one value, and each step another"
        elif None not in equal:
            spreading.append((name, equal))
    if len(spreading) == 1 and spreading[0][1] == {False}:  # several may cancel each other
        yield f"{spreading[0][0]} gives all completions of a prompt one value, and each prompt another"


def remarks(rows: Sequence[Row]) -> list[Symptom]:
    """Oddities worth a line in the report though the run is not called failed for them: "non-finite", or "slow". A
    reward function is odd that is NaN in all steps: TRL leaves it out of the reward."""
    found = []
    functions = dict.fromkeys(name for row in rows for name in row if name.startswith(OF_REWARDS) and "std" not in name)
    for name in (*WATCHED, *functions):
        least = 1 if name in WATCHED else max(DEAD_STEPS, sum(number(row, name) is not None for row in rows))
        if len(odd := not_finite(rows, name)) >= least:
            step, value = odd[0]
            text = f"{name} is {value} at {len(odd)} of {len(rows)} steps (first at step {step})"
            found.append(Symptom("non-finite", name, step, text))
    slow = slower_steps(rows)
    return [*found, slow] if slow is not None else found


def slower_steps(rows: Sequence[Row]) -> Symptom | None:
    """Steps that took much longer than usual. The first is left out: it pays for allocation and compilation."""
    times = [(int(row["step"]), number(row, "time")) for row in rows]
    took = [(step, now - before) for (_, before), (step, now) in pairwise(times) if None not in (before, now)]
    if len(took) < 2:
        return None
    usual = median(seconds for _, seconds in took[: max(1, len(took) // 2)])
    slow = [(step, seconds) for step, seconds in took if seconds >= max(SLOW_SECONDS, SLOW_TIMES * usual)]
    if not slow:
        return None
    step, seconds = max(slow, key=lambda one: one[1])
    which = f"step {step} took" if len(slow) == 1 else f"{len(slow)} of {len(rows)} steps are slow: step {step} took"
    text = f"{which} {seconds:.1f} s, {seconds / max(usual, 1e-3):.0f} times as long as usual ({usual:.2g} s)"
    return Symptom("slow", "", step, text)


LOOKS: tuple[Callable[[Sequence[Row]], Symptom | None], ...] = (never_learning,)
"""What looks at all rows there are by now; those that look at each row once are in `Watch`.

The step of a symptom is the one at which it was certain, and must stay the same as rows come: a first run goes on for a
number of steps from there. A run that shows a symptom under study is stopped, so one that may pass again is none.
"""
