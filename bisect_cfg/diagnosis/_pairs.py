"""The scan of `_anchors` for logs of many megabytes: a look at pairs of bytes, by numpy, before any pattern.

A regular expression stops at every byte that begins an anchor, one in ten in prose. But each pattern can be begun at
any pair of bytes it contains, and of the 65,536 pairs a log uses few often: "vl" or "b'" hardly ever come. So each
pattern is begun at the pair that is rarest in a sample of this very log, one table lookup for each pair of the block
finds the places where one of them stands, a second one keeps those where the right pair follows, and only where all of
the pattern's plain characters stand around it the line is looked at. That is several times faster than the regular
expression on prose, and about as fast on everything. Words that only have to be known to be somewhere in a block (of
rows of metrics) are found by the same look.

numpy takes a tenth of a second to import; a small log is read before that.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy

from bisect_cfg.diagnosis._anchors import SHORTEST

STOP = 1000
"""What a place costs where two right pairs stand, and Python has to look, in places where only the first one does."""

QUADS = 1 << 20
"""Places of the table of two pairs in a row: a thousand times the patterns, so few others fall on theirs."""


STOPS, WORD = 1, 2
"""Bits of the tables: with that pair begins a pattern, or a word that a block only has to be known to have."""


class Stop(NamedTuple):
    """Where an anchor stands; asked like a `re.Match`."""

    place: int
    anchor: bytes

    def end(self) -> int:
        return self.place + len(self.anchor)

    def group(self) -> bytes:
        return self.anchor

    def span(self) -> tuple[int, int]:
        return self.place, self.end()


class PairScanner:
    """Finds the anchors of patterns; `search` is that of a compiled regular expression.

    Args:
        patterns: Each one's plain runs (see `_anchors.literals`), of which every match has all.
        sample: Part of the log.
        words: Of these `has_word` says whether a block may have one.
    """

    def __init__(self, patterns: Iterable[Sequence[str]], sample: bytes, words: Iterable[bytes] = ()) -> None:
        counts, quads = _count(sample)
        begun: set[int] = set()
        self._wanted = numpy.zeros(1 << 16, dtype=numpy.uint8)
        self._followed = numpy.zeros(QUADS, dtype=numpy.uint8)
        self._runs: dict[bytes, tuple[tuple[int, bytes], ...]] = {}
        wanted = [(STOPS, [run.encode() for run in runs]) for runs in patterns]
        for kind, runs in [*wanted, *((WORD, [word]) for word in words)]:
            cheapest, chosen = float("inf"), None
            for run in runs:
                pairs = [_key(run[at : at + 2]) for at in range(len(run) - 1)]
                for at in range(len(run) - SHORTEST + 1):
                    # A pair that another pattern has to pay for already costs nothing; of equals the longest run says
                    # most, and punctuation is seldom.
                    quad = _quad(pairs[at], pairs[at + 2])
                    price = STOP * quads[quad] + (0 if pairs[at] in begun else counts[pairs[at]])
                    if price < cheapest or (price == cheapest and (-len(run), run[at:]) < chosen[0]):
                        cheapest, chosen = price, ((-len(run), run[at:]), run, at, pairs[at], quad)
            _, run, at, pair, quad = chosen
            begun.add(pair)
            self._wanted[pair] |= kind
            self._followed[quad] |= kind
            begin = run[at : at + SHORTEST]
            known = self._runs.get(begin, ())
            if kind == STOPS and (at, run) not in known:
                self._runs[begin] = (*known, (at, run))
        self._begins = self._wanted > 0  # the places of truth values are found faster than those of numbers
        self._block = b""
        self._places: list[int] = []
        self._word = False

    def search(self, block: bytes, position: int = 0) -> Stop | None:
        """The first anchor at or after a position."""
        self._look(block)
        for index in range(bisect.bisect_left(self._places, position), len(self._places)):
            place = self._places[index]
            for at, run in self._runs.get(block[place : place + SHORTEST], ()):
                if place >= at and block.startswith(run, place - at):
                    return Stop(place, run[at:])
        return None

    def has_word(self, block: bytes) -> bool:
        """Whether one of the words may be in a block."""
        self._look(block)
        return self._word

    def _look(self, block: bytes) -> None:
        """Notes where one of the patterns may stand, and whether one of the words may."""
        if block is self._block:
            return
        (even, one), (odd, other) = (self._begun(pairs) for pairs in _pairs(block))
        self._block, self._word = block, one or other
        self._places = numpy.sort(numpy.concatenate((2 * even, 2 * odd + 1))).tolist()

    def _begun(self, pairs: numpy.ndarray) -> tuple[numpy.ndarray, bool]:
        """The indices of the pairs that begin a pattern, as far as two in a row tell; and whether any begins a word."""
        # "clip" is the mode that checks no index, which a pair cannot exceed
        at = numpy.flatnonzero(self._begins.take(pairs[:-1], mode="clip"))
        first = pairs[at]
        kinds = self._wanted[first] & self._followed[_quad(first.astype(numpy.uint32), pairs[at + 1])]
        return at[(kinds & STOPS) > 0], bool((kinds & WORD).any())


def _pairs(data: bytes) -> tuple[numpy.ndarray, numpy.ndarray]:
    """All pairs of neighbouring bytes as numbers: those that begin at even places, and those at odd ones."""
    return (
        numpy.frombuffer(data, dtype="<u2", count=len(data) // 2),
        numpy.frombuffer(data, dtype="<u2", count=max(len(data) - 1, 0) // 2, offset=min(1, len(data))),
    )


def _count(sample: bytes) -> tuple[list[int], list[int]]:
    """How often each pair comes, and two in a row, by `_key` and by `_quad`."""
    pairs, quads = numpy.zeros(1 << 16, dtype=int), numpy.zeros(QUADS, dtype=int)
    for some in _pairs(sample):
        pairs += numpy.bincount(some, minlength=1 << 16)
        quads += numpy.bincount(_quad(some[:-1].astype(numpy.uint32), some[1:]), minlength=QUADS)
    return pairs.tolist(), quads


def _quad(first, second):
    """The place of two pairs in a row in a table of `QUADS`; different ones may share it."""
    # 2^16 over the golden ratio: spreads the first pair over the table
    return (first * 40503 + second) % QUADS


def _key(anchor: bytes) -> int:
    return anchor[0] | anchor[1] << 8
