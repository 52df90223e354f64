"""A change of a setting, a place in a text where the setting is given a value, and the spans that are exchanged there.

All places are found in a text as it is. What is to change is collected as pieces, and spliced once (`spans_of`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bisect_cfg.common.configuration import Value, equal

OTHER_NAMES = {"dtype": ("dtype", "torch_dtype")}
"""Settings that scripts spell in more than one way."""


@dataclass(frozen=True)
class Change:
    """One setting and its two values."""

    name: str  # as users and reports write it (`learning_rate`, `model.dtype`).
    old: Value  # the value that the run had
    new: Value  # the value to use. None is written as None where files hold values; a flag with it is left out.
    added: bool = False  # whether the user does not set it so far

    @property
    def _keys(self) -> list[str]:
        first, *rest = self.name.split(".")
        return rest if rest and first in ("model", "peft", "script", "env") else [first, *rest]

    @property
    def field(self) -> str:
        """The setting whose dictionary has this key (`model_init_kwargs`), "" where it is no key of one."""
        return self._keys[-2] if len(self._keys) > 1 else ""

    @property
    def key(self) -> str:
        """Its name where it is set."""
        return self._keys[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """All names that it may have there."""
        return OTHER_NAMES.get(self.key, (self.key,))


@dataclass(frozen=True)
class Piece:
    """A part of a text to exchange.

    Attributes:
        start, end: of it, in characters.
        new: what is to stand there.
        goal: what is other in the text's content then: node of a syntax tree, or way to a value -> what is there.
    """

    start: int
    end: int
    new: str
    goal: Mapping[Any, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a text gives a value to a name."""

    start: int  # of the name or the value, to say the line
    shown: str  # the part of the text that gives the value
    matches: bool  # whether the value is the one that the run had
    put: Callable[[Value], Piece | None]  # value -> the piece that writes it there, None if that is not possible
    read_from: tuple[str, ...] = ()  # other names that the value is read from (``lr`` of ``learning_rate=args.lr``).


class Span(NamedTuple):
    """A part of a text and what is to stand there; the names are of the settings that it changes."""

    start: int
    end: int
    new: str
    names: tuple[str, ...] = ()


def splice(text: str, spans: Iterable[Span]) -> str:
    """The text with its spans exchanged; they do not overlap."""
    for start, end, new, _ in sorted(spans, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def spans_of(text: str, pieces: Iterable[tuple[str, Piece]]) -> list[Span]:
    """Pieces, each with the name of a setting, as spans of whole lines in their order."""
    groups = list[tuple[int, int, list[Span]]]()  # first line, last line, what changes in them
    for span in sorted(Span(piece.start, piece.end, piece.new, (name,)) for name, piece in pieces):
        first, last = text.rfind("\n", 0, span.start) + 1, text.find("\n", max(span.start, span.end - 1)) + 1
        within = [span]
        if groups and first < groups[-1][1]:
            first, _, others = groups.pop()
            within = [*others, span]
        groups.append((first, last or len(text), within))
    return [
        Span(
            first,
            last,
            splice(text[first:last], {Span(one.start - first, one.end - first, one.new) for one in within}),
            tuple(dict.fromkeys(name for one in within for name in one.names)),
        )
        for first, last, within in groups
    ]


def plain(value: Value) -> Value:
    """A value as a file writes it: a dtype is its name."""
    return value["$dtype"] if isinstance(value, Mapping) and "$dtype" in value else value


def same(found: Value, value: Value) -> bool:
    """Whether what a file holds is this value, if need be as text (PyYAML reads 1e-6 as text, a shell everything)."""
    value = plain(value)
    return equal(found, value) or (isinstance(found, str) and (found == str(value) or equal(parsed(found), value)))


def parsed(text: str) -> Value:
    """The value of a text in Python, YAML or a command line: a literal, else the text."""
    code = {"true": "True", "false": "False", "null": "None"}.get(text.strip().lower(), text.strip())
    try:
        return ast.literal_eval(code)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text.strip().strip("\"'")
