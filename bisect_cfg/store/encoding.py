"""How factors and results are written into an Optuna trial, and read again.

A factor is a categorical parameter with three choices: its good value, its bad one, and any other. So what Optuna
computes over the trials (`optuna.importance`) counts how often each goes with a failure; as numbers, two values far
apart would weigh more than the failure does. Values that Optuna cannot hold (dicts, lists, NaN) are stored as text.
What was run is always derived from the subset, never from these values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from bisect_cfg.common.configuration import UNSET, Factor, Outcome, Purpose, Value, equal, is_number
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import mask, scrub
from bisect_cfg.store.interface import TrialResult

NODE = "node"
"""Attribute of a trial that is to run on a certain node."""

SUBSET, WANTED, SAFE, QUESTION = "subset", "wanted", "recommend", "question"
"""Attributes that hold the question of a trial, and so tell which phase it belongs to: the names of the factors that
are bad, for the search; the values that a reader wanted in place of the bad configuration's; a run for safe values; of
another run than these what it shows, in a word that no other run of the study has ("bad-config-1")."""

TWO_ENDS = frozenset({Purpose.BAD_BASELINE, Purpose.BAD_AGAIN, Purpose.WARM_START, Purpose.GOOD_BASELINE})
"""Purposes of the runs of the bad and of the good configuration."""

OTHER = "another value"
"""The choice of a trial that has neither the good nor the bad value of a factor."""

OBJECTIVE = "1: fails, 0: passes"
"""What the value of a trial is called in Optuna's plots and in its dashboard."""

WORSE = "constraints:not recommended"
"""Attribute of a trial that Optuna takes for a constraint: 0 of the run that completes what is recommended, which so is
Optuna's best trial, 1 of all others."""

SHOWN = "trial"
"""Attribute of a trial that is another one written once more: the number of that one."""


def distribution_of(factor: Factor) -> CategoricalDistribution:
    """The Optuna distribution of a factor, whose choices are its good value, its bad one and `OTHER`."""
    # What is run comes from the configurations that the caller gives again, so secrets need not be kept.
    levels = mask(factor.good, factor.name), mask(factor.bad, factor.name)
    good, bad = (
        one if one is None or isinstance(one, (int, str)) or is_number(one) else as_text(one) for one in levels
    )
    if good == bad:  # True and 1
        good, bad = f"{as_text(levels[0])} (good)", f"{as_text(levels[1])} (bad)"
    return CategoricalDistribution((good, bad, OTHER))


def stored_value(factor: Factor, value: Value) -> Value:
    """A value of a factor as Optuna stores it."""
    good, bad, other = distribution_of(factor).choices
    return good if equal(value, factor.good) else bad if equal(value, factor.bad) else other


def as_text(value: object) -> str:
    if value is UNSET:
        return repr(value)
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return repr(value)


def plain(value: object) -> Value:
    """A value as JSON can hold it."""
    return json.loads(json.dumps(value, default=repr))


def result_of(trial: FrozenTrial) -> TrialResult:
    """The result as the runner gave it."""
    known = trial.user_attrs
    rest = known.get("result") or {}
    return TrialResult(
        Outcome(rest.get("reported", Outcome.UNRESOLVED.value)),
        known.get("signature"),
        rest.get("message", ""),
        float(known.get("seconds") or 0.0),
        rest.get("step"),
        known.get("attributes") or {},
    )


def result_attributes(result: TrialResult, outcome: Outcome) -> JsonObject:
    """Few attributes, as each is a transaction of its own: what people look at singly, the rest together."""
    rest = {"reported": result.outcome.value, "message": scrub(result.message), "step": result.step}
    values: JsonObject = {"result": rest, "seconds": round(result.seconds, 6), "outcome": outcome.value}
    if result.signature is not None:
        values["signature"] = result.signature
    if result.attributes:
        values["attributes"] = plain(dict(result.attributes))
    return values


def purpose_of(trial: FrozenTrial) -> tuple[Purpose, str]:
    """What a trial is for, and which run it was where several have the same purpose, otherwise ""."""
    return Purpose(trial.user_attrs.get("purpose", Purpose.SEARCH.value)), trial.user_attrs.get("run", "")


def values_of(trial: FrozenTrial, levels: Mapping[str, tuple[Value, Value]]) -> dict[str, Value] | None:
    """What a trial ran with, the factors (by their good and bad value) and what it set besides; None of one that asks
    nothing."""
    known = trial.user_attrs
    ran_bad = known.get(SUBSET, () if known.get("purpose") == Purpose.GOOD_BASELINE else levels)
    values = {name: pair[name in ran_bad] for name, pair in levels.items()}
    if SUBSET in known or known.get("purpose") in TWO_ENDS:
        return values
    if WANTED not in known and SAFE not in known:
        return None
    return {**values, **(known[WANTED] if WANTED in known else known[SAFE].get("configuration", {}))}


def state_of(outcome: Outcome, known: bool) -> tuple[TrialState, list[float] | None]:
    """State and value of a finished trial in Optuna's words; the value is to be small.

    All passes have the same value: by default `optuna.importance` compares the best tenth of the trials, and all that
    are as good, with the rest, which tells then what a failure goes with. UNRESOLVED has no value and is a FAIL to
    Optuna, as its documentation asks. A trial before the search, whose parameters are not known, is PRUNED, so that
    Optuna computes nothing from it.
    """
    if outcome is Outcome.UNRESOLVED:
        return TrialState.FAIL, None
    return (TrialState.COMPLETE, [float(outcome is Outcome.FAIL)]) if known else (TrialState.PRUNED, None)
