"""A command of any kind with places for settings in it, and what it becomes for a trial.

Only these ``{words}`` are replaced; ``{{`` is a brace, and every other brace is text:

    {config}   the path of a file, written for the trial, with the settings that have no place of their own
    {flags}    the same settings as flags; an argument of its own, which becomes as many as there are
    {name}     the value of one setting
    {folder}   the trial's own folder, empty, where the command can write

A setting can also stand in the command as it was typed (``--lr 1e-3``, ``--lr=1e-3``, ``--bf16``, ``lr=1e-3``): then
that is its bad value, and the place where trials put another one.

Arguments are a list from beginning to end, and no shell reads them: what a value holds reaches the program as it is.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.configuration import UNSET, Configuration, Value, equal
from bisect_cfg.errors import InputError
from bisect_cfg.parameters import parameter
from bisect_cfg.probe.redact import is_secret_name
from bisect_cfg.targets.names import number_of

CONFIG, FLAGS, FOLDER = "config", "flags", "folder"
"""Words that stand for something else than a setting."""

ALL_FLAGS = "{flags}"

PRESETS = Path(__file__).parent / "presets.yaml"

_PLACEHOLDER = re.compile(r"\{\{|\{([^\W\d][\w.\-/]*)\}")
_ODD = re.compile(r"\{(?=[^{}]* )[\w.\-/ ]+\}")
_HYDRA_PLAIN = re.compile(r"[A-Za-z0-9_.\-/:@%+?|]+")
"""What Hydra's grammar takes without quotes (https://hydra.cc/docs/advanced/override_grammar/basic/)."""

_WORDS = {"true": True, "false": False, "none": None, "null": None, "~": None}


@dataclass(frozen=True)
class Style:
    """How a program takes settings on its command line.

    Attributes:
        prefix: what a flag begins with.
        joint: what stands between a flag and its value; "" if the value is an argument of its own.
        switches: whether true is the flag alone, and false nothing at all.
        dashes: whether names have dashes in place of underscores.
        quoted: whether values are quoted as Hydra's grammar wants it.
        nothing: the text for None; "" if the flag is left out then.
        negated: what the name of a switch that is false begins with; "" if it is left out then.
    """

    prefix: str = ""
    joint: str = ""
    switches: bool = True
    dashes: bool = False
    quoted: bool = False
    nothing: str = ""
    negated: str = ""


@dataclass(frozen=True)
class Preset:
    """What is known of a trainer's command line.

    Attributes:
        flag_style: name of its style.
        config_format: of the files that it reads, "" if it reads none.
        why: what that rests on, in words.
        source: where that is to be seen.
    """

    flag_style: str
    why: str
    source: str
    config_format: str = ""


@functools.cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, Value]]]:
    import yaml

    return yaml.safe_load(PRESETS.read_text(encoding="utf-8"))


def styles() -> dict[str, Style]:
    """All styles by name."""
    return {name: Style(**row) for name, row in _table()["styles"].items()}


def presets() -> dict[str, Preset]:
    """All presets by name."""
    return {name: Preset(**row) for name, row in _table()["presets"].items()}


# -------------------------------------------------------------------------------------------------- values as texts


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


@dataclass(frozen=True)
class Spelling:
    """How values were typed: ``1e-3`` is a number to us, and the program gets what was written.

    Attributes:
        typed: name of a setting -> its values with their texts.
    """

    typed: Mapping[str, tuple[tuple[Value, str], ...]]

    def text(self, name: str, value: Value) -> str:
        """The text of a value, as it was typed if it was."""
        return next((text for known, text in self.typed.get(name, ()) if equal(known, value)), text_of(value))


# ---------------------------------------------------------------------------------------------------- the command


@dataclass(frozen=True)
class Typed:
    """A setting that stands in the command as it was typed.

    Attributes:
        name: of the setting.
        words: the arguments that give it.
        value: that they give it.
        before: what stands in front of the value in the same argument (``--lr=``); "" for an argument of its own.
        switch: whether it is a flag alone.
    """

    name: str
    words: tuple[str, ...]
    value: Value
    before: str = ""
    switch: bool = False

    def put(self, value: Value, spelling: Spelling, style: Style) -> list[str]:
        """The arguments with another value."""
        if equal(value, self.value):
            return list(self.words)
        if value is None and self.before and not self.before.startswith("-") and style.nothing:
            return [self.before + style.nothing]
        if value is UNSET or value is None or (self.switch and value is False and not style.negated):
            return []
        if self.switch and isinstance(value, bool) and style.negated:
            return [_switch(self.name, value, style)]
        text = spelling.text(self.name, value)
        if self.switch:
            return list(self.words) if value is True else [*self.words, text]
        if self.before:
            is_flag = self.before.startswith("-")
            return [self.before + (text if is_flag else _quoted(text, value, style))]
        return [self.words[0], text]


@dataclass(frozen=True)
class Template:
    """A command with places in it.

    Attributes:
        parts: its arguments in their order: text with placeholders, or settings as they were typed.
        style: of flags.
        config_format: "yaml", "json" or "toml".
        spelling: how values were typed.
        paths: name of a setting -> its keys in a configuration file; a name that is missing is one key.
    """

    parts: tuple[str | Typed, ...]
    style: Style
    config_format: str
    spelling: Spelling
    paths: Mapping[str, tuple[str, ...]]

    @property
    def placeholders(self) -> frozenset[str]:
        """The words in braces that its text has."""
        texts = (part for part in self.parts if isinstance(part, str))
        return frozenset(name for text in texts for name in placeholders_in(text))

    @property
    def typed(self) -> frozenset[str]:
        """Settings that stand in it as they were typed."""
        return frozenset(part.name for part in self.parts if isinstance(part, Typed))

    def rest(self, configuration: Configuration) -> dict[str, Value]:
        """What has no place of its own, and so goes into {config} or {flags}."""
        own = self.placeholders | self.typed
        return {name: value for name, value in configuration.items() if name not in own and value is not UNSET}

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
            return known[name] if name in known else self.spelling.text(name, configuration.get(name, UNSET))

        words: list[str] = []
        for part in self.parts:
            if isinstance(part, Typed):
                words += part.put(configuration.get(part.name, UNSET), self.spelling, self.style)
            elif part == ALL_FLAGS:
                for name, value in self.rest(configuration).items():
                    words += self._flag(name, value)
            else:
                words.append(_PLACEHOLDER.sub(put, part))
        return words

    def _flag(self, name: str, value: Value) -> list[str]:
        style = self.style
        flag = style.prefix + (name.replace("_", "-") if style.dashes else name)
        if style.switches and isinstance(value, bool):
            return [_switch(name, value, style)] if value or style.negated else []
        if value is None:
            return [flag + style.joint + style.nothing] if style.nothing else []
        if isinstance(value, list) and not style.joint:
            return [flag, *map(text_of, value)]
        text = _quoted(self.spelling.text(name, value), value, style)
        return [flag + style.joint + text] if style.joint else [flag, text]

    def config(self, configuration: Configuration) -> str:
        """The content of the configuration file of a trial."""
        nested: dict[str, Value] = {}
        for name, value in self.rest(configuration).items():
            *above, last = self.paths.get(name, (name,))
            inner = nested
            for key in above:
                if not isinstance(inner.get(key), dict):
                    inner[key] = {}
                inner = inner[key]
            inner[last] = value
        return _written(nested, self.config_format)


def _switch(name: str, value: bool, style: Style) -> str:
    return style.prefix + ("" if value else style.negated) + (name.replace("_", "-") if style.dashes else name)


def placeholders_in(text: str) -> list[str]:
    """The words in braces of an argument."""
    return [found[1] for found in _PLACEHOLDER.finditer(text) if found[1] is not None]


def _quoted(text: str, value: Value, style: Style) -> str:
    """A value for Hydra, where its grammar would read a text as something else."""
    if not style.quoted or not isinstance(value, str):
        return text
    if _HYDRA_PLAIN.fullmatch(text) and isinstance(read_value(text), str):  # null and 1e-3 are no texts to it
        return text
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)  # backslashes count in front of a quote, and at the end
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"


def _written(nested: Mapping[str, Value], config_format: str) -> str:
    if config_format == "json":
        return json.dumps(nested, indent=1, ensure_ascii=False) + "\n"
    if config_format == "toml":
        import tomli_w

        return tomli_w.dumps(_without_none(nested))
    import yaml

    return yaml.safe_dump(nested, sort_keys=False, allow_unicode=True) if nested else "{}\n"


def _without_none(value: Value) -> Value:
    """TOML has no null: what is None is left out."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


# ------------------------------------------------------------------------------------- settings as they were typed


def typed_in(words: Sequence[str], good: Configuration, style: Style | None = None) -> tuple[str | Typed, ...]:
    """Find the settings of the good side among the arguments of a command.

    Without guessing: the flag has the setting's name, it is there once, and what follows it is its value. Where the
    good value is true or false, a flag that no such word follows is a switch; where it is none, flag and value go.

    Args:
        words: of the command.
        good: name -> good value.
        style: of flags; None: argparse's.

    Raises:
        InputError: a setting is given twice, its flag lacks a value, or may have several.
    """
    parts: list[str | Typed] = []
    names = {_plain(name): name for name in good}
    seen: set[str] = set()
    position = 0
    while position < len(words):
        found = _typed_at(words, position, names, good, style or Style()) if position else None
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


_NEEDED = re.compile(r"(?:^|_)(?:configs?|models?|data|datasets?|paths?|dirs?|files?|names?|outputs?|tokens?)(?:_|$)")
"""In the name of a flag without which a script has nothing to train."""


def own_flags(words: Sequence[str], known: Collection[str]) -> dict[str, Value]:
    """Flags of a script's own: name -> value as typed, true of a switch.

    Args:
        words: after the script on its command line.
        known: names of settings that are varied, or not, as such.
    """
    found: dict[str, Value] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        name, joint, value = word[2:].partition("=")
        plain = _plain(name)
        needed = not plain or plain in known or parameter(plain).pinned or _NEEDED.search(plain)
        if word.startswith("--") and not needed and not is_secret_name(plain, value):
            found[name] = value if joint else True if after.startswith("--") else after
    return found


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _typed_at(
    words: Sequence[str], position: int, names: Mapping[str, str], good: Configuration, style: Style
) -> Typed | None:
    word = words[position]
    off = style.negated and names.get(_plain(word.removeprefix(style.prefix + style.negated)))
    if off and word.startswith(style.prefix + style.negated):
        return Typed(off, (word,), False, switch=True)
    before, equals, text = word.partition("=")
    name = names.get(_plain(before.lstrip("-" if before.startswith("-") else "+")))
    if name is None or _placeheld(word):
        return None
    if equals:
        return Typed(name, (word,), read_value(text), before + "=")
    if not word.startswith("-"):
        return None
    if isinstance(good[name], list):
        raise InputError(
            f"Cannot tell how many of the words after {word} are its values.",
            f"Write {{flags}} in their place, and --bad {name}=[...].",
        )
    following = words[position + 1] if position + 1 < len(words) else None
    value = None if following is None else read_value(following)
    alone = following is None or (following.startswith("-") and not isinstance(value, (int, float)))
    if (isinstance(good[name], bool) and not isinstance(value, bool)) or (good[name] is None and alone):
        return Typed(name, (word,), True, switch=True)
    if alone:
        raise InputError(
            f"{word} has no value in the command, and the good side gives it {text_of(good[name])}.",
            f"If it is a switch, say --good {name}=false; else give its value after it.",
        )
    if _placeheld(following):
        return None
    return Typed(name, (word, following), value)


def _placeheld(word: str) -> bool:
    return bool(placeholders_in(word))


def check_places(
    template: Template, factors: Collection[str], known: Collection[str], carried: Collection[str] = ()
) -> None:
    """See that every setting has a place, and every place something to put there.

    Args:
        template: the command.
        factors: names that vary.
        known: all names that a value is known of.
        carried: names that need no place (environment variables).

    Raises:
        InputError: says which, and what to write.
    """
    there, special = template.placeholders, {CONFIG, FLAGS, FOLDER}
    unknown = sorted(there - special - set(known))
    if unknown:
        name = unknown[0]
        raise InputError(
            f"The command has {{{name}}}, and neither side gives a value for {name}.",
            f"Give one (--bad {name}=..., --good {name}=...), or write {{{{{name}}} where the text itself is meant.",
        )
    for part in template.parts:
        if isinstance(part, str) and FLAGS in placeholders_in(part) and part != ALL_FLAGS:
            raise InputError(f"{{flags}} is several arguments, and cannot be part of one: {part}", "Write it alone.")
    if {CONFIG, FLAGS} <= there:
        raise InputError(
            "The command has {config} and {flags}: a setting would be given twice.",
            "Write one of them, and {name} for single settings.",
        )
    placeless = sorted(set(factors) - there - template.typed - set(carried))
    if placeless and not there & {CONFIG, FLAGS}:
        shown = ", ".join(placeless)
        odd = next((name for name in placeless if not _PLACEHOLDER.fullmatch(f"{{{name}}}")), None)
        if odd is not None:
            raise InputError(
                f"{odd} cannot be the name of a place: those have letters, digits, _ . - and / alone.",
                "Give it another name, or write {flags} or {config}.",
            )
        odd = next(
            (found[0] for part in template.parts if isinstance(part, str) and (found := _ODD.search(part))), None
        )
        if odd is not None:
            raise InputError(
                f"{odd} in the command is not a placeholder: its name may have only letters, digits, _ . - and /.",
                f"Write {{{placeless[0]}}} where the program is to be given it.",
            )
        nothing = not (there - {FOLDER}) and not template.typed
        what = "Nothing in the command takes a setting" if nothing else f"Nothing in the command takes {shown}"
        raise InputError(
            f"{what}: no placeholder{'' if nothing else ' of that name'}, and no argument that gives it.",
            f"Write {{flags}}, {{config}} or {{{placeless[0]}}} where the program is to be given "
            f"{'it' if len(placeless) == 1 else 'them'}.",
        )
