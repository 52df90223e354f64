"""A run that a reader asked for, beside the others of its study."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bisect_cfg.common.configuration import Configuration, Outcome, Value
from bisect_cfg.common.words import clean, percent
from bisect_cfg.report import figures
from bisect_cfg.report.anonymous import anonymous, shared
from bisect_cfg.report.answer import Answer, Trial
from bisect_cfg.report.frames import figure_of, metrics_of
from bisect_cfg.report.recorded import Recorded
from bisect_cfg.report.trial_rows import Row, rows
from bisect_cfg.store.causes import Printed

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

Wanted = str | Collection[str] | Mapping[str, Value]
"""Names of the settings that are bad, all others good; or values in place of those of the bad configuration."""


@dataclass(frozen=True)
class Asked:
    """A run of the reader's own.

    Attributes:
        number: of its trial.
        outcome: PASS, FAIL (the failure under study) or UNRESOLVED (another failure).
        signature: of its failure; None if it passed.
        step: at which it failed, or how many it trained; None if that makes no sense.
        seconds: it took.
        values: of the settings.
        note: what it means for the answer, if it contradicts it; "" otherwise.
        recorded: what the study holds.
    """

    number: int
    outcome: Outcome
    signature: str | None
    step: int | None
    seconds: float
    values: Configuration
    note: str
    recorded: Recorded = field(repr=False)

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row a number that the run traced: trial, outcome, step, metric (its name), value."""
        return metrics_of(self.recorded, [self._trial])

    def plot_traces(self, *metrics: str) -> Figure:
        """What the run traced, step by step, with the runs that the answer rests on.

        Args:
            *metrics: names; none for those that tell most.
        """
        recorded = anonymous(self.recorded)
        numbers = {*recorded.answer.evidence, self.number}
        shown = recorded.only(trial for trial in recorded.answer.trials if trial.number in numbers)
        return figure_of(figures.traces(shown, metrics), "No run has traced anything.", 2)

    @property
    def _trial(self) -> Trial:
        return next(trial for trial in self.recorded.answer.trials if trial.number == self.number)

    def _beside(self) -> list[Row]:
        """This run, and those that the answer rests on."""
        every = rows(anonymous(self.recorded).answer)
        return [row for row in every if row.number == self.number] + [
            row for row in every if row.evidence and row.number != self.number
        ]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        mine = self._beside()[0]
        lines = (f"Trial {self.number}: {mine.what}", f"{mine.came}  ({mine.seconds})", shared(self.note))
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        """What it came to, and the runs of the answer below it."""
        left = "style='text-align:left'"
        cells = []
        for row in self._beside():
            own = ";font-weight:bold" if row.number == self.number else ""
            colour = figures.COLOURS.get(row.outcome, "inherit")
            what, came, took, why = map(html.escape, (row.what, row.came, row.seconds, row.reason))
            cells.append(
                f"<tr style='{own}'><td>{row.number}</td><td style='text-align:left;color:{colour}'>{came}</td>"
                f"<td {left}>{what}</td><td {left}>{took}</td><td {left}>{why}</td></tr>"
            )
        heads = "".join(f"<th {left}>{one}</th>" for one in ("trial", "outcome", "tested", "took", "asked"))
        note = f"<p style='color:{figures.UNRESOLVED}'>{html.escape(shared(self.note))}</p>" if self.note else ""
        return f"{note}<table><tr>{heads}</tr>{''.join(cells)}</table>"


def asked_of(number: int, recorded: Recorded) -> Asked:
    """The run of that number."""
    trial = next(trial for trial in recorded.answer.trials if trial.number == number)
    outcome = Outcome(trial.outcome)
    return Asked(
        number,
        outcome,
        trial.signature,
        trial.step,
        trial.seconds or 0.0,
        Printed(trial.values),
        _contradiction(trial, outcome, recorded.answer),
        recorded,
    )


def _contradiction(trial: Trial, outcome: Outcome, answer: Answer) -> str:
    """What a run means for the answer, if the answer would have it otherwise."""
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
