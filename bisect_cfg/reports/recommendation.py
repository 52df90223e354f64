"""The recommendation as data: what to use instead, what that rests on, and the lines to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bisect_cfg.common.configuration import UNSET, Configuration, configuration_of, equal
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import scrub
from bisect_cfg.remedy.alternatives import published_for
from bisect_cfg.remedy.proposals import Safe
from bisect_cfg.remedy.remedy import Proposal, Remedy, RemedyStatus, SafeRange
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.reports.text import show
from bisect_cfg.rewrite.edits import edits_for, places_of
from bisect_cfg.rewrite.safe_config import TITLE, diff_of_values
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
    places = places_of(answer.script, answer.settings, answer.bad_run)
    if isinstance(answer.script, CommandTarget):
        for name in ("seeds", "full_rate"):  # a command has none
            found.pop(name, None)
        ran = [answer.details[number]["observation"]["steps"] for number in (best.passed if answer.horizon else ())]
        return {**found, "steps": min(ran, default=None), **edits_for(places, found["changes"]).to_json()}
    edits = edits_for(places, found["changes"])
    found |= edits.to_json()
    if edits.unplaced or not found["diff"]:
        found["diff"] = "".join(
            scrub(line) for line in diff_of_values(answer.settings, found["changes"]).splitlines(keepends=True)
        )
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
