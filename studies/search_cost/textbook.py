"""Two plain algorithms for comparison, as the textbook has them. Each finds one cause, and proves nothing besides."""

from __future__ import annotations

from collections.abc import Callable

Fails = Callable[[int], bool]
"""Whether a subset, bit i for factor i, fails."""


def one_at_a_time(size: int, fails: Fails) -> int:
    """Add the factors one by one until it fails; then take each out again."""
    found, full = 0, (1 << size) - 1
    for index in range(size):
        found |= 1 << index
        if found == full or fails(found):
            break
    for index in range(size):
        rest = found & ~(1 << index)
        if rest not in (0, found) and fails(rest):
            found = rest
    return found


def ddmin(size: int, fails: Fails) -> int:
    """Delta debugging (Zeller & Hildebrandt 2002): parts, then complements of parts, then finer parts."""
    current, parts = list(range(size)), 2
    while len(current) >= 2:
        length = -(-len(current) // parts)
        chunks = [current[i : i + length] for i in range(0, len(current), length)]
        rests = [[i for i in current if i not in chunk] for chunk in chunks] if len(chunks) > 2 else []
        smaller = next((some for some in (*chunks, *rests) if fails(_mask(some))), None)
        if smaller is None and length == 1:
            break
        if smaller is None:
            parts = min(len(current), 2 * parts)
        else:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            current = smaller
    return _mask(current)


def _mask(factors: list[int]) -> int:
    return sum(1 << index for index in factors)
