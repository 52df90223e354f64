"""The scan of `_anchors` for logs of many megabytes: a look at pairs of bytes, by numpy, before any pattern.

A regular expression stops at every byte that begins an anchor, one in ten in prose. But each pattern can be begun at
any pair of bytes it contains, and of the 65,536 pairs a log uses few often: "vl" or "b'" hardly ever come. So each
pattern is begun at the pair that is rarest in a sample of this very log, one table lookup for each pair of the block
finds the places where one of them stands, a second one keeps those where the right pair follows, and only there the
patterns are tried. That is several times faster than the regular expression on prose, and about as fast on everything.

numpy takes a tenth of a second to import; a small log is read before that.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy

from bisect_cfg.diagnosis._anchors import LONGEST, SHORTEST

STOP = 1000
"""What a place costs where two right pairs stand, and Python has to look, in places where only the first one does."""

QUADS = 1 << 20
"""Places of the table of two pairs in a row: a thousand times the patterns, so few others fall on theirs."""


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
    """

    def __init__(self, patterns: Iterable[Sequence[str]], sample: bytes) -> None:
        counts, quads = _count(sample)
        starts: dict[bytes, set[bytes]] = {}
        for runs in patterns:
            raw = [run.encode() for run in runs]
            anchors = {run[at : at + LONGEST] for run in raw for at in range(len(run) - SHORTEST + 1)}

            def cost(one: bytes) -> tuple[int, int, bytes]:
                # A pair that another pattern has to pay for already costs nothing; of equals the longest says most.
                stops = quads[_quad(_key(one), _key(one[2:]))]
                return (0 if one[:2] in starts else counts[_key(one)]) + STOP * stops, -len(one), one

            best = min(anchors, key=cost)
            starts.setdefault(best[:2], set()).add(best[2:])
        self._wanted = numpy.zeros(1 << 16, dtype=bool)
        self._followed = numpy.zeros(QUADS, dtype=bool)
        for pair, rests in starts.items():
            self._wanted[_key(pair)] = True
            for rest in rests:
                self._followed[_quad(_key(pair), _key(rest))] = True
        self._anchors: dict[bytes, tuple[bytes, ...]] = {}
        for pair, rests in starts.items():
            for rest in rests:
                anchor = pair + rest
                self._anchors[anchor[:SHORTEST]] = (*self._anchors.get(anchor[:SHORTEST], ()), anchor)
        self._block = b""
        self._places: list[int] = []

    def search(self, block: bytes, position: int = 0) -> Stop | None:
        """The first anchor at or after a position."""
        if block is not self._block:
            self._block, self._places = block, self._look(block)
        for index in range(bisect.bisect_left(self._places, position), len(self._places)):
            place = self._places[index]
            for anchor in self._anchors.get(block[place : place + SHORTEST], ()):
                if block.startswith(anchor, place):
                    return Stop(place, anchor)
        return None

    def _look(self, block: bytes) -> list[int]:
        """Where one of the pairs stands."""
        even, odd = (self._begun(pairs) for pairs in _pairs(block))
        return numpy.sort(numpy.concatenate((2 * even, 2 * odd + 1))).tolist()

    def _begun(self, pairs: numpy.ndarray) -> numpy.ndarray:
        """The indices of the pairs that begin an anchor, as far as two pairs in a row tell."""
        at = numpy.flatnonzero(self._wanted[pairs[:-1]])
        return at[self._followed[_quad(pairs[at].astype(numpy.uint32), pairs[at + 1])]]


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
