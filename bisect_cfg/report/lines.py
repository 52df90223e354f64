"""The answer as lines of text: what the terminal, report.html, Markdown and the notebook show.

Each line has a label, a text and a kind; an encoder decides on columns and colours. What a tired reader needs comes
last: CAUSE, FIX, APPLY (or RUN) and MORE. APPLY is always the command that writes the change into the user's files, RUN
the user's own command with the change in it. Lines that only add to it are details, which the terminal leaves out
without -v.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bisect_cfg.common.configuration import Status
from bisect_cfg.common.words import PROGRAM, clean, count, duration, percent, short_path, with_reasons
from bisect_cfg.report.answer import EMPTY, RUNNING, Answer
from bisect_cfg.report.fix import fix, how_to_go_on
from bisect_cfg.report.line import BY_HAND, COMMAND, DIM, EDIT, GOOD, GUILTY, NOTE, TEXT, Commands, Line, value_of
from bisect_cfg.report.sentences import contrast_lines, place_lines, since_step
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.verdict import REFUSED
from bisect_cfg.store.causes import Cause, Claim
from bisect_cfg.targets.pinned import without_good_value

SETTING_WIDTH = 40
"""Columns to which the settings of a cause are filled up, so that their good values stand below each other."""

NOT_VARIED_SHOWN, TRIALS_SHOWN = 2, 6
"""So many settings that no trial varied, and trials of a remark, are named."""

LONG_NAME = 24
"""Characters of the name of a setting that sentences do not repeat."""


def lines_of(answer: Answer, folder: Path | None = None, program: str = PROGRAM) -> list[Line]:
    """The whole answer, with commands that call the study and `bisect-cfg` so; a function has no folder."""
    study = None if folder is None else Commands(folder, program)
    lines = [*_background(answer, program), *_outcome(answer, folder)]
    if answer.causes:
        lines += _with_short_names([*_causes(answer), *fix(answer, study)], answer.guilty)
    if study is not None and answer.causes:
        lines += how_to_go_on(answer, study)
    if study is not None and (answer.causes or answer.status not in (EMPTY, RUNNING)):
        lines.append(Line("MORE", study.typed("report", "--open"), COMMAND))
    return [line._replace(text=clean(line.text)) for line in lines]


def _with_short_names(lines: Iterable[Line], guilty: Iterable[str]) -> Iterator[Line]:
    """The causes and what to do, where sentences call a setting by the last part of its name if that is much shorter:
    CAUSE has said the whole of it."""
    last = {name: name.rpartition(".")[2] for name in guilty}
    short = {name: one for name, one in last.items() if len(name) > LONG_NAME and [*last.values()].count(one) == 1}
    names = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?![\w.]\w)" for name in short) or "$^")
    for line in lines:
        exact = line.kind in (GUILTY, EDIT, COMMAND) or line.label == "FIX" or line.text.startswith(BY_HAND)
        yield line if exact else line._replace(text=names.sub(lambda match: short[match[0]], line.text))


def _labelled(label: str, texts: Iterable[str], kind: str = TEXT, detail: bool = False) -> Iterator[Line]:
    for number, text in enumerate(texts):
        yield Line("" if number else label, text, kind, detail)


# ------------------------------------------------------------------------------------------ what stands above the cause


def _background(answer: Answer, program: str) -> Iterator[Line]:
    yield Line("", _spent(answer), DIM)
    if answer.where is not None:
        yield from _labelled("Where", place_lines(answer.where))
    if answer.only_failing is not None:
        first, *more = contrast_lines(answer.only_failing)
        yield Line("Only", first)
        yield from _labelled("", more, detail=True)
    if answer.rows is not None and not _rows_of_cause(answer):
        yield Line("Rows", answer.rows["text"])
    issue = answer.known_issue
    if issue is not None and (answer.status == Status.ISOLATED or answer.good_failure is not None):
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
        yield Line("Note", f"{warning.text} ({numbers}).", NOTE, answer.status != Status.NO_FAILURE)
    if answer.unfinished or answer.causes or answer.status == Status.NO_FAILURE or answer.good_failure is not None:
        # Else the result says them.
        yield from (Line("Note", note, NOTE, not answer.unfinished) for note in answer.notes)
    if answer.cluster is not None:
        slots, nodes, lost = answer.cluster["slots"], answer.cluster["nodes"], answer.cluster["lost"]
        again = f"; {count(lost, 'run')} lost a machine and began again" if lost else ""
        yield Line(
            "Note", f"Ran in {count(slots, 'slot')} on {count(len(nodes), 'node')} of a cluster{again}.", DIM, True
        )
    if answer.environments is not None:
        used = count(answer.environments["used"], "environment")
        cache = shlex.quote(short_path(answer.environments["folder"]))
        yield Line("Note", f"Ran in {used} of other packages: {program} envs --env-cache {cache}", DIM, True)


def _spent(answer: Answer) -> str:
    """``13 trials in 79 s, 12 of them forked from your script.``"""
    forked = sum(trial.start not in (None, COLD) for trial in answer.trials)
    how = f", {forked} of them forked from your script" if forked else ""
    took = f" in {duration(answer.seconds)}" if answer.seconds else ""
    return f"{count(len(answer.trials), 'trial')}{took}{how}."


# ---------------------------------------------------------------------------------------- how it ended, without a cause

NO_SETTING = {
    "dead-reward": "the reward function on ten completions: it must give one number for each, and not all the same.",
    REFUSED: "a checkpoint that this very command has saved, before anything went wrong.",
    "no-gradient": "the total reward of each completion of one prompt, and whether parameters have requires_grad.",
}
"""What to look at where the good configuration learns nothing either, by the kind of failure."""


def _outcome(answer: Answer, folder: Path | None) -> Iterator[Line]:
    if answer.causes or answer.unfinished:
        return
    if answer.status == Status.NO_FAILURE:
        ran = next((trial.step for trial in answer.trials if trial.outcome == "pass"), None)
        healthy = f"{count(ran, 'step')}{'' if answer.warnings else ', all healthy'}" if ran else "exit status 0"
        yield Line("RESULT", f"Your configuration does not fail: {healthy}. Nothing to isolate.")
        if ran and folder is not None:
            yield from _labelled(
                "TRY",
                (
                    *(
                        ("--training 2, where it is a later training of the script that fails.",)
                        * answer.target.goes_on
                    ),
                    "--until-failure goes on as long as it takes, --log FILE as long as the run that failed did.",
                    "--restart tries again, where it fails now and then.",
                    "Run bisect-cfg on the machine where it fails, where it fails only there.",
                ),
            )
    elif answer.good_failure is not None:
        failure = answer.good_failure
        yield Line("RESULT", f"The good configuration fails as well: it {failure.text}.")
        if failure.kind in NO_SETTING:
            yield Line("", "It is no setting that differs: with the good ones it is the same.")
            yield Line("TRY", f"{NO_SETTING[failure.kind]} Then --good NAME=VALUE, with values that work here.")
        else:
            yield from _why_good_fails(answer)
            yield Line("TRY", "--good NAME=VALUE, or --good FILE, with values that work here.")
        if answer.rows is None and failure.step and folder is not None and failure.kind not in NO_SETTING:
            yield Line("", "--isolate-data, if you suspect the data of that step: it finds the row.")
        if folder is not None and failure.log:
            yield Line("LOG", str(folder / failure.log), COMMAND)
    elif answer.status == Status.BASELINE_FAILS:
        yield Line("RESULT", "The good configuration fails as well.")
        yield from _why_good_fails(answer)
        yield from _labelled("", answer.notes, NOTE)
    elif answer.reproduction.rate is not None and answer.reproduction.rate < 1:
        yield Line("RESULT", "No cause could be isolated: the failure did not show again.")
        yield from _labelled("", answer.notes, NOTE)
    else:
        yield Line("RESULT", "Nothing is settled yet.")
        yield from _labelled("", answer.notes, NOTE)
        yield Line("TRY", "Run the same command again, with more trials or time: it goes on where it was.")


def _why_good_fails(answer: Answer) -> Iterator[Line]:
    tried = f" Tried besides: {'; '.join(answer.good_tried)}." if answer.good_tried else ""
    yield Line("", f"So there is nothing to compare with.{tried}")
    yield from _labelled("WHY", answer.good_reasons)


# ----------------------------------------------------------------------------------------------------------- the causes


def _causes(answer: Answer) -> Iterator[Line]:
    subject = "Your run" if answer.target.script else "The trial"
    for number, cause in enumerate(answer.causes, 1):
        yield from _cause("CAUSE" if len(answer.causes) == 1 else f"CAUSE {number}", cause, subject, answer)
    if text := _rows_of_cause(answer):
        yield Line("", f"On certain data: {text}")
    rate = answer.reproduction.rate
    if rate is not None and rate < 1:
        low, high = answer.reproduction.interval_95 or (0.0, 1.0)
        a = "a" if answer.causes[1:] else "the"
        yield Line(
            "",
            f"The failure is random: {percent(rate)} of the runs that have {a} cause show it "
            f"(95 % interval: {percent(low)} to {percent(high)}).",
        )
    yield Line("", answer.placebo or others(answer), TEXT if answer.complete else NOTE)
    yield from _not_varied(answer)


def _rows_of_cause(answer: Answer) -> str:
    """What is said of rows of the dataset that belong to the cause; "" if none do."""
    rows = answer.rows or {}
    return str(rows["text"]) if answer.causes and rows.get("guilty") else ""


def _not_varied(answer: Answer) -> Iterator[Line]:
    """What no trial varied though the user's value is another than the known default: a cause may need it."""
    apart = [
        f"{name} = {value_of(name, one.bad)} (default: {'none' if one.good is None else value_of(name, one.good)})"
        for name, one in answer.unvaried.items()
    ]
    if apart:
        left = len(apart) - NOT_VARIED_SHOWN
        more = f" and {left} more (-v)" if left > 0 else ""
        yield Line("", f"Not varied: {', '.join(apart[:NOT_VARIED_SHOWN])}{more}.")
        if left > 0:
            yield Line("", f"Not varied either: {', '.join(apart[NOT_VARIED_SHOWN:])}.", DIM, True)
    if answer.not_varied:
        yield Line("", f"All that no trial varied: {with_reasons(answer.not_varied)}.", DIM, True)


def others(answer: Answer) -> str:
    """Whether there may be other causes than those found."""
    many, names = len(answer.levels), without_good_value(answer.not_varied)
    kept = (
        f" All runs had your {', '.join(names)}, for which no good value is known: whether a cause needs them is open "
        "(--good NAME=VALUE has them varied)."
    )
    if not answer.complete:
        too_early = "the search ended too early to tell. The same command goes on with it"
        why = too_early if answer.stopped else "the runs that were made could not settle it"
        return f"There may be other causes: {why}.{kept * bool(names)}"
    if names:
        return f"No other cause is left among the settings that were varied.{kept}"
    if many > len(answer.guilty):
        return f"No other cause is left among the {many} settings that differ."
    return f"{'It is' if many == 1 else 'They are'} all that differs from the good configuration."


def _cause(label: str, cause: Cause, subject: str, answer: Answer) -> Iterator[Line]:
    yours = [f"{name} = {value_of(name, levels.bad)}" for name, levels in cause.levels.items()]
    yours[1:] = [f"and {setting}" for setting in yours[1:]]
    wide = min(max(map(len, yours)), SETTING_WIDTH)
    goods = (f"{value_of(name, levels.good)}" for name, levels in cause.levels.items())
    texts = (f"{setting:<{wide}}{GOOD}{good}" for setting, good in zip(yours, goods, strict=True))
    yield from _labelled(label, texts, GUILTY)
    if cause.text:
        yield Line("", f"{subject} {cause.text}.")
    yield Line("", _claims(cause, answer))
    if cause.companions:
        names, pronoun = ", ".join(cause.companions), "them" if cause.companions[1:] else "it"
        reason = f"a run without {pronoun} is invalid or ends in a different failure"
        yield Line("", f"All these runs kept your {names}: {reason}.")
    if cause.inseparable:
        names = " and ".join(cause.inseparable)
        yield Line("", f"No valid configuration has only some of {names} changed: which of them it is stays open.")
    if cause.watched:
        yield Line(
            "", f"Passing runs were watched for {cause.watched} steps: a later failure is not seen.", detail=True
        )


def _claims(cause: Cause, answer: Answer) -> str:
    """``Fails 1/1 with bf16 alone, passes 1/1 without it (trials 9 and 2).``"""
    names = list(cause.levels)
    fails, origin = cause.evidence.fails, answer.origin
    said, passes, trials = [f"fails {fails.seen}/{fails.runs} with {_which(names, cause)}"], [], [fails.trials]
    for name, claim in cause.evidence.without.items():
        if claim.subset is not None:
            noted = f" ({claim.note})" if claim.note else ""
            passes.append(f"{claim.seen}/{claim.runs} {_rest(name, names, claim)}{noted}")
            trials.append(claim.trials)
        elif name not in cause.inseparable:
            said.append(f"{name} cannot be reset: {claim.note}")
    for reset in answer.corrections:
        if cause.inseparable and set(reset.parameters) == set(cause.inseparable):
            both = "both" if len(reset.parameters) == 2 else "all of them"
            passes.append(f"{reset.passes.seen}/{reset.passes.runs} with {both} reset")
            trials.append(reset.passes.trials)
    if passes:
        said.append(f"passes {' and '.join(passes)}")
    plural = "s" if sum(map(len, trials)) > 1 else ""
    named = f" (trial{plural} {_listed(trials)})" if any(trials) else ""
    since = ""
    if origin is not None:
        since = f" Shown {since_step(origin)}{', and from step 0' if origin.proven_from_start else ''}."
    told = "; ".join(said) if len(names) > 1 else ", ".join(said)
    return f"{told[0].upper()}{told[1:]}{named}.{since}"


def _which(names: Sequence[str], cause: Cause) -> str:
    """The settings of a cause, after "fails with": alone, where a failing run needs no other one of the user's."""
    alone = "" if cause.companions else " alone"
    return f"{names[0]}{alone}" if len(names) == 1 else f"these {_NUMBERS.get(len(names), len(names))}{alone}"


def _rest(name: str, names: Sequence[str], claim: Claim) -> str:
    """The run of a cause without one of its settings, after "passes"."""
    others = [one for one in names if one != name]
    if not others:
        return "without it"
    if set(others) != set(claim.subset or ()):
        return f"without {name}"
    return f"with {others[0]} alone" if len(others) == 1 else f"with all of them but {name}"


_NUMBERS = {2: "two", 3: "three", 4: "four"}


def _listed(trials: Sequence[Sequence[int]]) -> str:
    """The trials of each claim: ``9 and 2``, ``6, 12; 4, 11; 7``."""
    if all(len(numbers) == 1 for numbers in trials) and len(trials) == 2:
        return " and ".join(str(numbers[0]) for numbers in trials)
    return "; ".join(", ".join(map(str, numbers)) for numbers in trials)
