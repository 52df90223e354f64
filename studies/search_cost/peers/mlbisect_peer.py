"""mlbisect: `find_culprits` with an executor; the metric is 1 for a pass and 0 for a failure.

Its budget of runs is its default: five for the baseline, three to ten for each configuration, until a confidence
interval decides. It decides nothing on fewer than three, so that `repeats` has nothing to set.
"""

from __future__ import annotations

from mlbisect.config import Configuration
from mlbisect.executors.base import RunResult
from mlbisect.manifest import Axis, BudgetConfig, Manifest, MetricConfig, RunConfig
from mlbisect.search import find_culprits
from oracles import LIMIT, Answer, Oracle

PACKAGE = "mlbisect"
SETTINGS = (1,)

LEAST_DROP = 0.25
"""Smallest drop of the metric that counts: half of what a failure that shows every other time makes."""


class _Simulated:
    """Its executor: runs a configuration, gives a metric."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def run(self, config: Configuration, seed: int) -> RunResult:
        fails = self._oracle.run(sum(1 << int(axis[1:]) for axis in config.axes))
        if fails is None:
            return RunResult(config.axes, seed, None, False, 1.0, "invalid configuration")
        return RunResult(config.axes, seed, 0.0 if fails else 1.0, True, 1.0)


def solve(oracle: Oracle, repeats: int) -> Answer:
    """Causes with nothing in common; it looks for three at most."""
    manifest = Manifest(
        version=1,
        name="oracle",
        metric=MetricConfig(name="passes", direction="higher_is_better", min_effect=LEAST_DROP),
        run=RunConfig(command="true"),
        axes=[Axis(name=f"f{i}", old="good", new="bad") for i in range(oracle.size)],
        budget=BudgetConfig(max_runs=LIMIT),
    )
    result = find_culprits(_Simulated(oracle), manifest)
    return Answer(frozenset(sum(1 << int(a[1:]) for a in found) for found in result.culprit_sets))
