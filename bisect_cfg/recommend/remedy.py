"""From proven corrections to verified safe values: which trial next, and what the trials so far amount to.

A *remedy* begins as a correction (a minimal set of settings whose reset cures the user's configuration) or from a
known alternative. Each is followed in the same manner:

1. The reset itself must be healthy, not merely alive.
2. Each of its numeric settings is moved back toward what the user wanted, the threshold bracketed by trials
   (`recommend.threshold`), and a margin kept from the last healthy value.
3. The whole configuration is run over a longer horizon with several seeds. If one of the runs is not healthy, the
   values step back half way to good, and it is tried again.

Everything here is a pure function of the recorded runs: `follow` walks with what is known and stops where an
answer is missing. Resuming, other margins and other seeds are the same thing as going on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.recommend.attempts import Aim, Attempt, Ran
from bisect_cfg.recommend.search_range import SearchRange
from bisect_cfg.recommend.threshold import Bracket, Seen, bracket, next_value

MARGIN = 0.5
"""The margin: half of the way, on the natural scale, from the last healthy value back to the good one. Trials are
short, and what a rate does in 20 steps a lower one does in 200."""

FARTHEST_MARGIN = 10.0
"""... but on a logarithmic scale never more than a factor of ten: where good and bad lie many decades apart, half of
the way would give up far more than a longer training costs (full fine-tuning recipes lie within a factor of ten of each
other, 3e-7 to 5e-6)."""

LUCK = 0.05
"""A failure rate at which so many runs without a failure are less likely than this counts as excluded: "at 95 %"."""

MOST_ASKED = 64
"""So many missing runs of one verification are named at once; no more could run at the same time."""

STEPS_BACK = 3
"""How often the values step back after a failed verification before the remedy is given up at its good values."""

STEP_BACK = 0.5
"""How far: half of what is left to good."""


class RemedyStatus(StrEnum):
    """How far a remedy has come, the best first. The values are those of result.json."""

    VERIFIED = "verified"
    HEALTHY = "healthy"
    """In short runs, so far."""
    OPEN = "open"
    """Nothing healthy yet, nor anything that speaks against it."""
    REJECTED = "rejected"


@dataclass(frozen=True)
class Proposal:
    """Where a remedy begins.

    Attributes:
        changes: name -> value: what is set in the user's configuration.
        ranges: those of them that are moved back toward bad, in this order.
        why: what speaks for a known alternative, "" for a plain reset.
        source: of that.
        resets: names that it resets to good.
        merit: of a known alternative, its place in the list of them; None for a plain reset.
        outside: how many settings it changes that are no factors.
    """

    changes: Configuration
    ranges: tuple[SearchRange, ...] = ()
    why: str = ""
    source: str = ""
    resets: tuple[str, ...] = ()
    merit: int | None = None
    outside: int = 0


@dataclass(frozen=True)
class SafeRange:
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
class Remedy:
    """One remedy, as far as it is known.

    Attributes:
        proposal: where it begins.
        changes: name -> value: what it comes to.
        status: how far it has come.
        ranges: by setting.
        passed: numbers of the verification runs of `changes` that were healthy.
        steps: optimizer steps of each, of the shortest if they differ; before there are any, those that are wanted.
        rejected: why it was given up.
        stepped_back: how often.
        loss: what the user gives up; smaller is better.
        unsettled: what has not been settled, in words.
        open_ranges: settings of which it is not known yet how far they can go.
        tried: whether any run says something about it.
    """

    proposal: Proposal
    changes: Configuration
    status: RemedyStatus
    ranges: tuple[SafeRange, ...] = ()
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
        """The failure rate that cannot be excluded; None if nothing was verified."""
        return failure_bound(len(self.passed)) if self.status is RemedyStatus.VERIFIED else None


def failure_bound(runs: int) -> float:
    """The largest failure rate that lets `runs` runs all pass with a probability of `LUCK`."""
    return 1 - LUCK ** (1 / runs) if runs else 1.0


@dataclass(frozen=True)
class Terms:
    """What does not change while the remedies are followed.

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

    bad: Configuration
    steps_for: Callable[[Configuration, int], int]
    horizon: int
    verify_steps: int
    verify_seeds: int = 3
    is_valid: Callable[[Configuration], bool] = lambda configuration: True
    margin: float = MARGIN
    known: tuple[int, int] = (0, 1)


class _Missing(Exception):
    """The remedy cannot be followed any farther without these runs."""

    def __init__(self, *attempts: Attempt) -> None:
        self.attempts = attempts


@dataclass
class _Walk:
    """One remedy being followed; what is known stays here when an answer is missing."""

    terms: Terms
    proposal: Proposal
    runs: Mapping[str, Sequence[Ran]]
    changes: dict[str, Value]
    ranges: list[SafeRange] = field(default_factory=list)
    healthy: bool = False
    stepped_back: int = 0
    bracketed: set[str] = field(default_factory=set)
    tried: bool = False

    def configuration(self, **changes: Value) -> dict[str, Value]:
        return {**self.terms.bad, **self.changes, **changes}

    def ask(self, attempts: Iterable[Attempt]) -> list[Ran]:
        """The runs that answer.

        Raises:
            _Missing: with those that nothing answers yet; none as soon as one answered run is unhealthy.
        """
        answers, missing = [], []
        for attempt in attempts:
            told = [(ran, ran.answers(attempt.steps)) for ran in self.runs.get(attempt.key, ())]
            bad = [replace(ran, healthy=False) for ran, answer in told if answer is False]
            good = [replace(ran, healthy=True) for ran, answer in told if answer is True]
            self.tried = self.tried or bool(bad or good)
            if bad:
                return [bad[0]]
            if good:
                answers.append(good[0])
            else:
                missing.append(attempt)
                if len(missing) == MOST_ASKED:  # a million seeds may be wanted
                    break
        if missing:
            self.healthy = self.healthy or bool(answers)
            raise _Missing(*missing)
        return answers

    def attempt(self, configuration: Configuration, seed: int, aim: Aim, reason: str) -> Attempt:
        wanted = self.terms.verify_steps if aim is Aim.VERIFY else self.terms.horizon
        return Attempt(configuration, seed, self.terms.steps_for(configuration, wanted), aim, reason)

    def lengths(self, numbers: Sequence[int]) -> list[int]:
        """Optimizer steps of some runs: a training may end before a verification does."""
        return [ran.length for runs in self.runs.values() for ran in runs if ran.number in numbers]

    # ------------------------------------------------------------------------------------------- the three parts

    def reset(self) -> str:
        """Why the reset is not healthy, "" if it is."""
        words = ", ".join(self.proposal.changes)
        (ran,) = self.ask([self.attempt(self.configuration(), 0, Aim.RESET, f"is it healthy with {words} reset?")])
        self.healthy = ran.healthy
        return "" if ran.healthy else ran.text

    def range(self, moving: SearchRange) -> None:
        """Bracket the threshold of one setting, and keep a margin from it."""
        last = len(moving.values) - 1
        seen: dict[int, list[Ran]] = {}
        try:
            while True:
                counts = [
                    Seen(index, sum(ran.healthy for ran in runs), sum(not ran.healthy for ran in runs))
                    for index, runs in seen.items()
                ]
                found = next_value(moving, [Seen(last, *self.terms.known), *counts])
                if isinstance(found, Bracket):
                    break
                value, index = moving.values[found.index], found.index
                seed = len(seen.get(index, ()))
                reason = f"how far can {moving.name} go?"
                attempt = self.attempt(self.configuration(**{moving.name: value}), seed, Aim.RANGE, reason)
                seen.setdefault(index, []).extend(self.ask([attempt]))
        except _Missing:
            found = bracket(moving, [Seen(last, *self.terms.known), *counts])
            self.ranges.append(self._range_of(moving, found, seen, settled=False))
            raise
        done = self._range_of(moving, found, seen, settled=found.high - found.low == 1)
        self.ranges.append(done)
        self.bracketed.add(moving.name)
        self.changes[moving.name] = self._valid(moving, moving.back(done.healthy, self.terms.margin, FARTHEST_MARGIN))

    def _range_of(
        self, moving: SearchRange, found: Bracket, seen: Mapping[int, Sequence[Ran]], settled: bool
    ) -> SafeRange:
        shown = next((ran.text for index in sorted(seen) for ran in seen[index] if not ran.healthy), "")
        numbers = tuple(sorted({ran.number for runs in seen.values() for ran in runs}))
        low, high = moving.values[found.low], moving.values[found.high]
        return SafeRange(moving.name, moving.good, moving.bad, low, high, found.probability, settled, numbers, shown)

    def _valid(self, moving: SearchRange, value: float) -> float:
        """The value, or the next valid one toward good."""
        if self.terms.is_valid(self.configuration(**{moving.name: value})):
            return value
        steps = [v for v in moving.values if moving.share(v) <= moving.share(value)]
        return next(
            (v for v in reversed(steps) if self.terms.is_valid(self.configuration(**{moving.name: v}))),
            moving.good,
        )

    def verify(self) -> tuple[tuple[int, ...], str]:
        """The runs that verified it, or why it had to be given up."""
        while True:
            configuration = self.configuration()
            first = self.attempt(configuration, 0, Aim.VERIFY, "is the whole configuration healthy, over a longer run?")
            runs = self.ask(replace(first, seed=seed) for seed in range(self.terms.verify_seeds))
            failed = next((ran for ran in runs if not ran.healthy), None)
            if failed is None:
                return tuple(ran.number for ran in runs), ""
            movable = [moving for moving in self.proposal.ranges if self.changes[moving.name] != moving.good]
            if not movable:
                return (), failed.text
            self.stepped_back += 1
            for moving in movable:
                value = moving.back(self.changes[moving.name], STEP_BACK)
                if self.stepped_back >= STEPS_BACK or value == self.changes[moving.name]:
                    value = moving.good
                self.changes[moving.name] = self._valid(moving, value)


def follow(terms: Terms, proposal: Proposal, runs: Sequence[Ran]) -> tuple[Remedy, tuple[Attempt, ...]]:
    """Follow one remedy as far as the runs allow.

    Returns:
        What is known of it, and the runs that are missing (none once it is verified or rejected).
    """
    by_key: dict[str, list[Ran]] = {}
    for ran in runs:
        by_key.setdefault(ran.key, []).append(ran)
    walk = _Walk(terms, proposal, by_key, dict(proposal.changes))
    passed: tuple[int, ...] = ()
    rejected, missing, aim = "", (), Aim.RESET
    try:
        if proposal.ranges:
            rejected = walk.reset()
            aim = Aim.RANGE
            for moving in proposal.ranges if not rejected else ():
                walk.range(moving)
        aim = Aim.VERIFY
        if not rejected:
            passed, rejected = walk.verify()
    except _Missing as stop:
        missing = stop.attempts
    found = RemedyStatus.VERIFIED if passed else RemedyStatus.HEALTHY if walk.healthy else RemedyStatus.OPEN
    remedy = Remedy(
        proposal,
        dict(walk.changes),
        RemedyStatus.REJECTED if rejected else found,
        tuple(walk.ranges),
        passed,
        min(walk.lengths(passed), default=terms.steps_for(walk.configuration(), terms.verify_steps)),
        rejected,
        walk.stepped_back,
        unsettled=_unsettled(aim, walk) if missing else (),
        open_ranges=tuple(moving.name for moving in proposal.ranges if moving.name not in walk.bracketed)
        if missing
        else (),
        tried=walk.tried,
    )
    return remedy, missing


def _unsettled(aim: Aim, walk: _Walk) -> tuple[str, ...]:
    if aim is Aim.RESET:
        return (f"whether it stays healthy with {', '.join(walk.proposal.changes)} reset",)
    if aim is Aim.RANGE:
        done = {found.name for found in walk.ranges if found.settled}
        return tuple(f"how far {moving.name} can go" for moving in walk.proposal.ranges if moving.name not in done) + (
            "whether it trains over a longer horizon",
        )
    return ("whether it trains over a longer horizon and with other seeds",)
