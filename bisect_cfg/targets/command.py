"""A command of any kind as the target of a study: what it runs, its two sides, and where their values go.

Of a Python program whose parsers were seen at work, the good side is what they have as defaults, and what ``--good``
says besides. See `bisect_cfg.targets.sides` for the others, and `bisect_cfg.targets.template` for the places.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.configuration import UNSET, Configuration, Value, equal
from bisect_cfg.common.json_files import digest, make_folder, write_json, write_text
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import Event
from bisect_cfg.probe.redact import mask_arguments, scrub
from bisect_cfg.store.inputs import hash_of
from bisect_cfg.store.state import TargetIdentity
from bisect_cfg.targets.captured import Source
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.good import Assignment
from bisect_cfg.targets.interpreters import modules_of, moved
from bisect_cfg.targets.launch_settings import VARIABLE
from bisect_cfg.targets.launchers import is_launcher
from bisect_cfg.targets.packages import PACKAGE
from bisect_cfg.targets.parsed import Parsed, parsed_in
from bisect_cfg.targets.pinned import why_own
from bisect_cfg.targets.shell_line import is_masked, shell_line
from bisect_cfg.targets.sides import Given, Levels, compare, compare_packages, read_levels
from bisect_cfg.targets.template import (
    ALL_FLAGS,
    CONFIG,
    FLAGS,
    FOLDER,
    Template,
    Typed,
    check_places,
    placeholders_in,
    read_value,
    text_of,
    typed_in,
)

_SHELLS = ("sh", "bash", "zsh", "dash", "env", "nohup", "nice", "time")
"""Programs after which a study is not called: what they start says more."""

NO_PLACE = "it does not stand in the command, so no trial can give it another value"
GIVEN_TWICE = "the command gives it more than once"


class ByHand(NamedTuple):
    """How a configuration is run by hand: the line for a shell, and the name and text of the file that it names."""

    line: str
    file: tuple[str, str] | None


class Started(NamedTuple):
    """What starts a trial: its words, the environment variables that it sets or (None) unsets, and the line for a shell
    that does the same again."""

    words: list[str]
    variables: Mapping[str, str | None]
    by_hand: str


@dataclass(frozen=True)
class CommandTarget:
    """A command of any kind with two sides.

    Attributes:
        typed: its arguments as they were typed.
        path: the file that is run.
        template: what it becomes for a trial.
        factors: what varies.
        python: the interpreter whose packages it uses; "" if that is not known.
        own: what is installed there, where packages vary.
        first: whether its programs are first on PATH in all runs: of a command that does not name it.
        other: the interpreter of another environment that it runs in; "" for the user's own.
    """

    probed, trains, launcher, what = False, False, "", "command"
    good_file = program = launch = notebook = None  # what the sides are is part of the options
    arguments = notes = ()

    typed: tuple[str, ...]
    path: Path
    template: Template
    factors: Factors
    python: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    first: bool = False
    other: str = ""

    @property
    def command(self) -> list[str]:
        """As it was typed, with the programs of its environment."""
        return moved(self.typed, self.python, self.other) if self.other else list(self.typed)

    @property
    def variables(self) -> dict[str, str]:
        """None: what stands in front of a command is a part of it."""
        return {}

    @property
    def shown_arguments(self) -> list[str]:
        """The arguments as they may be written down and printed: without secrets."""
        return list(mask_arguments(self.typed[1:]))

    @property
    def shown(self) -> str:
        """The command as it may be printed."""
        return shlex.join([self.typed[0], *self.shown_arguments])

    @property
    def name(self) -> str:
        """A short name for the study."""
        stem = Path(telling_word(self.typed)).stem or "command"
        return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem)[:40]

    def identity(self) -> TargetIdentity:
        """What makes this target this target; recorded with the study and compared when it is resumed."""
        scripts = (Path(name) for name in self.argument_files() if name.endswith(".py"))
        modules = [str(module) for script in scripts for module in modules_of(script)]
        identity: TargetIdentity = {
            "script": str(self.path),
            "arguments": self.shown_arguments,
            "python": self.python if self.own else "",
            "folder": os.getcwd(),
            "script_hash": hash_of(self.path),
            "good_file_hash": None,
            "files": {name: hash_of(Path(name)) for name in (*self.argument_files(), *modules)},
        }
        if self.own:
            identity["packages"] = digest(self.own)
        return identity

    def argument_files(self) -> list[str]:
        """Files named in the command: scripts, data."""
        values = [word.partition("=")[2] or word for word in self.typed[1:]]
        return sorted({value for value in values if _is_file(value)})

    def complete(self, configuration: Configuration) -> dict[str, Value]:
        """All settings of a trial, the fixed ones included; what is not set is left out."""
        values = {**self.factors.pins, **configuration}
        return {name: value for name, value in values.items() if value is not UNSET}

    def written_in(self, folder: Path, *, masked: bool = False) -> CommandTarget:
        """Itself: its files are those of its trials."""
        return self

    def under(self, python: str) -> CommandTarget:
        """The same in the environment of another interpreter."""
        return replace(self, other=python)

    def words(self, configuration: Configuration, config: str, folder: str) -> list[str]:
        """The command of a trial; see `Template.words`.

        Args:
            configuration: name -> value; what is missing is not set.
            config: path of its configuration file.
            folder: of the trial.
        """
        words = self.template.words(self.settings(configuration), config, folder)
        return moved(words, self.python, self.other) if self.other else words

    def settings(self, configuration: Configuration) -> dict[str, Value]:
        """What a configuration gives to the program itself: no variables of its environment, and no packages."""
        return _placed(self.complete(configuration))

    def config(self, configuration: Configuration) -> str | None:
        """The content of the configuration file of a trial; None if it has none."""
        if CONFIG not in self.template.placeholders:
            return None
        return self.template.config(self.settings(configuration))

    def environment(self, configuration: Configuration) -> dict[str, str | None]:
        """Environment variables of a trial; None unsets one."""
        named = (factor.name for factor in self.factors.varied if factor.name.startswith(VARIABLE))
        values = {**dict.fromkeys(named), **self.complete(configuration)}
        return {
            name.removeprefix(VARIABLE): None if value is None else self.template.text(name, value)
            for name, value in values.items()
            if name.startswith(VARIABLE)
        }

    def by_hand(self, configuration: Configuration) -> ByHand:
        """How a configuration is run by hand, in a folder called FOLDER."""
        name, text = f"config.{self.template.config_format}", self.config(configuration)
        line = _line(self.environment(configuration), self.words(configuration, name, "FOLDER"))
        return ByHand(line, None if text is None else (name, scrub(text)))

    def started(
        self, configuration: Configuration, folder: Path, given: Mapping[str, str], device: str | None
    ) -> Started:
        """What starts a trial in a folder. Its files are written there.

        Args:
            configuration: name -> value; what is missing is not set.
            folder: of the trial.
            given: environment variables of the environment that it runs in.
            device: that it alone has; None: all that we see.
        """
        output, again = folder / "output", folder / "by-hand"
        for path in (output, again):
            make_folder(path)
        write_json(folder / "configuration.json", self.complete(configuration))
        config, text = str(folder / f"config.{self.template.config_format}"), self.config(configuration)
        if text is not None:
            write_text(Path(config), text)
        own = {"PATH": f"{os.path.dirname(self.python)}:{os.environ.get('PATH', os.defpath)}"}
        variables = {**(own if self.first and not self.other else {}), **given, **self.environment(configuration)}
        variables |= {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        shown = {name: value for name, value in variables.items() if value is None or not is_masked(name, value)}
        line = _line(shown, self.words(configuration, config, str(again)))
        return Started(self.words(configuration, config, str(output)), variables, line)


def _line(variables: Mapping[str, str | None], words: Sequence[str]) -> str:
    """A command for a shell with variables that it sets or (None) unsets."""
    gone = [word for name, value in variables.items() if value is None for word in ("-u", name)]
    env = [*gone, *(f"{name}={value}" for name, value in variables.items() if value is not None)]
    return shell_line([*(["env", *env] if env else []), *words])


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
        python = words[0].endswith(".py")
        advice = f"Give the whole command: -- python {words[0]} {{flags}}" if python else "Check its name and its path."
        raise InputError(f"There is no program {words[0]} that can be executed.", advice)
    if not given.good and given.good_packages is None and events is None:
        raise InputError(
            "Nothing says with which values the command works.", "For example --good lr=1e-6, or --good good.yaml."
        )
    levels = read_levels(given)
    command = _without_variables(words, levels)
    parsed = parsed_in(events or (), levels.good)
    added, reasons = _take_in(parsed, words, levels)
    parts = _read_command(command, levels, parsed) + added
    interpreter = compare_packages(words, levels, given)
    factors = compare(levels, given, interpreter.good)
    config_format = given.config_format or levels.format or "yaml"
    flags = {name: flags[-1] for name, flags in parsed.flags.items() if flags}
    template = Template(parts, config_format, levels.spelled, levels.paths, flags)
    names = [name for name in (*factors.bad, *levels.pinned) if not name.startswith((VARIABLE, PACKAGE))]
    check_places(template, names, levels.good, levels.bad)
    named = {*levels.good, *levels.bad, *levels.pinned, *reasons}
    unnamed = {name: why for name, why in _as_typed(parts) if name not in named}
    factors = replace(factors, pinned={**reasons, **unnamed, **factors.pinned})
    path, first = Path(program).resolve(), given.python is not None
    return CommandTarget(tuple(words), path, template, factors, interpreter.python, interpreter.own, first)


def _as_typed(parts: Sequence[str | Typed]) -> Iterator[tuple[str, str]]:
    """The settings that stand in a command, no side names and so no trial varies, with the reason."""
    words = [part if isinstance(part, str) else "-" for part in (*parts[1:], "-")]
    for word, following in pairwise(words):
        flag, equals, text = word.partition("=")
        name = flag.lstrip("-+").replace("-", "_")
        if len(name) < 2 or not (equals or flag.startswith("--")) or not name.replace(".", "").isidentifier():
            continue
        value = read_value(text) if equals else following.startswith("-") or read_value(following)
        if not placeholders_in(str(value)):
            yield name, why_own(Source("script", 0, "", "", {name: value}, {}, {}, {}), name, ())


def _without_variables(words: Sequence[str], levels: Levels) -> list[str]:
    """A command without those variables that ``env`` sets in it and the user names, as it would set them back in each
    trial; they are given to the bad side."""
    kept = [words[0]]
    for place, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if os.path.basename(words[0]) != "env" or not equals:
            return [*kept, *words[place:]]
        if VARIABLE + name in {**levels.good, **levels.pinned}:
            levels.bad.setdefault(VARIABLE + name, value)
        else:
            kept.append(word)
    return kept


def _take_in(parsed: Parsed, words: Sequence[str], levels: Levels) -> tuple[tuple[str, ...], dict[str, str]]:
    """Complete both sides with a program's own settings that have a place: in its command, or in its environment.

    Returns:
        What the command has besides, where the good side gives what does not stand in it; name of a setting that is not
        varied -> why.
    """
    reasons: dict[str, str] = dict(parsed.pinned)
    added: tuple[str, ...] = ()
    for name, value in parsed.bad.items():
        default = parsed.good.get(name, UNSET)
        times = 1 if name.startswith(VARIABLE) else parsed.times_given(words, name)
        if times == 1:
            levels.bad[name] = value
            levels.good.setdefault(name, default)
        elif name in levels.good and default is not UNSET:  # the last value that a flag is given counts
            levels.bad[name] = value
            added = (ALL_FLAGS,)
        elif not equal(value, default):
            reasons[name] = GIVEN_TWICE if times else NO_PLACE
    return added, reasons


def _read_command(words: Sequence[str], levels: Levels, parsed: Parsed) -> tuple[str | Typed, ...]:
    """The arguments of a command, and in the bad side what it gives of what the good one names.

    Raises:
        InputError: it gives one value, and --bad another.
    """
    good, bad = levels.good, levels.bad
    placed = {name for word in words for name in placeholders_in(word)}
    elsewhere = bad if placed & {CONFIG, FLAGS} else placed  # what both sides name goes there
    named = {name: value for name, value in good.items() if name not in elsewhere}
    parts = typed_in(words, _placed({**named, **levels.pinned}), parsed)
    for part in (part for part in parts if isinstance(part, Typed)):
        if not equal(bad.get(part.name, part.value), part.value):
            raise InputError(
                f"The command gives {part.name} as {text_of(part.value)}, and --bad as {text_of(bad[part.name])}.",
                "Say it once: what stands in the command is the bad value.",
            )
        bad[part.name] = part.value
        if part.text is not None:
            levels.spelled.setdefault(part.name, []).append((part.value, part.text))
    return parts
