"""The report of a bisection as Python and a notebook show it."""

from __future__ import annotations

import dataclasses

import pytest

from bisect_cfg.configuration import RECORDED
from bisect_cfg.study.causes import wilson
from tests.reports import made


def test_the_page_escapes_and_says_what_is_open() -> None:
    from bisect_cfg import Bisection

    def trial(configuration: dict) -> bool:
        if configuration["<b>"] == "<script>":
            raise ValueError("<i>loss</i>")
        return True

    good, bad = {"<b>": "a", "c": 1}, {"<b>": "<script>", "c": 2}
    report = Bisection(good, bad, trial, isolation="none", first=True).run()
    page = report._repr_html_()
    assert "<script>" not in page and "<i>" not in page and "&lt;script&gt;" in page
    assert "There may be other causes." in page
    assert report.causes[0].evidence.trials and f"(trial {report.causes[0].evidence.fails.trials[0]}" in page


def test_printed_it_is_the_answer_and_its_evidence() -> None:
    text = str(made.REPORT)
    assert text.splitlines()[:2] == ["isolated: 1 cause in 4 trials", "  bf16=True (good: False)"]
    assert "fails 1/1 with SIGFPE" in text and "these are all the causes: yes" in text
    assert "not shown" in str(dataclasses.replace(made.REPORT, complete=False))


def test_no_column_of_a_trial_may_be_the_name_of_a_setting() -> None:
    assert made.ROWS[0].record().keys() == RECORDED


@pytest.mark.parametrize(
    ("successes", "runs", "low", "high"), [(5, 5, 0.566, 1.0), (0, 5, 0.0, 0.434), (5, 10, 0.237, 0.763)]
)
def test_the_interval_of_a_rate(successes, runs, low, high) -> None:
    # Wilson 1927, as statsmodels.stats.proportion.proportion_confint(method="wilson") has it
    assert wilson(successes, runs) == pytest.approx((low, high), abs=1e-3)
