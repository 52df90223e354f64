"""What one more trial says about the cause, in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.words import NAMED

TOGETHER = 2
"""So few settings are named as those that pass; of more, what is missing is easier to think of."""

Tried = Sequence[tuple[Collection[str], Outcome]]
"""Trials in their order: which settings were as the user has them, and what came out."""


def learned(subset: Collection[str], outcome: Outcome, before: Tried, everything: Sequence[str]) -> str:
    """What follows from a trial, with those before it, if the failure shows whenever it can; one sentence.

    Returns:
        The sentence, without a dot at its end; "" if nothing does.
    """
    bad = set(subset)
    if outcome is Outcome.UNRESOLVED:
        return "It ended in another failure, so this says nothing about the cause"
    failed = [set(everything), *(set(names) for names, came in before if came is Outcome.FAIL)]
    if any(set(names) == bad and came not in (outcome, Outcome.UNRESOLVED) for names, came in before):
        return "The same run came out differently before: the failure is random"
    if any(set(names) == bad and came is outcome for names, came in before):
        return f"It {'fails' if outcome is Outcome.FAIL else 'passes'} again"
    if not bad:
        if outcome is Outcome.PASS:
            return "The good configuration passes: the cause is among the settings that differ"
        return "The good configuration fails as well: the cause is not among the settings that differ"
    other = Outcome.PASS if outcome is Outcome.FAIL else Outcome.FAIL
    for names, came in before:
        smaller, larger = sorted((bad, set(names)), key=len)
        if came is other and smaller < larger and (outcome if larger == bad else came) is Outcome.PASS:
            return "A larger set passes where a smaller one fails: the failure is random, or a setting hides it"
    if outcome is Outcome.FAIL:
        return _of_failure(bad, failed, everything)
    region = min((one for one in failed if bad < one), key=len, default=set())
    missing = [name for name in everything if name in region - bad]
    if not missing:
        return ""
    if len(missing) == 1:
        whose = " your configuration" if len(region) == len(everything) else ", what failed before"
        return f"Without {missing[0]}{whose} passes: the failure needs it"
    if len(bad) <= TOGETHER:
        names = _listed([name for name in everything if name in bad])
        passes = "alone passes" if len(bad) == 1 else "together pass"
        return f"{names} {passes}: the failure needs {_one_of(missing)}"
    return f"Without {_listed(missing)} it passes: the failure needs at least one of them"


def _of_failure(bad: set[str], failed: Sequence[set[str]], everything: Sequence[str]) -> str:
    region = min((one for one in failed if bad < one), key=len, default=None)
    if region is None:
        return ""  # the user's own, which was said
    names = [name for name in everything if name in bad]
    spared = [name for name in everything if name in region - bad]
    if len(names) == 1:
        return f"{names[0]} alone is enough to make it fail"
    if len(names) <= min(NAMED, len(spared)):
        return f"{_listed(names)} are enough to make it fail"
    return f"It fails without {_listed(spared)}, too: {'it is' if len(spared) == 1 else 'they are'} not needed"


def _listed(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{len(names)} settings ({', '.join(names[: NAMED - 2])}, ...)"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}" if len(names) <= NAMED else f"one of the {len(names)} others"
