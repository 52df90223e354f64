"""A study in a notebook: the report with its plots as Plotly's figures, what was traced as frames, and runs of the
reader's own.

Notebooks are shared with their outputs: what a cell shows is made anonymous, what is read of the report is as it was.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs, to_builtins

from bisect_cfg.common.configuration import Configuration, Outcome
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.common.words import clean, percent
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask
from bisect_cfg.report import figures
from bisect_cfg.report.answer import EMPTY, UNFINISHED, Answer, of_plain
from bisect_cfg.report.events import Wanted
from bisect_cfg.report.figures import COLOURS, FAIL, PASS
from bisect_cfg.report.line import COMMAND, DIM, EDIT, GUILTY, NOTE, TEXT, Line, as_text
from bisect_cfg.report.lines import lines_of
from bisect_cfg.report.recorded import NO_METRICS, SUSPECTED, Recorded, Row, anonymous, read, rows, shared, tested
from bisect_cfg.store.causes import Cause, Correction, Levels, Printed, Trial

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

STYLES = {GUILTY: f"color:{FAIL};font-weight:bold", EDIT: f"color:{PASS}", NOTE: f"color:{figures.UNRESOLVED}",
          DIM: "opacity:.65", COMMAND: "font-family:monospace", TEXT: ""}  # fmt: skip
"""Of the lines of an answer, by their kind."""

LEFT = "style='text-align:left'"

Asks = Callable[[Wanted], tuple[int, Recorded]]
"""Runs one more trial: its number, and what the study holds then."""


@dataclass(frozen=True)
class StudyReport:
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

    recorded: Recorded
    asks: Asks | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "asks": None}  # what runs trials stays where it is

    @property
    def folder(self) -> Path | None:
        """Of the study; None for one of a function, which has none."""
        return self.recorded.folder

    @property
    def answer(self) -> Answer:
        """All that result.json has (docs/result.md)."""
        return self.recorded.answer

    @property
    def status(self) -> str:
        """How it ended: "isolated", "no_failure", "baseline_fails", "inconclusive", or what there is of it."""
        return self.answer.status

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Every minimal failing set of settings that was found."""
        return self.answer.causes

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """Settings whose reset to good was seen to cure it, those that give up least first."""
        return self.answer.corrections

    @property
    def complete(self) -> bool:
        """Whether it is proven that there is no other cause."""
        return self.answer.complete

    @property
    def safe_configuration(self) -> Configuration | None:
        """A configuration that was run and passed, nearest to the bad one; of a script the recommended one. None if
        there is none."""
        found = self.answer.recommendation
        safe = self.answer.safe_configuration if found is None else found.configuration
        return None if safe is None else Printed(safe)

    @property
    def recommendation(self) -> JsonObject | None:
        """Of a script: what to use instead and what that rests on, as in result.json."""
        made: JsonObject | None = to_builtins(self.answer.recommendation)
        return made

    @property
    def signature(self) -> str | None:
        """Of the failure under study."""
        return None if self.answer.failure is None else self.answer.failure.signature

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that were said on the way."""
        return self.answer.notes

    @property
    def _anonymous(self) -> Recorded:
        return anonymous(self.recorded)

    @property
    def factors(self) -> pandas.DataFrame:
        """The settings that differ, one row each, those of a cause first; see `factor_frame`."""
        answer = self.recorded.answer
        weighed = [trial.suspicion for trial in answer.trials if trial.suspicion]
        last = weighed[-1] if weighed and not answer.complete else {}
        return factor_frame(answer.levels, answer.guilty, last, answer.complete)

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
        return Asked(number, recorded)

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
        import pandas

        found = [
            (trial.number, trial.outcome, one["step"], name, float(value))
            for trial in self.recorded.answer.trials
            for one in self.recorded.metrics(trial)
            for name, value in one.items()
            if name not in NO_METRICS and isinstance(value, (int, float))
        ]
        return pandas.DataFrame(found, columns=["trial", "outcome", "step", "metric", "value"])

    # ------------------------------------------------------------------------------------------------------- plots

    def plot_matrix(self) -> Figure:
        """Factors by trials: filled where a trial had the user's value, the outcome on top."""
        return figures.matrix(self._anonymous)

    def plot_suspicion(self) -> Figure:
        """How the suspicion of each factor moved from trial to trial."""
        return figures.figure_of(
            list(filter(None, [figures.suspicion(self._anonymous)])), "This study recorded no suspicion."
        )

    def plot_traces(self, *metrics: str) -> Figure:
        """What the runs traced, step by step; those that the answer rests on in full.

        Args:
            *metrics: names; none for those that tell most.
        """
        return figures.figure_of(figures.traces(self._anonymous, metrics), "No run of this study has traced anything.")

    # -------------------------------------------------------------------------------------------------------- text

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return as_text(lines_of(self._anonymous.answer, self._anonymous.folder))

    def _repr_html_(self) -> str:
        """The notebook's view: the answer, then every trial."""
        recorded = self._anonymous
        lines = (line for line in lines_of(recorded.answer, recorded.folder) if not line.detail)
        every = rows(recorded.answer)
        table = f"<details><summary>every trial</summary>{_table(every)}</details>" if every else ""
        return f"<table>{''.join(map(_line, lines))}</table>{table}"


@dataclass(frozen=True)
class Asked:
    """A run of the reader's own, beside the others of its study.

    Attributes:
        number: of its trial.
        recorded: what the study holds.
    """

    number: int
    recorded: Recorded = field(repr=False)

    @property
    def _trial(self) -> Trial:
        return next(trial for trial in self.recorded.answer.trials if trial.number == self.number)

    @property
    def outcome(self) -> Outcome:
        """PASS, FAIL (the failure under study) or UNRESOLVED (another failure)."""
        return Outcome(self._trial.outcome)

    @property
    def signature(self) -> str | None:
        """Of its failure; None if it passed."""
        return self._trial.signature

    @property
    def step(self) -> int | None:
        """At which it failed, or how many it trained; None if that makes no sense."""
        return self._trial.step

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self._trial.seconds or 0.0

    @property
    def values(self) -> Configuration:
        """Of the settings."""
        return Printed(self._trial.values)

    @property
    def note(self) -> str:
        """What it means for the answer, if it contradicts it; "" otherwise."""
        return _contradiction(self._trial, self.outcome, self.recorded.answer)

    def plot_traces(self, *metrics: str) -> Figure:
        """What the run traced, step by step, with the runs that the answer rests on.

        Args:
            *metrics: names; none for those that tell most.
        """
        recorded = anonymous(self.recorded)
        numbers = {*recorded.answer.evidence, self.number}
        shown = recorded.only(trial for trial in recorded.answer.trials if trial.number in numbers)
        return figures.figure_of(figures.traces(shown, metrics), "No run has traced anything.")

    def _beside(self) -> list[Row]:
        """This run, and those that the answer rests on."""
        every = rows(anonymous(self.recorded).answer)
        return sorted((row for row in every if row.evidence or row.number == self.number), key=self._is_other)

    def _is_other(self, row: Row) -> bool:
        return row.number != self.number

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        mine = self._beside()[0]
        lines = (f"Trial {self.number}: {mine.what}", f"{mine.came}  ({mine.seconds})", shared(self.note))
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        """What it came to, and the runs of the answer below it."""
        note = f"<p style='color:{figures.UNRESOLVED}'>{html.escape(shared(self.note))}</p>" if self.note else ""
        return note + _table(self._beside(), self.number)


def _contradiction(trial: Trial, outcome: Outcome, answer: Answer) -> str:
    levels = answer.levels
    others = [name for name in trial.values if name not in levels or answer.level(trial, name) == "other"]
    bad = {name for name in levels if answer.level(trial, name) == "bad"}
    causes = [set(cause.parameters) for cause in answer.causes]
    held = [cause for cause in causes if cause <= bad]
    if outcome is Outcome.PASS and held and not others:
        named, rate = " with ".join(sorted(held[0])), answer.reproduction.rate
        if rate is not None and rate < 1:
            return (
                f"It has {named} as you have it, and passes: the failure is random, it shows in {percent(rate)} of the "
                "runs."
            )
        return (
            f"It has {named} as you have it, and passes all the same: the failure is random, or something hides it. "
            "Run the same bisection again: it takes this run into account."
        )
    if outcome is Outcome.FAIL and causes and not held and not others:
        return (
            "It fails without any cause that was found: there is another one. Run the same bisection again: it takes "
            "this run into account."
        )
    if outcome is Outcome.UNRESOLVED and answer.failure is not None and trial.signature != trial.outcome:
        return f"It ends in another failure than the one under study: {clean(trial.signature or '')}."
    return ""


def factor_frame(
    levels: Mapping[str, Levels], guilty: Collection[str], suspicion: Mapping[str, float], settled: bool
) -> pandas.DataFrame:
    """The settings that differ, to be shown: without secrets and names of people.

    Returns:
        One row a setting: name, good, bad, known ("cause", "cleared", "suspected", or "" where nothing is known),
        suspicion.
    """
    import pandas

    def known(name: str) -> str:
        if name in guilty:
            return "cause"
        if settled or suspicion.get(name, 1.0) < SUSPECTED:
            return "cleared"
        return "suspected" if name in suspicion else ""

    found = [
        (shared(name), shared(mask(one.good, name)), shared(mask(one.bad, name)), known(name), suspicion.get(name))
        for name, one in levels.items()
    ]
    return pandas.DataFrame(found, columns=["name", "good", "bad", "known", "suspicion"])


# --------------------------------------------------------------------------------------------------------------- HTML


def _line(line: Line) -> str:
    left = "text-align:left;vertical-align:top"
    text = f"<span style='{STYLES[line.kind]}'>{html.escape(line.text)}</span>"
    return f"<tr><th style='{left}'>{line.label}</th><td {LEFT}>{text}</td></tr>"


def _table(shown: Iterable[Row], bold: int | None = None) -> str:
    """Trials as a table, one of them in bold."""
    cells = []
    for row in shown:
        colour, own = COLOURS.get(row.outcome, "inherit"), " style='font-weight:bold'" if row.number == bold else ""
        what, came, took, why = map(html.escape, (row.what, row.came, row.seconds, row.reason))
        cells.append(
            f"<tr{own}><td>{row.number}</td><td style='text-align:left;color:{colour}'>{came}</td>"
            f"<td {LEFT}>{what}</td><td {LEFT}>{took}</td><td {LEFT}>{why}</td></tr>"
        )
    heads = "".join(f"<th {LEFT}>{one}</th>" for one in ("trial", "outcome", "tested", "took", "asked"))
    return f"<table><tr>{heads}</tr>{''.join(cells)}</table>"


# -------------------------------------------------------------------------------------------------------- the reports


def of_folder(folder: Path, asks: Asks | None = None, storage: str | None = None) -> StudyReport:
    """A study from its folder; see `bisect_cfg.load`."""
    return StudyReport(read(folder, storage), asks)


def of_storage(address: str, name: str | None = None) -> StudyReport:
    """A study of a function from its storage; see `bisect_cfg.load`."""
    from bisect_cfg.store.rows import stored_trials

    known, trials = stored_trials(address, name)
    note = "This study has no answer yet: the same Bisection(...).run() goes on where it was."
    answer = of_plain(known) if known else Answer(UNFINISHED if trials else EMPTY, notes=(note,))
    return StudyReport(Recorded(None, structs.replace(answer, trials=tuple(trials))))


def of_function(answer: Answer, trials: Callable[[], list[Trial]], ask: Callable[[Wanted], int]) -> StudyReport:
    """The report of a study that has no folder: its answer, its trials as they are now, and what runs one more."""

    def recorded() -> Recorded:
        return Recorded(None, structs.replace(answer, trials=tuple(trials())))

    def asks(wanted: Wanted) -> tuple[int, Recorded]:
        return ask(wanted), recorded()

    return StudyReport(recorded(), asks)
