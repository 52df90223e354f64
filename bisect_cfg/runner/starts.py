"""The starts there are: how a trial's process may come to be. A row each, the warmest first.

A new one is a row with a fork point here, and nothing else: the command line, the phases and the reports take theirs
from it. Its process has run the script up to that point, and waits; where it forks soundly is found out by trying
(`study/baselines.py`), so a start that does not suit a script costs it a run or two and nothing more. The two rows
without one are `IMPORTS`, whose process runs nothing of the script, and `COLD`, which begins from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bisect_cfg.probe.protocol import ForkPoint
    from bisect_cfg.targets.captured import Capture

MORE_THAN_ANYONE_WAITS = 1e9
"""Thirty years in seconds: longer times overflow the system's clocks, and mean no limit anyway."""

IMPORTS, COLD = "imports", "cold"


class StartPoint(NamedTuple):
    """What people are told of trials that start so ("13 trials, each ..."), and the object before which the process
    waits; None where it runs nothing of the script."""

    said: str
    fork_point: Callable[[Capture], ForkPoint] | None = None


def _first_that_may_change(capture: Capture) -> ForkPoint:
    from bisect_cfg.targets.pinned import fork_point  # not for the command line alone, which reads the table

    return fork_point(capture)


STARTS: Mapping[str, StartPoint] = {
    "config": StartPoint("forked from your script at its configuration", _first_that_may_change),
    IMPORTS: StartPoint("forked after the imports"),
    COLD: StartPoint("launched cold"),
}
"""By the name that `--start` takes; the last one runs the user's command from nothing, and is always sound."""
