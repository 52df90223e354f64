"""What each argument of a `Bisection` may be: said before anything runs, with the name of the argument."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping

import optuna

from bisect_cfg.capture.names import check_count, check_number
from bisect_cfg.configuration import Configuration, Value, checked_value, shown
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.trials.start_points import MORE_THAN_ANYONE_WAITS

EXTREME = 1e6
"""Odds, weights and ratios lie within this and its inverse. From odds of 1e9 on, searches were seen to miss causes that
rounding had excluded; from 1e30 on, their products overflow."""


def _is_text(value: object) -> bool:
    """Whether it is a text, and every database takes it."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:  # half a character
        return False


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "good": (_is_table, "a dict of names and values"),
    "bad": (_is_table, "a dict of names and values"),
    "configuration": (_is_table, "a dict of names and values"),
    "identity": (_is_table, "a dict of names and values"),
    "prior": (lambda value: isinstance(value, (str, Mapping)), "a dict of names and odds, 'risk' or 'flat'"),
    "loss": (_is_table, "a dict of names and weights"),
    "work": (_is_table, "a dict of names and ratios"),
    "storage": (
        lambda value: isinstance(value, (str, optuna.storages.BaseStorage)),
        "an Optuna storage or its address ('sqlite:///study.db')",
    ),
    "study_name": (_is_text, "a string that a database can hold"),
    "run": (_is_text, "a string that a database can hold"),
    "first": (_is_switch, "True or False"),
    "progress": (_is_switch, "True or False"),
}
"""Argument -> whether a value is of the right kind, and what it should be."""

COUNTS = {"seed": 0, "max_trials": 1, "jobs": 1, "confirm": 1}
"""Argument -> the least that it can be."""

NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "confidence": (0.0, 0.9999, True),
    "max_seconds": (0.0, MORE_THAN_ANYONE_WAITS, False),
    "timeout": (0.0, MORE_THAN_ANYONE_WAITS, True),
    "prior": (1 / EXTREME, EXTREME, False),
    "loss": (0.0, EXTREME, False),
    "work": (1 / EXTREME, EXTREME, False),
}
"""Argument, or table of numbers -> least, most, and whether the least itself is excluded."""

FUNCTIONS = {
    "trial": "a configuration", "is_valid": "a configuration", "is_failure": "a TrialResult", "on_event": "an event",
}  # fmt: skip
"""Argument that is a function -> what it is called with."""

OPTIONAL = frozenset({
    "storage", "study_name", "max_trials", "confirm", "loss", "work", "max_seconds", "timeout", "identity", "progress",
    "is_valid", "is_failure", "on_event",
})  # fmt: skip
"""Arguments that may be None."""


def check(**given: object) -> None:
    """See that arguments are what they should be.

    Raises:
        TypeError, ValueError: names the one that is not, and says what it should be.
    """
    for name, value in given.items():
        if value is None and name in OPTIONAL:
            continue
        if name in KINDS and not KINDS[name][0](value):
            raise TypeError(f"{name} must be {KINDS[name][1]}, not {shown(value)}")
        if name in FUNCTIONS and not (name == "trial" and is_runner(value)):
            _check_function(name, value)
        if isinstance(value, Mapping):
            _check_names(name, value)
        try:
            if name in COUNTS:
                check_count(name, value, COUNTS[name])
            elif name in NUMBERS and isinstance(value, Mapping):
                for key, number in value.items():
                    check_number(f"{name} of {key}", number, *NUMBERS[name])
            elif name in NUMBERS and name not in KINDS:
                check_number(name, value, *NUMBERS[name])
        except InputError as error:
            raise ValueError(error.message.rstrip(".")) from None


def is_runner(trial: object) -> bool:
    """Whether what runs trials is a `Runner`, and no function."""
    return all(callable(getattr(trial, name, None)) for name in ("run", "is_valid")) and not isinstance(trial, type)


def _check_names(name: str, table: Mapping[object, object]) -> None:
    for key in table:
        if not isinstance(key, str):
            raise TypeError(f"{name} must have strings as names, not {shown(key)}")
        if not (_is_text(key) and key.strip()):
            raise ValueError(f"{name} has the name {key!r}, which nobody can read: give the setting another one")


def checked_configuration(side: str, given: Configuration) -> dict[str, Value]:
    """A configuration with each value as `checked_value` has it."""
    return {name: checked_value(f"{name} in {side}", value) for name, value in given.items()}


def checked_identity(identity: JsonObject) -> JsonObject:
    """An identity as JSON gives it back: it is compared with one that was stored.

    Raises:
        TypeError: JSON cannot hold it.
    """
    try:
        return json.loads(json.dumps(identity, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"identity must have values that JSON can hold: {error}") from None


def _check_function(name: str, function: object) -> None:
    """See that a function can be called as it will be, and answers when it is."""
    takes = FUNCTIONS[name]
    if not callable(function):
        raise TypeError(f"{name} must be a function that takes {takes}, not {shown(function)}")
    for code in (function, type(function).__call__):  # an object that can be called
        if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
            raise TypeError(f"{name} must not be `async def`: nothing awaits it. Let it call asyncio.run(...) itself")
        if inspect.isgeneratorfunction(code):
            raise TypeError(f"{name} must return its answer: with `yield` in it, calling it runs nothing")
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # built in, or of the user's own: then the call tells
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(f"{name} must take one argument, {takes}: {error}") from None
