"""Known failures, as data: one entry for each, in the YAML files next to this one.

An entry says how a failure looks in a log, what it means, what triggers it and what is at fault (seldom the
same), what cures it, and where that is known from. Adding one needs no code: write it into the file it fits,
with a sample log, and the tests check that the sample leads to it. The fields:

    id, title       a short name, and one line for people
    any             clues of which one must be in the log
    all             clues that must all be in the log besides; one that is a list of clues stands for any of them
    hints           clues that make this entry likelier than another with the same clues
    unless          clues that rule it out
    only_if         clues (or conditions that hold) of which one must be in sight before the entry may lead; without
                    them it is named as a possibility
    early           true if the clue is a warning that comes before the error it explains
    lasting         true for what training goes on after: a row of metrics does not make it survived
    general         true for an entry that gives way to any other (a fallback)
    wide            true for one that knows only the family of a failure: it leads where the log decides for a case,
                    otherwise it is named after the error (`_lead`)
    aftermath       true for an entry that only says that the cause stands elsewhere: it leads where there is nothing
                    else, and the failure counts as one that is not known
    conditions      where it applies: `packages` {name: version specifier}, `gpu` (regular expression), `cuda`
                    and `cublas` (version specifiers), `parameters` {name: value, or a comparison as ">0"},
                    `launcher`, and facts that a log tells (`facts.py`): `device` (cuda, rocm, npu, tpu, mps),
                    `task` (rl, supervised, inference), `phase` (see `advice.reading.PHASES`), `progress` (what the last
                    bar was of), `cuda_available`, `variables` {NAME: pattern}, `collectives` (ranks in different ones),
                    `memory` (in pieces, full)
    cases           for an error that has several causes: for each a `title`, its `cures`, what happened
                    (`meaning`) where that is not what the entry says, and what decides for it:
                    clues (`any`, `unless`) and `conditions`. A case for which the log speaks leads, one against
                    which it speaks is left out, the others are told with their first cure, as what to check
    doctor          true if the conditions alone, when all of them hold, are worth a warning before a run
    meaning         what happened
    trigger         which setting makes it happen;   root_cause: what is at fault
    cured_by        {package: version}: versions that cure it, where nothing else has to change; a bisection tries them
    cures           in the order to try them;        not_helping: what is often tried in vain
                    (`{port|29500}` in them, in title or meaning: what a clue's group `(?P<port>...)` caught, or 29500)
    bisect          settings worth varying, if the cures do not settle it
    sources         `owner/repository#number` on GitHub, or an address; "measured" for what was reproduced
                    with tiny models on a CPU (torch 2.13, transformers 5.23, trl 1.16)
    sample          a log that shows it

What no log shows has no entry: updates lost in bfloat16 weights, say, are a rule of `findings`.

A clue is a regular expression for one line, or `{signal: SIGFPE}`, or `{metric: collapse}` (see
`_row_facts.FACTS`). A regular expression needs four plain characters in a row outside of alternatives, which
the scan looks for.
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
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from bisect_cfg.diagnosis import _row_facts, _version_pairs, _words, conditions
from bisect_cfg.diagnosis._row_facts import FACTS
from bisect_cfg.diagnosis._types import Json
from bisect_cfg.diagnosis._words import literals
from bisect_cfg.diagnosis.conditions import Conditions
from bisect_cfg.parameters import address

FOLDER = Path(__file__).parent
CONDITIONS = {name: typing.get_origin(kind) or kind for name, kind in typing.get_type_hints(Conditions).items()}
_CLUES = ("any", "hints", "unless", "only_if")
_TEXTS = ("id", "title", "meaning", "trigger", "root_cause", "sample")
_LISTS = (*_CLUES, "all", "cures", "not_helping", "bisect", "sources")


class KnowledgeError(ValueError):
    """An entry that does not follow the schema; says which, where and what to write instead."""


@dataclass(frozen=True)
class Clue:
    """What to look for: `kind` is `line` (a regular expression), `signal` or `metric`."""

    kind: str
    value: str

    def __str__(self) -> str:
        return {"line": "the line", "signal": "ended by", "metric": "metrics:"}[self.kind] + f" {self.value}"


@dataclass(frozen=True)
class EntryCase:
    """One of the causes that an error may have, and what decides for it."""

    title: str
    cures: tuple[str, ...]
    any: tuple[Clue, ...] = ()
    unless: tuple[Clue, ...] = ()
    conditions: Conditions = field(default_factory=dict, hash=False)
    meaning: str = ""


@dataclass(frozen=True)
class Entry:
    """One known failure."""

    id: str
    title: str
    any: tuple[Clue, ...]
    meaning: str
    cures: tuple[str, ...]
    sources: tuple[str, ...]
    sample: str
    all: tuple[tuple[Clue, ...], ...] = ()
    hints: tuple[Clue, ...] = ()
    unless: tuple[Clue, ...] = ()
    only_if: tuple[Clue, ...] = ()
    early: bool = False
    lasting: bool = False
    general: bool = False
    aftermath: bool = False
    wide: bool = False
    doctor: bool = False
    conditions: Conditions = field(default_factory=dict, hash=False)
    trigger: str = ""
    root_cause: str = ""
    not_helping: tuple[str, ...] = ()
    bisect: tuple[str, ...] = ()
    cases: tuple[EntryCase, ...] = ()
    cured_by: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def clues(self) -> tuple[Clue, ...]:
        of_cases = (clue for case in self.cases for clue in (*case.any, *case.unless))
        needed = (clue for group in self.all for clue in group)
        return (*self.any, *needed, *self.hints, *self.unless, *self.only_if, *of_cases)

    @property
    def settings(self) -> set[str]:
        """The settings that its conditions ask for."""
        return {name.rpartition(".")[2] for one in (self, *self.cases) for name in one.conditions.get("parameters", {})}


_CHECKED_BY = (_row_facts, _version_pairs, _words, conditions)
"""What says which clues and conditions there are, and makes entries of the table of versions."""


@functools.cache
def load(folder: Path = FOLDER) -> tuple[Entry, ...]:
    """All entries of a folder's YAML files, checked.

    Those that come with this package are kept beside its compiled files, as long as neither they nor the code that
    checks them has changed: reading and checking them takes half of the time in which `explain` starts. Whoever can
    write there can change the compiled files too, so a pickle is no further door.

    Raises:
        KnowledgeError: A file or an entry is not as described above.
    """
    if folder != FOLDER:
        return _read(folder)
    made_of = [*sorted(folder.glob("*.yaml")), _version_pairs.TABLE]
    made_of += [Path(module.__file__ or "") for module in (sys.modules[__name__], *_CHECKED_BY)]
    kept = Path(importlib.util.cache_from_source(str(folder / "entries.py"))).with_suffix(".pickle")
    stamp = [(str(path), (status := path.stat()).st_mtime_ns, status.st_size) for path in made_of]
    with contextlib.suppress(Exception):  # not there, of another release, cut off
        known, entries, runs = pickle.loads(kept.read_bytes())
        if known == stamp:
            _words.remember(runs)
            return entries
    entries = _read(folder)
    if not sys.dont_write_bytecode:
        runs = {clue.value: literals(clue.value) for entry in entries for clue in entry.clues if clue.kind == "line"}
        with contextlib.suppress(OSError):  # nobody may write there
            kept.parent.mkdir(exist_ok=True)
            written = kept.with_suffix(f".{os.getpid()}")
            written.write_bytes(pickle.dumps((stamp, entries, runs)))
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
    if folder == FOLDER:
        tables.append((_version_pairs.TABLE.name, list(_version_pairs.as_entries())))
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
    known = {one.name for one in fields(Entry)}
    for name in data:
        if name not in known:
            raise KnowledgeError(f"{place}: unknown field {name!r}; known: {', '.join(sorted(known))}")
    for name in ("id", "title", "any", "meaning", "cures", "sources", "sample"):
        if not data.get(name):
            raise KnowledgeError(f"{place}: {name!r} is missing or empty")
    for name in _TEXTS:
        if not isinstance(data.get(name, ""), str):
            raise KnowledgeError(f"{place}: {name!r} must be text")
    for name in _LISTS:
        if not isinstance(data.get(name, []), list):
            raise KnowledgeError(f"{place}: {name!r} must be a list")
    if not re.fullmatch(r"[a-z0-9-]+", data["id"]):
        raise KnowledgeError(f"{place}: an id has lower case letters, digits and hyphens only")
    values: dict[str, object] = {name: data[name].strip() for name in _TEXTS if name in data}
    values |= {name: tuple(data[name]) for name in ("cures", "not_helping", "bisect") if name in data}
    for name in _CLUES:
        values[name] = tuple(_clue(one, f"{place}, {name}") for one in data.get(name, []))
    values["all"] = tuple(
        tuple(_clue(one, f"{place}, all") for one in (group if isinstance(group, list) else [group]))
        for group in data.get("all", [])
    )
    try:
        values["sources"] = tuple(map(address, data["sources"]))
    except ValueError as error:
        raise KnowledgeError(f"{place}: {error}") from error
    values |= {
        name: bool(data.get(name, False)) for name in ("general", "aftermath", "wide", "doctor", "early", "lasting")
    }
    values["conditions"] = _conditions(data.get("conditions", {}), place)
    values["cured_by"] = _versions(data.get("cured_by", {}), place)
    values["cases"] = tuple(_case(one, f"{place}, cases") for one in data.get("cases", []))
    for name in ("cures", "not_helping", "bisect"):
        for one in values.get(name, ()):
            if not isinstance(one, str):
                raise KnowledgeError(f"{place}: YAML does not read {one!r} in {name!r} as text; quote it")
    return Entry(**values)


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


def _case(data: Json, place: str) -> EntryCase:
    if not isinstance(data, dict) or not data.keys() <= {one.name for one in fields(EntryCase)}:
        raise KnowledgeError(f"{place}: a case has {', '.join(one.name for one in fields(EntryCase))}")
    if not isinstance(data.get("title"), str) or not data.get("cures"):
        raise KnowledgeError(f"{place}: a case needs a title and cures")
    if not all(isinstance(cure, str) for cure in data["cures"]):
        raise KnowledgeError(f"{place}: YAML does not read a cure of {data['title']!r} as text; quote it")
    if not data.get("any") and not data.get("conditions"):
        raise KnowledgeError(f"{place}: nothing decides for {data['title']!r}; give it clues or conditions")
    clues = {name: tuple(_clue(one, place) for one in data.get(name, [])) for name in ("any", "unless")}
    return EntryCase(
        data["title"].strip(),
        tuple(data["cures"]),
        conditions=_conditions(data.get("conditions", {}), place),
        meaning=str(data.get("meaning", "")).strip(),
        **clues,
    )


def _clue(data: Json, place: str) -> Clue:
    if isinstance(data, str):
        try:
            literals(data)  # parses it, which shows what is wrong with it; it is compiled where it is looked for
        except (re.error, ValueError) as error:
            raise KnowledgeError(f"{place}: {error}") from error
        return Clue("line", data)
    if isinstance(data, dict) and len(data) == 1:
        ((kind, value),) = data.items()
        if kind == "metric" and value in FACTS:
            return Clue(kind, value)
        if kind == "signal" and value in signal.Signals.__members__:
            return Clue(kind, value)
    raise KnowledgeError(
        f"{place}: {data!r} is no clue; write a quoted regular expression, {{signal: SIGFPE}} or "
        f"{{metric: NAME}} with one of {', '.join(FACTS)}"
    )


def _conditions(data: Json, place: str) -> Conditions:
    if not isinstance(data, dict):
        raise KnowledgeError(f"{place}: 'conditions' must be a mapping")
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for name, value in data.items():
        if name not in CONDITIONS or not isinstance(value, CONDITIONS[name]):
            expected = ", ".join(f"{key} ({kind.__name__})" for key, kind in CONDITIONS.items())
            raise KnowledgeError(f"{place}: condition {name!r} is unknown or of the wrong type; {expected}")
    specifiers = [*data.get("packages", {}).values()]
    specifiers += [data[name] for name in ("cuda", "cublas") if name in data]
    for specifier in specifiers:
        try:
            SpecifierSet(specifier)
        except (InvalidSpecifier, AttributeError, TypeError) as error:
            raise KnowledgeError(f"{place}: {specifier!r} is no version specifier such as '<0.18'") from error
    return data
