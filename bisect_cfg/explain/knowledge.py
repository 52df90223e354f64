"""Known failures, as data: one entry for each, in `entries/*.yaml`.

An entry says how a failure looks in a log, why it happens, what cures it and where that is known from. Adding one needs
no code: write it into the file it fits, with a log of it in `tests/corpus`, and the tests check that the log leads to
it. The fields:

    id, title       a short name that stays, and one line for people
    any             clues of which one must be in the log
    all             clues that must all be there too; one that is a list stands for any of its members
    unless          clues that rule it out
    only_if         clues of which one must be in sight (or its conditions hold) before the entry may lead
    general         true for a fallback, which gives way to any other entry
    lasting         true where work that goes on after such a line does not mean that it was survived: a warning before
                    the error that it explains
    conditions      where it applies: `packages` {name: version specifier}, `gpu` (regular expression), `cuda` and
                    `cublas` (specifiers), `parameters` {name: value, or a comparison as ">0"}, `launcher`, `device`
                    (cuda, rocm, npu, tpu, mps), `task` (rl, supervised, inference)
    doctor          true if the conditions alone, when all of them hold, are worth a warning before a run
    why             the mechanism, in at most two sentences
    cures           in the order to try them; `{port|29500}` is what a clue's group `(?P<port>...)` caught, or 29500
    cases           for an error with several causes whose cures differ: each with a `title`, `cures`, what decides for
                    it (`any`, `unless`, `conditions`), and its own `why` where that differs
    cured_by        {package: version}: versions that cure it where nothing else has to change; a bisection tries them
    bisect          settings worth varying if the cures do not settle it
    sources         `owner/repository#number` on GitHub, an address, or "measured": reproduced with tiny models on a CPU

A clue is a regular expression for one line, `{signal: SIGFPE}`, or `{metric: collapse}` (`metric_facts.FACTS` and
`hang.FACTS`). A regular expression needs four plain characters in a row outside of alternatives: lines without them are
passed over without running it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pickle
import re
import signal
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from re import _constants as opcodes  # no public way to see a pattern's structure
from re import _parser as parser

from bisect_cfg.common import conditions
from bisect_cfg.common.conditions import Conditions
from bisect_cfg.common.types import Json
from bisect_cfg.explain import hang, metric_facts
from bisect_cfg.parameters import address

FOLDER = Path(__file__).parent / "entries"
FACTS = {**metric_facts.FACTS, **hang.FACTS}
SHORTEST = 4
"""Characters that a pattern's plain words must have; shorter ones are in every line."""

_CONDITIONS = {name: typing.get_origin(kind) or kind for name, kind in typing.get_type_hints(Conditions).items()}
_CLUES = ("any", "unless", "only_if")
_FLAGS = ("general", "lasting", "doctor")
_LISTS = (*_CLUES, "all", "cures", "bisect", "sources", "cases")
_CHECKED_BY = (conditions, hang, metric_facts)
"""What says which conditions and facts there are, beside this module."""


class KnowledgeError(ValueError):
    """An entry that does not follow the schema; says which, where and what to write instead."""


@dataclass(frozen=True)
class Clue:
    """What to look for.

    Attributes:
        kind: "line" (a regular expression), "signal" or "metric".
        value: the expression, the signal's name, or the fact's name.
        words: plain words of which each is in every line that matches, the longest first.
    """

    kind: str
    value: str
    words: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Case:
    """One of the causes that an error may have, and what decides for it."""

    title: str
    cures: tuple[str, ...]
    any: tuple[Clue, ...] = ()
    unless: tuple[Clue, ...] = ()
    conditions: Conditions = field(default_factory=dict, hash=False)
    why: str = ""


@dataclass(frozen=True)
class Entry:
    """One known failure."""

    id: str
    title: str
    any: tuple[Clue, ...]
    why: str
    cures: tuple[str, ...]
    sources: tuple[str, ...]
    all: tuple[tuple[Clue, ...], ...] = ()
    unless: tuple[Clue, ...] = ()
    only_if: tuple[Clue, ...] = ()
    general: bool = False
    lasting: bool = False
    doctor: bool = False
    conditions: Conditions = field(default_factory=dict, hash=False)
    cases: tuple[Case, ...] = ()
    cured_by: Mapping[str, str] = field(default_factory=dict, hash=False)
    bisect: tuple[str, ...] = ()

    @property
    def clues(self) -> tuple[Clue, ...]:
        """All clues, of its cases too."""
        of_cases = (clue for case in self.cases for clue in (*case.any, *case.unless))
        return (*self.any, *(clue for group in self.all for clue in group), *self.unless, *self.only_if, *of_cases)

    @property
    def settings(self) -> set[str]:
        """Bare names of the settings that its conditions ask for."""
        return {name.rpartition(".")[2] for one in (self, *self.cases) for name in one.conditions.get("parameters", {})}


@functools.cache
def load(folder: Path = FOLDER) -> tuple[Entry, ...]:
    """All entries of a folder's YAML files, checked.

    Those that come with this package are kept beside its compiled files until they or the code that checks them change:
    checking them takes half of the time in which `explain` starts. Whoever can write there can change the compiled
    files too, so a pickle opens no further door.

    Raises:
        KnowledgeError: A file or an entry is not as described above.
    """
    if folder != FOLDER:
        return _read(folder)
    made_of = sorted(folder.glob("*.yaml"))
    made_of += [Path(module.__file__ or "") for module in (sys.modules[__name__], *_CHECKED_BY)]
    kept = Path(importlib.util.cache_from_source(str(folder / "entries.py"))).with_suffix(".pickle")
    stamp = [(str(path), (status := path.stat()).st_mtime_ns, status.st_size) for path in made_of]
    with contextlib.suppress(Exception):  # not there, of another release, cut off
        known, entries = pickle.loads(kept.read_bytes())
        if known == stamp:
            return entries
    entries = _read(folder)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):  # nobody may write there
            kept.parent.mkdir(exist_ok=True)
            written = kept.with_suffix(f".{os.getpid()}")
            written.write_bytes(pickle.dumps((stamp, entries)))
            written.replace(kept)
    return entries


def _read(folder: Path) -> tuple[Entry, ...]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is there
    entries: dict[str, Entry] = {}
    tables: list[tuple[str, Json]] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            tables.append((path.name, yaml.load(path.read_text(encoding="utf-8"), Loader=loader)))
        except yaml.YAMLError as error:
            raise KnowledgeError(f"{path.name}: not YAML: {error}") from error
    for name, table in tables:
        if not isinstance(table, list):
            raise KnowledgeError(f"{name}: a list of entries is expected, each begins with '- id: ...'")
        for index, data in enumerate(table):
            entry = check(data, f"{name}, entry {index + 1}")
            if entry.id in entries:
                raise KnowledgeError(f"{name}: the id {entry.id!r} is used twice; choose another")
            entries[entry.id] = entry
    return tuple(entries.values())


def check(data: Json, place: str) -> Entry:
    """An entry from what the YAML file says, or a `KnowledgeError` that names the place."""
    if not isinstance(data, dict):
        raise KnowledgeError(f"{place}: a mapping is expected, not {type(data).__name__}")
    place = f"{place} ({data.get('id', 'without id')})"
    known = [one.name for one in fields(Entry)]
    if unknown := [name for name in data if name not in known]:
        raise KnowledgeError(f"{place}: unknown field {unknown[0]!r}; known: {', '.join(known)}")
    for name in ("id", "title", "any", "why", "cures", "sources"):
        if not data.get(name):
            raise KnowledgeError(f"{place}: {name!r} is missing or empty")
    for name in _LISTS:
        if not isinstance(data.get(name, []), list):
            raise KnowledgeError(f"{place}: {name!r} must be a list")
    if not re.fullmatch(r"[a-z0-9-]+", str(data["id"])):
        raise KnowledgeError(f"{place}: an id has lower case letters, digits and hyphens only")
    values: dict[str, object] = {name: _text(data[name], place) for name in ("id", "title", "why")}
    values |= {name: tuple(_text(one, place) for one in data.get(name, [])) for name in ("cures", "bisect")}
    values |= {name: _clues(data.get(name, []), f"{place}, {name}") for name in _CLUES}
    groups = (group if isinstance(group, list) else [group] for group in data.get("all", []))
    values["all"] = tuple(_clues(group, f"{place}, all") for group in groups)
    try:
        values["sources"] = tuple(map(address, data["sources"]))
    except ValueError as error:
        raise KnowledgeError(f"{place}: {error}") from error
    values |= {name: bool(data.get(name, False)) for name in _FLAGS}
    values["conditions"] = _conditions(data.get("conditions", {}), place)
    values["cured_by"] = _versions(data.get("cured_by", {}), place)
    values["cases"] = tuple(_case(one, f"{place}, cases") for one in data.get("cases", []))
    return Entry(**values)


def _text(value: Json, place: str) -> str:
    if not isinstance(value, str):
        raise KnowledgeError(f"{place}: YAML does not read {value!r} as text; quote it")
    return value.strip()


def _versions(data: Json, place: str) -> dict[str, str]:
    from packaging.version import InvalidVersion, Version

    if not isinstance(data, dict):
        raise KnowledgeError(f"{place}: 'cured_by' must be a mapping of packages to versions")
    for name, version in data.items():
        try:
            Version(version)
        except (InvalidVersion, TypeError) as error:
            raise KnowledgeError(f"{place}: {name}: {version!r} is no version; quote it") from error
    return dict(data)


def _case(data: Json, place: str) -> Case:
    known = [one.name for one in fields(Case)]
    if not isinstance(data, dict) or not data.keys() <= set(known):
        raise KnowledgeError(f"{place}: a case has {', '.join(known)}")
    if not isinstance(data.get("title"), str) or not data.get("cures"):
        raise KnowledgeError(f"{place}: a case needs a title and cures")
    if not data.get("any") and not data.get("conditions"):
        raise KnowledgeError(f"{place}: nothing decides for {data['title']!r}; give it clues or conditions")
    return Case(
        data["title"].strip(),
        tuple(_text(cure, place) for cure in data["cures"]),
        _clues(data.get("any", []), place),
        _clues(data.get("unless", []), place),
        _conditions(data.get("conditions", {}), place),
        _text(data.get("why", ""), place),
    )


def _clues(data: Iterable[Json], place: str) -> tuple[Clue, ...]:
    return tuple(_clue(one, place) for one in data)


def _clue(data: Json, place: str) -> Clue:
    if isinstance(data, str):
        try:
            return Clue("line", data, plain_words(data))
        except (re.error, ValueError) as error:
            raise KnowledgeError(f"{place}: {error}") from error
    if isinstance(data, dict) and len(data) == 1:
        ((kind, value),) = data.items()
        if (kind == "metric" and value in FACTS) or (kind == "signal" and value in signal.Signals.__members__):
            return Clue(kind, value)
    raise KnowledgeError(
        f"{place}: {data!r} is no clue; write a quoted regular expression, {{signal: SIGFPE}} or "
        f"{{metric: NAME}} with one of {', '.join(FACTS)}"
    )


def plain_words(pattern: str) -> tuple[str, ...]:
    """The runs of plain characters that every match of a pattern contains, the longest first.

    Raises:
        ValueError: There is none of `SHORTEST` characters.
    """
    parsed = parser.parse(pattern)
    if parsed.state.flags & re.IGNORECASE:
        raise ValueError(f"{pattern!r}: (?i) hides what to look for; write the spellings as separate clues")
    words = sorted((run for run in _runs(parsed) if len(run) >= SHORTEST), key=len, reverse=True)
    if not words:
        raise ValueError(f"{pattern!r} has no run of {SHORTEST} plain characters that every match contains")
    return tuple(words)


def _runs(parsed: Iterable) -> list[str]:
    runs, current = [], ""
    for code, value in parsed:
        if code is opcodes.LITERAL:
            current += chr(value)
            continue
        runs.append(current)
        current = ""
        if code is opcodes.SUBPATTERN:
            runs += _runs(value[-1])
        elif code is opcodes.MAX_REPEAT and value[0] > 0:
            runs += _runs(value[2])
    return [*runs, current]


def _conditions(data: Json, place: str) -> Conditions:
    if not isinstance(data, dict):
        raise KnowledgeError(f"{place}: 'conditions' must be a mapping")
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for name, value in data.items():
        if name not in _CONDITIONS or not isinstance(value, _CONDITIONS[name]):
            expected = ", ".join(f"{key} ({kind.__name__})" for key, kind in _CONDITIONS.items())
            raise KnowledgeError(f"{place}: condition {name!r} is unknown or of the wrong type; known: {expected}")
    specifiers = [*data.get("packages", {}).values(), *(data[name] for name in ("cuda", "cublas") if name in data)]
    for specifier in specifiers:
        try:
            SpecifierSet(str(specifier))
        except InvalidSpecifier as error:
            raise KnowledgeError(f"{place}: {specifier!r} is no version specifier; write '<0.18.0'") from error
    for name in ("gpu", "device", "task"):
        re.compile(data.get(name, ""))
    return data
