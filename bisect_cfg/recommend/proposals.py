"""Where the remedies begin, and which of them gives up least.

Pure: corrections, causes and known alternatives in, starting points out, ordered by what the user would give up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.parameters import parameter
from bisect_cfg.recommend.alternatives import Alternative
from bisect_cfg.recommend.remedy import Proposal, Remedy, RemedyStatus
from bisect_cfg.recommend.search_range import SearchRange

KEEP = 10.0
"""A setting named with --keep weighs so many times more than `parameters` has it: tastes differ."""

KNOWN_ALTERNATIVE = 0.5
"""A remedy that is known to serve the same purpose costs half of giving an ordinary setting up, whatever it changes
(that is what makes it an alternative), ..."""

MERIT = 0.02
"""... and a little more for each better one that the list names before it."""

CURE = -KNOWN_ALTERNATIVE / MERIT
"""The merit of what takes away the fault itself: nothing is given up."""

OUTSIDE = 0.1
"""... and for each setting it changes that is not at issue otherwise: of two remedies that serve as well, the one that
leaves the rest alone is nearer to what the user wanted."""

GUESS = 0.5
"""As long as it is not known how far a setting can go, it is taken to give up so much of the way from bad to good."""

Mover = Callable[[str, Configuration], SearchRange | None]
"""(setting, rest of the changes) -> the values worth trying between good and bad, None if it is no range."""


def proposals_for(
    good: Configuration,
    bad: Configuration,
    causes: Sequence[Collection[str]],
    corrections: Sequence[Sequence[str]],
    range_for: Mover,
    alternatives: Sequence[Sequence[Alternative]],
    keep: Collection[str],
    identity: Callable[[Configuration], str | None],
) -> list[Proposal]:
    """All remedies worth following, the one that should give up least first.

    Args:
        good: factor -> good value.
        bad: factor -> bad value.
        causes: the settings of each cause.
        corrections: the settings of each correction that cures.
        range_for: see `Mover`.
        alternatives: known ones, for each cause.
        keep: names of settings that the user would rather not change.
        identity: of changes, what they come to; equal for two that come to the same. None: not known.
    """
    proposals: list[Proposal] = []
    for names in corrections:
        changes = {name: good.get(name) for name in names}
        ordered = sorted(names, key=lambda name: -weight(name, keep))
        ranges = [moving for name in ordered if (moving := range_for(name, changes)) is not None]
        proposals.append(Proposal(changes, tuple(ranges), resets=tuple(names)))
    for index, offers in enumerate(alternatives):
        rest = rest_of(causes, corrections, index)
        for merit, offer in enumerate(offers):
            changes = {**{name: good.get(name) for name in rest}, **offer.settings}
            same = next((i for i, proposal in enumerate(proposals) if _same(proposal.changes, changes, identity)), None)
            if same is not None and proposals[same].merit is not None:
                continue
            if same is not None:
                proposals[same] = replace(proposals[same], why=offer.why, source=offer.source, merit=merit)
                continue
            ranges = [moving for name in rest if (moving := range_for(name, changes)) is not None]
            outside = 0 if offer.cures else sum(name not in bad for name in changes)
            merit = CURE if offer.cures else merit
            proposals.append(Proposal(changes, tuple(ranges), offer.why, offer.source, tuple(rest), merit, outside))

    def price(proposal: Proposal) -> float:
        return loss(proposal, {**proposal.changes, **guessed(proposal, proposal.changes)}, keep)

    return sorted(proposals, key=price)


def rest_of(causes: Sequence[Collection[str]], corrections: Sequence[Sequence[str]], cured: int) -> tuple[str, ...]:
    """What still has to be reset when one cause is cured otherwise: the least that some correction resets for the
    others."""
    others = [set(cause) for index, cause in enumerate(causes) if index != cured]
    if not others:
        return ()
    needed = [tuple(name for name in names if any(name in cause for cause in others)) for names in corrections]
    fitting = [names for names in needed if all(cause & set(names) for cause in others)]
    return min(fitting, key=len, default=())


def _same(left: Configuration, right: Configuration, identity: Callable[[Configuration], str | None]) -> bool:
    """Whether two remedies set the same, or come to the same; switched off and not switched on are the same."""
    off, one = (None, False), identity(left)
    if one is not None and one == identity(right):
        return True
    return left.keys() == right.keys() and all(
        equal(left[name], right[name]) or (left[name] in off and right[name] in off) for name in left
    )


def guessed(proposal: Proposal, names: Collection[str]) -> dict[str, Value]:
    """What these of a remedy's settings may come to, where they can move."""
    return {moving.name: moving.back(moving.bad, GUESS) for moving in proposal.ranges if moving.name in names}


def weight(name: str, keep: Collection[str] = ()) -> float:
    """What it costs to give a setting up altogether."""
    bare = name.removeprefix("args.")
    return parameter(name).weight * (KEEP if name in keep or bare in keep else 1.0)


def loss(proposal: Proposal, changes: Configuration, keep: Collection[str] = ()) -> float:
    """What the user gives up with these changes: by setting, its weight times how far it is from what they wanted.

    Args:
        proposal: where it began.
        changes: what it came to.
        keep: names the user would rather not change.
    """
    ranges = {moving.name: moving for moving in proposal.ranges}
    resets = (
        set(proposal.resets) if proposal.changes.keys() != set(proposal.resets) or proposal.merit is None else set()
    )
    total = 0.0
    offered = [name for name in changes if name not in resets and name not in ranges]
    if proposal.merit is not None and offered:
        costly = max(weight(name, keep) / weight(name) for name in offered)
        total = costly * (KNOWN_ALTERNATIVE + MERIT * proposal.merit) + OUTSIDE * proposal.outside
        offered = []
    for name, value in changes.items():
        if name in ranges:
            total += weight(name, keep) * (1 - ranges[name].share(value))
        elif name in resets or name in offered:
            total += weight(name, keep)
    return total


def ranked(remedies: Sequence[Remedy], keep: Collection[str] = ()) -> list[Remedy]:
    """The remedies with their losses: verified ones first, then by what is given up."""
    order = list(RemedyStatus)
    priced = [replace(remedy, loss=round(loss(remedy.proposal, remedy.changes, keep), 4)) for remedy in remedies]
    return sorted(priced, key=lambda remedy: (order.index(remedy.status), remedy.loss))
