"""Arguments of a `Bisection` that are none of the kind they should be are named before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real

_SHOWN_LENGTH = 60
"""Of a value in an error: enough to recognise it."""


def check_kinds(
    configurations: Mapping[str, object], tables: Mapping[str, object], functions: Mapping[str, object]
) -> None:
    """Raises a TypeError that names the argument which is not what it should be."""
    for name, value in configurations.items():
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} must be a dict of names and values, not {shown(value)}")
    for name, value in tables.items():
        if not (value is None or isinstance(value, Mapping)):
            raise TypeError(f"{name} must be a dict with names as keys, not {shown(value)}")
    for name, value in (*configurations.items(), *tables.items()):
        odd = [key for key in value or () if not isinstance(key, str)]
        if odd:
            raise TypeError(f"{name} must have strings as names, not {shown(odd[0])}")
    for name, value in functions.items():
        if not (value is None or callable(value)):
            raise TypeError(f"{name} must be a function, not {shown(value)}")


def shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + '...'} ({type(value).__name__})"


def check_numbers(
    counts: Mapping[str, object], numbers: Mapping[str, object], tables: Mapping[str, Mapping[str, object]]
) -> None:
    """Numbers are finite and counts are whole; NaN passes every comparison that is meant to refuse it.

    Raises:
        ValueError: names the argument.
    """
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
            raise ValueError(f"{name} must be a whole number from 1 on, not {value!r}")
    for name, value in numbers.items():
        if value is not None and not (_is_finite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number, not {value!r}")
    for name, table in tables.items():
        for key, value in table.items():
            if not (_is_finite(value) and value >= 0):
                raise ValueError(f"{name} of {key} must be a finite number, not {value!r}")


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
