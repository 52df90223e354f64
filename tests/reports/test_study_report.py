"""The report of a bisection as Python and a notebook show it."""

from __future__ import annotations

import pytest

from bisect_cfg import Bisection
from bisect_cfg.common.configuration import RECORDED
from bisect_cfg.reports.notebook import StudyReport
from bisect_cfg.store.causes import wilson
from tests.reports import made


def test_the_page_escapes_and_says_what_is_open() -> None:
    def trial(configuration: dict) -> bool:
        if configuration["<b>"] == "<script>":
            raise ValueError("<i>loss</i>")
        return True

    good, bad = {"<b>": "a", "c": 1}, {"<b>": "<script>", "c": 2}
    report = Bisection(good, bad, trial, isolation="none", first=True).run()
    page = report._repr_html_()
    assert "<script>" not in page and "<i>" not in page and "&lt;script&gt;" in page
    assert "There may be other causes" in page
    assert f"(trial {report.causes[0].evidence.fails.trials[0]}" in repr(report.causes[0])


def test_a_function_is_told_as_a_script_is() -> None:
    text = str(found := made_by_a_function(first=False))
    assert text.splitlines()[:3] == [
        "Cause        lr = 1         good: 0.001",
        "             with warm = 0  good: 10",
        "             With them the trial fails: ValueError: no good at 7.",
    ]
    assert "Fails 4/4 with only them changed from the good configuration, passes 1/1 with only warm" in text
    assert "No other cause is left among the settings that differ." in text
    assert "Passes       yours without lr: " in text and text.splitlines()[-1].split(";")[0].strip() == (
        f"{len(found.trials)} trials"
    )
    assert "There may be other causes" in str(made_by_a_function(first=True))


def test_a_variable_that_is_not_set_is_called_so() -> None:
    good, bad = {"env.MODE": None, "beta": None}, {"env.MODE": "strict", "beta": 1}
    report = Bisection(good, bad, lambda c: c["env.MODE"] is None, isolation="none").run()
    assert "env.MODE = strict  good: not set" in str(report)


def made_by_a_function(first: bool) -> StudyReport:
    def trial(configuration: dict) -> bool:
        if configuration["lr"] > 0.1 and not configuration["warm"]:
            raise ValueError("no good at 7")
        return True

    good, bad = {"lr": 1e-3, "warm": 10, "other": 1}, {"lr": 1.0, "warm": 0, "other": 2}
    return Bisection(good, bad, trial, isolation="none", first=first).run()


def test_no_column_of_a_trial_may_be_the_name_of_a_setting() -> None:
    assert made.ROWS[0].record().keys() == RECORDED


@pytest.mark.parametrize(
    ("successes", "runs", "low", "high"), [(5, 5, 0.566, 1.0), (0, 5, 0.0, 0.434), (5, 10, 0.237, 0.763)]
)
def test_the_interval_of_a_rate(successes, runs, low, high) -> None:
    # Wilson 1927, as statsmodels.stats.proportion.proportion_confint(method="wilson") has it
    assert wilson(successes, runs) == pytest.approx((low, high), abs=1e-3)
