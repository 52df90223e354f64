"""A command of any kind as the target of a study: what it runs, its two sides, and where their values go.

The sides come from files (YAML, JSON, TOML, nested or flat) and single values after ``--good`` and ``--bad``, the bad
one also from the command itself (see `bisect_cfg.targets.template`). Where the bad side is a file and the good one
single values, these are changes to the bad one. Of a Python program whose parsers were seen at work, the good side is
what they have as defaults, and what ``--good`` says besides.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.configuration import RECORDED, UNSET, Configuration, Factor, Value, difference, equal
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import digest
from bisect_cfg.probe.protocol import Event
from bisect_cfg.probe.redact import hides, mask_arguments
from bisect_cfg.store.inputs import hash_of
from bisect_cfg.targets.interpreters import modules_of, moved, python_of
from bisect_cfg.targets.launch_settings import VARIABLE
from bisect_cfg.targets.launchers import is_launcher
from bisect_cfg.targets.names import Assignment, left_out, naming_nothing, parse_assignment, read_config_file
from bisect_cfg.targets.own import Parsed, parsed_in
from bisect_cfg.targets.packages import (
    PACKAGE,
    checked_level,
    installed_by,
    named,
    read_packages,
    shown_levels,
)
from bisect_cfg.targets.template import (
    ALL_FLAGS,
    CONFIG,
    FLAGS,
    FOLDER,
    FORMATS,
    Spelling,
    Template,
    Typed,
    check_places,
    placeholders_in,
    read_value,
    text_of,
    times_given,
    typed_in,
)

_SHELLS = ("sh", "bash", "zsh", "dash", "env", "nohup", "nice", "time")
"""Programs after which a study is not called: what they start says more."""

OWN = "script."
"""What the name of a program's own setting may begin with."""

NO_PLACE = "it does not stand in the command, so no trial can give it another value; write {flags} there"
GIVEN_TWICE = "the command gives it more than once"


@dataclass(frozen=True)
class Given:
    """What the user says of a command: the options of the same names.

    Attributes:
        good: files and values of the good side.
        bad: of the bad one; what it does not name may stand in the command.
        pins: the same on both sides.
        only: if given, the only names that vary.
        excluded: names that do not.
        config_format: one of `FORMATS`; None: that of the file given.
        good_packages: a file that says what was installed where it worked.
        python: the interpreter whose packages vary; None: the one that the command names.
    """

    good: Sequence[Assignment] = ()
    bad: Sequence[Assignment] = ()
    pins: Sequence[Assignment] = ()
    only: Sequence[str] = ()
    excluded: Sequence[str] = ()
    config_format: str | None = None
    good_packages: Path | None = None
    python: str | None = None


@dataclass(frozen=True)
class Sides:
    """What differs between the good and the bad side of a command.

    Attributes:
        factors: in the order of the bad side.
        fixed: what is the same in all trials.
        not_varied: settings that differ and are left as the bad side has them, with the reason.
        packages: name of a package that varies -> its good level, as uv takes it.
    """

    factors: tuple[Factor, ...]
    fixed: Configuration
    not_varied: Mapping[str, str]
    packages: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def good(self) -> dict[str, Value]:
        """Factor name -> good value, `UNSET` where it is not set."""
        return {factor.name: factor.good for factor in self.factors}

    @property
    def bad(self) -> dict[str, Value]:
        """Factor name -> bad value, `UNSET` where it is not set."""
        return {factor.name: factor.bad for factor in self.factors}

    @property
    def resolved(self) -> Configuration:
        """What is set besides the factors."""
        return self.fixed

    def overrides(self, configuration: Configuration) -> dict[str, Value]:
        """The packages of a configuration that are not as the user has them, by name, as uv takes them."""
        values = {**self.fixed, **configuration}
        return {
            name: self.packages[name] if name in self.packages and equal(value, self.good[name]) else value
            for name, value in values.items()
            if name.startswith(PACKAGE) and not (name in self.packages and equal(value, self.bad[name]))
        }

    def work_of_each(self) -> dict[str, float]:
        """What a setting does to the duration of a trial: of a command nobody knows."""
        return {}


@dataclass(frozen=True)
class CommandTarget:
    """A command of any kind with two sides.

    Attributes:
        typed: its arguments as they were typed.
        path: the file that is run.
        template: what it becomes for a trial.
        sides: what varies.
        python: the interpreter whose packages it uses; "" if that is not known.
        own: what is installed there, where packages vary.
        first: whether its programs are first on PATH in all runs: of a command that does not name it.
    """

    typed: tuple[str, ...]
    path: Path
    template: Template
    sides: Sides
    python: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    first: bool = False

    @property
    def own_programs(self) -> dict[str, str]:
        """Environment variables of a run that has the user's own packages."""
        path = f"{os.path.dirname(self.python)}:{os.environ.get('PATH', os.defpath)}"
        return {"PATH": path} if self.first else {}

    @property
    def good_file(self) -> None:
        """None: what the sides are is part of the options."""
        return None

    @property
    def shown_arguments(self) -> list[str]:
        """The arguments as they may be written down and printed: without secrets."""
        return mask_arguments(self.typed[1:])

    @property
    def shown(self) -> str:
        """The command as it may be printed."""
        return shlex.join([self.typed[0], *self.shown_arguments])

    @property
    def name(self) -> str:
        """A short name for the study."""
        stem = Path(telling_word(self.typed)).stem or "command"
        return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem)[:40]

    def identity(self) -> dict[str, object]:
        """What makes this target this target; recorded with the study and compared when it is resumed."""
        scripts = (Path(name) for name in self.argument_files() if name.endswith(".py"))
        modules = [str(module) for script in scripts for module in modules_of(script)]
        return {
            "script": str(self.path),
            "arguments": self.shown_arguments,
            "python": self.python if self.own else "",
            "folder": os.getcwd(),
            "script_hash": hash_of(self.path),
            "good_file_hash": None,
            "files": {name: hash_of(Path(name)) for name in (*self.argument_files(), *modules)},
            **({"packages": digest(self.own)} if self.own else {}),
        }

    def argument_files(self) -> list[str]:
        """Files named in the command: scripts, data."""
        values = [word.partition("=")[2] or word for word in self.typed[1:]]
        return sorted({value for value in values if _is_file(value)})

    def complete(self, configuration: Configuration) -> dict[str, Value]:
        """All settings of a trial, the fixed ones included; what is not set is left out."""
        values = {**self.sides.fixed, **configuration}
        return {name: value for name, value in values.items() if value is not UNSET}

    def words(self, configuration: Configuration, config: str, folder: str, python: str | None = None) -> list[str]:
        """The command of a trial; see `Template.words`.

        Args:
            configuration: name -> value; what is missing is not set.
            config: path of its configuration file.
            folder: of the trial.
            python: interpreter of the environment that it runs in; None for the user's own.
        """
        words = self.template.words(self.settings(configuration), config, folder)
        return words if python is None else moved(words, self.python, python)

    def settings(self, configuration: Configuration) -> dict[str, Value]:
        """What a configuration gives to the program itself: no variables of its environment, and no packages."""
        return _placed(self.complete(configuration))

    def config(self, configuration: Configuration) -> str | None:
        """The content of the configuration file of a trial; None if it has none."""
        if CONFIG not in self.template.placeholders:
            return None
        return self.template.config(self.settings(configuration))

    def variables(self, configuration: Configuration) -> dict[str, str | None]:
        """Environment variables of a trial; None unsets one."""
        named = (factor.name for factor in self.sides.factors if factor.name.startswith(VARIABLE))
        values = {**dict.fromkeys(named), **self.complete(configuration)}
        return {
            name.removeprefix(VARIABLE): None if value is None else self.template.spelling.text(name, value)
            for name, value in values.items()
            if name.startswith(VARIABLE)
        }


def _placed(values: Configuration) -> dict[str, Value]:
    return {name: value for name, value in values.items() if not name.startswith((VARIABLE, PACKAGE))}


def telling_word(command: Sequence[str]) -> str:
    """The word of a command that says most about what it runs: no launcher, no shell, no flag."""
    words = [word for word in command if not word.startswith("-") and "{" not in word]
    telling = (word for word in words if not (is_launcher(word) or os.path.basename(word) in _SHELLS))
    return next(telling, words[0] if words else "")


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):
        return False


def is_any_command(words: Sequence[str], good: Sequence[Assignment], told: bool, found: bool) -> bool:
    """Whether a command is run as it stands, with its places filled in, and not as a training that is watched.

    Args:
        words: of the command.
        good: as given.
        told: whether an option says so (--bad, --config-format).
        found: whether it is a training script or a launcher that is known.
    """
    named = {one.partition("=")[0].strip() if isinstance(one, str) else one[0] for one in good}
    there = {name for word in words for name in placeholders_in(word)}
    return told or bool(there & {CONFIG, FLAGS, FOLDER, *named}) or not found


# ------------------------------------------------------------------------------------------------------ its two sides


def find_target(words: Sequence[str], given: Given, events: Sequence[Event] | None = None) -> CommandTarget:
    """What a command of any kind means as a target.

    Args:
        words: program and arguments.
        given: what the user says of it.
        events: of a watched run, which show what a Python program makes of its own settings; None: there was none.

    Raises:
        InputError: there is no such program, the sides do not differ, a setting has no place, or packages are to vary
            and it is not known whose.
    """
    program = shutil.which(words[0])
    if program is None:
        script = words[0].endswith(".py")
        raise InputError(
            f"There is no program {words[0]} that can be executed.",
            f"Give the whole command: -- python {words[0]} {{flags}}"
            if script
            else "Check its name, its path and its permissions.",
        )
    if not given.good and given.good_packages is None and events is None:
        raise InputError(
            "Nothing says with which values the command works.", "For example --good lr=1e-6, or --good good.yaml."
        )
    spelled: dict[str, list[tuple[Value, str]]] = {}
    good, bad = _Side(given.good, "--good", spelled), _Side(given.bad, "--bad", spelled)
    paths = _compare_files(good, bad)
    pinned = _Side(given.pins, "--pin", spelled).levels
    command = _without_variables(words, {**good.levels, **pinned}, bad.levels)
    parsed = parsed_in(events or (), good.levels)
    added, reasons = _take_in(parsed, words, good.levels, bad.levels)
    parts = _read_command(command, good.levels, bad.levels, pinned, spelled, parsed) + added
    installed = _packages_of(words, good.levels, bad.levels, pinned, given)
    _complete(good.levels, bad.levels, pinned)
    sides = _compared(good.levels, bad.levels, given, installed.levels)
    template = Template(parts, given.config_format or bad.format or good.format or "yaml", Spelling(spelled), paths)
    _check(template, [*(factor.name for factor in sides.factors), *pinned], good.levels, bad.levels)
    sides = Sides(sides.factors, sides.fixed, {**reasons, **sides.not_varied}, sides.packages)
    own, first = installed.own, given.python is not None
    return CommandTarget(tuple(words), Path(program).resolve(), template, sides, installed.python, own, first)


class _Side:
    """One side as it was given.

    Args:
        given: files and single values.
        option: after which they were given.
        spelled: takes up how values were typed.

    Attributes:
        format: of the last file, "" if there is none.
        tree: what the files hold, nested as they are; None if there is none.
        levels: name -> value; at first, the single values.
    """

    def __init__(self, given: Sequence[Assignment], option: str, spelled: dict[str, list[tuple[Value, str]]]) -> None:
        self.format = ""
        self.tree: dict[str, Value] | None = None
        self.levels: dict[str, Value] = {}
        for one in given:
            if isinstance(one, str) and "=" not in one:
                path = Path(one)
                if not path.is_file():
                    raise InputError(f"There is no file {one}.", f"{option} takes a file or NAME=VALUE.")
                self.tree = {**(self.tree or {}), **read_config_file(path)}
                suffix = {".yml": "yaml"}.get(path.suffix, path.suffix.lstrip("."))
                self.format = suffix if suffix in FORMATS else ""
                continue
            name, value = parse_assignment(one, option, read_value)
            name = name.removeprefix(OWN)
            if name in self.levels and not equal(self.levels[name], value):
                raise InputError(f"{option} gives {name} twice.", "Give one value for each setting.")
            self.levels[name] = value
            if isinstance(one, str):
                spelled.setdefault(name, []).append((value, one.partition("=")[2]))


def _compare_files(good: _Side, bad: _Side) -> dict[str, tuple[str, ...]]:
    """Put what the files hold into the levels of both sides, leaf by leaf; name -> keys of every setting there. What is
    a mapping on one side and none on the other is one setting."""
    if bad.tree is not None and good.tree is None:
        good.tree = {**bad.tree}
    paths = {".".join(path): path for path in _walk(good.tree or {}, bad.tree or {}, ())}
    for side in (good, bad):
        held = {name: value for name, path in paths.items() if (value := _at(side.tree, path)) is not UNSET}
        side.levels = {**held, **side.levels}
    return {name: tuple(name.split(".")) for name in {**good.levels, **bad.levels}} | paths


def _walk(left: Value, right: Value, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    both = [side for side in (left, right) if side is not UNSET]
    if all(isinstance(side, dict) and (side or not above) for side in both):
        for key in {**(right if isinstance(right, dict) else {}), **(left if isinstance(left, dict) else {})}:
            inner = (side.get(key, UNSET) if isinstance(side, dict) else UNSET for side in (left, right))
            yield from _walk(*inner, (*above, key))
    else:
        yield above


def _at(tree: Value, path: Sequence[str]) -> Value:
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return UNSET
        tree = tree[key]
    return tree


def _take_in(
    parsed: Parsed, words: Sequence[str], good: dict[str, Value], bad: dict[str, Value]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Complete both sides with a program's own settings that have a place: in its command, or in its environment.

    Returns:
        What the command has besides, where the good side gives what does not stand in it; name of a setting that is not
        varied -> why.
    """
    reasons, added = dict(parsed.pinned), ()
    for name, value in parsed.bad.items():
        default = parsed.good.get(name, UNSET)
        times = 1 if name.startswith(VARIABLE) else times_given(words, name, parsed.bad)
        if times == 1:
            bad[name] = value
            good.setdefault(name, default)
        elif name in good and default is not UNSET:  # the last value that a flag is given counts
            bad[name] = value
            added = (ALL_FLAGS,)
        elif not equal(value, default):
            reasons[name] = GIVEN_TWICE if times else NO_PLACE
    return added, reasons


def _read_command(
    words: Sequence[str],
    good: dict[str, Value],
    bad: dict[str, Value],
    pinned: Configuration,
    spelled: dict[str, list[tuple[Value, str]]],
    parsed: Parsed,
) -> tuple[str | Typed, ...]:
    """The arguments of a command, and in the bad side what it gives of what the good one names.

    Raises:
        InputError: it gives one value, and --bad another.
    """
    placed = {name for word in words for name in placeholders_in(word)}
    named = {name: value for name, value in good.items() if name not in placed}
    if placed & {CONFIG, FLAGS}:  # what both sides name goes there
        named = {name: value for name, value in good.items() if name not in bad}
    parts = typed_in(words, _placed({**named, **pinned}), parsed.bad)
    for part in parts:
        if isinstance(part, str):
            continue
        if not equal(bad.get(part.name, part.value), part.value):
            raise InputError(
                f"The command gives {part.name} as {text_of(part.value)}, and --bad as {text_of(bad[part.name])}.",
                "Say it once: what stands in the command is the bad value.",
            )
        bad[part.name] = part.value
        if part.text is not None:
            spelled.setdefault(part.name, []).append((part.value, part.text))
    return parts


class _Installed(NamedTuple):
    """What a command has to do with packages.

    Attributes:
        python: the interpreter that it runs; "" if that is not known.
        own: canonical name -> level, of all that is installed there, where packages vary.
        levels: ``packages.NAME`` -> the good level, as uv takes it.
    """

    python: str
    own: Mapping[str, str]
    levels: Mapping[str, str | None]


def _packages_of(
    words: Sequence[str], good: dict[str, Value], bad: dict[str, Value], pinned: dict[str, Value], given: Given
) -> _Installed:
    """Find out which packages differ, and put them into both sides.

    Raises:
        InputError: the bad side names some; or they are to vary, and it is not known whose.
    """
    failing = next((name for name in bad if name.startswith(PACKAGE)), None)
    if failing is not None:
        raise InputError(
            f"--bad {failing}: what fails is what is installed where the command runs.",
            "Name the version that works, with --good.",
        )
    levels, pins = (
        {named(name): checked_level(name, side.pop(name)) for name in list(side) if name.startswith(PACKAGE)}
        for side in (good, pinned)
    )
    if not (levels or pins or given.good_packages):
        if given.python is not None:
            raise InputError(
                "With a command of any kind --python says whose packages are varied, and none are.",
                "Name the interpreter in the command, or say what varies: --good-packages FILE.",
            )
        with contextlib.suppress(InputError):
            return _Installed(python_of(words), {}, {})
        return _Installed("", {}, {})
    python = python_of(words, given.python)
    installed = installed_by(python)
    if given.good_packages is not None:
        read = read_packages(given.good_packages, installed)
        levels = {f"{PACKAGE}{name}": level for name, level in read.items()} | levels
    own = installed.levels
    differ: dict[str, str | None] = {}
    for name, level in levels.items():
        here = own.get(name.removeprefix(PACKAGE))
        if level != here and name not in pins:
            differ[name] = level
            good[name], bad[name] = shown_levels(level, here)
    pinned |= {name: level for name, level in pins.items() if level != own.get(name.removeprefix(PACKAGE))}
    return _Installed(python, own, differ)


def _without_variables(words: Sequence[str], named: Configuration, bad: dict[str, Value]) -> list[str]:
    """A command without those variables that ``env`` sets in it and that are `named`, as it would set them back in each
    trial; they are given to the bad side."""
    kept = [words[0]]
    for place, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if os.path.basename(words[0]) != "env" or not equals:
            return [*kept, *words[place:]]
        if VARIABLE + name in named:
            bad.setdefault(VARIABLE + name, value)
        else:
            kept.append(word)
    return kept


def _complete(good: dict[str, Value], bad: dict[str, Value], pinned: Configuration) -> None:
    """Put into both sides what is the same on both, and what the other one names; variables are text, or not set."""
    good |= pinned
    bad |= pinned
    for name in (name for name in good if name.startswith(VARIABLE)):
        bad.setdefault(name, os.environ.get(name.removeprefix(VARIABLE), UNSET))
    for side in (good, bad):
        for name in (name for name in side if name.startswith(VARIABLE)):
            side[name] = UNSET if side[name] in (None, "", "none", UNSET) else text_of(side[name])
    for name in bad:
        good.setdefault(name, UNSET)


def _compared(good: Configuration, bad: Configuration, given: Given, levels: Mapping[str, str | None]) -> Sides:
    factors = difference(good, bad)
    taken = sorted(RECORDED.intersection(factor.name for factor in factors))
    if taken:
        raise InputError(
            f"A setting cannot be called {taken[0]}: the table of trials has a column of that name.",
            "Give its place in the command, and the setting, another name.",
        )
    known = [factor.name for factor in factors]
    for option, name in naming_nothing(known, given.only, given.excluded):
        raise InputError(
            f"{option}: {name} does not differ between the good and the bad side.",
            f"Those that do: {', '.join(known)}." if known else "Nothing does.",
        )
    left = left_out(known, given.only, given.excluded)
    secret = next((name for side in (good, bad) for name, value in side.items() if hides(name, value)), None)
    if secret is not None:
        raise InputError(
            f"{secret} holds a secret, which the files of the trials would keep.",
            "Leave it out of the files and give it in the environment or in the command, which every trial has.",
        )
    if any("\0" in str(value) for side in (good, bad) for value in side.values()):
        raise InputError("A value contains a NUL byte, which no command-line argument can.", "Leave it out.")
    varied = tuple(factor for factor in factors if factor.name not in left)
    if not varied:
        what = "--only and --except leave nothing to vary" if left else "The good and the bad side do not differ"
        raise InputError(
            f"{what}.", "Give the values that fail with --bad or in the command, those that work with --good."
        )
    names = {factor.name for factor in varied}
    # A package that differs and is not varied is there as it is installed.
    fixed = {name: value for name, value in bad.items() if name not in names and name not in levels}
    return Sides(varied, fixed, left, {name: level for name, level in levels.items() if name in names})


def _check(template: Template, names: Sequence[str], good: Configuration, bad: Configuration) -> None:
    check_places(template, names, [*good, *bad], [name for name in names if name.startswith((VARIABLE, PACKAGE))])
    for name in sorted(template.placeholders - {CONFIG, FLAGS, FOLDER}):
        for side, levels in (("good", good), ("bad", bad)):
            if levels.get(name, UNSET) is UNSET:
                raise InputError(
                    f"The command has {{{name}}}, and the {side} side gives no value for {name}.",
                    f"Give one with --{side} {name}=..., or use {{flags}}, which leaves out what is not set.",
                )
