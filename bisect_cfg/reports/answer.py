"""The answer as files and as a few lines: result.json, safe_config.yaml, the text at the end of a run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path

from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.common.failures.health import ODDITIES, Symptom
from bisect_cfg.common.json_files import JsonObject, strict, write_json, write_text
from bisect_cfg.common.types import Fingerprint
from bisect_cfg.doctor.placement import findings
from bisect_cfg.explain.match import Match
from bisect_cfg.probe.protocol import Origin, Placed, Raised, to_json
from bisect_cfg.probe.redact import scrub
from bisect_cfg.reports.command_answer import failing_command
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.reports.recommendation import as_claim, recommendation, title_of
from bisect_cfg.reports.said import Line
from bisect_cfg.rewrite.edits import edits_for, places_of
from bisect_cfg.rewrite.safe_config import safe_config
from bisect_cfg.runner.environments import Environments, size_of
from bisect_cfg.runner.ranks import ranks_of
from bisect_cfg.runner.runs import Run, purpose_again
from bisect_cfg.store.causes import Cause, Report, TrialRow, wilson
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.command import CommandTarget

SCHEMA = 1
"""Version of result.json; raised when a key changes its meaning or goes away."""

EXIT_STATUS = {Status.ISOLATED: 0, Status.NO_FAILURE: 1, Status.BASELINE_FAILS: 1, Status.INCONCLUSIVE: 3}

OF_THE_ENVIRONMENT = ("packages", "gpu", "cuda", "cublas")
"""Conditions of a known issue that make it a problem of the environment, whatever setting triggers it."""


def write_answer(
    answer: Answer, environment: Fingerprint, told: Callable[[JsonObject], list[Line]] = lambda result: []
) -> JsonObject:
    """Write result.json (and safe_config.yaml, if there is a safe configuration) into the study folder.

    Args:
        answer: of the phases.
        environment: its fingerprint.
        told: what the terminal says of the content of result.json.

    Returns:
        The content of result.json.
    """
    result = as_result(answer, environment)
    result["said"] = told(result)
    recommended = result["recommendation"]
    yaml, diff = answer.folder / "safe_config.yaml", answer.folder / "safe_config.diff"
    if recommended is not None:
        write_text(yaml, _safe_config(answer, recommended))
        write_text(diff, recommended["diff"])
    else:  # what an earlier pass recommended did not stand a closer look
        yaml.unlink(missing_ok=True)
        diff.unlink(missing_ok=True)
    write_json(answer.folder / "result.json", strict(result))
    return result


def add_trial(folder: Path, row: JsonObject) -> None:
    """Add one more trial to the result.json of a study's folder."""
    path = folder / "result.json"
    result = json.loads(path.read_text("utf-8"))
    result["trials"] = sorted([*result["trials"], strict(row)], key=itemgetter("number"))
    write_json(path, result)


def _safe_config(answer: Answer, recommended: JsonObject) -> str:
    places, changes = places_of(answer.script, answer.settings, answer.bad_run), recommended["changes"]
    return safe_config(places, changes, edits_for(places, changes), title_of(recommended))


# ------------------------------------------------------------------------------------------------------ result.json


def as_result(answer: Answer, environment: Fingerprint) -> JsonObject:
    """The answer in the form of result.json (see the contract in the documentation)."""
    report = answer.report or Report(answer.status)
    trials = report.rows if answer.report is not None else _rows_before(answer)
    issue = known_issue(answer.known)
    result = {
        "schema": SCHEMA,
        "status": answer.status,
        "complete": report.complete,
        "failure": failure_of(answer.bad_run),
        "where": answer.place.to_json() if answer.place is not None else None,
        "placement": placement_of(answer.bad_run),
        **of_report(report),
        "not_varied": answer.settings.not_varied if answer.settings is not None else {},
        **({"reproduction": _again(answer)} if answer.report is None and answer.again else {}),
        "recommendation": recommendation(answer, issue),
        "known_issue": issue,
        "environment": dict(environment),
        "target": {
            "script": str(answer.script.path),
            "arguments": list(answer.script.shown_arguments),
            "command": answer.script.shown,
            **_training(answer.bad_run),
        },
        **({} if answer.environments is None else {"environments": _environments(answer.environments)}),
        "start": answer.start,
        "start_level": answer.start,  # the same, as it was called before
        "horizon": answer.horizon,
        **({"origin": origin_of(answer.origin, answer.proven)} if answer.origin is not None else {}),
        **({"rows": answer.rows.to_json()} if answer.rows is not None else {}),
        "notes": [*answer.notes, *report.notes],
        "warnings": warnings_of(answer),
        "seconds": round(answer.seconds, 2),
        "trials": [_trial(answer, row) for row in trials],
    }
    if isinstance(answer.script, CommandTarget):
        for cause, told in zip(report.causes, result["causes"], strict=True):
            told |= failing_command(answer.script, cause.evidence.fails.subset or cause.parameters)
    text = simulated(answer.bad_run) or simulated(answer.good_run)  # one that dies before it trains does not say it
    if text:
        result["simulated"] = text
    return result


def _environments(environments: Environments) -> JsonObject:
    """The environments of trials with other packages: how many, what this call has built of them, what they take."""
    return {
        "folder": str(environments.folder),
        "used": len(environments.used),
        "built": len(environments.built),
        "seconds": round(sum(one.seconds or 0.0 for one in environments.built), 2),
        "bytes": sum(map(size_of, environments.used)),
    }


def origin_of(origin: Origin, proven: bool | None) -> JsonObject:
    """Where the trials began, and whether the claims were proven from step 0."""
    kind = "data" if origin.checkpoint is None else "state"
    return {"kind": kind, "step": origin.step, "checkpoint": origin.checkpoint, "proven_from_start": proven}


def _training(run: Run | None) -> JsonObject:
    """Which training of the script the answer is about."""
    capture = read_capture(run.traces.events.rows) if run is not None else None
    if capture is None:
        return {}
    return {"training": capture.training.number, "trainer": capture.training.trainer, "config": capture.args.cls}


def simulated(run: Run | None) -> str:
    """What a study says of a fault it simulates, "" for a natural one."""
    if run is None:
        return ""
    begun = run.traces.begun
    if begun is not None:
        return begun.simulated or ""
    return "" if run.traces.events.rows else _printed_simulation(run)


def _printed_simulation(run: Run) -> str:
    """What a command without a probe prints of it."""
    try:
        text = (run.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^SIMULATED_FAULT: (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def failure_of(run: Run | None) -> JsonObject | None:
    """The failure under study: kind, signal or exception, message, step."""
    if run is None or run.shown.signature is None:
        return None
    signature, seen = run.shown.signature, run.seen
    failure: JsonObject = {"kind": signature.kind}
    exception = run.failing[1].event(Raised)
    if signature.kind == "signal":
        failure["signal"] = signature.name
    elif signature.kind == "non-finite":
        failure["quantity"] = signature.name
    elif signature.kind == "exception":
        failure["exception"] = signature.name
    if exception is not None and signature.kind != "signal":
        failure["exception"] = exception.type
    text = run.shown.message
    text = text if seen.rank is None else f"rank {seen.rank}: {text}"
    text += f" in {seen.place}" if seen.place else ""
    if seen.after:
        text += f"; {seen.after}" if signature.kind == "hang" else f", then {seen.after}"
    return {
        **failure,
        "message": scrub(text),
        "where": signature.where,
        "step": run.shown.step_of_training,
        "signature": str(signature),
    }


def placement_of(run: Run | None) -> JsonObject | None:
    """Where the models of a run were, by rank, and what is odd about it; None if it never came to train."""
    if run is None:
        return None
    each = {rank.number: rank.traces for rank in ranks_of(run.traces)} or {0: run.traces}
    told = {number: placed.models for number, traces in each.items() if (placed := traces.event(Placed)) is not None}
    if not told:
        return None
    begun = run.traces.begun
    found = findings(told, begun.in_force.get("distributed_type", "") if begun is not None else "")
    ranks = {str(number): [to_json(model) for model in models] for number, models in told.items()}
    return {"ranks": ranks, "findings": [finding.to_json() for finding in found]}


def of_report(report: Report) -> JsonObject:
    """What a bisection concluded, in the form of result.json."""
    return {
        "complete": report.complete,
        "causes": [_cause(cause, report.rows) for cause in report.causes],
        "corrections": [
            {"parameters": list(correction.parameters), "passes": as_claim(correction.passes)}
            for correction in report.corrections
        ],
        "masking": [{"settings": list(settings), "hide": list(cause)} for settings, cause in report.masking],
        "reproduction": {"rate": report.reproduction_rate, "interval_95": list(report.reproduction_interval or ())},
    }


def _again(answer: Answer) -> JsonObject:
    """How often the failure showed where it was seen once."""
    runs = 1 + len(answer.again)
    return {"rate": 1 / runs, "interval_95": list(wilson(1, runs))}


def _step(cause: Cause, rows: Sequence[TrialRow]) -> int | None:
    """The step at which a cause fails by itself: that of the first run that shows it."""
    proof = cause.evidence.fails.trials
    return next((row.step for row in rows if row.number in proof and row.outcome is Outcome.FAIL), None)


def _cause(cause: Cause, rows: Sequence[TrialRow]) -> JsonObject:
    return {
        "step": _step(cause, rows),
        "parameters": {name: dict(cause.values[name]) for name in cause.parameters},
        "companions": list(cause.companions),
        "inseparable": list(cause.inseparable),
        "signature": cause.signature,
        "evidence": {
            "fails": as_claim(cause.evidence.fails),
            "passes_without": {name: as_claim(claim) for name, claim in cause.evidence.without.items()},
        },
    }


def _trial(answer: Answer, row: TrialRow) -> JsonObject:
    if answer.report is None:
        return row.record()
    details = answer.details.get(row.number, {})
    return {
        **row.record(),
        "values": {**row.values, **details.get("extra", {})},
        **{name: details[name] for name in ("seed", "suspicion") if name in details},
        "folder": f"trials/{details.get('folder', row.number)}",
        "start": details.get("level"),
        "level": details.get("level"),
        "remarks": [remark.text for remark in _remarks(answer, row.number)],
    }


def _rows_before(answer: Answer) -> tuple[TrialRow, ...]:
    """The trials of a study that never came to its search: the baselines."""
    again = [(purpose_again(run.start), run) for run in answer.again]
    ends = [(Purpose.BAD_BASELINE, answer.bad_run), *again, (Purpose.GOOD_BASELINE, answer.good_run)]
    return tuple(_row_before(run, purpose) for purpose, run in ends if run is not None)


def _row_before(run: Run, purpose: Purpose) -> TrialRow:
    shown = run.shown
    signature = None if shown.signature is None else str(shown.signature)
    number = int(run.folder.name)
    return TrialRow(number, shown.outcome, signature, run.seen.seconds, shown.step_of_training, purpose)


def known_issue(match: Match | None) -> JsonObject | None:
    """What is known about this failure; of several causes that for which the log speaks."""
    if match is None:
        return None
    entry = match.entry
    return {
        "id": entry.id,
        "title": match.title,
        "why": match.why,
        "cures": list(match.cures),
        "sources": list(entry.sources),
        "environment": any(name in entry.conditions for name in OF_THE_ENVIRONMENT),
    }


def warnings_of(answer: Answer) -> list[JsonObject]:
    """Oddities of trials that passed: worth knowing, not the failure under study. One entry a metric."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in answer.report.rows if answer.report is not None else ():
        if row.outcome is Outcome.PASS:
            for remark in _remarks(answer, row.number):
                found.setdefault((remark.kind, remark.name), []).append(row.number)
    return [
        {
            "text": f"{ODDITIES[kind].format(name)} in trials that passed nevertheless",
            "trials": numbers,
        }
        for (kind, name), numbers in found.items()
    ]


def _remarks(answer: Answer, number: int) -> list[Symptom]:
    """The oddities of a trial."""
    return [Symptom(**one) for one in answer.details.get(number, {}).get("remarks", ())]


# ------------------------------------------------------------------------------------------------ commands by hand


def commands(answer: Answer) -> dict[str, str]:
    """Shell commands that repeat the minimal failing run of the proof and the nearest passing one by hand, cold."""
    if answer.report is None:
        return {}
    rows = answer.report.rows
    told = {
        "causes": [_cause(cause, rows) for cause in answer.report.causes],
        "trials": [_trial(answer, row) for row in rows],
        "origin": {} if answer.origin is None else origin_of(answer.origin, answer.proven),
    }
    return {label: f"sh {shlex.quote(short_path(path))}" for label, path in by_hand(told, answer.folder).items()}


def by_hand(result: JsonObject, folder: Path) -> dict[str, Path]:
    """The files that repeat the last passing and the last failing run of the first cause's evidence that have one.

    Args:
        result: what result.json says. Where trials began at a checkpoint that is gone, as one of the tool's own is at
            the end, nothing can be repeated.
        folder: of the study.
    """
    checkpoint = result.get("origin", {}).get("checkpoint")
    if not result["causes"] or (checkpoint is not None and not Path(checkpoint).is_dir()):
        return {}
    evidence = result["causes"][0]["evidence"]
    passing = [number for claim in evidence["passes_without"].values() for number in claim["trials"]]
    trials = {row["number"]: row for row in result["trials"]}
    found = {}
    for label, numbers, outcome in (
        ("nearest passing", passing, Outcome.PASS),
        ("minimal failing", evidence["fails"]["trials"], Outcome.FAIL),
    ):
        rows = [trials[number] for number in numbers if number in trials]
        files = [folder / row["folder"] / "command.sh" for row in rows if row["outcome"] == outcome.value]
        if there := [path for path in files if path.exists()]:
            found[label] = there[-1]
    return found


def short_path(path: Path) -> str:
    """A path relative to where the user is, if it lies there."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
