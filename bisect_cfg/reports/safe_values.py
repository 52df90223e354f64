"""What the user sees of the search for safe values: a line a run, and at the end what to use instead."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bisect_cfg.common.configuration import Value, equal
from bisect_cfg.common.failures.health import SILENT_KINDS
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.remedy.remedy import Attempt, RemedyStatus
from bisect_cfg.remedy.schedule import Prefix
from bisect_cfg.remedy.terms import Health
from bisect_cfg.remedy.threshold import failure_bound
from bisect_cfg.reports import answer as answers
from bisect_cfg.reports import text
from bisect_cfg.reports.console import Hanging
from bisect_cfg.reports.recommendation import UNTRIED, in_words
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.sides import Sides

OTHERS_SHOWN = 4
"""So many other remedies are printed; result.json has them all."""

PUBLISHED_SHOWN = 3
"""So many published values, those that differ."""

MORE_SEEDS = 10
"""What is suggested to whoever wants to be surer: excludes failure rates above 26 %."""

LONGEST_LINE = 60
"""Lines of the user's files that are shown whole; of longer ones, what changes."""

_ITEMS = re.compile(r"([,()\[\]{}])")

INDENT = 7
"""Columns before what explains a line."""

OUTCOME_WIDTH = len("unresolved")
"""Columns of the outcome in the lines of the runs: its longest word."""


def described(attempt: Attempt, settings: Factors | Sides) -> str:
    """What a run tries, in a few words."""
    known = {**settings.resolved, **settings.bad}
    changes = {
        name: {"to": value} for name, value in attempt.configuration.items() if not equal(value, known.get(name))
    }
    seed = f", {'run' if isinstance(settings, Sides) else 'seed'} +{attempt.seed}" if attempt.seed else ""
    return f"{in_words(changes) or 'your configuration'}{seed}"


def run_line(number: int, asked: str, attempt: Attempt, health: Health, seconds: float) -> Text:
    """One run in one line."""
    word, style = ("healthy", "green") if health.healthy else ("unhealthy", "red")
    steps = text.count(attempt.steps, "step") if attempt.steps > 1 else "passes"
    said = steps if health.healthy else text.unhealthy(health)
    return Text.assemble(
        (f"{number:>4}  ", "dim"),
        (f"{word:<{OUTCOME_WIDTH}}", style),
        f" {asked}",
        (f"  ({said}, {text.duration(seconds)})", "dim"),
    )


def print_recommendation(console: Console, answer: answers.Answer, result: JsonObject) -> None:
    """What to use instead, what that rests on, the other remedies, and what is not settled."""
    found = result["recommendation"]
    if found is None:
        _print_none(console, answer)
        return
    console.print()
    if found["first"]:
        _line(console, "First  ", found["first"], "bold yellow")
    changes = in_words(found["changes"]) or "your configuration"
    if found["verified"]:
        packages = all(name.startswith(PACKAGE) for name in found["changes"])
        kept = "all your settings as they are" if packages else "everything else as you have it"
        said = (("Use instead  ", "bold"), (changes, "bold green"), f"   {kept}  (safe_config.yaml)")
        console.print(Hanging(Text.assemble(*said)))
        print_lines(console, _evidence(found, answer.safe.full_rate))
    else:
        console.print(
            Text.assemble(
                ("Not verified  ", "bold yellow"), (changes, "bold"), f"   {_passes(found)}  (safe_config.yaml)"
            )
        )
        print_lines(console, _ranges(found))
    for name in found.get("not_kept", ()):
        print_lines(console, [f"No remedy was found that leaves {name} as it is."])
    _print_edits(console, found)
    others = [remedy for remedy in found.get("alternatives", ()) if remedy["verified"]]
    for remedy in others[:OTHERS_SHOWN]:
        runs = f"healthy {remedy['evidence']['seen']}/{remedy['evidence']['runs']}"
        console.print(Text.assemble(("Or  ", "bold"), (in_words(remedy["changes"]), "green"), f"   {runs}"))
        print_lines(console, _ranges(remedy) or ([" ".join(remedy["why"].split())] if remedy["why"] else []))
    for remedy in found.get("alternatives", ()):
        if remedy["status"] == RemedyStatus.REJECTED:
            words = f"Not recommended  {in_words(remedy['changes'])}   {remedy['rejected']}"
            console.print(Hanging(Text(words, style="dim")))
            if _only_delays(result, remedy):
                advice = (
                    "So this reset may only delay the failure: the rest of the cause may be enough. "
                    "Check with a larger --steps."
                )
                console.print(Hanging(Text(advice, style="yellow"), INDENT))
    left = [
        remedy
        for remedy in found.get("alternatives", ())
        if remedy["status"] in (UNTRIED, RemedyStatus.OPEN, RemedyStatus.HEALTHY)
    ]
    if left:
        names = "; ".join(_known(remedy) for remedy in left)
        more = 1 + len(others) + len(left)
        verify = f"bisect-cfg recommend {shlex.quote(answers.short_path(answer.folder))} --remedies {more}"
        console.print(Hanging(Text(f"Known, not verified  {names}   ({verify} runs them)", style="dim")))
    for position, what in enumerate(found.get("unsettled", ())):  # the first says why it ended
        console.print(Text(f"Not settled: {what}" if position else what, style="yellow"))
    for label, command in answers.commands(answer).items():
        # Not broken into lines: it is there to be copied.
        console.print(Text.assemble((f"To repeat the {label} run:", "dim"), f"  {command}"), soft_wrap=True)


def _span(good: float, bad: float, value: float) -> str:
    """``up to 0.3`` or ``down to 0.3``, as seen from good."""
    return f"{'up' if bad > good else 'down'} to {text.show(value)}"


def _print_none(console: Console, answer: answers.Answer) -> None:
    if answer.safe is None or not answer.safe.remedies:
        return
    console.print()
    console.print(Text("Nothing to recommend: no remedy trained healthily.", style="bold yellow"))
    for remedy in answer.safe.remedies:
        changes = {name: {"to": value} for name, value in remedy.changes.items()}
        console.print(Hanging(Text(f"{in_words(changes)}: {remedy.rejected or 'not tried'}"), INDENT))


def _evidence(found: JsonObject, full_rate: Prefix) -> list[str]:
    runs = found["evidence"]["runs"]
    of = f" of {found['steps']} steps" if found["steps"] else ""
    of += ", each with its own seed" if found.get("seeds") else ""
    more = MORE_SEEDS if runs < MORE_SEEDS else 2 * runs
    lines = [
        f"Healthy in {runs} of {runs} runs{of}: with 95 % confidence at most "
        f"{found['failure_rate_at_most']:.0%} of them fail (with --verify-seeds {more}: {failure_bound(more):.0%})."
    ]
    if full_rate.warmup:
        lines.append(f"The runs went {full_rate}.")
    lines += _ranges(found)
    for name, change in found["changes"].items():
        lines += _published(name, found["published"].get(name, ()), change["from"])
    return lines


def _ranges(found: JsonObject) -> list[str]:
    lines = []
    for name, known in found.get("ranges", {}).items():
        up, beyond = _span(known["good"], known["bad"], known["healthy_up_to"]), text.show(known["not_from"])
        if not known["trials"]:
            ends = f"{text.show(known['good'])} (good) and {text.show(known['bad'])} (yours)"
            close = f"{ends} are too close for a run between them to tell anything"
            lines.append(f"{name}: {close if known['settled'] else f'no value was tried between {ends}'}.")
            continue
        runs = text.count(len(known["trials"]), "short run")
        about = "" if known["settled"] else "; values between were not tried"
        why = f": {known['shown']}" if known["shown"] else ""
        lines.append(f"{name} was healthy {up} and unhealthy at {beyond} ({runs}{about}){why}.")
    if found.get("stepped_back"):
        times = text.count(found["stepped_back"], "time")
        lines.append(f"Moved back {times} from there: what was tried first did not stay healthy over the longer runs.")
    return lines


def _published(name: str, values: Sequence[JsonObject], own: Value) -> list[str]:
    """Context only: a published value that is the user's own, or meant for something else, says so."""
    shown: dict[str, str] = {}
    for one in values:
        remarks = [one["note"], "as you have it" if equal(one["value"], own) else ""]
        shown.setdefault(text.show(one["value"]), "; ".join(filter(None, [one["recipe"], *remarks])))
    if not shown:
        return []
    listed = ", ".join(f"{value} ({recipe})" for value, recipe in list(shown.items())[:PUBLISHED_SHOWN])
    return [f"Published for {name}: {listed}."]


def _passes(found: JsonObject) -> str:
    if found.get("status") == RemedyStatus.HEALTHY:
        return "healthy in short runs only"
    evidence = found["evidence"]
    seen = f"{evidence['seen']}/{evidence['runs']}" if evidence and evidence["runs"] else "once"
    return f"passed {seen} in short runs"


def _print_edits(console: Console, found: JsonObject) -> None:
    for edit in found["edits"]:
        old, new = _difference(edit["old"].strip(), edit["new"].strip(), edit["settings"])
        where = "command line"
        if edit["file"] is not None:
            where = answers.short_path(Path(edit["file"]).absolute())
            where += f":{edit['line']}" if edit.get("cell") is None else f", cell {edit['cell']}, line {edit['line']}"
        change = [(old, "red"), "  ->  ", (new or "(remove it)", "green")] if old else [("add ", "dim"), (new, "green")]
        console.print(Hanging(Text.assemble((f"{where}  ", "dim"), *change), INDENT, INDENT + 2))
    for missing in found.get("unplaced", ()):
        words = f"{missing['setting']}: {missing['why']}; {missing['add']}."
        console.print(Hanging(Text(words.replace(f"{Path.cwd()}/", ""), style="dim"), INDENT))


def _difference(old: str, new: str, settings: Sequence[str]) -> tuple[str, str]:
    """A changed line and what it becomes; of a long one (a whole call in one line) only the items that differ."""
    if len(old) <= LONGEST_LINE or not new:
        return old, new
    left, right = _ITEMS.split(old), _ITEMS.split(new)
    same = len(os.path.commonprefix([left, right]))
    tail = len(os.path.commonprefix([left[same:][::-1], right[same:][::-1]]))
    shorter = ["".join(items[same : len(items) - tail]).strip(", ") for items in (left, right)]
    named = all(any(name.rpartition(".")[2] in text for text in shorter) for name in settings)
    return (shorter[0], shorter[1]) if named else (old, new)


def _known(remedy: JsonObject) -> str:
    """A remedy that nobody has verified: what it changes, or may still come to."""
    changes = in_words(remedy["changes"])
    return f"{changes} (healthy in short runs)" if remedy["status"] == RemedyStatus.HEALTHY else changes


def _only_delays(result: JsonObject, remedy: JsonObject) -> bool:
    """Whether a remedy resets part of a cause, as a correction does, and the run still learns nothing in the end."""
    if result["failure"]["kind"] not in SILENT_KINDS:
        return False
    return any(
        len(cause["parameters"]) > 1
        and remedy["changes"].keys() <= cause["parameters"].keys()
        and all(equal(change["to"], cause["parameters"][name]["good"]) for name, change in remedy["changes"].items())
        for cause in result["causes"]
    )


def _line(console: Console, label: str, words: str, style: str) -> None:
    console.print(Hanging(Text.assemble((label, style), " ".join(words.split()))))


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines of an answer, indented."""
    for line in lines:
        console.print(Hanging(Text(line), INDENT))
