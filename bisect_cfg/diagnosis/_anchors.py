"""One fast scan for a hundred patterns.

Running a hundred regular expressions over 200 MB takes minutes. But each of them contains a run of plain
characters that every match must contain too, its *anchor*, and Python's `re` can search for many plain
strings at once, at about a nanosecond a byte, as long as few bytes of the text begin one of them. So the
anchor of each pattern starts at its rarest letter ("visible by" instead of "divisible by"), patterns share
first letters where they can, and the alternatives are grouped by their first letter. What the scan lets
through is then matched properly.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from re import _constants as opcodes  # no public way to see a pattern's structure
from re import _parser as parser

SHORTEST = 4
"""Characters an anchor must have; shorter ones let too much through."""

LONGEST = 16
"""Characters of an anchor that are used; more do not make it more selective."""

# Characters of training logs (metric rows, progress bars, printed text) from common to rare. What is not here
# (capitals, most punctuation, other scripts) is rarer still.
_COMMON = " et0aonris1lcd'_,.mup:hg2354f/b678-9vwyk|()[]=\""
CHEAP = 8
"""Cost up to which a first letter is taken for a longer anchor: each is under one in a hundred characters."""

# Lines that healthy logs are full of. An anchor found here would stop the scan on every one of them.
_HEALTHY = (
    b"{'loss': 0.0, 'grad_norm': 0.3, 'learning_rate': 1e-06, 'num_tokens': 81.0,"
    b" 'completions/mean_length': 8.0, 'completions/clipped_ratio': 0.1,"
    b" 'rewards/accuracy_reward/mean': 0.5, 'reward_std': 0.1, 'kl': 0.0,"
    b" 'frac_reward_zero_std': 0.0, 'clip_ratio/region_mean': 0.0, 'entropy': 0.4, 'epoch': 0.1}"
    b"step:1 - global_seqlen/mean:9 - actor/pg_loss:0.1 - critic/rewards/max:1.0 - timing_s/step:9.0"
    b"Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00, 1.2it/s] None True False"
    b" an exception, unable to be, which is not supported for the name ' of a module '"
    b" or package ; it does not exist: the"
    b" operator and the divide by zero, a command: not found, argument : error: failed, invalid loading of keys, "
    b" The TypeError: ValueError: is not available; has no attribute ' is not defined 'name '"
    b" corrupted 's value' process"
    b' mini_batch_size should be larger than 0 after, for "reward", line 12, in site-packages dist-packages File "'
)


@functools.cache
def literals(pattern: str) -> tuple[str, ...]:
    """The runs of plain characters that every match of a pattern contains.

    Raises:
        ValueError: There is none of `SHORTEST` characters.
    """
    parsed = parser.parse(pattern)
    if parsed.state.flags & re.IGNORECASE:
        raise ValueError(f"{pattern!r}: (?i) hides what to look for; write the spellings as separate clues")
    runs = [run for run in _runs(parsed) if len(run) >= SHORTEST]
    if not runs:
        raise ValueError(f"{pattern!r} has no run of {SHORTEST} plain characters that every match contains")
    return tuple(runs)


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


def scanner(patterns: Iterable[Sequence[str]]) -> re.Pattern[bytes]:
    """One expression that matches at an anchor of each pattern, given each pattern's plain runs."""
    choices = []
    for runs in patterns:
        choice: dict[bytes, bytes] = {}
        for run in runs:
            raw = run.encode()
            for start in range(max(1, len(raw) - SHORTEST + 1)):
                anchor = raw[start : start + LONGEST]
                first = anchor[:1]
                if anchor not in _HEALTHY and len(anchor) > len(choice.get(first, b"")):
                    choice[first] = anchor
        choices.append(choice or {runs[0].encode()[:1]: runs[0].encode()[:LONGEST]})
    # The patterns with the least choice first: what they must pay for, the others get for nothing. Of what
    # costs little more, the longest anchor lets the least through.
    choices.sort(key=lambda choice: min(map(_cost, choice)), reverse=True)
    groups: dict[bytes, set[bytes]] = {}
    for choice in choices:
        affordable = [first for first in choice if first in groups or _cost(first) <= CHEAP]
        affordable = affordable or [min(choice, key=_cost)]
        first = max(affordable, key=lambda first: (len(choice[first]), -_cost(first)))
        groups.setdefault(first, set()).add(choice[first][1:])
    alternatives = (
        re.escape(first) + b"(?:" + b"|".join(re.escape(rest) for rest in sorted(rests)) + b")"
        for first, rests in sorted(groups.items())
    )
    return re.compile(b"|".join(alternatives) or b"(?!)")


def rarest(runs: Sequence[str]) -> str:
    """The `SHORTEST` characters of a pattern's plain runs that are seldom in a log, as far as letters tell."""
    quads = [run[at : at + SHORTEST] for run in runs for at in range(len(run) - SHORTEST + 1)]
    return min(quads, key=lambda quad: sum(_cost(letter.encode()[:1]) for letter in quad))


def _cost(first: bytes) -> int:
    """How common a first byte is; bytes of other scripts cost as little as capitals."""
    place = _COMMON.find(first.decode("latin-1"))
    return len(_COMMON) - place if place >= 0 else 0
