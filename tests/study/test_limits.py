"""What is said when the budget is used up: right in number, and in the words of whoever has set the limit."""

from __future__ import annotations

import time

import pytest

from bisect_cfg.study.bisection import Bisection
from bisect_cfg.study.loop import Limits


@pytest.mark.parametrize(
    ("limits", "done", "said"),
    [
        (Limits(), 1000, ""),
        (Limits(2, flags=True), 1, ""),
        (Limits(1, flags=True), 1, "Stopped after 1 trial, as --max-trials asks."),
        (Limits(2), 3, "Stopped after 3 trials, as max_trials asks."),
        (Limits(None, time.monotonic() - 1, flags=True), 1, "Stopped when the time was up, as --max-seconds asks."),
        (Limits(None, time.monotonic() - 1), 1, "Stopped when the time was up, as max_seconds asks."),
        (Limits(None, time.monotonic() + 3600), 1, ""),
    ],
)
def test_why_it_stops(limits: Limits, done: int, said: str) -> None:
    assert limits.spent(done) == said


def test_a_bisection_says_it_in_the_words_of_its_caller() -> None:
    def passes(configuration: dict[str, int]) -> bool:
        return configuration["a"] == 0

    def stopped(**options: object) -> str:
        return Bisection({"a": 0}, {"a": 1}, passes, isolation="none", **options).run().notes[-1]

    assert stopped(max_trials=1) == "Stopped after 1 trial, as max_trials asks."
    assert stopped(limits=Limits(1, flags=True)) == "Stopped after 1 trial, as --max-trials asks."
