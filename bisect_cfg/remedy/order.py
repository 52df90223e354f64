"""Which remedy next, and when there are enough: pure, from the recorded runs.

The remedy that gives up least is followed until it is verified; if it has to step back so far that another one gives up
less, that one takes its place. Then the others, in the same order: as many as were asked for, or for as long as looking
for safe values has not taken longer than isolating the cause did. What is left is known and not tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import equal
from bisect_cfg.remedy.proposals import guessed, price
from bisect_cfg.remedy.remedy import Aim, Attempt, Proposal, Ran, Remedy, RemedyStatus, Terms, follow

MOST_REMEDIES = 4
"""So many verified remedies are enough to choose from, unless more are asked for: each is a few long runs. Fewer were
too few where several values of one setting come first (fp16 weights: fp32, bf16, and only then a larger epsilon)."""

FORESEEN = 60
"""Runs after which nobody looks further ahead."""


@dataclass(frozen=True)
class Budget:
    """What looking for safe values may cost."""

    seconds: float  # of trials, for all remedies after the first
    pace: float  # seconds of a step, as long as no run of this phase tells
    remedies: int | None = None  # verify so many, whatever it costs; None: one, and others within `seconds`
    workers: int = 1  # runs at once


@dataclass(frozen=True)
class Given:
    """What safe values are looked for with."""

    terms: Terms
    proposals: Sequence[Proposal]
    budget: Budget
    known: Sequence[Ran] = ()  # runs of the search that say something of them
    keep: Collection[str] = ()  # names the user would rather not change


@dataclass(frozen=True)
class Look:
    """How things stand."""

    remedies: list[Remedy]  # each once, as far as it is known
    wanted: list[Attempt]  # to make next, the most wanted first
    open: list[Attempt]  # those that any remedy would still make; another one that runs can change nothing any more


@dataclass(frozen=True)
class Left:
    """What is still to be run, the least and the most of either."""

    runs: tuple[int, int]  # those that are running included
    seconds: tuple[float, float]


def look(given: Given, runs: Sequence[Ran], running: Sequence[Attempt] = ()) -> Look:
    """How things stand after some runs of this phase, while others are `running`."""
    budget = given.budget
    followed = [follow(given.terms, proposal, [*given.known, *runs]) for proposal in given.proposals]
    kept: list[tuple[Remedy, tuple[Attempt, ...]]] = []
    for one in sorted(followed, key=lambda one: _price(one[0], given.keep)):
        if not any(_same(one[0], other) for other, _ in kept):  # two that come to the same values are one remedy
            kept.append(one)
    remedies = [one[0] for one in followed if any(one is other for other in kept)]
    verified = sum(remedy.status is RemedyStatus.VERIFIED for remedy in remedies)

    pace, asked = _pace(runs, budget), {attempt.key for attempt in running}
    planned = sum(ran.seconds for ran in runs) + pace * sum(attempt.steps for attempt in running)
    wanted: list[Attempt] = []
    for remedy, missing in kept:
        if not missing:
            continue
        left = [attempt for attempt in missing if attempt.key not in asked]
        cost = pace * _steps_left(given.terms, remedy, left)
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


def left(given: Given, runs: Sequence[Ran]) -> Left:
    """What is still to be run, if every value up to bad trains and if none between does: the rest is played for both.
    A threshold between them costs about as much; a verification that is not healthy makes it longer."""
    found = []
    for healthy in (True, False):
        played = list(runs)
        while len(played) - len(runs) < FORESEEN and (wanted := look(given, played).wanted):
            one = wanted[0]
            seconds = _pace(played, given.budget) * one.steps
            fine = healthy or one.aim is not Aim.RANGE
            played.append(Ran(one.configuration, one.seed, one.steps, fine, -len(played), seconds=seconds))
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
