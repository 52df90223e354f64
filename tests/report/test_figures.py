"""The plots of a study as data, and what a report of a large one costs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bisect_cfg.report import figures
from bisect_cfg.report.html import page
from bisect_cfg.report.recorded import Recorded, read
from tests.report import large

TRIALS, STEPS, FACTORS = 60, 20, 12


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return read(large.study(tmp_path_factory.mktemp("large"), TRIALS, STEPS, FACTORS))


def test_suspicion_names_the_guilty_and_ends_at_the_answer(recorded: Recorded) -> None:
    plot = figures.suspicion(recorded)
    lines = {one["name"]: one for one in plot.data}
    assert len(lines) == FACTORS and lines["setting_0"]["line"]["color"] == figures.FAIL
    assert lines["setting_0"]["y"][-1] == 1.0 and lines["setting_5"]["y"][-1] == 0.0
    assert lines["setting_5"]["y"][:2] == [1.0, 0.5]
    assert [one["showlegend"] for one in plot.data].count(True) == figures.NAMED


def test_the_trials_that_the_answer_rests_on_are_drawn(recorded: Recorded) -> None:
    plots = figures.traces(recorded)
    assert [plot.title for plot in plots][:3] == ["grad_norm", "loss", "entropy"] and len(plots) == figures.PLOTTED
    of = {trial.number: trial for trial in recorded.answer.trials}
    lines = {int(line["name"].split()[1].rstrip(":")): line for line in plots[0].data if line["meta"] == "evidence"}
    assert lines.keys() == set(recorded.answer.evidence)
    assert all(len(line["x"]) == of[number].step for number, line in lines.items())
    crosses = [line["x"] for line in plots[0].data if line["meta"] == "failing"]
    assert crosses == [[STEPS // 2]] * sum(of[number].failed for number in lines)
    none = recorded.only(recorded.answer.trials[5:])
    assert {line["meta"] for plot in figures.traces(none) for line in plot.data} <= {"evidence", "failing"}


def test_the_matrix_has_each_level(recorded: Recorded) -> None:
    html = page(recorded)
    assert "trial matrix" in html.lower() and html.count('class="guilty"') == 2
    assert html.count("<td class=b>") > TRIALS and "<td class=o>" in html


@pytest.mark.slow
def test_two_thousand_trials_of_two_hundred_steps(tmp_path: Path) -> None:
    folder = large.study(tmp_path, 2000, 200)
    began = time.process_time()
    html = page(read(folder))
    assert time.process_time() - began < 30 and len(html.encode()) < 16e6
