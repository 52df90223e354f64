"""One pass over a log: which clues, errors, signals and rows it has, and where.

One scan finds the few lines on which some clue could match (`_words`), those are matched properly; the metric rows are
summed up (`_metrics`), the tracebacks and signals are followed (`_logs`), and every other shape of an error is
collected with the lines that belong to it (`_faults`). Rows of metrics after an error tell that training survived it;
then it explains nothing.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, deque
from collections.abc import Sequence
from typing import BinaryIO

from bisect_cfg.diagnosis import _bystanders, _faults, _logs, _silence, facts, signature
from bisect_cfg.diagnosis._metrics import WORDS, Rows
from bisect_cfg.diagnosis._plain_text import clean
from bisect_cfg.diagnosis._quoted import is_settings_in_json, quotes
from bisect_cfg.diagnosis._recovered import Recovery, recovery
from bisect_cfg.diagnosis._render import Line
from bisect_cfg.diagnosis._rows import Row
from bisect_cfg.diagnosis._told import expected
from bisect_cfg.diagnosis._words import Found, Words, literals, word_of
from bisect_cfg.diagnosis.knowledge import Clue, Entry

EVIDENCE = 3
"""Lines shown for each clue. A device-side assertion prints thousands of the same."""

SPELLED = 1 << 22
"""Bytes of a log without rows in which the numbers behind names are looked for one by one."""

HITS = 300
"""Lines of one clue that are looked at in a block; of more only the first and the last of them would be kept."""

FLOOD, LAST_BLOCKS, FEW_LINES, BEGINNING = 8_000, 3, 6, 1 << 13
"""After so many lines that were looked at, every one of the last blocks is, but only so few of each block before them,
and if they are in its first bytes, only those bytes are searched. A log that prints errors without end says nothing new
by more, and what ended it stands at its end."""

FREQUENT, RARER = 100, 4
"""A word that a log has so often is left for another one of the same pattern that it has so many times less often."""

REPEATED = 3
"""An exception that training survives so often is a part of it."""

PARAGRAPHS = 40
"""Errors whose lines are read as one text, to find what is wrapped."""

_RAY_STARTED = "Started a local Ray instance"
_OF_A_WORKER = re.compile(rb"\(\w[^\n()]{0,80}\bpid=\d+")
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
        self.errors.cut_off(tail, self.lines)

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
            if _RAY_STARTED in still.text and not _OF_A_WORKER.search(self.tail.rpartition(_RAY_STARTED.encode())[2]):
                found[Clue("metric", "ray-silent")] = found[Clue("metric", "stalled")]
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
                    if all(run in text for run in self._all[pattern]) and (match := re.search(pattern, text)):
                        lines = found.setdefault(Clue("line", pattern), [])
                        if not any(error.line <= line.number <= error.line + len(error.more) for line in lines):
                            # What names something is kept as it was found: the first line alone may not have the name.
                            said = match.group() if match.groupdict() else error.text
                            lines.append(Line(error.line, said, self.name))

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
