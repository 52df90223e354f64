"""A change of a setting, and a place in a text where the setting is given a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bisect_cfg.common.configuration import Value, equal

OTHER_NAMES = {"dtype": ("dtype", "torch_dtype")}
"""Settings that scripts spell in more than one way."""

LARGEST_EXPONENT = 64
"""Powers up to this one are computed: ``10**-6`` and ``2**20`` are written, ``9**9**9`` would never end."""

Piece = tuple[int, int, str]
"""Start and end of a part of a text, and what is to stand there."""

_ARITHMETIC = (
    ast.Expression, ast.Constant, ast.UnaryOp, ast.BinOp, ast.USub, ast.UAdd,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow,
)  # fmt: skip


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


def splice(text: str, *pieces: Piece) -> str:
    """The text with its pieces exchanged; they do not overlap."""
    for start, end, new in sorted(pieces, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def whole_lines(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The lines that hold this part of a text and nothing else but a comma and a comment; None if they hold more."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    rest = text[end:last].lstrip(", \t").rstrip()
    return (first, last) if not text[first:start].strip() and (not rest or rest.startswith("#")) else None


def removals(text: str, start: int, end: int) -> Iterator[Piece]:
    """What may remove an item that commas, or lines, separate from others: its whole lines; the comma after it, or
    before it, as well; or it alone. Which of them is right shows when the text is read again."""
    after, before = re.match(r"\s*,\s*", text[end:]), re.search(r"\s*,\s*$", text[:start])
    if (lines := whole_lines(text, start, end)) is not None:
        yield *lines, ""
    if after:
        yield start, end + after.end(), ""
    if before:
        yield before.start(), end, ""
    yield start, end, ""


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
        tree = ast.parse(code, mode="eval")
        if all(isinstance(node, _ARITHMETIC) and _is_small(node) for node in ast.walk(tree)):
            return eval(compile(tree, "", "eval"), {"__builtins__": {}})  # numbers and signs, nothing else
        return ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, ArithmeticError, MemoryError, RecursionError):
        return text.strip().strip("\"'")


def _is_small(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        return isinstance(exponent, ast.Constant) and abs(exponent.value) <= LARGEST_EXPONENT
    return True
