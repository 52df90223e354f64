"""Which subset next: the whole search as one function of what was recorded.

First the two ends: the bad configuration must fail, the good one must pass. Then, again and again, the bad
configuration without a cheapest correction of the causes known so far. If it fails, another cause lives in
there, and is narrowed down and proven; if every minimal correction passes, the causes are complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bisect_cfg.factors import Outcome
from bisect_cfg.search.problem import (
    Ask,
    Conclusion,
    Done,
    FoundCause,
    Problem,
    Question,
    Record,
    State,
    Wait,
)
from bisect_cfg.search.proof import next_claim
from bisect_cfg.search.strategies import Needed, ddmin, growing_prefix, one_at_a_time, replay
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.transversal import minimal_hitting_sets
from bisect_cfg.search.validity import Validity

_NARROW = {"adaptive": growing_prefix, "one-at-a-time": one_at_a_time, "ddmin": ddmin}


def next_question(problem: Problem, records: Iterable[Record]) -> Question:
    """What to run next, to wait, or the conclusion.

    Args:
        problem: the factors and how to search them.
        records: every trial so far, running ones included, in the order of their numbers.

    Returns:
        `Ask`, `Wait` or `Done`; equal for equal arguments.
    """
    return look(problem, records).question


def look(problem: Problem, records: Iterable[Record]) -> State:
    """The next question together with what is known so far; see `next_question`."""
    tally = Tally(records)
    question = _ends(problem, tally)
    state = _isolate(problem, tally) if question is None else State(question)
    if isinstance(state.question, Ask) and tally.of(state.question.subset).running:
        return replace(state, question=Wait(state.question.reason))
    return state


def _ends(problem: Problem, tally: Tally) -> Question | None:
    """The two baselines, or what they conclude."""
    bad, good = tally.of(problem.full), tally.of(0)
    if problem.size == 0:
        return Done(Conclusion("no_failure", notes=("The good and the bad configuration do not differ.",)))
    if not bad.fails:
        if bad.passes:
            note = "The bad configuration passed: there is nothing to isolate."
            return Done(Conclusion("no_failure", safe=problem.full, notes=(note,)))
        if bad.unresolved:
            note = "The bad configuration neither passed nor failed in a way that could be told."
            return Done(Conclusion("inconclusive", notes=(note,)))
        return Ask(problem.full, 0, "bad baseline", "Does the bad configuration fail?")
    if good.fails:
        note = "The good configuration fails too: the cause is not among the settings that differ."
        return Done(Conclusion("baseline_fails", notes=(note,)))
    if not good.passes:
        if good.unresolved:
            note = "The good configuration did not run to its end; nothing can be compared with it."
            return Done(Conclusion("inconclusive", notes=(note,)))
        return Ask(0, 0, "good baseline", "Does the good configuration pass?")
    return None


def _isolate(problem: Problem, tally: Tally) -> State:
    validity = Validity(problem, tally)
    causes: list[FoundCause] = []
    notes: list[str] = []
    complete = True

    def ask(question: Ask, suspected: int = 0) -> State:
        known = 0
        for cause in causes:
            known |= cause.parameters
        so_far = _conclude(problem, tally, causes, False, notes)
        remaining = 2 + suspected.bit_count().bit_length()
        return State(
            question, tuple(causes), suspected, problem.full & ~suspected & ~known, remaining, so_far
        )

    while True:
        target = None
        for correction in _by_loss(problem, causes):
            rest = problem.full & ~correction
            count = tally.of(rest)
            if count.fails:
                target = rest
                break
            if not count.passes:
                if count.unresolved or not validity.ok(rest):
                    complete = False
                    continue
                reason = f"Does the bad configuration pass without {problem.show(correction)}?"
                return ask(Ask(rest, 0, "correction", reason))
        if target is None:
            break
        try:
            witness = _NARROW[problem.strategy](problem, replay(problem, tally, validity, target), target)
        except Needed as needed:
            return ask(needed.ask, _suspected(tally, target))
        if not validity.ok(witness):
            witness |= validity.companions(witness, target) or 0
        claim = next_claim(problem, tally, validity, witness, problem.confirm)
        if isinstance(claim, Ask):
            return ask(claim, witness)
        if claim is None or any(claim.parameters == cause.parameters for cause in causes):
            notes.append("The search met a contradiction and stopped.")
            complete = False
            break
        causes.append(claim)
        if problem.first:
            complete = False
            break
    for correction in _by_loss(problem, causes):
        rest = problem.full & ~correction
        if 0 < tally.of(rest).passes:
            if tally.of(rest).passes < problem.confirm:
                reason = f"Does it pass again without {problem.show(correction)}?"
                return ask(Ask(rest, 0, "correction", reason))
            break
    conclusion = _conclude(problem, tally, causes, complete, notes)
    return State(Done(conclusion), tuple(causes), so_far=conclusion)


def _suspected(tally: Tally, inside: int) -> int:
    """The smallest failing subset inside."""
    return min((m for m in tally.failed if m & inside == m), key=int.bit_count, default=inside)


def _conclude(
    problem: Problem, tally: Tally, causes: list[FoundCause], complete: bool, notes: list[str]
) -> Conclusion:
    corrections = tuple(
        (mask, tally.claim(problem.full & ~mask, Outcome.PASS))
        for mask in _by_loss(problem, causes)
        if mask and tally.of(problem.full & ~mask).passes
    )
    clean = [mask for mask in tally.passed if not tally.of(mask).fails]
    safe = max(clean, key=int.bit_count, default=None)
    full = tally.of(problem.full)
    status = "isolated" if causes else "inconclusive"
    return Conclusion(
        status, tuple(causes), corrections, complete, safe, (), (full.fails, full.runs), tuple(notes)
    )


def _by_loss(problem: Problem, causes: list[FoundCause]) -> list[int]:
    loss = problem.loss or (1.0,) * problem.size
    sets = minimal_hitting_sets(cause.parameters for cause in causes)
    return sorted(
        (s for s in sets if s), key=lambda m: (sum(loss[i] for i in range(problem.size) if m >> i & 1), m)
    ) or ([0] if not causes else [])
