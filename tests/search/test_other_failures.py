"""A setting that ends every run in another failure: no blame, no endless trying, and an honest answer."""

from __future__ import annotations

import pytest

from bisect_cfg import Bisection, Outcome
from bisect_cfg.store.interface import TrialResult

NAMES = ("a", "b", "c", "weight_decay", "d", "beta", "e", "f")


def crash_before_the_other_failure(configuration):
    if configuration["weight_decay"]:
        return TrialResult(Outcome.FAIL, "SIGFPE")
    if configuration["beta"]:
        return TrialResult(Outcome.FAIL, "OSError: Repo id must use alphanumeric chars")
    return TrialResult(Outcome.PASS)


@pytest.mark.parametrize("confirm", [1, 3])
def test_a_setting_that_breaks_every_run_otherwise(confirm):
    report = Bisection(
        dict.fromkeys(NAMES, False), dict.fromkeys(NAMES, True), crash_before_the_other_failure, isolation="none",
        confirm=confirm,
    ).run()  # fmt: skip
    assert [cause.parameters for cause in report.causes] == [("weight_decay",)]
    # Two baselines, a handful to narrow down, and about eight runs until it is plain that `beta` cannot be tried.
    assert len(report.rows) <= 20 + 4 * confirm
    assert not report.complete and any("another failure" in note for note in report.notes)
    assert report.safe_configuration["weight_decay"] is False and report.safe_configuration["beta"] is False
