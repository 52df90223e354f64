"""Two numeric settings of one cause, mapped together: the frontier as a plan made from recorded runs.

`frontier` knows pairs of values, `remedy` knows runs. A run says something about a pair if it had the user's
configuration (with the other causes reset) in everything but the two settings: runs of the frontier itself, and also
those that bracketed one of the two while the other stayed as the user has it. Only what a run shows within one trial's
horizon counts, so that all points mean the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bisect_cfg.configuration import Configuration, is_number
from bisect_cfg.recommend.attempts import Aim, Attempt, Ran, key_of
from bisect_cfg.recommend.frontier import Frontier, Point, frontier_of, next_pair
from bisect_cfg.recommend.proposals import Mover, rest_of, weight
from bisect_cfg.recommend.remedy import Terms
from bisect_cfg.recommend.search_range import SearchRange


@dataclass(frozen=True)
class Pair:
    """Two numeric settings of one cause.

    Attributes:
        ranges: of the two, the one that weighs more last: how far that may go at each value of the other.
        changes: what else is reset, because of other causes.
    """

    ranges: tuple[SearchRange, SearchRange]
    changes: Configuration


def pairs(
    good: Configuration,
    causes: Sequence[Collection[str]],
    corrections: Sequence[Sequence[str]],
    range_for: Mover,
) -> list[Pair]:
    """The pairs there are a frontier of: causes of two settings that both are ranges."""
    found = []
    for index, cause in enumerate(causes):
        changes = {name: good.get(name) for name in rest_of(causes, corrections, index)}
        ranges = [range_for(name, changes) for name in sorted(cause, key=lambda name: (weight(name), name))]
        if len(ranges) == 2 and ranges[0] is not None and ranges[1] is not None:
            found.append(Pair((ranges[0], ranges[1]), changes))
    return found


def known_points(terms: Terms, pair: Pair, runs: Sequence[Ran]) -> list[Point]:
    """What the runs say about pairs of values, in the order of the runs."""
    names = {each.name for each in pair.ranges}
    rest = _others({**terms.bad, **pair.changes}, names)
    found = []
    for ran in runs:
        values = {each.name: ran.configuration.get(each.name) for each in pair.ranges}
        if _others(ran.configuration, names) != rest or not all(map(is_number, values.values())):
            continue
        steps = terms.steps_for({**terms.bad, **pair.changes, **values}, terms.horizon)
        healthy = ran.answers(steps)
        if healthy is not None:
            found.append(Point(values, healthy))
    return found


def next_attempt(terms: Terms, pair: Pair, runs: Sequence[Ran]) -> Attempt | None:
    """The run that tells most about the frontier; None if every pair of values is decided."""
    values = next_pair(pair.ranges, known_points(terms, pair, runs))
    if values is None:
        return None
    configuration = {**terms.bad, **pair.changes, **values}
    first, second = (each.name for each in pair.ranges)
    steps = terms.steps_for(configuration, terms.horizon)
    return Attempt(configuration, 0, steps, Aim.FRONTIER, f"how far can {first} and {second} go together?")


def mapped(terms: Terms, pair: Pair, runs: Sequence[Ran]) -> Frontier:
    """The frontier as far as the runs show it."""
    return frontier_of(pair.ranges, known_points(terms, pair, runs))


def _others(configuration: Configuration, names: set[str]) -> str:
    """Equal for configurations that differ in the two settings only."""
    return key_of({name: value for name, value in configuration.items() if name not in names}, 0)
