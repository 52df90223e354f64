"""Where the remedies begin, and which of them gives up least.

Pure: corrections, causes and known alternatives in, starting points out, in the order in which they are worth trying.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bisect_cfg.common.configuration import Configuration, Value, equal, is_number
from bisect_cfg.common.parameters import parameter
from bisect_cfg.remedy.alternatives import Alternative
from bisect_cfg.remedy.ranges import SearchRange
from bisect_cfg.remedy.remedy import Proposal, Remedy, RemedyStatus
from bisect_cfg.remedy.schedule import Prefix
from bisect_cfg.store.causes import Trial

KEEP = 10.0
"""A setting named with --keep weighs so many times more than `parameters` has it: tastes differ."""

KNOWN_ALTERNATIVE = 0.5
"""A remedy that is known to serve the same purpose costs half of giving an ordinary setting up, whatever it changes
(that is what makes it an alternative), ..."""

MERIT = 0.02
"""... and a little more for each better one that the list names before it."""

OUTSIDE = 0.1
"""... and for each setting it changes that is not at issue otherwise: of two remedies that serve as well, the one that
leaves the rest alone is nearer to what the user wanted."""

GUESS = 0.5
"""As long as it is not known how far a setting can go, it is taken to give up so much of the way from bad to good."""

OFF = (None, False)
"""Switched off and not switched on are the same."""

Mover = Callable[[str, Configuration], SearchRange | None]
"""(setting, rest of the changes) -> the values worth trying between good and bad, None if it is no range."""

Identity = Callable[[Configuration], str | None]
"""What some changes come to; equal for two that come to the same. None: not known."""


@dataclass(frozen=True)
class Proven:
    """What the search has shown."""

    good: Configuration  # factor -> good value
    bad: Configuration
    causes: Sequence[Collection[str]]  # the settings of each
    corrections: Sequence[Sequence[str]]  # the settings of each that cures
    failed: Sequence[Configuration] = ()

    def refutes(self, changes: Configuration) -> bool:
        """Whether it is known that the user's configuration fails with these changes: that was run, or all they do is
        to leave out what a cause does without."""
        changed = {**self.bad, **changes}
        for failed in self.failed:
            if changed.keys() <= failed.keys() and all(equal(value, failed[name]) for name, value in changed.items()):
                return True
        resets = all(name in self.good and equal(value, self.good[name]) for name, value in changes.items())
        return resets and any(changes.keys().isdisjoint(cause) for cause in self.causes)

    def rest_of(self, cured: int) -> tuple[str, ...]:
        """What still has to be reset when one cause is cured otherwise: the least that some correction resets for the
        others."""
        others = [set(cause) for index, cause in enumerate(self.causes) if index != cured]
        needed = [tuple(name for name in one if any(name in cause for cause in others)) for one in self.corrections]
        fitting = [names for names in needed if all(cause & set(names) for cause in others)]
        return min(fitting, key=len, default=()) if others else ()


def proposals_for(
    proven: Proven,
    range_for: Mover,
    alternatives: Sequence[Sequence[Alternative]],
    keep: Collection[str] = (),
    identity: Identity = lambda changes: None,
) -> list[Proposal]:
    """All remedies worth following, the one to follow first at the front. An alternative (they are given by cause) that
    contradicts what is proven is left out."""
    good = proven.good
    found: list[Proposal] = []

    def same(left: Configuration, right: Configuration) -> bool:
        one = identity(left)
        return (one is not None and one == identity(right)) or (
            left.keys() == right.keys()
            and all(equal(value, right[name]) or (value in OFF and right[name] in OFF) for name, value in left.items())
        )

    def ranges(names: Iterable[str], changes: Configuration) -> tuple[SearchRange, ...]:
        return tuple(moving for name in names if (moving := range_for(name, changes)) is not None)

    for names in proven.corrections:
        changes = {name: good.get(name) for name in names}
        heaviest = sorted(names, key=lambda name: -weight(name, keep))
        found.append(Proposal(changes, ranges(heaviest, changes), resets=tuple(names)))
    for index, offers in enumerate(alternatives):
        rest = proven.rest_of(index)
        for merit, offer in enumerate(offers):
            changes = {**{name: good.get(name) for name in rest}, **offer.settings}
            known = next((at for at, one in enumerate(found) if same(one.changes, changes)), None)
            if known is not None:
                if found[known].merit is None:
                    found[known] = replace(found[known], why=offer.why, source=offer.source, merit=merit)
            elif not same({}, changes) and not proven.refutes(changes):
                moving = ranges((name for name in rest if name not in offer.settings), changes)
                outside = sum(name not in proven.bad for name in changes)
                found.append(Proposal(changes, moving, offer.why, offer.source, rest, merit, outside, offer.cures))
    return sorted(found, key=lambda one: price(one, {**one.changes, **guessed(one, one.changes)}, keep))


def guessed(proposal: Proposal, names: Collection[str]) -> dict[str, Value]:
    """What these of a remedy's settings may come to, where they can move."""
    return {moving.name: moving.back(moving.bad, GUESS) for moving in proposal.ranges if moving.name in names}


def weight(name: str, keep: Collection[str] = ()) -> float:
    """What it costs to give a setting up altogether."""
    bare = name.removeprefix("args.")
    return parameter(name).weight * (KEEP if name in keep or bare in keep else 1.0)


def loss(proposal: Proposal, changes: Configuration, keep: Collection[str] = ()) -> float:
    """What the user gives up where a proposal has come to these changes: by setting, its weight times how far it is
    from what they wanted."""
    ranges = {moving.name: moving for moving in proposal.ranges}
    offered = [name for name in _offered(proposal) if name not in ranges]
    total = 0.0
    if offered and not proposal.cures:
        costly = max(weight(name, keep) / weight(name) for name in offered)
        total = costly * (KNOWN_ALTERNATIVE + MERIT * (proposal.merit or 0)) + OUTSIDE * proposal.outside
    for name, value in changes.items():
        if name not in offered:
            total += weight(name, keep) * (1 - ranges[name].share(value) if name in ranges and is_number(value) else 1)
    return total


def price(proposal: Proposal, changes: Configuration, keep: Collection[str] = ()) -> tuple[int, int, float]:
    """What remedies are ordered by: settings that the user wants to keep and it changes, then how many changes it
    consists of (one that cures two causes comes before two), then the `loss`. An alternative is one change, however
    many settings it names, and a cure none."""
    kept = sum(name in keep or name.removeprefix("args.") in keep for name in changes)
    offered = _offered(proposal)
    others = sum(name not in offered for name in changes)
    return kept, others + (proposal.merit is not None and not proposal.cures), loss(proposal, changes, keep)


def _offered(proposal: Proposal) -> set[str]:
    """The settings that a known alternative is about: those that it does not merely reset for another cause."""
    if proposal.merit is None:
        return set()
    return set(proposal.changes) - set(proposal.resets) or set(proposal.changes)


def ranked(remedies: Sequence[Remedy], keep: Collection[str] = ()) -> list[Remedy]:
    """The remedies with their losses, the best first: by how far they have come, then by `price`."""
    order = list(RemedyStatus)
    priced = [replace(remedy, loss=round(loss(remedy.proposal, remedy.changes, keep), 4)) for remedy in remedies]
    return sorted(priced, key=lambda one: (order.index(one.status), price(one.proposal, one.changes, keep)))


@dataclass(frozen=True)
class Safe:
    """What came out of looking for safe values."""

    remedies: tuple[Remedy, ...] = ()  # the best first
    rows: tuple[Trial, ...] = ()  # the runs of this phase
    details: Mapping[int, Mapping[str, Value]] = field(default_factory=dict)  # by trial, what else is worth keeping
    seeds: tuple[int, ...] = ()  # of a verification
    full_rate: Prefix | None = None  # how the runs met the full learning rate; None if there is no remedy
    spent: str = ""  # why it ended before all was settled
    keep: frozenset[str] = frozenset()  # settings that the user would rather not change

    @property
    def not_kept(self) -> list[str]:
        """Those of `keep` that the best remedy changes all the same."""
        return sorted(self.keep & self.best.changes.keys()) if self.best is not None else []

    @property
    def best(self) -> Remedy | None:
        """The verified remedy that gives up least, else the one that is farthest. A known alternative that nobody has
        run yet is none; a correction is, which has passed at least."""
        come_far = (RemedyStatus.VERIFIED, RemedyStatus.HEALTHY)
        for remedy in self.remedies:
            reset = remedy.status is RemedyStatus.OPEN and set(remedy.proposal.changes) == set(remedy.proposal.resets)
            if remedy.status in come_far or reset:
                return remedy
        return None
