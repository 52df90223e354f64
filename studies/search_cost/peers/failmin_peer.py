"""failmin: `minimize` of a trace, one event a factor; `runs` and `threshold` are its own means against luck."""

from __future__ import annotations

from failmin.api import minimize
from failmin.core.models import RunResult, Trace, TraceEvent
from oracles import Answer, Oracle

PACKAGE = "failmin"


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause. A configuration counts as failing if one of `repeats` runs fails."""

    def replay(trace: Trace) -> RunResult:
        mask = sum(1 << int(event.id) for event in trace.events)
        return RunResult(exception="failure" if oracle.run(mask) else None)

    trace = Trace(tuple(TraceEvent(str(i), "setting") for i in range(oracle.size)))
    try:
        result = minimize(trace, replay, lambda run: run.exception is not None, runs=repeats, threshold=1 / repeats)
    except ValueError:  # the full trace did not fail
        return Answer(frozenset())
    return Answer(frozenset({sum(1 << int(event.id) for event in result.minimal.events)}))
