"""A log of any size, read in bounded memory: the lines that may say something of a failure.

A log of some megabytes is kept whole. Of a longer one are kept its beginning, its end, and what stands around every
line in between that has a word of trouble (an error, a warning, a signal, a traceback): a run of a hundred thousand
healthy steps says nothing about why it died.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from bisect_cfg.common.text import plain, split_all

BLOCK = 1 << 20
"""Bytes read at a time."""

HEAD, TAIL = 1 << 19, 1 << 20
"""Bytes of the beginning and of the end that are kept whole."""

MIDDLE = 1 << 20
"""Bytes around words of trouble that are kept of what is between: as many of the first as of the last ones. A log that
prints errors without end says nothing new by more of them."""

BEFORE, AFTER = 1 << 13, 1 << 11
"""Bytes kept before a word of trouble (a traceback printed by several ranks) and after it (its message)."""

BLANK = 2
"""Blank lines in a row that are kept; more of them say nothing."""

LONGEST_LINE = 1 << 16
"""Bytes from which on a line is cut in two: binary data and whole prompts on one line."""

SHOWN, SHOWN_END = 2000, 500
"""Characters of a line's beginning and end that patterns are matched against. No message is longer, and the time that a
regular expression takes stays bounded."""

_TROUBLE = re.compile(b"|".join((
    b"rror", b"xception", rb"Traceback \(", b"atal", b"ailed", b"Killed", b"killed", b"SIG", b"exit", b"ore dumped",
    b"imed out", b"imeout", b"bort", b"Warning", b"warning", b"WARN", b"annot", b"nvalid", b"Assert", b"denied",
    b"refused", b"not found", b"NCCL", b"OOM", b"out of memory", b"KeyboardInterrupt", b"Xid", b"CANCELLED",
)))  # fmt: skip
"""One of them is in nearly every line that tells of a failure."""


class LogLine(NamedTuple):
    """One line of a log."""

    number: int  # counted from 1
    text: str  # what it says, without who printed it and when; leading blanks are kept
    who: str  # the rank or worker that printed it, "" if it does not say
    when: str  # the time, "" if it does not say
    shown: str  # the line as a terminal shows it


class Excerpt(NamedTuple):
    """What is kept of a log."""

    lines: list[LogLine]  # ascending by number, with gaps where nothing was kept
    count: int  # type: ignore[assignment]  # of all lines; a tuple's own `count` nobody needs here
    whole: bool  # whether every line was kept


def read_excerpt(stream: BinaryIO, each_block: Callable[[bytes, int], object] | None = None) -> Excerpt:
    """Read a log to its end; `each_block` is called with each block of whole lines and the number of its first line."""
    kept: list[tuple[int, bytes]] = []  # number of the first line, whole lines
    ring: deque[tuple[int, bytes]] = deque()  # the last blocks
    middle: deque[tuple[int, bytes]] = deque()  # the last spans of what is between
    number, head, first_spans, last_spans, ring_size = 1, 0, 0, 0, 0
    whole = True
    for block in blocks(stream):
        if each_block is not None:
            each_block(block, number)
        if head < HEAD:
            kept.append((number, block))
            head += len(block)
        else:
            ring.append((number, block))
            ring_size += len(block)
        number += block.count(b"\n")
        while ring and ring_size - len(ring[0][1]) >= TAIL:
            first, passed = ring.popleft()
            ring_size -= len(passed)
            whole = False
            for span in _around_trouble(passed, first):
                if first_spans < MIDDLE // 2:
                    kept.append(span)
                    first_spans += len(span[1])
                    continue
                middle.append(span)
                last_spans += len(span[1])
                while last_spans > MIDDLE // 2:
                    last_spans -= len(middle.popleft()[1])
    last = (ring or kept or [(1, b"")])[-1][1]
    count = number - 1 + (bool(last) and not last.endswith(b"\n"))
    lines = [line for first, text in (*kept, *middle, *ring) for line in _lines(text, first)]
    return Excerpt(lines, count, whole)


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream in blocks that end at a line's end, whatever the length of its lines; a line without an end is cut."""
    rest = b""
    while block := stream.read(BLOCK):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = block[cut:]
        elif len(rest) < LONGEST_LINE:
            rest += block
        else:
            # The rest of an endless line is passed over, but for its end.
            rest = rest[:LONGEST_LINE] + block[-LONGEST_LINE:]
    if rest:
        yield rest


def _around_trouble(block: bytes, number: int) -> Iterator[tuple[int, bytes]]:
    """The spans of a block around its words of trouble, each with the number of its first line."""
    spans: list[list[int]] = []
    for word in _TROUBLE.finditer(block):
        if spans and word.start() + AFTER < spans[-1][1]:
            continue
        start = block.rfind(b"\n", 0, max(0, word.start() - BEFORE)) + 1
        end = block.find(b"\n", min(word.start() + AFTER, len(block))) + 1 or len(block)
        if spans and start <= spans[-1][1]:
            spans[-1][1] = end
        else:
            spans.append([start, end])
    counted = 0
    for start, end in spans:
        number += block.count(b"\n", counted, start)
        counted = start
        yield number, block[start:end]


def _lines(text: bytes, number: int) -> Iterator[LogLine]:
    blank = 0
    for raw in text.decode("utf-8", "replace").removesuffix("\n").split("\n"):
        blank = 0 if raw else blank + 1
        if blank <= BLANK:
            yield log_line(raw, number)
        number += 1


def log_line(raw: str, number: int) -> LogLine:
    """A line with what stands before its text taken off."""
    if len(raw) > SHOWN + SHOWN_END:
        # A progress bar rewrites its line: what the last carriage return left is what a terminal shows.
        raw = raw[raw.rfind("\r", 0, len(raw) - 1) + 1 :] or raw
        raw = f"{raw[:SHOWN]} ... {raw[-SHOWN_END:]}" if len(raw) > SHOWN + SHOWN_END else raw
    shown = plain(raw)
    padded = shown.lstrip() if shown[:1] in " \t" and shown.lstrip()[:1] in "[(" else shown
    who, when, text = split_all(padded)
    return LogLine(number, text if who or when else shown, who, when, shown)
