"""A command with places for settings in it, and what it becomes for a trial.

Only these ``{words}`` are replaced; ``{{`` is a brace, and every other brace is text:

    {config}   the path of a file, written for the trial, with the settings that have no place of their own
    {flags}    the same settings as argparse reads them: ``--name value``, a true switch as ``--name``, a false one not
    {name}     the value of one setting
    {folder}   the trial's own folder, empty, where the command can write

A setting can also stand in the command as it was typed (``--lr 1e-3``, ``--lr=1e-3``, ``--bf16``, ``lr=1e-3``): then
that is its bad value, and the place where trials put another one.

Arguments are a list from beginning to end, and no shell reads them: what a value holds reaches the program as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bisect_cfg.common.configuration import UNSET, Configuration, Value, equal
from bisect_cfg.common.words import number_of
from bisect_cfg.errors import InputError
from bisect_cfg.targets.parsed import NOTHING, Parsed

CONFIG, FLAGS, FOLDER = "config", "flags", "folder"
"""Words that stand for something else than a setting."""

ALL_FLAGS = "{flags}"

FORMATS = ("yaml", "json", "toml")
"""Of a configuration file."""

_PLACEHOLDER = re.compile(r"\{\{|\{([^\W\d][\w.\-/]*)\}")
_WORDS = {"true": True, "false": False, "none": None, "null": None, "~": None}


def read_value(text: str) -> Value:
    """A value as typed for a command: a number, true, false, none, a list or mapping in brackets; else the text itself,
    as it is."""
    number = number_of(text) if text == text.strip() else None
    if number is not None:
        return number
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def text_of(value: Value) -> str:
    """A value as an argument: a text as it is, true and false, a number with all its digits, JSON for a list."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, list, dict)) or value is None:
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def flag_of(flag: str, value: Value, text: str) -> list[str]:
    """A flag as argparse reads it; [] where it is to be left out.

    Args:
        flag: with its dashes.
        value: of the setting.
        text: that value as text.
    """
    if value is UNSET or value is None or value is False:
        return []
    if value is True:
        return [flag]
    return [flag, *map(text_of, value)] if isinstance(value, list) else [flag, text]


Spelled = Mapping[str, Sequence[tuple[Value, str]]]
"""Name of a setting -> its values, each with its text as it was typed: ``1e-3`` is a number to us, and the program gets
what was written."""


def typed_text(spelled: Spelled, name: str, value: Value) -> str:
    """The text of a value, as it was typed if it was."""
    return next((text for known, text in spelled.get(name, ()) if equal(known, value)), text_of(value))


@dataclass(frozen=True)
class Typed:
    """A setting that stands in the command as it was typed.

    Attributes:
        name: of the setting.
        words: the arguments that give it.
        value: that they give it.
        before: what stands in front of the value in the same argument (``--lr=``); "" for an argument of its own.
        switch: whether it is a flag alone, which is left out for another truth value.
    """

    name: str
    words: tuple[str, ...]
    value: Value
    before: str = ""
    switch: bool = False

    @property
    def text(self) -> str | None:
        """The text of its value; None where it has none of its own."""
        if self.switch or len(self.words) > 2:
            return None
        return self.words[0].removeprefix(self.before) if self.before else self.words[-1]

    def put(self, value: Value, spelled: Spelled) -> list[str]:
        """The arguments with another value; none if it is not set."""
        if equal(value, self.value):
            return list(self.words)
        if value is UNSET or value is None or (self.switch and isinstance(value, bool)):
            return []
        text = typed_text(spelled, self.name, value)
        if self.before:
            return [self.before + text]
        return [self.words[0], *map(text_of, value)] if isinstance(value, list) else [self.words[0], text]


@dataclass(frozen=True)
class Template:
    """A command with places in it.

    Attributes:
        parts: its arguments in their order: text with placeholders, or settings as they were typed.
        config_format: "yaml", "json" or "toml".
        spelled: how values were typed.
        paths: name of a setting -> its keys in a configuration file; a name that is missing is one key.
        flags: name of a setting -> its flag in {flags}, where that is not ``--name``.
    """

    parts: tuple[str | Typed, ...]
    config_format: str
    spelled: Spelled
    paths: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def placeholders(self) -> frozenset[str]:
        """The words in braces that its text has."""
        texts = (part for part in self.parts if isinstance(part, str))
        return frozenset(name for text in texts for name in placeholders_in(text))

    @property
    def typed(self) -> frozenset[str]:
        """Settings that stand in it as they were typed."""
        return frozenset(part.name for part in self.parts if isinstance(part, Typed))

    def text(self, name: str, value: Value) -> str:
        """The text of a value, as it was typed if it was."""
        return typed_text(self.spelled, name, value)

    def words(self, configuration: Configuration, config: str, folder: str) -> list[str]:
        """The command of a trial.

        Args:
            configuration: name -> value; what is missing is not set.
            config: path of its configuration file.
            folder: of the trial.
        """
        known = {CONFIG: config, FOLDER: folder}

        def put(found: re.Match[str]) -> str:
            name = found[1]
            if name is None:
                return "{"
            return known[name] if name in known else self.text(name, configuration.get(name, UNSET))

        words: list[str] = []
        for part in self.parts:
            if isinstance(part, Typed):
                words += part.put(configuration.get(part.name, UNSET), self.spelled)
            elif part == ALL_FLAGS:
                for name, value in self._rest(configuration).items():
                    words += flag_of(self.flags.get(name, f"--{name}"), value, self.text(name, value))
            else:
                words.append(_PLACEHOLDER.sub(put, part))
        return words

    def config(self, configuration: Configuration) -> str:
        """The content of the configuration file of a trial."""
        nested: dict[str, Value] = {}
        for name, value in self._rest(configuration).items():
            *above, last = self.paths.get(name, (name,))
            inner = nested
            for key in above:
                below = inner.get(key)
                inner[key] = inner = below if isinstance(below, dict) else {}
            inner[last] = value
        return _written(nested, self.config_format)

    def _rest(self, configuration: Configuration) -> dict[str, Value]:
        """What has no place of its own, and so goes into {config} or {flags}."""
        own = self.placeholders | self.typed
        return {name: value for name, value in configuration.items() if name not in own and value is not UNSET}


def placeholders_in(text: str) -> list[str]:
    """The words in braces of an argument."""
    return [found[1] for found in _PLACEHOLDER.finditer(text) if found[1] is not None]


def _written(nested: Mapping[str, Value], config_format: str) -> str:
    if config_format == "json":
        return json.dumps(nested, indent=1, ensure_ascii=False) + "\n"
    if config_format == "toml":
        import tomli_w

        return tomli_w.dumps(_without_none(nested))
    import yaml

    return yaml.safe_dump(nested, sort_keys=False, allow_unicode=True) if nested else "{}\n"


def _without_none(nested: Mapping[str, Value]) -> dict[str, Value]:
    """TOML has no null: what is None is left out."""
    there = {key: item for key, item in nested.items() if item is not None}
    return {key: _without_none(item) if isinstance(item, Mapping) else item for key, item in there.items()}


# ------------------------------------------------------------------------------------- settings as they were typed


def typed_in(words: Sequence[str], good: Configuration, parsed: Parsed = NOTHING) -> tuple[str | Typed, ...]:
    """Find the settings of the good side among the arguments of a command.

    Without guessing: the flag has the setting's name, it is there once, and what follows it is its value. Where the
    good value is true or false, a flag that no such word follows is a switch; where it is none, flag and value go.

    Args:
        words: of the command.
        good: name -> good value.
        parsed: what the program was seen to make of them, where that is known.

    Raises:
        InputError: a setting is given twice, its flag lacks a value, or may have several.
    """
    parts: list[str | Typed] = list(words[:1])
    seen: set[str] = set()
    position = 1
    while position < len(words):
        found = _typed_at(words[position:], good, parsed)
        if found is None:
            parts.append(words[position])
            position += 1
            continue
        if found.name in seen:
            raise InputError(
                f"The command gives {found.name} twice.",
                "Leave out the one that does not count, or use a {placeholder}.",
            )
        seen.add(found.name)
        parts.append(found)
        position += len(found.words)
    return tuple(parts)


def _typed_at(words: Sequence[str], good: Configuration, parsed: Parsed) -> Typed | None:
    """The setting that the first of some words gives; None if it gives none of them."""
    word = words[0]
    before, equals, text = word.partition("=")
    name = next((name for name in good if parsed.calls(before, name)), None) if equals or word[:1] == "-" else None
    if name is None or placeholders_in(word):
        return None
    if equals:
        return Typed(name, (word,), parsed.bad.get(name, read_value(text)), before + "=")
    several = parsed.bad.get(name)
    if isinstance(several, list):
        return Typed(name, tuple(words[: 1 + len(several)]), several)
    if isinstance(good[name], list):
        raise InputError(
            f"Cannot tell how many of the words after {word} are its values.",
            f"Write {{flags}} in their place, and --bad {name}=[...].",
        )
    following = words[1] if len(words) > 1 else None
    value = None if following is None else read_value(following)
    alone = following is None or (following.startswith("-") and not isinstance(value, (int, float)))
    if (isinstance(good[name], bool) and not isinstance(value, bool)) or (good[name] is None and alone):
        return Typed(name, (word,), parsed.bad.get(name, True), switch=True)
    if alone or following is None:
        raise InputError(
            f"{word} has no value in the command, and the good side gives it {text_of(good[name])}.",
            f"If it is a switch, say --good {name}=false; else give its value after it.",
        )
    return None if placeholders_in(following) else Typed(name, (word, following), parsed.bad.get(name, value))


# ----------------------------------------------------------------------------------------------- a place for everything


def check_places(template: Template, names: Collection[str], good: Configuration, bad: Configuration) -> None:
    """See that every setting has a place, and every place something to put there.

    Args:
        template: the command.
        names: of settings that need a place.
        good, bad: all values of the two sides.

    Raises:
        InputError: says which, and what to write.
    """
    there = template.placeholders
    for name in sorted(there - {CONFIG, FLAGS, FOLDER}):
        given = [side for side, levels in (("good", good), ("bad", bad)) if levels.get(name, UNSET) is not UNSET]
        if not given:
            raise InputError(
                f"The command has {{{name}}}, and neither side gives a value for {name}.",
                f"Give one (--bad {name}=..., --good {name}=...), or write {{{{{name}}} where the text is meant.",
            )
        if len(given) == 1:
            side = "bad" if given == ["good"] else "good"
            raise InputError(
                f"The command has {{{name}}}, and the {side} side gives no value for {name}.",
                f"Give one with --{side} {name}=..., or use {{flags}}, which leaves out what is not set.",
            )
    texts = [part for part in template.parts if isinstance(part, str)]
    within = next((text for text in texts if FLAGS in placeholders_in(text) and text != ALL_FLAGS), None)
    if within is not None:
        raise InputError(f"{{flags}} is several arguments, and cannot be part of one: {within}", "Write it alone.")
    if {CONFIG, FLAGS} <= there:
        raise InputError(
            "The command has {config} and {flags}: a setting would be given twice.",
            "Write one of them, and {name} for single settings.",
        )
    placeless = sorted(set(names) - there - template.typed)
    if placeless and not there & {CONFIG, FLAGS}:
        raise InputError(
            f"Nothing in the command takes {', '.join(placeless)}: no placeholder, and no argument that gives it.",
            f"Write {{flags}}, {{config}} or {{{placeless[0]}}} where the program is to be given it; a {{placeholder}} "
            "has letters, digits, _ . - and / alone.",
        )
