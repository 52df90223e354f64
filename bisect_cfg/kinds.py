"""What values an option takes: whether one fits, how it is typed, what it is kept as."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from bisect_cfg.common.configuration import shown
from bisect_cfg.common.words import number_of
from bisect_cfg.errors import InputError
from bisect_cfg.runner.starts import MORE_THAN_ANYONE_WAITS

if TYPE_CHECKING:
    from bisect_cfg.store.interface import Runner

EXTREME = 1e6
"""Prior odds lie within this and its inverse. From odds of 1e9 on, searches were seen to miss causes that rounding had
excluded; from 1e30 on, their products overflow."""

DEVICE = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
"""What CUDA_VISIBLE_DEVICES takes: an index, or an identifier or its beginning."""


@dataclass(frozen=True)
class Kind:
    """What values an option takes."""

    words: str  # what a value must be, in a sentence
    fits: Callable[[Any], bool]  # whether a value is one; of a list, whether an item is
    typed: Callable[[str], Any] = str  # the value of a text that was typed; the text itself where it is none
    made: Callable[[Any], Any] = lambda value: value  # a value that fits as it is kept
    metavar: str = ""  # what stands for a value on help pages
    # of a list: what it holds; its flag may be given several times
    items: Callable[[Any], tuple[Any, ...]] | None = None
    completes: str | tuple[str, ...] = ()  # what a shell offers: these words, "file", "dir", "setting" or "study"
    error: type[Exception] = TypeError  # what is raised where a value does not fit

    def check(self, name: str, value: Any) -> Any:
        """The value as it is kept.

        Raises:
            TypeError, ValueError: it does not fit; the message begins with the name.
        """
        items = self.items(value) if self.items is not None else (value,)
        wrong = [item for item in items if not self.fits(item)]
        if wrong:
            raise self.error(f"{name} must be {self.words}, not {shown(wrong[0]).rpartition(' (')[0]}")
        return self.made(value if self.items is None else items)


def _items(value: Any) -> tuple[Any, ...]:
    """What a list or a dict holds; a single one is taken for a list of it."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _typed_number(text: str) -> Any:
    try:
        number = number_of(text)
    except InputError:  # NaN, or more than a number can be
        number = None
    return text if number is None else number


def _number(least: float, most: float = math.inf, metavar: str = "NUMBER", above: bool = False) -> Kind:
    """Finite numbers from `least` (or above it) to `most`."""

    def fits(value: Any) -> bool:
        real = isinstance(value, Real) and not isinstance(value, bool)
        return real and least <= value <= min(most, sys.float_info.max) and not (above and value == least)

    bounds = f"{'above' if above else 'from'} {least:g}" + (f" up to {most:g}" if most < math.inf else "")
    return Kind(f"a finite number {bounds}", fits, _typed_number, float, metavar, error=ValueError)


def one_of(*names: str) -> Kind:
    """One of these words."""
    return Kind(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names,
                metavar="|".join(names), completes=names, error=ValueError)  # fmt: skip


def _table(words: str, kind: Kind | None = None, *others: str) -> Kind:
    """A dict with strings as keys, whose values are of a kind; or one of some words."""

    def fits(value: Any) -> bool:
        if not isinstance(value, Mapping):
            return isinstance(value, str) and value in others
        return all(isinstance(key, str) and (kind is None or kind.fits(item)) for key, item in value.items())

    return Kind(words, fits, error=TypeError if kind is None else ValueError)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and "\0" not in str(value)


def _is_setting(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str))


def _is_pattern(value: Any) -> bool:
    try:
        return _is_text(value) and bool(re.compile(value))
    except (re.error, OverflowError, RecursionError):
        return False


def _is_storage(value: Any) -> bool:
    from optuna.storages import BaseStorage

    from bisect_cfg.store.store import Store

    return _is_text(value) or isinstance(value, (BaseStorage, Store))


def is_runner(trial: object) -> TypeGuard[Runner]:
    """Whether what runs trials is a `Runner`, and no function."""
    return all(callable(getattr(trial, name, None)) for name in ("run", "is_valid")) and not isinstance(trial, type)


def _names(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip().removeprefix("args.") for name in items))


def _settings(items: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(one) if isinstance(one, list) else one for one in items)


def _devices(value: Any) -> tuple[str, ...]:
    return tuple(device.strip() for item in _items(value) for device in str(item).split(",") if device.strip())


SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind(
    "a whole number from 1 on",
    lambda value: isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1,
    _typed_number, int, "N", error=ValueError,
)  # fmt: skip
SECONDS = _number(0, MORE_THAN_ANYONE_WAITS, "SECONDS")
PAUSE, TIMEOUT = (_number(least, MORE_THAN_ANYONE_WAITS, "SECONDS", above=True) for least in (0.1, 0))
GIGABYTES, SHARE, MARGIN = _number(0, 1e6, "GB"), _number(0, 0.9999, above=True), _number(0, 1)
TEXT = Kind("a text without a NUL character", _is_text)
PROGRAM, URL = replace(TEXT, metavar="PATH", completes="file"), replace(TEXT, metavar="URL")
FILE = Kind("a path without a NUL character", _is_path, made=Path, metavar="FILE", completes="file")
FOLDER = replace(FILE, metavar="DIR", completes="dir")
CLUSTER = replace(TEXT, metavar="ray|HOST:PORT")
CLUSTER_OR_JOB = replace(TEXT, metavar="ray|HOST:PORT|slurm")
PATTERN = Kind("any, signal, non-finite or a regular expression", _is_pattern, metavar="any|signal|non-finite|REGEX")
PROOF = one_of("from-start", "from-checkpoint")
NAMES = Kind("names of settings", _is_text, made=_names, metavar="NAME", items=_items, completes="setting")
SETTINGS = Kind("names with values", _is_setting, made=_settings, metavar="NAME=VALUE", items=_items)
ASSIGNMENTS = replace(TEXT, metavar="NAME=VALUE,...", items=_items)
SIDE = replace(SETTINGS, metavar="FILE|NAME=VALUE", completes="file")
DEVICES = Kind(
    "CUDA devices: numbers (0,1), or names as `nvidia-smi -L` shows them (GPU-..., MIG-...)",
    lambda item: DEVICE.fullmatch(item) is not None, metavar="0,1,...", items=_devices,
)  # fmt: skip
FUNCTION, LIMITS = Kind("a function", callable), Kind("`Limits`", lambda value: True)
CONFIGURATION, MAPPING = _table("a dict of names and values"), _table("a dict with names as keys")
WEIGHTS = _table("a dict of names and finite numbers from 0", _number(0))
RATIOS = _table("a dict of names and finite numbers above 0", _number(0, above=True))
ODDS = _table(
    f"'risk', 'flat' or a dict of names and numbers from {1 / EXTREME:g} up to {EXTREME:g}",
    _number(1 / EXTREME, EXTREME), "risk", "flat",
)  # fmt: skip
TRIAL = Kind("a function of a configuration, or a Runner", lambda one: callable(one) or is_runner(one))
STORAGE = Kind("an Optuna storage or its address, without a NUL character", _is_storage)
