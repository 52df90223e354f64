"""Which remedy next, and when there are enough: pure, from the recorded runs.

The remedy that is guessed to give up least is followed until it is verified; how far each of the others could go is not
looked for, which takes several runs each. If a verification makes it step back so far that another one gives up less,
that one takes its place. Others follow in the same order, until as many are verified as were asked for. What is left is
known and not tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import equal
from bisect_cfg.remedy.proposals import guessed, price
from bisect_cfg.remedy.remedy import Aim, Attempt, Ran, Remedy, RemedyStatus, Terms, follow

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
    followed = [follow(terms, proposal, [*terms.known, *runs]) for proposal in terms.proposals]
    kept: list[tuple[Remedy, tuple[Attempt, ...]]] = []
    for one in sorted(followed, key=lambda one: _price(one[0], terms.wishes.keep)):
        if not any(_same(one[0], other) for other, _ in kept):  # two that come to the same values are one remedy
            kept.append(one)
    remedies = [one[0] for one in followed if any(one is other for other in kept)]
    verified = sum(remedy.status is RemedyStatus.VERIFIED for remedy in remedies)
    next_ones = [missing for _, missing in kept if missing][: max(0, terms.wishes.remedies - verified)]
    asked = {attempt.key for attempt in running}
    wanted = [attempt for missing in next_ones for attempt in missing if attempt.key not in asked]
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
    """What remedies are followed in the order of: what each is guessed to give up; once it has stepped back, what it
    does."""
    if remedy.status is RemedyStatus.REJECTED:
        return (math.inf,)
    open_ranges = remedy.open_ranges if remedy.stepped_back else remedy.changes
    return price(remedy.proposal, {**remedy.changes, **guessed(remedy.proposal, open_ranges)}, keep)


def _same(left: Remedy, right: Remedy) -> bool:
    """Whether two remedies have come to the same values."""
    if left.open_ranges or right.open_ranges or left.changes.keys() != right.changes.keys():
        return False
    return all(equal(value, right.changes[name]) for name, value in left.changes.items())


def _pace(runs: Sequence[Ran], terms: Terms) -> float:
    """Seconds of a step, the start of a run included."""
    told = [ran for ran in runs if ran.healthy and ran.seconds and ran.steps]
    return sum(ran.seconds for ran in told) / sum(ran.steps for ran in told) if told else terms.pace
