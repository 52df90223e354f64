"""The trials of a study as rows of a table, in words."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_cfg.common.words import clean, count, duration
from bisect_cfg.report.answer import Answer, Trial
from bisect_cfg.report.recorded import ruled_out, tested

GLYPHS = {"pass": "✓", "fail": "✕", "unresolved": "?", "running": "…"}
WORDS = {"pass": "passes", "fail": "fails", "unresolved": "unresolved", "running": "is running"}

SUSPECTED = 0.01
"""From this probability on a factor counts as suspected."""


@dataclass(frozen=True)
class Row:
    """A trial in the tables.

    Attributes:
        number: of the trial.
        outcome: "pass", "fail", "unresolved" or "running".
        what: what it tests.
        came: what came out, and when.
        seconds: how long it took, in words.
        reason: why it was asked.
        cleared: which settings it ruled out.
        evidence: whether the answer rests on it.
    """

    number: int
    outcome: str
    what: str
    came: str
    seconds: str
    reason: str
    cleared: str
    evidence: bool


def rows(answer: Answer) -> list[Row]:
    """Every trial in words."""
    evidence, cleared = set(answer.evidence), ruled_out(answer.trials, SUSPECTED)
    return [
        Row(
            trial.number,
            trial.outcome if trial.outcome in GLYPHS else "unresolved",
            tested(trial, answer),
            _came(trial),
            "" if trial.seconds is None else duration(trial.seconds),
            trial.reason or trial.purpose,
            ", ".join(cleared.get(trial.number, ())),
            trial.number in evidence,
        )
        for trial in answer.trials
    ]


def _came(trial: Trial) -> str:
    verb, step = WORDS.get(trial.outcome, trial.outcome), trial.step
    if trial.outcome == "pass":
        return f"{verb}, {count(step, 'step')}" if step else verb
    at = f" at step {step}" if step else " before training" if step == 0 else ""
    more = trial.signature and trial.signature != trial.outcome  # a function that returns False says no more
    return f"{verb}{at}: {clean(trial.signature)}" if more else verb + at
