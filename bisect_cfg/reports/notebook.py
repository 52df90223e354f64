"""A study in a notebook: the report with its plots as Plotly's figures, and what was traced as frames."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask
from bisect_cfg.reports import figures
from bisect_cfg.reports.answer import of_report
from bisect_cfg.reports.asked import Asked, Wanted, asked_of
from bisect_cfg.reports.factors import Factors, recorded_factors
from bisect_cfg.reports.figures import COLOURS, FAIL, PASS
from bisect_cfg.reports.frames import MARGINS, figure_of, metrics_of
from bisect_cfg.reports.isolated import print_function_answer
from bisect_cfg.reports.page import answer_lines, rows
from bisect_cfg.reports.recorded import EMPTY, EMPTY_ROW, Recorded, asked, level, read
from bisect_cfg.reports.said import said
from bisect_cfg.reports.shared import shared
from bisect_cfg.reports.text import show
from bisect_cfg.store.causes import Cause, Claim, Correction, Evidence, Report, TrialRow

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

SHADES = [[0.0, "rgba(139,145,156,.12)"], [0.25, "#b9bec7"], [0.5, "#4a5260"], [0.75, "#f0b3a8"], [1.0, FAIL]]
"""Of the matrix: good, another value, yours; and the last two again in a cause."""

ROW_HEIGHT, AROUND = 22, 90
"""Pixels of a row of the matrix, and of what is around it."""

COLUMNS = 2
"""Traces side by side."""

_OUTCOMES = {outcome.value for outcome in Outcome}

Asks = Callable[[Wanted], tuple[int, Recorded]]
"""Runs one more trial: its number, and what the study holds then."""


@dataclass(frozen=True)
class StudyReport(Report):
    """A study with its trials: what `bisect`, `Bisection.run` and `load` return.

    Example:
        ```python
        report = bisect_cfg.load("bisect-cfg-studies/train")
        report.plot_traces("loss", "entropy")
        report.metrics.query("metric == 'grad_norm'").groupby("trial").value.max()
        report.ask({"learning_rate": 5e-6})
        ```

    Attributes:
        recorded: what the study holds.
        asks: runs one more trial of it; None where that cannot be.
    """

    recorded: Recorded = field(default=Recorded(None, EMPTY), repr=False)
    asks: Asks | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "asks": None}  # what runs trials stays where it is

    @property
    def folder(self) -> Path | None:
        """Of the study; None for one of a function, which has none."""
        return self.recorded.folder

    @property
    def factors(self) -> Factors:
        """The settings that differ: both values of each, and what is known of it. A notebook shows it as a table;
        `Factors.frame` is a data frame."""
        return recorded_factors(self.recorded)

    def ask(self, wanted: Wanted) -> Asked:
        """Run one more trial, of your own choice, in the same study and in the same way as the others.

        Example:
            ```python
            report.ask({"learning_rate": 5e-6})  # your configuration, with another learning rate
            report.ask({"bf16", "max_grad_norm"})  # these two as you have them, all else as in the good configuration
            ```

        A subset is evidence like any other, which a later run of the bisection takes into account. Values of your own
        are recorded and shown, and change no answer.

        Args:
            wanted: names of the settings that are to be as you have them, all others good; or a dict of the values that
                your configuration is to have in place of its own.

        Returns:
            The trial: what came out, and how it stands beside the others. From then on this report has it as well.

        Raises:
            InputError: a name that is not known; a configuration that cannot be built; a study that cannot be gone on
                with from here.
            KeyboardInterrupt: after the trial was ended.
        """
        if self.asks is None:
            raise InputError(
                "This report cannot run a trial: it was loaded without what is run.",
                "Call ask() of the report that bisect() or Bisection(...).run() has returned.",
            )
        number, recorded = self.asks(wanted)
        object.__setattr__(self, "recorded", recorded)
        return asked_of(number, recorded)

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
                {**{name: row.get(name) for name in told}, "tested": asked(row, levels), **mask(row["values"])}
                for row in self.recorded.trials
            ]
        )

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row a number that a run traced: trial (its number), outcome of that trial, step, metric (its name),
        value."""
        return metrics_of(self.recorded, self.recorded.trials)

    # ------------------------------------------------------------------------------------------------------- plots

    def plot_matrix(self) -> Figure:
        """Factors by trials: filled where a trial had the user's value, the outcome on top."""
        import plotly.graph_objects as go

        recorded = self._passed_on
        levels = recorded.levels
        trials = [row for row in recorded.trials if row["values"]]
        places = list(range(len(trials)))
        shades = {"good": 0.0, "other": 0.25, "bad": 0.5}
        z, words = [], []
        for name in levels:
            of = [level(row["values"], name, levels) for row in trials]
            guilty = name in recorded.guilty
            z.append([shades[one] + (0.5 if guilty and one != "good" else 0.0) for one in of])
            words.append([figures.label(f"{name} = {show(row['values'].get(name), name)}") for row in trials])
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
                for one in rows(recorded.only(trials))
            ],
            "hovertemplate": "%{text}<extra></extra>",
        }  # fmt: skip
        names = ["outcome", *(figures.label(name) for name in levels)]  # by number: a heatmap has every category
        return go.Figure([heat, outcomes]).update_layout(
            template="plotly_white",
            margin=MARGINS,
            height=AROUND + ROW_HEIGHT * len(names),
            xaxis={"tickvals": places, "ticktext": [row["number"] for row in trials], "side": "top", "title": "trial"},
            yaxis={"tickvals": list(range(len(names))), "ticktext": names, "autorange": "reversed", "automargin": True},
        )

    def plot_suspicion(self) -> Figure:
        """How the suspicion of each factor moved from trial to trial."""
        return figure_of(list(filter(None, [figures.suspicion(self._passed_on)])), "This study recorded no suspicion.")

    def plot_traces(self, *metrics: str) -> Figure:
        """What the runs traced, step by step; those that the answer rests on in full.

        Args:
            *metrics: names; none for those that tell most.
        """
        return figure_of(figures.traces(self._passed_on, metrics), "No run of this study has traced anything.", COLUMNS)

    def plot_ranges(self) -> Figure:
        """Safe ranges on their natural scale: asked for, failed, healthy, recommended, published."""
        return figure_of(figures.ranges(self._passed_on), "No range was looked for in this study.")

    # -------------------------------------------------------------------------------------------------------- text

    @property
    def _passed_on(self) -> Recorded:
        """What is shown: notebooks are shared with their outputs."""
        return replace(self.recorded, result=shared(self.recorded.result))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n".join(
            f"{label:<13}{''.join(words for _, words in pieces)}".rstrip()
            for label, pieces in answer_lines(self._passed_on)
        )

    def _repr_html_(self) -> str:
        """The notebook's view: the answer, then every trial."""
        e = html.escape
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("trial", "outcome", "tested", "asked"))
        every = "".join(
            f"<tr><td>{row.number}</td><td style='text-align:left;color:{COLOURS.get(row.outcome, 'inherit')}'>"
            f"{e(row.came)}</td><td style='text-align:left'>{e(row.what)}</td>"
            f"<td style='text-align:left'>{e(row.reason)}</td></tr>"
            for row in rows(self._passed_on)
        )
        details = f"<details><summary>every trial</summary><table><tr>{head}</tr>{every}</table></details>"
        lines = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{e(label)}</th>"
            f"<td style='text-align:left'>{''.join(map(_styled, pieces))}</td></tr>"
            for label, pieces in answer_lines(self._passed_on)
        )
        return f"<table>{lines}</table>{details if every else ''}"


def of_folder(folder: Path, asks: Asks | None = None, storage: str | None = None) -> StudyReport:
    """A study from its folder; see `bisect_cfg.load`."""
    return _loaded(read(folder, storage), asks)


def _loaded(recorded: Recorded, asks: Asks | None = None) -> StudyReport:
    result = recorded.result
    found = result["recommendation"]
    over = [row for row in result["trials"] if row["outcome"] in _OUTCOMES]
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
        tuple(filter(None, (recorded.said, *result["notes"]))) if recorded.folder is None else tuple(result["notes"]),
        tuple(map(TrialRow.of_record, over)) if recorded.folder is None else (),
        seconds=result["seconds"] or 0.0,
        recommendation=found,
        message=(result["failure"] or {}).get("message") or "",
        recorded=recorded,
        asks=asks,
    )


def with_plots(report: Report, recorded: Recorded, asks: Asks | None = None) -> StudyReport:
    """A report as it came, with what its study holds."""
    return StudyReport(**{one.name: getattr(report, one.name) for one in fields(Report)}, recorded=recorded, asks=asks)


def concluded(report: Report) -> JsonObject:
    """What a bisection without a folder has concluded, in the form of result.json."""
    failure = (
        None
        if report.signature is None
        else {"message": report.message or report.signature, "signature": report.signature}
    )
    told = {
        "status": report.status,
        "notes": list(report.notes),
        "seconds": report.seconds,
        "failure": failure,
        "said": said(lambda console: print_function_answer(console, report)),
    }
    return {**of_report(report), **told}


def with_trials(
    report: Report, known: JsonObject, trials: Callable[[], list[JsonObject]], ask: Callable[[Wanted], int]
) -> StudyReport:
    """The report of a study that has no folder.

    Args:
        report: as it came.
        known: see `concluded`.
        trials: the rows of its study, as they are now.
        ask: runs one more trial, and tells its number.
    """

    def recorded() -> Recorded:
        return Recorded(None, _whole(known, trials()))

    def asks(wanted: Wanted) -> tuple[int, Recorded]:
        return ask(wanted), recorded()

    return with_plots(report, recorded(), asks)


def of_storage(address: str, name: str | None = None) -> StudyReport:
    """A study of a function from its storage; see `bisect_cfg.load`."""
    from bisect_cfg.store.rows import stored_trials

    known, trials = stored_trials(address, name)
    said = "" if known else "This study has no answer yet: the same Bisection(...).run() goes on where it was."
    status = "unfinished" if trials else "empty"
    return _loaded(Recorded(None, _whole({"status": status, **known}, trials), said))


def _whole(known: JsonObject, trials: list[JsonObject]) -> JsonObject:
    """The content of a result.json that nobody wrote."""
    rows = [{**EMPTY_ROW, **row} for row in trials]
    return {**EMPTY, "target": {"script": "", "arguments": []}, **known, "trials": rows}


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
