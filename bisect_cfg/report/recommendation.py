"""The recommendation: what to use instead, what that rests on, and the lines to change."""

from __future__ import annotations

from collections.abc import Sequence

from bisect_cfg.common.configuration import UNSET, Configuration, configuration_of, equal
from bisect_cfg.common.json_files import JsonObject, write_text
from bisect_cfg.probe.redact import scrub
from bisect_cfg.remedy.proposals import Safe
from bisect_cfg.remedy.remedy import Proposal, RemedyStatus
from bisect_cfg.remedy.remedy import Remedy as FoundRemedy
from bisect_cfg.report.answer import UNTRIED, KnownIssue, Recommendation, Remedy
from bisect_cfg.report.findings import Findings
from bisect_cfg.rewrite.edits import edits_for
from bisect_cfg.rewrite.recommended import Change, Unplaced
from bisect_cfg.rewrite.safe_config import TITLE, diff_of_values, safe_config
from bisect_cfg.store.causes import Cause, Claim, Report
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import PACKAGE

Changes = dict[str, Change]
"""Setting -> what it is changed from, and to."""

UNVERIFIED = "Found by bisect-cfg: NOT VERIFIED over a longer horizon; short runs of it were healthy."
PASSED = "Found by bisect-cfg: your configuration with the least change that passed (short runs, not verified)."


def recommendation_of(found: Findings, issue: KnownIssue | None = None) -> Recommendation | None:
    """A configuration next to the user's own that trains, what it gives up, and the evidence.

    Without the phase that looks for safe values it is the correction that passed most often, which nobody has
    verified. None if there is nothing to recommend."""
    report, settings = found.report, found.settings
    if report is None or settings is None:
        return None
    safe, best = found.safe, _unverified(report, settings, found.horizon) if found.safe is None else found.safe.best
    if best is None:
        return None
    known = _remedy(found, settings, best)
    if safe is None:
        known["status"] = None  # of a phase that was left out
    else:
        known["alternatives"] = tuple(
            Remedy(**_remedy(found, settings, one)) for one in safe.remedies if one is not best
        )
        known["unsettled"], known["not_kept"] = tuple(_unsettled(safe)), tuple(safe.not_kept)
    if best.status is RemedyStatus.OPEN:
        known["evidence"] = _seen_in_search(report, settings, best)
    tried = known["verified"] and all(name.startswith(PACKAGE) for name in known["changes"])  # what would come first
    known["first"] = "" if tried else first_of_all(report.causes, issue)
    known["configuration"] = {**settings.bad, **best.changes}
    if not settings.seen:
        ran = [found.details[number]["observation"]["steps"] for number in (best.passed if found.horizon else ())]
        known["steps"] = min(ran, default=None)
        return Recommendation(**known, **_places(found, settings, known["changes"]))
    if safe is not None:
        known["seeds"], known["full_rate"] = safe.seeds, str(safe.full_rate)
    return Recommendation(**known, **_places(found, settings, known["changes"]))


def rejected_remedies(found: Findings) -> tuple[Remedy, ...]:
    """What was tried where nothing can be recommended."""
    if found.safe is None or found.safe.best is not None or found.settings is None:
        return ()
    return tuple(Remedy(**_remedy(found, found.settings, one)) for one in found.safe.remedies)


def title_of(found: Recommendation) -> str:
    """The first line of safe_config.yaml."""
    if found.verified:
        return TITLE
    return UNVERIFIED if found.status == RemedyStatus.HEALTHY else PASSED


def write_safe_config(found: Findings, recommended: Recommendation | None) -> None:
    """Write safe_config.yaml and safe_config.diff into the folder of the study; remove them where nothing is
    recommended any more."""
    yaml, diff = found.folder / "safe_config.yaml", found.folder / "safe_config.diff"
    if recommended is None:
        yaml.unlink(missing_ok=True)
        diff.unlink(missing_ok=True)
        return
    write_text(yaml, _safe_config(found, recommended))
    write_text(diff, recommended.diff)


def _safe_config(found: Findings, recommended: Recommendation) -> str:
    """The user's own YAML file with the changes, if one configured the run; else the training config as YAML."""
    changes = recommended.changes
    return safe_config(found.places, changes, edits_for(found.places, changes), title_of(recommended))


def _unverified(report: Report, settings: Factors, horizon: int | None) -> FoundRemedy | None:
    """What there is without the phase that looks for safe values: of the corrections that always passed, the one that
    was run most often, as the certificate rests on it; else the passing configuration nearest to the user's."""
    safe = report.safe_configuration
    if safe is None:
        return None
    passed = [one.passes for one in report.corrections if one.passes.seen == one.passes.runs > 0]
    most = max(passed, key=lambda claim: claim.runs, default=None)
    if most is not None and most.subset is not None:
        safe = configuration_of(most.subset, settings.good, settings.bad)
    levels = {name: safe.get(name, UNSET) for name in settings.bad}
    changes = {name: value for name, value in levels.items() if not equal(value, settings.bad[name])}
    proposal = Proposal(changes, resets=tuple(changes))
    return FoundRemedy(proposal, changes, RemedyStatus.OPEN, steps=horizon or 0, tried=True)


def _remedy(found: Findings, settings: Factors, remedy: FoundRemedy) -> JsonObject:
    """The fields of `Remedy`."""
    changes = _changes({**settings.resolved, **settings.bad}, {**settings.bad, **remedy.changes})
    untried = remedy.status is RemedyStatus.OPEN and not (remedy.tried or (found.safe and remedy is found.safe.best))
    runs = len(remedy.passed)
    return {
        "changes": changes,
        "verified": remedy.status is RemedyStatus.VERIFIED,
        "status": UNTRIED if untried else remedy.status,
        "evidence": Claim(None, runs, runs, remedy.passed),
        "steps": (remedy.steps or None) if found.horizon or settings.seen else None,
        "failure_rate_at_most": None if remedy.bound is None else round(remedy.bound, 4),
        "ranges": dict(remedy.ranges),
        "why": remedy.proposal.why,
        "source": remedy.proposal.source,
        "rejected": remedy.rejected,
        "died": remedy.died,
        "stepped_back": remedy.stepped_back,
        "gives_up": remedy.loss,
    }


def _seen_in_search(report: Report, settings: Factors, remedy: FoundRemedy) -> Claim | None:
    """How often a remedy passed as a correction, where nothing else speaks for it."""
    names = set(remedy.changes)
    rest = {factor.name for factor in settings.varied} - names
    for correction in report.corrections:
        claim = correction.passes
        if claim.subset is not None and (set(claim.subset) == rest or set(correction.parameters) == names):
            return claim
    return None


def _changes(known: Configuration, safe: Configuration) -> Changes:
    """name -> from, to; settings that only an alternative names come from the script's own value."""
    return {name: Change(known.get(name), value) for name, value in safe.items() if not equal(value, known.get(name))}


def first_of_all(causes: Sequence[Cause], issue: KnownIssue | None) -> str:
    """What to say before any setting when the trigger is not the fault; "" if there is nothing."""
    if issue is None or not issue.environment:
        return ""
    named = sorted({name for cause in causes for name in cause.levels})
    return f"{issue.cures[0].strip()} Then keep {', '.join(named)}: the change below is only the workaround."


def _unsettled(safe: Safe) -> list[str]:
    """Why the phase ended before its time, and of each remedy that it had begun what is open."""
    if not safe.spent:
        return []
    begun = [remedy for remedy in safe.remedies if remedy.tried or remedy is safe.best]
    return [safe.spent, *(f"{', '.join(remedy.changes)}: {what}" for remedy in begun for what in remedy.unsettled)]


# ----------------------------------------------------------------------------------------------- what to change


def _places(found: Findings, settings: Factors, changes: Changes) -> JsonObject:
    """The fields of `Recommendation` that say where to make the changes in the user's files and command."""
    edits = edits_for(found.places, changes)
    diff = edits.diff
    if settings.seen and (edits.unplaced or not diff):
        diff = diff_of_values(settings, changes)
    missing = tuple(Unplaced(one.setting, scrub(one.why), scrub(one.add)) for one in edits.unplaced)
    return {
        "edits": edits.shown(),
        "diff": "".join(map(scrub, diff.splitlines(keepends=True))),
        "not_located": tuple(one.setting for one in missing),
        "unplaced": missing,
        "command": edits.command or None,
    }
