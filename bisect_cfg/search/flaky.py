"""The search once failures are known to be random: ask what tells most until one answer is left.

Any run may be repeated, and none is conclusive. So the next run is the one with most information about the
whole answer, whether new or repeated; runs that the proof of the likeliest answer lacks count a little more.
It ends when that answer is as likely as the user asked for and each of its claims was seen at least once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp

from bisect_cfg.configuration import Outcome, Purpose
from bisect_cfg.search.models import Models, hypotheses_of
from bisect_cfg.search.prices import Prices
from bisect_cfg.search.problem import Ask, FoundCause, Problem, Wait
from bisect_cfg.search.proof import Proof, prove
from bisect_cfg.search.tally import Tally
from bisect_cfg.search.transversal import minimal_hitting_sets
from bisect_cfg.search.validity import Validity

ERROR_SHARE = 0.9
"""Share of the permitted error that the posterior may leave: its prior of p and of further causes is a guess, but
measured (`studies/search_cost`) it promises no more than it keeps."""

ERROR_SHARE_AT_EACH_RATE = 0.08
"""The same where the promise is to hold at each failure rate by itself, not only on the prior's average: rare failures
(p of .3) are wrong several times as often as that."""

PROOF_SHARE = 0.3
"""What a run that the likeliest answer's proof lacks is worth beside a bit of information, times that answer's
probability."""

LOOKED_AT = 40
"""How many of the most telling subsets are tried for one that can be valid."""

NOTHING = 1e-3
"""Information in bits below which no run tells the rest apart: no valid configuration can."""

WORTH_WAITING = 0.02
"""With trials running, a run worth less than this waits for their outcomes instead."""


@dataclass(frozen=True)
class Settled:
    """The answer.

    Attributes:
        causes: each with its proof.
        complete: whether every correction was seen to cure.
        separated: whether runs tell it from all other answers as surely as was asked for.
    """

    causes: list[FoundCause]
    complete: bool
    separated: bool = True


def settle(
    problem: Problem,
    tally: Tally,
    validity: Validity,
    variants: Callable[[int], list[int]],
    prices: Prices,
) -> Ask | Wait | Settled:
    """The next run, or the answer.

    Args:
        problem: the problem.
        tally: what was seen.
        validity: what can be run.
        variants: correction -> the largest valid subsets without it.
        prices: what runs cost.
    """
    if not tally.running:
        return _decide(problem, tally, validity, variants, prices)
    guessed = _decide(problem, _guess(problem, tally), validity, variants, prices, tally)
    return Wait("Running trials decide.") if isinstance(guessed, Settled) else guessed


def _guess(problem: Problem, tally: Tally) -> Tally:
    """Running trials as if they had ended as is likeliest, so that others ask something else."""
    models = Models(problem, tally)
    _, chances = models.information(tally.running)
    likely = {
        mask: Outcome.FAIL if chance > 0.5 else Outcome.PASS
        for mask, chance in zip(tally.running, chances, strict=True)
    }
    return Tally(r if r.outcome is not None else replace(r, outcome=likely[r.subset]) for r in tally.records)


def _decide(
    problem: Problem,
    tally: Tally,
    validity: Validity,
    variants: Callable[[int], list[int]],
    prices: Prices,
    real: Tally | None = None,
) -> Ask | Wait | Settled:
    models = Models(problem, tally)
    top = models.models[0]
    causes, sure = top.causes, top.weight * exp(-models.hidden(top))
    if problem.first:
        chances = hypotheses_of(models.models)
        cause = max(chances, key=lambda c: (round(chances[c], 9), -c))
        causes, sure = (cause,), min(chances[cause], 1.0)
    proofs = [prove(problem, tally, validity, c, problem.full, 1, tuple(o for o in causes if o != c)) for c in causes]
    missing: dict[int, Ask] = {}
    for proof in proofs:
        if proof is not None:
            missing.update((step.subset, step.ask) for step in proof.missing)
    complete = not problem.first
    if not problem.first:
        for hit in minimal_hitting_sets(causes):
            runs = [mask for mask in variants(hit) if mask]
            complete &= bool(runs) or hit == problem.full
            for mask in runs:
                if not tally.of(mask).passes:
                    missing.setdefault(mask, correction_ask(problem, mask))
    share = ERROR_SHARE_AT_EACH_RATE if problem.confirm is None else ERROR_SHARE
    enough = sure >= 1 - (1 - problem.confidence) * share
    running = () if real is None else real.running
    if enough and missing:
        ask = next((ask for mask, ask in missing.items() if mask not in running), None)
        return ask or Wait("Running trials decide.")
    if enough:
        return Settled(_found(proofs), complete)
    best = _most_telling(problem, models, validity, missing, sure, prices, running)
    if best is None or best[0] < NOTHING:
        if missing:
            ask = next((ask for mask, ask in missing.items() if mask not in running), None)
            return ask or Wait("Running trials decide.")
        return Settled(_found(proofs), complete, separated=False)
    if running and best[0] < WORTH_WAITING:
        return Wait("Running trials decide.")
    return best[1]


def _found(proofs: list[Proof | None]) -> list[FoundCause]:
    return [proof.found for proof in proofs if proof is not None and proof.found is not None]


def _most_telling(
    problem: Problem,
    models: Models,
    validity: Validity,
    missing: dict[int, Ask],
    sure: float,
    prices: Prices,
    running: tuple[int, ...] | list[int],
) -> tuple[float, Ask] | None:
    """The most valuable run that can be valid, with its information in bits."""
    masks = list(dict.fromkeys([*models.questions(), *missing]))
    information, chance = models.information(masks)
    worth = [
        (float(bits_) + PROOF_SHARE * sure * (mask in missing))
        / (float(c) * prices.fail + 1 - float(c))
        / prices.of_mask(mask)
        for mask, bits_, c in zip(masks, information, chance, strict=True)
    ]
    best: tuple[float, Ask] | None = None
    top = 0.0
    for i in sorted(range(len(masks)), key=lambda i: (-round(worth[i], 9), masks[i]))[:LOOKED_AT]:
        mask = masks[i]
        if best is not None and worth[i] <= top:
            break
        if mask in running:
            continue
        if validity.ok(mask):
            value = worth[i] * validity.chance(mask)
            if best is None or value > top:
                top, best = value, (float(information[i]), _ask(problem, models, missing, mask, 0))
            continue
        for changed, companions in validity.repairs(mask, problem.full):
            if changed in (0, problem.full) or changed in running:
                continue
            bits_, c = models.information([changed])
            cost = (float(c[0]) * prices.fail + 1 - float(c[0])) * prices.of_mask(changed)
            value = float(bits_[0]) / cost * validity.chance(changed)
            if best is None or value > top:
                top, best = value, (float(bits_[0]), _ask(problem, models, missing, changed, companions))
    return best


def _ask(problem: Problem, models: Models, missing: dict[int, Ask], mask: int, companions: int) -> Ask:
    if mask in missing:
        return missing[mask]
    likeliest = models.models[0].causes
    inside = [cause for cause in likeliest if cause & mask == cause]
    if mask.bit_count() * 2 > problem.size:
        shown = f"without {problem.show(problem.full & ~mask)}"
    else:
        shown = f"with only {problem.show(mask)}"
    if inside:
        return Ask(
            mask, companions, Purpose.SEARCH, f"Does it fail {shown}? Failures are random, so one run is not enough."
        )
    return Ask(mask, companions, Purpose.SEARCH, f"Does it pass {shown}? Failures are random, one pass may be luck.")


def correction_ask(problem: Problem, mask: int) -> Ask:
    """The run that shows a correction to cure."""
    shown = problem.show(problem.full & ~mask)
    return Ask(mask, 0, Purpose.CORRECTION, f"Does the bad configuration pass without {shown}?")
