"""What came out of looking for safe values, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bisect_cfg.common.configuration import Value
from bisect_cfg.recommend.remedy import Remedy, RemedyStatus
from bisect_cfg.recommend.schedule import Prefix
from bisect_cfg.store.causes import TrialRow


@dataclass(frozen=True)
class Safe:
    """What came out.

    Attributes:
        remedies: the remedies, the best verified one first.
        rows: the runs of this phase.
        details: by trial number, see `SafeTrials.details`.
        seeds: the seeds of a verification.
        full_rate: how the runs met the full learning rate; None if there is no remedy.
        spent: why it ended before all was settled, "" if it did not.
        keep: settings that the user would rather not change.
    """

    remedies: tuple[Remedy, ...] = ()
    rows: tuple[TrialRow, ...] = ()
    details: Mapping[int, Mapping[str, Value]] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    full_rate: Prefix | None = None
    spent: str = ""
    keep: frozenset[str] = frozenset()

    @property
    def not_kept(self) -> list[str]:
        """Those of `keep` that the best remedy changes all the same."""
        return sorted(self.keep & self.best.changes.keys()) if self.best is not None else []

    @property
    def best(self) -> Remedy | None:
        """The verified remedy that gives up least, else the one that is farthest. A known alternative that nobody has
        run yet is none."""
        kept = [
            remedy
            for remedy in self.remedies
            if remedy.status in (RemedyStatus.VERIFIED, RemedyStatus.HEALTHY) or _is_reset(remedy)
        ]
        return kept[0] if kept else None


def _is_reset(remedy: Remedy) -> bool:
    """Whether it is not rejected and a correction, which has passed at least."""
    return remedy.status is not RemedyStatus.REJECTED and set(remedy.proposal.changes) == set(remedy.proposal.resets)
