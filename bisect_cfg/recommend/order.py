"""Which remedy next, and when there are enough: pure, from the recorded runs.

The remedy that gives up least is followed until it is verified; if it has to step back so far that another one gives up
less, that one takes its place. Then the others, in the same order: as many as were asked for, or for as long as looking
for safe values has not taken longer than isolating the cause did. What is left is known and not tried.

A verification that has met one unhealthy run is decided; what else of it is running is ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import Configuration, equal
from bisect_cfg.recommend.attempts import Aim, Attempt, Ran
from bisect_cfg.recommend.proposals import guessed, loss
from bisect_cfg.recommend.remedy import Proposal, Remedy, RemedyStatus, Terms, follow

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


def look(
    terms: Terms,
    proposals: Sequence[Proposal],
    runs: Sequence[Ran],
    budget: Budget,
    keep: Collection[str] = (),
    running: Sequence[Attempt] = (),
) -> tuple[list[Remedy], list[Attempt], list[Attempt]]:
    """Every remedy as far as it is known, and what to run next.

    Args:
        terms: what does not change.
        proposals: where the remedies begin.
        runs: made so far, of the search (without `seconds`) and of this phase.
        budget: see there.
        keep: names the user would rather not change.
        running: attempts whose runs have not ended.

    Returns:
        The remedies, each remedy once; the attempts to make, most wanted first; those that any remedy would still make.
    """
    followed = [follow(terms, proposal, runs) for proposal in proposals]
    order = sorted(range(len(proposals)), key=lambda i: (_price(followed[i][0], keep), i))
    kept: list[int] = []
    for i in order:  # two that come to the same values are one remedy
        if not any(_same(followed[i][0], followed[j][0]) for j in kept):
            kept.append(i)
    remedies = [followed[i][0] for i in sorted(kept)]
    unsettled = [followed[i] for i in kept if followed[i][1]]
    verified = sum(remedy.status is RemedyStatus.VERIFIED for remedy in remedies)

    pace = _pace(runs, budget)
    planned = sum(ran.seconds for ran in runs) + pace * sum(attempt.steps for attempt in running)
    asked = {attempt.key for attempt in running}
    wanted: list[Attempt] = []
    for remedy, missing in unsettled:
        left = [attempt for attempt in missing if attempt.key not in asked]
        cost = pace * _steps_left(terms, remedy, left)
        if verified < (budget.remedies or 1):
            if wanted and (budget.workers == 1 or budget.remedies is None and planned + cost > budget.seconds):
                break  # the next one has its turn once this one is verified, or cannot be
        elif budget.remedies is not None or verified >= MOST_REMEDIES:
            break
        elif planned + cost > budget.seconds:
            continue
        planned += cost
        wanted += left
    return remedies, wanted, [attempt for _, missing in followed for attempt in missing]


@dataclass(frozen=True)
class Left:
    """What is still to be run: the least and the most of either.

    Attributes:
        runs: how many, those that are running included.
        seconds: they may take.
    """

    runs: tuple[int, int]
    seconds: tuple[float, float]


def left(
    terms: Terms, proposals: Sequence[Proposal], runs: Sequence[Ran], budget: Budget, keep: Collection[str] = ()
) -> Left:
    """What is still to be run, wherever the thresholds lie; arguments as of `look`. A verification that is not healthy
    makes it longer."""
    moving = {one.name: one for proposal in proposals for one in proposal.ranges}

    def share(configuration: Configuration) -> float:
        return max((of.share(configuration[name]) for name, of in moving.items() if name in configuration), default=0.0)

    tried = [(share(ran.configuration), ran.healthy) for ran in runs if ran.seconds]
    low = max((way for way, healthy in tried if healthy), default=0.0)
    high = min((way for way, healthy in tried if not healthy and way > low), default=1.0)
    ways = []
    for threshold in (low + part * (high - low) for part in PARTS):
        known, begun = list(runs), len(runs)
        while len(known) - begun < FORESEEN and (asked := look(terms, proposals, known, budget, keep)[1]):
            one = asked[0]
            seconds = _pace(known, budget) * one.steps
            healthy = one.aim is Aim.VERIFY or share(one.configuration) <= threshold
            known.append(Ran(one.configuration, one.seed, one.steps, healthy, -len(known), seconds=seconds))
        ways.append((len(known) - begun, sum(ran.seconds for ran in known[begun:]) / budget.workers))
    runs_left, seconds_left = zip(*ways, strict=True)
    return Left((min(runs_left), max(runs_left)), (min(seconds_left), max(seconds_left)))


def _price(remedy: Remedy, keep: Collection[str]) -> float:
    """What a remedy gives up, or is guessed to."""
    if remedy.status is RemedyStatus.REJECTED:
        return math.inf
    return loss(remedy.proposal, {**remedy.changes, **guessed(remedy.proposal, remedy.open_ranges)}, keep)


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
    """About how many optimizer steps it takes to settle a remedy: its next runs, the bisection of each open range, and
    the verification."""
    steps = sum(attempt.steps for attempt in missing)
    if any(attempt.aim is Aim.VERIFY for attempt in missing):
        return steps
    configuration = {**terms.bad, **remedy.changes}
    short = terms.steps_for(configuration, terms.horizon)
    for moving in remedy.proposal.ranges:
        if moving.name in remedy.open_ranges:
            steps += short * math.ceil(math.log2(max(2, len(moving.values) - 1)))
    return steps + terms.verify_seeds * terms.steps_for(configuration, terms.verify_steps)
