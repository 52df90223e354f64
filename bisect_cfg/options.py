"""The options of a bisection: one table, from which the command line, the checks at the door, the keyword arguments in
Python, the help pages and the tables of the docs are made.

A name is the same everywhere: ``--max-trials 20`` is ``max_trials=20``, and ``--no-where`` is ``where=False``. A flag
that may be given several times (``--only beta --only bf16``) is a list in Python (``only=["beta", "bf16"]``), or a dict
where it gives values (``--pin seed=1``: ``pin={"seed": 1}``).

Each topic is a `TypedDict`, so that editors and type checkers know the keyword arguments; an `Option` beside each type
says the rest.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

from bisect_cfg import kinds
from bisect_cfg.errors import InputError, flag_of
from bisect_cfg.kinds import COUNT, SWITCH, Kind, one_of
from bisect_cfg.runner.starts import STARTS

if TYPE_CHECKING:
    from bisect_cfg.targets.sides import Given

SIMILAR = 0.75
"""From so much likeness on (`difflib`) an option may be the one that was meant: no `failure` for `lr`."""

Side = Mapping[str, Any] | list[str] | list[tuple[str, Any]] | str
Names = list[str] | tuple[str, ...] | str
PathLike = str | os.PathLike[str]

NAMED: Mapping[str, tuple[Kind, bool]] = {
    "good": (kinds.CONFIGURATION, True),
    "bad": (kinds.CONFIGURATION, True),
    "trial": (kinds.TRIAL, True),
    "is_valid": (kinds.FUNCTION, False),
    "isolation": (one_of("process", "none"), True),
    "storage": (kinds.STORAGE, False),
    "study_name": (kinds.TEXT, False),
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

    good: Annotated[Side, Option(kinds.SIDE, "Change the good configuration.", "the library's defaults")]
    bad: Annotated[Side, Option(
        kinds.SIDE, "Of any command: the values that fail. {config}, {flags} and {NAME} in it are replaced; none: the "
        "flag is left out.", "those that stand in the command")]
    config_format: Annotated[Literal["yaml", "json", "toml"] | None, Option(
        one_of("yaml", "json", "toml"), "Format of {config}.", "that of the file given")]
    good_packages: Annotated[PathLike | None, Option(
        kinds.FILE, "What `pip freeze` printed where it worked. Packages that differ are varied.")]
    only: Annotated[Names, Option(kinds.NAMES, "Vary only these settings.")]
    exclude: Annotated[Names, Option(kinds.NAMES, "Leave these settings as the script has them.")]
    pin: Annotated[Side, Option(kinds.SETTINGS, "Fix a setting in every trial.")]
    failure: Annotated[str | None, Option(kinds.PATTERN, "Which failures count.", "only the one that yours shows")]


class Trials(TypedDict, total=False):
    """How trials are run"""

    python: Annotated[str | None, Option(kinds.PROGRAM, "Interpreter that runs the script.", "this one")]
    jobs: Annotated[int, Option(COUNT, "Trials that run in parallel.", default=1)]
    devices: Annotated[list[str] | list[int] | str, Option(kinds.DEVICES, "CUDA devices, one per job.")]
    on: Annotated[str | None, Option(
        kinds.CLUSTER_OR_JOB, "Run trials on a Ray cluster: that of RAY_ADDRESS or of this machine, or HOST:PORT; or "
        "in a Slurm job.", "on this machine")]
    slots: Annotated[int | None, Option(
        COUNT, "Trials that run in parallel on a cluster.", "as many as there is room for, at most 16")]
    gpus_per_trial: Annotated[int | None, Option(COUNT, "GPUs that each trial has to itself.", "1 where there are any")]
    start: Annotated[Literal["config", "imports", "cold"] | None, Option(
        one_of(*STARTS), "Start trials no warmer than this.", "the warmest that is sound")]
    steps: Annotated[int | None, Option(COUNT, "Optimizer steps of a trial.", "from the step at which yours fails")]
    training: Annotated[int | None, Option(COUNT, "Which training of a script that has several.", "the first to fail")]
    trial_timeout: Annotated[float | None, Option(
        kinds.PAUSE, "Time without a step that is a hang.", "ten times the longest pause, at least 20")]


class Late(TypedDict, total=False):
    """Failures that come late"""

    from_checkpoint: Annotated[PathLike | None, Option(
        kinds.FOLDER, "Go on from this checkpoint of your run: no trial makes the steps before it.")]
    log: Annotated[PathLike | None, Option(
        kinds.FILE, "Log or metrics of a run that failed, which tell at which step; the first run goes on to it.")]
    prove: Annotated[Literal["from-start", "from-checkpoint"] | None, Option(
        kinds.PROOF, "After trials from a checkpoint: prove from step 0, too.",
        "if it takes no longer than the search")]
    until_failure: Annotated[bool, Option(
        SWITCH, "Let the first run go on until it fails.", "it ends after 100 steps and ten minutes")]
    max_disk: Annotated[float | None, Option(
        kinds.GIGABYTES, "What the first run's own checkpoints may take; 0: it saves none.", "a tenth of what is free")]
    longest_first: Annotated[bool, Option(
        SWITCH, "Take the longest rows of the dataset first, in every run.",
        "where memory runs out late, if it does so sooner with them")]
    isolate_data: Annotated[bool, Option(SWITCH, "Also find the rows of the dataset that make the step fail.")]


class Sure(TypedDict, total=False):
    """How sure, how long"""

    confirm: Annotated[int | None, Option(COUNT, "Runs of each claim of the answer.", "until no doubt is left")]
    confidence: Annotated[float, Option(
        kinds.SHARE, "How sure the answer must be if the failure is random.", default=0.95)]
    first: Annotated[bool, Option(SWITCH, "Stop at the first proven cause.")]
    max_seconds: Annotated[float | None, Option(kinds.SECONDS, "Start no trial after this many seconds.")]


class OfStudies(TypedDict, total=False):
    """How sure, how long"""

    max_trials: Annotated[int | None, Option(COUNT, "Stop after this many trials and report what is known.")]
    where: Annotated[bool, Option(SWITCH, "Skip the last run, which looks for the place of the failure.", default=True)]


class SafeValues(TypedDict, total=False):
    """Safe values"""

    recommend: Annotated[bool, Option(SWITCH, "Look for no safe values: stop when the cause is known.", default=True)]
    keep: Annotated[Names, Option(kinds.NAMES, "Prefer remedies that leave this setting as it is.")]
    verify_seeds: Annotated[int, Option(COUNT, "Runs of a verification, each with its own seed.", default=3)]
    verify_steps: Annotated[int | None, Option(
        COUNT, "Optimizer steps of a verification run.", "four times a trial's, at least 30")]
    margin: Annotated[float, Option(
        kinds.MARGIN, "How far to stay back from the last healthy value, of the way back to good.", default=0.5)]
    remedies: Annotated[int, Option(COUNT, "How many remedies to verify, the best first.", default=1)]
    environments: Annotated[bool, Option(
        SWITCH, "Build no environments to try cures that are other versions of packages.", default=True)]


class StudyFolder(TypedDict, total=False):
    """The study"""

    study: Annotated[PathLike | None, Option(kinds.FOLDER, "Study folder.", "bisect-cfg-studies/NAME")]
    restart: Annotated[bool, Option(SWITCH, "Begin a new study; the old one is kept beside it.")]
    storage: Annotated[str | None, Option(kinds.URL, "Optuna storage.", "SQLite in the study folder")]
    env_cache: Annotated[PathLike | None, Option(kinds.FOLDER, "Where environments are kept.", "beside the studies")]


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
        kinds.ODDS, "'risk' (by name), 'flat', or name -> odds (1 is ordinary, as are missing names).", default="risk")]
    loss: Annotated[Mapping[str, float] | None, Option(
        kinds.WEIGHTS, "What resetting a factor gives up, name -> weight (or 1): those of less are tried first.")]
    work: Annotated[Mapping[str, float] | None, Option(
        kinds.RATIOS, "By what a bad value multiplies a trial's duration, name -> ratio (or 1): cheap ones go first.")]
    is_failure: Annotated[Callable[..., bool] | None, Option(
        kinds.FUNCTION, "Whether a failing result is the failure under study.", "it has the bad one's signature")]
    on_event: Annotated[Callable[..., None] | None, Option(
        kinds.FUNCTION, "Called, where `run` was, with TrialStarted, TrialFinished, CauseFound, Resumed, Concluded.")]
    timeout: Annotated[float | None, Option(kinds.TIMEOUT, "Seconds until a function in a child counts as hanging.")]
    deterministic: Annotated[bool, Option(
        SWITCH, "Say that runs of one configuration do the same: what fails once fails always.")]
    identity: Annotated[Mapping[str, Any] | None, Option(
        kinds.MAPPING, "What tells this study from others, as JSON can hold it.", "the code of the function")]
    progress: Annotated[bool | None, Option(SWITCH, "Show progress in a notebook.", "unless there is `on_event`")]
    limits: Annotated[Any, Option(kinds.LIMITS, "In place of `max_trials` and `max_seconds`, for callers in here.")]
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


class Options(_Fields):  # type: ignore[misc, valid-type]  # made of the table, at run time
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

        own = {"failure": self.failure, "steps": self.steps, "only": sorted(self.only), "exclude": sorted(self.exclude)}
        rare = {
            "bad": settings(self.bad),
            "config_format": self.config_format,
            "good_packages": self.good_packages and hash_of(self.good_packages),
            "training": self.training,
            "from_checkpoint": self.from_checkpoint and str(self.from_checkpoint.absolute()),
        }
        own |= {name: value for name, value in rare.items() if value}
        return {"good": settings(self.good), "pin": sorted(map(as_given, self.pin)), **own}


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
