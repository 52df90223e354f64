"""A study in a notebook: the report with its plots as Plotly's figures, and what was traced as frames."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.reports import figures
from bisect_cfg.reports.figures import COLOURS, FAIL, PASS, Plot
from bisect_cfg.reports.page import answer_lines, rows
from bisect_cfg.reports.recorded import NO_METRICS, Recorded, asked, level, read
from bisect_cfg.reports.text import show
from bisect_cfg.study.causes import Cause, Claim, Correction, Evidence, Report

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

SHADES = [[0.0, "rgba(139,145,156,.12)"], [0.25, "#b9bec7"], [0.5, "#4a5260"], [0.75, "#f0b3a8"], [1.0, FAIL]]
"""Of the matrix: good, another value, yours; and the last two again in a cause."""

ROW_HEIGHT, AROUND = 22, 150
"""Pixels of a row of the matrix, and of what is around it."""

COLUMNS = 2
"""Traces side by side."""


@dataclass(frozen=True)
class StudyReport(Report):
    """A study read from its folder: what `bisect` and `load` return.

    Example:
        ```python
        report = bisect_cfg.load("bisect-cfg-studies/train")
        report.plot_traces("loss", "entropy")
        report.metrics.query("metric == 'grad_norm'").groupby("trial").value.max()
        ```

    Attributes:
        recorded: what lies in the folder.
    """

    recorded: Recorded = field(default=Recorded(Path(), {}), repr=False)

    @property
    def folder(self) -> Path:
        """Of the study."""
        return self.recorded.folder

    @property
    def trials(self) -> pandas.DataFrame:
        """One row a run: number, outcome ("pass", "fail", "unresolved"; "running" if it is), signature of the failure,
        seconds, step (at which it failed, or how many it trained), purpose, reason, companions, tested (in words), then
        one column a factor with the value it had."""
        import pandas

        levels = self.recorded.levels
        told = ("number", "outcome", "signature", "seconds", "step", "purpose", "reason", "companions")
        return pandas.DataFrame(
            [
                {**{name: row.get(name) for name in told}, "tested": asked(row, levels), **row["values"]}
                for row in self.recorded.trials
            ]
        )

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row a number that a run traced: trial (its number), outcome of that trial, step, metric (its name),
        value."""
        import pandas

        found = [
            (row["number"], row["outcome"], one["step"], name, float(value))
            for row in self.recorded.trials
            for one in self.recorded.metrics(row)
            for name, value in one.items()
            if name not in NO_METRICS and isinstance(value, (int, float))
        ]
        return pandas.DataFrame(found, columns=["trial", "outcome", "step", "metric", "value"])

    # ------------------------------------------------------------------------------------------------------- plots

    def plot_matrix(self) -> Figure:
        """Factors by trials: filled where a trial had the user's value, the outcome on top."""
        import plotly.graph_objects as go

        recorded, levels = self.recorded, self.recorded.levels
        trials = [row for row in recorded.trials if row["values"]]
        places = list(range(len(trials)))
        shades = {"good": 0.0, "other": 0.25, "bad": 0.5}
        z, words = [], []
        for name in levels:
            of = [level(row["values"], name, levels) for row in trials]
            guilty = name in recorded.guilty
            z.append([shades[one] + (0.5 if guilty and one != "good" else 0.0) for one in of])
            words.append([figures.label(f"{name} = {show(row['values'].get(name))}") for row in trials])
        heat = {
            "type": "heatmap", "x": places, "y": list(range(1, len(levels) + 1)), "z": z, "text": words,
            "zmin": 0, "zmax": 1, "colorscale": SHADES, "showscale": False, "xgap": 2, "ygap": 2,
            "hovertemplate": "trial %{customdata}<br>%{text}<extra></extra>",
            "customdata": [[row["number"] for row in trials] for _ in levels],
        }  # fmt: skip
        outcomes = {
            "type": "scatter", "mode": "markers", "x": places, "y": [0] * len(trials), "showlegend": False,
            "marker": {"size": 11, "color": [COLOURS.get(row["outcome"], figures.UNRESOLVED) for row in trials],
                       "symbol": ["x" if row["outcome"] == "fail" else "circle" for row in trials]},
            "text": [
                "<br>".join(map(figures.label, (f"trial {one.number}: {one.what}", one.came, one.reason)))
                for one in rows(replace(recorded, result={**recorded.result, "trials": trials}))
            ],
            "hovertemplate": "%{text}<extra></extra>",
        }  # fmt: skip
        names = ["outcome", *(figures.label(name) for name in levels)]  # by number: a heatmap has every category
        return go.Figure([heat, outcomes]).update_layout(
            template="plotly_white",
            height=AROUND + ROW_HEIGHT * len(names),
            xaxis={"tickvals": places, "ticktext": [row["number"] for row in trials], "side": "top", "title": "trial"},
            yaxis={"tickvals": list(range(len(names))), "ticktext": names, "autorange": "reversed", "automargin": True},
        )

    def plot_suspicion(self) -> Figure:
        """How the suspicion of each factor moved from trial to trial."""
        return _figure(list(filter(None, [figures.suspicion(self.recorded)])), "This study recorded no suspicion.")

    def plot_traces(self, *metrics: str) -> Figure:
        """What the runs traced, step by step; those that the answer rests on in full.

        Args:
            *metrics: names; none for those that tell most.
        """
        return _figure(figures.traces(self.recorded, metrics), "No run of this study has traced anything.", COLUMNS)

    def plot_ranges(self) -> Figure:
        """Safe ranges on their natural scale: asked for, failed, healthy, recommended, published."""
        return _figure(figures.ranges(self.recorded), "No range was looked for in this study.")

    def plot_frontier(self) -> Figure:
        """How far two settings can go together, where it was mapped (``frontier=20``)."""
        return _figure(figures.frontiers(self.recorded), "No frontier was mapped in this study: frontier=RUNS does it.")

    # -------------------------------------------------------------------------------------------------------- text

    def __str__(self) -> str:
        return "\n".join(
            f"{label:<13}{''.join(words for _, words in pieces)}".rstrip()
            for label, pieces in answer_lines(self.recorded)
        )

    def _repr_html_(self) -> str:
        """The notebook's view: the answer in the words of the terminal, then every trial."""
        e = html.escape
        lines = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{e(label)}</th>"
            f"<td style='text-align:left'>{''.join(map(_styled, pieces))}</td></tr>"
            for label, pieces in answer_lines(self.recorded)
        )
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("trial", "outcome", "tested", "asked"))
        every = "".join(
            f"<tr><td>{row.number}</td><td style='text-align:left;color:{COLOURS.get(row.outcome, 'inherit')}'>"
            f"{e(row.came)}</td><td style='text-align:left'>{e(row.what)}</td>"
            f"<td style='text-align:left'>{e(row.reason)}</td></tr>"
            for row in rows(self.recorded)
        )
        return (
            f"<table>{lines}</table><details><summary>every trial</summary>"
            f"<table><tr>{head}</tr>{every}</table></details>"
        )


def load(folder: str | Path) -> StudyReport:
    """A study from its folder: finished, running, or interrupted. Runs nothing.

    Args:
        folder: what `bisect-cfg bisect` has written.

    Returns:
        The report, with plots and frames.

    Raises:
        InputError: there is no study.
    """
    recorded = read(Path(folder))
    result = recorded.result
    found = result["recommendation"]
    rate, interval = result["reproduction"]["rate"], result["reproduction"]["interval_95"]
    return StudyReport(
        result["status"],
        tuple(map(_cause, result["causes"])),
        tuple(Correction(tuple(one["parameters"]), _claim(one["passes"])) for one in result["corrections"]),
        result["complete"],
        found["configuration"] if found is not None else None,
        (result["failure"] or {}).get("signature"),
        tuple((tuple(one["settings"]), tuple(one["hide"])) for one in result["masking"]),
        rate,
        (interval[0], interval[1]) if interval else None,
        tuple(result["notes"]),
        seconds=result["seconds"] or 0.0,
        recommendation=found,
        recorded=recorded,
    )


def with_plots(report: Report, folder: Path) -> StudyReport:
    """A report as it came, with what lies in the study's folder."""
    return StudyReport(**{one.name: getattr(report, one.name) for one in fields(Report)}, recorded=read(folder))


def _cause(known: JsonObject) -> Cause:
    evidence = known["evidence"]
    without = {name: _claim(claim) for name, claim in evidence["passes_without"].items()}
    return Cause(
        tuple(sorted(known["parameters"])),
        known["parameters"],
        tuple(known["companions"]),
        known["signature"],
        Evidence(_claim(evidence["fails"]), without),
        tuple(known["inseparable"]),
    )


def _claim(known: JsonObject) -> Claim:
    subset = None if known["subset"] is None else tuple(known["subset"])
    return Claim(subset, known["seen"], known["runs"], tuple(known["trials"]), known["note"])


def _styled(piece: tuple[str, str]) -> str:
    style, words = piece
    colours = {"red": FAIL, "green": PASS, "yellow": figures.UNRESOLVED}
    css = [f"color:{colour}" for name, colour in colours.items() if name in style]
    css += ["font-weight:bold"] * ("bold" in style) + ["opacity:.65"] * ("dim" in style)
    return f"<span style='{';'.join(css)}'>{html.escape(words)}</span>" if css else html.escape(words)


def _figure(plots: Sequence[Plot], otherwise: str, columns: int = 1) -> Figure:
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
        return made.update_layout(template="plotly_white", title=figures.label(one.title))
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
    return made.update_layout(template="plotly_white", showlegend=False, height=height)
