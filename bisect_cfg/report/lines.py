"""The answer as lines of text: what the terminal, report.html, Markdown and the notebook show.

Each line has a label, a text and a kind; an encoder decides on columns and colours. What a tired reader needs comes
last: CAUSE, FIX, APPLY and MORE. Lines that only add to it are details, which the terminal leaves out without -v.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.configuration import Status, Value, equal
from bisect_cfg.common.failures.health import SILENT_KINDS
from bisect_cfg.common.words import clean, count, duration, percent, short_path, show
from bisect_cfg.probe.redact import HIDDEN, hides
from bisect_cfg.remedy.remedy import RemedyStatus
from bisect_cfg.remedy.threshold import failure_bound, repeats_for
from bisect_cfg.report.answer import (
    EMPTY,
    RUNNING,
    Answer,
    Cause,
    Range,
    Recommendation,
    Remedy,
)
from bisect_cfg.report.recommendation import UNTRIED
from bisect_cfg.report.sentences import place_lines, since_step
from bisect_cfg.rewrite.recommended import Change, ShownEdit
from bisect_cfg.runner.starts import COLD
from bisect_cfg.store.causes import Claim
from bisect_cfg.targets.pinned import without_good_value

TEXT, GUILTY, EDIT, COMMAND, NOTE, DIM = "text", "guilty", "edit", "command", "note", "dim"
"""Kinds of lines: GUILTY is a setting of a cause with its good value behind `GOOD`, EDIT an old and a new text with
`ARROW` between them, COMMAND is there to be pasted and never broken."""

GOOD, ARROW = "  good: ", "  ->  "

LABEL_WIDTH = 8
"""Columns of the labels."""

SETTING_WIDTH = 40
"""Columns to which the settings of a cause are filled up, so that their good values stand below each other."""

VALUE_LENGTH = 200
"""Characters of a value that are shown: a path is shown whole, a table of a dataset is not."""

EDIT_LENGTH = 60
"""Lines of the user's files that are shown whole; of longer ones, what changes."""

OTHERS_SHOWN, PUBLISHED_SHOWN, TRIALS_SHOWN = 4, 3, 6
"""So many other remedies, published values of a setting, and trials of a remark are named."""

MORE_SEEDS = 10
"""What is suggested to whoever wants to be surer: it rules out failure rates above 26 %."""

_ITEMS = re.compile(r"([,()\[\]{}])")


class Line(NamedTuple):
    """A line of the answer; a label of "" continues the part before it."""

    label: str
    text: str
    kind: str = TEXT
    detail: bool = False


def lines_of(answer: Answer, folder: Path | None = None) -> list[Line]:
    """The whole answer.

    Args:
        answer: of a study, finished or not.
        folder: of the study, as it is to be named in commands; None for a function, which has none.
    """
    lines = [*_background(answer, folder), *_outcome(answer, folder)]
    if answer.causes:
        lines += [*_causes(answer), *_fix(answer, folder), *_how_to_go_on(answer, folder)]
    elif folder is not None and answer.status not in (EMPTY, RUNNING):
        lines.append(Line("MORE", f"bisect-cfg report {shlex.quote(str(folder))} --open", COMMAND))
    return [line._replace(text=clean(line.text)) for line in lines]


def as_text(lines: Iterable[Line], details: bool = True) -> str:
    """Lines as plain text, labels in one column."""
    wanted = (line for line in lines if details or not line.detail)
    return "\n".join(f"{line.label:<{LABEL_WIDTH}}{indented(line)}".rstrip() for line in wanted)


def indented(line: Line) -> str:
    """The text of a line; an edit stands below its place."""
    return f"  {line.text}" if line.kind == EDIT else line.text


def _labelled(label: str, texts: Iterable[str], kind: str = TEXT, detail: bool = False) -> Iterator[Line]:
    for number, text in enumerate(texts):
        yield Line("" if number else label, text, kind, detail)


# ------------------------------------------------------------------------------------------ what stands above the cause


def _background(answer: Answer, folder: Path | None) -> Iterator[Line]:
    yield Line("", _spent(answer), DIM)
    if answer.where is not None:
        yield from _labelled("Where", place_lines(answer.where))
    if answer.rows is not None:
        yield Line("Rows", answer.rows["text"])
    issue = answer.known_issue
    if issue is not None and answer.status == Status.ISOLATED:
        root = " ".join((issue.why or issue.cures[0]).split())
        source = next(iter(issue.sources), "")
        source = "Measured by this project, with tiny models on a CPU." if source == "measured" else source
        yield Line("Known", " ".join(issue.title.split()))
        yield Line("", f"{root[:1].upper()}{root[1:]}", detail=True)
        yield Line("", source, DIM, True)
    for finding in answer.placement.findings if answer.placement is not None else ():
        yield Line("Note", f"{finding.text}.")
        if finding.source:
            yield Line("", finding.source, DIM, True)
    if answer.simulated:
        yield Line("Note", f"This study's fault is simulated: {answer.simulated}", NOTE)
    for warning in answer.warnings:
        numbers = ", ".join(map(str, warning.trials[:TRIALS_SHOWN])) + (", ..." * (len(warning.trials) > TRIALS_SHOWN))
        yield Line("Note", f"{warning.text} ({numbers}).", NOTE, True)
    if answer.unfinished or answer.causes or answer.status == Status.NO_FAILURE or answer.good_failure is not None:
        yield from (
            Line("Note", note, NOTE, not answer.unfinished) for note in answer.notes
        )  # else the result says them
    if answer.environments is not None:
        yield Line("Note", _environments(answer.environments), DIM, True)


def _spent(answer: Answer) -> str:
    """``13 trials in 79 s, 12 of them forked from your script.``"""
    forked = sum(trial.start not in (None, COLD) for trial in answer.trials)
    how = f", {forked} of them forked from your script" if forked else ""
    took = f" in {duration(answer.seconds)}" if answer.seconds else ""
    return f"{count(len(answer.trials), 'trial')}{took}{how}."


def _environments(found: Mapping[str, Value]) -> str:
    """The environments of trials with other packages, and how to be rid of them."""
    built = f"{found['built']} built in {duration(found['seconds'])}" if found["built"] else "all there already"
    size = f"{max(1, round(found['bytes'] / 2**20))} MiB"
    cache = short_path(found["folder"])
    return (
        f"Ran in {count(found['used'], 'environment')} of other packages: {built}, {size}. "
        f"To remove: bisect-cfg envs prune --env-cache {shlex.quote(cache)}"
    )


# ---------------------------------------------------------------------------------------- how it ended, without a cause


def _outcome(answer: Answer, folder: Path | None) -> Iterator[Line]:
    if answer.causes or answer.unfinished:
        return
    if answer.status == Status.NO_FAILURE:
        ran = next((trial.step for trial in answer.trials if trial.outcome == "pass"), None)
        healthy = f"{count(ran, 'step')}, all healthy" if ran else "exit status 0"
        yield Line("RESULT", f"Your configuration does not fail: {healthy}. Nothing to isolate.")
        if ran and folder is not None:
            yield from _labelled(
                "TRY",
                (
                    "--until-failure goes on as long as it takes, --log FILE as long as the run that failed did.",
                    "--restart tries again, where it fails now and then.",
                    "Run bisect-cfg on the machine where it fails, where it fails only there.",
                ),
            )
    elif answer.good_failure is not None:
        failure = answer.good_failure
        yield Line("RESULT", f"The good configuration fails as well: it {failure.text}.")
        yield Line("", "So there is nothing to compare with.")
        yield Line("TRY", "--good NAME=VALUE, or --good FILE, with values that work here.")
        if names := without_good_value(answer.not_varied):
            yield Line(
                "", f"All runs had your {', '.join(names)}: no good value of {'them' if names[1:] else 'it'} is known."
            )
        if answer.rows is None and failure.step and folder is not None:
            yield Line("", "--isolate-data, if you suspect the data of that step: it finds the row.")
        if folder is not None and failure.log:
            yield Line("LOG", str(folder / failure.log), COMMAND)
    elif answer.status == Status.BASELINE_FAILS:
        yield Line("RESULT", "The good configuration fails as well, so there is nothing to compare with.")
        yield from _labelled("", answer.notes, NOTE)
    elif answer.reproduction.rate is not None and answer.reproduction.rate < 1:
        yield Line("RESULT", "No cause could be isolated: the failure did not show again.")
        yield from _labelled("", answer.notes, NOTE)
    else:
        yield Line("RESULT", "Nothing is settled yet.")
        yield from _labelled("", answer.notes, NOTE)
        yield Line("TRY", "Run the same command again, with more trials or time: it goes on where it was.")


# ----------------------------------------------------------------------------------------------------------- the causes


def _causes(answer: Answer) -> Iterator[Line]:
    subject = "Your run" if answer.target.script else "The trial"
    for number, cause in enumerate(answer.causes, 1):
        yield from _cause("CAUSE" if len(answer.causes) == 1 else f"CAUSE {number}", cause, subject, answer)
    rate = answer.reproduction.rate
    if rate is not None and rate < 1:
        low, high = answer.reproduction.interval_95 or (0.0, 1.0)
        yield Line(
            "",
            f"The failure is random: it showed in {percent(rate)} of all runs with a cause "
            f"(95 % interval: {percent(low)} to {percent(high)}).",
        )
    yield Line("", others(answer), TEXT if answer.complete else NOTE)


def others(answer: Answer) -> str:
    """Whether there may be other causes than those found."""
    if not answer.complete:
        return "There may be other causes: the search ended before that was settled."
    many, names = len(answer.levels), without_good_value(answer.not_varied)
    if names:
        return (
            f"No other cause is left among the settings that were varied. All runs had your {', '.join(names)}, for "
            "which no good value is known: whether a cause needs them is open (--good NAME=VALUE has them varied)."
        )
    if many > len(answer.guilty):
        return f"No other cause is left among the {many} settings that differ."
    return f"{'It is' if many == 1 else 'They are'} all that differs from the good configuration."


def _cause(label: str, cause: Cause, subject: str, answer: Answer) -> Iterator[Line]:
    yours = [f"{name} = {_value(name, levels.bad)}" for name, levels in cause.parameters.items()]
    yours[1:] = [f"and {setting}" for setting in yours[1:]]
    wide = min(max(map(len, yours)), SETTING_WIDTH)
    goods = (f"{_value(name, levels.good)}" for name, levels in cause.parameters.items())
    texts = (f"{setting:<{wide}}{GOOD}{good}" for setting, good in zip(yours, goods, strict=True))
    yield from _labelled(label, texts, GUILTY)
    if cause.text:
        yield Line("", f"{subject} {cause.text}.")
    yield Line("", _claims(cause, answer))
    if cause.companions:
        pronoun = "it" if len(cause.companions) == 1 else "them"
        reason = f"without {pronoun} they are invalid or end in a different failure"
        yield Line("", f"These runs also had {', '.join(cause.companions)} as you have {pronoun}: {reason}.")
    if cause.inseparable:
        names = " and ".join(cause.inseparable)
        yield Line("", f"{names} cannot be told apart: no valid configuration changes only one of them.")
    if cause.watched:
        yield Line(
            "", f"Passing runs were watched for {cause.watched} steps: a later failure is not seen.", detail=True
        )


def _claims(cause: Cause, answer: Answer) -> str:
    """``Fails 1/1 with bf16 alone, passes 1/1 without it (trials 9 and 2).``"""
    names = list(cause.parameters)
    alone = f"{names[0]} alone" if len(names) == 1 else f"these {_NUMBERS.get(len(names), len(names))} alone"
    fails, origin = cause.evidence.fails, answer.origin
    said, passes = [f"fails {fails.seen}/{fails.runs} with {alone}"], []
    trials = [fails.trials]
    for name, claim in cause.evidence.passes_without.items():
        others = [one for one in names if one != name]
        if claim.subset is None:
            said.append(f"without {name}: {claim.note}")
            continue
        only = bool(others) and set(others) == set(claim.subset)
        which = "without it" if not others else f"with {' and '.join(others)} alone" if only else f"without {name}"
        noted = f" ({claim.note})" if claim.note else ""
        passes.append(f"{claim.seen}/{claim.runs} {which}{noted}")
        trials.append(claim.trials)
    if passes:
        said.append(f"passes {' and '.join(passes)}")
    named = f" (trial{_plural(trials)} {_listed(trials)})" if any(trials) else ""
    since = ""
    if origin is not None:
        since = f" Shown {since_step(origin)}{', and from step 0' if origin.proven_from_start else ''}."
    told = "; ".join(said) if len(names) > 1 else ", ".join(said)
    return f"{told[0].upper()}{told[1:]}{named}.{since}"


_NUMBERS = {2: "two", 3: "three", 4: "four"}


def _plural(trials: Sequence[Sequence[int]]) -> str:
    return "s" if sum(map(len, trials)) > 1 else ""


def _listed(trials: Sequence[Sequence[int]]) -> str:
    """The trials of each claim: ``9 and 2``, ``6, 12; 4, 11; 7``."""
    if all(len(numbers) == 1 for numbers in trials) and len(trials) == 2:
        return " and ".join(str(numbers[0]) for numbers in trials)
    return "; ".join(", ".join(map(str, numbers)) for numbers in trials)


def _value(name: str, value: Value) -> str:
    words = HIDDEN if hides(name, value) else show(value, name)
    return words if len(words) <= VALUE_LENGTH else words[: VALUE_LENGTH - 3] + "..."


# -------------------------------------------------------------------------------------------------------------- the fix


def _fix(answer: Answer, folder: Path | None) -> Iterator[Line]:
    found = answer.recommendation
    if found is None and answer.rejected:
        yield Line("FIX", "No remedy trained healthily.", NOTE)
        for remedy in answer.rejected:
            yield Line("", f"{_in_words(remedy.changes)}: {remedy.rejected or 'not tried'}.")
    elif found is None:
        for one in answer.corrections:
            reset, seen = ", ".join(one.parameters), f"{one.passes.seen}/{one.passes.runs}"
            yield Line("FIX", f"Reset {reset} to the good value: that passes {seen}, all else as yours.")
    if found is None:
        return
    lines = [*_first(found), *_places(found), *_evidence(found, answer), *_others(found, answer, folder)]
    lines[0] = lines[0]._replace(label="FIX")
    yield from lines


def _first(found: Recommendation) -> Iterator[Line]:
    if found.first:
        yield Line("", " ".join(found.first.split()))


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
        yield Line("", f"{one.setting}: {one.why}; {one.add}.".replace(f"{Path.cwd()}/", ""))
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


def _evidence(found: Recommendation, answer: Answer) -> Iterator[Line]:
    claim = found.evidence
    if found.verified and claim is not None and found.failure_rate_at_most is not None:
        of = f" of {found.steps} steps" if found.steps else ""
        seeds = ", each with its own seed" if found.seeds else ""
        more = MORE_SEEDS if claim.runs < MORE_SEEDS else 2 * claim.runs
        surer = f" (surer: --verify-seeds {more})" if claim.runs < MORE_SEEDS else ""
        yield Line(
            "",
            f"Healthy in {claim.seen} of {claim.runs} runs{of}{seeds}: this rules out failure rates above "
            f"{percent(found.failure_rate_at_most)}{surer}.",
        )
        rate = answer.reproduction.rate
        if rate is not None and rate < found.failure_rate_at_most:
            yield Line(
                "",
                f"That may be luck: {percent(rate)} of the runs with the cause failed; --verify-seeds "
                f"{repeats_for(rate)} would tell.",
                NOTE,
            )
        yield Line("", f"--verify-seeds {more} would rule out those above {percent(failure_bound(more))}.", DIM, True)
    elif found.status == RemedyStatus.HEALTHY:
        yield Line("", "Not verified: healthy in short runs only.", NOTE)
    else:
        seen = f"{claim.seen}/{claim.runs}" if claim is not None and claim.runs else "once"
        yield Line("", f"Not verified: it passed {seen} in short runs.", NOTE)
    if found.full_rate and found.full_rate != "None":
        yield Line("", f"The runs went {found.full_rate}.", DIM, True)
    yield from _ranges(found)
    for name, change in found.changes.items():
        yield from _published(name, found, change)
    for name in found.not_kept:
        yield Line("", f"No remedy was found that leaves {name} as it is.", NOTE)


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


def _published(name: str, found: Remedy, change: Change) -> Iterator[Line]:
    """Context only: a published value that is the user's own, or meant for something else, says so."""
    shown: dict[str, str] = {}
    for one in found.published.get(name, ()):
        remarks = [one.note, "as you have it" if equal(one.value, change.before) else ""]
        shown.setdefault(show(one.value), "; ".join(filter(None, [one.recipe, *remarks])))
    if shown:
        listed = ", ".join(f"{value} ({recipe})" for value, recipe in list(shown.items())[:PUBLISHED_SHOWN])
        yield Line("", f"Published for {name}: {listed}.", DIM, True)


def _others(found: Recommendation, answer: Answer, folder: Path | None) -> Iterator[Line]:
    """The other remedies: verified ones, those that were given up, and what is known and was not tried."""
    verified = [remedy for remedy in found.alternatives if remedy.verified]
    for remedy in verified[:OTHERS_SHOWN]:
        yield Line("", f"Or {_in_words(remedy.changes)}: healthy {_seen(remedy.evidence)}.")
        yield from (line._replace(detail=True) for line in _ranges(remedy))
    left = [one for one in found.alternatives if one.status in (UNTRIED, RemedyStatus.OPEN, RemedyStatus.HEALTHY)]
    if left:
        names = "; or ".join(_in_words(one.changes) for one in left)
        yield Line("", f"Not verified: {names} instead.", DIM)
        if folder is not None:
            more = 1 + len(verified) + len(left)
            verify = f"bisect-cfg recommend {shlex.quote(str(folder))} --remedies {more}"
            yield Line("", f"To verify them as well: {verify}", DIM, True)
    for remedy in found.alternatives:
        if remedy.status == RemedyStatus.REJECTED:
            yield Line("", f"Not recommended: {_in_words(remedy.changes)} ({remedy.rejected}).", DIM, True)
            if _only_delays(answer, remedy):
                advice = "may only delay the failure: check with a larger --steps."
                yield Line("", f"{_in_words(remedy.changes)} {advice}", NOTE)
    for position, what in enumerate(found.unsettled):  # the first says why it ended
        yield Line("", f"Not settled: {what}" if position else what, NOTE)


def _seen(claim: Claim | None) -> str:
    return "" if claim is None else f"{claim.seen}/{claim.runs}"


def _only_delays(answer: Answer, remedy: Remedy) -> bool:
    """Whether a remedy resets part of a cause, as a correction does, and the run still learns nothing in the end."""
    if answer.failure is None or answer.failure.kind not in SILENT_KINDS:
        return False
    return any(
        len(cause.parameters) > 1
        and remedy.changes.keys() <= cause.parameters.keys()
        and all(equal(change.to, cause.parameters[name].good) for name, change in remedy.changes.items())
        for cause in answer.causes
    )


def _in_words(changes: Mapping[str, Change]) -> str:
    """``learning_rate=1.7e-05, beta=0.01``"""
    return ", ".join(f"{name}={show(change.to, name)}" for name, change in changes.items())


# --------------------------------------------------------------------------------------------------------- how to go on


def _how_to_go_on(answer: Answer, folder: Path | None) -> Iterator[Line]:
    if folder is None:
        return
    study, found = shlex.quote(str(folder)), answer.recommendation
    if found is not None and found.command:
        yield Line("APPLY", found.command, COMMAND)
    elif found is not None and any(edit.file is not None for edit in found.edits):
        yield Line("APPLY", f"bisect-cfg apply {study}", COMMAND)
    for label, path in repeated_by(answer, folder).items():
        yield Line("", f"The {label} run again:  sh {shlex.quote(str(path))}", COMMAND, True)
    yield Line("MORE", f"bisect-cfg report {study} --open", COMMAND)


def repeated_by(answer: Answer, folder: Path) -> dict[str, Path]:
    """The files that repeat the last passing and the last failing run of the first cause's evidence that have one.

    Where trials began at a checkpoint that is gone, as one of the tool's own is at the end, nothing can be repeated.
    """
    checkpoint = answer.origin.checkpoint if answer.origin is not None else None
    if not answer.causes or (checkpoint is not None and not Path(checkpoint).is_dir()):
        return {}
    evidence = answer.causes[0].evidence
    passing = [number for claim in evidence.passes_without.values() for number in claim.trials]
    trials = {trial.number: trial for trial in answer.trials}
    found = {}
    for label, numbers, outcome in (
        ("nearest passing", passing, "pass"),
        ("minimal failing", evidence.fails.trials, "fail"),
    ):
        known = (trials[number] for number in numbers if number in trials)
        files = [folder / trial.folder / "command.sh" for trial in known if trial.outcome == outcome]
        if there := [path for path in files if path.exists()]:
            found[label] = there[-1]
    return found
