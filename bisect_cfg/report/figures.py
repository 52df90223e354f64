"""The plots of a study: what is drawn, as plain data in the form of Plotly's figures.

Built without Plotly itself, which takes a third of a second to import and checks every point: a page with two thousand
trials is made of these as they are. `figure_of` and `matrix` make figures for a notebook. Texts of others (names of
metrics, values) are escaped, since Plotly reads tags in them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bisect_cfg.common.configuration import Status, is_number
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.common.words import clean, count, show
from bisect_cfg.report.recorded import NO_METRICS, Recorded, finite, rows, shared, tested
from bisect_cfg.store.causes import Trial

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PASS, FAIL, UNRESOLVED, NEUTRAL, ACCENT = "#1f9e7c", "#e0523a", "#d59a1c", "#8b919c", "#5a7fd6"
"""Colours of middle lightness, which stand out on white and on black; red and green differ in blue as well."""

COLOURS = {"pass": PASS, "fail": FAIL, "unresolved": UNRESOLVED}
LINES = ("solid", "dot", "dash", "dashdot")
"""Styles of the lines of one colour, in turn, where each is one setting."""

KNOWN = (
    "grad_norm", "loss", "entropy", "reward", "reward_std", "kl", "learning_rate", "completions/mean_length",
    "gpu_peak_bytes", "step_time",
)  # fmt: skip
"""Metrics that tell most of a GRPO run, in the order in which they are drawn."""

PLOTTED = 8
"""So many metrics are drawn; a frame of a notebook has them all."""

MOST_TRIALS = 40
"""So many trials are drawn at most where there is no answer yet; then only those that it rests on."""

DECADES = 1000.0
"""Metrics whose highest value is this many times the median are drawn on a logarithmic scale: one that explodes would
hide all else."""

NAMED = 8
"""So many of the most suspected factors are named in a plot; the others are grey."""


SHADES = [[0.0, "rgba(139,145,156,.12)"], [0.25, "#b9bec7"], [0.5, "#4a5260"], [0.75, "#f0b3a8"], [1.0, FAIL]]
"""Of the matrix: good, another value, yours; and the last two again in a cause."""

ROW_HEIGHT, AROUND = 22, 90
"""Pixels of a row of the matrix, and of what is around it."""

MARGINS = {"t": 60, "b": 20, "r": 20}
"""Around a plot of a notebook, in pixels: a cell has a border of its own."""

COLUMNS = 2
"""Plots side by side in a notebook."""


@dataclass(frozen=True)
class Plot:
    """One plot."""

    name: str  # short, of letters; unique in a report
    title: str  # what it shows, as a reader is told
    data: list[JsonObject]  # Plotly's traces
    layout: JsonObject  # Plotly's layout, without colours and fonts of the page
    note: str = ""  # a sentence on what was left out; "" if nothing was


def label(words: object) -> str:
    """A text as Plotly may show it: cleaned, and without tags."""
    return html.escape(clean(words), quote=False)


# ------------------------------------------------------------------------------------------------------- suspicion


def suspicion(recorded: Recorded) -> Plot | None:
    """How the suspicion of each factor moved from trial to trial; None if the search recorded none."""
    answer = recorded.answer
    weighed = {trial.number: trial.suspicion for trial in answer.trials if trial.suspicion}
    if not weighed:
        return None
    guilty = answer.guilty
    names, numbers = list(next(iter(weighed.values()))), list(weighed)
    series = {name: [known.get(name, 0.0) for known in weighed.values()] for name in names}
    if answer.status == Status.ISOLATED:
        last = max(numbers)
        numbers = [*numbers, next((trial.number for trial in answer.trials if trial.number > last), last + 1)]
        series = {name: [*known, float(name in guilty)] for name, known in series.items()}
    named = sorted(names, key=lambda name: (name not in guilty, -sum(series[name])))[:NAMED]
    data = []
    for name in [*(name for name in names if name not in named), *reversed(named)]:
        colour = FAIL if name in guilty else ACCENT if name in named else NEUTRAL
        data.append(
            {
                "type": "scatter", "mode": "lines", "name": label(name), "x": numbers,
                "y": [round(value, 3) for value in series[name]],
                "line": {"shape": "hv", "color": colour, "width": 3 if name in guilty else 1.6 if name in named else 1,
                         "dash": LINES[named.index(name) % 4] if name in named else "solid"},
                "opacity": 1 if name in named else 0.5,
                "hovertemplate": f"{label(name)}: %{{y:.0%}} when trial %{{x}} was asked<extra></extra>",
                "showlegend": name in named,
            }
        )  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "trial"}, "tickformat": "d", **({"dtick": 1} if len(numbers) < 20 else {})},
        "yaxis": {"range": [-0.02, 1.04], "tickformat": ".0%"},
        "legend": {"traceorder": "reversed"},
        "height": 400,
    }
    left = len(names) - len(named)
    note = f"{count(left, 'further setting')} in grey." if left > 0 else ""
    return Plot("suspicion", "How suspicion moved", data, layout, note)


# ---------------------------------------------------------------------------------------------------------- traces


def traces(recorded: Recorded, names: Sequence[str] = ()) -> list[Plot]:
    """One plot a metric (of those that tell most, where none is named), with the trials that the answer rests on."""
    every = recorded.answer.trials
    shown = [one for one in every if one.number in recorded.shown_in_full] if recorded.answer.causes else every
    rows = {trial.number: recorded.metrics(trial) for trial in shown[:MOST_TRIALS]}
    trials = sorted((one for one in shown if rows.get(one.number)), key=lambda one: one.failed)  # failures lie on top
    chosen = list(names) or _chosen(row for one in rows.values() for row in one)
    plots = (_trace_plot(recorded, number, name, trials, rows) for number, name in enumerate(chosen))
    return [plot for plot in plots if plot.data]


def _chosen(rows: Iterable[JsonObject]) -> list[str]:
    """Which metrics are drawn: those that are known, then the first of somebody's own."""
    present = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, bool))
    known = [name for name in KNOWN if name in present]
    return [*known, *(name for name in present if name not in KNOWN and name not in NO_METRICS)][:PLOTTED]


def _short(value: float | None) -> float | None:
    """Five digits: what a plot can show, in half the bytes."""
    return None if value is None else float(f"{value:.5g}")


def _trace_plot(
    recorded: Recorded, number: int, name: str, trials: Sequence[Trial], rows: Mapping[int, list[JsonObject]]
) -> Plot:
    data, everything = [], []
    for trial in trials:
        steps = [row["step"] for row in rows[trial.number] if name in row]
        values = [_short(finite(row[name])) for row in rows[trial.number] if name in row]
        drawn = [value for value in values if value is not None]
        if not drawn:
            continue
        everything += drawn
        outcome = trial.outcome if trial.outcome in COLOURS else "unresolved"
        said = f"trial {trial.number}: {tested(trial, recorded.answer)}"
        data.append(
            _line(said, steps, values, {"color": COLOURS[outcome], "width": 2 if trial.failed else 1.4}, outcome)
        )
        if trial.failed:
            data.append(_failing(trial, steps, values))
    axis: JsonObject = {"exponentformat": "e", "nticks": 6}
    if everything and min(everything) > 0 and max(everything) >= DECADES * median(everything):
        axis |= {"type": "log", "dtick": 1}
    layout = {
        "xaxis": {"title": {"text": "optimizer step"}, "rangemode": "tozero"},
        "yaxis": axis,
        "height": 300,
        "showlegend": False,
    }
    return Plot(f"trace-{number}", clean(shared(name)), data, layout)


def _line(said: str, steps: list[float], values: list[float | None], line: JsonObject, outcome: str) -> JsonObject:
    return {
        "type": "scatter", "mode": "lines", "name": label(said), "x": steps, "y": values, "line": line,
        "hovertemplate": f"{label(said)}<br>step %{{x}}: %{{y:.4g}}<extra>{outcome}</extra>", "meta": "evidence",
    }  # fmt: skip


def _failing(trial: Trial, steps: list[float], values: list[float | None]) -> JsonObject:
    """Where a trial failed: a cross on its line, at its last value before or at that step."""
    step = trial.step if is_number(trial.step) else steps[-1]
    known = [(at, value) for at, value in zip(steps, values, strict=True) if value is not None and at <= step]
    at, value = known[-1] if known else (step, next((value for value in values if value is not None), 0.0))
    return {
        "type": "scatter", "mode": "markers", "x": [step], "y": [value], "name": f"trial {trial.number} fails",
        "marker": {"symbol": "x", "size": 10, "color": FAIL, "line": {"width": 1, "color": "rgba(255,255,255,.7)"}},
        "hovertemplate": f"trial {trial.number} fails at step {step}<extra></extra>", "meta": "failing",
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------ in a notebook


def figure_of(plots: Sequence[Plot], otherwise: str) -> Figure:
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
        return made.update_layout(template="plotly_white", title=label(one.title), margin=MARGINS)
    down = -(-len(plots) // COLUMNS)
    made = make_subplots(down, COLUMNS, subplot_titles=[label(one.title) for one in plots])
    for number, one in enumerate(plots):
        row, column = number // COLUMNS + 1, number % COLUMNS + 1
        made.add_traces(one.data, rows=row, cols=column)
        layout = {name: value for name, value in one.layout["xaxis"].items() if name != "title"}
        made.update_xaxes(layout, row=row, col=column)
        made.update_yaxes({name: v for name, v in one.layout["yaxis"].items() if name != "title"}, row=row, col=column)
    height = max(one.layout["height"] for one in plots) * down
    return made.update_layout(template="plotly_white", showlegend=False, height=height, margin=MARGINS)


def matrix(recorded: Recorded) -> Figure:
    """Factors by trials: filled where a trial had the user's value, the outcome on top."""
    import plotly.graph_objects as go

    answer, levels = recorded.answer, recorded.answer.levels
    trials = [trial for trial in answer.trials if trial.values]
    places = list(range(len(trials)))
    shades = {"good": 0.0, "other": 0.25, "bad": 0.5}
    z, words = [], []
    for name in levels:
        of = [answer.level(trial, name) for trial in trials]
        guilty = name in answer.guilty
        z.append([shades[one] + (0.5 if guilty and one != "good" else 0.0) for one in of])
        words.append([label(f"{name} = {show(trial.values.get(name), name)}") for trial in trials])
    heat = {
        "type": "heatmap", "x": places, "y": list(range(1, len(levels) + 1)), "z": z, "text": words,
        "zmin": 0, "zmax": 1, "colorscale": SHADES, "showscale": False, "xgap": 2, "ygap": 2,
        "hovertemplate": "trial %{customdata}<br>%{text}<extra></extra>",
        "customdata": [[trial.number for trial in trials] for _ in levels],
    }  # fmt: skip
    outcomes = {
        "type": "scatter", "mode": "markers", "x": places, "y": [0] * len(trials), "showlegend": False,
        "marker": {"size": 11, "color": [COLOURS.get(trial.outcome, UNRESOLVED) for trial in trials],
                   "symbol": ["x" if trial.outcome == "fail" else "circle" for trial in trials]},
        "text": [
            "<br>".join(map(label, (f"trial {one.number}: {one.what}", one.came, one.reason)))
            for one in rows(recorded.only(trials).answer)
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    names = ["outcome", *(label(name) for name in levels)]  # by number: a heatmap has every category
    return go.Figure([heat, outcomes]).update_layout(
        template="plotly_white",
        margin=MARGINS,
        height=AROUND + ROW_HEIGHT * len(names),
        xaxis={"tickvals": places, "ticktext": [trial.number for trial in trials], "side": "top", "title": "trial"},
        yaxis={"tickvals": list(range(len(names))), "ticktext": names, "autorange": "reversed", "automargin": True},
    )
