"""Our side: `Bisection` as anyone would call it, and the search alone where rounds are to be counted."""

from __future__ import annotations

from oracles import LIMIT, Answer, Case, Oracle
from rounds import Setting, by_rounds, outcome_of

from bisect_cfg import Bisection
from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.parameters import odds_of
from bisect_cfg.store.interface import TrialResult


def solve(case: Case, oracle: Oracle, setting: Setting) -> Answer:
    """One instance, by the public class with one worker, by simulated rounds with several."""
    return by_rounds(case, oracle, setting) if case.jobs > 1 else by_class(case, oracle, setting)


def by_class(case: Case, oracle: Oracle, setting: Setting) -> Answer:
    """`Bisection` with a function in place and the study in memory."""
    names = case.names
    bit = {name: 1 << i for i, name in enumerate(names)}

    def mask(configuration: dict[str, object]) -> int:
        return sum(bit[name] for name, value in configuration.items() if value == "bad")

    def trial(configuration: dict[str, object]) -> TrialResult:
        outcome = outcome_of(oracle.run(mask(configuration)))
        signature = "simulated" if outcome is Outcome.FAIL else None
        # A second each: from the microseconds they really take, the search would learn prices that are noise.
        return TrialResult(outcome, signature, seconds=1.0)

    bisection = Bisection(
        good=dict.fromkeys(names, "good"),
        bad=dict.fromkeys(names, "bad"),
        trial=trial,
        is_valid=lambda configuration: case.valid(mask(configuration)),
        isolation="none",
        max_trials=LIMIT,
        prior=dict(zip(names, odds, strict=True)) if (odds := odds_of(names, case.prior, case.failure)) else "flat",
        confirm=setting.confirm,
        confidence=setting.confidence,
    )
    report = bisection.run()
    found = frozenset(sum(bit[name] for name in cause.parameters) for cause in report.causes)
    return Answer(found, report.complete)
