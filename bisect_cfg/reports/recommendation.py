"""The recommendation as data: what to use instead, what that rests on, and the lines to change."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bisect_cfg.common.configuration import UNSET, Configuration, configuration_of, equal
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.protocol import NAMESPACE, Assigned, Opened
from bisect_cfg.probe.redact import scrub
from bisect_cfg.recommend.edits import Change, Edit, Edits, configures, find_edits
from bisect_cfg.remedy.alternatives import published_for
from bisect_cfg.remedy.proposals import Safe
from bisect_cfg.remedy.remedy import Proposal, Remedy, RemedyStatus, SafeRange
from bisect_cfg.reports.command_answer import changed_command
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.reports.safe_config import TITLE, YAML, safe_yaml
from bisect_cfg.reports.text import show
from bisect_cfg.store.causes import Cause, Claim
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import PACKAGE

Changes = Mapping[str, JsonObject]
"""Setting -> "from" and "to", as in result.json."""

PUBLISHED = 4
"""How many published values are shown beside a setting."""

UNTRIED = "untried"
"""The status of an alternative that no run says anything about."""

UNVERIFIED = "Found by bisect-cfg: NOT VERIFIED over a longer horizon; short runs of it were healthy."
PASSED = "Found by bisect-cfg: your configuration with the least change that passed (short runs, not verified)."


def recommendation(answer: Answer, issue: JsonObject | None = None) -> JsonObject | None:
    """A configuration next to the user's own that trains, what it gives up, and the evidence.

    Without the phase that looks for safe values it is the correction that passed most often, which nobody has
    verified. None if there is nothing to recommend.

    Args:
        answer: of the bisection.
        issue: the known issue behind the failure, if there is one.
    """
    if answer.report is None or answer.settings is None:
        return None
    safe, best = answer.safe, _unverified(answer) if answer.safe is None else answer.safe.best
    if best is None:
        return None
    found = {"configuration": {**answer.settings.bad, **best.changes}, **_as_data(answer, best)}
    if best.status is RemedyStatus.OPEN:
        found["evidence"] = _seen_in_search(answer, best)
    if safe is None:
        del found["status"]  # of a phase that was left out
    else:
        found["alternatives"] = [_as_data(answer, remedy) for remedy in safe.remedies if remedy is not best]
        found["seeds"] = list(safe.seeds)
        found["full_rate"] = str(safe.full_rate)
        found["unsettled"] = _unsettled(safe)
        found["not_kept"] = safe.not_kept
    tried = found["verified"] and all(name.startswith(PACKAGE) for name in found["changes"])  # what would come first
    found["first"] = "" if tried else first_of_all(answer.report.causes, issue)
    if isinstance(answer.script, CommandTarget):
        for name in ("seeds", "full_rate"):  # a command has none
            found.pop(name, None)
        ran = [answer.details[number]["observation"]["steps"] for number in (best.passed if answer.horizon else ())]
        return {**found, "steps": min(ran, default=None), **changed_command(answer.script, found["configuration"])}
    edits = edits_of(answer, found["changes"])
    found["edits"] = [_edit(edit) for edit in edits.edits]
    found["diff"] = "" if edits.unplaced else edits.diff
    if not found["diff"]:
        found["diff"] = _yaml_diff(answer.settings, found["configuration"])
    found["diff"] = "".join(scrub(line) for line in found["diff"].splitlines(keepends=True))
    found["not_located"] = [missing.name for missing in edits.unplaced]
    found["unplaced"] = [
        {"setting": missing.name, "why": scrub(missing.why), "add": scrub(missing.add)} for missing in edits.unplaced
    ]
    return found


def title_of(found: JsonObject) -> str:
    """The first line of safe_config.yaml."""
    if found["verified"]:
        return TITLE
    return UNVERIFIED if found.get("status") == RemedyStatus.HEALTHY else PASSED


def _unverified(answer: Answer) -> Remedy | None:
    """What there is without the phase that looks for safe values: of the corrections that always passed, the one that
    was run most often, as the certificate rests on it; else the passing configuration nearest to the user's."""
    report, settings = answer.report, answer.settings
    safe = report.safe_configuration
    if safe is None:
        return None
    tested = [c for c in report.corrections if c.passes.subset is not None and c.passes.seen == c.passes.runs > 0]
    if tested:
        most = max(tested, key=lambda correction: correction.passes.runs)
        safe = configuration_of(most.passes.subset, settings.good, settings.bad)
    levels = {name: safe.get(name, UNSET) for name in settings.bad}
    changes = {name: value for name, value in levels.items() if not equal(value, settings.bad[name])}
    return Remedy(
        Proposal(changes, resets=tuple(changes)), changes, RemedyStatus.OPEN, steps=answer.horizon, tried=True
    )


def _as_data(answer: Answer, remedy: Remedy) -> JsonObject:
    """A remedy in the form of result.json."""
    settings = answer.settings
    changes = _changes(settings, {**settings.bad, **remedy.changes})
    known = {**settings.resolved, **settings.bad}
    untried = (
        remedy.status is RemedyStatus.OPEN and not remedy.tried and not (answer.safe and remedy is answer.safe.best)
    )
    return {
        "changes": changes,
        "verified": remedy.status is RemedyStatus.VERIFIED,
        "status": UNTRIED if untried else remedy.status,
        "evidence": {"seen": len(remedy.passed), "runs": len(remedy.passed), "trials": list(remedy.passed)},
        "steps": remedy.steps if answer.horizon or not isinstance(answer.script, CommandTarget) else None,
        "failure_rate_at_most": None if remedy.bound is None else round(remedy.bound, 4),
        "ranges": {found.name: _range(found) for found in remedy.ranges},
        "why": remedy.proposal.why,
        "source": remedy.proposal.source,
        "rejected": remedy.rejected,
        "stepped_back": remedy.stepped_back,
        "gives_up": remedy.loss,
        "published": {
            name: [
                {"value": one.value, "recipe": one.recipe, "source": one.source, "note": one.note}
                for one in published_for(name, known)[:PUBLISHED]
            ]
            for name in changes
        },
    }


def _seen_in_search(answer: Answer, remedy: Remedy) -> JsonObject | None:
    """How often a remedy passed as a correction, where nothing else speaks for it."""
    names = set(remedy.changes)
    rest = {factor.name for factor in answer.settings.varied} - names
    for correction in answer.report.corrections:
        claim = correction.passes
        if claim.subset is not None and (set(claim.subset) == rest or set(correction.parameters) == names):
            return as_claim(claim)
    return None


def _range(found: SafeRange) -> JsonObject:
    return {
        "good": found.good,
        "bad": found.bad,
        "healthy_up_to": found.healthy,
        "not_from": found.unhealthy,
        "settled": found.settled,
        "trials": list(found.trials),
        "shown": found.shown,
    }


def _changes(settings: Factors, safe: Configuration) -> Changes:
    """name -> from, to; settings that only an alternative names come from the script's own value."""
    known = {**settings.resolved, **settings.bad}
    return {
        name: {"from": known.get(name), "to": value}
        for name, value in safe.items()
        if not equal(value, known.get(name))
    }


def first_of_all(causes: Sequence[Cause], issue: JsonObject | None) -> str:
    """What to say before any setting when the trigger is not the fault; "" if there is nothing.

    Args:
        causes: of the report.
        issue: the known issue behind the failure.
    """
    if issue is None or not issue.get("environment"):
        return ""
    named = sorted({name for cause in causes for name in cause.parameters})
    return f"{issue['cures'][0].strip()} Then keep {', '.join(named)}: the change below is only the workaround."


def _unsettled(safe: Safe) -> list[str]:
    """Why the phase ended before its time, and of each remedy that it had begun what is open."""
    if not safe.spent:
        return []
    begun = [remedy for remedy in safe.remedies if remedy.tried or remedy is safe.best]
    return [safe.spent, *(f"{', '.join(remedy.changes)}: {what}" for remedy in begun for what in remedy.unsettled)]


# ----------------------------------------------------------------------------------------------- what to change


def edits_of(answer: Answer, changes: Changes) -> Edits:
    """Where changes (name -> from, to) are to be made in the user's command and files."""
    args, traces = answer.settings.capture.args, answer.bad_run.traces
    script = Path(os.path.abspath(answer.script.path))
    imported = dict.fromkeys(Path(row.path) for row in traces.all(Opened) if row.mode == "m")
    own = [path for path in imported if path != script and path.is_relative_to(script.parent)]
    assigned = {row.name for row in traces.all(Assigned) if row.index == args.index}
    return find_edits(
        wanted_changes(answer, changes),
        answer.script.arguments,
        [answer.script.runs, *own],
        configured_by(answer),
        config=args.cls,
        fields=args.types,
        assigned=assigned,
        launcher=_words_of_launcher(answer),
        notebook=None if answer.script.notebook is None else answer.script.path,
        built=_built(answer.settings),
    )


def _built(settings: Factors) -> dict[str, tuple[str, int]]:
    """Where the objects of the configuration were built: namespace -> file and line."""
    found = (*settings.capture.others.values(), settings.capture.args)
    return {NAMESPACE.get(one.kind, one.kind): one.place for one in found if one.place is not None}


def _words_of_launcher(answer: Answer) -> tuple[str, ...]:
    """The words of the command that the launcher takes its settings from."""
    launch = answer.script.launch
    if launch is None:
        return ()
    return (*launch.before, *(answer.script.arguments if launch.kind == "trl" else ()))


def wanted_changes(answer: Answer, changes: Changes) -> list[Change]:
    """Changes (name -> from, to) with the values that the user wrote, not what the library made of them."""
    settings = answer.settings
    factors = {factor.name: factor for factor in settings.varied}
    wanted = []
    for name, change in changes.items():
        factor = factors.get(name)
        field, _, key = name.partition(".")
        raw = settings.capture.args.raw.get(field) if factor is None or factor.kind == "args" else change["from"]
        old = change["from"] if key else raw
        added = factor is None and equal(raw, settings.capture.args.defaults.get(field))
        wanted.append(Change(name, old, change["to"], added))
    return wanted


def configured_by(answer: Answer) -> list[Path]:
    """The files that configured the run: those that the command names, and YAML that the script itself opened (a folder
    of Hydra's). JSON and TOML are opened for many other reasons: of them what holds a training config."""
    script, traces = answer.script, answer.bad_run.traces
    named = [Path(name) for name in script.argument_files() if name.endswith((*YAML, ".json", ".toml"))]
    opened = [Path(row.path) for row in traces.all(Opened) if row.mode == "r"]
    deepspeed = answer.settings.capture.deepspeed if answer.settings is not None else None
    if deepspeed is not None and Path(deepspeed.path).resolve() not in [path.resolve() for path in named]:
        named.append(Path(deepspeed.path))
    known = {path.resolve() for path in (*named, *([script.good_file] if script.good_file else ()))}
    fields = answer.settings.capture.args.types if answer.settings is not None else {}
    return named + [
        path
        for path in opened
        if path.is_file()
        and path.resolve() not in known
        and (path.suffix in YAML or (path.suffix in (".json", ".toml") and configures(path, fields)))
    ]


def _edit(edit: Edit) -> JsonObject:
    return {
        "file": None if edit.path is None else str(edit.path),
        "cell": edit.cell,
        "line": edit.line,
        "old": scrub(edit.old),
        "new": scrub(edit.new),
        "settings": list(edit.names),
    }


def _yaml_diff(settings: Factors, safe: Configuration) -> str:
    """The training config as YAML before and after: for scripts whose values could not be located."""
    before = safe_yaml(settings, settings.bad, "your configuration").splitlines(keepends=True)[1:]
    after = safe_yaml(settings, safe, "safe").splitlines(keepends=True)[1:]
    return "".join(difflib.unified_diff(before, after, "your configuration", "safe_config.yaml"))


def as_claim(claim: Claim) -> JsonObject:
    """A claim of the report in the form of result.json."""
    return {
        "subset": None if claim.subset is None else list(claim.subset),
        "seen": claim.seen,
        "runs": claim.runs,
        "trials": list(claim.trials),
        "note": claim.note,
    }


def in_words(changes: Changes) -> str:
    """``learning_rate: 1.7e-05, beta: 0.01``."""
    return ", ".join(f"{name}: {show(change['to'], name)}" for name, change in changes.items())
