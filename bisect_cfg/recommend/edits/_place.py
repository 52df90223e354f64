"""What a change is, and a place in a file where it may be made. Texts are changed by exchanging pieces of
them, so that whatever is not changed stays as it is, byte by byte."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.common.configuration import Value, equal

OTHER_NAMES = {"dtype": ("dtype", "torch_dtype")}
"""Settings that scripts spell in more than one way."""

LARGEST_EXPONENT = 64
"""Powers of numbers up to this one are worked out: 10**-6 and 2**20 are written, 9**9**9 would never end."""

_ARITHMETIC = (
    ast.Expression, ast.Constant, ast.UnaryOp, ast.BinOp, ast.USub, ast.UAdd,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow,
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One setting and its two values.

    Attributes:
        name: as users and reports see it (`learning_rate`, `model.dtype`).
        old: the user's value.
        new: the one to use; None: the setting goes.
        added: whether the user does not set it at all so far.
    """

    name: str
    old: Value
    new: Value
    added: bool = False

    @property
    def _keys(self) -> list[str]:
        """The keys that lead to it where it is set, the outermost first."""
        first, *rest = self.name.split(".")
        return rest if rest and first in ("model", "peft", "script", "env") else [first, *rest]

    @property
    def field(self) -> str:
        """The setting that holds the dictionary of which this is a key (`model_init_kwargs`), "" if it is no key."""
        return self._keys[-2] if len(self._keys) > 1 else ""

    @property
    def key(self) -> str:
        """What it is called where it is set."""
        return self._keys[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """All that it may be called there."""
        return OTHER_NAMES.get(self.key, (self.key,))


@dataclass(frozen=True)
class Occurrence:
    """Somewhere in a file that a name is given a value.

    Attributes:
        path: of the file.
        line: from 1.
        shown: the piece of text that gives it.
        matches: whether the value there is the one the run was seen to use.
        read_from: other names that the value is read from (`lr` of ``learning_rate=args.lr``).
        put: value -> the file's text with that value there; None if it cannot be said there.
    """

    path: Path
    line: int
    shown: str
    matches: bool
    read_from: tuple[str, ...] = ()
    put: Callable[[Value], str | None] = lambda value: None


def splice(text: str, *pieces: tuple[int, int, str]) -> str:
    """A text with pieces of it exchanged, each (start, end, what stands there instead)."""
    for start, end, new in sorted(pieces, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def whole_lines(text: str, start: int, end: int, closing: str = ",") -> tuple[int, int] | None:
    """The lines that hold a piece of a text and nothing else but a comment; None if there is more in them.

    Args:
        text: of the file.
        start: of the piece.
        end: of the piece.
        closing: characters that may follow it.
    """
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last + 1
    rest = text[end:last].lstrip(closing + " \t").rstrip()
    return (first, last) if not text[first:start].strip() and (not rest or rest.startswith("#")) else None


def without_item(text: str, spans: Iterable[tuple[int, int]], item: tuple[int, int]) -> str:
    """A text without one of the items that commas separate between brackets."""
    lines, items = whole_lines(text, *item), sorted(spans)
    index = items.index(item)
    last = index + 1 == len(items) and not text[item[1] :].lstrip().startswith(",")
    if lines is not None and not (last and index):  # of the last one the comma before it goes along: JSON takes none
        return splice(text, (*lines, ""))
    if index + 1 < len(items):
        return splice(text, (item[0], items[index + 1][0], ""))
    return splice(text, (items[index - 1][1] if index else item[0], item[1], ""))


def plain(value: Value) -> Value:
    """A value as a file would say it: a dtype is its name."""
    return value["$dtype"] if isinstance(value, Mapping) and "$dtype" in value else value


def same(found: Value, value: Value) -> bool:
    """Whether what stands in a file is a value, if need be as text (PyYAML takes 1e-6 for text, a shell all)."""
    value = plain(value)
    return equal(found, value) or (isinstance(found, str) and (found == str(value) or equal(parsed(found), value)))


def parsed(text: str) -> Value:
    """The value of a text in Python, YAML or on a command line: of a literal, or of arithmetic with numbers."""
    plain_text = text.strip()
    plain_text = {"true": "True", "false": "False", "null": "None"}.get(plain_text.lower(), plain_text)
    try:
        return ast.literal_eval(plain_text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        tree = ast.parse(plain_text, mode="eval")
        if all(isinstance(node, _ARITHMETIC) and _is_small(node) for node in ast.walk(tree)):
            return eval(compile(tree, "", "eval"), {"__builtins__": {}})  # numbers and signs, nothing else
    except (ValueError, SyntaxError, TypeError, ArithmeticError, MemoryError, RecursionError):
        pass
    return text.strip().strip("\"'")


def _is_small(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        return isinstance(exponent, ast.Constant) and abs(exponent.value) <= LARGEST_EXPONENT
    return True
