"""The two sides of a command: how they were given, and what differs between them.

They come from files (YAML, JSON, TOML, nested or flat) and single values after ``--good`` and ``--bad``, the bad one
also from the command itself. Where the bad side is a file and the good one single values, these are changes to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.configuration import RECORDED, UNSET, Configuration, Name, Value, difference, equal
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import hides
from bisect_cfg.targets.captured import NOTHING_SEEN
from bisect_cfg.targets.factors import Factor, Factors
from bisect_cfg.targets.good import Assignment, parse_assignment, read_config_file
from bisect_cfg.targets.interpreters import python_of
from bisect_cfg.targets.launch_settings import VARIABLE
from bisect_cfg.targets.packages import PACKAGE, checked_level, installed_by, named, read_packages, shown_levels
from bisect_cfg.targets.suggestions import left_out, naming_nothing
from bisect_cfg.targets.template import FORMATS, read_value, text_of

OWN = "script."
"""What the name of a program's own setting may begin with."""


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


@dataclass
class Levels:
    """Both sides while they are put together.

    Attributes:
        good, bad: name -> value.
        pinned: what is the same on both.
        spelled: name -> values, with their texts as they were typed.
        paths: name -> its keys in a configuration file.
        format: of the bad side's file, or else of the good one's; "" without a file.
    """

    good: dict[str, Value]
    bad: dict[str, Value]
    pinned: dict[str, Value]
    spelled: dict[str, list[tuple[Value, str]]]
    paths: dict[str, tuple[str, ...]]
    format: str


def read_levels(given: Given) -> Levels:
    """The sides as the user gives them; files are compared leaf by leaf.

    Raises:
        InputError: a file cannot be read, or a name is given twice.
    """
    spelled: dict[str, list[tuple[Value, str]]] = {}
    good_tree, good, good_format = _read(given.good, "--good", spelled)
    bad_tree, bad, bad_format = _read(given.bad, "--bad", spelled)
    _, pinned, _ = _read(given.pins, "--pin", spelled)
    paths = {".".join(path): path for path in _walk(good_tree or bad_tree or {}, bad_tree or {}, ())}
    good, bad = (
        {name: value for name, path in paths.items() if (value := _at(tree, path)) is not UNSET} | single
        for tree, single in ((good_tree or bad_tree, good), (bad_tree, bad))
    )
    paths = {name: tuple(name.split(".")) for name in {**good, **bad}} | paths
    return Levels(good, bad, pinned, spelled, paths, bad_format or good_format)


def _read(
    given: Sequence[Assignment], option: str, spelled: dict[str, list[tuple[Value, str]]]
) -> tuple[dict[str, Value] | None, dict[str, Value], str]:
    """What the files of one option hold (None without one), the single values, and the format of the last file."""
    tree, single, config_format = None, dict[str, Value](), ""
    for one in given:
        if isinstance(one, str) and "=" not in one:
            path = Path(one)
            if not path.is_file():
                raise InputError(f"There is no file {one}.", f"{option} takes a file or NAME=VALUE.")
            tree = {**(tree or {}), **read_config_file(path)}
            suffix = {".yml": "yaml"}.get(path.suffix, path.suffix.lstrip("."))
            config_format = suffix if suffix in FORMATS else ""
            continue
        name, value = parse_assignment(one, option, read_value)
        name = name.removeprefix(OWN)
        if name in single and not equal(single[name], value):
            raise InputError(f"{option} gives {name} twice.", "Give one value for each setting.")
        single[name] = value
        if isinstance(one, str):
            spelled.setdefault(name, []).append((value, one.partition("=")[2]))
    return tree, single, config_format


def _walk(left: Value, right: Value, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The keys of every setting of two trees: what is a mapping on one side and none on the other is one setting."""
    both = [side for side in (left, right) if side is not UNSET]
    if all(isinstance(side, dict) and (side or not above) for side in both):
        for key in {**(right if isinstance(right, dict) else {}), **(left if isinstance(left, dict) else {})}:
            first, second = (side.get(key, UNSET) if isinstance(side, dict) else UNSET for side in (left, right))
            yield from _walk(first, second, (*above, key))
    else:
        yield above


def _at(tree: Value, path: Sequence[str]) -> Value:
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return UNSET
        tree = tree[key]
    return tree


class Interpreter(NamedTuple):
    """The interpreter of a command ("" if that is not known); where packages vary, what it has installed (canonical
    name -> level), and ``packages.NAME`` -> good level, as uv takes it, of those that differ."""

    python: str = ""
    own: Mapping[str, str] = {}
    good: Mapping[str, str | None] = {}


def compare_packages(words: Sequence[str], levels: Levels, given: Given) -> Interpreter:
    """Find out which packages differ from those of a command's interpreter, and put them into both sides.

    Raises:
        InputError: the bad side names some; or they are to vary, and it is not known whose.
    """
    failing = next((name for name in levels.bad if name.startswith(PACKAGE)), None)
    if failing is not None:
        raise InputError(
            f"--bad {failing}: what fails is what is installed where the command runs.",
            "Name the version that works, with --good.",
        )
    good, pins = (
        {named(name): checked_level(name, side.pop(name)) for name in list(side) if name.startswith(PACKAGE)}
        for side in (levels.good, levels.pinned)
    )
    if not (good or pins or given.good_packages):
        if given.python is not None:
            raise InputError(
                "With a command of any kind --python says whose packages are varied, and none are.",
                "Name the interpreter in the command, or say what varies: --good-packages FILE.",
            )
        with contextlib.suppress(InputError):
            return Interpreter(python_of(words))
        return Interpreter()
    python = python_of(words, given.python)
    installed = installed_by(python)
    if given.good_packages is not None:
        there = read_packages(given.good_packages, installed)
        good = {**{PACKAGE + name: level for name, level in there.items()}, **good}
    own = {PACKAGE + name: level for name, level in installed.levels.items()}
    differ = {name: level for name, level in good.items() if level != own.get(name) and name not in pins}
    for name, level in differ.items():
        levels.good[name], levels.bad[name] = shown_levels(level, own.get(name))
    levels.pinned |= {name: level for name, level in pins.items() if level != own.get(name)}
    return Interpreter(python, installed.levels, differ)


def compare(levels: Levels, given: Given, packages: Mapping[str, str | None]) -> Factors:
    """What differs between two sides that are whole; pinned is what is the same in all trials.

    Args:
        levels: of both.
        given: what is to vary of them.
        packages: see `Interpreter.good`.

    Raises:
        InputError: nothing differs, or it cannot be varied.
    """
    _complete(levels)
    good, bad = levels.good, levels.bad
    factors = difference(good, bad)
    known = [factor.name for factor in factors]
    _refuse_values(good, bad, known)
    for option, name in naming_nothing(known, given.only, given.excluded):
        raise InputError(
            f"{option}: {name} does not differ between the good and the bad side.",
            f"Those that do: {', '.join(known)}." if known else "Nothing does.",
        )
    left = left_out(known, given.only, given.excluded)
    varied = tuple(
        Factor(name, _kind(name), one.good, one.bad, packages.get(name, one.good))
        for one in factors
        if (name := one.name) not in left
    )
    if not varied:
        what = "--only and --exclude leave nothing to vary" if left else "The good and the bad side do not differ"
        raise InputError(
            f"{what}.", "Give the values that fail with --bad or in the command, those that work with --good."
        )
    names = {factor.name for factor in varied}
    # A package that differs and is not varied is there as it is installed.
    fixed = {name: value for name, value in bad.items() if name not in names and name not in packages}
    return Factors(NOTHING_SEEN, varied, fixed, left)


def _kind(name: str) -> str:
    space = Name.of(name).space
    return space if space in ("env", "packages") else "script"


def _complete(levels: Levels) -> None:
    """Put into both sides what is pinned, and what the other one names; variables are text, or not set."""
    good, bad = levels.good, levels.bad
    good |= levels.pinned
    bad |= levels.pinned
    for name in (name for name in good if name.startswith(VARIABLE)):
        bad.setdefault(name, os.environ.get(name.removeprefix(VARIABLE), UNSET))
    for side in (good, bad):
        for name in (name for name in side if name.startswith(VARIABLE)):
            side[name] = UNSET if side[name] in (None, "", "none", UNSET) else text_of(side[name])
    for name in bad:
        good.setdefault(name, UNSET)


def _refuse_values(good: Configuration, bad: Configuration, varied: Sequence[str]) -> None:
    """Refuse names and values that no trial can have."""
    taken = sorted(RECORDED.intersection(varied))
    if taken:
        raise InputError(
            f"A setting cannot be called {taken[0]}: the table of trials has a column of that name.",
            "Give its place in the command, and the setting, another name.",
        )
    for name, value in (*good.items(), *bad.items()):
        if hides(name, value):
            raise InputError(
                f"{name} holds a secret, which the files of the trials would keep.",
                "Leave it out of the files and give it in the environment or in the command, which every trial has.",
            )
        if "\0" in str(value):
            raise InputError(f"{name} contains a NUL byte, which no command-line argument can.", "Leave it out.")
