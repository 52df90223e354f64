"""What only failing runs say."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.report.contrast import LINES, Contrast, StandsOut, Told, contrast, one_apart
from bisect_cfg.report.sentences import contrast_lines
from bisect_cfg.store.causes import Trial

DYING = ["Traceback (most recent call last):", "RuntimeError: planted"]


def told(values, *lines, metric="grad_norm", **besides) -> Told:
    return Told([{"step": at, "time": at * 9.0, metric: v, **besides} for at, v in enumerate(values, 1)], lines)


PASSING = [told([0.2, 0.5, 0.4, 0.3]), told([0.3, 0.6, 0.2, 0.3])]


def test_the_first_metric_beyond_the_range_of_the_passing_runs_is_said():
    found = contrast([told([0.4, 0.9, 7.0, 80.0])], PASSING)
    assert found == Contrast(StandsOut("grad_norm", 3, 7.0, 0.2, 0.6), ())
    assert contrast_lines(found) == ["failing runs have grad_norm 7 at step 3; passing ones 0.2 to 0.6"]
    broken = contrast([told([0.4, math.nan])], PASSING)
    assert broken.metric == StandsOut("grad_norm", 2, "nan", 0.2, 0.6)
    assert "grad_norm nan at step 2" in contrast_lines(broken)[0]


def test_what_is_usual_what_one_failing_run_lacks_and_what_follows_from_a_setting_are_not_said():
    assert contrast([told([0.4, 0.9, 0.1])], PASSING) is None, "a little outside is no more than other settings do"
    assert contrast([told([9.0]), told([0.4])], PASSING) is None
    rates = [told([1e-6] * 4, metric="learning_rate")]
    assert contrast([told([1e-2] * 4, metric="learning_rate")], rates) is None
    assert contrast([told([9.0])], [told([0.1, 0.2])]) is None, "two values are no range"
    assert contrast([], PASSING) is None and contrast([told([9.0])], []) is None


def test_lines_that_no_passing_run_has():
    """Whatever numbers are in them; not those of the failure itself, which is said elsewhere."""
    passing = [told([], "loading 3 rows", "saved in 0.3 s")]
    lines = ["loading 4 rows", "UserWarning: 2 tokens were cut", "UserWarning: 9 tokens were cut", "{'loss': 0.1}"]
    dying = [f"  3%|#   | 3/100{DYING[0]}", *DYING[1:]]
    found = contrast([told([], *lines, "late", *dying, "after"), told([], *lines[:2], *dying, "after")], passing)
    assert found == Contrast(None, ("UserWarning: 2 tokens were cut",))
    assert contrast_lines(found) == ["failing runs print: UserWarning: 2 tokens were cut"]


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), min_size=1, max_size=3))
def test_a_run_that_is_among_the_passing_ones_does_not_stand_out(runs):
    many = [told(values, *(f"line {'abc'[at % 3]}" for at in range(len(values)))) for values in runs]
    assert contrast(many[:1], many) is None
    found = contrast([Told([], [f"said {'x' * n}" for n in range(1, 9)])], many)
    assert len(found.lines) == LINES


def test_failing_runs_are_compared_with_passing_ones_that_differ_in_one_setting():
    """Not with those of a proof that needed other settings besides."""
    rows = [
        Trial(number, outcome.value, Purpose.SEARCH.value, values={name: name in bad for name in "abcd"})
        for number, outcome, bad in (
            (0, Outcome.FAIL, "abc"), (1, Outcome.PASS, "abd"), (2, Outcome.PASS, "acd"), (3, Outcome.FAIL, "abcd"),
            (4, Outcome.PASS, "ab"), (5, Outcome.FAIL, "abcd"), (6, Outcome.UNRESOLVED, "bcd"),
        )
    ]  # fmt: skip
    assert one_apart(rows, {1, 2, 4, 6}) == ([3, 5], [1, 2])
    assert one_apart(rows, {4}) == ([0], [4]) and one_apart(rows, set()) == ([], [])
