"""`bisect-cfg explain`: a log in, what it means out. No GPU, no script, no torch.

The log is read once, in blocks. One scan finds the few lines on which some clue could match (`_anchors`),
those are matched properly; the metric rows are summed up (`_metrics`), and the tracebacks and signals are
followed (`_logs`). Then every known failure whose clues are all there is ranked: one that needs more clues,
and has more of its hints, says more; a general one gives way. What nobody knows is said to be unknown, with
the failure's own words, and how to bisect it.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bisect_cfg.diagnosis import _logs, signature
from bisect_cfg.diagnosis._anchors import literals, scanner
from bisect_cfg.diagnosis._metrics import FACTS, Rows
from bisect_cfg.diagnosis._text import clean
from bisect_cfg.diagnosis.conditions import judge
from bisect_cfg.diagnosis.knowledge import Clue, Entry, load

EVIDENCE = 3
"""Lines kept for each clue. A device-side assertion prints thousands of the same."""

SAMPLE_BLOCKS = 32
SAMPLE = 1 << 13
"""After so many blocks (8 MB) the scan is fitted to the log, by so many bytes of each. A smaller log is read before
that pays."""

GENERAL, SPECIFIC, FOR_ALL, FOR_HINT, FOR_CONDITION = 4, 10, 3, 2, 2
"""What a match is worth. A specific entry beats a general one unless four hints speak for the general one,
and an entry that needs a second clue beats one that does not."""


@dataclass(frozen=True)
class Line:
    """A line of the log, counted from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class Match:
    """A known failure that the log shows, why, and how strongly."""

    entry: Entry
    score: int
    why: tuple[str, ...]
    evidence: tuple[Line, ...]
    unchecked: tuple[str, ...] = ()  # conditions that neither the log nor a fingerprint decides


@dataclass(frozen=True)
class Explanation:
    """What a log means: the known failures it shows, likeliest first, and the failure's own signature."""

    matches: tuple[Match, ...]
    signature: signature.Signature | None
    command: str
    lines: int = 0

    def __str__(self) -> str:
        from bisect_cfg.diagnosis._render import render

        return render(self)


def explain(
    stream: BinaryIO,
    *,
    environment: Mapping[str, Any] | None = None,
    configuration: Mapping[str, Any] | None = None,
    failure: signature.Signature | None = None,
    entries: Sequence[Entry] | None = None,
) -> Explanation:
    """Explains a log.

    Args:
        stream: The log, opened in binary mode; it is read once, to its end.
        environment: A `fingerprint` of where it ran, if known; rules out what cannot apply there.
        configuration: The settings it ran with, if known.
        failure: The failure, where somebody saw more than the log has: a process killed by a signal prints
        nothing. entries: The known failures; those of this package if None.
    """
    reading = _Reading(load() if entries is None else entries)
    reading.read(stream)
    found = reading.found()
    seen = _seen(failure)
    if seen:
        found.setdefault(seen, [])
    matches = [
        match
        for entry in reading.entries
        if (match := _match(entry, found, environment, configuration)) is not None
    ]
    matches.sort(key=lambda match: (-match.score, match.evidence[0].number if match.evidence else 0))
    own = failure or signature.from_evidence(reading.logs.evidence)
    return Explanation(tuple(matches), own, _command(reading.command), reading.lines)


def explain_text(text: str, **options: Any) -> Explanation:
    """`explain` for a text in memory: the last lines of a trial, an exception's message."""
    return explain(io.BytesIO(text.encode("utf-8", "replace")), **options)


def explain_command(path: str) -> int:
    """What `bisect-cfg explain FILE` does; "-" reads standard input.

    Returns:
        The exit status: 0 something known was found, 1 nothing known, 2 the file cannot be read.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise OSError(0, "standard input is closed")
            explanation = explain(_utf8(sys.stdin.buffer))
        else:
            with Path(path).open("rb") as stream:
                explanation = explain(_utf8(stream))
    except OSError as error:
        advice = "Give a log file, or - for standard input."
        print(f"bisect-cfg explain: {path}: {error.strerror}. {advice}", file=sys.stderr)
        return 2
    from bisect_cfg.diagnosis._render import show

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a log may hold what this terminal cannot show
    show(explanation)
    return 0 if explanation.matches else 1


def _utf8(stream: Any) -> BinaryIO:
    """The buffered stream, recoded where PowerShell's `>` wrote UTF-16."""
    if stream.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return codecs.EncodedFile(stream, "utf-8", "utf-16", errors="replace")  # type: ignore[return-value]
    return stream


class _Reading:
    """One pass over a log: which clues it has, and where."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.rows = Rows()
        self.logs = _logs.Reader()
        self.lines = 0
        self.command: str | None = None
        self._evidence: dict[str, list[Line]] = {}
        self._sample = b""  # of a log that is large enough for the scan to be fitted to it
        clues = {clue for entry in entries for clue in entry.clues}
        self._open = {clue.value: literals(clue.value) for clue in clues if clue.kind == "line"}
        self._clues = scanner(self._open.values())

    def read(self, stream: BinaryIO) -> None:
        number = 1
        scan = self._scanner()
        sample: list[bytes] = []
        for block in _logs.blocks(stream):
            self.rows.feed(block, number)
            before = len(self._open), len(self.logs.anchors()), len(self._sample)
            self.logs.feed(block, number, scan, self._line)
            if len(sample) < SAMPLE_BLOCKS:
                sample.append(block[:SAMPLE])
                self._sample = b"".join(sample) if len(sample) == SAMPLE_BLOCKS else b""
            if (len(self._open), len(self.logs.anchors()), len(self._sample)) != before:
                scan = self._scanner()
            number += block.count(b"\n")
        self.lines = number - 1

    def found(self) -> dict[Clue, list[Line]]:
        """Every clue the log has, with the lines that show it."""
        found = {Clue("line", pattern): lines for pattern, lines in self._evidence.items()}
        for name, number in self.logs.evidence.signals.items():
            text = self.logs.evidence.signal_lines.get(name, name)
            found[Clue("signal", name)] = [Line(number, text)]
        for name, rows in self.rows.facts().items():
            found[Clue("metric", name)] = [Line(row.line, row.text) for row in rows[:EVIDENCE]]
        return found

    def _scanner(self) -> _logs.Scan:
        patterns = [*self._open.values(), *self.logs.anchors()]
        if not self._sample:
            return scanner(patterns)
        from bisect_cfg.diagnosis._pairs import PairScanner

        return PairScanner(patterns, self._sample)

    def _line(self, raw: bytes, number: int) -> None:
        if self.command is None and b"Command '[" in raw:
            self.command = raw.decode("utf-8", "replace")
        if not self._clues.search(raw):  # a line of a traceback
            return
        text, said = raw.decode("utf-8", "replace"), None
        for pattern, runs in list(self._open.items()):
            if runs[0] not in text:
                continue
            said = said or clean(text)
            if re.search(pattern, said):
                lines = self._evidence.setdefault(pattern, [])
                lines.append(Line(number, said))
                if len(lines) >= EVIDENCE:
                    del self._open[pattern]


def _match(
    entry: Entry,
    found: Mapping[Clue, list[Line]],
    environment: Mapping[str, Any] | None,
    configuration: Mapping[str, Any] | None,
) -> Match | None:
    present = [clue for clue in entry.any if clue in found]
    if not present or not all(clue in found for clue in entry.all):
        return None
    if any(clue in found for clue in entry.unless):
        return None
    hints = [clue for clue in entry.hints if clue in found]
    verdicts = judge(entry.conditions, environment, configuration)
    if any(verdict.holds is False for verdict in verdicts):
        return None
    holding = [verdict for verdict in verdicts if verdict.holds]
    score = GENERAL if entry.general else SPECIFIC
    score += FOR_ALL * len(entry.all) + FOR_HINT * len(hints) + FOR_CONDITION * len(holding)
    why = [_reason(clue, found[clue]) for clue in [*present, *entry.all, *hints]]
    why += [f"{verdict.found} ({verdict.asks})" for verdict in holding]
    lines = {line for clue in [*present, *entry.all, *hints] for line in found[clue][:EVIDENCE]}
    unchecked = tuple(verdict.asks for verdict in verdicts if verdict.holds is None)
    return Match(entry, score, tuple(why), tuple(sorted(lines, key=lambda line: line.number)), unchecked)


def _reason(clue: Clue, lines: list[Line]) -> str:
    place = f"line {lines[0].number}: " if lines else ""
    if clue.kind == "metric":
        return place + FACTS[clue.value]
    if clue.kind == "signal":
        return f"{place}the process was ended by {clue.value}"
    return f"{place}the message is there"


def _seen(failure: signature.Signature | None) -> Clue | None:
    """The clue that a failure is by itself."""
    if failure is None:
        return None
    if failure.kind == "signal":
        return Clue("signal", failure.name)
    fact = "non-finite-gradient" if failure.kind == "non-finite" else failure.kind
    return Clue("metric", fact) if fact in FACTS else None


def _command(launched: str | None) -> str:
    """The next command to paste. The script's own name and flags where the log gives them away."""
    target, arguments = "train.py", ""
    if launched:
        words = re.findall(r"'((?:[^'\\]|\\.)*)'", launched.split("Command '", 1)[1].split("]'", 1)[0])
        scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
        if scripts:
            import shlex

            target = words[scripts[0]]
            arguments = shlex.join(words[scripts[0] + 1 :])
    return f"bisect-cfg bisect {target} --study study" + (f" -- {arguments}" if arguments else "")
