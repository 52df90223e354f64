"""Which remedy next, and when there are enough: pure, from the recorded runs.

The remedy that gives up least is followed until it is verified; if it has to step back so far that another one gives up
less, that one takes its place. Then the others, in the same order: as many as were asked for, or for as long as looking
for safe values has not taken longer than isolating the cause did. What is left is known and not tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import Configuration, equal
from bisect_cfg.remedy.proposals import guessed, price
from bisect_cfg.remedy.remedy import Aim, Attempt, Proposal, Ran, Remedy, RemedyStatus, Terms, follow

MOST_REMEDIES = 4
"""So many verified remedies are enough to choose from, unless more are asked for: each is a few long runs. Fewer were
too few where several values of one setting come first (fp16 weights: fp32, bf16, and only then a larger epsilon)."""

PARTS = (0.0, 0.3, 0.7, 1.0)
"""Where thresholds are supposed to lie in turn, between what was healthy and what was not."""

FORESEEN = 60
"""Runs after which nobody looks further ahead."""


@dataclass(frozen=True)
class Budget:
    """What looking for safe values may cost.

    Attributes:
        seconds: of trials, for all remedies after the first.
        pace: seconds of a step, as long as no run of this phase tells.
        remedies: verify so many, whatever it costs; None: one, and others within `seconds`.
        workers: runs at once.
    """

    seconds: float
    pace: float
    remedies: int | None = None
    workers: int = 1


@dataclass(frozen=True)
class Given:
    """What safe values are looked for with.

    Attributes:
        terms: what does not change while the remedies are followed.
        proposals: where the remedies begin.
        budget: what looking for them may cost.
        known: runs of the search (without `seconds`) that say something of them.
        keep: names the user would rather not change.
    """

    terms: Terms
    proposals: Sequence[Proposal]
    budget: Budget
    known: Sequence[Ran] = ()
    keep: Collection[str] = ()


@dataclass(frozen=True)
class Look:
    """How things stand.

    Attributes:
        remedies: each remedy once, as far as it is known.
        wanted: the attempts to make next, the most wanted first.
        open: those that any remedy would still make. One that runs and is not among them can change nothing any more: a
            verification is decided by its first unhealthy run.
    """

    remedies: list[Remedy]
    wanted: list[Attempt]
    open: list[Attempt]


def look(given: Given, runs: Sequence[Ran], running: Sequence[Attempt] = ()) -> Look:
    """How things stand after these runs of this phase.

    Args:
        given: what does not change.
        runs: made so far.
        running: attempts whose runs have not ended.
    """
    terms, budget = given.terms, given.budget
    followed = [follow(terms, proposal, [*given.known, *runs]) for proposal in given.proposals]
    kept: list[tuple[Remedy, tuple[Attempt, ...]]] = []
    for one in sorted(followed, key=lambda one: _price(one[0], given.keep)):
        if not any(_same(one[0], other) for other, _ in kept):  # two that come to the same values are one remedy
            kept.append(one)
    remedies = [one[0] for one in followed if any(one is other for other in kept)]
    verified = sum(remedy.status is RemedyStatus.VERIFIED for remedy in remedies)

    pace = _pace(runs, budget)
    planned = sum(ran.seconds for ran in runs) + pace * sum(attempt.steps for attempt in running)
    asked = {attempt.key for attempt in running}
    wanted: list[Attempt] = []
    for remedy, missing in kept:
        if not missing:
            continue
        left = [attempt for attempt in missing if attempt.key not in asked]
        cost = pace * _steps_left(terms, remedy, left)
        affordable = planned + cost <= budget.seconds
        if verified < (budget.remedies or 1):
            if wanted and (budget.workers == 1 or (budget.remedies is None and not affordable)):
                break  # the next one has its turn once this one is verified, or cannot be
        elif budget.remedies is not None or verified >= MOST_REMEDIES:
            break
        elif not affordable:
            continue
        planned += cost
        wanted += left
    return Look(remedies, wanted, [attempt for _, missing in followed for attempt in missing])


@dataclass(frozen=True)
class Left:
    """What is still to be run: the least and the most of either.

    Attributes:
        runs: how many, those that are running included.
        seconds: they may take.
    """

    runs: tuple[int, int]
    seconds: tuple[float, float]


def left(given: Given, runs: Sequence[Ran]) -> Left:
    """What is still to be run, wherever the thresholds lie: the rest is played for some of their places. A verification
    that is not healthy makes it longer."""
    moving = {one.name: one for proposal in given.proposals for one in proposal.ranges}

    def share(configuration: Configuration) -> float:
        return max((of.share(configuration[name]) for name, of in moving.items() if name in configuration), default=0.0)

    tried = [(share(ran.configuration), ran.healthy) for ran in runs]
    low = max((way for way, healthy in tried if healthy), default=0.0)
    high = min((way for way, healthy in tried if not healthy and way > low), default=1.0)
    found = []
    for threshold in (low + part * (high - low) for part in PARTS):
        played = list(runs)
        while len(played) - len(runs) < FORESEEN and (wanted := look(given, played).wanted):
            one = wanted[0]
            healthy = one.aim is Aim.VERIFY or share(one.configuration) <= threshold
            seconds = _pace(played, given.budget) * one.steps
            played.append(Ran(one.configuration, one.seed, one.steps, healthy, -len(played), seconds=seconds))
        seconds = sum(ran.seconds for ran in played[len(runs) :]) / given.budget.workers
        found.append((len(played) - len(runs), seconds))
    counts, times = zip(*found, strict=True)
    return Left((min(counts), max(counts)), (min(times), max(times)))


def _price(remedy: Remedy, keep: Collection[str]) -> tuple[float, ...]:
    """What remedies are followed in the order of: what each gives up, or is guessed to."""
    if remedy.status is RemedyStatus.REJECTED:
        return (math.inf,)
    return price(remedy.proposal, {**remedy.changes, **guessed(remedy.proposal, remedy.open_ranges)}, keep)


def _same(left: Remedy, right: Remedy) -> bool:
    """Whether two remedies have come to the same values."""
    if left.open_ranges or right.open_ranges or left.changes.keys() != right.changes.keys():
        return False
    return all(equal(value, right.changes[name]) for name, value in left.changes.items())


def _pace(runs: Sequence[Ran], budget: Budget) -> float:
    """Seconds of a step, the start of a run included."""
    told = [ran for ran in runs if ran.healthy and ran.seconds and ran.steps]
    return sum(ran.seconds for ran in told) / sum(ran.steps for ran in told) if told else budget.pace


def _steps_left(terms: Terms, remedy: Remedy, missing: Sequence[Attempt]) -> int:
    """About how many optimizer steps it takes to settle a remedy: its next runs, the search in each open range, and the
    verification."""
    steps = sum(attempt.steps for attempt in missing)
    if any(attempt.aim is Aim.VERIFY for attempt in missing):
        return steps
    configuration = {**terms.bad, **remedy.changes}
    open_ones = [moving for moving in remedy.proposal.ranges if moving.name in remedy.open_ranges]
    searches = sum(math.ceil(math.log2(max(2, len(moving.values) - 1))) for moving in open_ones)
    verification = terms.verify_seeds * terms.steps_for(configuration, terms.verify_steps)
    return steps + searches * terms.steps_for(configuration, terms.horizon) + verification
