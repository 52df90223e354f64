"""Which way out next, and when there are enough: pure, from the recorded runs.

The way that gives up least is followed until it is verified; if it has to step back so far that another one gives up
less, that one takes its place. Then the others, in the same order: as many as were asked for, or for as long as looking
for safe values has not taken longer than isolating the cause did. What is left is known and not tried.

A verification that has met one unhealthy run is decided; what else of it is running is ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bisect_cfg.configuration import equal
from bisect_cfg.recommend.plan import Problem, Start, WayOut, follow
from bisect_cfg.recommend.runs import Question, Ran
from bisect_cfg.recommend.ways import loss

MOST_REMEDIES = 4
"""So many verified ways are enough to choose from, unless more are asked for: each is a few long runs. Fewer were too
few where several values of one setting come first (fp16 weights: fp32, bf16, and only then a larger epsilon)."""


@dataclass(frozen=True)
class Budget:
    """What looking for safe values may cost.

    Attributes:
        seconds: of trials, for all ways after the first.
        pace: seconds of a step, as long as no run of this phase tells.
        remedies: verify so many, whatever it costs; None: one, and others within `seconds`.
        workers: runs at once.
    """

    seconds: float
    pace: float
    remedies: int | None = None
    workers: int = 1


def look(
    problem: Problem,
    starts: Sequence[Start],
    runs: Sequence[Ran],
    budget: Budget,
    keep: Collection[str] = (),
    running: Sequence[Question] = (),
) -> tuple[list[WayOut], list[Question], list[Question]]:
    """Every way as far as it is known, and what to run next.

    Args:
        problem: what does not change.
        starts: where the ways begin.
        runs: made so far, of the search (without `seconds`) and of this phase.
        budget: see there.
        keep: names the user would rather not change.
        running: questions whose runs have not ended.

    Returns:
        The ways, each remedy once; the questions to ask, most wanted first; those that any way would still ask.
    """
    followed = [follow(problem, start, runs) for start in starts]
    order = sorted(range(len(starts)), key=lambda i: (_price(followed[i][0], keep), i))
    kept: list[int] = []
    for i in order:  # two that come to the same values are one remedy
        if not any(_same(followed[i][0], followed[j][0]) for j in kept):
            kept.append(i)
    ways = [followed[i][0] for i in sorted(kept)]
    unsettled = [followed[i] for i in kept if followed[i][1]]
    verified = sum(way.status == "verified" for way in ways)

    pace = _pace(runs, budget)
    planned = sum(ran.seconds for ran in runs) + pace * sum(question.steps for question in running)
    asked = {question.key for question in running}
    wanted: list[Question] = []
    for way, missing in unsettled:
        left = [question for question in missing if question.key not in asked]
        cost = pace * _steps_left(problem, way, left)
        if verified < (budget.remedies or 1):
            if wanted and (budget.workers == 1 or budget.remedies is None and planned + cost > budget.seconds):
                break  # the next one has its turn once this one is verified, or cannot be
        elif budget.remedies is not None or verified >= MOST_REMEDIES:
            break
        elif planned + cost > budget.seconds:
            continue
        planned += cost
        wanted += left
    return ways, wanted, [question for _, missing in followed for question in missing]


def _price(way: WayOut, keep: Collection[str]) -> float:
    """What a way gives up; half of the way for a setting whose range is not known yet."""
    guessed = {axis.name: axis.back(axis.bad, 0.5) for axis in way.start.ranges if axis.name in way.open_ranges}
    return math.inf if way.status == "rejected" else loss(way.start, {**way.changes, **guessed}, keep)


def _same(left: WayOut, right: WayOut) -> bool:
    """Whether two ways have come to the same values."""
    if left.open_ranges or right.open_ranges or left.changes.keys() != right.changes.keys():
        return False
    return all(equal(value, right.changes[name]) for name, value in left.changes.items())


def _pace(runs: Sequence[Ran], budget: Budget) -> float:
    """Seconds of a step, the start of a run included."""
    told = [ran for ran in runs if ran.healthy and ran.seconds and ran.steps]
    return sum(ran.seconds for ran in told) / sum(ran.steps for ran in told) if told else budget.pace


def _steps_left(problem: Problem, way: WayOut, missing: Sequence[Question]) -> int:
    """About how many optimizer steps it takes to settle a way: its next runs, the bisection of each open range, and the
    verification."""
    steps = sum(question.steps for question in missing)
    if any(question.part == "verify" for question in missing):
        return steps
    configuration = {**problem.bad, **way.changes}
    short = problem.steps_for(configuration, problem.horizon)
    for axis in way.start.ranges:
        if axis.name in way.open_ranges:
            steps += short * math.ceil(math.log2(max(2, len(axis.values) - 1)))
    return steps + problem.verify_seeds * problem.steps_for(configuration, problem.verify_steps)
