"""The safe frontier between two numeric settings of one cause: how high may the rate go at each clipping value?

Each setting has a `SearchRange` from good to bad; a point is a pair of values, healthy or not. Both settings are taken
to be harmful: what is healthy stays healthy nearer to good, what is not stays so nearer to bad. So every healthy
point clears the rectangle between it and good, every other one condemns the rectangle between it and bad, and the
frontier lies in what is left. It is fitted half way through.

Where to look next is a matter for an Optuna sampler. `FrontierSampler`, the default, takes the point whose outcome
decides most of what is left, whichever way it goes. Any other fits too, because the study is a constrained search with
two objectives: go as far as possible toward bad with both settings, subject to being healthy. Its Pareto front is the
frontier; TPE and the Gaussian process (which needs scipy) were measured against it, see `studies/frontier_cost`.

A failure is nearly proof and a pass only evidence: where the two contradict each other, the failure counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from bisect_cfg.configuration import Value
from bisect_cfg.recommend.search_range import SearchRange

if TYPE_CHECKING:
    from optuna import Study

CONSTRAINT = "unhealthy"
"""The name of the constraint in the study: 1 violates it, -1 does not."""

REPEATS_ALLOWED = 10
"""A sampler that proposes pairs already tried gets their outcomes again so many times before it is given in to."""

_SAME_SHARE = 1e-9
"""Values of earlier points are looked up in the ranges; they went through JSON, which keeps them to the last bit, and
through people, who do not."""


@dataclass(frozen=True)
class Point:
    """One pair of values that was tried.

    Attributes:
        values: setting -> value, both settings.
        healthy: None if the run said nothing (another failure, an invalid configuration).
    """

    values: Mapping[str, float]
    healthy: bool | None


@dataclass(frozen=True)
class Frontier:
    """What is known about the frontier.

    Attributes:
        ranges: of the two settings; the frontier is a function of the first.
        points: all pairs tried, earlier ones first.
        safe: for each value of the first setting, the farthest value of the second that was seen to be healthy there or
            farther out; None if none was.
        unsafe: the nearest value of the second setting that was seen to fail there or nearer; None if none was.
        undecided: share of all pairs of which it is not known on which side they lie, between 0 and 1.
    """

    ranges: tuple[SearchRange, SearchRange]
    points: tuple[Point, ...]
    safe: tuple[float | None, ...]
    unsafe: tuple[float | None, ...]
    undecided: float

    def at(self, value: float) -> float | None:
        """The fitted frontier, not proven: how far the second setting may go when the first has this value.

        Half way (on the natural scale) between what was seen to be healthy and what was not. It never rises as the
        first setting moves toward bad.

        Args:
            value: of the first setting; between two values of its range the more cautious one counts.

        Returns:
            A value of the second setting, not rounded; its bad level where that is healthy, None where not even its
            good level is.
        """
        first, second = self.ranges
        shares = [first.share(one) for one in first.values]
        position = min(int(np.searchsorted(shares, first.share(value) - _SAME_SHARE)), len(shares) - 1)
        safe, unsafe = self.safe[position], self.unsafe[position]
        if unsafe == second.good:
            return None
        low = 0.0 if safe is None else second.share(safe)
        high = low if safe == second.bad else 1.0 if unsafe is None else second.share(unsafe)
        return second.back(second.bad, 1 - (low + high) / 2)


def find_frontier(
    healthy: Callable[[dict[str, float]], bool | None],
    ranges: tuple[SearchRange, SearchRange],
    budget: int,
    *,
    points: Sequence[Point] = (),
    sampler: BaseSampler | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> Frontier:
    """Look for the frontier between two settings.

    Deterministic with the default sampler, so that a search that was cut short goes on as if it had not been, when it
    is given its points.

    Args:
        healthy: tries one pair (setting -> value); None if the run said nothing. May repeat runs itself where
            failures are random.
        ranges: of the two settings. Both at good is taken to be healthy, both at bad not.
        budget: the most calls of `healthy`, earlier points not counted.
        points: what is known already. Points beside the ranges' values count at the next value that is implied.
        sampler: of Optuna, for two integers (indices in the ranges); None for `FrontierSampler`.
        on_point: called with each new point before the next one is chosen, to keep it.

    Returns:
        The frontier as far as it is known; every pair is decided once `undecided` is 0, often before the budget ends.
    """
    known = list(points)
    for _ in range(budget):
        values = next_pair(ranges, known, sampler)
        if values is None:
            break
        known.append(Point(values, healthy(dict(values))))
        if on_point is not None:
            on_point(known[-1])
    return frontier_of(ranges, known)


def next_pair(
    ranges: tuple[SearchRange, SearchRange], points: Sequence[Point], sampler: BaseSampler | None = None
) -> dict[str, float] | None:
    """The pair of values to try next; None once it is known of every pair on which side it lies.

    Args:
        ranges: of the two settings.
        points: what is known already.
        sampler: of Optuna, see `find_frontier`.
    """
    if not _undecided(*_bounds(ranges, points), len(ranges[1].values)).any():
        return None
    study = _study(ranges, points, sampler or FrontierSampler(ranges))
    tried = [dict(point.values) for point in points]
    for _ in range(REPEATS_ALLOWED):
        trial = study.ask()
        values = {each.name: each.values[trial.suggest_int(each.name, 0, len(each.values) - 1)] for each in ranges}
        if values not in tried:
            break
        _tell(study, trial, points[tried.index(values)], ranges)
    return values


def frontier_of(ranges: tuple[SearchRange, SearchRange], points: Sequence[Point]) -> Frontier:
    """What these points say about the frontier; pure."""
    low, high = _bounds(ranges, points)
    second = ranges[1].values
    return Frontier(
        ranges,
        tuple(points),
        tuple(None if index < 0 else second[index] for index in low),
        tuple(None if index >= len(second) else second[index] for index in high),
        float(_undecided(low, high, len(second)).mean()),
    )


# -------------------------------------------------------------------------------------------------- what is decided


def _bounds(ranges: tuple[SearchRange, SearchRange], points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """For each index of the first range: the last index of the second known to be healthy, the first known not to be.

    -1 and the length of the second range where nothing is known. Healthy points beyond a failure do not count.
    """
    first, second = ranges
    low = np.full(len(first.values), -1)
    high = np.full(len(first.values), len(second.values))
    low[0], high[-1] = 0, len(second.values) - 1
    for point in points:
        if point.healthy is False:
            i, j = (_index(each, point.values[each.name], round_up=True) for each in ranges)
            high[i:] = np.minimum(high[i:], j)
    for point in points:
        if point.healthy:
            i, j = (_index(each, point.values[each.name], round_up=False) for each in ranges)
            if j < high[i]:
                low[: i + 1] = np.maximum(low[: i + 1], j)
    return low, high


def _index(search_range: SearchRange, value: float, *, round_up: bool) -> int:
    """Where a value lies in a range; one in between counts for what it implies: a failure for the next worse value, a
    healthy one for the next better."""
    shares = np.array([search_range.share(one) for one in search_range.values])
    share = search_range.share(value)
    if round_up:
        return min(int(np.searchsorted(shares, share - _SAME_SHARE)), len(shares) - 1)
    return max(int(np.searchsorted(shares, share + _SAME_SHARE, side="right")) - 1, 0)


def _undecided(low: np.ndarray, high: np.ndarray, size: int) -> np.ndarray:
    """Which pairs lie on neither side, by index in the first and the second range."""
    indices = np.arange(size)[None, :]
    return (indices > low[:, None]) & (indices < high[:, None])


# ---------------------------------------------------------------------------------------------------------- Optuna


class FrontierSampler(BaseSampler):
    """Takes the pair whose outcome decides most of the pairs that are still open, in the worse of both cases.

    Like Optuna's `BruteForceSampler` it has no state of its own: every choice is made from the trials of the study.

    Args:
        ranges: of the two settings whose indices are asked for.
    """

    def __init__(self, ranges: tuple[SearchRange, SearchRange]) -> None:
        self._ranges = ranges

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return _space(self._ranges)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Value]:
        points, silent = [], []
        for other in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)):
            values = {each.name: each.values[other.params[each.name]] for each in self._ranges}
            if other.state is TrialState.COMPLETE:
                points.append(Point(values, other.constraints[CONSTRAINT] <= 0))
            else:
                silent.append(tuple(other.params[each.name] for each in self._ranges))
        first, second = _most_telling(*_bounds(self._ranges, points), len(self._ranges[1].values), silent)
        return {self._ranges[0].name: first, self._ranges[1].name: second}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Value:
        raise ValueError(f"{param_name} is not one of the two settings of this search.")


def _most_telling(low: np.ndarray, high: np.ndarray, size: int, silent: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The open pair that decides most, whichever way it goes; one that said nothing before only if no other is left."""
    undecided = _undecided(low, high, size)
    nearer = undecided.cumsum(0).cumsum(1)  # decided with a pair that is healthy: itself and all nearer to good
    farther = undecided[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1]
    gain = np.minimum(nearer, farther) + (nearer + farther) / (4 * undecided.size)  # the sum only breaks ties
    gain = np.where(undecided, gain, 0.0)
    for pair in silent:
        gain[pair] /= undecided.size
    return tuple(int(index) for index in np.unravel_index(int(gain.argmax()), gain.shape))  # type: ignore[return-value]


def _study(ranges: tuple[SearchRange, SearchRange], points: Sequence[Point], sampler: BaseSampler) -> Study:
    """A study in memory with the earlier points; what is to be kept is kept by `on_point`."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
    for point in points:
        indices = {each.name: _index(each, point.values[each.name], round_up=point.healthy is False) for each in ranges}
        told: dict[str, Any] = {"state": TrialState.FAIL}
        if point.healthy is not None:
            told = {
                "values": [float(indices[each.name]) for each in ranges],
                "constraints": {CONSTRAINT: _violation(point.healthy)},
            }
        study.add_trial(create_trial(params=indices, distributions=_space(ranges), **told))
    return study


def _tell(study: Study, trial: optuna.Trial, point: Point, ranges: tuple[SearchRange, SearchRange]) -> None:
    if point.healthy is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        trial.set_constraint(CONSTRAINT, _violation(point.healthy))
        study.tell(trial, [float(trial.params[each.name]) for each in ranges])


def _violation(healthy: bool) -> float:
    """Optuna calls a trial feasible if its constraint is at most zero."""
    return -1.0 if healthy else 1.0


def _space(ranges: tuple[SearchRange, SearchRange]) -> dict[str, BaseDistribution]:
    return {each.name: IntDistribution(0, len(each.values) - 1) for each in ranges}
