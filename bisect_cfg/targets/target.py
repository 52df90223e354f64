"""A command of any kind as the target of a study: what it runs, its two sides, and where their values go.

The sides come from files (YAML, JSON, TOML, nested or flat) and single values after ``--good`` and ``--bad``, and the
bad one also from the command itself (see `bisect_cfg.targets.template`). Where the bad side is a file and the good one
single values, these are changes to the bad one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.configuration import RECORDED, UNSET, Configuration, Factor, Value, difference, equal
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import digest
from bisect_cfg.probe.redact import hides, mask_arguments
from bisect_cfg.store.inputs import hash_of
from bisect_cfg.targets.distributions import (
    PACKAGE,
    checked_level,
    installed_by,
    named,
    read_packages,
    shown_levels,
)
from bisect_cfg.targets.interpreters import modules_of, moved, python_of
from bisect_cfg.targets.launch_settings import VARIABLE
from bisect_cfg.targets.launchers import is_launcher
from bisect_cfg.targets.names import Assignment, left_out, naming_nothing, parse_assignment, read_config_file
from bisect_cfg.targets.template import (
    CONFIG,
    FLAGS,
    FOLDER,
    Spelling,
    Template,
    check_places,
    placeholders_in,
    presets,
    read_value,
    styles,
    text_of,
    typed_in,
)

FORMATS = ("yaml", "json", "toml")

_SHELLS = ("sh", "bash", "zsh", "dash", "env", "nohup", "nice", "time")
"""Programs after which a study is not called: what they start says more."""

_TOLD = "For example --good lr=1e-6, or --good good.yaml."


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
        return {
            "script": str(self.path),
            "arguments": self.shown_arguments,
            "python": self.python if self.own else "",
            "folder": os.getcwd(),
            "script_hash": hash_of(self.path),
            "good_file_hash": None,
            "files": {name: hash_of(Path(name)) for name in (*self.argument_files(), *self._modules())},
            **({"packages": digest(self.own)} if self.own else {}),
        }

    def argument_files(self) -> list[str]:
        """Files named in the command: scripts, data."""
        values = [word.partition("=")[2] or word for word in self.typed[1:]]
        return sorted({value for value in values if _is_file(value)})

    def _modules(self) -> list[str]:
        """What the Python scripts in the command import from beside them."""
        scripts = (Path(name) for name in self.argument_files() if name.endswith(".py"))
        return [str(module) for script in scripts for module in modules_of(script)]

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
        told: whether an option says so (--bad, --preset, --flag-style, --config-format).
        found: whether it is a training script or a launcher that is known.
    """
    named = {one.partition("=")[0].strip() if isinstance(one, str) else one[0] for one in good}
    there = {name for word in words for name in placeholders_in(word)}
    return told or bool(there & {CONFIG, FLAGS, FOLDER, *named}) or not found


# ------------------------------------------------------------------------------------------------------ its sides


def find_target(
    words: Sequence[str],
    *,
    good: Sequence[Assignment],
    bad: Sequence[Assignment] = (),
    pins: Sequence[Assignment] = (),
    only: Sequence[str] = (),
    excluded: Sequence[str] = (),
    preset: str | None = None,
    flag_style: str | None = None,
    config_format: str | None = None,
    good_packages: Path | None = None,
    python: str | None = None,
) -> CommandTarget:
    """What a command of any kind means as a target.

    Args:
        words: program and arguments.
        good: files and values of the good side.
        bad: of the bad one; what it does not name may stand in the command.
        pins: the same on both sides.
        only: if given, the only names that vary.
        excluded: names that do not.
        preset: name of the trainer whose command it is; None: none that is known.
        flag_style: name of a style; None: the preset's, or argparse.
        config_format: "yaml", "json" or "toml"; None: the preset's, or that of the file given.
        good_packages: a file that says what was installed where it worked.
        python: the interpreter whose packages vary; None: the one that the command names.

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
    known = presets().get(preset) if preset else None
    style = flag_style or (known.flag_style if known else "argparse")
    if not good and good_packages is None:
        raise InputError("Nothing says with which values the command works.", _TOLD)
    typed_words, named_file = tuple(words), None
    if known is not None and known.config_format:
        named_file = _configured_by(words, bad)
    if named_file is not None:  # as its trainer wants it: the file is the bad side, what stands behind it wins
        words = [f"{{{CONFIG}}}" if word == named_file else word for word in words]
        bad = [named_file, *bad]
    spelled: dict[str, list[tuple[Value, str]]] = {}
    sides = _Files(good, "--good", spelled), _Files(bad, "--bad", spelled)
    low, high = sides
    if high.path is not None and low.path is None:
        low.tree = {**high.tree}
    paths = _leaves(low.tree, high.tree)
    good_side, bad_side = (
        {name: value for name, path in paths.items() if (value := _at(side.tree, path)) is not UNSET} for side in sides
    )
    for side, levels in ((low, good_side), (high, bad_side)):
        for name, value in side.single.items():
            paths.setdefault(name, tuple(name.split(".")))
            levels[name] = value
    pinned = _Files(pins, "--pin", spelled).single
    wanted = {name: value for name, value in good_side.items() if name not in bad_side}
    placed = {name for word in words for name in placeholders_in(word)}
    if named_file is not None or not placed & {CONFIG, FLAGS}:  # then what both sides name may stand in the command
        wanted = {name: value for name, value in good_side.items() if name not in placed}
    parts = typed_in(words, _placed({**wanted, **pinned}), styles()[style])
    for part in parts:
        if not isinstance(part, str):
            if named_file is None and not equal(bad_side.get(part.name, part.value), part.value):
                raise InputError(
                    f"The command gives {part.name} as {text_of(part.value)}, and --bad as "
                    f"{text_of(bad_side[part.name])}.",
                    "Say it once: what stands in the command is the bad value.",
                )
            bad_side[part.name] = part.value
            text = part.words[-1] if not part.before else part.words[0].removeprefix(part.before)
            if not part.switch:
                spelled.setdefault(part.name, []).append((part.value, text))
    installed = _packages_of(words, good_side, bad_side, pinned, good_packages, python)
    good_side |= pinned
    bad_side |= pinned
    for name in (name for name in good_side if _of_variable(name)):
        bad_side.setdefault(name, os.environ.get(name.removeprefix(VARIABLE), UNSET))
    for levels in (good_side, bad_side):
        for name, value in levels.items():
            if _of_variable(name):
                levels[name] = UNSET if value in (None, "", UNSET) else text_of(value)
    good_side = {name: good_side.get(name, UNSET) for name in {**bad_side, **good_side}}
    fmt = config_format or _suffix(high.path or low.path) or (known.config_format if known else "") or "yaml"
    spelling = Spelling({name: tuple(values) for name, values in spelled.items()})
    template = Template(parts, styles()[style], fmt, spelling, paths)
    compared = _compared(good_side, bad_side, only, excluded)
    varied = {name: level for name, level in installed.levels.items() if name in compared.good}
    as_installed = installed.levels.keys() - varied.keys()
    fixed = {name: value for name, value in compared.fixed.items() if name not in as_installed}
    compared = replace(compared, fixed=fixed, packages=varied)
    _check(template, [*(factor.name for factor in compared.factors), *pinned], good_side, bad_side)
    return CommandTarget(
        typed_words, Path(program).resolve(), template, compared, installed.python, installed.own, python is not None
    )


def _configured_by(words: Sequence[str], bad: Sequence[Assignment]) -> str | None:
    """The configuration file that a command names, where it names one and the bad side none."""
    if any(isinstance(one, str) and "=" not in one for one in bad):
        return None
    files = [word for word in words[1:] if _suffix(Path(word)) and _is_file(word)]
    return files[0] if len(files) == 1 else None


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
    words: Sequence[str],
    good: dict[str, Value],
    bad: dict[str, Value],
    pinned: dict[str, Value],
    path: Path | None,
    python: str | None,
) -> _Installed:
    """Find out which packages differ, and put them into both sides.

    Raises:
        InputError: the bad side names some; or they are to vary, and it is not known whose.
    """
    given = next((name for name in bad if name.startswith(PACKAGE)), None)
    if given is not None:
        raise InputError(
            f"--bad {given}: what fails is what is installed where the command runs.",
            "Name the version that works, with --good.",
        )
    levels = {named(name): checked_level(name, good.pop(name)) for name in list(good) if name.startswith(PACKAGE)}
    pins = {named(name): checked_level(name, pinned.pop(name)) for name in list(pinned) if name.startswith(PACKAGE)}
    if not (levels or pins or path):
        if python is not None:
            raise InputError(
                "With a command of any kind --python says whose packages are varied, and none are.",
                "Name the interpreter in the command, or say what varies: --good-packages FILE.",
            )
        with contextlib.suppress(InputError):
            return _Installed(python_of(words), {}, {})
        return _Installed("", {}, {})
    python = python_of(words, python)
    installed = installed_by(python)
    if path is not None:
        levels = {f"{PACKAGE}{name}": level for name, level in read_packages(path, installed).items()} | levels
    own = installed.levels
    differ: dict[str, str | None] = {}
    for name, level in levels.items():
        here = own.get(name.removeprefix(PACKAGE))
        if level != here and name not in pins:
            differ[name] = level
            good[name], bad[name] = shown_levels(level, here)
    pinned |= {name: level for name, level in pins.items() if level != own.get(name.removeprefix(PACKAGE))}
    return _Installed(python, own, differ)


def _compared(good: Configuration, bad: Configuration, only: Sequence[str], excluded: Sequence[str]) -> Sides:
    factors = difference(good, bad)
    taken = sorted(RECORDED.intersection(factor.name for factor in factors))
    if taken:
        raise InputError(
            f"A setting cannot be called {taken[0]}: the table of trials has a column of that name.",
            "Give its place in the command, and the setting, another name.",
        )
    known = [factor.name for factor in factors]
    for option, name in naming_nothing(known, only, excluded):
        raise InputError(
            f"{option}: {name} does not differ between the good and the bad side.",
            f"Those that do: {', '.join(known)}." if known else "Nothing does.",
        )
    left = left_out(known, only, excluded)
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
    return Sides(varied, {name: value for name, value in bad.items() if name not in names}, left)


def _check(template: Template, names: Sequence[str], good: Configuration, bad: Configuration) -> None:
    check_places(template, names, [*good, *bad], [name for name in names if name.startswith((VARIABLE, PACKAGE))])
    for name in sorted(template.placeholders - {CONFIG, FLAGS, FOLDER}):
        for side, levels in (("good", good), ("bad", bad)):
            if levels.get(name, UNSET) is UNSET:
                raise InputError(
                    f"The command has {{{name}}}, and the {side} side gives no value for {name}.",
                    f"Give one with --{side} {name}=..., or use {{flags}}, which leaves out what is not set.",
                )


def _of_variable(name: str) -> bool:
    return name.startswith(VARIABLE)


def _suffix(path: Path | None) -> str:
    found = "" if path is None else {".yml": "yaml"}.get(path.suffix, path.suffix.lstrip("."))
    return found if found in FORMATS else ""


class _Files:
    """One side as it was given.

    Args:
        given: files and single values.
        option: after which they were given.
        spelled: takes up how values were typed.

    Attributes:
        path: the last file; None if there is none.
        tree: what the files hold, nested as they are.
        single: the single values.
    """

    def __init__(self, given: Sequence[Assignment], option: str, spelled: dict[str, list[tuple[Value, str]]]) -> None:
        self.path: Path | None = None
        self.tree: dict[str, Value] = {}
        self.single: dict[str, Value] = {}
        for one in given:
            if isinstance(one, str) and "=" not in one:
                self.path = Path(one)
                if not self.path.is_file():
                    raise InputError(f"There is no file {one}.", f"{option} takes a file or NAME=VALUE.")
                self.tree |= read_config_file(self.path)
                continue
            name, value = parse_assignment(one, option, read_value)
            if name in self.single and not equal(self.single[name], value):
                raise InputError(f"{option} gives {name} twice.", "Give one value for each setting.")
            self.single[name] = value
            if isinstance(one, str):
                spelled.setdefault(name, []).append((value, one.partition("=")[2]))


def _leaves(left: Mapping[str, Value], right: Mapping[str, Value]) -> dict[str, tuple[str, ...]]:
    """Name -> keys of every setting of two nested mappings: what is a mapping on one side and none on the other is one
    setting."""
    return {".".join(path): path for path in _walk(left, right, ())}


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
