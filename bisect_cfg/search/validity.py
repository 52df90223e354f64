"""Subsets that cannot be run, and the least that must be added so that they can.

`num_generations` alone may be impossible because the batch size must be a multiple of it. Then the search runs
it together with the batch size, a *companion*: bad in the run, labelled, and never called a cause for that.
"""

from __future__ import annotations

from itertools import combinations

from bisect_cfg.search.problem import Problem, bits
from bisect_cfg.search.tally import Tally

MAX_COMPANIONS = 3
"""Rules that tie more than four settings together are not known in TRL; looking further costs n^4 checks."""


class Validity:
    """What may be run: what builds, less what turned out UNRESOLVED when it ran."""

    def __init__(self, problem: Problem, tally: Tally) -> None:
        self._problem = problem
        self._unresolved = frozenset(tally.unresolved)

    def ok(self, mask: int) -> bool:
        """Whether this very subset may be run."""
        return mask not in self._unresolved and self._problem.valid(mask)

    def shrink(self, mask: int, keep: int) -> int:
        """Take factors out of a valid subset, one by one, as long as it stays valid and holds `keep`."""
        for index in reversed(list(bits(mask & ~keep))):
            if self.ok(mask & ~(1 << index)):
                mask &= ~(1 << index)
        return mask

    def companions(self, mask: int, pool: int | None = None, forbidden: int = 0) -> int | None:
        """The fewest factors from `pool` that make `mask` valid: 0 if it is already, None if nothing does.

        Args:
            mask: what shall be bad.
            pool: where companions may come from; all factors by default.
            forbidden: factors that must stay good.
        """
        if self.ok(mask):
            return 0
        pool = (self._problem.full if pool is None else pool) & ~mask & ~forbidden
        choices = [1 << i for i in bits(pool)]
        for count in range(1, MAX_COMPANIONS + 1):
            if count == 3 and len(choices) > 40:
                break
            for chosen in combinations(choices, count):
                extra = sum(chosen)
                if self.ok(mask | extra):
                    return extra
        return None

    def chance(self, mask: int) -> float:
        """How likely a run of this subset says PASS or FAIL, from what earlier runs left UNRESOLVED."""
        return 1.0

    def repairs(self, mask: int, region: int) -> list[tuple[int, int]]:
        """Valid subsets one step away from an invalid one, as (subset, companions added)."""
        found = []
        for index in range(self._problem.size):
            changed = mask ^ 1 << index
            if self.ok(changed):
                found.append((changed, changed & ~mask))
        if not found:
            extra = self.companions(mask, region) or self.companions(mask)
            if extra:
                found.append((mask | extra, extra))
        return found

    def largest_inside(self, mask: int, most: int = 6) -> list[int]:
        """The largest valid subsets of `mask`, found by taking out the fewest factors (at most `MAX_COMPANIONS`)."""
        if self.ok(mask):
            return [mask]
        found: list[int] = []
        members = [1 << i for i in bits(mask)]
        for count in range(1, MAX_COMPANIONS + 1):
            if count == 3 and (found or len(members) > 40):
                break
            for chosen in combinations(members, count):
                out = sum(chosen)
                if any(out & (mask & ~kept) == (mask & ~kept) for kept in found):
                    continue
                if self.ok(mask & ~out):
                    found.append(mask & ~out)
        return found[:most]
