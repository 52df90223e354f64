"""What can be said about the options before anything runs; names of settings the first run shows (`targets.good`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import get_origin, get_type_hints

from bisect_cfg.common.configuration import Value, check_value
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.numbers import finite_number
from bisect_cfg.errors import InputError, flag_of
from bisect_cfg.probe.values import encode
from bisect_cfg.runner.checkpoints import read_checkpoint
from bisect_cfg.runner.starts import MORE_THAN_ANYONE_WAITS, STARTS
from bisect_cfg.runner.verdict import Failure
from bisect_cfg.study.options import Options
from bisect_cfg.study.told_in_log import steps_reached
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.good import parse_pins, read_good
from bisect_cfg.targets.packages import installed_by, read_packages
from bisect_cfg.targets.script import Script
from bisect_cfg.targets.suggestions import check_name
from bisect_cfg.targets.template import FORMATS

NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "trial_timeout": (0.1, MORE_THAN_ANYONE_WAITS, False),
    "max_seconds": (1.0, MORE_THAN_ANYONE_WAITS, False),
    "max_disk": (0.0, 1e6, False),
    "confidence": (0.5, 0.9999, False),
    "margin": (0.0, 1.0, False),
}
"""Option -> least, most, and whether the least itself is excluded."""

_DEVICE = r"\d+|(GPU|MIG)-[\w/-]+"
"""What CUDA_VISIBLE_DEVICES takes: an index, or an identifier or its beginning."""

CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "prior": ("risk", "flat"),
    "start": (None, *STARTS),
    "config_format": (None, *FORMATS),
    "prove": (None, "from-start", "from-checkpoint"),
}


def _options(*kinds: object) -> tuple[str, ...]:
    """The options whose values are of one of these kinds, as their annotations say."""
    return tuple(name for name, kind in get_type_hints(Options).items() if kind in kinds or get_origin(kind) in kinds)


COUNTS = _options(int, int | None)
"""Options that are whole numbers from 1 on."""

SWITCHES = tuple(name for name in _options(bool) if name != "flags")
MANY, PATHS = _options(tuple), _options(Path | None)
TEXTS = tuple(name for name in _options(str, str | None) if name not in CHOICES)


def from_python(options: Mapping[str, Value]) -> Options:
    """Options as a notebook gives them, where `good` and `pins` may be dicts and every value is taken as it is.

    Raises:
        TypeError: an unknown option.
        InputError: a value that cannot be handed to another process.
    """
    given = dict(options)
    if "level" in given:  # what `start` was called before
        given.setdefault("start", given["level"])
        del given["level"]
    unknown = sorted(given.keys() - ({field.name for field in fields(Options)} - {"flags"}))
    if unknown:
        raise TypeError(f"bisect() has no option {', '.join(unknown)}")
    for name in ("good", "bad", "pins"):
        value = given.get(name)
        if isinstance(value, Mapping):
            given[name] = tuple((str(key), encoded(str(key), item)) for key, item in value.items())
    for name in MANY:
        value = given.get(name) or ()
        given[name] = (value,) if isinstance(value, (str, int)) else tuple(value)
    given["devices"] = tuple(map(str, given["devices"]))
    for name in PATHS:
        if isinstance(given.get(name), (str, os.PathLike)):
            given[name] = Path(given[name])
    return Options(**given, flags=False)


def encoded(name: str, value: Value) -> Value:
    """A value as it is handed to another process.

    Raises:
        InputError: it cannot be.
    """
    made = encode(comparable(name, value))
    if isinstance(made, dict) and ({"$opaque", "$object"} & made.keys()):
        raise InputError(
            f"{name}: a {type(value).__name__} cannot be handed to another process.",
            "Give a number, a string, True, False, None, a torch.dtype, or a list or dict of these.",
        )
    return value if isinstance(value, float) else made


def comparable(name: str, value: Value) -> Value:
    """The same value.

    Raises:
        InputError: it is none that a setting can have, see `check_value`.
    """
    try:
        check_value(name, value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{error}.") from None
    return value


def check_nul(options: Options, words: Iterable[str], python: str | None) -> None:
    """See that no path, and no other text that is given to the system, holds a NUL character: it takes none.

    Raises:
        InputError: says which does.
    """
    texts = {flag_of(name): getattr(options, name) for name in (*PATHS, *TEXTS)} | {"--python": python}
    for name, text in (*texts.items(), *(("The command", word) for word in words)):
        if "\0" in str(text):
            raise InputError(f"{name}: {str(text)!r} holds a NUL character, which no path can.", "Leave it out.")


def checked(options: Options, script: Script | CommandTarget) -> Options:
    """The options, with whatever can be known to be wrong with them said now; names without ``args.``.

    Raises:
        InputError: says what is wrong, and what to do.
    """
    for name in (*TEXTS, *PATHS, *MANY, *SWITCHES):
        _check_type(name, getattr(options, name))
    for name, (least, most, above) in NUMBERS.items():
        if getattr(options, name) is not None:
            _number(name, getattr(options, name), least, most, above)
    for name in COUNTS:
        value = getattr(options, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(f"{flag_of(name)} must be a whole number from 1 on, not {value!r}.")
    check_choices(options)
    if options.failure:
        _check_failure(options.failure)
    if options.good_packages is not None and isinstance(script, Script):
        read_packages(options.good_packages, installed_by(script.python))
    if options.from_checkpoint is not None and isinstance(script, Script):
        read_checkpoint(options.from_checkpoint)
    if options.log is not None and isinstance(script, Script):
        steps_reached(options.log)
    for device in options.devices:
        if not re.fullmatch(_DEVICE, device):
            raise InputError(
                f"--devices: {device!r} is not a CUDA device.",
                "Give their numbers (0,1), or the names that `nvidia-smi -L` shows (GPU-..., MIG-...).",
            )
    both = sorted(set(_bare(options.only)) & set(_bare(options.excluded)))
    if both:
        raise InputError(
            f"--only and --except both name {', '.join(both)}.",
            "A setting is either varied or left as the script has it.",
        )
    if isinstance(script, CommandTarget):
        _check_for_command(options, script)
    else:
        read_good(options.good, script.good_file)
        parse_pins(options.pins)
    if options.storage:
        _check_storage(options.storage)
    return replace(options, **{name: _bare(getattr(options, name)) for name in ("only", "excluded", "keep")})


def check_choices(options: Options) -> None:
    """See that what is one of several words is one of them.

    Raises:
        InputError: it is not.
    """
    for name, choices in CHOICES.items():
        if not any(getattr(options, name) is one or getattr(options, name) == one for one in choices):
            shown = ", ".join(str(choice) for choice in choices if choice is not None)
            raise InputError(f"{flag_of(name)} must be one of {shown}, not {getattr(options, name)!r}.")


def _check_for_command(options: Options, target: CommandTarget) -> None:
    """What only a training has is no option of any command."""
    if options.from_checkpoint is not None:
        raise InputError("--from-checkpoint is for training scripts.", "Name the checkpoint in the command itself.")
    if options.isolate_data:
        raise InputError("--isolate-data is for training scripts: of a command nobody knows its rows.", "Leave it out.")
    for name in options.keep:
        check_name(name, target.sides.bad, "--keep")


def _check_type(name: str, value: Value) -> None:
    """Options also come from a notebook, and from a study's file, where they can be anything."""
    if name in SWITCHES:
        right, wanted = isinstance(value, bool), "true or false"
    elif name in MANY:
        right, wanted = isinstance(value, tuple) and all(isinstance(one, str) for one in value), "names"
        if name in ("good", "bad", "pins"):
            pair = isinstance(value, tuple) and all(isinstance(one, str) or _is_pair(one) for one in value)
            right, wanted = pair, "names with values"
    elif name in PATHS:
        right, wanted = value is None or isinstance(value, Path), "a path"
    else:
        right, wanted = value is None or isinstance(value, str), "a string"
    if not right:
        raise InputError(f"{flag_of(name)} takes {wanted}, not {value!r}.")


def _is_pair(one: Value) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)


def _bare(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip().removeprefix("args.") for name in names))


def _number(name: str, value: Value, least: float, most: float, above: bool) -> None:
    try:
        if isinstance(value, str):
            raise InputError(f"{value!r} is a string, not a number.")
        finite_number(value, least, most, above)
    except InputError as error:
        raise InputError(f"{flag_of(name)}: {error.message}", error.advice) from None


def _check_failure(text: str) -> None:
    try:
        Failure(Signature("exit"), asked=text).includes(Signature("exit"))
    except ValueError as error:
        raise InputError(f"{error}.", "It takes any, signal, non-finite or a regular expression.") from None


def _check_storage(storage: str) -> None:
    from bisect_cfg.store.storage import cannot_open, open_storage

    try:
        open_storage(storage).get_all_studies()
    except Exception as error:
        raise cannot_open(storage, error) from None
