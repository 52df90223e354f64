"""One remedy, from a proven correction or a known alternative to verified values: `follow`.

1. The reset itself must be healthy, not merely alive.
2. Each of its numbers is moved back toward what the user wanted as far as it stays healthy, by binary search, less a
   margin. A pass is believed at once where the failure under study has shown in each run that could show it; where the
   search saw it come and go, it is repeated with other seeds.
3. The whole configuration is run over a longer horizon with several seeds. If one of the runs is not healthy, the
   values step back half way to good, and it is tried again.

`follow` is a pure function of the recorded runs: it walks with what is known and stops where an answer is missing.
Resuming, other margins and other seeds are the same thing as going on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from bisect_cfg.common.configuration import Configuration, Value, is_number
from bisect_cfg.remedy.ranges import SearchRange
from bisect_cfg.store.causes import Part

MARGIN = 0.5
"""The margin: half of the way, on the natural scale, from the last healthy value back to the good one. Trials are
short, and what a rate does in 20 steps a lower one does in 200."""

FARTHEST_MARGIN = 10.0
"""... but on a logarithmic scale never more than a factor of ten: where good and bad lie many decades apart, half of
the way would give up far more than a longer training costs (full fine-tuning recipes lie within a factor of ten of each
other, 3e-7 to 5e-6)."""

MOST_ASKED = 64
"""So many missing runs of one verification are named at once; no more could run at the same time."""

STEPS_BACK, STEP_BACK = 3, 0.5
"""After so many failed verifications the values are good ones; before, they step back by this share of what is left."""


LUCK = 0.05
"""A failure rate at which so many runs without a failure are less likely than this counts as excluded: "at 95 %"."""

MOST_REPEATS = 8
"""So often one value is tried at most: failures that show in less than 31 % of the runs are found by the verification,
whose runs are longer."""


def failure_bound(runs: int) -> float:
    """The largest failure rate that lets `runs` runs all pass with a probability of `LUCK`."""
    return 1 - LUCK ** (1 / runs) if runs else 1.0


def repeats_for(rate: float) -> int:
    """How many healthy runs make a value healthy, if what fails does so in this share of its runs."""
    return next((runs for runs in range(1, MOST_REPEATS) if (1 - rate) ** runs <= LUCK), MOST_REPEATS)


class Aim(StrEnum):
    """What a run is asked for. The values are what studies record."""

    RESET = "reset"  # is it healthy at all with the settings reset?
    RANGE = "range"  # how far can one of them go?
    VERIFY = "verify"  # does the whole of it train on, longer and with other seeds?


class RemedyStatus(StrEnum):
    """How far a remedy has come, the best first. The values are those of result.json."""

    VERIFIED = "verified"
    HEALTHY = "healthy"  # in short runs, so far
    OPEN = "open"  # nothing healthy yet, nor anything that speaks against it
    REJECTED = "rejected"


@dataclass(frozen=True)
class Attempt:
    """One run that is needed."""

    configuration: Configuration  # complete: factors, and whatever else an alternative sets
    seed: int  # 0 for the user's own, k for the k-th other one
    steps: int  # how many optimizer steps it has to say something about
    aim: Aim
    reason: str  # one sentence for people

    @cached_property
    def key(self) -> str:
        """Equal for runs of the same configuration and seed."""
        return key_of(self.configuration, self.seed)


@dataclass(frozen=True)
class Ran:
    """A run that was made."""

    configuration: Configuration
    seed: int
    steps: int  # how far it was meant to go
    healthy: bool
    number: int  # of the trial
    failed_at: int | None = None  # step at which it was certain to fail; None: its end shows it, or it is healthy
    text: str = ""  # why it is not healthy
    seconds: float = 0.0  # 0 if it was made for another purpose
    died: str | None = None  # signature of what ended it before its time
    made: int | None = None  # optimizer steps; fewer than `steps` where its training ends before

    @cached_property
    def key(self) -> str:
        """Equal to that of the attempt which it was made for."""
        return key_of(self.configuration, self.seed)

    @property
    def length(self) -> int:
        """Optimizer steps that it speaks for."""
        return self.steps if self.made is None else min(self.steps, self.made)

    def answers(self, steps: int) -> bool | None:
        """Whether a run of so many steps is healthy, as far as this one tells."""
        if self.healthy:
            return True if self.steps >= steps else None
        if self.failed_at is None:
            return False if self.steps <= steps else None
        return self.failed_at > steps


def key_of(configuration: Configuration, seed: int) -> str:
    """Names a configuration with a seed."""
    return json.dumps([dict(configuration), seed], sort_keys=True, default=repr)


@dataclass(frozen=True)
class Proposal:
    """Where a remedy begins."""

    changes: Configuration  # what is set in the user's configuration
    ranges: tuple[SearchRange, ...] = ()  # those of them that are moved back toward bad, in this order
    why: str = ""  # what speaks for a known alternative
    source: str = ""  # of that
    resets: tuple[str, ...] = ()  # names that it resets to good
    merit: int | None = None  # of a known alternative, its place in the list of them
    outside: int = 0  # how many settings it changes that are no factors
    cures: bool = False  # whether it takes away the fault itself, so that nothing is given up


class Range(Part, frozen=True):
    """How far a setting can go from good toward bad."""

    good: Any
    bad: Any
    healthy_up_to: Any  # the last value seen healthy, or good
    not_from: Any  # the first value on the unhealthy side
    settled: bool = True  # whether nothing between the two is worth a run
    trials: tuple[int, ...] = ()
    shown: str = ""  # what the nearest unhealthy value did


@dataclass(frozen=True)
class Remedy:
    """One remedy, as far as it is known."""

    proposal: Proposal
    changes: Configuration  # what it comes to
    status: RemedyStatus
    ranges: Mapping[str, Range] = field(default_factory=dict)
    passed: tuple[int, ...] = ()  # numbers of the verification runs of `changes`, all healthy
    steps: int = 0  # of the shortest of them; before there are any, those that are wanted
    rejected: str = ""  # why it was given up
    died: str | None = None  # signature of what ended the run for which it was
    stepped_back: int = 0  # how often
    loss: float = 0.0  # what the user gives up; smaller is better
    unsettled: tuple[str, ...] = ()  # what is open, in words
    open_ranges: tuple[str, ...] = ()  # settings of which it is not known yet how far they can go
    tried: bool = False  # whether any run says something about it

    @property
    def bound(self) -> float | None:
        """The failure rate that cannot be excluded; None if nothing was verified."""
        return failure_bound(len(self.passed)) if self.status is RemedyStatus.VERIFIED else None


@dataclass(frozen=True)
class Wishes:
    """What the user may say about safe values; see `bisect-cfg recommend --help`."""

    margin: float = MARGIN
    verify_steps: int | None = None
    verify_seeds: int = 3
    remedies: int = 1  # verify so many
    keep: Collection[str] = ()  # names they would rather not change
    jobs: int = 1  # runs at once


@dataclass(frozen=True)
class Terms:
    """What does not change while the remedies are followed."""

    bad: Configuration  # the user's, factor -> value
    steps_for: Callable[[Configuration, int], int]  # (configuration, steps wanted) -> to meet the full learning rate
    horizon: int  # steps of a trial
    verify_steps: int
    wishes: Wishes = Wishes()
    is_valid: Callable[[Configuration], bool] = lambda configuration: True  # whether the library can build it
    rate: float = 1.0  # how often the failure under study has shown where it could
    proposals: Sequence[Proposal] = ()
    known: Sequence[Ran] = ()  # runs of the search that say something of them
    pace: float = 0.0  # seconds of a step, as long as no run of this phase tells


def follow(terms: Terms, proposal: Proposal, runs: Sequence[Ran]) -> tuple[Remedy, tuple[Attempt, ...]]:
    """Follow one remedy as far as the runs allow.

    Returns:
        What is known of it, and the runs that are missing (none once it is verified or rejected).
    """
    by_key: dict[str, list[Ran]] = {}
    for ran in runs:
        by_key.setdefault(ran.key, []).append(ran)
    walk = _Walk(terms, proposal, by_key, dict(proposal.changes))
    passed: list[Ran] = []
    failed: Ran | None = None
    missing: tuple[Attempt, ...] = ()
    try:
        failed = walk.reset() if proposal.ranges else None
        if failed is None:
            for moving in proposal.ranges:
                walk.move(moving)
            passed, failed = walk.verify()
    except _Missing as stop:
        missing = stop.attempts
    status = RemedyStatus.VERIFIED if passed else RemedyStatus.HEALTHY if walk.healthy else RemedyStatus.OPEN
    settled = {name for name, found in walk.ranges.items() if found.settled}
    open_ranges = tuple(one.name for one in proposal.ranges if one.name not in settled) if missing else ()
    remedy = Remedy(
        proposal,
        walk.changes,
        status if failed is None else RemedyStatus.REJECTED,
        walk.ranges,
        tuple(ran.number for ran in passed),
        min((ran.length for ran in passed), default=terms.steps_for(walk.configuration(), terms.verify_steps)),
        failed.text if failed is not None else "",
        failed.died if failed is not None else None,
        walk.stepped_back,
        unsettled=_unsettled(missing[0], proposal, open_ranges) if missing else (),
        open_ranges=open_ranges,
        tried=walk.tried,
    )
    return remedy, missing


def _unsettled(next_run: Attempt, proposal: Proposal, open_ranges: Iterable[str]) -> tuple[str, ...]:
    """What is open where this run is missing."""
    if next_run.aim is Aim.RESET:
        return (f"whether it stays healthy with {', '.join(proposal.changes)} reset",)
    if next_run.aim is Aim.VERIFY:
        return ("whether it trains over a longer horizon and with other seeds",)
    return (*(f"how far {name} can go" for name in open_ranges), "whether it trains over a longer horizon")


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
    ranges: dict[str, Range] = field(default_factory=dict)
    healthy: bool = False
    stepped_back: int = 0
    tried: bool = False

    def configuration(self, **changes: Value) -> dict[str, Value]:
        return {**self.terms.bad, **self.changes, **changes}

    def ask(self, configuration: Configuration, seeds: Iterable[int], aim: Aim, reason: str) -> list[Ran]:
        """The runs that answer, healthy as far as they were asked for.

        Raises:
            _Missing: with those that nothing answers yet; none as soon as one answered run is unhealthy.
        """
        wanted = self.terms.verify_steps if aim is Aim.VERIFY else self.terms.horizon
        steps = self.terms.steps_for(configuration, wanted)
        answers, missing = list[Ran](), list[Attempt]()
        for seed in seeds:
            attempt = Attempt(configuration, seed, steps, aim, reason)
            told = {ran.answers(steps): ran for ran in reversed(self.runs.get(attempt.key, ()))}
            self.tried = self.tried or not told.keys() <= {None}
            if False in told:
                return [replace(told[False], healthy=False)]
            if True in told:
                answers.append(replace(told[True], healthy=True))
            elif len(missing) < MOST_ASKED:
                missing.append(attempt)
            else:  # a million seeds may be wanted
                break
        if missing:
            self.healthy = self.healthy or bool(answers)
            raise _Missing(*missing)
        return answers

    def reset(self) -> Ran | None:
        """The run that shows that the reset is not healthy; None if it is."""
        reason = f"is it healthy with {', '.join(self.proposal.changes)} reset?"
        (ran,) = self.ask(self.configuration(), [0], Aim.RESET, reason)
        self.healthy = ran.healthy
        return None if ran.healthy else ran

    def move(self, moving: SearchRange) -> None:
        """Find how far one setting can go, and keep a margin from there."""
        low, high = 0, len(moving.values) - 1  # the last healthy value, the first unhealthy one
        seeds, made = range(repeats_for(self.terms.rate)), []
        try:
            while high - low > 1:
                middle = (low + high) // 2
                configuration = self.configuration(**{moving.name: moving.values[middle]})
                runs = self.ask(configuration, seeds, Aim.RANGE, f"how far can {moving.name} go?")
                made += runs
                low, high = (middle, high) if runs[-1].healthy else (low, middle)
        finally:
            numbers = tuple(sorted({ran.number for ran in made}))
            shown = next((ran.text for ran in reversed(made) if not ran.healthy), "")
            ends = moving.good, moving.bad, moving.values[low], moving.values[high]
            self.ranges[moving.name] = Range(*ends, high - low <= 1, numbers, shown)
        farthest = moving.back(moving.values[low], self.terms.wishes.margin, FARTHEST_MARGIN)
        self.changes[moving.name] = self._valid(moving, farthest)

    def _valid(self, moving: SearchRange, value: float) -> float:
        """The value, or the next valid one toward good."""
        nearer = [one for one in moving.values if moving.share(one) <= moving.share(value)]
        for one in (value, *reversed(nearer)):
            if self.terms.is_valid(self.configuration(**{moving.name: one})):
                return one
        return moving.good

    def verify(self) -> tuple[list[Ran], Ran | None]:
        """The runs that verified it, or the one for which it had to be given up."""
        reason = "is the whole configuration healthy, over a longer run?"
        while True:
            runs = self.ask(self.configuration(), range(self.terms.wishes.verify_seeds), Aim.VERIFY, reason)
            failed = next((ran for ran in runs if not ran.healthy), None)
            if failed is None:
                return runs, None
            movable = [moving for moving in self.proposal.ranges if self.changes[moving.name] != moving.good]
            if not movable:
                return [], failed
            self.stepped_back += 1
            for moving in movable:
                now, value = self.changes[moving.name], moving.good
                if self.stepped_back < STEPS_BACK and is_number(now) and (near := moving.back(now, STEP_BACK)) != now:
                    value = near
                self.changes[moving.name] = self._valid(moving, value)
