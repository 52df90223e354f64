"""The two ends of the search: what is asked, and when there is nothing to isolate."""

from __future__ import annotations

import pytest

from bisect_cfg.search import Ask, Done, Problem, Wait
from bisect_cfg.search.ends import AGAIN, GONE, QUIET, STREAK, ends
from bisect_cfg.search.problem import Counts
from tests.search.oracles import recorded, subset

SURE = "abc:F -:P abc:F "
"""Both ends as they should be, the failure seen twice."""


@pytest.mark.parametrize(
    ("runs", "asked", "words"),
    [
        ("", "abc", "Does the bad configuration fail?"),
        ("abc:F", "-", "Does the good configuration pass?"),
        ("abc:F -:P", "abc", "fail again"),
        ("abc:F -:P" + (AGAIN - 1) * " abc:P", "abc", "fail again"),
        (SURE + QUIET * "a:P ", "abc", f"The last {QUIET} runs passed"),
        (SURE + QUIET * "a:P " + (GONE - 1) * "abc:P ", "abc", "still fail"),
        (SURE + STREAK * "a:UOSError ", "-", "ended in OSError"),
        (SURE + "a:UOSError abc:F " + (STREAK - 1) * "a:UOSError ", "-", "ended in OSError"),
    ],
)
def test_what_is_run_before_anything_is_isolated(runs: str, asked: str, words: str) -> None:
    question = ends(Problem(("a", "b", "c"), confirm=None), Counts(recorded(runs)))
    assert isinstance(question, Ask) and question.subset == subset(asked) and words in question.reason


@pytest.mark.parametrize(
    ("runs", "status", "words"),
    [
        ("abc:U", "inconclusive", "neither passed nor failed"),
        ("abc:P", "no_failure", "nothing to isolate"),
        ("abc:F -:U", "inconclusive", "did not run to its end"),
        ("abc:F -:F", "baseline_fails", "not among the settings that differ"),
        ("abc:F -:P a:UOSError -:F", "inconclusive", "another failure (OSError)"),
        ("abc:F -:P" + AGAIN * " abc:P", "inconclusive", f"1 of {AGAIN + 1} runs: too rarely"),
        (SURE + QUIET * "a:P " + GONE * "abc:P ", "inconclusive", f"in none of the last {GONE}"),
        (SURE + (STREAK - 1) * "a:UOSError " + "-:UOSError", "inconclusive", "the good configuration too"),
    ],
)
def test_when_there_is_nothing_to_isolate(runs: str, status: str, words: str) -> None:
    answer = ends(Problem(("a", "b", "c"), confirm=None), Counts(recorded(runs)))
    assert isinstance(answer, Done) and answer.conclusion.status == status
    assert words in " ".join(answer.conclusion.notes)
    assert answer.conclusion.safe == (subset("abc") if status == "no_failure" else None)


@pytest.mark.parametrize(
    "runs",
    [
        SURE,
        "abc:F -:P abc:?",
        "abc:F -:P ab:F",  # the failure was seen twice, though not of the whole
        SURE + (QUIET - 1) * "a:P ",
        SURE + QUIET * "a:P " + "b:F",
        SURE + (STREAK - 1) * "a:UOSError ",
        SURE + 2 * "a:UOSError " + "b:P " + (STREAK - 2) * "a:UOSError ",
        SURE + 2 * "a:UOSError " + (STREAK - 2) * "a:UKeyError ",
        SURE + STREAK * "a:U ",  # nobody knows whether they ended alike
    ],
)
def test_nothing_stands_in_the_way(runs: str) -> None:
    assert ends(Problem(("a", "b", "c"), confirm=None), Counts(recorded(runs))) is None


def test_one_failure_is_enough_if_the_user_says_how_often() -> None:
    assert ends(Problem(("a", "b", "c"), confirm=1), Counts(recorded("abc:F -:P"))) is None


def test_the_good_configuration_is_waited_for() -> None:
    runs = recorded(SURE + STREAK * "a:UOSError " + "-:?")
    assert isinstance(ends(Problem(("a", "b", "c")), Counts(runs)), Wait)


def test_without_a_difference_there_is_no_question() -> None:
    assert ends(Problem(()), Counts([])).conclusion.status == "no_failure"
