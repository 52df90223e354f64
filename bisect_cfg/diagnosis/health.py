"""Runs that do not die and yet go wrong: what the metrics of the steps say.

Collapse is defined once, by `lost`: what a stretch of steps must look like beside what came before it. `collapse` asks
that of every window of a running trial, so that it can be ended; `lost_at_end` asks it of the last stretch of a run
that is over, as change points divide it (`diagnosis._row_facts` looks for them in logs). A policy that has learnt its
task has little entropy and equal rewards as well: what tells it from a collapsed one is the reward. Divergence of a
supervised loss is defined beside it, in the same two forms: `diverged` and `diverged_at_end`.

Every function is pure: rows of metrics in, symptoms out. A row has what the trainer logged at one optimizer
step (`step`, `loss`, `grad_norm`, `entropy`, `reward_std`, `frac_reward_zero_std`, `kl`, `learning_rate`, ...).
A metric that an older TRL does not log is absent, and nothing is concluded from it.

What is *not* a symptom in GRPO: a loss of zero with a gradient (with one iteration and beta 0 the loss is zero
by construction), a grad_norm above max_grad_norm (it is logged before clipping), a learning rate of 0 in the
first step of a warmup, a reward missing on steps that reuse completions.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean, median, stdev

_REWARDS = ("reward", "reward_std", "frac_reward_zero_std")
_OF_A_POLICY = ("actor/", "critic/", "completions/", "completion_length", "response_length", "clipped_ratio", "policy/")
"""Metrics that only training by rewards has, where the reward itself is not among them."""

Row = dict[str, float | str | None]
"""Metrics of one optimizer step, by name, and its `step` and `time`."""

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

NOISE_SHARE = 2.0
"""Entropy above this multiple of what it began with, while the reward is gone: the policy went up into noise. Healthy
training with a raised upper clip doubles the entropy at most, and the reward rises with it."""

CUT_OFF = 0.95
"""Share of completions that reach the length limit when a policy no longer ends its answers."""

FALLEN = 0.5
"""The reward is gone when it has lost at least this share of the best it had ..."""

FALLEN_DEVIATIONS = 5.0
"""... and so many standard errors of a window; the best of many windows is two or three above the mean by luck
alone."""

FALLEN_BACK = 0.1
"""... and is back where it began, to within this share of what had been gained."""

GIVEN_UP = 0.25
"""A policy without entropy has learnt its task if it holds what it had gained of reward; if it has given up more than
this share of it, it has not."""

BY_CHANCE = 1e-6
"""A row of steps without any signal is a change, if what came before would show such a row by chance this seldom: a
sparse reward has dead steps all the time."""

GONE, GONE_STEPS = 0.15, 16
"""No more than this share of the best reward left in so many steps is a collapse, whatever the other metrics say."""

BELOW_START = 0.4
"""... and so is a reward that stays below this share of what the run began with, after it had learnt more: a healthy
run falls back to its beginning at most. A tool, a judge or data that broke looks like this, with entropy as before."""

STILL = 0.01
"""A gradient norm of at most this share of the largest there was counts as none in steps without any signal: what pulls
there is the KL term alone (TRL before 0.19 has beta=0.04); 3e-4 and less was measured in a collapsed policy."""

SLOWLY = 8
"""Steps. Entropy that took as long to vanish, from a third of what it began with, while the reward rose is a task that
has been learnt; measured collapses take one or two."""

RECENT = 40
"""Steps before a silent time that say how common silent steps are: a sparse reward may become sparser."""

DEAD_STEPS = 5
"""A run without any gradient (or any spread of rewards) is called dead after this many steps, all of them so.
A sparse reward can leave a few batches without a signal; five of five from the start leave nothing to learn from."""

NON_FINITE_STREAK = 8
"""A metric is called non-finite for good after this many steps in a row. An fp16 GradScaler starts at 2**16 and
may skip a handful of steps with an infinite grad_norm while it finds its scale; that is no failure."""

NON_FINITE_AT_END = 3
"""... or when the run ends with this many."""

SLOW_TIMES = 10.0
"""A step that takes this many times as long as usual is worth a remark, and no more: a run is slow for many reasons."""

SLOW_SECONDS = 1.0
"""... if it takes this long at least: below, it is the machine that stumbles."""

DIVERGED_TIMES = 3.0
"""Where a loss says how well a run does (supervised training, preferences, reward models: whatever has no rewards of
its own), it has diverged when it is this many times what it began with, in all but one of eight steps. Losses of single
batches differ by tens of percent; a model that no longer knows its language goes from 1 or 2 to 7 and more."""

RISEN_TIMES, RISEN_BY = 2.0, 2.0
"""... or both this many times the best level it had held, and this much (in nats) above it: training from nothing
begins at the logarithm of the vocabulary (11 or 12), and a model that has fallen back to the frequencies of words (7 or
so) is still below that. The second keeps out the loss of a text that is known by heart, and other data in the middle of
a run, which cost one nat or so."""

RISEN_STEPS = 16
"""... in so many steps of a run that goes on: a spike of a dozen may come back. In a log that is over,
`COLLAPSE_WINDOW` rows at its end are enough."""

WATCHED = ("loss", "grad_norm", "kl", "reward", "entropy")
"""Metrics that must be finite, most telling first."""


@dataclass(frozen=True)
class Symptom:
    """Something wrong in a run that goes on.

    Attributes:
        kind: "non-finite", "collapse", "diverged", "no-gradient" or "dead-reward"; of a remark also "slow" and
            "ranks-differ".
        name: the metric, for "non-finite".
        step: the step at which it was certain.
        text: one line for people.
    """

    kind: str
    name: str
    step: int
    text: str


def number(row: Row, name: str) -> float | None:
    """A metric of a step; None where it is missing or no number."""
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class _Unending:
    """Metrics that stay NaN or infinite."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(WATCHED, 0)  # how many there were
        self._streaks = dict.fromkeys(WATCHED, 0)
        self._last: dict[str, tuple[int, float]] = {}  # of each streak: step and value
        self._found: dict[str, Symptom] = {}

    def take(self, row: Row) -> None:
        """One more step."""
        for name in WATCHED:
            value = number(row, name)
            if value is None:
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


def _dead_groups(row: Row) -> bool | None:
    share = number(row, "frac_reward_zero_std")
    if share is not None:
        return share >= COLLAPSE_DEAD_GROUPS
    spread = number(row, "reward_std")
    return None if spread is None else spread == 0


def has_rewards(rows: Sequence[Row]) -> bool:
    """Whether a run learns from rewards: then its loss says little, and its entropy much. In supervised training it is
    the other way round: entropy falls as the task is learnt."""
    return any(number(row, name) is not None for row in rows for name in _REWARDS)


class _Diverging:
    """A loss that has risen far above what it was, and stays there, where the loss is what is learnt by."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._best, self._found = math.inf, None  # the best level it had held; the symptom
        self._learnt_by = _LearntBy()

    def take(self, row: Row) -> None:
        """One more step."""
        loss = self._learnt_by.take(row)
        if loss is None:
            return
        self._losses.append(loss)
        values, end = self._losses, len(self._losses)
        if self._found is not None or end < COLLAPSE_STREAK + COLLAPSE_WINDOW:
            return
        window, longer = values[end - COLLAPSE_WINDOW :], values[max(end - RISEN_STEPS, 0) :]
        if end > RISEN_STEPS + COLLAPSE_WINDOW:
            self._best = min(self._best, median(values[end - RISEN_STEPS - COLLAPSE_WINDOW : end - RISEN_STEPS]))
        start = fmean(values[:COLLAPSE_STREAK])
        if _above(window, DIVERGED_TIMES * start) or _above(longer, _risen(self._best)):
            text = f"the loss rose from {min(self._best, start):.3g} to {fmean(window):.3g}"
            self._found = Symptom("diverged", "", row["step"], text)

    def found(self) -> Symptom | None:
        """The symptom, None if there is none."""
        return self._found if self._learnt_by.holds else None


def diverged_at_end(rows: Sequence[Row]) -> int | None:
    """Where the loss of a run that is over rose for good, by the same definition: the index of that row; None if it did
    not, or came back."""
    losses = _supervised_losses([{**row, "step": index} for index, row in enumerate(rows)])
    values = [loss for _, loss in losses]
    if len(values) < COLLAPSE_STREAK + COLLAPSE_WINDOW:
        return None
    best = min(median(values[at : at + COLLAPSE_WINDOW]) for at in range(len(values) - COLLAPSE_WINDOW + 1))
    bound = min(DIVERGED_TIMES * fmean(values[:COLLAPSE_STREAK]), _risen(best))
    first = len(values) - COLLAPSE_WINDOW
    if not _above(values[first:], bound):
        return None
    while first > 0 and _above(values[first - 1 : first - 1 + COLLAPSE_WINDOW], bound):
        first -= 1
    first += next(at for at, loss in enumerate(values[first:]) if loss > bound)
    return int(losses[first][0]) if first > 0 else None


def _risen(best: float) -> float:
    """The loss above which a run that held a level has lost it."""
    return max(RISEN_TIMES * best, best + RISEN_BY)


def _above(losses: Sequence[float], bound: float) -> bool:
    """In all but one of eight steps."""
    return sum(loss > bound for loss in losses) * COLLAPSE_WINDOW >= COLLAPSE_MOST * len(losses)


class _LearntBy:
    """Whether the loss is what is learnt by: a policy's is around 0, and negative at times."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._none = False
        self._begun = False

    @property
    def holds(self) -> bool:
        """Whether it is, as far as the steps so far tell."""
        return not self._none and bool(self._first) and fmean(self._first) > 0

    def take(self, row: Row) -> float | None:
        """The loss of one more step, None where there is no finite one."""
        self._none |= not self._begun and any(name.startswith(_OF_A_POLICY) for name in row)
        self._begun = True
        self._none |= has_rewards([row])
        loss = number(row, "loss")
        if loss is None or not math.isfinite(loss):
            return None
        self._none |= loss < 0
        if len(self._first) < COLLAPSE_STREAK:
            self._first.append(loss)
        return loss


def _supervised_losses(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Step and loss of the rows that have a finite one; none where the loss is not what is learnt by."""
    by = _LearntBy()
    losses = [(row["step"], loss) for row in rows if (loss := by.take(row)) is not None]
    return losses if by.holds else []


class _Collapsing:
    """A policy that has lost nearly all entropy, or all it had gained, and with it every difference of reward."""

    def __init__(self) -> None:
        self._past, self._judged = _Past(), []
        self._found: Symptom | None = None
        self._rewards = False

    def take(self, row: Row) -> None:
        """One more step."""
        self._rewards = self._rewards or has_rewards([row])
        if self._found is not None or not _telling(row):
            return
        past, judged = self._past, self._judged
        past.take(row)
        judged.append(row)
        if len(judged) < COLLAPSE_STREAK:
            return
        text = ""
        for size in (COLLAPSE_STREAK, COLLAPSE_WINDOW, GONE_STEPS):
            text = text or (lost(judged[-size:], past) if len(judged) >= size else "")
        text = text or _silent(past, judged[len(judged) - past.streak :])
        if text:
            self._found = Symptom("collapse", "", row["step"], text)

    def found(self) -> Symptom | None:
        """The symptom, None if there is none."""
        return self._found if self._rewards else None


def collapse(rows: Sequence[Row]) -> Symptom | None:
    """A policy that has lost nearly all entropy, or all it had gained, and with it every difference of reward."""
    watch = _Collapsing()
    for row in rows:
        watch.take(row)
    return watch.found()


def lost_at_end(rows: Sequence[Row], first: int) -> str:
    """Whether the last stretch of a run is lost, by the same definition; "" if it is not.

    Args:
        rows: all rows.
        first: the index at which the last stretch begins.
    """
    past = _Past()
    for row in rows[:first]:
        past.take(row)
    now = [row for row in rows[first:] if _telling(row)]
    if len(now) < COLLAPSE_STREAK:
        return ""
    past.closed = True
    past.follow(now)
    return lost(now, past) or _silent(past, [*rows[:first], *now][-past.streak :] if past.streak else [])


def _telling(row: Row) -> bool:
    """Whether a row says anything about collapse."""
    return any(number(row, name) is not None for name in ("entropy", *_REWARDS))


class _Past:
    """What the steps so far were like: where they began, the best they reached, how often they had no signal."""

    def __init__(self) -> None:
        self.entropies: list[float] = []
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
        self.closed = False  # whether the stretch that is judged comes after all of this
        self._window: list[float] = []
        self._rewards: list[float] = []  # in the order of their size

    def take(self, row: Row) -> None:
        """One more step."""
        entropy, reward, clipped = number(row, "entropy"), number(row, "reward"), _clipped(row)
        if entropy is not None and len(self.entropies) < COLLAPSE_STREAK:
            self.entropies.append(entropy)
        if clipped is not None and len(self.clipped) < COLLAPSE_STREAK:
            self.clipped.append(clipped)
        self.follow([row])
        if reward is not None and math.isfinite(reward):
            if len(self.began) < COLLAPSE_WINDOW:
                self.began.append(reward)
            insort(self._rewards, reward)
            self._window = [*self._window[1 - COLLAPSE_WINDOW :], reward]
            mean = fmean(self._window)
            if len(self._window) >= COLLAPSE_WINDOW // 2 and mean > self.best:
                self.best = mean
                self.noise = stdev(self._window) / math.sqrt(len(self._window))

    def follow(self, rows: Sequence[Row]) -> None:
        """Steps of which only the absence of a signal is noted."""
        for row in rows:
            silent = _signalless(row)
            self.silent.append(self.silent[-1] + silent)
            self.streak = self.streak + 1 if silent else 0
            gradient = number(row, "grad_norm")
            if gradient is not None and math.isfinite(gradient) and not silent:
                self.steepest = max(self.steepest, gradient)
            flat = silent and gradient is not None and gradient <= STILL * self.steepest
            self.still = self.still + 1 if flat else 0
            self.entropy |= number(row, "entropy") is not None
            low = self.start > 0 and _below(row, self.start, LOW_SHARE)
            self.fading += low and not _below(row, self.start, COLLAPSE_SHARE)

    @property
    def start(self) -> float:
        """The entropy it began with."""
        return max(self.entropies, default=0.0)

    def keeps(self, rewards: Sequence[float]) -> bool:
        """Whether these rewards are above those it began with, and hold most of what had been gained."""
        if not self.began or not rewards:
            return False
        now, began = fmean(rewards), fmean(self.began)
        given_up = self.best - now
        return now > began and not given_up > max(GIVEN_UP * (self.best - began), FALLEN_DEVIATIONS * self.noise)

    def fallen(self, rewards: Sequence[float], left: float = 1 - FALLEN) -> bool:
        """Whether these rewards have lost what had been reached, and lie where the run began or below."""
        if not rewards or len(self.began) < COLLAPSE_STREAK or not math.isfinite(self.best):
            return False
        now, began = fmean(rewards), fmean(self.began)
        noise = max(self.noise, stdev(self.began) / math.sqrt(len(self.began)))
        back = now <= began + FALLEN_BACK * max(self.best - began, 0.0)
        # Of a sparse reward many steps have nothing at all: so many in a row must be no chance.
        own = 0 if self.closed else len(rewards)
        as_low = (bisect_right(self._rewards, max(rewards)) - own + 1) / (len(self._rewards) - own + 2)
        if min(as_low, 1.0) ** len(rewards) >= BY_CHANCE:
            return False
        return back and self.best - now > max((1 - left) * abs(self.best), FALLEN_DEVIATIONS * noise)


def _below(row: Row, start: float, share: float) -> bool:
    entropy = number(row, "entropy")
    return entropy is not None and entropy < share * start


def _signalless(row: Row) -> bool:
    """Whether a step had nothing to learn from."""
    return _dead_groups(row) is True or (_dead_groups(row) is None and number(row, "grad_norm") == 0)


def _most(rows: Sequence[Row], holds: Callable[[Row], bool]) -> bool:
    """In all but one of eight steps."""
    return sum(map(holds, rows)) * COLLAPSE_WINDOW >= COLLAPSE_MOST * len(rows)


def _rewards(rows: Sequence[Row]) -> list[float]:
    values = (number(row, "reward") for row in rows)
    return [value for value in values if value is not None and math.isfinite(value)]


def lost(rows: Sequence[Row], past: _Past) -> str:
    """Whether the policy is collapsed in a stretch of steps, and what shows it; "" if it is not.

    Args:
        rows: the stretch, all of it.
        past: the steps up to its end, or up to its beginning.
    """
    start, rewards = past.start, _rewards(rows)
    entropy = number(rows[-1], "entropy")
    fell = f"entropy fell from {start:.3g} to {entropy:.2g}" if entropy is not None else ""
    learnt = past.fading >= SLOWLY and past.keeps(rewards)
    with_entropy = start > 0 and all(number(row, "entropy") is not None for row in rows)
    dead = [_dead_groups(row) for row in rows]
    if with_entropy and not learnt:
        vanished = [_below(row, start, COLLAPSE_SHARE) for row in rows]
        if all(vanished) and not any(one is False for one in dead):
            return f"{fell}, rewards all equal"
        if len(rows) >= COLLAPSE_WINDOW:
            if _most(rows, lambda row: _dead_groups(row) is True) and _most(
                rows, lambda row: _below(row, start, LOW_SHARE)
            ):
                return f"{fell}, rewards all equal in {dead.count(True)} of {len(rows)} steps"
            began = past.began[:COLLAPSE_STREAK]
            if (
                began
                and rewards
                and fmean(rewards) < fmean(began)
                and _most(rows, lambda row: _below(row, start, COLLAPSE_SHARE))
            ):
                return f"{fell}, and the reward fell"
    if len(rows) < COLLAPSE_WINDOW or not past.fallen(rewards):
        return ""
    down = f"the reward fell from {past.best:.3g} to {fmean(rewards):.2g}"
    if with_entropy and _most(rows, lambda row: (number(row, "entropy") or 0.0) > NOISE_SHARE * start):
        return f"{down}, and entropy rose from {start:.3g} to {entropy:.2g}: the policy answers noise"
    # Long answers alone are no collapse: as long as rewards are there and differ, and there is a gradient, it learns.
    nothing = _most(rows, _signalless) or past.fallen(rewards, GONE)
    if nothing and max(past.clipped, default=1.0) < CUT_OFF and _most(rows, _cut_off) and any(map(_clipped, rows)):
        return f"{down}, and every completion is cut off"
    if len(rows) >= GONE_STEPS and past.fallen(rewards, GONE):
        return f"{down}, and stayed there"
    began = fmean(past.began)
    if len(rows) >= GONE_STEPS and began > 0 and max(rewards) < began and fmean(rewards) < BELOW_START * began:
        return f"{down}, far below the {began:.2g} it began with, and stayed there"
    return ""


def _cut_off(row: Row) -> bool:
    return (_clipped(row) or 0.0) >= CUT_OFF


def _clipped(row: Row) -> float | None:
    """The share of completions that were cut off; None if it was not logged."""
    share = number(row, "clipped_ratio")
    return number(row, "completions/clipped_ratio") if share is None else share


def _silent(past: _Past, rows: Sequence[Row]) -> str:
    """A row of steps at the end without any signal, after a time that had one, and nothing of the reward left.

    Args:
        past: all steps.
        rows: those of the streak.
    """
    streak, before = past.streak, len(past.silent) - 1 - past.streak
    if streak < 2 * COLLAPSE_STREAK or before < 1:
        return ""
    recent = max(before - RECENT, 0)
    share = max(
        (past.silent[before] + 1) / (before + 2),
        (past.silent[before] - past.silent[recent] + 1) / (before - recent + 2),
    )
    rewards = _rewards(rows)
    unrisen = not rewards or not past.began or fmean(rewards) <= fmean(past.began[:COLLAPSE_STREAK]) + 1e-9
    if not past.entropy and past.still >= streak and unrisen and share**streak < BY_CHANCE**0.5:
        # TRL before 0.20 logs no entropy: a spread of rewards and a gradient that were there and are gone for good.
        return "rewards became all equal and grad_norm next to 0, and stayed so"
    if share**streak < BY_CHANCE and past.fallen(rewards):
        return f"the reward fell from {past.best:.3g} to {fmean(rewards):.2g}, all equal in {streak} steps in a row"
    return ""


def never_learning(rows: Sequence[Row]) -> Symptom | None:
    """A run that has had nothing to learn from in any of its first steps."""
    first = list(islice((row for row in rows if number(row, "grad_norm") is not None), DEAD_STEPS))
    if len(first) < DEAD_STEPS:
        return None
    step = first[-1]["step"]
    judged = [_dead_groups(row) for row in first if _dead_groups(row) is not None]
    if judged and all(judged):
        return Symptom("dead-reward", "", step, f"all rewards of a group equal in each of the first {DEAD_STEPS} steps")
    if all(number(row, "grad_norm") == 0 for row in first):
        return Symptom("no-gradient", "", step, f"grad_norm is 0 in each of the first {DEAD_STEPS} steps")
    return None


class Watch:
    """Looks at a run while it goes on, at each of its rows once: a late failure is not worth looking at all of them
    anew with each row that comes."""

    def __init__(self) -> None:
        self._begin((), ())

    def _begin(self, rows: Sequence[Row], earlier: Sequence[Row]) -> None:
        self._first, self._taken, self._earlier = rows[:1], 0, earlier
        self._unending, self._collapsing, self._diverging = _Unending(), _Collapsing(), _Diverging()
        for row in earlier:
            self._collapsing.take(row)
            self._diverging.take(row)

    def symptoms(self, rows: Sequence[Row], ended: bool, earlier: Sequence[Row] = ()) -> list[Symptom]:
        """As `symptoms`, of all rows that there are by now. Those of another training begin a new watch."""
        same = self._taken == 0 or (rows and rows[0] is self._first[0])
        if len(rows) < self._taken or not same or earlier is not self._earlier or not self._taken:
            self._begin(rows, earlier)
        for row in rows[self._taken :]:
            for watch in (self._unending, self._collapsing, self._diverging):
                watch.take(row)
        self._taken = len(rows)
        found = self._unending.found(ended)
        for symptom in (self._collapsing.found(), self._diverging.found(), never_learning(rows)):
            if symptom is not None and rows:
                found.append(replace(symptom, step=max(symptom.step, 1)))
        return found


def symptoms(rows: Sequence[Row], ended: bool, earlier: Sequence[Row] = ()) -> list[Symptom]:
    """All symptoms, most severe first.

    Args:
        rows: metrics in the order of the steps.
        ended: whether the run is over; some judgements need its end.
        earlier: rows of the same training before these, of a run that goes on from a checkpoint: what is lost now was
            there then. What was lost then already shows at the first step.
    """
    return Watch().symptoms(rows, ended, earlier)


def remarks(rows: Sequence[Row]) -> list[Symptom]:
    """Oddities worth a line in the report though the run is not called failed for them: "non-finite", or "slow"."""
    found = []
    for name in WATCHED:
        odd = [row["step"] for row in rows if (v := number(row, name)) is not None and not math.isfinite(v)]
        if odd:
            value = next(number(row, name) for row in rows if row["step"] == odd[0])
            text = f"{name} is {value} at {len(odd)} of {len(rows)} steps (first at step {odd[0]})"
            found.append(Symptom("non-finite", name, odd[0], text))
    slow = slower_steps(rows)
    return [*found, slow] if slow is not None else found


def slower_steps(rows: Sequence[Row]) -> Symptom | None:
    """That steps became much slower than they were, None if they did not. The first step is left out: it pays for
    allocation and compilation, and is slow in any run."""
    took = [
        (int(row["step"]), row["time"] - before["time"])
        for before, row in zip(rows, rows[1:], strict=False)
        if isinstance(row.get("time"), (int, float)) and isinstance(before.get("time"), (int, float))
    ]
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
