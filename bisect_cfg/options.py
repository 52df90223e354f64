"""The options of a bisection: one table, from which the command line, the checks at the door, the keyword arguments in
Python, the help pages and the tables of the docs are made.

A name is the same everywhere: ``--max-trials 20`` is ``max_trials=20``, and ``--no-where`` is ``where=False``. A flag
that may be given several times (``--only beta --only bf16``) is a list in Python (``only=["beta", "bf16"]``), or a dict
where it gives values (``--pin seed=1``: ``pin={"seed": 1}``).

Each topic is a `TypedDict`, so that editors and type checkers know the keyword arguments; an `Option` beside each type
says the rest.
"""

import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

from bisect_cfg.common.configuration import shown
from bisect_cfg.common.numbers import number_of
from bisect_cfg.errors import InputError, flag_of
from bisect_cfg.runner.starts import MORE_THAN_ANYONE_WAITS, STARTS

if TYPE_CHECKING:
    from bisect_cfg.targets.sides import Given

EXTREME = 1e6
"""Prior odds lie within this and its inverse. From odds of 1e9 on, searches were seen to miss causes that rounding had
excluded; from 1e30 on, their products overflow."""

SIMILAR = 0.75
"""From so much likeness on (`difflib`) an option may be the one that was meant: no `failure` for `lr`."""

DEVICE = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
"""What CUDA_VISIBLE_DEVICES takes: an index, or an identifier or its beginning."""


# ---------------------------------------------------------------------------------------------------- kinds of values


@dataclass(frozen=True)
class Kind:
    """What values an option takes.

    Attributes:
        words: what a value must be, in a sentence.
        fits: whether a value is one; of a list, whether an item is.
        typed: the value of a text that was typed; the text itself where it is none.
        made: a value that fits as it is kept.
        metavar: what stands for a value on help pages.
        items: of a list: what it holds; its flag may be given several times.
        completes: what a shell offers: these words, "file", "dir", "setting" or "study".
        error: what is raised where a value does not fit.
    """

    words: str
    fits: Callable[[Any], bool]
    typed: Callable[[str], Any] = str
    made: Callable[[Any], Any] = lambda value: value
    metavar: str = ""
    items: Callable[[Any], tuple[Any, ...]] | None = None
    completes: str | tuple[str, ...] = ()
    error: type[Exception] = TypeError

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


def _one_of(*names: str) -> Kind:
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


def is_runner(trial: object) -> bool:
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
    lambda value: isinstance(value, Integral) and not isinstance(value, bool) and value >= 1,
    _typed_number, int, "N", error=ValueError,
)  # fmt: skip
SECONDS = _number(0, MORE_THAN_ANYONE_WAITS, "SECONDS")
PAUSE, TIMEOUT = (_number(least, MORE_THAN_ANYONE_WAITS, "SECONDS", above=True) for least in (0.1, 0))
GIGABYTES, SHARE, MARGIN = _number(0, 1e6, "GB"), _number(0, 0.9999, above=True), _number(0, 1)
TEXT = Kind("a text without a NUL character", _is_text)
PROGRAM, URL = replace(TEXT, metavar="PATH", completes="file"), replace(TEXT, metavar="URL")
FILE = Kind("a path without a NUL character", _is_path, made=Path, metavar="FILE", completes="file")
FOLDER = replace(FILE, metavar="DIR", completes="dir")
PATTERN = Kind("any, signal, non-finite or a regular expression", _is_pattern, metavar="any|signal|non-finite|REGEX")
PROOF = _one_of("from-start", "from-checkpoint")
NAMES = Kind("names of settings", _is_text, made=_names, metavar="NAME", items=_items, completes="setting")
SETTINGS = Kind("names with values", _is_setting, made=_settings, metavar="NAME=VALUE", items=_items)
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

Side = Mapping[str, Any] | list[str] | str
Names = list[str] | tuple[str, ...] | str
PathLike = str | os.PathLike[str]

NAMED: Mapping[str, tuple[Kind, bool]] = {
    "good": (CONFIGURATION, True),
    "bad": (CONFIGURATION, True),
    "trial": (Kind("a function of a configuration, or a Runner", lambda one: callable(one) or is_runner(one)), True),
    "is_valid": (FUNCTION, False),
    "isolation": (_one_of("process", "none"), True),
    "storage": (Kind("an Optuna storage or its address, without a NUL character", _is_storage), False),
    "study_name": (TEXT, False),
    "max_trials": (COUNT, False),
    "jobs": (COUNT, True),
}
"""What a `Bisection` names itself: its kind, and whether it is required."""


# ---------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Option:
    """A row of the table.

    Attributes:
        kind: of its values.
        help: what it is for; of a switch that is on by default, what switching it off does.
        otherwise: what happens where it is not given, if the default does not say it.
        default: of a list (), of a switch False, if nothing else is said.
        name: in Python.
        topic: under which help pages list it.
    """

    kind: Kind
    help: str
    otherwise: str = ""
    default: Any = None
    name: str = ""
    topic: str = ""

    @property
    def flag(self) -> str:
        """As it is typed."""
        return flag_of(f"no_{self.name}" if self.default is True else self.name)

    @property
    def said(self) -> str:
        """Its help, with what holds where it is not given."""
        plain = self.default in (None, ()) or isinstance(self.default, bool)
        told = self.otherwise or ("" if plain else f"default: {self.default}")
        return f"{self.help} [{told}]" if told else self.help


# fmt: off
class Compared(TypedDict, total=False):
    """What is compared"""

    good: Annotated[Side, Option(SIDE, "Change the good configuration.", "the library's defaults")]
    bad: Annotated[Side, Option(
        SIDE, "Of any command: the values that fail. {config}, {flags} and {NAME} in it are replaced; none: the flag "
        "is left out.", "those that stand in the command")]
    config_format: Annotated[Literal["yaml", "json", "toml"] | None, Option(
        _one_of("yaml", "json", "toml"), "Format of {config}.", "that of the file given")]
    good_packages: Annotated[PathLike | None, Option(
        FILE, "What `pip freeze` printed where it worked. Packages that differ are varied.")]
    only: Annotated[Names, Option(NAMES, "Vary only these settings.")]
    exclude: Annotated[Names, Option(NAMES, "Leave these settings as the script has them.")]
    pin: Annotated[Side, Option(SETTINGS, "Fix a setting in every trial.")]
    failure: Annotated[str | None, Option(PATTERN, "Which failures count.", "only the one that yours shows")]


class Trials(TypedDict, total=False):
    """How trials are run"""

    python: Annotated[str | None, Option(PROGRAM, "Interpreter that runs the script.", "this one")]
    jobs: Annotated[int, Option(COUNT, "Trials that run in parallel.", default=1)]
    devices: Annotated[list[str] | list[int] | str, Option(DEVICES, "CUDA devices, one per job.")]
    start: Annotated[Literal["config", "imports", "cold"] | None, Option(
        _one_of(*STARTS), "Start trials no warmer than this.", "the warmest that is sound")]
    steps: Annotated[int | None, Option(COUNT, "Optimizer steps of a trial.", "from the step at which yours fails")]
    training: Annotated[int | None, Option(COUNT, "Which training of a script that has several.", "the first of GRPO")]
    trial_timeout: Annotated[float | None, Option(
        PAUSE, "Time without a step that is a hang.", "ten times the longest pause, at least 20")]


class Late(TypedDict, total=False):
    """Failures that come late"""

    from_checkpoint: Annotated[PathLike | None, Option(
        FOLDER, "Go on from this checkpoint of your run: no trial makes the steps before it.")]
    log: Annotated[PathLike | None, Option(
        FILE, "Log or metrics of a run that failed, which tell at which step; the first run goes on to it.")]
    prove: Annotated[Literal["from-start", "from-checkpoint"] | None, Option(
        PROOF, "After trials from a checkpoint: prove from step 0, too.", "if it takes no longer than the search")]
    until_failure: Annotated[bool, Option(
        SWITCH, "Let the first run go on until it fails.", "it ends after 100 steps and ten minutes")]
    max_disk: Annotated[float | None, Option(
        GIGABYTES, "What the first run's own checkpoints may take; 0: it saves none.", "a tenth of what is free")]
    isolate_data: Annotated[bool, Option(SWITCH, "Also find the rows of the dataset that make the step fail.")]


class Sure(TypedDict, total=False):
    """How sure, how long"""

    confirm: Annotated[int | None, Option(COUNT, "Runs of each claim of the answer.", "until no doubt is left")]
    confidence: Annotated[float, Option(SHARE, "How sure the answer must be if the failure is random.", default=0.95)]
    first: Annotated[bool, Option(SWITCH, "Stop at the first proven cause.")]
    max_seconds: Annotated[float | None, Option(SECONDS, "Start no trial after this many seconds.")]


class OfStudies(TypedDict, total=False):
    """How sure, how long"""

    max_trials: Annotated[int | None, Option(COUNT, "Stop after this many trials and report what is known.")]
    where: Annotated[bool, Option(SWITCH, "Skip the last run, which looks for the place of the failure.", default=True)]


class SafeValues(TypedDict, total=False):
    """Safe values"""

    recommend: Annotated[bool, Option(SWITCH, "Look for no safe values: stop when the cause is known.", default=True)]
    keep: Annotated[Names, Option(NAMES, "Prefer remedies that leave this setting as it is.")]
    verify_seeds: Annotated[int, Option(COUNT, "Runs of a verification, each with its own seed.", default=3)]
    verify_steps: Annotated[int | None, Option(
        COUNT, "Optimizer steps of a verification run.", "four times a trial's, at least 30")]
    margin: Annotated[float, Option(
        MARGIN, "How far to stay back from the last healthy value, of the way back to good.", default=0.5)]
    remedies: Annotated[int | None, Option(
        COUNT, "How many to verify.", "the best, then others for as long as isolating took")]
    environments: Annotated[bool, Option(
        SWITCH, "Build no environments to try cures that are other versions of packages.", default=True)]


class StudyFolder(TypedDict, total=False):
    """The study"""

    study: Annotated[PathLike | None, Option(FOLDER, "Study folder.", "bisect-cfg-studies/NAME")]
    restart: Annotated[bool, Option(SWITCH, "Begin a new study; the old one is kept beside it.")]
    storage: Annotated[str | None, Option(URL, "Optuna storage.", "SQLite in the study folder")]
    env_cache: Annotated[PathLike | None, Option(FOLDER, "Where environments are kept.", "beside the studies")]


class Output(TypedDict, total=False):
    """Output"""

    quiet: Annotated[bool, Option(SWITCH, "Nothing but the answer.")]
    verbose: Annotated[bool, Option(SWITCH, "The answer with everything that supports it.")]
    plain: Annotated[bool, Option(SWITCH, "Plain lines instead of the live view.")]
    json_lines: Annotated[bool, Option(SWITCH, "Events as lines of JSON, the answer last (docs/json-lines.md).")]


class BisectOptions(Compared, Trials, Late, Sure, OfStudies, SafeValues, StudyFolder, total=False):
    """Keyword arguments of `bisect_cfg.bisect`."""


class BisectionOptions(Sure, total=False):
    """Keyword arguments of a `Bisection` besides those that it names."""

    prior: Annotated[str | Mapping[str, float], Option(
        ODDS, "'risk' (by name), 'flat', or name -> odds (1 is ordinary, as are missing names).", default="risk")]
    loss: Annotated[Mapping[str, float] | None, Option(
        WEIGHTS, "What resetting a factor gives up, name -> weight (or 1): those of less are tried first.")]
    work: Annotated[Mapping[str, float] | None, Option(
        RATIOS, "By what a bad value multiplies a trial's duration, name -> ratio (or 1): cheap ones go first.")]
    is_failure: Annotated[Callable[..., bool] | None, Option(
        FUNCTION, "Whether a failing result is the failure under study.", "it has the bad one's signature")]
    on_event: Annotated[Callable[..., None] | None, Option(
        FUNCTION, "Called, where `run` was, with TrialStarted, TrialFinished, CauseFound, Resumed, Concluded.")]
    timeout: Annotated[float | None, Option(TIMEOUT, "Seconds until a function in a child counts as hanging.")]
    deterministic: Annotated[bool, Option(
        SWITCH, "Say that runs of one configuration do the same: what fails once fails always.")]
    identity: Annotated[Mapping[str, Any] | None, Option(
        MAPPING, "What tells this study from others, as JSON can hold it.", "the code of the function")]
    progress: Annotated[bool | None, Option(SWITCH, "Show progress in a notebook.", "unless there is `on_event`")]
    limits: Annotated[Any, Option(LIMITS, "In place of `max_trials` and `max_seconds`, for callers in here.")]
# fmt: on


def _rows(*topics: type) -> dict[str, Option]:
    """Name -> option of these topics."""
    rows = {}
    for topic in topics:
        for name, hint in get_type_hints(topic, include_extras=True).items():
            row = hint.__metadata__[0]
            default = row.default
            if default is None:
                default = () if row.kind.items else False if hint.__origin__ is bool else None
            rows[name] = replace(row, default=default, name=name, topic=topic.__doc__)
    return rows


OUTPUT, SAFE_VALUES, OF_BISECTIONS = _rows(Output), _rows(SafeValues), _rows(BisectionOptions)
OPTIONS = _rows(Compared, Trials, Late, Sure, OfStudies, SafeValues, StudyFolder)
"""Of `bisect-cfg bisect` and `bisect_cfg.bisect`."""

EVERYDAY = (
    "good", "only", "exclude", "python", "jobs", "max_seconds", "from_checkpoint", "keep", "recommend", "study",
    "restart", "quiet",
)  # fmt: skip
"""What most may want to say, of more than forty options: help pages list it first."""


# ------------------------------------------------------------------------------------------------- options as given

_Fields = make_dataclass(
    "_Fields", [(name, Any, field(default=row.default)) for name, row in OPTIONS.items()], frozen=True, kw_only=True
)


class Options(_Fields):  # type: ignore[misc, valid-type]
    """The options of a bisection, whole: an attribute each."""

    def given(self) -> "Given":
        """What they say of a command of any kind."""
        from bisect_cfg.targets.sides import Given

        return Given(
            self.good, self.bad, self.pin, self.only, self.exclude, self.config_format, self.good_packages, self.python
        )

    def identity(self) -> dict[str, Any]:
        """The options that change what the trials mean, by their names; a study keeps them."""
        from bisect_cfg.store.inputs import hash_of
        from bisect_cfg.targets.good import as_given

        def settings(given: tuple[Any, ...]) -> list[str]:
            files = ((text, Path(text)) for text in map(as_given, given))
            return sorted(f"{text} {hash_of(path)}" if "=" not in text and path.is_file() else text
                          for text, path in files)  # fmt: skip

        known = {
            "failure": self.failure,
            "steps": self.steps,
            "only": sorted(self.only),
            "exclude": sorted(self.exclude),
        }
        rare = {
            "bad": settings(self.bad),
            "config_format": self.config_format,
            "good_packages": self.good_packages and hash_of(self.good_packages),
            "training": self.training,
            "from_checkpoint": self.from_checkpoint and str(self.from_checkpoint.absolute()),
        }
        known |= {name: value for name, value in rare.items() if value}
        return {"good": settings(self.good), "pin": sorted(map(as_given, self.pin)), **known}

    def words(self) -> Iterator[str]:
        """The options as they are typed; what is as by default is left out, and --restart, which one says once."""
        for name, row in OPTIONS.items():
            value = getattr(self, name)
            if value == row.default or name == "restart":
                continue
            if row.kind is SWITCH:
                yield row.flag
                continue
            every = (",".join(value),) if row.kind is DEVICES else value if row.kind.items else (value,)
            for one in every:
                yield from (row.flag, _as_typed(one))


def _as_typed(value: Any) -> str:
    """A value as one word of a command line; from Python a setting is a pair."""
    if isinstance(value, Path) and value.is_relative_to(Path.cwd()):
        value = value.relative_to(Path.cwd())
    return f"{value[0]}={json.dumps(value[1], default=str)}" if isinstance(value, tuple) else str(value)


def checked(rows: Mapping[str, Option], given: Mapping[str, Any], door: str = "") -> dict[str, Any]:
    """What was given, each value of its kind, and the defaults of the rest.

    Args:
        rows: what may be given.
        given: name -> value; None is as if it were not given, where that is the default.
        door: the function that is called, by its name; "" where flags were typed.

    Raises:
        TypeError: there is no such option (with the one that may be meant); or a value does not fit, or ValueError.
    """
    result = {name: row.default for name, row in rows.items()}
    for name, value in given.items():
        if name not in rows:
            near = get_close_matches(name, rows, 1, SIMILAR)
            raise TypeError(f"{door}() has no option {name}" + (f": did you mean {near[0]}?" if near else ""))
        if value is not None or rows[name].default is not None:
            result[name] = rows[name].kind.check(name if door else flag_of(name), value)
    return result


def options_of(given: Mapping[str, Any], door: str = "") -> Options:
    """`checked` for a bisection of a script or a command.

    Raises:
        TypeError: there is no such option.
        InputError: a value does not fit.
    """
    checked(OPTIONS, {name: value for name, value in given.items() if name not in OPTIONS}, door)
    try:
        return Options(**checked(OPTIONS, given, door))
    except (TypeError, ValueError) as error:
        raise InputError(f"{error}.") from None


def check_named(**given: Any) -> None:
    """See that what a `Bisection` names itself is of its kind.

    Raises:
        TypeError, ValueError: it is not.
    """
    for name, value in given.items():
        kind, required = NAMED[name]
        if value is not None or required:
            kind.check(name, value)


def with_options(function: Any, rows: Mapping[str, Option]) -> Any:
    """A function or class whose signature and help list the options in place of ``**options``: notebooks complete from
    the one, `help` shows the other."""
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=rows[name].default) for name in rows]
    function.__signature__ = signature.replace(parameters=[*named, *more])
    listed = "\n".join(f"    {name}: {row.said}" for name, row in rows.items())
    function.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n\nOptions:\n{listed}\n"
    return function
