"""The answer as the user reads it at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bisect_cfg.common.configuration import Status, configuration_of
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.reports import answer as answers
from bisect_cfg.reports import text
from bisect_cfg.reports.console import Hanging
from bisect_cfg.reports.isolated import print_isolated
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.reports.safe_values import INDENT, print_lines, print_recommendation
from bisect_cfg.reports.said import Line, said
from bisect_cfg.runner.environments import CACHE
from bisect_cfg.runner.starts import STARTS
from bisect_cfg.runner.verdict import Ended
from bisect_cfg.store.causes import Cause
from bisect_cfg.store.folder import STUDIES
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.launch_settings import PROCESSES


def told(answer: Answer, result: JsonObject) -> list[Line]:
    """The answer as `print_answer` prints it, for reports."""
    return said(lambda console: print_answer(console, answer, result))


def print_answer(console: Console, answer: Answer, result: JsonObject, noted: bool = True) -> None:
    """The answer in a few lines.

    Args:
        console: where to.
        answer: of the phases.
        result: the content of result.json.
        noted: whether the notes of the answer were said when they came up.
    """
    console.print()
    if answer.status == Status.NO_FAILURE:
        _print_no_failure(console, answer)
    elif answer.status == Status.BASELINE_FAILS and answer.good_run is not None:
        _print_rows(console, answer)
        _print_baseline_fails(console, answer)
    elif answer.again or answer.status == Status.BASELINE_FAILS:
        console.print(Text("No cause could be isolated.", style="bold yellow"))  # why was said as a note
    elif answer.report is None:
        advice = "Nothing is settled yet. Run the same command again with more trials or time to continue."
        console.print(Text(advice, style="bold yellow"))
    else:
        _print_causes(console, answer, result)
    for finding in (result.get("placement") or {}).get("findings", ()):
        console.print(Hanging(Text.assemble(("Placement  ", "bold"), f"{finding['text']}.")))
        if finding["source"]:
            console.print(Hanging(Text(finding["source"], style="dim"), INDENT))
    issue = result.get("known_issue")
    if issue and answer.status == Status.ISOLATED:
        console.print(Hanging(Text.assemble(("Known issue  ", "bold"), " ".join(issue["title"].split()))))
        root = " ".join((issue["why"] or issue["cures"][0]).split())
        source = issue["sources"][0]
        source = "Measured by this project, with tiny models on a CPU." if source == "measured" else source
        console.print(Hanging(Text(f"{root[:1].upper()}{root[1:]}"), INDENT))
        console.print(Hanging(Text(source, style="dim"), INDENT))
    if result.get("simulated"):
        console.print(Text(f"This study's fault is simulated: {result['simulated']}", style="yellow"))
    for warning in result["warnings"]:
        numbers = ", ".join(str(number) for number in warning["trials"][:6])
        more = ", ..." if len(warning["trials"]) > 6 else ""
        console.print(Text(f"Note: {warning['text']} ({numbers}{more}).", style="yellow"))
    for note in result["notes"]:
        if not noted or note not in answer.notes:
            console.print(Text(note, style="yellow"))
    trials = text.count(len(result["trials"]), "trial")
    each = "" if isinstance(answer.script, CommandTarget) else f", each {STARTS[answer.start].said}"
    if "environments" in result:
        console.print(Text(_environments(result["environments"]), style="dim"))
    console.print(
        Text(
            f"{trials}{each}; {text.duration(answer.seconds)}. Everything is in "
            f"{answers.short_path(answer.folder)}/: look at report.html",
            style="dim",
        )
    )


def _environments(found: JsonObject) -> str:
    """The environments of trials with other packages, and how to be rid of them."""
    cache = answers.short_path(Path(found["folder"]))
    built = f"{found['built']} built in {text.duration(found['seconds'])}" if found["built"] else "all there already"
    prune = "bisect-cfg envs prune" + ("" if Path(cache) == Path(STUDIES) / CACHE else f" --env-cache {cache}")
    size = f"{max(1, round(found['bytes'] / 2**20))} MiB"
    return f"Ran in {text.count(found['used'], 'environment')} of other packages: {built}, {size}. To remove: {prune}"


def _print_no_failure(console: Console, answer: Answer) -> None:
    if not answer.bad_run.seen.counted:
        console.print(Text("Your configuration does not fail: exit status 0. Nothing to isolate.", style="bold"))
        return
    steps = text.count(answer.bad_run.seen.steps, "step")
    console.print(Text(f"Your configuration does not fail: {steps}, all healthy. Nothing to isolate.", style="bold"))
    console.print(
        "If it fails later: --until-failure goes on as long as it takes, --log FILE (of a run that failed) as long as "
        "that did. If it fails now and then: the same command with --restart tries again. If it fails only on other "
        "hardware, run bisect-cfg there."
    )


def _print_baseline_fails(console: Console, answer: Answer) -> None:
    good_run = answer.good_run
    said = text.failure(good_run.shown)
    console.print(Text(f"The good configuration fails as well: it {said}.", style="bold red"))
    console.print(
        "So there is nothing to compare with. Use --good name=value or a good.yaml to choose values that "
        f"work here; its log is {answers.short_path(good_run.folder / 'log.txt')}.",
        highlight=False,
    )
    if answer.rows is None and good_run.seen.died is not None and good_run.shown.step_of_training:
        console.print("If it may be the data of that step: --isolate-data finds the row.", highlight=False)


def _print_causes(console: Console, answer: Answer, result: JsonObject) -> None:
    failures = []
    for cause, found in zip(answer.report.causes, result["causes"], strict=True):
        shown = answer.bad_run.shown
        if _in_one_process(cause, answer.settings):
            shown = replace(shown, seen=replace(shown.seen, rank=None))
        failures.append(f"the run {text.failure(shown, found['step'])}.{_counted(cause, answer)}")
    since = ""
    if answer.origin is not None:
        since = f"Shown {text.since(answer.origin)}{', and from step 0' if answer.proven else ''}."
    since = " ".join(filter(None, (since, _watched_for(answer))))
    print_isolated(console, answer.report, failures, since, result["not_varied"])
    _print_where(console, result["where"])
    _print_rows(console, answer)
    print_recommendation(console, answer, result)


def _watched_for(answer: Answer) -> str:
    """How long the runs were watched on whose passing the causes rest; "" where they came to their own end."""
    claims = [claim for cause in answer.report.causes for claim in cause.evidence.without.values()]
    runs = (answer.details.get(number, {}).get("observation") for claim in claims for number in claim.trials)
    steps = [one["steps"] for one in runs if one and one["ended"] == Ended.HORIZON]
    return f"Passing runs were watched for {min(steps)} steps: a failure that comes later is not seen." if steps else ""


def _in_one_process(cause: Cause, settings: Factors) -> bool:
    """Whether a cause was seen to fail in one process, whatever the user starts."""
    subset = cause.evidence.fails.subset
    return subset is not None and configuration_of(subset, settings.good, settings.bad).get(PROCESSES) == 1


def _counted(cause: Cause, answer: Answer) -> str:
    """Where its trials take their data in other steps than the user's run, so that a step has another number."""
    seen = (answer.details.get(number, {}).get("observation") for number in cause.evidence.fails.trials)
    began = next((one["before"] for one in seen if one), None)
    if answer.origin is None or not began or began == answer.origin.step:
        return ""
    return (
        f" (Its steps take other amounts of data than yours: it began at its step {began}, your {answer.origin.step}.)"
    )


def _print_rows(console: Console, answer: Answer) -> None:
    if answer.rows is not None:
        console.print(
            Text.assemble(("Row    " if len(answer.rows.guilty) == 1 else "Rows   ", "bold"), answer.rows.said())
        )


def _print_where(console: Console, where: JsonObject | None) -> None:
    if where is None:
        return
    console.print()
    lines = text.where(where)
    console.print(Hanging(Text.assemble(("Where  ", "bold"), lines[0])))
    print_lines(console, lines[1:])
