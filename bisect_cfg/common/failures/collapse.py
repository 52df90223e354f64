"""A policy that has collapsed: what the metric rows of the steps say of its entropy and of its rewards.

Pure: `Collapsing` takes one metric row after another. What else can be wrong with a run, and what a row has, stands in
`health`, which has the number that decides first, and the words, in its table.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TypeVar

Each = TypeVar("Each")

Row = Mapping[str, float | str | None]  # metrics of one optimizer step, by name, and its `step` and `time`


_REWARDS = ("reward", "reward_std", "frac_reward_zero_std")

COLLAPSE_SHARE, COLLAPSE_DEAD_GROUPS, COLLAPSE_STREAK = 0.05, 0.9, 3
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


def number(row: Row, name: str) -> float | None:
    """A metric of a step; None where it is missing or no number."""
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def finite(rows: Sequence[Row], name: str) -> list[float]:
    """The finite values of a metric."""
    values = (number(row, name) for row in rows)
    return [value for value in values if value is not None and math.isfinite(value)]


def step_of(row: Row) -> int:
    """The optimizer step of a row."""
    return int(row["step"] or 0)


def has_rewards(rows: Sequence[Row]) -> bool:
    """Whether a run learns from rewards: its loss says little then. Otherwise its entropy does, which falls with it."""
    return any(number(row, name) is not None for row in rows for name in _REWARDS)


class Collapsing:
    """A policy that has lost nearly all entropy, or all it had gained, and with it every difference of reward."""

    def __init__(self) -> None:
        self._past = Past()
        self._judged: list[Row] = []
        self._found: tuple[int, str] | None = None
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
            self._found = int(number(row, "step") or 0), text

    def found(self) -> tuple[int, str] | None:
        """The step at which it was certain, and what shows it."""
        return self._found if self._rewards else None


class Past:
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


def _lost(rows: Sequence[Row], past: Past) -> str:
    """Whether the policy is collapsed in all of the last steps, `rows`, and what shows it; "" if it is not."""
    start, rewards = past.start, finite(rows, "reward")
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
            if most(dead, lambda one: one is True) and most(rows, lambda row: _below(row, start, LOW_SHARE)):
                return f"{fell}, rewards all equal in {dead.count(True)} of {len(rows)} steps"
            began = past.began[:COLLAPSE_STREAK]
            if began and rewards and fmean(rewards) < fmean(began) and most(vanished, bool):
                return f"{fell}, and the reward fell"
    if len(rows) < COLLAPSE_WINDOW or not past.fallen(rewards):
        return ""
    down = f"the reward fell from {past.best:.3g} to {fmean(rewards):.2g}"
    if with_entropy and most(rows, lambda row: (number(row, "entropy") or 0.0) > NOISE_SHARE * start):
        return f"{down}, and entropy rose from {start:.3g} to {entropy:.2g}: the policy answers noise"
    # Long answers alone are no collapse: as long as rewards are there and differ, and there is a gradient, it learns.
    nothing = most(rows, _signalless) or past.fallen(rewards, GONE)
    cut_off = most(rows, lambda row: (_clipped(row) or 0.0) >= CUT_OFF) and any(map(_clipped, rows))
    if nothing and max(past.clipped, default=1.0) < CUT_OFF and cut_off:
        return f"{down}, and every completion is cut off"
    if len(rows) >= GONE_STEPS and past.fallen(rewards, GONE):
        return f"{down}, and stayed there"
    first = fmean(past.began)
    if len(rows) >= GONE_STEPS and first > 0 and max(rewards) < first and fmean(rewards) < BELOW_START * first:
        return f"{down}, far below the {first:.2g} it began with, and stayed there"
    return ""


def _silent(past: Past, rows: Sequence[Row]) -> str:
    """Steps at the end, `rows`, without any signal, after a time that had one, and nothing of the reward left."""
    streak, before = past.streak, len(past.silent) - 1 - past.streak
    if streak < 2 * COLLAPSE_STREAK or before < 1:
        return ""
    recent = max(before - RECENT, 0)
    of_all = (past.silent[before] + 1) / (before + 2)
    share = max(of_all, (past.silent[before] - past.silent[recent] + 1) / (before - recent + 2))
    rewards = finite(rows, "reward")
    unrisen = not rewards or not past.began or fmean(rewards) <= fmean(past.began[:COLLAPSE_STREAK]) + 1e-9
    if not past.entropy and past.still >= streak and unrisen and share**streak < BY_CHANCE**0.5:
        # TRL before 0.20 logs no entropy: a spread of rewards and a gradient that were there and are gone for good.
        return "rewards became all equal and grad_norm next to 0, and stayed so"
    if share**streak < BY_CHANCE and past.fallen(rewards):
        return f"the reward fell from {past.best:.3g} to {fmean(rewards):.2g}, all equal in {streak} steps in a row"
    return ""


def most(values: Sequence[Each], holds: Callable[[Each], bool]) -> bool:
    """In all but one of eight steps."""
    return sum(map(holds, values)) * COLLAPSE_WINDOW >= COLLAPSE_MOST * len(values)


def _below(row: Row, start: float, share: float) -> bool:
    entropy = number(row, "entropy")
    return entropy is not None and entropy < share * start


def dead_groups(row: Row) -> bool | None:
    """Whether (nearly) all groups of a step have equal rewards; None if that was not logged."""
    share, equal = number(row, "frac_reward_zero_std"), equal_rewards(row, "reward", "reward_std")
    if share is None:
        return equal
    rounded = bool(equal) and number(row, "reward_std") != 0  # equal to us, and not to what counted the groups
    return share >= COLLAPSE_DEAD_GROUPS or rounded


def equal_rewards(row: Row, mean: str, spread: str) -> bool | None:
    """Whether rewards do not differ by more than the mean of equal ones is rounded by; None if that was not logged."""
    apart = number(row, spread)
    return None if apart is None else apart <= ROUNDED * abs(number(row, mean) or 0.0)


def _signalless(row: Row) -> bool:
    """Whether a step had nothing to learn from."""
    dead = dead_groups(row)
    return number(row, "grad_norm") == 0 if dead is None else dead


def _clipped(row: Row) -> float | None:
    """The share of completions that were cut off; None if it was not logged."""
    share = number(row, "clipped_ratio")
    return number(row, "completions/clipped_ratio") if share is None else share
