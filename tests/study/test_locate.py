"""Where a failure is told without a run under instruments."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from bisect_cfg.study.locate import locate
from tests.report.made import HEALTHY, findings, run
from tests.study.stand_ins import Runner, study_of

ONES = {"reward": math.inf, "rewards/format/mean": 0.5, "rewards/unit/mean": math.nan, "rewards/room/mean": math.inf}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ONES, "the reward function room"),
        ({"reward": math.nan, "rewards/a/mean": math.nan, "rewards/b/mean": math.nan}, "the reward functions a, b"),
    ],
)
def test_of_a_reward_that_is_not_finite_the_function_is_the_place(tmp_path, row, said) -> None:
    """Not the first operation on it, which is a consequence."""
    bad_run = run(tmp_path, HEALTHY)
    bad_run.traces.metrics.rows = [{"step": step, "loss": 0.0, **row} for step in (1, 2, 3)]
    study = study_of(tmp_path, Runner(tmp_path, findings(tmp_path).settings, lambda question: bad_run))
    study.target = SimpleNamespace(probed=True)
    study.find(bad_run=bad_run)
    locate(study)
    place = study.answer.place
    assert (place.step, place.operation, place.folder) == (1, said, "0") and not study.trials.ran
