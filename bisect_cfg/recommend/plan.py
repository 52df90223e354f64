"""From proven corrections to verified safe values: which trial next, and what the trials so far amount to.

A *way out* starts from a correction (a minimal set of settings whose reset cures the user's configuration) or from a
known alternative. Each is followed in the same manner:

1. The reset itself must be healthy, not merely alive.
2. Each of its numeric settings is moved back toward what the user wanted, the threshold bracketed by trials
   (`recommend.threshold`), and a margin kept from the last healthy value.
3. The whole configuration is run over a longer horizon with several seeds. If one of the runs is not healthy, the
   values step back half way to good, and it is tried again.

Everything here is a pure function of the recorded runs: `follow` walks the way with what is known and stops where an
answer is missing. Resuming, other margins and other seeds are the same thing as going on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bisect_cfg.recommend.runs import Question, Ran
from bisect_cfg.recommend.scale import Axis
from bisect_cfg.recommend.threshold import Bracket, Seen, bracket, next_value

MARGIN = 0.5
"""The margin: half of the way, on the natural scale, from the last healthy value back to the good one. Trials are
short, and what a rate does in 20 steps a lower one does in 200."""

FARTHEST_MARGIN = 10.0
"""... but on a logarithmic scale never more than a factor of ten: where good and bad lie many decades apart, half of
the way would give up far more than a longer training costs (full fine-tuning recipes lie within a factor of ten of each
other, 3e-7 to 5e-6)."""

MOST_ASKED = 64
"""So many missing runs of one verification are named at once; no more could run at the same time."""

STEPS_BACK = 3
"""How often the values step back after a failed verification before the way is given up at its good values."""

STEP_BACK = 0.5
"""How far: half of what is left to good."""


@dataclass(frozen=True)
class Start:
    """Where a way out begins.

    Attributes:
        changes: name -> value: what is set in the user's configuration.
        ranges: those of them that are moved back toward bad, in this order.
        why: what speaks for a known alternative, "" for a plain reset.
        source: of that.
        resets: names that it resets to good.
        merit: of a known alternative, its place in the list of them; None for a plain reset.
        outside: how many settings it changes that are no factors.
    """

    changes: Mapping[str, Any]
    ranges: tuple[Axis, ...] = ()
    why: str = ""
    source: str = ""
    resets: tuple[str, ...] = ()
    merit: int | None = None
    outside: int = 0


@dataclass(frozen=True)
class Range:
    """How far one setting can go.

    Attributes:
        name: of the setting.
        good: its good value.
        bad: its bad one.
        healthy: the last value seen healthy (or good).
        unhealthy: the first value on the unhealthy side.
        probability: that the threshold lies between.
        settled: whether the bracket is as narrow as asked for.
        trials: numbers of the runs.
        shown: what the nearest unhealthy value did.
    """

    name: str
    good: float
    bad: float
    healthy: float
    unhealthy: float
    probability: float
    settled: bool
    trials: tuple[int, ...]
    shown: str = ""


@dataclass(frozen=True)
class WayOut:
    """One way out, as far as it is known.

    Attributes:
        start: where it begins.
        changes: name -> value: what it comes to.
        status: "verified", "healthy" (short runs only so far), "rejected", or "open" (nothing healthy yet).
        ranges: by setting.
        passed: numbers of the verification runs of `changes` that were healthy.
        steps: optimizer steps of each.
        rejected: why it was given up.
        stepped_back: how often.
        loss: what the user gives up; smaller is better.
        unsettled: what has not been settled, in words.
        open_ranges: settings of which it is not known yet how far they can go.
        tried: whether any run says something about it.
    """

    start: Start
    changes: Mapping[str, Any]
    status: str
    ranges: tuple[Range, ...] = ()
    passed: tuple[int, ...] = ()
    steps: int = 0
    rejected: str = ""
    stepped_back: int = 0
    loss: float = 0.0
    unsettled: tuple[str, ...] = ()
    open_ranges: tuple[str, ...] = ()
    tried: bool = False

    @property
    def bound(self) -> float | None:
        """The failure rate that cannot be excluded at 95 %, when no run failed: 1 - 0.05^(1/n)."""
        return failure_bound(len(self.passed)) if self.status == "verified" else None


def failure_bound(runs: int) -> float:
    """The largest failure rate that lets `runs` runs all pass with a probability of 5 %."""
    return 1 - 0.05 ** (1 / runs) if runs else 1.0


@dataclass(frozen=True)
class Problem:
    """What does not change while the ways are followed.

    Attributes:
        bad: the user's configuration, factor -> value.
        steps_for: (configuration, steps wanted) -> steps that meet the full learning rate.
        horizon: steps of a trial.
        verify_steps: steps of a verification.
        verify_seeds: how many seeds.
        is_valid: whether the library can build a configuration.
        margin: see `MARGIN`.
        known: (healthy, unhealthy) runs of the bad end, from the search.
    """

    bad: Mapping[str, Any]
    steps_for: Callable[[Mapping[str, Any], int], int]
    horizon: int
    verify_steps: int
    verify_seeds: int = 3
    is_valid: Callable[[Mapping[str, Any]], bool] = lambda configuration: True
    margin: float = MARGIN
    known: tuple[int, int] = (0, 1)


class _Missing(Exception):
    """The way cannot be followed any farther without these runs."""

    def __init__(self, *questions: Question) -> None:
        self.questions = questions


@dataclass
class _Walk:
    """One way being followed; what is known stays here when an answer is missing."""

    problem: Problem
    start: Start
    runs: Mapping[str, Sequence[Ran]]
    changes: dict[str, Any]
    ranges: list[Range] = field(default_factory=list)
    healthy: bool = False
    stepped_back: int = 0
    bracketed: set[str] = field(default_factory=set)
    tried: bool = False

    def configuration(self, **changes: Any) -> dict[str, Any]:
        return {**self.problem.bad, **self.changes, **changes}

    def ask(self, *questions: Question) -> list[Ran]:
        """As `ask_all`."""
        return self.ask_all(questions)

    def ask_all(self, questions: Iterable[Question]) -> list[Ran]:
        """The runs that answer.

        Raises:
            _Missing: with those that nothing answers yet; none as soon as one answered run is unhealthy.
        """
        answers, missing = [], []
        for question in questions:
            told = [(ran, ran.answers(question.steps)) for ran in self.runs.get(question.key, ())]
            bad = [replace(ran, healthy=False) for ran, answer in told if answer is False]
            good = [replace(ran, healthy=True) for ran, answer in told if answer is True]
            self.tried = self.tried or bool(bad or good)
            if bad:
                return [bad[0]]
            if good:
                answers.append(good[0])
            else:
                missing.append(question)
                if len(missing) == MOST_ASKED:  # a million seeds may be wanted
                    break
        if missing:
            self.healthy = self.healthy or bool(answers)
            raise _Missing(*missing)
        return answers

    def question(self, configuration: dict[str, Any], seed: int, part: str, reason: str) -> Question:
        wanted = self.problem.verify_steps if part == "verify" else self.problem.horizon
        return Question(configuration, seed, self.problem.steps_for(configuration, wanted), part, reason)

    # ------------------------------------------------------------------------------------------- the three parts

    def reset(self) -> str:
        """Why the reset is not healthy, "" if it is."""
        words = ", ".join(self.start.changes)
        ran = self.ask(self.question(self.configuration(), 0, "reset", f"is it healthy with {words} reset?"))[0]
        self.healthy = ran.healthy
        return "" if ran.healthy else ran.text

    def range(self, axis: Axis) -> None:
        """Bracket the threshold of one setting, and keep a margin from it."""
        last = len(axis.values) - 1
        seen: dict[int, list[Ran]] = {}
        try:
            while True:
                counts = [
                    Seen(index, sum(ran.healthy for ran in runs), sum(not ran.healthy for ran in runs))
                    for index, runs in seen.items()
                ]
                found = next_value(axis, [Seen(last, *self.problem.known), *counts])
                if isinstance(found, Bracket):
                    break
                value, index = axis.values[found.index], found.index
                seed = len(seen.get(index, ()))
                reason = f"how far can {axis.name} go?"
                question = self.question(self.configuration(**{axis.name: value}), seed, "range", reason)
                seen.setdefault(index, []).append(self.ask(question)[0])
        except _Missing:
            found = bracket(axis, [Seen(last, *self.problem.known), *counts])
            self.ranges.append(self._range_of(axis, found, seen, settled=False))
            raise
        done = self._range_of(axis, found, seen, settled=found.high - found.low == 1)
        self.ranges.append(done)
        self.bracketed.add(axis.name)
        self.changes[axis.name] = self._valid(axis, axis.back(done.healthy, self.problem.margin, FARTHEST_MARGIN))

    def _range_of(self, axis: Axis, found: Bracket, seen: Mapping[int, Sequence[Ran]], settled: bool) -> Range:
        beyond = sorted(index for index, runs in seen.items() if any(not ran.healthy for ran in runs))
        shown = next((ran.text for index in beyond[:1] for ran in seen[index] if not ran.healthy), "")
        numbers = tuple(sorted({ran.number for runs in seen.values() for ran in runs}))
        low, high = axis.values[found.low], axis.values[found.high]
        return Range(axis.name, axis.good, axis.bad, low, high, found.probability, settled, numbers, shown)

    def _valid(self, axis: Axis, value: float) -> float:
        """The value, or the next valid one toward good."""
        if self.problem.is_valid(self.configuration(**{axis.name: value})):
            return value
        steps = [v for v in axis.values if axis.share(v) <= axis.share(value)]
        return next(
            (v for v in reversed(steps) if self.problem.is_valid(self.configuration(**{axis.name: v}))), axis.good
        )

    def verify(self) -> tuple[tuple[int, ...], str]:
        """The runs that verified it, or why it had to be given up."""
        while True:
            configuration = self.configuration()
            first = self.question(configuration, 0, "verify", "does the whole of it train on?")
            runs = self.ask_all(replace(first, seed=seed) for seed in range(self.problem.verify_seeds))
            failed = next((ran for ran in runs if not ran.healthy), None)
            if failed is None:
                return tuple(ran.number for ran in runs), ""
            movable = [axis for axis in self.start.ranges if self.changes[axis.name] != axis.good]
            if not movable:
                return (), failed.text
            self.stepped_back += 1
            for axis in movable:
                value = axis.back(self.changes[axis.name], STEP_BACK)
                if self.stepped_back >= STEPS_BACK or value == self.changes[axis.name]:
                    value = axis.good
                self.changes[axis.name] = self._valid(axis, value)


def follow(problem: Problem, start: Start, runs: Sequence[Ran]) -> tuple[WayOut, tuple[Question, ...]]:
    """Follow one way out as far as the runs allow.

    Returns:
        What is known of it, and the runs that are missing (none once it is verified or rejected).
    """
    by_key: dict[str, list[Ran]] = {}
    for ran in runs:
        by_key.setdefault(ran.key, []).append(ran)
    walk = _Walk(problem, start, by_key, dict(start.changes))
    passed: tuple[int, ...] = ()
    rejected, missing, part = "", (), "reset"
    try:
        if start.ranges:
            rejected = walk.reset()
            part = "range"
            for axis in start.ranges if not rejected else ():
                walk.range(axis)
        part = "verify"
        if not rejected:
            passed, rejected = walk.verify()
    except _Missing as stop:
        missing = stop.questions
    status = "rejected" if rejected else "verified" if passed else "healthy" if walk.healthy else "open"
    way = WayOut(
        start,
        dict(walk.changes),
        status,
        tuple(walk.ranges),
        passed,
        problem.steps_for(walk.configuration(), problem.verify_steps),
        rejected,
        walk.stepped_back,
        unsettled=_unsettled(part, walk) if missing else (),
        open_ranges=tuple(axis.name for axis in start.ranges if axis.name not in walk.bracketed) if missing else (),
        tried=walk.tried,
    )
    return way, missing


def _unsettled(part: str, walk: _Walk) -> tuple[str, ...]:
    if part == "reset":
        return (f"whether it stays healthy with {', '.join(walk.start.changes)} reset",)
    if part == "range":
        done = {found.name for found in walk.ranges if found.settled}
        return tuple(f"how far {axis.name} can go" for axis in walk.start.ranges if axis.name not in done) + (
            "whether it trains over a longer horizon",
        )
    return ("whether it trains over a longer horizon and with other seeds",)
