"""How factors and results are written into a trial, and that they are read again."""

from __future__ import annotations

import json

from hypothesis import assume, example, given
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial

from bisect_cfg.common.configuration import UNSET, Factor, Outcome, equal
from bisect_cfg.store.encoding import (
    distribution_of,
    result_attributes,
    result_of,
    stored_value,
)
from bisect_cfg.store.interface import TrialResult

plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
levels = plain | st.lists(plain, max_size=3) | st.dictionaries(st.text(max_size=4), plain, max_size=3) | st.just(UNSET)
texts = st.text(st.characters(codec="utf-8"), max_size=20)


@example(True, 1)
@given(levels, levels)
def test_every_level_fits_the_distribution_of_its_factor(good: object, bad: object) -> None:
    assume(not equal(good, bad))
    factor = Factor("x", good, bad)
    distribution = distribution_of(factor)
    stored = {level: stored_value(factor, getattr(factor, level)) for level in ("good", "bad")}
    trial = create_trial(params={"x": stored["bad"]}, distributions={"x": distribution}, value=1.0)
    assert trial.params == {"x": stored["bad"]}
    for value in stored.values():  # a database holds it, and it comes back as it was
        known = distribution.to_external_repr(distribution.to_internal_repr(value))
        assert known == value and type(known) is type(value)
    if not (isinstance(good, float) or isinstance(bad, float)):  # whole numbers may be the same as a float
        assert stored["good"] != stored["bad"]


@given(
    st.sampled_from(Outcome),
    st.none() | texts,
    st.text("abc ", max_size=9),
    st.floats(0, 1e6).map(lambda seconds: round(seconds, 6)),
    st.none() | st.integers(0, 10**9),
    st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=3),
)
def test_a_result_is_read_as_it_was_written(outcome, signature, message, seconds, step, attributes) -> None:
    result = TrialResult(outcome, signature, message, seconds, step, attributes)
    written = json.loads(json.dumps(result_attributes(result, Outcome.UNRESOLVED)))
    trial = create_trial(state=TrialState.FAIL, user_attrs=written)
    assert result_of(trial) == result
    assert written["outcome"] == "unresolved"  # the verdict, beside what the runner reported
