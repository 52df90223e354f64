"""`bisect-cfg explain`: a log in, what it means out. No GPU, no script, no torch.

The log is read once, in blocks. One scan finds the few lines on which some clue could match (`_words`),
those are matched properly; the metric rows are summed up (`_metrics`), the tracebacks and signals are
followed (`_logs`), and every other shape of an error is collected with the lines that belong to it (`_faults`).
Then every known failure whose clues are all there is ranked: one that needs more clues, and has more of its
hints, says more; one that stands in the error that ended the run more than one that stands elsewhere; a general
one gives way. What nobody knows is said to be unknown, with the failure's own words and the line they stand on.

Rows of metrics after an error tell that training survived it; then it explains nothing.
"""

from __future__ import annotations

import functools
import io
import math
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

from bisect_cfg.configuration import Configuration
from bisect_cfg.diagnosis import _bystanders, _faults, _logs, _render, _silence, facts, signature
from bisect_cfg.diagnosis._components import RL, TRAINING, absent_in
from bisect_cfg.diagnosis._consequences import after, follows, tears_down
from bisect_cfg.diagnosis._lead import doubt
from bisect_cfg.diagnosis._metrics import WORDS, Rows
from bisect_cfg.diagnosis._plain_text import clean
from bisect_cfg.diagnosis._quoted import is_settings_in_json, quotes
from bisect_cfg.diagnosis._recovered import Recovery, recovery
from bisect_cfg.diagnosis._render import NO_FAILURE, UNREADABLE, Explanation, Line, Match
from bisect_cfg.diagnosis._row_facts import FACTS
from bisect_cfg.diagnosis._rows import Row
from bisect_cfg.diagnosis._told import expected
from bisect_cfg.diagnosis._types import Fingerprint
from bisect_cfg.diagnosis._words import Found, Words, literals, word_of
from bisect_cfg.diagnosis.advice import DEFINITE, Advice, advise
from bisect_cfg.diagnosis.advice.data import of_a_row
from bisect_cfg.diagnosis.advice.reading import Frame, frames_before, phase_of, settings_in, told_cure
from bisect_cfg.diagnosis.advice.signatures import taken_here
from bisect_cfg.diagnosis.conditions import evaluate
from bisect_cfg.diagnosis.knowledge import Clue, Entry, EntryCase, load
from bisect_cfg.probe.secrets import mask_arguments, scrub

EVIDENCE = 3
"""Lines shown for each clue. A device-side assertion prints thousands of the same."""

SPELLED = 1 << 22
"""Bytes of a log without rows in which the numbers behind names are looked for one by one."""

HITS = 300
"""Lines of one clue that are looked at in a block; of more only the first and the last of them would be kept."""

AFTERMATH, GENERAL, SPECIFIC, FOR_ALL, FOR_HINT, FOR_CONDITION = -20, 4, 10, 3, 2, 2
"""What a match is worth. A specific entry beats a general one unless four hints speak for the general one,
and an entry that needs a second clue beats one that does not. One that says that the cause is elsewhere beats
nothing."""

FOR_CAUSE, FOR_ERROR = 5, 2
"""... and what it is worth that the clue stands in the error that says most about the cause, or in another one that
ended a process. A general entry about the error itself is as good as a specific one about a warning before it."""

OF_TRACEBACK, BEFORE = 80, 6
"""Lines before an error that belong to it: its traceback, or what a program says before it gives up."""

FLOOD, LAST_BLOCKS, FEW_LINES, BEGINNING = 8_000, 3, 6, 1 << 13
"""After so many lines that were looked at, every one of the last blocks is, but only so few of each block before them,
and if they are in its first bytes, only those bytes are searched. A log that prints errors without end says nothing new
by more, and what ended it stands at its end."""

FREQUENT, RARER = 100, 4
"""A word that a log has so often is left for another one of the same pattern that it has so many times less often."""

LONGEST_REASON = 100
"""Characters of a clue's words that are repeated as the reason for an answer."""

FACT_OF = {
    "non-finite": "non-finite-gradient",
    "diverged": "loss-diverged",
    **{kind: kind for kind in ("collapse", "no-gradient", "dead-reward", "no-steps")},
}
"""The kinds of a failure that are a fact of the metrics by themselves."""

REPEATED = 3
"""An exception that training survives so often is a part of it."""

PARAGRAPHS = 40
"""Errors whose lines are read as one text, to find what is wrapped."""

_OF_A_DATA_SET = re.compile(
    rb'"(?:prompt|completion|response|question|answer|messages|instruction|conversations|solution)": ?["\[]'
    rb'(?!.*"(?:level|levelname|severity)":)'
)
"""A row of a data set or a completion that was kept, and not a logger's line in JSON."""

WORKED = 2
"""Lines of work after a warning that show that nothing came of it: two bars that are full, or a file that is saved."""

LEVEL_WITHIN = 200
_WARNS = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG|NOTICE)\b|(?:^|[\s:.])\w*Warning: |^[WI]\d{4} \d\d:|\[W\d{3,4} ")
_LEVEL_OF_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|NCCL (?:WARN|INFO))\b|\w(?:Error|Exception): ")
"""How a line says of itself that it only warns or informs, within so many characters; and that it does not."""

_SAMPLED = re.compile(
    rb"^\W{0,3}(?i:prompt|completion|response|answer|question|user|assistant|instruction|reference|ground[ _]truth"
    rb"|solution)s?\W{0,3}[:=]"
)
"""A line of a completion that was printed, with its name before it."""

SHOWN_MORE = 2
"""Lines after an error's first one that are shown with it where they belong to the same sentence."""

_UNFINISHED = re.compile(r"[:,(]$|\b(?:the|an?|of|to|and|or|with|is|in|by|for|from|that)$")
"""A line that cannot be the end of a message."""


def explain(
    stream: BinaryIO,
    *,
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
    failure: signature.Signature | None = None,
    entries: Sequence[Entry] | None = None,
) -> Explanation:
    """Explains a log.

    Args:
        stream: The log, opened in binary mode; it is read once, to its end.
        environment: A `fingerprint` of where it ran, if known; rules out what cannot apply there.
        configuration: The settings it ran with, if known.
        failure: The failure, where somebody saw more than the log has: a process killed by a signal prints
            nothing.
        entries: The known failures; those of this package if None.
    """
    reading = Reading(load() if entries is None else entries)
    reading.read(stream)
    return combine([reading], environment=environment, configuration=configuration, failure=failure)


def explain_text(text: str, **options: object) -> Explanation:
    """`explain` for a text in memory: the last lines of a trial, an exception's message."""
    return explain(io.BytesIO(text.encode("utf-8", "replace")), **options)


def explain_paths(paths: Sequence[str]) -> tuple[Explanation, list[str]]:
    """Explains files or folders of one run together; and says which of them could not be read.

    Raises:
        Unreadable: none could.
    """
    from bisect_cfg.diagnosis._formats import sources

    opened, problems = sources(paths)
    entries, readings = load(), []
    for source in opened:
        reading = Reading(entries, source.name, source.quoting)
        for row in source.rows:
            reading.rows.add(row)
        if source.stream is not None:
            reading.read(source.stream)
        readings.append(reading)
    return combine(readings), problems


def explain_command(*paths: str, as_json: bool = False) -> int:
    """What `bisect-cfg explain` does; "-" reads standard input.

    Returns:
        The exit status: 0 something known was found, 1 a failure that nobody knows, 3 no failure, 2 unreadable.
    """
    from bisect_cfg.diagnosis._formats import Unreadable

    try:
        explanation, problems = explain_paths(paths)
    except (OSError, Unreadable) as error:
        said = f"{paths[0]}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        print(f"bisect-cfg explain: {said}. Give a log, a folder of a run, or - for standard input.", file=sys.stderr)
        return UNREADABLE
    for problem in problems:
        print(f"bisect-cfg explain: not read: {problem}.", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a log may hold what this terminal cannot show
    print(_render.as_json(explanation, problems) if as_json else _render.render(explanation))
    # A file that says nothing is no proof that all is well where another one could not be read.
    return UNREADABLE if problems and explanation.status == NO_FAILURE else explanation.status


def combine(
    readings: Sequence[Reading],
    *,
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
    failure: signature.Signature | None = None,
) -> Explanation:
    """Explains what one or several files of the same run say together."""
    found: dict[Clue, list[Line]] = {}
    moved = any(reading.rows.count for reading in readings)
    for reading in readings:
        for clue, lines in reading.found().items():
            # What a run prints to its other file stands still while the rows of this one come.
            if not (moved and not reading.rows.count and clue in _STILL):
                found.setdefault(clue, []).extend(lines)
    seen = _seen(failure)
    if seen:
        found.setdefault(seen, [])
    located = [(error, reading) for reading in readings for error in reading.errors_left()]
    by_error = {id(error): reading for error, reading in located}
    errors = [error for error, _ in located]
    cause = _faults.cause(errors)
    told = _told(readings)
    frames = frames_before(cause) if cause is not None else ()
    phase = phase_of(frames) or told.get("progress", "")
    if phase:
        told["phase"] = phase
    if cause is not None and (memory := facts.memory_of(cause.paragraphs()[0])):
        told["memory"] = memory
    shown = _shown(readings, cause)
    absent = absent_in(shown, frames, told.get("task", ""))
    if {RL, TRAINING} <= absent.unseen and told.get("task") != "supervised":
        told["task"] = "inference"
    where = {**told, **dict(environment or {})}
    configuration = {**told.get("settings", {}), **(configuration or {})}
    places = {
        (by_error[id(error)].name, error.line + extra)
        for error in errors
        if not _of_a_former_run(error, cause)
        for extra in range(len(error.more) + 1)
    }
    warned = {(reading.name, number) for reading in readings for number in reading.warned}
    former = {(by_error[id(error)].name, error.line) for error in errors if _of_a_former_run(error, cause)}
    own = cause and (by_error[id(cause)].name, cause.line, cause.line + len(cause.more))
    raised_from = [one for one in errors if cause is not None and _goes_back_to(one, cause, by_error)]
    of_chain = [(own[0], one.line, one.line + len(one.more)) for one in raised_from] if own else []
    # Somebody who ends a run says nothing of why.
    of_cause = cause is not None and cause.weight == _faults.RAISED and not _silence.only_ended(cause.text)
    died = cause is not None and cause.weight in (_faults.RAISED, _faults.NATIVE)
    lost_before = _raised_in_own_file(cause) and any(
        reading.rows.broken_before(cause.line if reading is by_error[id(cause)] else None) >= LOST_ROWS
        for reading in readings
    )
    matches, aside = [], []
    # Who started the processes ends those that are left where one has failed, or where they waited in vain.
    ended_by = cause if of_cause else next((error for error in errors if tears_down(error.text)), None)

    def near(line: Line) -> bool:
        return own is None or line.file != own[0] or line.number >= own[1] - OF_TRACEBACK

    for entry in readings[0].entries:
        survived = {clue for clue in entry.any if _all_survived(clue, found.get(clue), readings, entry)}
        judged = _match(entry, found, survived, where, configuration, near)
        if judged is None:
            continue
        match, any_lines, by_line = judged
        if not errors and by_line and any_lines and all(_quoted_in_prose(line, entry) for line in any_lines):
            continue  # somebody tells of an error
        if not errors and by_line and not (entry.early or entry.lasting) and _only_warned(any_lines, readings):
            continue  # and work went on
        if ended_by and _killed_after(entry, found, ended_by):
            aside.append(match)  # what is left of a run that has failed is ended by whoever started it
            continue
        if by_line and own and _faults.is_own(cause) and _only_after(any_lines, own):
            aside.append(match)
            continue
        bonus = 0
        if own and any(
            line.file == file and first <= line.number <= last
            for line in any_lines
            for file, first, last in (own, *of_chain)
        ):
            bonus = FOR_CAUSE
        elif any(
            (line.file, line.number) in places
            or (
                (line.file, line.number) not in former
                and (entry.early or (line.file, line.number) not in warned)
                and _leads_to(line, cause, by_error, entry.early)
            )
            for line in any_lines
        ):
            bonus = FOR_ERROR
        if of_cause and not bonus and by_line and not entry.lasting and not entry.early:
            aside.append(match)  # a warning somewhere else; the error is another one
            continue
        if of_cause and bonus != FOR_CAUSE and entry.general and not entry.early and not _of_metrics(entry, found):
            aside.append(match)  # a launcher's or an engine's words about the error that is already there
            continue
        if died and entry.aftermath and bonus != FOR_CAUSE:
            aside.append(match)  # who started the process only says that it failed
            continue
        of_rows = _of_metrics(entry, found) and not any(clue.value in ("stalled", "standing") for clue in entry.any)
        if of_cause and of_rows and lost_before and NON_FINITE & {clue.value for clue in entry.any}:
            bonus = FOR_CAUSE  # by then the weights were gone
        if of_cause and bonus != FOR_CAUSE and of_rows and not _OF_NUMBERS.search(cause.text):
            aside.append(match)  # rows that went wrong, and an error that has nothing to do with numbers
            continue
        match = replace(match, score=match.score + bonus)
        if _applies(entry, found, where, configuration):
            matches.append(match)
        elif not _of_metrics(entry, found):
            aside.append(match)
    matches, ended = _apart(matches, found)
    aside += ended
    order = lambda match: (-match.score, match.evidence[0].number if match.evidence else 0)  # noqa: E731
    matches.sort(key=order)
    aside.sort(key=order)
    evidence = readings[0].logs.evidence
    for reading in readings[1:]:
        evidence = evidence if signature.from_evidence(evidence) else reading.logs.evidence
    survived_all = not errors and (
        evidence.progress
        or any(reading.quoting for reading in readings)
        or not any(reading.signals() for reading in readings)
    )  # the tracebacks that are there killed nothing
    again = next((one for reading in readings for one in reading.repeated()), None) if not errors else None
    if again is not None and matches and matches[0].entry.general and _of_metrics(matches[0].entry, found):
        by_error[id(again)] = next(reading for reading in readings if again in reading.repeated())
        beside = "an error comes again and again beside it"
        matches = [replace(match, doubt=beside) if match.entry.general else match for match in matches]
        cause = again
    silent = Clue("metric", "stalled") in found
    stands = readings[0].stands() if len(readings) == 1 and not errors and not silent else None
    last = max(errors, key=lambda error: error.line) if len(readings) == 1 and errors else None
    advice = _without_secrets(_advice_beside(matches, cause, where.get("packages") or {}))
    matches = [replace(match, absent=absent) for match in matches]
    matches = _doubted(matches, cause, advice, shown)
    if cause is None and failure is None and matches and matches[0].doubt and not _of_metrics(matches[0].entry, found):
        matches, aside = [], [*matches, *aside]
    if matches and matches[0].doubt and advice is None:
        advice = _without_secrets(advise(cause, where.get("packages") or {}))
    return Explanation(
        tuple(matches),
        failure or (None if survived_all else _scrubbed(signature.from_evidence(evidence))),
        _command(
            next((reading.command for reading in readings if reading.command), None),
            readings[0].head.decode("utf-8", "replace"),
            _own_script(cause),
        ),
        sum(reading.lines for reading in readings),
        _line_of(cause, by_error),
        _line_of(last, by_error) if last is not cause else None,
        tuple(aside),
        sum(reading.rows.count for reading in readings),
        told,
        advice,
        "" if stands or len(readings) > 1 else readings[0].no_log(),
        stands,
        _said(cause, matches[0], advice) if matches and cause is not None else "",
        _raised(cause),
    )


def _shown(readings: Sequence[Reading], cause: _faults.Error | None) -> str:
    """What is in sight of a log: its ends, and the text before the error."""
    parts = [part for one in readings for part in (one.head, b"" if one.head.endswith(one.tail) else one.tail)]
    if cause is not None:
        parts += [cause.before, "\n".join((cause.text, *cause.more)).encode("utf-8", "replace")]
    return b"\n".join(parts).decode("utf-8", "replace")


def _doubted(matches: Sequence[Match], cause: _faults.Error | None, advice: Advice | None, shown: str) -> list[Match]:
    """The matches with what speaks against their lead; those that may lead first."""
    message = cause.paragraphs()[0] if cause is not None else ""
    key = re.fullmatch(r"KeyError: ['\"]([^'\"]+)['\"]", message)
    of_row = of_a_row(key[1], frames_before(cause)) if key and cause is not None else None
    judged = []
    for match in matches:
        lines = {line.number for line in match.evidence}
        elsewhere = cause is not None and any(not cause.line <= line <= cause.line + len(cause.more) for line in lines)
        definite = advice is not None and match is matches[0]
        said = match.doubt or doubt(
            match.entry, match.decided, message, definite, shown, elsewhere, match.absent, of_row
        )
        judged.append(replace(match, doubt=said))
    # Who started a process says nothing of its failure, not even where what is known of that is in doubt.
    return sorted(judged, key=lambda match: bool(match.doubt) or match.entry.aftermath)


def _raised(cause: _faults.Error | None) -> str:
    """Where an error was raised, and from which line of one's own."""
    frames = _frames_of(cause) if cause is not None and cause.type_name else ()
    if not frames:
        return ""
    own = next((frame for frame in reversed(frames) if not frame.package), None)
    if own is frames[-1]:
        return f"It was raised at {own}."
    called_from = f", called from {own}" if own else ""
    return f"It was raised at {frames[-1]}{called_from}."


def _said(cause: _faults.Error, match: Match, advice: Advice | None) -> str:
    """What the error's message says to do, if what is known says nothing of it."""
    said = scrub(told_cure(cause.paragraphs()[0]))
    known = " ".join((*match.steps, *match.entry.cures, *match.entry.not_helping, match.entry.meaning))
    known += " ".join(advice.steps) if advice else ""
    return "" if said in known or any(name.strip("-") in known for name in settings_in(said)) else said


def _advice_beside(matches: Sequence[Match], cause: _faults.Error | None, packages: Mapping[str, str]) -> Advice | None:
    """What the traceback says, where nothing is known, or only something general that it makes definite."""
    if matches and not matches[0].entry.general:
        return None
    advice = advise(cause, packages)
    return advice if not matches or (advice is not None and advice.kind in DEFINITE) else None


@functools.lru_cache(maxsize=4)
def _prepared(entries: tuple[Entry, ...]) -> tuple[dict[str, tuple[str, ...]], frozenset[bytes]]:
    """The lines' patterns with their plain runs, and all words that have to be found."""
    clues = {clue for entry in entries for clue in entry.clues}
    patterns = {clue.value: literals(clue.value) for clue in clues if clue.kind == "line"}
    words = {run.encode() for runs in patterns.values() for run in runs}
    return patterns, frozenset(words | _logs.TROUBLE | _faults.WORDS)


class Reading:
    """One pass over a log: which clues it has, and where.

    Args:
        entries: the known failures to look for.
        name: the file's name, where there are several.
        quoting: what it is, if it is known to be a text about errors and no log.
    """

    def __init__(self, entries: Sequence[Entry], name: str = "", quoting: str = "") -> None:
        self.entries = entries
        self.name = name
        self.quoting = quoting
        self.rows = Rows()
        self.logs = _logs.Reader()
        self.errors = _faults.Errors()
        self.lines = 0
        self.command: str | None = None
        self.warned: set[int] = set()  # lines that are no error's by their own words
        self.head = self.tail = b""
        self._evidence: dict[str, list[Line]] = {}
        self._hits: dict[str, int] = {}  # in this block
        self._all, self._every = _prepared(tuple(entries))
        self._open = dict(self._all)
        self._words, self._words_of_texts = Words(self._every, WORDS), Words(self._every, WORDS)
        self._by_word: dict[bytes, list[str]] = {}  # the patterns that are looked for where a word stands
        for pattern, runs in self._all.items():
            self._by_word.setdefault(word_of(runs).encode(), []).append(pattern)
        self._word_for = {pattern: word for word, patterns in self._by_word.items() for pattern in patterns}
        self._looked_at = 0  # lines
        self._tolerated: dict[bytes, int] = {}  # how often a word may come until another is looked for
        self._mute()

    def read(self, stream: BinaryIO) -> None:
        """Reads it to its end."""
        number, of_rows, spelled = 1, Words((), WORDS), b""
        waiting: deque[tuple[bytes, int, Found | None, bool]] = deque()
        for block in _logs.blocks(stream):
            if not self.head and not self.quoting:
                self.quoting = quotes(block[: facts.LOOKED_AT], len(block) <= facts.LOOKED_AT)
            if len(self.head) < facts.LOOKED_AT:
                self.head += block[: facts.LOOKED_AT]
            self.tail = (self.tail + block if len(block) < facts.LOOKED_AT else block)[-facts.LOOKED_AT :]
            if len(spelled) < SPELLED and not self.rows.count and not self.quoting:
                spelled += block
            found, flooded = None, self._looked_at > FLOOD
            if not flooded or len(self._words.look(block[:BEGINNING]).places) < FEW_LINES:
                found = self._words.look(block)
            marks = (found or of_rows.look(block)).marks
            waiting.append((block, number, found, self.rows.feed(block, number, marks)))
            number += block.count(b"\n")
            while len(waiting) > (LAST_BLOCKS if flooded else 0):
                early, its_number, its_found, went_on = waiting.popleft()
                self._follow(early, its_number, its_found or self._words.look(early[:BEGINNING]), went_on, flooded)
        for last, its_number, its_found, went_on in waiting:
            self._follow(last, its_number, its_found or self._words.look(last), went_on)
        if not self.rows.count:
            self.rows.spelled(spelled.decode("utf-8", "replace"))
        self.lines = number - 1 + (not self.tail.endswith(b"\n") and bool(self.tail))
        self._look_at_the_end()

    def _follow(self, block: bytes, number: int, found: Found, went_on: bool, flooded: bool = False) -> None:
        """Looks at a block's lines, at a few of them where the log is a flood."""
        before = len(self._open), len(self.logs.words())
        self._reopen(went_on)
        self.errors.begin(block)
        self._looked_at += self.logs.feed(block, number, found, self._line, FEW_LINES if flooded else math.inf)
        for pattern, hits in self._hits.items():
            if hits >= EVIDENCE:
                self._open.pop(pattern, None)
        if self._choose_words() or (len(self._open), len(self.logs.words())) != before:
            self._mute()

    def _look_at_the_end(self) -> None:
        """Takes every line of the end for an error's, whether the scan would stop at it or not."""
        if self.quoting:
            return
        tail = self.tail if len(self.tail) < facts.LOOKED_AT else self.tail[self.tail.find(b"\n") + 1 :]
        number = self.lines - tail.count(b"\n") + tail.endswith(b"\n")
        start = 0
        while start < len(tail):
            end = tail.find(b"\n", start)
            end = len(tail) if end < 0 else end
            line = tail[start:end]
            data = _OF_A_DATA_SET.search(line) or _SAMPLED.match(line) or expected(line)
            if not self.errors.knows(number) and not data:
                self.errors.line(line, number, tail, end, None, anyway=True)
            start, number = end + 1, number + 1
        self.errors.begin(b"")

    def found(self) -> dict[Clue, list[Line]]:
        """Every clue the log has, with the lines that show it."""
        if self.quoting:
            return {}
        beside = self._beside
        found = {
            Clue("line", pattern): left
            for pattern, lines in self._evidence.items()
            if (left := [line for line in lines if line.number not in beside])
        }
        self._in_paragraphs(found)
        for name, number in self.signals().items():
            text = self.logs.evidence.signal_lines.get(name, name)
            found[Clue("signal", name)] = [Line(number, text, self.name)]
        for name, rows in self._row_facts.items():
            found[Clue("metric", name)] = [Line(row.line, row.text, self.name) for row in rows[:EVIDENCE]]
        if self.rows.count:
            found[Clue("metric", "rows")] = []
        if self.errors_left():
            found.pop(Clue("metric", "no-steps"), None)  # it did not end well
        still = self._silence()
        if still is not None:
            told = Line(still.told_line, still.told, self.name)
            found[Clue("metric", "stalled")] = [told, Line(still.line, str(still), self.name)] if still.line else [told]
        elif not self.errors_left() and (stands := self.stands()) is not None:
            found[Clue("metric", "standing")] = [stands]
        return found

    def no_log(self) -> str:
        """What this is, if it is no log; to be asked where nothing failed."""
        whole = len(self.head) < facts.LOOKED_AT and not self.rows.count
        return self.quoting or ("a file of settings in JSON" if whole and is_settings_in_json(self.head) else "")

    def stands(self) -> Line | None:
        """The line of starting, retrying or step 0 with which the log ends, if it does."""
        # A script is often given together with the few lines that it printed.
        found = (
            None
            if self.quoting not in ("", "a script") or self.rows.count
            else _silence.standing(self.tail, self.lines + 1)
        )
        return found and Line(found[0], found[1], self.name)

    def _silence(self) -> _silence.Standstill | None:
        """The silence that the log ends in, where no error says why."""
        if not all(_silence.only_ended(error.text) for error in self.errors_left()):
            return None
        return _silence.silence(self.tail, self.lines + 1, self.rows.count)

    def errors_left(self) -> list[_faults.Error]:
        """The errors that training did not survive, with the signals that shells and launchers report."""
        return [error for error in self._errors_left if error.line not in self._beside]

    @functools.cached_property
    def _row_facts(self) -> dict[str, list[Row]]:
        return self.rows.facts()

    @functools.cached_property
    def _beside(self) -> set[int]:
        """The lines of errors that are of others than the run."""
        known = self._recovery
        ended_well = bool(known.ended or known.through or self._row_facts)
        return _bystanders.places(self._errors_left, ended_well)

    @functools.cached_property
    def _errors_left(self) -> list[_faults.Error]:
        if self.quoting:
            return []
        found = self.errors.after(
            lambda error: (
                self.survived(error.line, error.who)
                or error.line <= self._recovery.through
                or (error.traced and error.line in self._recovery.caught)
                or (not error.traced and error.weight != _faults.NATIVE and self._got_over(error.line))
            )
        )
        evidence = self.logs.evidence
        known = {error.line for error in found}
        for name, number in self.signals().items():
            itself = name == "SIGABRT" and any(_faults.GAVE_UP.search(error.text) for error in found)
            rank = _faults.STATUS if name in signature.SENT_BY_OTHERS or itself else _faults.NATIVE
            if number not in known:
                found.append(_faults.Error(number, evidence.signal_lines.get(name, name), "", rank))
        if evidence.assertion is not None and not self.survived(evidence.assertion[2]):
            kernel, asserted, number = evidence.assertion
            found.append(_faults.Error(number, f"{kernel}: Assertion `{asserted}` failed", "", _faults.NATIVE))
        if self._recovery.through:  # what it complained of while it trained, it may say again at its end
            before = {error.text for error in self.errors.after(lambda error: not self.survived(error.line))}
            found = [error for error in found if error.weight != _faults.LOGGED or error.text not in before]
        return sorted(found, key=lambda error: error.line)

    def repeated(self) -> list[_faults.Error]:
        """The first of each exception that training survives, and that comes again and again."""
        if self.quoting:
            return []
        after = self.errors.after(lambda error: not error.traced)
        raised = [error for error in after if error.weight == _faults.RAISED]
        kinds = Counter((error.type_name, error.text) for error in raised)
        firsts = {(error.type_name, error.text): error for error in reversed(raised)}
        return [firsts[kind] for kind, count in kinds.most_common(1) if count >= REPEATED]

    def signals(self) -> dict[str, int]:
        """The signals that ended a process which nobody started again."""
        signals = self.logs.evidence.signals.items()
        return {
            name: number
            for name, number in signals
            if number > self._recovery.through
            and not (self._got_over(number) and (name in signature.SENT_BY_OTHERS or number in self._recovery.coped))
        }

    @functools.cached_property
    def _recovery(self) -> Recovery:
        return Recovery() if self.quoting else recovery(self.tail, self.lines)

    def _got_over(self, number: int) -> bool:
        """Whether the log says in words that a trouble on this line ended nothing."""
        known = self._recovery
        return known.since <= number <= known.ended or number in known.coped

    def survived(self, number: int, who: str = "") -> bool:
        """Whether rows of metrics tell that training went on after this line.

        While one rank dies, another may still print the row of the step before.
        """
        return self.rows.after(number) > (1 if who else 0)

    def went_well_after(self, number: int) -> bool:
        """Whether a line that is no traceback's was survived; after a run that came through, what only complains."""
        through = self._recovery.through
        return self.survived(number) or self._got_over(number) or (bool(through) and not self.errors_left())

    def worked_after(self, number: int) -> bool:
        """Whether lines of a program at work, or that has done its work, come after a line."""
        return sum(at > number for at in self._recovery.work) >= WORKED

    def _in_paragraphs(self, found: dict[Clue, list[Line]]) -> None:
        """Clues in the errors' lines taken together: what is wrapped, by a box or by a terminal."""
        told: set[str] = set()
        errors = self.errors_left()
        for error in [*errors[: PARAGRAPHS // 2], *errors[PARAGRAPHS // 2 :][-PARAGRAPHS // 2 :]]:
            texts = [text for text in error.paragraphs() if text not in told]
            told.update(texts)
            for text in texts:
                for pattern in self._possible(set(self._words_of_texts.look(text.encode()).words)):
                    if all(run in text for run in self._all[pattern]) and re.search(pattern, text):
                        lines = found.setdefault(Clue("line", pattern), [])
                        if not any(error.line <= line.number <= error.line + len(error.more) for line in lines):
                            lines.append(Line(error.line, error.text, self.name))

    def _reopen(self, went_on: bool) -> None:
        """A clue that was seen often enough may be seen again after training went on, and only then it counts."""
        self._hits.clear()
        if went_on and len(self._open) < len(self._all):
            self._open = dict(self._all)

    def _choose_words(self) -> bool:
        """Looks for patterns at another of their words, where one turns out to be frequent in this log."""
        counts, frequent = self._words.counts, []
        for word, count in self._words.counts.items():
            if count > self._tolerated.get(word, FREQUENT) and word in self._by_word:
                self._tolerated[word] = 2 * count
                frequent.append(word)
        changed = False
        for word in frequent:
            for pattern in self._by_word.pop(word):
                best = min((run.encode() for run in self._all[pattern]), key=counts.__getitem__)
                best = best if RARER * counts[best] < counts[word] else word
                self._by_word.setdefault(best, []).append(pattern)
                self._word_for[pattern] = best
                changed |= best != word
        return changed

    def _mute(self) -> None:
        """Stops only where an open pattern or an error may be."""
        closed = {self._word_for[pattern] for pattern in self._all.keys() - self._open.keys()}
        wanted = self._by_word.keys() - {word for word in closed if self._open.keys().isdisjoint(self._by_word[word])}
        self._words.mute(self._every - wanted - self.logs.words() - _faults.WORDS)

    def _line(
        self, raw: bytes, number: int, block: bytes, end: int, raised: _logs.Traceback | None, words: set[bytes]
    ) -> None:
        if (
            self.quoting
            or _SAMPLED.match(raw)
            or ((raised is None or raised.printed) and expected(raw))
            or (raw.startswith(b'{"') and _OF_A_DATA_SET.search(raw))
        ):
            return  # what somebody wrote about errors
        if self.command is None and b"Command '[" in raw:
            self.command = raw.decode("utf-8", "replace")
        if raised is not None and raised.printed:
            self.errors.ignore(number)
        else:
            self.errors.line(raw, number, block, end, None if raised is None else raised.type_name)
        text, said = raw.decode("utf-8", "replace"), None
        for pattern in self._possible(words):
            if pattern not in self._open or self._open[pattern][0] not in text:
                continue
            said = said or clean(text)
            if re.search(pattern, said):
                if _WARNS.search(text[:LEVEL_WITHIN]) and not _LEVEL_OF_ERROR.search(text[:LEVEL_WITHIN]):
                    self.warned.add(number)
                self._note(pattern, Line(number, said, self.name))

    def _possible(self, words: set[bytes]) -> list[str]:
        """The patterns that may match what has these words."""
        return [pattern for word in words & self._by_word.keys() for pattern in self._by_word[word]]

    def _note(self, pattern: str, line: Line) -> None:
        """Keeps the first lines of a clue, and the last one, by which it is judged whether training went on."""
        lines = self._evidence.setdefault(pattern, [])
        if len(lines) >= EVIDENCE:
            lines.pop()
        lines.append(line)
        self._hits[pattern] = self._hits.get(pattern, 0) + 1
        if self._hits[pattern] >= HITS:
            self._open.pop(pattern, None)


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


def _apart(matches: Sequence[Match], found: Mapping[Clue, list[Line]]) -> tuple[list[Match], list[Match]]:
    """The matches without those that only say who ended a run whose rows had gone wrong before; and those."""
    of_rows = [match for match in matches if _of_metrics(match.entry, found)]
    ended = [
        match
        for match in matches
        if of_rows and match not in of_rows and match.evidence and all(follows(line.text) for line in match.evidence)
    ]
    return [match for match in matches if match not in ended], ended


def _quoted_in_prose(line: Line, entry: Entry) -> bool:
    """Whether what a line says of an error stands in quotation marks, after a blank: a sentence about it; or in a
    comment."""
    if line.text.startswith(("{", "[")):
        return False
    bare = _IN_QUOTES.sub(" ", line.text)
    return bare != line.text and not any(clue.kind == "line" and re.search(clue.value, bare) for clue in entry.any)


NON_FINITE = {"non-finite-gradient", "non-finite-loss", "left-course"}
LOST_ROWS = 8
"""Rows without a finite gradient or loss right before an error in the user's own file: it was given the answers of a
model whose weights were gone."""

_STILL = (Clue("metric", "stalled"), Clue("metric", "standing"))


def _only_warned(lines: Sequence[Line], readings: Sequence[Reading]) -> bool:
    """Whether lines only warn or inform by their own words, and the program was at work after them."""
    by_name = {reading.name: reading for reading in readings}
    return bool(lines) and all(
        line.number in by_name[line.file].warned and by_name[line.file].worked_after(line.number) for line in lines
    )


_OF_NUMBERS = re.compile(
    r"\b(?:[Nn]a[Nn]s?|[Ii]nf|[Nn]on-?finite|not finite|overflow\w*|loss scale|scaler|multinomial)\b", re.I
)
"""An error that numbers bring about."""

_IN_QUOTES = re.compile(r'(?:^|[\s(])(?:["“„][^"”“]{8,}["”“]|`(?=[^`]{8,}`)[^`]*\s[^`]*`)|(?:^|\s)#+ .*')
"""What stands in quotation marks, or in Markdown's with several words (a name in them is part of a message), and a
comment in a file of code or settings."""


def _frames_of(cause: _faults.Error | None) -> tuple[Frame, ...]:
    """The frames before an error, without those of Python's own library; none where there is no error."""
    frames = frames_before(cause) if cause is not None else ()
    return tuple(frame for frame in frames if frame.package != "python")


def _raised_in_own_file(cause: _faults.Error | None) -> bool:
    """Whether an exception was raised in the user's own file, and in no package that it calls."""
    frames = _frames_of(cause)
    return bool(frames) and not frames[-1].package


def _of_metrics(entry: Entry, found: Mapping[Clue, list[Line]]) -> bool:
    return any(clue.kind == "metric" and clue in found for clue in entry.any)


def _told(readings: Sequence[Reading]) -> Fingerprint:
    """What the files say about where they ran."""
    names = frozenset().union(*(entry.settings for reading in readings[:1] for entry in reading.entries))
    each = facts.LOOKED_AT // len(readings)
    ends = ((one.head, b"" if one.head.endswith(one.tail) else one.tail) for one in readings)
    text = b"\n".join(part for head, tail in ends for part in (head[:each], tail[-each:]) if part)
    told = facts.facts_of(text.decode("utf-8", "replace"), names)
    task = next((task for reading in readings if (task := reading.rows.task())), "")
    return {**told, "task": task} if task and "task" not in told else told


def _all_survived(clue: Clue, lines: list[Line] | None, readings: Sequence[Reading], entry: Entry) -> bool:
    """Whether training went on after every line that shows a clue."""
    if not lines or clue.kind != "line" or entry.lasting:
        return False
    by_name = {reading.name: reading for reading in readings}
    return all(by_name[line.file].went_well_after(line.number) for line in lines)


def _scrubbed(failure: signature.Signature | None) -> signature.Signature | None:
    return failure and replace(failure, message=scrub(failure.message))


def _without_secrets(advice: Advice | None) -> Advice | None:
    if advice is None:
        return None
    return replace(advice, says=scrub(advice.says), steps=tuple(map(scrub, advice.steps)))


def _line_of(error: _faults.Error | None, by_error: Mapping[int, Reading]) -> Line | None:
    if error is None:
        return None
    text, rest = error.text, error.more[:SHOWN_MORE]
    if error.folded and rest:
        text, rest = text + rest[0], rest[1:]
    # Python's own messages indent what goes on; what is only printed next (by another process) is not part of it.
    for more in rest:
        if not _UNFINISHED.search(text) and not more[:1].isspace():
            break
        text = f"{text} {more.strip()}"
    return Line(error.line, scrub(text), by_error[id(error)].name)


def _match(
    entry: Entry,
    found: Mapping[Clue, list[Line]],
    survived: set[Clue],
    environment: Fingerprint | None,
    configuration: Configuration | None,
    near: Callable[[Line], bool],
) -> tuple[Match, list[Line], bool] | None:
    """The match, the lines of the clues it rests on, and whether it rests on lines alone.

    `near` says of a line whether it is no further before the error than what belongs to it.
    """
    present = [clue for clue in entry.any if clue in found and clue not in survived]
    needed = [[clue for clue in group if clue in found] for group in entry.all]
    if not present or not all(needed):
        return None
    if any(clue in found for clue in entry.unless):
        return None
    # What a general entry needs before it may lead is no hint that it says more than a specific one.
    hints = [clue for clue in (*entry.hints, *(() if entry.general else entry.only_if)) if clue in found]
    conditions = evaluate(entry.conditions, environment, configuration)
    if any(condition.holds is False for condition in conditions):
        return None
    holding = [condition for condition in conditions if condition.holds]
    score = AFTERMATH if entry.aftermath else GENERAL if entry.general else SPECIFIC
    score += FOR_ALL * len(entry.all) + FOR_HINT * len(hints) + FOR_CONDITION * len(holding)
    seen = [*present, *(group[0] for group in needed), *hints]
    why = [_reason(clue, found[clue]) for clue in seen]
    why += [f"{condition.found} ({condition.asks})" for condition in holding]
    shown = [line for clue in seen for line in found[clue][:EVIDENCE]]
    lines = {replace(line, text=scrub(line.text)) for line in shown}
    decided, still_open = [], []
    # A word that stood somewhere in the hours before decides nothing.
    beside = {
        clue: close
        for case in entry.cases
        for clue in (*case.any, *case.unless)
        if (close := [line for line in found.get(clue, ()) if near(line)])
    }
    for case in entry.cases:
        holds, reasons, lines_of_case = _decides(case, beside, environment, configuration)
        if holds:
            decided.append(case)
            why += reasons
            lines |= {replace(line, text=scrub(line.text)) for line in lines_of_case}
        elif holds is None:
            still_open.append(case)
    score += FOR_CONDITION * bool(decided)
    unchecked = tuple(condition.asks for condition in conditions if condition.holds is None)
    evidence = tuple(sorted(lines, key=lambda line: (line.file, line.number, line.text)))
    # A clue that is needed besides counts as well: of two exceptions the entry may have the other one in mind.
    resting = [line for clue in (*present, *(group[0] for group in needed)) for line in found[clue]]
    named = {name: (environment or {}).get(name, "") for name in ("collectives", "answers")}
    if "{here|" in "".join(entry.cures):
        named["here"] = next(filter(None, (taken_here(line.text) for line in resting)), "")
    for clue in (*seen, *(clue for case in decided for clue in case.any if clue in beside)):
        for line in found[clue] if clue.kind == "line" and "(?P<" in clue.value else ():
            caught = re.search(clue.value, line.text)
            for name, value in (caught.groupdict() if caught else {}).items():
                if value:
                    named.setdefault(name, scrub(value))
    return (
        Match(entry, score, tuple(dict.fromkeys(why)), evidence, unchecked, named, tuple(decided), tuple(still_open)),
        resting,
        all(clue.kind == "line" for clue in present),
    )


def _decides(
    case: EntryCase,
    found: Mapping[Clue, list[Line]],
    environment: Fingerprint | None,
    configuration: Configuration | None,
) -> tuple[bool | None, list[str], list[Line]]:
    """Whether the log speaks for one cause of several (None: it says nothing of it), why, and the lines that do."""
    conditions = evaluate(case.conditions, environment, configuration)
    if any(clue in found for clue in case.unless) or any(condition.holds is False for condition in conditions):
        return False, [], []
    seen = [clue for clue in case.any if clue in found]
    if (case.any and not seen) or not all(condition.holds for condition in conditions):
        return None, [], []
    reasons = [_reason(clue, found[clue]) for clue in seen]
    reasons += [f"{condition.found} ({condition.asks})" for condition in conditions]
    return True, reasons, [line for clue in seen for line in found[clue][:1]]


def _applies(
    entry: Entry,
    found: Mapping[Clue, list[Line]],
    environment: Fingerprint | None,
    configuration: Configuration | None,
) -> bool:
    """Whether something in sight says that this specific entry is meant: one of its `only_if`, or all its
    conditions."""
    if not entry.only_if or any(clue in found for clue in entry.only_if):
        return True
    conditions = evaluate(entry.conditions, environment, configuration)
    return bool(conditions) and any(condition.holds for condition in conditions)


def _reason(clue: Clue, lines: list[Line]) -> str:
    place = f"line {lines[0].number}: " if lines else ""
    if clue.kind == "metric":
        return place + FACTS[clue.value]
    if clue.kind == "signal":
        return f"{place}the process was ended by {clue.value}"
    # The words that matched tell which of the lines below is meant; a clue across lines has only its first one here.
    found = re.search(clue.value, lines[0].text) if lines else None
    words = " ".join((found.group() if found else lines[0].text if lines else clue.value).split())
    words = words if len(words) <= LONGEST_REASON else f"{words[:LONGEST_REASON].rpartition(' ')[0] or words[:60]} ..."
    return f"{place}“{scrub(words)}”"


def _seen(failure: signature.Signature | None) -> Clue | None:
    """The clue that a failure is by itself."""
    if failure is None:
        return None
    if failure.kind == "signal":
        return Clue("signal", failure.name)
    fact = FACT_OF.get(failure.kind)
    return Clue("metric", fact) if fact else None


def _command(launched: str | None, head: str = "", own: str = "") -> str:
    """The next command to paste. The script's own name and flags where the log gives them away.

    Args:
        launched: the line in which Python tells a launcher's command, None if there is none.
        head: the beginning of the log, in which a command may have been typed.
        own: the user's own file in the traceback, "" if it has none.
    """
    target, arguments = "", ""
    if launched:
        words = re.findall(r"'((?:[^'\\]|\\.)*)'", launched.split("Command '", 1)[1].split("]'", 1)[0])
        scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
        if scripts:
            import shlex

            target = words[scripts[0]]
            arguments = shlex.join(mask_arguments(words[scripts[0] + 1 :]))
    if not target:
        typed = _TYPED.search(head)
        target = typed["script"] if typed else own or "train.py"
    return f"bisect-cfg bisect {target} --study study" + (f" -- {arguments}" if arguments else "")


_TYPED = re.compile(
    r"(?:^|[$#>%;&] ?|\s)(?:python[\d.]*|torchrun|accelerate launch|deepspeed|srun python[\d.]*)(?= )[^\n;|&]{0,200}? "
    r"(?P<script>(?!\S*(?:site|dist)-packages)[\w./~-]+\.py)\b",
    re.MULTILINE,
)
"""A command line with a script."""


def _own_script(cause: _faults.Error | None) -> str:
    """The user's script in a traceback: its outermost frame, if that is nobody's package."""
    frames = _frames_of(cause)
    outer = frames[0].file if frames and not frames[0].package and frames[0].file.endswith(".py") else ""
    return outer if re.fullmatch(r"[\w./~+-]+", outer) else ""
