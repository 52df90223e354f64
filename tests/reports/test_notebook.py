"""A study in a notebook: frames, figures, and what a cell shows."""

from __future__ import annotations

from pathlib import Path

import bisect_cfg
from tests.reports.test_page import study

HOSTILE = "<script>alert(1)</script>"


def test_a_study_is_loaded_with_its_frames(tmp_path: Path) -> None:
    report = bisect_cfg.load(study(tmp_path / "s"))
    assert report.status == "isolated" and report.complete and report.causes[0].parameters == ("bf16",)
    assert list(report.trials["tested"]) == [
        "your configuration", "the good configuration", "yours without learning_rate", "yours without bf16"
    ]  # fmt: skip
    assert list(report.trials["bf16"]) == [True, False, True, False]
    assert list(report.metrics.columns) == ["trial", "outcome", "step", "metric", "value"]
    assert len(report.metrics) == 2 * (3 + 10 + 3 + 10)
    assert "bf16 = True" in str(report) and "bf16 = True" in report._repr_html_()


def test_every_plot_is_a_figure_and_one_without_data_says_so(tmp_path: Path) -> None:
    report = bisect_cfg.load(study(tmp_path / "s", metrics=("loss", HOSTILE)))
    matrix = report.plot_matrix()
    assert [list(row) for row in matrix.data[0].z] == [[1.0, 0.0, 1.0, 0.0], [0.5, 0.0, 0.0, 0.5]]
    assert list(matrix.data[1].marker.symbol) == ["x", "circle", "x", "circle"]
    titles = [one.text for one in report.plot_traces().layout.annotations]
    assert titles == ["loss", "&lt;script&gt;alert(1)&lt;/script&gt;"]
    assert report.plot_traces("loss").layout.title.text == "loss"
    for plot in (report.plot_suspicion, report.plot_ranges, report.plot_frontier):
        figure = plot()
        assert len(figure.data) == 0 and "study" in figure.layout.annotations[0].text
