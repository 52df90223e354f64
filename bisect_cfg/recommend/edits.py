"""Which lines of the user's own files to change: file, line, old, new.

A setting may be a flag of the command, a line of a YAML file, or a value in Python: a keyword of a call, a key of a
dictionary, an attribute that is set, a field's default, an argparse default, or a constant that one of these names. A
place counts only if the value there is the one the run was seen to use; what computes its value is not guessed at.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_cfg.factors import equal

OTHER_NAMES = {"dtype": ("dtype", "torch_dtype")}
"""Settings that scripts spell in more than one way."""

CONFIG_CALLS = ("GRPOConfig", "TrainingArguments")
"""Calls that take a setting which the script does not mention yet."""


@dataclass(frozen=True)
class Change:
    """One setting and its two values.

    Attributes:
        name: as users and reports see it (`learning_rate`, `model.dtype`).
        old: the user's value.
        new: the one to use.
        added: whether the user does not set it at all so far.
    """

    name: str
    old: Any
    new: Any
    added: bool = False


@dataclass(frozen=True)
class Edit:
    """One place to change.

    Attributes:
        path: the file; None for the command line.
        line: number, from 1; 0 for the command line.
        old: the text of the line now.
        new: what it should be; "" if the line goes.
        names: settings that it changes.
    """

    path: Path | None
    line: int
    old: str
    new: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        new = self.new.strip() or "(remove it)"
        where = f"{self.path}:{self.line}" if self.path else "the command line"
        return f"{where}: {self.old.strip()} -> {new}"


def find_edits(
    changes: Sequence[Change], arguments: Sequence[str], python: Iterable[Path], yamls: Iterable[Path]
) -> tuple[list[Edit], list[str]]:
    """Where to make changes.

    Args:
        changes: what to change.
        arguments: of the script, as on the command line; they win over files.
        python: the script first, then what lies beside it.
        yamls: YAML files that may hold settings.

    Returns:
        The edits (one a line, in the order of the files), and the names that were found nowhere.
    """
    edits: list[Edit] = []
    left: list[Change] = []
    for change in changes:
        edit = _in_arguments(change, arguments)
        edits.append(edit) if edit else left.append(change)
    for path in yamls:
        left = _take(edits, left, path, _in_yaml)
    sources = [path for path in python if path.suffix == ".py"]
    for path in sources:
        left = _take(edits, left, path, _in_python)
    fresh = [change for change in left if change.added and "." not in change.name]
    if fresh and sources:
        rest = _take(edits, [_Together(tuple(fresh))], sources[0], _added_in_python)
        left = left if rest else [change for change in left if change not in fresh]
    return edits, [change.name for change in left]


@dataclass(frozen=True)
class _Together:
    """Changes that are made in one place."""

    changes: tuple[Change, ...]

    @property
    def name(self) -> str:
        return ", ".join(change.name for change in self.changes)


def unified_diff(edits: Sequence[Edit]) -> str:
    """The edits of files as a unified diff."""
    parts: list[str] = []
    for path in dict.fromkeys(edit.path for edit in edits if edit.path is not None):
        before = path.read_text(encoding="utf-8").splitlines(keepends=True)
        after = list(before)
        for edit in edits:
            if edit.path == path:
                end = "\n" if before[edit.line - 1].endswith("\n") else ""
                after[edit.line - 1] = edit.new + end if edit.new else ""
        parts += difflib.unified_diff(before, [l for line in after for l in line.splitlines(keepends=True)], str(path), str(path))
    return "".join(line if line.endswith("\n") else line + "\n" for line in parts)


# ------------------------------------------------------------------------------------------------ the command line


def _in_arguments(change: Change, arguments: Sequence[str]) -> Edit | None:
    for position, argument in enumerate(arguments):
        flag, separator, value = argument.partition("=")
        if flag.replace("-", "_") != f"__{change.name}":
            continue
        if not separator:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
        if equal(_parsed(value), change.old) or value == str(change.old):
            return Edit(None, 0, f"{flag} {value}", f"{flag} {change.new}", (change.name,))
    return None


def _parsed(value: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False", "null": "None"}.get(value.strip().lower(), value.strip()))
    except (ValueError, SyntaxError):
        return value.strip().strip("\"'")


# ---------------------------------------------------------------------------------------------------------- YAML


def _take(edits: list[Edit], changes: Sequence[Any], path: Path, find: Any) -> list[Any]:
    """Add the edits for what `find` finds in a file; returns the rest. Two changes in one line are one edit."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return list(changes)
    left = []
    for change in changes:
        for edit in edits:
            if edit.path == path:
                lines[edit.line - 1] = edit.new
        found = find(change, lines, path)
        if found is None:
            left.append(change)
            continue
        line, new = found
        same = next((edit for edit in edits if edit.path == path and edit.line == line), None)
        if same is not None:
            edits[edits.index(same)] = Edit(path, line, same.old, new, (*same.names, change.name))
        else:
            edits.append(Edit(path, line, lines[line - 1], new, (change.name,)))
    return left


def _in_yaml(change: Change, lines: Sequence[str], path: Path) -> tuple[int, str] | None:
    names = "|".join(map(re.escape, _spellings(change.name)))
    pattern = re.compile(rf"(?P<head>\s*(?:{names})\s*:\s*)(?P<value>[^#]*?)(?P<tail>\s*(?:#.*)?)")
    for number, line in enumerate(lines, 1):
        match = pattern.fullmatch(line)
        if match and (equal(_parsed(match["value"]), change.old) or match["value"] == str(change.old)):
            new = "" if change.new is None else match["head"] + _yaml(change.new) + match["tail"]
            return number, new
    return None


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text  # 1e-6 is text to YAML 1.1
    return str(value)


# -------------------------------------------------------------------------------------------------------- Python


def _spellings(name: str) -> tuple[str, ...]:
    last = name.rpartition(".")[2]
    return OTHER_NAMES.get(last, (last,))


def _in_python(change: Change, lines: Sequence[str], path: Path) -> tuple[int, str] | None:
    tree = _tree(lines)
    if tree is None:
        return None
    names = _spellings(change.name)
    for holder, value in _places(tree, names):
        target: ast.AST | None = value
        if isinstance(value, ast.Name):
            holder, target = None, _constant(tree, value.id)
        if target is None or not _means(target, change.old):
            continue
        if target.lineno != target.end_lineno:
            continue
        line = lines[target.lineno - 1]
        start, end = _columns(line, target.col_offset, target.end_col_offset)
        if change.new is None and isinstance(holder, ast.keyword) and holder.lineno == target.lineno:
            begin, _ = _columns(line, holder.col_offset, holder.end_col_offset)
            return target.lineno, _without(line, begin, end)
        return target.lineno, line[:start] + _literal(change.new, line[start:end]) + line[end:]
    return None


def _tree(lines: Sequence[str]) -> ast.Module | None:
    try:
        return ast.parse("\n".join(lines) + "\n")
    except SyntaxError:
        return None


def _columns(line: str, start: int, end: int) -> tuple[int, int]:
    """ast counts bytes."""
    data = line.encode()
    return len(data[:start].decode()), len(data[:end].decode())


def _places(tree: ast.AST, names: Sequence[str]) -> Iterator[tuple[ast.AST | None, ast.AST]]:
    """(what holds it, the value) of everything that gives a value to one of the names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in names:
            yield node, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in names:
                    yield None, value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in names:
                    yield None, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            if isinstance(node.target, ast.Name) and node.target.id in names:
                yield None, _default_of(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "add_argument" and any(_flag(argument) in names for argument in node.args):
                for word in node.keywords:
                    if word.arg == "default":
                        yield None, word.value


def _default_of(value: ast.AST) -> ast.AST:
    """The default inside of ``field(default=...)``."""
    if isinstance(value, ast.Call):
        return next((word.value for word in value.keywords if word.arg == "default"), value)
    return value


def _flag(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.lstrip("-").replace("-", "_")
    return ""


def _constant(tree: ast.AST, name: str) -> ast.AST | None:
    """The value of ``NAME = value``, if it is assigned exactly once."""
    values = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return values[0] if len(values) == 1 else None


def _means(node: ast.AST, value: Any) -> bool:
    """Whether an expression is this value, as far as can be read off."""
    if isinstance(node, ast.Attribute):  # torch.float16
        wanted = value.get("$dtype") if isinstance(value, Mapping) else value
        return node.attr == wanted
    try:
        return equal(ast.literal_eval(node), value)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return False


def _literal(value: Any, old: str) -> str:
    plain = value.get("$dtype") if isinstance(value, Mapping) and "$dtype" in value else value
    if isinstance(plain, str) and old.startswith("torch."):
        return f"torch.{plain}"
    text = repr(plain)
    return text.replace("'", '"') if isinstance(plain, str) and '"' not in text else text


def _without(line: str, start: int, end: int) -> str:
    """A line without the piece between two columns and the comma that belonged to it."""
    head, tail = line[:start], line[end:]
    if tail.lstrip().startswith(","):
        tail = tail.lstrip()[1:].lstrip(" ")
    else:
        head = re.sub(r",\s*$", "", head)
    return head.rstrip() + tail if not tail.strip() else head + tail if (head + tail).strip() else ""


def _added_in_python(together: _Together, lines: Sequence[str], path: Path) -> tuple[int, str] | None:
    """Settings as further keywords of the one call that builds the training config."""
    tree = _tree(lines)
    calls = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in CONFIG_CALLS
        and node.keywords
    ]
    if len(calls) != 1:
        return None
    last = calls[0].keywords[-1]
    if last.arg is None:
        return None
    number = last.value.end_lineno
    line = lines[number - 1]
    _, end = _columns(line, 0, last.value.end_col_offset)
    text = ", ".join(f"{change.name}={_literal(change.new, '')}" for change in together.changes)
    alone = line[:end].lstrip().startswith(f"{last.arg}=") and calls[0].lineno != number
    if alone:
        indent = line[: len(line) - len(line.lstrip())]
        rest = line[end:].lstrip(",")
        return number, f"{line[:end]},{rest}\n{indent}{text}," if not rest.strip().startswith(")") else (
            f"{line[:end]}, {text}{line[end:]}"
        )
    return number, f"{line[:end]}, {text}{line[end:]}"
