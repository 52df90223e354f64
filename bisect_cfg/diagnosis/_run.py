"""What the files of one run say together: the error that says most about the cause, and which known failures may lead.

A known failure that stands in that error counts more than one that stands elsewhere; what only follows from an error,
what somebody survived and what a launcher says of it stand aside.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bisect_cfg.configuration import Configuration
from bisect_cfg.diagnosis import _faults, _silence, facts, signature
from bisect_cfg.diagnosis._components import RL, TRAINING, absent_in
from bisect_cfg.diagnosis._consequences import after, follows, tears_down
from bisect_cfg.diagnosis._matching import applies, match
from bisect_cfg.diagnosis._raised import raised_in_own_file
from bisect_cfg.diagnosis._reading import Reading
from bisect_cfg.diagnosis._render import Line, Match
from bisect_cfg.diagnosis._types import Fingerprint
from bisect_cfg.diagnosis.advice.reading import frames_before, phase_of
from bisect_cfg.diagnosis.knowledge import Clue, Entry

FOR_CAUSE, FOR_ERROR = 5, 2
"""What it is worth that a clue stands in the error that says most about the cause, or in another one that
ended a process. A general entry about the error itself is as good as a specific one about a warning before it."""

OF_TRACEBACK, BEFORE = 80, 6
"""Lines before an error that belong to it: its traceback, or what a program says before it gives up."""

FACT_OF = {
    "non-finite": "non-finite-gradient",
    "diverged": "loss-diverged",
    **{kind: kind for kind in ("collapse", "no-gradient", "dead-reward", "no-steps")},
}
"""The kinds of a failure that are a fact of the metrics by themselves."""

NON_FINITE = {"non-finite-gradient", "non-finite-loss", "left-course"}
LOST_ROWS = 8
"""Rows without a finite gradient or loss right before an error in the user's own file: it was given the answers of a
model whose weights were gone."""

_ENGINE = re.compile(r"EngineCore|VllmWorker|Worker_TP|SGLang|LLMRayActor")
"""Processes of an inference engine, by the names that they put before their lines."""

_STILL = (Clue("metric", "stalled"), Clue("metric", "standing"), Clue("metric", "ray-silent"))
_OF_NUMBERS = re.compile(
    r"\b(?:[Nn]a[Nn]s?|[Ii]nf|[Nn]on-?finite|not finite|overflow\w*|loss scale|scaler|multinomial)\b", re.I
)
"""An error that numbers bring about."""

_IN_QUOTES = re.compile(r'(?:^|[\s(])(?:["“„][^"”“]{8,}["”“]|`(?=[^`]{8,}`)[^`]*\s[^`]*`)|(?:^|\s)#+ .*')
"""What stands in quotation marks, or in Markdown's with several words (a name in them is part of a message), and a
comment in a file of code or settings."""


class Run:
    """What the files of one run say together.

    Args:
        readings: those files, each read to its end.
        environment: where it ran, if known.
        configuration: the settings it ran with, if known.
        failure: the failure, where somebody saw more than the log has.
    """

    def __init__(
        self,
        readings: Sequence[Reading],
        environment: Fingerprint | None = None,
        configuration: Configuration | None = None,
        failure: signature.Signature | None = None,
    ) -> None:
        self.readings = readings
        self.found = _found(readings, failure)
        located = [(error, reading) for reading in readings for error in reading.errors_left()]
        self.reading_of = {id(error): reading for error, reading in located}
        self.errors = [error for error, _ in located]
        self.cause = _faults.cause(self.errors)
        frames = frames_before(self.cause) if self.cause is not None else ()
        told = _told(readings)
        of_engine = self.cause is not None and _ENGINE.search(self.cause.who)
        if phase := phase_of(frames) or ("generation" if of_engine else told.get("progress", "")):
            told["phase"] = phase
        if self.cause is not None and (memory := facts.memory_of(self.cause.paragraphs()[0])):
            told["memory"] = memory
        self.shown = _shown(readings, self.cause)
        self.absent = absent_in(self.shown, frames, told.get("task", ""))
        if {RL, TRAINING} <= self.absent.unseen and told.get("task") != "supervised":
            told["task"] = "inference"
        self.told = told
        self.where = {**told, **dict(environment or {})}
        self.configuration = {**told.get("settings", {}), **(configuration or {})}

    def judge(self, entry: Entry) -> tuple[Match, bool] | None:
        """Whether a known failure's clues are all there, and whether it may lead the answer."""
        found, own = self.found, self._own
        survived = {
            clue for clue in entry.any if _all_survived(clue, found.get(clue), self.readings, entry, self._lines)
        }
        judged = match(entry, found, survived, self.where, self.configuration, self._near)
        if judged is None:
            return None
        matched, lines, by_line = judged
        warning = by_line and not (entry.early or entry.lasting)
        if not self.errors and by_line and lines and all(_quoted_in_prose(line, entry) for line in lines):
            return None  # somebody tells of an error
        if not self.errors and warning and _only_warned(lines, self.readings):
            return None  # and work went on
        if self._ended_by and _killed_after(entry, found, self._ended_by):
            return matched, False  # what is left of a run that has failed is ended by whoever started it
        if by_line and own and _faults.is_own(self.cause) and _only_after(lines, own):
            return matched, False
        worth = self._worth(lines, entry.early)
        of_cause = self._is_raised and worth == FOR_CAUSE
        of_metrics_alone = of_metrics(entry, found)
        of_rows = of_metrics_alone and not any(clue in _STILL for clue in entry.any)
        if self._is_raised and not worth and warning:
            return matched, False  # a warning somewhere else; the error is another one
        if self._is_raised and not of_cause and entry.general and not entry.early and not of_metrics_alone:
            return matched, False  # a launcher's or an engine's words about the error that is already there
        if self._died and entry.aftermath and worth != FOR_CAUSE:
            return matched, False  # who started the process only says that it failed
        if self._is_raised and of_rows:
            if self._lost_before and NON_FINITE & {clue.value for clue in entry.any}:
                worth = FOR_CAUSE  # by then the weights were gone
            if worth != FOR_CAUSE and not _OF_NUMBERS.search(self.cause.text):
                return matched, False  # rows that went wrong, and an error that has nothing to do with numbers
        matched = replace(matched, score=matched.score + worth)
        if applies(entry, found, self.where, self.configuration):
            return matched, True
        return None if of_metrics_alone else (matched, False)

    def _worth(self, lines: Sequence[Line], early: bool) -> int:
        """What it is worth where a known failure's lines stand."""
        inside = [*([self._own] if self._own else []), *self._of_chain]
        if any(line.file == file and first <= line.number <= last for line in lines for file, first, last in inside):
            return FOR_CAUSE
        for line in lines:
            at = (line.file, line.number)
            may_lead_to_it = at not in self._former and (early or at not in self._warned)
            if at in self._places or (may_lead_to_it and _leads_to(line, self.cause, self.reading_of, early)):
                return FOR_ERROR
        return 0

    def _near(self, line: Line) -> bool:
        """Whether a line is no further before the error than what belongs to it."""
        return self._own is None or line.file != self._own[0] or line.number >= self._own[1] - OF_TRACEBACK

    @functools.cached_property
    def _own(self) -> tuple[str, int, int] | None:
        """The error's file, and its first and last line."""
        cause = self.cause
        return cause and (self.reading_of[id(cause)].name, cause.line, cause.line + len(cause.more))

    @functools.cached_property
    def _of_chain(self) -> list[tuple[str, int, int]]:
        """The same of exceptions that were raised from it."""
        if self.cause is None:
            return []
        raised_from = [error for error in self.errors if _goes_back_to(error, self.cause, self.reading_of)]
        return [(self._own[0], error.line, error.line + len(error.more)) for error in raised_from]

    @functools.cached_property
    def _former(self) -> set[tuple[str, int]]:
        """Where errors of former runs stand."""
        former = [error for error in self.errors if _of_a_former_run(error, self.cause)]
        return {(self.reading_of[id(error)].name, error.line) for error in former}

    @functools.cached_property
    def _places(self) -> set[tuple[str, int]]:
        """All lines of all errors of this run."""
        left = [error for error in self.errors if not _of_a_former_run(error, self.cause)]
        return {
            (self.reading_of[id(error)].name, error.line + extra)
            for error in left
            for extra in range(len(error.more) + 1)
        }

    @functools.cached_property
    def _lines(self) -> set[tuple[str, int]]:
        """Where the errors' own lines stand."""
        return {(self.reading_of[id(error)].name, error.line) for error in self.errors}

    @functools.cached_property
    def _warned(self) -> set[tuple[str, int]]:
        return {(reading.name, number) for reading in self.readings for number in reading.warned}

    @functools.cached_property
    def _is_raised(self) -> bool:
        """Whether the cause is an exception. Somebody who ends a run says nothing of why."""
        return (
            self.cause is not None and self.cause.weight == _faults.RAISED and not _silence.only_ended(self.cause.text)
        )

    @functools.cached_property
    def _died(self) -> bool:
        return self.cause is not None and self.cause.weight in (_faults.RAISED, _faults.NATIVE)

    @functools.cached_property
    def _lost_before(self) -> bool:
        """Whether the user's own file was given the answers of a model whose weights were gone."""
        cause = self.cause
        return raised_in_own_file(cause) and any(
            reading.rows.broken_before(cause.line if reading is self.reading_of[id(cause)] else None) >= LOST_ROWS
            for reading in self.readings
        )

    @functools.cached_property
    def _ended_by(self) -> _faults.Error | None:
        """The error after which others are ended: who started the processes ends those that are left where one has
        failed, or where they waited in vain."""
        if self._is_raised:
            return self.cause
        return next((error for error in self.errors if tears_down(error.text)), None)


def _found(readings: Sequence[Reading], failure: signature.Signature | None) -> dict[Clue, list[Line]]:
    """The clues of all files, with the lines that show them."""
    found: dict[Clue, list[Line]] = {}
    moved = any(reading.rows.count for reading in readings)
    for reading in readings:
        for clue, lines in reading.found().items():
            # What a run prints to its other file stands still while the rows of this one come.
            if not (moved and not reading.rows.count and clue in _STILL):
                found.setdefault(clue, []).extend(lines)
    if seen := _seen(failure):
        found.setdefault(seen, [])
    return found


def apart(matches: Sequence[Match], found: Mapping[Clue, list[Line]]) -> tuple[list[Match], list[Match]]:
    """The matches without those that only say who ended a run whose rows had gone wrong before; and those."""
    of_rows = [match for match in matches if of_metrics(match.entry, found)]
    ended = [
        match
        for match in matches
        if of_rows and match not in of_rows and match.evidence and all(follows(line.text) for line in match.evidence)
    ]
    return [match for match in matches if match not in ended], ended


def _shown(readings: Sequence[Reading], cause: _faults.Error | None) -> str:
    """What is in sight of a log: its ends, and the text before the error."""
    parts = [part for one in readings for part in (one.head, b"" if one.head.endswith(one.tail) else one.tail)]
    if cause is not None:
        parts += [cause.before, "\n".join((cause.text, *cause.more)).encode("utf-8", "replace")]
    return b"\n".join(parts).decode("utf-8", "replace")


def _seen(failure: signature.Signature | None) -> Clue | None:
    """The clue that a failure is by itself."""
    if failure is None:
        return None
    if failure.kind == "signal":
        return Clue("signal", failure.name)
    fact = FACT_OF.get(failure.kind)
    return Clue("metric", fact) if fact else None


def _told(readings: Sequence[Reading]) -> Fingerprint:
    """What the files say about where they ran."""
    names = frozenset().union(*(entry.settings for reading in readings[:1] for entry in reading.entries))
    each = facts.LOOKED_AT // len(readings)
    ends = ((one.head, b"" if one.head.endswith(one.tail) else one.tail) for one in readings)
    text = b"\n".join(part for head, tail in ends for part in (head[:each], tail[-each:]) if part)
    told = facts.facts_of(text.decode("utf-8", "replace"), names)
    task = next((task for reading in readings if (task := reading.rows.task())), "")
    return {**told, "task": task} if task and "task" not in told else told


def _leads_to(line: Line, cause: _faults.Error | None, by_error: Mapping[int, Reading], early: bool) -> bool:
    """Whether a line stands in the traceback that ends in the cause, or right before it; a warning that is known to
    come before such an error may stand farther away."""
    if cause is None or line.file != by_error[id(cause)].name:
        return False
    before = cause.traceback - 1 if cause.traced else BEFORE  # no line before the traceback
    return 0 < cause.line - line.number <= (max(before, OF_TRACEBACK) if early else before)


def _goes_back_to(error: _faults.Error, cause: _faults.Error, by_error: Mapping[int, Reading]) -> bool:
    """Whether an exception was raised from another one (Python prints both, the cause first): they are one failure."""
    return (
        error.traced
        and by_error[id(error)] is by_error[id(cause)]
        and error.line - error.traceback < cause.line < error.line
    )


def _of_a_former_run(error: _faults.Error, cause: _faults.Error | None) -> bool:
    """Whether an exception was printed before another one that ended the run with its traceback: by itself, or by the
    same process, which dies once and so had caught it."""
    return (
        cause is not None
        and cause.traced
        and error.weight == _faults.RAISED
        and (error.who == cause.who if error.traced else not error.stamped)
        and error.line < cause.line - cause.traceback
    )


def _killed_after(entry: Entry, found: Mapping[Clue, list[Line]], cause: _faults.Error) -> bool:
    """Whether an entry rests on a signal alone that others send, and it came after the error."""
    present = [clue for clue in entry.any if clue in found]
    return all(
        clue.kind == "signal"
        and clue.value in signature.SENT_BY_OTHERS
        and all(line.number > cause.line for line in found[clue])
        for clue in present
    )


def _only_after(lines: Sequence[Line], own: tuple[str, int, int]) -> bool:
    """Whether an entry rests on what only follows from the error at a place (file, first and last line)."""
    return all(line.file == own[0] for line in lines) and after(own[2], [(line.number, line.text) for line in lines])


def _quoted_in_prose(line: Line, entry: Entry) -> bool:
    """Whether what a line says of an error stands in quotation marks, after a blank: a sentence about it; or in a
    comment."""
    if line.text.startswith(("{", "[")) or 'HTTP/1.1" ' in line.text:  # a server's own line
        return False
    bare = _IN_QUOTES.sub(" ", line.text)
    return bare != line.text and not any(clue.kind == "line" and re.search(clue.value, bare) for clue in entry.any)


def _only_warned(lines: Sequence[Line], readings: Sequence[Reading]) -> bool:
    """Whether lines only warn or inform by their own words, and the program was at work after them."""
    by_name = {reading.name: reading for reading in readings}
    return bool(lines) and all(
        line.number in by_name[line.file].warned and by_name[line.file].worked_after(line.number) for line in lines
    )


def of_metrics(entry: Entry, found: Mapping[Clue, list[Line]]) -> bool:
    return any(clue.kind == "metric" and clue in found for clue in entry.any)


def _all_survived(
    clue: Clue, lines: list[Line] | None, readings: Sequence[Reading], entry: Entry, left: set[tuple[str, int]]
) -> bool:
    """Whether training went on after every line that shows a clue, of which none is that of an error that is left."""
    if not lines or clue.kind != "line" or entry.lasting:
        return False
    by_name = {reading.name: reading for reading in readings}
    return all(
        (line.file, line.number) not in left and by_name[line.file].went_well_after(line.number) for line in lines
    )
