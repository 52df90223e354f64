"""A study in a notebook: the report with its plots as Plotly's figures, and what was traced as frames."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs, to_builtins

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.common.words import show
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask
from bisect_cfg.report import answer as answered
from bisect_cfg.report import figures
from bisect_cfg.report.anonymous import anonymous
from bisect_cfg.report.answer import EMPTY, UNFINISHED, Answer, of_plain
from bisect_cfg.report.asked_run import Asked, Wanted, asked_of
from bisect_cfg.report.factors import Factors, recorded_factors
from bisect_cfg.report.figures import COLOURS, FAIL, PASS
from bisect_cfg.report.frames import MARGINS, figure_of, metrics_of
from bisect_cfg.report.lines import COMMAND, DIM, EDIT, GUILTY, NOTE, TEXT, Line, as_text, lines_of
from bisect_cfg.report.recorded import Recorded, of_rows, read, tested
from bisect_cfg.report.trial_rows import rows
from bisect_cfg.store.causes import Cause, Correction, Evidence, Report, TrialRow

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

    recorded: Recorded = field(default=Recorded(None, Answer(EMPTY)), repr=False)
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
        return recorded_factors(self.recorded.answer)

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

        answer = self.recorded.answer
        columns = ("number", "outcome", "signature", "seconds", "step", "purpose", "reason", "companions")
        return pandas.DataFrame(
            [
                {
                    **{name: getattr(trial, name) for name in columns},
                    "tested": tested(trial, answer),
                    **mask(trial.values),
                }
                for trial in answer.trials
            ]
        )

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row a number that a run traced: trial (its number), outcome of that trial, step, metric (its name),
        value."""
        return metrics_of(self.recorded, self.recorded.answer.trials)

    # ------------------------------------------------------------------------------------------------------- plots

    def plot_matrix(self) -> Figure:
        """Factors by trials: filled where a trial had the user's value, the outcome on top."""
        import plotly.graph_objects as go

        recorded, answer = self._anonymous, self._anonymous.answer
        levels = answer.levels
        trials = [trial for trial in answer.trials if trial.values]
        places = list(range(len(trials)))
        shades = {"good": 0.0, "other": 0.25, "bad": 0.5}
        z, words = [], []
        for name in levels:
            of = [answer.level(trial, name) for trial in trials]
            guilty = name in answer.guilty
            z.append([shades[one] + (0.5 if guilty and one != "good" else 0.0) for one in of])
            words.append([figures.label(f"{name} = {show(trial.values.get(name), name)}") for trial in trials])
        heat = {
            "type": "heatmap", "x": places, "y": list(range(1, len(levels) + 1)), "z": z, "text": words,
            "zmin": 0, "zmax": 1, "colorscale": SHADES, "showscale": False, "xgap": 2, "ygap": 2,
            "hovertemplate": "trial %{customdata}<br>%{text}<extra></extra>",
            "customdata": [[trial.number for trial in trials] for _ in levels],
        }  # fmt: skip
        outcomes = {
            "type": "scatter", "mode": "markers", "x": places, "y": [0] * len(trials), "showlegend": False,
            "marker": {"size": 11, "color": [COLOURS.get(trial.outcome, figures.UNRESOLVED) for trial in trials],
                       "symbol": ["x" if trial.outcome == "fail" else "circle" for trial in trials]},
            "text": [
                "<br>".join(map(figures.label, (f"trial {one.number}: {one.what}", one.came, one.reason)))
                for one in rows(recorded.only(trials).answer)
            ],
            "hovertemplate": "%{text}<extra></extra>",
        }  # fmt: skip
        names = ["outcome", *(figures.label(name) for name in levels)]  # by number: a heatmap has every category
        return go.Figure([heat, outcomes]).update_layout(
            template="plotly_white",
            margin=MARGINS,
            height=AROUND + ROW_HEIGHT * len(names),
            xaxis={"tickvals": places, "ticktext": [trial.number for trial in trials], "side": "top", "title": "trial"},
            yaxis={"tickvals": list(range(len(names))), "ticktext": names, "autorange": "reversed", "automargin": True},
        )

    def plot_suspicion(self) -> Figure:
        """How the suspicion of each factor moved from trial to trial."""
        return figure_of(list(filter(None, [figures.suspicion(self._anonymous)])), "This study recorded no suspicion.")

    def plot_traces(self, *metrics: str) -> Figure:
        """What the runs traced, step by step; those that the answer rests on in full.

        Args:
            *metrics: names; none for those that tell most.
        """
        return figure_of(figures.traces(self._anonymous, metrics), "No run of this study has traced anything.", COLUMNS)

    def plot_ranges(self) -> Figure:
        """Safe ranges on their natural scale: asked for, failed, healthy, recommended, published."""
        return figure_of(figures.ranges(self._anonymous), "No range was looked for in this study.")

    # -------------------------------------------------------------------------------------------------------- text

    @property
    def _anonymous(self) -> Recorded:
        """What is shown: notebooks are shared with their outputs."""
        return anonymous(self.recorded)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return as_text(lines_of(self._anonymous.answer, self._anonymous.folder))

    def _repr_html_(self) -> str:
        """The notebook's view: the answer, then every trial."""
        recorded = self._anonymous
        lines = (line for line in lines_of(recorded.answer, recorded.folder) if not line.detail)
        cells = "".join(
            f"<tr><td>{row.number}</td><td style='text-align:left;color:{COLOURS.get(row.outcome, 'inherit')}'>"
            f"{html.escape(row.came)}</td><td style='text-align:left'>{html.escape(row.what)}</td>"
            f"<td style='text-align:left'>{html.escape(row.reason)}</td></tr>"
            for row in rows(recorded.answer)
        )
        heads = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("trial", "outcome", "tested", "asked"))
        every = f"<details><summary>every trial</summary><table><tr>{heads}</tr>{cells}</table></details>"
        return f"<table>{''.join(map(_line, lines))}</table>{every if cells else ''}"


STYLES = {GUILTY: f"color:{FAIL};font-weight:bold", EDIT: f"color:{PASS}", NOTE: f"color:{figures.UNRESOLVED}",
          DIM: "opacity:.65", COMMAND: "font-family:monospace", TEXT: ""}  # fmt: skip


def _line(line: Line) -> str:
    left = "text-align:left;vertical-align:top"
    text = f"<span style='{STYLES[line.kind]}'>{html.escape(line.text)}</span>"
    return f"<tr><th style='{left}'>{line.label}</th><td style='text-align:left'>{text}</td></tr>"


def of_folder(folder: Path, asks: Asks | None = None, storage: str | None = None) -> StudyReport:
    """A study from its folder; see `bisect_cfg.load`."""
    return loaded(read(folder, storage), asks)


def loaded(recorded: Recorded, asks: Asks | None = None) -> StudyReport:
    """The report of what a study holds."""
    answer = recorded.answer
    found, failure = answer.recommendation, answer.failure
    interval = answer.reproduction.interval_95
    over = (trial for trial in answer.trials if trial.outcome in _OUTCOMES)
    return StudyReport(
        answer.status,
        tuple(map(_cause, answer.causes)),
        tuple(Correction(one.parameters, one.passes) for one in answer.corrections),
        answer.complete,
        found.configuration if found is not None else None,
        failure.signature if failure is not None else None,
        tuple((one.settings, one.hide) for one in answer.masking),
        answer.reproduction.rate,
        (interval[0], interval[1]) if interval else None,
        answer.notes,
        tuple(TrialRow.of_record(structs.asdict(trial)) for trial in over) if recorded.folder is None else (),
        seconds=answer.seconds or 0.0,
        recommendation=to_builtins(found),
        message=failure.message if failure is not None else "",
        recorded=recorded,
        asks=asks,
    )


def with_plots(report: Report, recorded: Recorded, asks: Asks | None = None) -> StudyReport:
    """A report as it came, with what its study holds."""
    known = {one.name: getattr(report, one.name) for one in fields(Report)}
    known["recommendation"] = to_builtins(recorded.answer.recommendation)
    return StudyReport(**known, recorded=recorded, asks=asks)


def with_trials(
    report: Report, answer: Answer, rows: Callable[[], list[JsonObject]], ask: Callable[[Wanted], int]
) -> StudyReport:
    """The report of a study that has no folder.

    Args:
        report: as it came.
        answer: the same, without its trials (`answer_of_report`).
        rows: of its study, as they are now.
        ask: runs one more trial, and tells its number.
    """

    def recorded() -> Recorded:
        return Recorded(None, structs.replace(answer, trials=of_rows(rows())))

    def asks(wanted: Wanted) -> tuple[int, Recorded]:
        return ask(wanted), recorded()

    return with_plots(report, recorded(), asks)


def of_storage(address: str, name: str | None = None) -> StudyReport:
    """A study of a function from its storage; see `bisect_cfg.load`."""
    from bisect_cfg.store.rows import stored_trials

    known, rows = stored_trials(address, name)
    note = "This study has no answer yet: the same Bisection(...).run() goes on where it was."
    answer = of_plain(known) if known else Answer(UNFINISHED if rows else EMPTY, notes=(note,))
    return loaded(Recorded(None, structs.replace(answer, trials=of_rows(rows))))


def _cause(known: answered.Cause) -> Cause:
    values = {name: {"good": levels.good, "bad": levels.bad} for name, levels in known.parameters.items()}
    evidence = Evidence(known.evidence.fails, known.evidence.passes_without)
    return Cause(tuple(sorted(values)), values, known.companions, known.signature, evidence, known.inseparable)
