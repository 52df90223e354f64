"""The answer of a study, made of what the phases found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from msgspec import structs

from bisect_cfg.common.configuration import Purpose, Status, configuration_of, present
from bisect_cfg.common.failures.health import ODDITIES, Symptom
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.doctor.placement import findings as placement_findings
from bisect_cfg.explain.match import Match
from bisect_cfg.probe.protocol import Placed, Raised, ResumeSkipped, TrainEnd, to_json
from bisect_cfg.probe.redact import scrub
from bisect_cfg.report.answer import Answer, Failure, KnownIssue, Origin, Placement, Target, Warnings, of_plain, plain
from bisect_cfg.report.findings import Findings
from bisect_cfg.report.recommendation import recommendation_of, rejected_remedies
from bisect_cfg.report.sentences import failure as sentence
from bisect_cfg.runner.environments import Environments, size_of
from bisect_cfg.runner.ranks import ranks_of
from bisect_cfg.runner.runs import Run, purpose_again
from bisect_cfg.store.causes import RETURNED_FALSE, Cause, ConfigFile, Levels, Report, Reproduction, Trial, wilson
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.launch_settings import PROCESSES
from bisect_cfg.targets.pinned import pinned_by_name

OF_THE_ENVIRONMENT = ("packages", "gpu", "cuda", "cublas")
"""Conditions of a known issue that make it a problem of the environment, whatever setting triggers it."""

SUBJECT = "the trial "
"""Messages about a function are sentences about its trial; those of exceptions are their type and text."""

_SIMULATED = re.compile(r"^SIMULATED_FAULT: (.*)$", re.MULTILINE)


def answer_of(found: Findings, environment: Fingerprint) -> Answer:
    """The answer of a study of a script or a command."""
    report = found.report or Report(found.status)
    issue = known_issue(found.known)
    origin = None
    if found.origin is not None:
        kind = "data" if found.origin.checkpoint is None else "state"
        origin = Origin(kind, found.origin.step, found.origin.checkpoint, found.proven)
    searched = _searched(report)
    answer = structs.replace(
        searched,
        status=found.status,
        trials=tuple(_trials(found)),
        failure=failure_of(found.bad_run),
        good_failure=failure_of(found.good_run) if found.report is None else None,
        good_tried=found.tried,
        good_reasons=tuple(map(scrub, found.reasons)),
        where=found.place,
        only_failing=found.contrast,
        placement=_placement(found.bad_run),
        causes=() if found.bad_run is None else tuple(_cause(found, found.bad_run, cause) for cause in report.causes),
        reproduction=_seen_once(found) if found.report is None and found.again else searched.reproduction,
        not_varied=dict(found.settings.not_varied) if found.settings is not None else {},
        unvaried=_unvaried(found),
        recommendation=recommendation_of(found, issue),
        rejected=rejected_remedies(found),
        known_issue=issue,
        environment=dict(environment),
        environments=None if found.environments is None else _environments(found.environments),
        cluster=found.cluster,
        target=_target(found),
        start=found.start,
        horizon=found.horizon,
        origin=origin,
        rows=None if found.rows is None else found.rows.to_json(),
        placebo=found.placebo,
        notes=(*found.notes, *searched.notes),
        warnings=tuple(_warnings(found)),
        # One that dies before it trains does not say it.
        simulated=simulated(found.bad_run) or simulated(found.good_run),
        seconds=round(found.seconds, 2),
    )
    return of_plain(plain(answer))


def answer_of_report(report: Report) -> Answer:
    """The answer of a bisection of a function, which has no folder; without its trials."""
    message = (report.message or report.signature or "").rstrip(".")
    text = "" if report.signature in (None, RETURNED_FALSE) else message.removeprefix(SUBJECT)
    if text and not message.startswith(SUBJECT):
        text = f"fails: {message}"
    failure = Failure(message=message, signature=report.signature, text=text) if report.signature else None
    causes = tuple(structs.replace(cause, text=text) for cause in report.causes)
    return structs.replace(_searched(report), failure=failure, causes=causes)


def _searched(report: Report) -> Answer:
    """What the search says of any study: all but its failure, its causes and its trials."""
    return Answer(
        report.status,
        complete=report.complete,
        corrections=report.corrections,
        masking=report.masking,
        reproduction=report.reproduction,
        safe_configuration=None if report.safe_configuration is None else dict(report.safe_configuration),
        stopped=report.stopped,
        notes=report.notes,
        seconds=report.seconds,
    )


def simulated(run: Run | None) -> str:
    """What a study says of a fault it simulates, "" for a natural one."""
    if run is None:
        return ""
    begun = run.traces.begun
    if begun is not None:
        return begun.simulated or ""
    if run.traces.events.rows:
        return ""
    try:  # a command without a probe prints it
        printed = _SIMULATED.search((run.folder / "log.txt").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return printed[1].strip() if printed else ""


# --------------------------------------------------------------------------------------------------------- failures


def failure_of(run: Run | None) -> Failure | None:
    """The failure that a run shows; None if it shows none."""
    if run is None or run.shown.signature is None:
        return None
    signature, seen = run.shown.signature, run.seen
    exception = run.failing[1].event(Raised)
    named = signature.name if signature.kind == "exception" else None
    if exception is not None and signature.kind != "signal":
        named = exception.type
    message = run.shown.message if seen.rank is None else f"rank {seen.rank}: {run.shown.message}"
    message += f" in {seen.place}" if seen.place else ""
    if seen.after:
        message += f"; {seen.after}" if signature.kind == "hang" else f", then {seen.after}"
    return Failure(
        signature.kind,
        scrub(message),
        str(signature),
        scrub(sentence(run.shown)),
        signature.name if signature.kind == "signal" else None,
        named,
        signature.name if signature.kind == "non-finite" else None,
        signature.where,
        run.shown.step_of_training,
        f"trials/{run.folder.name}/log.txt",
    )


def known_issue(match: Match | None) -> KnownIssue | None:
    """What is known about this failure; of several causes that for which the log speaks."""
    if match is None:
        return None
    entry = match.entry
    environment = any(name in entry.conditions for name in OF_THE_ENVIRONMENT)
    return KnownIssue(entry.id, match.title, match.why, tuple(match.cures), tuple(entry.sources), environment)


def _placement(run: Run | None) -> Placement | None:
    """None if it never came to train."""
    if run is None:
        return None
    each = {rank.number: rank.traces for rank in ranks_of(run.traces)} or {0: run.traces}
    seen = {number: placed.models for number, traces in each.items() if (placed := traces.event(Placed)) is not None}
    if not seen:
        return None
    begun = run.traces.begun
    odd = placement_findings(seen, begun.in_force.get("distributed_type", "") if begun is not None else "")
    ranks = {str(number): [to_json(model) for model in models] for number, models in seen.items()}
    return Placement(ranks, tuple(odd))


# ----------------------------------------------------------------------------------------------------------- causes


def _cause(found: Findings, bad_run: Run, cause: Cause) -> Cause:
    """A cause with what the user's run does with it."""
    proof = cause.evidence.fails
    rows = () if found.report is None else found.report.rows
    step = next((row.step for row in rows if row.number in proof.trials and row.failed), None)
    shown = bad_run.shown
    if _in_one_process(found, proof.subset):
        shown = replace(shown, seen=replace(shown.seen, rank=None))
    located = found.place is not None and found.place.same_failure
    yours = shown.step_of_training
    text = scrub(sentence(shown, step if yours is None else yours, placed=not located))
    if None not in (step, yours) and step != yours:
        text += f" ({'this setting' if len(cause.parameters) == 1 else 'these settings'} alone at step {step})"
    more: JsonObject = {}
    subset = frozenset(proof.subset or cause.parameters)
    settings = present(found.settings)
    again = found.script.by_hand(configuration_of(subset, settings.good, settings.bad))
    if again is not None:
        more = {"command": again.line, "config": again.file and ConfigFile(*again.file)}
    return structs.replace(cause, text=text, step=step, watched=_watched(found, cause), **more)


def _unvaried(found: Findings) -> dict[str, Levels]:
    settings = found.settings
    apart = {} if settings is None else pinned_by_name(settings.capture, settings.not_varied)
    return {name: Levels(*both) for name, both in apart.items()}


def _watched(found: Findings, cause: Cause) -> int | None:
    numbers = (number for claim in cause.evidence.without.values() for number in claim.trials)
    runs = (found.details.get(number, {}).get("observation") for number in numbers)
    return min((run["steps"] for run in runs if run and run.get("at_horizon")), default=None)


def _in_one_process(found: Findings, subset: Sequence[str] | None) -> bool:
    """Whether a cause was seen to fail in one process, whatever the user starts."""
    if subset is None or found.settings is None:
        return False
    return configuration_of(subset, found.settings.good, found.settings.bad).get(PROCESSES) == 1


def _seen_once(found: Findings) -> Reproduction:
    runs = 1 + len(found.again)
    return Reproduction(1 / runs, wilson(1, runs))


# ----------------------------------------------------------------------------------------------------------- trials


def _trials(found: Findings) -> Iterator[Trial]:
    if found.report is None:
        again = [(purpose_again(run.start), run) for run in found.again]
        yield from _ran((Purpose.BAD_BASELINE, found.bad_run), *again, (Purpose.GOOD_BASELINE, found.good_run))
        return
    for row in sorted(found.report.rows, key=attrgetter("number")):
        details = found.details.get(row.number, {})
        yield structs.replace(
            row,
            values={**row.values, **details.get("extra", {})},
            seed=details.get("seed"),
            suspicion=details.get("suspicion"),
            folder=f"trials/{details.get('folder', row.number)}",
            start=details.get("level"),
            metrics=(),  # they are in its folder
            remarks=tuple(remark.text for remark in _remarks(found, row.number)),
        )


def _ran(*ends: tuple[Purpose, Run | None]) -> Iterator[Trial]:
    """The runs of a study whose search has not begun."""
    for purpose, run in ends:
        if run is not None:
            shown, name = run.shown, run.folder.name
            signature = None if shown.signature is None else str(shown.signature)
            outcome, step = shown.outcome.value, shown.step_of_training
            yield Trial(int(name), outcome, purpose.value, signature, run.seen.seconds, step, folder=f"trials/{name}")


def _remarks(found: Findings, number: int) -> list[Symptom]:
    """The oddities of a trial."""
    return [Symptom(**one) for one in found.details.get(number, {}).get("remarks", ())]


def _warnings(found: Findings) -> Iterator[Warnings]:
    """Oddities of trials that passed: worth knowing, not the failure under study. One entry a metric."""
    if found.status == Status.NO_FAILURE and found.bad_run is not None:
        number = int(found.bad_run.folder.name)
        yield from (Warnings(remark.text, (number,)) for remark in found.bad_run.shown.remarks)
    odd: dict[tuple[str, str], list[int]] = {}
    for row in found.report.rows if found.report is not None else ():
        if row.passed:
            for remark in _remarks(found, row.number):
                odd.setdefault((remark.kind, remark.name), []).append(row.number)
    for (kind, name), numbers in odd.items():
        yield Warnings(f"{ODDITIES[kind].format(name)} in trials that passed nevertheless", tuple(numbers))


def _target(found: Findings) -> Target:
    """What was run, and which training of the script the answer is about."""
    script, run = found.script, found.bad_run
    capture = read_capture(run.traces.events.rows) if run is not None else None
    skipped = None if run is None else run.traces.event(ResumeSkipped)
    arguments = tuple(script.shown_arguments)
    resumes_from = None if skipped is None or found.origin is not None else skipped.path
    goes_on = run is not None and run.traces.completed is None and run.traces.event(TrainEnd) is not None
    target = Target(str(script.path), arguments, script.shown, resumes_from=resumes_from, goes_on=goes_on)
    if capture is None:
        return target
    training, config = capture.training, capture.args.cls
    return structs.replace(target, training=training.number, trainer=training.trainer, config=config)


def _environments(environments: Environments) -> JsonObject:
    """The environments of trials with other packages: how many, what this call has built of them, what they take."""
    return {
        "folder": str(environments.folder),
        "used": len(environments.used),
        "built": len(environments.built),
        "seconds": round(sum(one.seconds or 0.0 for one in environments.built), 2),
        "bytes": sum(map(size_of, environments.used)),
    }
