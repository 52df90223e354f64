"""The search alone, in rounds of runs. It needs so little of the package that older versions of it fit as well."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oracles import Answer, Case, Exhausted, Oracle

from bisect_cfg import Outcome
from bisect_cfg.common.parameters import odds_of
from bisect_cfg.search import Ask, Conclusion, Done, Problem, Record, next_question


@dataclass(frozen=True)
class Setting:
    """What the user may set: see `Bisection`."""

    confirm: int | None = 1
    confidence: float = 0.95

    def __str__(self) -> str:
        return f"{'default' if self.confirm is None else f'confirm={self.confirm}'}, {self.confidence:.0%}"


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
            record = Record(r.subset, outcome_of(fails), r.purpose, r.number, 1.0, r.companions)
            trace = getattr(oracle, "trace", "")
            records.append(replace(record, trace=trace) if trace else record)


def outcome_of(fails: bool | None) -> Outcome:
    """The oracle's word in ours."""
    return Outcome.UNRESOLVED if fails is None else Outcome.FAIL if fails else Outcome.PASS


def _answer(conclusion: Conclusion, rounds: int) -> Answer:
    found = frozenset(cause.parameters for cause in conclusion.causes)
    return Answer(found, conclusion.complete, rounds, conclusion.notes)
