"""The plain words of two thousand patterns, found in a log in one look.

Running two thousand regular expressions over 200 MB takes an hour. But each of them contains a run of plain characters
that every match must contain too, its *word*, and Hyperscan (https://github.com/darvid/python-hyperscan) finds many
plain words at once at the speed of memory. What stands around a word is then matched properly.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from re import _constants as opcodes  # no public way to see a pattern's structure
from re import _parser as parser

SHORTEST = 4
"""Characters a word must have; shorter ones let too much through."""

USELESS = 150_000
"""Places of muted words that are passed over until a scan without them is worth its making, a twentieth of a second."""

SMALL = 1 << 16
"""Bytes up to which looking for one word after the other is quicker than making a scan for all."""

FREQUENT_SHARE = 0.0005
"""Of all places found, those of a word that is worth leaving out of a scan."""

MOST_SCANS = 16
"""Scans that are made for one log at most; what is muted after that is only passed over."""

# Lines that healthy logs are full of. A word found here would stop the scan on every one of them.
_HEALTHY = (
    "{'loss': 0.0, 'grad_norm': 0.3, 'learning_rate': 1e-06, 'num_tokens': 81.0,"
    " 'completions/mean_length': 8.0, 'completions/clipped_ratio': 0.1,"
    " 'rewards/accuracy_reward/mean': 0.5, 'reward_std': 0.1, 'kl': 0.0,"
    " 'frac_reward_zero_std': 0.0, 'clip_ratio/region_mean': 0.0, 'entropy': 0.4, 'epoch': 0.1}"
    "step:1 - global_seqlen/mean:9 - actor/pg_loss:0.1 - critic/rewards/max:1.0 - timing_s/step:9.0"
    "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00, 1.2it/s] None True False"
    " is not available, has no attribute ' is not defined, which is not supported for the name ' of a module '"
    ' mini_batch_size should be larger than 0 after, line 12, in site-packages dist-packages File "'
)


_KNOWN: dict[str, tuple[str, ...]] = {}


def remember(runs: Mapping[str, tuple[str, ...]]) -> None:
    """Takes what `literals` said of patterns before."""
    _KNOWN.update(runs)


def literals(pattern: str) -> tuple[str, ...]:
    """The runs of plain characters that every match of a pattern contains.

    Raises:
        ValueError: There is none of `SHORTEST` characters.
    """
    if pattern in _KNOWN:
        return _KNOWN[pattern]
    parsed = parser.parse(pattern)
    if parsed.state.flags & re.IGNORECASE:
        raise ValueError(f"{pattern!r}: (?i) hides what to look for; write the spellings as separate clues")
    runs = [run for run in _runs(parsed) if len(run) >= SHORTEST]
    if not runs:
        raise ValueError(f"{pattern!r} has no run of {SHORTEST} plain characters that every match contains")
    return _KNOWN.setdefault(pattern, tuple(runs))


def _runs(parsed: Iterable) -> list[str]:
    runs, current = [], ""
    for code, value in parsed:
        if code is opcodes.LITERAL:
            current += chr(value)
            continue
        runs.append(current)
        current = ""
        if code is opcodes.SUBPATTERN:
            runs += _runs(value[-1])
        elif code is opcodes.MAX_REPEAT and value[0] > 0:
            runs += _runs(value[2])
    return [*runs, current]


def word_of(runs: Sequence[str]) -> str:
    """The one of a pattern's runs that is likely to be seldom: no row of metrics has it, it is no plain word, and it is
    long."""
    return max(runs, key=lambda run: (run not in _HEALTHY, not run.strip().islower() or "_" in run, len(run)))


@dataclass(frozen=True)
class Found:
    """Which words a block has, and where.

    Attributes:
        places: where a word begins, ascending.
        words: which one.
        marks: those of the `marks` that it has.
    """

    places: Sequence[int]
    words: Sequence[bytes]
    marks: Set[bytes]

    def first(self, position: int) -> int | None:
        """The first place of a word at or after a position."""
        index = bisect.bisect_left(self.places, position)
        return self.places[index] if index < len(self.places) else None

    def within(self, start: int, end: int) -> set[bytes]:
        """The words that begin in a part of the block."""
        return set(self.words[bisect.bisect_left(self.places, start) : bisect.bisect_left(self.places, end)])


class Words:
    """Finds words in blocks of a log.

    Args:
        stops: The words of which every place is asked.
        marks: Words of which it is only asked whether a block has them.
    """

    def __init__(self, stops: Iterable[bytes], marks: Iterable[bytes] = ()) -> None:
        self._stops, self._marks = tuple(sorted(set(stops))), tuple(sorted(set(marks)))
        self._scans: list[tuple[frozenset[bytes], Scan]] = []
        self._looked_at = 0  # bytes
        self._muted = frozenset[bytes]()
        self._passed_over = 0
        self.counts = Counter[bytes]()  # how often each was found, those included that are muted

    def mute(self, words: Iterable[bytes]) -> None:
        """Looks no more for these words, but for all others; from the next block on."""
        self._muted = frozenset(words)

    def look(self, block: bytes) -> Found:
        """What a block has."""
        self._looked_at += len(block)
        if self._looked_at > SMALL and not self._scans:
            self._scans.append((frozenset(), _scan(self._stops, self._marks)))
        fitting = [made for made in self._scans if made[0] <= self._muted]
        without, scan = max(
            fitting,
            key=lambda made: len(made[0]),
            default=(frozenset[bytes](), functools.partial(_one_by_one, self._stops, self._marks)),
        )
        ends, marks = scan(block)
        self.counts.update(word for _, word in ends)
        kept = [one for one in ends if one[1] not in self._muted] if self._muted > without else ends
        self._passed_over += len(ends) - len(kept)
        if self._passed_over > USELESS and self._scans and len(self._scans) < MOST_SCANS:
            self._passed_over = 0
            # Muted words that are seldom cost nothing, and one of them may be wanted soon in place of a frequent one.
            least = FREQUENT_SHARE * self.counts.total()
            without = frozenset(word for word in self._muted if self.counts[word] > least)
            left = tuple(word for word in self._stops if word not in without)
            self._scans.append((without, _scan(left, self._marks)))
        places = sorted((end - len(word), word) for end, word in kept)
        return Found([place for place, _ in places], [word for _, word in places], marks)


Scan = Callable[[bytes], tuple[list[tuple[int, bytes]], set[bytes]]]
"""Gives where words end in a block, with the word, and which marks it has."""


@functools.lru_cache(maxsize=4)
def _scan(stops: tuple[bytes, ...], marks: tuple[bytes, ...]) -> Scan:
    words = (*stops, *marks)
    try:
        import hyperscan
    except ImportError:  # there is no wheel of it for this processor
        return functools.partial(_one_by_one, stops, marks)
    if not words:
        return lambda block: ([], set())
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[b"".join(b"\\x%02x" % byte for byte in word) for word in words],
        ids=list(range(len(words))),
        elements=len(words),
        # of a mark the first one in a block says all
        flags=[0] * len(stops) + [hyperscan.HS_FLAG_SINGLEMATCH] * len(marks),
    )

    def scan(block: bytes) -> tuple[list[tuple[int, bytes]], set[bytes]]:
        hits: list[tuple[int, int]] = []

        def seen(number: int, _start: int, end: int, _flags: int, _context: None) -> None:
            hits.append((end, number))  # nothing else: it is called a hundred thousand times for some blocks

        database.scan(block, match_event_handler=seen)
        ends = [(end, words[number]) for end, number in hits if number < len(stops)]
        return ends, {words[number] for _, number in hits if number >= len(stops)}

    return scan


def _one_by_one(
    stops: Iterable[bytes], marks: Iterable[bytes], block: bytes
) -> tuple[list[tuple[int, bytes]], set[bytes]]:
    """The same without Hyperscan, for large logs sixty times as slow."""
    ends = []
    for word in stops:
        at = block.find(word)
        while at >= 0:
            ends.append((at + len(word), word))
            at = block.find(word, at + 1)
    return ends, {word for word in marks if word in block}
