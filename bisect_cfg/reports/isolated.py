"""The causes that were isolated, in the words of the terminal: of a training script and of a function alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from bisect_cfg.common.configuration import Status, Value
from bisect_cfg.probe.redact import HIDDEN, hides
from bisect_cfg.reports import text
from bisect_cfg.reports.console import Hanging
from bisect_cfg.reports.safe_values import INDENT, print_lines
from bisect_cfg.store.causes import RETURNED_FALSE, Cause, Report

SETTING_WIDTH = 40
"""Columns to which the settings of a cause are filled up, so that their good values stand below each other."""

VALUE_LENGTH = 200
"""Characters of a value that are shown: a path is shown whole, a table of a dataset is not."""

SUBJECT = "the trial"
"""Messages of the runner are sentences about it; those of exceptions are their type and text."""

NO_CAUSE = {
    Status.NO_FAILURE: "Nothing to isolate.",
    Status.BASELINE_FAILS: "The good configuration fails as well, so there is nothing to compare with.",
}
"""What is said where no cause is, by status; the notes say why."""


def print_function_answer(console: Console, report: Report) -> None:
    """The answer of a bisection of a function, whose study has no folder."""
    how = ""
    if report.signature not in (None, RETURNED_FALSE):
        message = (report.message or report.signature).rstrip(".")
        how = f"{'' if message.startswith(SUBJECT) else f'{SUBJECT} fails: '}{message}."
    print_isolated(console, report, [how] * len(report.causes))
    for correction in report.corrections:
        claim = f"yours without {', '.join(correction.parameters)}: {correction.passes}"
        console.print(Hanging(Text.assemble(("Passes  ", "bold"), claim)))
    for note in report.notes:
        console.print(Text(note, style="yellow"))
    console.print(Text(f"{text.count(len(report.rows), 'trial')}; {text.duration(report.seconds)}", style="dim"))


def print_isolated(
    console: Console,
    report: Report,
    failures: Sequence[str],
    since: str = "",
    not_varied: Mapping[str, str] | None = None,
) -> None:
    """The causes with their evidence, and whether there may be others.

    Args:
        console: where to.
        report: of the search.
        failures: of each cause, what happens with it, as the end of a sentence; "" to say nothing of that.
        since: from where on the claims were shown, as a sentence; "" from the beginning.
        not_varied: name -> why all trials have the user's value.
    """
    if not report.causes:
        words = NO_CAUSE.get(report.status, "No cause could be proven.")
        console.print(Text(words, style="bold" if report.status == Status.NO_FAILURE else "bold yellow"))
        return
    for number, (cause, failure) in enumerate(zip(report.causes, failures, strict=True), 1):
        _print_cause(console, "Cause" if len(report.causes) == 1 else f"Cause {number}", cause, failure, since)
    if (report.reproduction_rate or 1.0) < 1.0:
        low, high = report.reproduction_interval or (0.0, 1.0)
        console.print(
            f"The failure is random: of all runs with a cause it showed in {report.reproduction_rate:.0%} "
            f"(95 % interval: {low:.0%} to {high:.0%}).\n"
            "The counts above are of one configuration each; the answer weighs all runs.",
            highlight=False,
        )
    console.print(text.others(report.complete, not_varied or {}), highlight=False)


def _print_cause(console: Console, title: str, cause: Cause, failure: str, since: str) -> None:
    yours = [f"{name} = {_shown(name, cause.values[name]['bad'])}" for name in cause.parameters]
    yours[1:] = [f"with {setting}" for setting in yours[1:]]
    wide = min(max(map(len, yours)), SETTING_WIDTH)
    for position, name in enumerate(cause.parameters):
        label = title if position == 0 else " " * len(title)
        good = (f"good: {_shown(name, cause.values[name]['good'])}", "green")
        row = Text.assemble((f"{label}  ", "bold"), (f"{yours[position]:<{wide}}  ", "bold red"), good)
        console.print(Hanging(row, rest=INDENT))
    together = "them" if len(cause.parameters) > 1 else "it"
    claims = [f"Fails {cause.evidence.fails} with only {together} changed from the good configuration"]
    for name, claim in cause.evidence.without.items():
        if claim.subset is None:
            claims.append(f"without {name}: {claim.note}")
            continue
        others = [one for one in cause.parameters if one != name]
        which = f"with only {' and '.join(others)}" if others and {*others} == {*claim.subset} else f"without {name}"
        claims.append(f"passes {claim} {which}{f' ({claim.note})' if claim.note else ''}")
    lines = [f"With {together} {failure}"] if failure else []
    lines.append(" ".join(filter(None, (", ".join(claims) + ".", since))))
    if cause.companions:
        left_out = "it" if len(cause.companions) == 1 else "them"
        reason = f"without {left_out} they are invalid or end in a different failure"
        lines.append(f"These runs also had {', '.join(cause.companions)} as you have it: {reason}.")
    if cause.inseparable:
        names = " and ".join(cause.inseparable)
        lines.append(f"{names} cannot be told apart: no valid configuration changes only one of them.")
    print_lines(console, lines)
    console.print()


def _shown(name: str, value: Value) -> str:
    words = HIDDEN if hides(name, value) else text.show(value, name)
    return words if len(words) <= VALUE_LENGTH else words[: VALUE_LENGTH - 3] + "..."
