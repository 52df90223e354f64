"""What the search concluded, with the names, values and trials that people and files are told."""

from __future__ import annotations

from collections.abc import Iterator

from bisect_cfg.common.configuration import Configuration, configuration_of
from bisect_cfg.search import Conclusion, FoundCause, SubsetClaim
from bisect_cfg.store.causes import Cause, Claim, Correction, Evidence, Levels, Report, Trial, wilson
from bisect_cfg.store.encoding import WANTED
from bisect_cfg.store.rows import row_of
from bisect_cfg.store.sampler import SearchTrials


def cause_of(found: FoundCause, trials: SearchTrials) -> Cause:
    """A cause that the search has proven."""
    names = _names(found.parameters, trials)
    factors = trials.store.factors
    levels, reference = {f.name: Levels(f.good, f.bad) for f in factors}, trials.reference()
    without = {factors[i].name: _claim(claim, trials) for i, claim in found.without.items()}
    return Cause(
        {name: levels[name] for name in names},
        Evidence(_claim(found.fails, trials), without),
        _names(found.companions, trials),
        _names(found.inseparable, trials),
        reference.signature if reference else None,
    )


def report_of(
    conclusion: Conclusion, trials: SearchTrials, good: Configuration, bad: Configuration, stopped: str = ""
) -> Report:
    """The whole conclusion, between the whole configurations: the trials that it was drawn from know factors only. A
    limit has `stopped` the search, "" if none did."""
    safe = None if conclusion.safe is None else configuration_of(trials.names(conclusion.safe), good, bad)
    reference = trials.reference()
    rows = tuple(_rows(trials))
    fails, runs = conclusion.reproduction
    return Report(
        conclusion.status,
        tuple(cause_of(found, trials) for found in conclusion.causes),
        tuple(Correction(_names(mask, trials), _claim(claim, trials)) for mask, claim in conclusion.corrections),
        conclusion.complete,
        safe,
        reference.signature if reference else None,
        tuple((_names(mask, trials), _names(cause, trials)) for mask, cause in conclusion.masking),
        fails / runs if runs else None,
        wilson(fails, runs) if runs else None,
        conclusion.notes,
        rows,
        sum(row.seconds or 0.0 for row in rows),
        message=reference.message if reference else "",
        stopped=stopped,
    )


def _names(mask: int, trials: SearchTrials) -> tuple[str, ...]:
    return tuple(sorted(trials.names(mask)))


def _claim(claim: SubsetClaim, trials: SearchTrials) -> Claim:
    subset = None if claim.subset is None else _names(claim.subset, trials)
    return Claim(subset, claim.seen, claim.runs, claim.numbers, claim.note)


def _rows(trials: SearchTrials) -> Iterator[Trial]:
    outcomes = {record.number: record.outcome for record in trials.records()}
    every = [*trials.all(), *trials.store.trials(WANTED)]
    for trial in sorted(every, key=lambda trial: trial.number):
        if trial.state.is_finished():
            yield row_of(trial, trials.store.levels, outcomes.get(trial.number))
