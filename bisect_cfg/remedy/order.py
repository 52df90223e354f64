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
from bisect_cfg.remedy.remedy import Aim, Attempt, Ran, Remedy, RemedyStatus, Terms, follow

MOST_REMEDIES = 4
"""So many verified remedies are enough to choose from, unless more are asked for: each is a few long runs. Fewer were
too few where several values of one setting come first (fp16 weights: fp32, bf16, and only then a larger epsilon)."""

FORESEEN = 60
"""Runs after which nobody looks further ahead."""


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


def look(terms: Terms, runs: Sequence[Ran], running: Sequence[Attempt] = ()) -> Look:
    """How things stand after some runs of this phase, while others are `running`."""
    wishes = terms.wishes
    followed = [follow(terms, proposal, [*terms.known, *runs]) for proposal in terms.proposals]
    kept: list[tuple[Remedy, tuple[Attempt, ...]]] = []
    for one in sorted(followed, key=lambda one: _price(one[0], wishes.keep)):
        if not any(_same(one[0], other) for other, _ in kept):  # two that come to the same values are one remedy
            kept.append(one)
    remedies = [one[0] for one in followed if any(one is other for other in kept)]
    verified = sum(remedy.status is RemedyStatus.VERIFIED for remedy in remedies)

    pace, asked = _pace(runs, terms), {attempt.key for attempt in running}
    planned = sum(ran.seconds for ran in runs) + pace * sum(attempt.steps for attempt in running)
    wanted: list[Attempt] = []
    for remedy, missing in kept:
        if not missing:
            continue
        left = [attempt for attempt in missing if attempt.key not in asked]
        cost = pace * _steps_left(terms, remedy, left)
        affordable = planned + cost <= terms.seconds
        if verified < (wishes.remedies or 1):
            if wanted and (wishes.jobs == 1 or (wishes.remedies is None and not affordable)):
                break  # the next one has its turn once this one is verified, or cannot be
        elif wishes.remedies is not None or verified >= MOST_REMEDIES:
            break
        elif not affordable:
            continue
        planned += cost
        wanted += left
    return Look(remedies, wanted, [attempt for _, missing in followed for attempt in missing])


def left(terms: Terms, runs: Sequence[Ran]) -> Left:
    """What is still to be run, if every value up to bad trains and if none between does: the rest is played for both.
    A threshold between them costs about as much; a verification that is not healthy makes it longer."""
    found = []
    for healthy in (True, False):
        played = list(runs)
        while len(played) - len(runs) < FORESEEN and (wanted := look(terms, played).wanted):
            one = wanted[0]
            seconds = _pace(played, terms) * one.steps
            fine = healthy or one.aim is not Aim.RANGE
            played.append(Ran(one.configuration, one.seed, one.steps, fine, -len(played), seconds=seconds))
        seconds = sum(ran.seconds for ran in played[len(runs) :]) / terms.wishes.jobs
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


def _pace(runs: Sequence[Ran], terms: Terms) -> float:
    """Seconds of a step, the start of a run included."""
    told = [ran for ran in runs if ran.healthy and ran.seconds and ran.steps]
    return sum(ran.seconds for ran in told) / sum(ran.steps for ran in told) if told else terms.pace


def _steps_left(terms: Terms, remedy: Remedy, missing: Sequence[Attempt]) -> int:
    """About how many optimizer steps it takes to settle a remedy: its next runs, the search in each open range, and the
    verification."""
    steps = sum(attempt.steps for attempt in missing)
    if any(attempt.aim is Aim.VERIFY for attempt in missing):
        return steps
    configuration = {**terms.bad, **remedy.changes}
    open_ones = [moving for moving in remedy.proposal.ranges if moving.name in remedy.open_ranges]
    searches = sum(math.ceil(math.log2(max(2, len(moving.values) - 1))) for moving in open_ones)
    verification = terms.wishes.verify_seeds * terms.steps_for(configuration, terms.verify_steps)
    return steps + searches * terms.steps_for(configuration, terms.horizon) + verification
