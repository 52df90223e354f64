"""The lines of the fix: what to change and where, how well it trained, what else is known, and how to go on."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bisect_cfg.common.configuration import equal
from bisect_cfg.common.failures.health import SILENT_KINDS
from bisect_cfg.common.words import count, percent, short_path, show
from bisect_cfg.remedy.remedy import Range, RemedyStatus, failure_bound, repeats_for
from bisect_cfg.report.answer import UNTRIED, Answer, Recommendation, Remedy
from bisect_cfg.report.line import ARROW, BY_HAND, COMMAND, DIM, EDIT, NOTE, TEXT, Commands, Line, value_of
from bisect_cfg.rewrite.recommended import Change, ShownEdit
from bisect_cfg.store.causes import Claim

EDIT_LENGTH = 60
"""Lines of the user's files that are shown whole; of longer ones, what changes."""

OTHERS_SHOWN = 4
"""So many other remedies are named."""

MORE_SEEDS = 10
"""What is suggested to whoever wants to be surer: it rules out failure rates above 26 %."""

_ITEMS = re.compile(r"([,()\[\]{}])")


def fix(answer: Answer, study: Commands | None) -> Iterator[Line]:
    """What to use instead; where nothing trained, what was tried, and without a phase that looks, what passed."""
    found = answer.recommendation
    if found is None and answer.rejected:
        yield Line("FIX", "No remedy trained healthily.", NOTE)
        for remedy in answer.rejected:
            yield Line("", f"{_in_words(remedy.changes)}: {remedy.rejected or 'not tried'}.")
        if next_one := next((remedy for remedy in answer.rejected if _dies_of_another(answer, remedy)), None):
            pins = " ".join(f"--pin {name}={show(change.to, name)}" for name, change in next_one.changes.items())
            yield Line("TRY", "That is another failure, which this one hid. To isolate it, too, add to your command:")
            yield Line("", f"{pins} --study ANOTHER", COMMAND)
    elif found is None:
        for one in answer.corrections:
            goods = {name: answer.levels[name].good for name in one.parameters if name in answer.levels}
            reset = ", ".join(f"{name} = {value_of(name, good)}" for name, good in goods.items())
            yield Line("FIX", f"{reset}: that passes {one.passes.seen}/{one.passes.runs}, all else as yours.")
    if found is None:
        return
    first = [Line("", " ".join(found.first.split()))] if found.first else []
    lines = [*first, *_places(found), *_evidence(found, answer, study), *_others(found, answer, study)]
    lines[0] = lines[0]._replace(label="FIX")
    yield from lines


def _places(found: Recommendation) -> Iterator[Line]:
    """What to change and where: in a file, on the command line, or by hand."""
    for edit in found.edits:
        if edit.file is None:
            yield Line("", "on the command line:")
        else:
            path = short_path(os.path.abspath(edit.file))
            yield Line(
                "", f"{path}:{edit.line}" if edit.cell is None else f"{path}, cell {edit.cell}, line {edit.line}"
            )
        yield Line("", _shown(edit), EDIT)
    for one in found.unplaced:
        yield Line("", f"{BY_HAND} {one.add} ({one.why}).".replace(f"{Path.cwd()}/", ""))
    if not found.edits and not found.unplaced:
        yield Line("", _in_words(found.changes) or "your configuration as it is")


def _shown(edit: ShownEdit) -> str:
    old, new = edit.old.strip(), edit.new.strip()
    if len(old) > EDIT_LENGTH and new:
        old, new = _difference(old, new, edit.settings)
    return f"{old}{ARROW}{new or '(remove it)'}" if old else f"add {new}"


def _difference(old: str, new: str, settings: Sequence[str]) -> tuple[str, str]:
    """Of a long line, a whole call in one, the items that differ, if they name the settings."""
    left, right = _ITEMS.split(old), _ITEMS.split(new)
    same = len(os.path.commonprefix([left, right]))
    tail = len(os.path.commonprefix([left[same:][::-1], right[same:][::-1]]))
    shorter = ["".join(items[same : len(items) - tail]).strip(", ") for items in (left, right)]
    named = all(any(name.rpartition(".")[2] in text for text in shorter) for name in settings)
    return (shorter[0], shorter[1]) if named else (old, new)


def _evidence(found: Recommendation, answer: Answer, study: Commands | None) -> Iterator[Line]:
    claim = found.evidence
    if found.verified and claim is not None and found.failure_rate_at_most is not None:
        yield from _verified(found, claim, found.failure_rate_at_most, answer, study)
    elif found.status == RemedyStatus.HEALTHY:
        yield Line("", "Not verified: healthy in short runs only.", NOTE)
    else:
        seen = f"{claim.seen}/{claim.runs}" if claim is not None and claim.runs else "once"
        yield Line("", f"Not verified: it passed {seen} in short runs.", NOTE)
    if found.full_rate and found.full_rate != "None":
        yield Line("", f"The runs went {found.full_rate}.", DIM, True)
    yield from _ranges(found)
    for name in found.not_kept:
        yield Line("", f"No remedy was found that leaves {name} as it is.", NOTE)


def _verified(
    found: Recommendation, claim: Claim, bound: float, answer: Answer, study: Commands | None
) -> Iterator[Line]:
    """How often it trained, and whether that is enough to start with: a failure that shows in few runs may be missed.
    The rates are details."""
    of = f" of {found.steps} steps" if found.steps else ""
    seeds = ", each with its own seed" if found.seeds else ""
    healthy, rate = f"Healthy in {claim.seen} of {claim.runs} runs{of}{seeds}", answer.reproduction.rate
    more = MORE_SEEDS if claim.runs < MORE_SEEDS else 2 * claim.runs
    if rate is not None and rate < bound:
        more = max(repeats_for(rate), claim.runs + 1)
        luck = f"That may be luck, as your settings fail in only {percent(rate)} of the runs."
        said, kind, surer = f"{healthy}. {luck}", NOTE, "Check it before you rely on it:"
    else:
        use = "start your training with it" if answer.horizon else "you can use it"
        said, kind, surer = f"{healthy}: {use}.", TEXT, "To be surer before a long run:"
    yield Line("", said, kind)
    if study is not None:
        yield Line("", surer, kind, kind == TEXT)
        yield Line("", study.typed("recommend", f"--verify-seeds {more}"), COMMAND, kind == TEXT)
    rules_out = f"{count(claim.runs, 'healthy run')} rule{'s' * (claim.runs == 1)} out failure rates above"
    yield Line("", f"{rules_out} {percent(bound)}, {more} those above {percent(failure_bound(more))}.", DIM, True)


def _ranges(found: Remedy) -> Iterator[Line]:
    for name, known in found.ranges.items():
        yield Line("", _range(name, known))
    if found.stepped_back:
        times = count(found.stepped_back, "time")
        yield Line("", f"Moved back {times} from there: longer runs were not healthy.", detail=True)


def _range(name: str, known: Range) -> str:
    if not known.trials:
        ends = f"{show(known.good)} (good) and {show(known.bad)} (yours)"
        if known.settled:
            return f"{name}: {ends} are too close for a run between them to tell anything."
        return f"{name}: no value was tried between {ends}."
    up = f"{'up' if known.bad > known.good else 'down'} to {show(known.healthy_up_to)}"
    why = f" ({known.shown})" if known.shown else ""
    open_end = "" if known.settled else "; values between were not tried"
    return f"{name}: short runs were healthy {up}, not at {show(known.not_from)}{why}{open_end}."


def _others(found: Recommendation, answer: Answer, study: Commands | None) -> Iterator[Line]:
    """The other remedies: verified ones, those that were given up, and what is known and was not tried."""
    verified = [remedy for remedy in found.alternatives if remedy.verified]
    for remedy in verified[:OTHERS_SHOWN]:
        yield Line("", f"Or {_in_words(remedy.changes)}: healthy {_seen(remedy.evidence)}.")
        yield from (line._replace(detail=True) for line in _ranges(remedy))
    left = [one for one in found.alternatives if one.status in (UNTRIED, RemedyStatus.OPEN, RemedyStatus.HEALTHY)]
    if left:
        names = "; or ".join(_in_words(one.changes) for one in left)
        yield Line("", f"Not verified: {names} instead.", DIM)
        if study is not None:
            verify = study.typed("recommend", f"--remedies {1 + len(verified) + len(left)}")
            yield Line("", f"To verify them as well: {verify}", DIM, True)
    for remedy in found.alternatives:
        if remedy.status == RemedyStatus.REJECTED:
            yield Line("", f"Not recommended: {_in_words(remedy.changes)} ({remedy.rejected}).", DIM, True)
            if _only_delays(answer, remedy):
                advice = "may only delay the failure: check with a larger --steps."
                yield Line("", f"{_in_words(remedy.changes)} {advice}", NOTE)
    for position, what in enumerate(found.unsettled):  # the first says why it ended
        yield Line("", f"Not settled: {what}" if position else what, NOTE)


def _dies_of_another(answer: Answer, remedy: Remedy) -> bool:
    """Whether a run without the cause, all else as the user has it, dies as no run with the cause does."""
    goods = {name: levels.good for cause in answer.causes for name, levels in cause.levels.items()}
    reset = all(name in goods and equal(change.to, goods[name]) for name, change in remedy.changes.items())
    known = {None, answer.failure and answer.failure.signature, *(cause.signature for cause in answer.causes)}
    return reset and remedy.died not in known


def _seen(claim: Claim | None) -> str:
    return "" if claim is None else f"{claim.seen}/{claim.runs}"


def _only_delays(answer: Answer, remedy: Remedy) -> bool:
    """Whether a remedy resets part of a cause, as a correction does, and the run still learns nothing in the end."""
    if answer.failure is None or answer.failure.kind not in SILENT_KINDS:
        return False
    return any(
        len(cause.levels) > 1
        and remedy.changes.keys() <= cause.levels.keys()
        and all(equal(change.to, cause.levels[name].good) for name, change in remedy.changes.items())
        for cause in answer.causes
    )


def _in_words(changes: Mapping[str, Change]) -> str:
    """``learning_rate=1.7e-05, beta=0.01``"""
    return ", ".join(f"{name}={show(change.to, name)}" for name, change in changes.items())


# --------------------------------------------------------------------------------------------------------- how to go on


def how_to_go_on(answer: Answer, study: Commands) -> Iterator[Line]:
    """The commands that make the change, and that repeat the runs which prove the cause."""
    found = answer.recommendation
    if found is not None and found.can_be_applied:
        yield Line("APPLY", study.typed("apply"), COMMAND)
    if found is not None and found.command:
        yield Line("RUN", found.command, COMMAND)
    for label, path in answer.repeated_by(study.folder).items():
        yield Line("", f"The {label} run again:  sh {shlex.quote(str(path))}", COMMAND, True)
