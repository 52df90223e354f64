"""A change of a setting, a place in a text where the setting is given a value, and the spans that are exchanged there.

All places are found in a text as it is. What is to change is collected as pieces, and spliced once (`spans_of`).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bisect_cfg.common.configuration import Value, equal, is_number

OTHER_NAMES = {"dtype": ("dtype", "torch_dtype")}
"""Settings that scripts spell in more than one way."""

LARGEST_EXPONENT = 64
"""Powers up to this one are computed: ``10**-6`` and ``2**20`` are written, ``9**9**9`` would never end."""

GONE = object()
"""In a goal: what is no longer there."""

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One setting and its two values.

    Attributes:
        name: as users and reports write it (`learning_rate`, `model.dtype`).
        old: the value that the run had.
        new: the value to use; None removes the setting.
        added: whether the user does not set it so far.
    """

    name: str
    old: Value
    new: Value
    added: bool = False

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
        new: what is to stand there; None takes an item away, with its comma or its lines.
        goal: what is other in the text's content then: node of a syntax tree, or way to a value -> what is there.
    """

    start: int
    end: int
    new: str | None
    goal: Mapping[object, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a text gives a value to a name.

    Attributes:
        start: of the name or the value, to say the line.
        shown: the part of the text that gives the value.
        matches: whether the value is the one that the run had.
        put: value -> the piece that writes it there, None if that is not possible.
        read_from: other names that the value is read from (``lr`` of ``learning_rate=args.lr``).
    """

    start: int
    shown: str
    matches: bool
    put: Callable[[Value], Piece | None]
    read_from: tuple[str, ...] = ()


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


def spans_of(text: str, pieces: Iterable[tuple[str, Piece]], by_lines: bool) -> list[Span]:
    """Pieces, each with the name of a setting, as spans of whole lines in their order.

    Args:
        text: of the pieces.
        pieces: of the text.
        by_lines: whether an item that has its lines for itself goes with them, and the comma before it stays.
    """
    spans, gone = list[Span](), list[Span]()
    for name, piece in pieces:
        lines = whole_lines(text, piece.start, piece.end) if by_lines and piece.new is None else None
        if piece.new is None and lines is None:
            gone.append(Span(piece.start, piece.end, "", (name,)))
        else:
            spans.append(Span(*(lines or (piece.start, piece.end)), piece.new or "", (name,)))
    runs = list[Span]()  # of neighbours that go, with what is between them
    for span in sorted(gone):
        if runs and re.fullmatch(r"\s*,\s*", text[runs[-1].end : span.start]):
            runs[-1] = Span(runs[-1].start, span.end, "", runs[-1].names + span.names)
        else:
            runs.append(span)
    for run in runs:
        after, before = re.match(r"\s*,\s*", text[run.end :]), re.search(r"\s*,\s*$", text[: run.start])
        if after:
            run = run._replace(end=run.end + after.end())
        elif before:
            run = run._replace(start=before.start())
        spans.append(run)
    groups = list[tuple[int, int, list[Span]]]()  # first line, last line, what changes in them
    for span in sorted(spans):
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
            splice(text[first:last], [Span(one.start - first, one.end - first, one.new) for one in within]),
            tuple(dict.fromkeys(name for one in within for name in one.names)),
        )
        for first, last, within in groups
    ]


def whole_lines(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The lines that hold this part of a text and nothing else but a comma and a comment; None if they hold more."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    rest = text[end:last].lstrip(", \t").rstrip()
    return (first, last) if not text[first:start].strip() and (not rest or rest.startswith("#")) else None


def plain(value: Value) -> Value:
    """A value as a file writes it: a dtype is its name."""
    return value["$dtype"] if isinstance(value, Mapping) and "$dtype" in value else value


def same(found: Value, value: Value) -> bool:
    """Whether what a file holds is this value, if need be as text (PyYAML reads 1e-6 as text, a shell everything)."""
    value = plain(value)
    return equal(found, value) or (isinstance(found, str) and (found == str(value) or equal(parsed(found), value)))


def parsed(text: str) -> Value:
    """The value of a text in Python, YAML or a command line: a literal, or arithmetic with numbers; else the text."""
    code = {"true": "True", "false": "False", "null": "None"}.get(text.strip().lower(), text.strip())
    try:
        return _value(ast.parse(code, mode="eval").body)
    except (ValueError, SyntaxError, TypeError, ArithmeticError, MemoryError, RecursionError):
        return text.strip().strip("\"'")


def _value(node: ast.expr) -> Value:
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return ast.literal_eval(node)
    left, right = _value(node.left), _value(node.right)
    if not (is_number(left) and is_number(right)) or (isinstance(node.op, ast.Pow) and abs(right) > LARGEST_EXPONENT):
        raise ValueError(node)
    return _OPERATORS[type(node.op)](left, right)
