"""Our side: `Bisection` as anyone would call it, and the search alone where rounds are to be counted."""

from __future__ import annotations

from dataclasses import dataclass

from oracles import LIMIT, Answer, Case, Exhausted, Oracle

from bisect_cfg import Bisection
from bisect_cfg.configuration import Outcome
from bisect_cfg.parameters.odds import odds_of
from bisect_cfg.search import Ask, Conclusion, Done, Problem, Record, next_question
from bisect_cfg.study.interface import TrialResult


@dataclass(frozen=True)
class Setting:
    """What the user may set: see `Bisection`."""

    confirm: int | None = 1
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{'default' if self.confirm is None else f'confirm={self.confirm}'}, {self.confidence:.0%}"


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


def by_rounds(case: Case, oracle: Oracle, setting: Setting) -> Answer:
    """Rounds of `jobs` runs, as long as the search has questions; all runs of a round take equally long."""
    problem = Problem(
        case.names, case.valid, odds_of(case.names, case.prior, case.failure), confirm=setting.confirm,
        confidence=setting.confidence, jobs=case.jobs,
    )  # fmt: skip
    records: list[Record] = []
    rounds = 0
    while True:
        batch: list[Record] = []
        while len(batch) < case.jobs:
            question = next_question(problem, records + batch)
            if not isinstance(question, Ask):
                break
            number = len(records) + len(batch)
            batch.append(Record(question.subset, None, question.purpose, number, 0.0, question.companions))
        if isinstance(question, Done):
            return _answer(question.conclusion, rounds)
        rounds += 1
        for r in batch:
            try:
                fails = oracle.run(r.subset)
            except Exhausted:
                return Answer(frozenset(), False, rounds)
            records.append(Record(r.subset, outcome_of(fails), r.purpose, r.number, 1.0, r.companions))


def outcome_of(fails: bool | None) -> Outcome:
    """The oracle's word in ours."""
    return Outcome.UNRESOLVED if fails is None else Outcome.FAIL if fails else Outcome.PASS


def _answer(conclusion: Conclusion, rounds: int) -> Answer:
    found = frozenset(cause.parameters for cause in conclusion.causes)
    return Answer(found, conclusion.complete, rounds)
