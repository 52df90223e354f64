"""The settings that differ, as a notebook shows them: both values of each, and what is known of it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.words import clean, show
from bisect_cfg.probe.redact import mask
from bisect_cfg.report.anonymous import shared
from bisect_cfg.report.answer import Answer, Levels
from bisect_cfg.report.figures import ACCENT, FAIL, PASS
from bisect_cfg.report.trial_rows import SUSPECTED

if TYPE_CHECKING:
    import pandas


class FactorRow(NamedTuple):
    """A setting that differs.

    Attributes:
        name: of the setting.
        good: its value in the good configuration.
        bad: the one that fails with others, or alone.
        known: "cause", "cleared", "suspected", or "" where nothing is known.
        suspicion: the probability that it is in the cause, when that was last weighed; None if it never was.
    """

    name: str
    good: Value
    bad: Value
    known: str
    suspicion: float | None


class Factors(tuple[FactorRow, ...]):
    """The settings that differ, in the user's order; those of a cause first."""

    @property
    def frame(self) -> pandas.DataFrame:
        """One row a setting: name, good, bad, known, suspicion."""
        import pandas

        return pandas.DataFrame(list(self), columns=FactorRow._fields)

    def __repr__(self) -> str:
        lines = (
            f"{row.name} = {show(row.bad, row.name)} (good: {show(row.good, row.name)}) {_told(row)}".rstrip()
            for row in self
        )
        return shared("\n".join(lines))

    def _repr_html_(self) -> str:
        return self.table()

    def table(self) -> str:
        """As HTML, with a bar for the suspicion."""
        left = "style='text-align:left'"
        heads = "".join(f"<th {left}>{one}</th>" for one in ("setting", "yours", "good", "known"))
        return f"<table><tr>{heads}</tr>{''.join(map(_line, self))}</table>"


def factors_of(
    levels: Mapping[str, Levels], guilty: frozenset[str], suspicion: Mapping[str, float], settled: bool
) -> Factors:
    """What is known of each; a secret is masked, as all of it is there to be shown.

    Args:
        levels: name -> good and bad value.
        guilty: those of a proven cause.
        suspicion: name -> probability, as last weighed.
        settled: whether there is no cause left to find, so that all others are cleared.
    """
    return Factors(
        FactorRow(
            name,
            mask(one.good, name),
            mask(one.bad, name),
            _known(name, guilty, suspicion, settled),
            suspicion.get(name),
        )
        for name, one in levels.items()
    )


def recorded_factors(answer: Answer) -> Factors:
    """Those of a study."""
    weighed = [trial.suspicion for trial in answer.trials if trial.suspicion]
    last = weighed[-1] if weighed and not answer.complete else {}
    return factors_of(answer.levels, answer.guilty, last, answer.complete)


def _known(name: str, guilty: frozenset[str], suspicion: Mapping[str, float], settled: bool) -> str:
    if name in guilty:
        return "cause"
    if settled:
        return "cleared"
    if name not in suspicion:
        return ""
    return "suspected" if suspicion[name] >= SUSPECTED else "cleared"


def _told(row: FactorRow) -> str:
    return f"{row.known} {row.suspicion:.0%}" if row.known == "suspected" and row.suspicion else row.known


def _line(row: FactorRow) -> str:
    name, good, bad = (
        html.escape(clean(words)) for words in shared([row.name, show(row.good, row.name), show(row.bad, row.name)])
    )
    colour = {"cause": FAIL, "cleared": PASS}.get(row.known, ACCENT)
    width = round(100 * (row.suspicion or 0.0)) if row.known == "suspected" else 0
    bar = f"background:linear-gradient(90deg,{ACCENT}40 {width}%,transparent {width}%)" if width else ""
    return (
        f"<tr><td style='text-align:left'><b>{name}</b></td><td style='text-align:left'>{bad}</td>"
        f"<td style='text-align:left'>{good}</td>"
        f"<td style='text-align:left;min-width:8em;color:{colour};{bar}'>{_told(row)}</td></tr>"
    )
