"""Frames and figures of a notebook, made of what a study recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bisect_cfg.report import figures
from bisect_cfg.report.answer import Trial
from bisect_cfg.report.figures import Plot
from bisect_cfg.report.recorded import NO_METRICS, Recorded

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure


MARGINS = {"t": 60, "b": 20, "r": 20}
"""Around a plot, in pixels: a cell has a border of its own."""


def metrics_of(recorded: Recorded, trials: Iterable[Trial]) -> pandas.DataFrame:
    """What some trials traced: one row a number, with trial, outcome (of that trial), step, metric and value."""
    import pandas

    found = [
        (trial.number, trial.outcome, one["step"], name, float(value))
        for trial in trials
        for one in recorded.metrics(trial)
        for name, value in one.items()
        if name not in NO_METRICS and isinstance(value, (int, float))
    ]
    return pandas.DataFrame(found, columns=["trial", "outcome", "step", "metric", "value"])


def figure_of(plots: Sequence[Plot], otherwise: str, columns: int = 1) -> Figure:
    """Several plots as one figure, each with its title; a figure that says why if there are none."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    if not plots:
        blank = {"visible": False}
        said = {"text": otherwise, "showarrow": False, "font": {"size": 15}}
        return go.Figure().update_layout(template="plotly_white", xaxis=blank, yaxis=blank, annotations=[said])
    if len(plots) == 1:
        (one,) = plots
        made = go.Figure(one.data, one.layout)
        return made.update_layout(template="plotly_white", title=figures.label(one.title), margin=MARGINS)
    down = -(-len(plots) // columns)
    made = make_subplots(down, columns, subplot_titles=[figures.label(one.title) for one in plots])
    for number, one in enumerate(plots):
        row, column = number // columns + 1, number % columns + 1
        made.add_traces(one.data, rows=row, cols=column)
        layout = {name: value for name, value in one.layout["xaxis"].items() if name != "title"}
        made.update_xaxes(layout, row=row, col=column)
        made.update_yaxes({name: v for name, v in one.layout["yaxis"].items() if name != "title"}, row=row, col=column)
        for shape in one.layout.get("shapes", ()):
            made.add_shape({**shape, "yref": "y domain"}, row=row, col=column)
    height = max(one.layout["height"] for one in plots) * down
    return made.update_layout(template="plotly_white", showlegend=False, height=height, margin=MARGINS)
