"""What a reader asks besides: one more run, of settings of their own choice.

A subset is a question that the search could have asked, so its answer is evidence like any other. Values of the
reader's own lie where the search never looks: they are recorded and shown, and no claim rests on them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bisect_cfg.common.configuration import (
    UNSET,
    Configuration,
    Factor,
    Subset,
    Value,
    check_value,
    configuration_of,
    equal,
    shown,
)
from bisect_cfg.common.words import show
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask
from bisect_cfg.report.events import Wanted
from bisect_cfg.targets.suggestions import nearest

REASON = "asked by hand"


@dataclass(frozen=True)
class AskedRun:
    """A run that somebody wants to see."""

    configuration: dict[str, Value]  # whole
    subset: Subset | None  # the factors that are bad in it, if it has one of the two levels of each; None otherwise
    changes: dict[str, Value]  # what it has in place of the bad configuration's values


def asked_run(
    wanted: Wanted, factors: Sequence[Factor], good: Configuration, bad: Configuration, others: Iterable[str] = ()
) -> AskedRun:
    """What is to be run, between the whole good and the whole bad configuration of a study; `others` are names that may
    be given a value although they are in neither.

    Raises:
        TypeError, ValueError: it is neither names nor values, or a value is no plain one.
        InputError: a name that is not known.
    """
    levels = {factor.name: factor for factor in factors}
    if isinstance(wanted, Mapping):
        known = dict.fromkeys([*levels, *good, *bad, *others])
        changes = {_name(name, known, levels, "which is not a setting here"): value for name, value in wanted.items()}
        for name, value in changes.items():
            check_value(f"{_printable(name)} in ask()", value)
            if name in levels and not _is_plain(value) and all(map(_is_plain, (levels[name].good, levels[name].bad))):
                raise TypeError(f"ask() gives {_printable(name)} the value {shown(value)}, which nothing can record")
        configuration = {name: value for name, value in {**bad, **changes}.items() if value is not UNSET}
        both = all(name in levels and _at_level(levels[name], value) for name, value in changes.items())
        subset = {name for name, factor in levels.items() if equal(configuration.get(name, UNSET), factor.bad)}
        return AskedRun(configuration, frozenset(subset) if both else None, changes)
    if not isinstance(wanted, Collection):
        kind = type(wanted).__name__
        raise TypeError(f"ask() takes the names of the settings that are to be bad, or a dict of values, not {kind}")
    otherwise = "which is not among the settings that differ"
    given = [wanted] if isinstance(wanted, str) else wanted
    names = frozenset(_name(name, levels, levels, otherwise) for name in given)
    changes = {name: factor.good for name, factor in levels.items() if name not in names}
    return AskedRun(configuration_of(names, good, bad), names, changes)


def check_valid(asked: AskedRun, why: str | None) -> None:
    """Refuse what cannot be built, by what its runner says of its configuration (None if it can be)."""
    if why is None:
        return
    shown = ", ".join(f"{name}={show(mask(value, name), name)}" for name, value in asked.changes.items())
    raise InputError(
        f"This configuration is not valid: {why}. Nothing was run.",
        f"It is your own with {shown}." if shown else "It is your own configuration.",
    )


def _is_plain(value: object) -> bool:
    """Whether JSON can hold it, or a number of numpy's that it can."""
    try:
        json.dumps(value, default=lambda one: one.item())
    except (TypeError, ValueError, AttributeError):
        return value is UNSET
    return True


def _at_level(factor: Factor, value: Value) -> bool:
    return equal(value, factor.good) or equal(value, factor.bad)


def _name(name: object, known: Mapping[str, object], levels: Mapping[str, Factor], otherwise: str) -> str:
    """The bare name of a setting, if it is among those known."""
    if not isinstance(name, str):
        raise TypeError(f"ask() takes names of settings, not {name!r}")
    bare = name if name in known else name.strip().removeprefix("args.")
    if bare in known:
        return bare
    those = f"Those that differ are: {', '.join(map(_printable, levels))}." if levels else ""
    raise InputError(f"ask() names {_printable(name)}, {otherwise}.", nearest(bare, known) or those)


def _printable(name: str) -> str:
    """A name as it may stand in a sentence, whatever is in it."""
    return name if name.isprintable() else repr(name)
