"""How factors and results are written into an Optuna trial, and read again.

Values that Optuna cannot hold (dicts, lists, NaN) are stored as text in a categorical distribution. What was run is
always derived from the subset, never from these values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from bisect_cfg.common.configuration import UNSET, Factor, Outcome, Purpose, Value, is_number
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import mask, scrub
from bisect_cfg.store.interface import TrialResult

SUBSET, WANTED, SAFE, QUESTION = "subset", "wanted", "recommend", "question"
"""Attributes that hold the question of a trial, and so tell which phase it belongs to: the names of the factors that
are bad, for the search; the values that a reader wanted in place of the bad configuration's; a run for safe values; of
another run than these what it shows, in a word that no other run of the study has ("bad-config-1")."""

TWO_ENDS = frozenset({Purpose.BAD_BASELINE, Purpose.BAD_AGAIN, Purpose.WARM_START, Purpose.GOOD_BASELINE})
"""Purposes of the runs of the bad and of the good configuration."""

LOG_RATIO = 10.0
"""Numeric levels this far apart differ in magnitude (1e-6 and 1e-4): their distribution is logarithmic."""


def distribution_of(factor: Factor) -> BaseDistribution:
    """The Optuna distribution whose end points, or choices, are the two levels of the factor.

    Numbers of one kind become an int or float range, so that later steps can look between the levels; all
    else is categorical with the good level first.
    """
    # What is run comes from the configurations that the caller gives again, so secrets need not be kept.
    good, bad = mask(factor.good, factor.name), mask(factor.bad, factor.name)
    if is_number(good) and is_number(bad):
        low, high = min(good, bad), max(good, bad)
        log = low > 0 and high / low >= LOG_RATIO
        if isinstance(good, int) and isinstance(bad, int):
            return IntDistribution(low, high, log=log) if abs(low) < 2**53 > abs(high) else _choices(good, bad)
        return FloatDistribution(float(low), float(high), log=log)
    return _choices(good, bad)


def stored_value(factor: Factor, level: str) -> Value:
    """The value of a level ("good" or "bad") as Optuna stores it."""
    value = getattr(factor, level)
    distribution = distribution_of(factor)
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0 if level == "good" else 1]
    return float(value) if isinstance(distribution, FloatDistribution) else value


def _choices(good: Value, bad: Value) -> CategoricalDistribution:
    texts = []
    for value in (good, bad):
        plain = value is None or isinstance(value, (bool, int, str)) or is_number(value)
        texts.append(value if plain else as_text(value))
    if texts[0] == texts[1]:  # True and 1
        texts = [f"{as_text(good)} (good)", f"{as_text(bad)} (bad)"]
    return CategoricalDistribution(tuple(texts))


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
    a = trial.user_attrs
    rest = a.get("result") or {}
    return TrialResult(
        Outcome(rest.get("reported", Outcome.UNRESOLVED.value)),
        a.get("signature"),
        rest.get("message", ""),
        float(a.get("seconds") or 0.0),
        rest.get("step"),
        a.get("attributes") or {},
    )


def purpose_of(trial: FrozenTrial) -> tuple[Purpose, str]:
    """What a trial is for, and which run it was where several have the same purpose, otherwise ""."""
    return Purpose(trial.user_attrs.get("purpose", Purpose.SEARCH.value)), trial.user_attrs.get("run", "")


def values_of(trial: FrozenTrial, levels: Mapping[str, tuple[Value, Value]]) -> dict[str, Value] | None:
    """What a trial ran with, the factors and what it set besides; None of one that asks nothing.

    Args:
        trial: of a study.
        levels: factor -> its good and its bad value.
    """
    known = trial.user_attrs
    if SUBSET in known:
        return {name: pair[name in known[SUBSET]] for name, pair in levels.items()}
    if known.get("purpose") in TWO_ENDS:
        return {
            name: good if known["purpose"] == Purpose.GOOD_BASELINE else bad for name, (good, bad) in levels.items()
        }
    if WANTED not in known and SAFE not in known:
        return None
    told = known[WANTED] if WANTED in known else known[SAFE].get("configuration", {})
    return {**{name: bad for name, (_, bad) in levels.items()}, **told}


def result_attributes(result: TrialResult, outcome: Outcome) -> JsonObject:
    """Few attributes, as each is a transaction of its own: what people look at singly, the rest together."""
    values: JsonObject = {
        "result": {
            "reported": result.outcome.value,
            "message": scrub(result.message),
            "step": result.step,
        },
        "seconds": round(result.seconds, 6),
        "outcome": outcome.value,
    }
    if result.signature is not None:
        values["signature"] = result.signature
    if result.attributes:
        values["attributes"] = plain(dict(result.attributes))
    return values


OBJECTIVE = "given up (from 1: only a short run; 3: fails)"
"""What the value of a trial is called in Optuna's plots and in its dashboard."""

SHORT, FAILS = 1.0, 3.0
"""What is added for a trial of which no more is known than that it did not fail in a short run, and the value of one
that fails: so the best trial is one that trains healthily, and of these the one that gives up least."""


def state_of(outcome: Outcome, given_up: float, healthy: bool) -> tuple[TrialState, list[float] | None]:
    """State and value of a finished trial in Optuna's words; the value is to be small.

    Args:
        outcome: of the trial. UNRESOLVED has no value and is a FAIL to Optuna, as its documentation asks.
        given_up: how much of what the user wished for it does without, from 0 to 1; see `given_up`.
        healthy: whether it was looked at for health, not merely for the failure under study.
    """
    if outcome is Outcome.UNRESOLVED:
        return TrialState.FAIL, None
    if outcome is Outcome.FAIL:
        return TrialState.COMPLETE, [FAILS]
    return TrialState.COMPLETE, [given_up if healthy else SHORT + given_up]


def given_up(
    params: Mapping[str, Value], factors: Sequence[Factor], weights: Mapping[str, float], besides: int = 0
) -> float:
    """How much of what the user wished for a trial does without: 0 with all bad values, 1 with all good ones.

    Args:
        params: of the trial, as Optuna stores them; a factor that is not among them has some third value, and counts as
            given up.
        factors: of the study.
        weights: name -> how much it weighs, 1 if missing.
        besides: so many settings have other values besides, each of which weighs 1.
    """
    total = lost = float(besides)
    for factor in factors:
        weight = weights.get(factor.name, 1.0)
        total += weight
        lost += weight * (_way(factor, params[factor.name]) if factor.name in params else 1.0)
    return lost / total if total else 0.0


def _way(factor: Factor, value: Value) -> float:
    """How far a value lies on the way from the bad level (0) to the good one (1), as Optuna stores them."""
    good, bad = stored_value(factor, "good"), stored_value(factor, "bad")
    distribution = distribution_of(factor)
    if isinstance(distribution, CategoricalDistribution):
        return 0.0 if value == bad else 1.0
    scale = math.log if distribution.log else float
    return abs((scale(value) - scale(bad)) / (scale(good) - scale(bad)))
