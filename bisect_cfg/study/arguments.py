"""What each argument of a `Bisection` may be, said before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import optuna

from bisect_cfg.common.configuration import check_value, shown
from bisect_cfg.runner.starts import MORE_THAN_ANYONE_WAITS
from bisect_cfg.store.store import Store

EXTREME = 1e6
"""Odds lie within this and its inverse. From odds of 1e9 on, searches were seen to miss causes that rounding had
excluded; from 1e30 on, their products overflow."""


class _Kind(NamedTuple):
    """Whether a value fits, what it must be, and what is raised if it does not."""

    fits: Callable[[Any], bool]
    words: str
    error: type[Exception] = TypeError


def _number(least: float, most: float, above: bool = False) -> _Kind:
    """Real numbers from `least` (or above it) to `most`; NaN is within no bounds."""

    def fits(value: object) -> bool:
        real = isinstance(value, Real) and not isinstance(value, bool)
        return real and least <= value <= most and not (above and value == least)

    return _Kind(fits, f"a finite number {'above' if above else 'from'} {least:g} up to {most:g}", ValueError)


def is_runner(trial: object) -> bool:
    """Whether what runs trials is a `Runner`, and no function."""
    return all(callable(getattr(trial, name, None)) for name in ("run", "is_valid")) and not isinstance(trial, type)


def _is_storage(value: object) -> bool:
    return "\0" not in value if isinstance(value, str) else isinstance(value, (optuna.storages.BaseStorage, Store))


_CONFIGURATION = _Kind(lambda value: isinstance(value, Mapping), "a dict of names and values")
_TABLE = _Kind(lambda value: isinstance(value, Mapping), "a dict with names as keys")
_FUNCTION = _Kind(callable, "a function")
_COUNT = _Kind(
    lambda value: isinstance(value, Integral) and not isinstance(value, bool) and value >= 1,
    "a whole number from 1 on",
    ValueError,
)

KINDS: Mapping[str, _Kind] = {
    "good": _CONFIGURATION,
    "bad": _CONFIGURATION,
    "prior": _Kind(lambda value: isinstance(value, (str, Mapping)), "a dict with names as keys, 'risk' or 'flat'"),
    "loss": _TABLE,
    "work": _TABLE,
    "identity": _TABLE,
    "trial": _Kind(
        lambda value: callable(value) or is_runner(value), "a function that takes a configuration, or a Runner"
    ),
    "is_valid": _FUNCTION,
    "is_failure": _FUNCTION,
    "on_event": _FUNCTION,
    "storage": _Kind(_is_storage, "an Optuna storage or its address ('sqlite:///study.db'), without a NUL character"),
    "study_name": _Kind(lambda value: isinstance(value, str), "a string"),
    "max_trials": _COUNT,
    "jobs": _COUNT,
    "confirm": _COUNT,
    "confidence": _number(0, 0.9999, above=True),
    "max_seconds": _number(0, MORE_THAN_ANYONE_WAITS),
    "timeout": _number(0, MORE_THAN_ANYONE_WAITS, above=True),
}
"""Argument -> what it may be."""

ENTRIES: Mapping[str, _Kind] = {
    "prior": _number(1 / EXTREME, EXTREME),
    "loss": _number(0, sys.float_info.max),
    "work": _number(0, sys.float_info.max, above=True),
}
"""Argument that is a table of numbers -> what each of them may be."""

REQUIRED = frozenset({"good", "bad", "trial", "prior", "jobs", "confidence"})
"""Arguments that may not be None."""


def check(**given: object) -> None:
    """See that arguments are what they should be.

    Raises:
        TypeError, ValueError: names the one that is not, and says what it must be.
    """
    for name, value in given.items():
        if value is None and name not in REQUIRED:
            continue
        _check(name, value, KINDS[name])
        for key, item in value.items() if isinstance(value, Mapping) else ():
            if not isinstance(key, str):
                raise TypeError(f"{name} must have strings as names, not {shown(key)}")
            if name in ENTRIES:
                _check(f"{name} of {key}", item, ENTRIES[name])
            elif KINDS[name] is _CONFIGURATION:
                check_value(f"{key} in {name}", item)


def _check(name: str, value: object, kind: _Kind) -> None:
    if not kind.fits(value):
        raise kind.error(f"{name} must be {kind.words}, not {shown(value)}")
