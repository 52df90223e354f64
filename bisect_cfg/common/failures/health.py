"""Runs that do not die and yet go wrong: what the metric rows of the steps say.

`RULES` is the table of everything that is judged: six failures, and three remarks for which no run is called failed.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from statistics import fmean, median

from bisect_cfg.common.failures.collapse import (
    COLLAPSE_SHARE,
    COLLAPSE_STREAK,
    COLLAPSE_WINDOW,
    CUT_OFF,
    NOISE_SHARE,
    Collapsing,
    Row,
    dead_groups,
    equal_rewards,
    has_rewards,
    most,
    number,
    step_of,
)  # fmt: skip

__all__ = [
    "COLLAPSE_STREAK", "COLLAPSE_WINDOW", "CUT_OFF", "DEAD_STEPS", "ENGINE_DIFFERENCE", "ENGINE_RATIO", "LOOKS",
    "NOISE_SHARE", "NON_FINITE_STREAK", "ODDITIES", "RULES", "SILENT_KINDS", "WATCHED", "Row", "Rule", "Symptom",
    "Watch", "dead_groups", "has_rewards", "not_finite", "number", "remarks", "step_of", "symptoms",
]  # fmt: skip


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
    Rule("collapse", "collapses the policy", True, COLLAPSE_SHARE,
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
    Rule("idle", "many steps learnt nothing", False, 0.5,
         "share of the steps with different rewards in which grad_norm is exactly 0: where mask_truncated_completions "
         "leaves out nearly all completions, nothing is left to learn from", "chosen; nothing is decided by it"),
    Rule("slow", "steps became much slower", False, 10.0,
         "a step so many times as long as usual; no failure, since a run is slow for many reasons",
         "chosen; nothing is decided by it"),
)  # fmt: skip
ODDITIES = {"non-finite": "{} was NaN or infinite", **{rule.kind: rule.words for rule in RULES if not rule.failure}}
"""What was odd, by the kind of a remark, about the metric of that name."""
_SEVERITY = {rule.kind: place for place, rule in enumerate(RULES)}
_BOUND = {rule.kind: rule.bound for rule in RULES}
SILENT_KINDS = tuple(rule.kind for rule in RULES if rule.failure and rule.kind != "non-finite")
"""Kinds of a run that neither dies nor computes anything non-finite, and learns nothing."""

WATCHED = ("loss", "grad_norm", "kl", "reward", "entropy")  # must be finite; most telling first

_OF_A_POLICY = ("actor/", "critic/", "completions/", "completion_length", "response_length", "clipped_ratio", "policy/")
"""Metrics that only training by rewards has, where the reward itself is not among them."""

REWARD, OFREWARDS = "reward", "rewards/"
"""A reward that is not finite is a failure in a single step already: no scaler makes it, its step learns nothing, and
such rewards come and go with the completions. Those of single functions, by their prefix, are NaN where a function did
not apply, so that only an infinite one counts."""

_OF_A_FUNCTION = re.compile(rf"{OFREWARDS}(?!.*/std$)(.+?)(?:/mean)?")
"""A reward function's name in the metric of its mean; TRL before 0.16 has no other metric of it, and no "/mean"."""

NON_FINITE_STREAK, NON_FINITE_AT_END = int(_BOUND["non-finite"]), 3
"""Steps in a row in which another metric is not finite; fewer are enough where the run ends with them."""

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


def not_finite(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    """Step and value of the rows in which a metric is NaN or infinite."""
    told = ((row, number(row, name)) for row in rows)
    return [(step_of(row), value) for row, value in told if value is not None and not math.isfinite(value)]


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
        self._unending, self._collapsing, self._diverging = _Unending(), Collapsing(), _Diverging()
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
        if collapsed := self._collapsing.found():
            found.append(Symptom("collapse", "", max(collapsed[0], 1), collapsed[1]))
        for symptom in (self._diverging.found(), self._engine.found, *looked):
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
            self._found[REWARD] = Symptom("non-finite", REWARD, step_of(row), f"{name} is {number(row, name)}")
        for name in WATCHED:
            if (value := number(row, name)) is None:
                continue
            self._values[name] += 1
            self._streaks[name] = 0 if math.isfinite(value) else self._streaks[name] + 1
            self._last[name] = step_of(row), value
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
    return next((name for name in broken if name.startswith(OFREWARDS) and math.isinf(number(row, name) or 0)), "")


class _Diverging:
    """A loss that has risen far above what it was, and stays there, where the loss is what is learnt by."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._best = math.inf  # level that it had held
        self._found: Symptom | None = None
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
        if most(window, lambda loss: loss > DIVERGED_TIMES * start) or most(longer, lambda loss: loss > risen):
            told = f"the loss rose from {min(self._best, start):.3g} to {fmean(window):.3g}"
            self._found = Symptom("diverged", "", step_of(row), told)

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
            self.found = Symptom("engine-drifts", "", step_of(row), told)


def never_learning(rows: Sequence[Row]) -> Symptom | None:
    """A run that has had nothing to learn from in any of its first steps."""
    first = list(islice((row for row in rows if number(row, "grad_norm") is not None), DEAD_STEPS))
    if len(first) < DEAD_STEPS:
        return None
    step, judged = step_of(first[-1]), [dead for row in first if (dead := dead_groups(row)) is not None]
    if judged and all(judged):
        text = f"all rewards of a group equal in each of the first {DEAD_STEPS} steps"
        return Symptom("dead-reward", "", step, "; ".join([text, *odd_rewards(first)]))
    if all(number(row, "grad_norm") == 0 for row in first):
        return Symptom("no-gradient", "", step, f"grad_norm is 0 in each of the first {DEAD_STEPS} steps")
    return None


def broken_rewards(row: Row) -> list[str]:
    """The reward functions whose rewards of a step are infinite; where none are, those whose rewards are NaN."""
    found = {of[1]: number(row, name) for name in row if (of := _OF_A_FUNCTION.fullmatch(name))}
    infinite, nan = ([one for one, mean in found.items() if mean is not None and test(mean)]
                     for test in (math.isinf, math.isnan))  # fmt: skip
    return infinite or nan


def odd_rewards(rows: Sequence[Row]) -> Iterator[str]:
    """What is odd about the reward functions, of steps in which all rewards of a group are equal."""
    spreading = []
    for mean, name in {key: one[1] for row in rows for key in row if (one := _OF_A_FUNCTION.fullmatch(key))}.items():
        equal = {equal_rewards(row, mean, f"{OFREWARDS}{name}/std") for row in rows}
        if len({number(row, mean) for row in rows}) == 1 and False not in equal:
            yield f"{name} gives {number(rows[0], mean):.4g} every time"
        elif equal == {True}:
            yield f"{name} gives all completions of a step one value, and each step another"
        elif None not in equal:
            spreading.append((name, equal))
    if len(spreading) == 1 and spreading[0][1] == {False}:  # several may cancel each other
        yield f"{spreading[0][0]} gives all completions of a prompt one value, and each prompt another"


def remarks(rows: Sequence[Row]) -> list[Symptom]:
    """Oddities worth a line in the report though the run is not called failed for them: "non-finite", "idle" or "slow".
    A reward function is odd that is NaN in all steps: TRL leaves it out of the reward."""
    found = []
    functions = dict.fromkeys(name for row in rows for name in row if name.startswith(OFREWARDS) and "std" not in name)
    for name in (*WATCHED, *functions):
        least = 1 if name in WATCHED else max(DEAD_STEPS, sum(number(row, name) is not None for row in rows))
        if len(odd := not_finite(rows, name)) >= least:
            step, value = odd[0]
            text = f"{name} is {value} at {len(odd)} of {len(rows)} steps (first at step {step})"
            found.append(Symptom("non-finite", name, step, text))
    return [*found, *(odd for odd in (_idle_steps(rows), slower_steps(rows)) if odd is not None)]


def _idle_steps(rows: Sequence[Row]) -> Symptom | None:
    """Steps without a gradient though there was something to learn from, of a run that learns at times."""
    judged = [row for row in rows if dead_groups(row) is False and number(row, "grad_norm") is not None]
    idle = [step_of(row) for row in judged if number(row, "grad_norm") == 0]
    if len(judged) < DEAD_STEPS or len(idle) < _BOUND["idle"] * len(judged) or never_learning(rows) is not None:
        return None
    text = f"grad_norm is 0 in {len(idle)} of {len(judged)} steps whose rewards differ (first at step {idle[0]})"
    return Symptom("idle", "grad_norm", idle[0], text)


def slower_steps(rows: Sequence[Row]) -> Symptom | None:
    """Steps that took much longer than usual. The first is left out: it pays for allocation and compilation."""
    times = [(step_of(row), number(row, "time")) for row in rows]
    took = [(step, now - old) for (_, old), (step, now) in pairwise(times) if old is not None and now is not None]
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
