"""What docstrings say of arguments and fields is complete, and about arguments and fields that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import bisect_cfg

PACKAGE = Path(bisect_cfg.__file__).parent
_ENTRY = re.compile(r"    (?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*):(?:\s|$)")


def described(docstring: str, heading: str) -> list[str]:
    """The names that a section of a docstring describes."""
    _, _, section = docstring.partition(f"{heading}\n")
    names: list[str] = []
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        if entry := _ENTRY.match(line):
            names += entry["names"].split(", ")
    return names


def parameters(function: ast.FunctionDef) -> list[str]:
    """Of a function, stars included, without self and cls."""
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return [name for name in names if name not in ("self", "cls")]


def differences(tree: ast.Module) -> list[str]:
    """Functions and classes whose docstring is not about what they take."""
    wrong = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        text = ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            init = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
            fields = [one.target.id for one in node.body if isinstance(one, ast.AnnAssign)]
            pairs = [("Attributes:", fields or None), ("Args:", parameters(init) if init else None)]
        else:
            pairs = [("Args:", parameters(node))]
        for heading, there in pairs:
            if there is not None and heading in text and set(described(text, heading)) != set(there):
                wrong.append(f"line {node.lineno}, {node.name}: {described(text, heading)}, but has {there}")
    return wrong


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_describe_what_is_there(path: Path) -> None:
    assert differences(ast.parse(path.read_text("utf-8"))) == []


def test_a_swallowed_argument_is_found() -> None:
    source = 'def f(a, b):\n    """F.\n\n    Args:\n        a: first, and\n        more. b: second.\n    """'
    assert differences(ast.parse(source)) == ["line 1, f: ['a'], but has ['a', 'b']"]
