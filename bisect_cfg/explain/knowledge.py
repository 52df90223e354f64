"""Known failures, as data: one entry for each, in `entries/*.yaml`.

An entry says how a failure looks in a log, why it happens, what cures it and where that is known from. Adding one needs
no code: write it into the file it fits, with a log of it in `tests/corpus`, and the tests check that it is as described
here, and that the log leads to it. The fields:

    id, title       a short name that stays, and one line for people
    any             clues of which one must be in the log
    all             clues that must all be there too; one that is a list stands for any of its members
    unless          clues that rule it out
    only_if         clues of which one must be in sight (or its conditions hold) before the entry may lead
    general         true for a fallback, which gives way to any other entry
    lasting         true where work that goes on after such a line does not mean that it was survived: a warning before
                    the error that it explains
    conditions      where it applies: `packages` {name: version specifier}, `gpu` (regular expression), `cuda` and
                    `cublas` (specifiers), `parameters` {name: value, or a comparison as ">0"}, `launcher`, `task` (rl,
                    supervised)
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

import functools
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from re import _constants as opcodes  # type: ignore[attr-defined]  # no public way to see a pattern's structure
from re import _parser as parser  # type: ignore[attr-defined]  # likewise
from typing import Annotated, Any, TypeVar

import msgspec

from bisect_cfg.common.conditions import Conditions
from bisect_cfg.common.parameters import address
from bisect_cfg.explain import hang, metric_facts

FOLDER = Path(__file__).parent / "entries"
FACTS = {**metric_facts.FACTS, **hang.FACTS}
SHORTEST = 4
"""Characters that a pattern's plain words must have; shorter ones are in every line."""


class KnowledgeError(ValueError):
    """An entry that does not follow the schema; says which file, where and what is expected."""


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


class Clues(tuple[Clue, ...]):
    """Clues of which one is enough; in a file also one clue alone."""


class Sources(tuple[str, ...]):
    """Addresses."""


Item = TypeVar("Item")
Some = Annotated[tuple[Item, ...], msgspec.Meta(min_length=1)]


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the causes that an error may have, and what decides for it."""

    title: str
    cures: Some[str]
    any: Clues = Clues()
    unless: Clues = Clues()
    conditions: Conditions = {}
    why: str = ""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One known failure."""

    id: Annotated[str, msgspec.Meta(pattern="^[a-z0-9-]+$")]
    title: str
    any: Clues
    why: str
    cures: Some[str]
    sources: Sources
    all: tuple[Clues, ...] = ()
    unless: Clues = Clues()
    only_if: Clues = Clues()
    general: bool = False
    lasting: bool = False
    doctor: bool = False
    conditions: Conditions = {}
    cases: tuple[Case, ...] = ()
    cured_by: Mapping[str, str] = {}
    bisect: tuple[str, ...] = ()

    @property
    def clues(self) -> tuple[Clue, ...]:
        """All clues, of its cases too."""
        of_cases = (clue for case in self.cases for clue in (*case.any, *case.unless))
        return (*self.any, *(clue for group in self.all for clue in group), *self.unless, *self.only_if, *of_cases)


@functools.cache
def load() -> tuple[Entry, ...]:
    """All entries of this package; reading them takes a seventh of a second."""
    return read(FOLDER)


def read(folder: Path) -> tuple[Entry, ...]:
    """The entries of a folder's YAML files.

    Raises:
        KnowledgeError: one is not as described above.
    """
    entries: dict[str, Entry] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found = msgspec.yaml.decode(path.read_bytes(), type=list[Entry], dec_hook=_made)
        except msgspec.DecodeError as error:
            raise KnowledgeError(f"{path.name}: {error}") from error
        for entry in found:
            if entry.id in entries:
                raise KnowledgeError(f"{path.name}: the id {entry.id!r} is used twice; choose another")
            entries[entry.id] = entry
    return tuple(entries.values())


def _made(kind: type, data: Any) -> object:
    """What msgspec does not know: clues of their patterns, addresses of their short forms, values of any type."""
    if kind is Sources:
        return Sources(map(address, data))
    return Clues(map(_clue, data if isinstance(data, list) else [data])) if kind is Clues else data


def _clue(data: Any) -> Clue:
    if isinstance(data, str):
        return Clue("line", data, plain_words(data))
    if isinstance(data, dict) and len(data) == 1:
        ((kind, value),) = data.items()
        if (kind == "metric" and value in FACTS) or (kind == "signal" and value in signal.Signals.__members__):
            return Clue(kind, value)
    raise ValueError(
        f"{data!r} is no clue; write a quoted regular expression, {{signal: SIGFPE}} or {{metric: NAME}} with one of "
        f"{', '.join(FACTS)}"
    )


def plain_words(pattern: str) -> tuple[str, ...]:
    """The runs of plain characters that every match of a pattern contains, the longest first.

    Raises:
        ValueError: it is no regular expression, or there is no run of `SHORTEST` characters.
    """
    try:
        parsed = parser.parse(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r}: {error}") from error
    if parsed.state.flags & re.IGNORECASE:
        raise ValueError(f"{pattern!r}: (?i) hides what to look for; write the spellings as separate clues")
    words = sorted((run for run in _runs(parsed) if len(run) >= SHORTEST), key=len, reverse=True)
    if not words:
        raise ValueError(f"{pattern!r} has no run of {SHORTEST} plain characters that every match contains")
    return tuple(words)


def _runs(parsed: Iterable[Any]) -> list[str]:
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
