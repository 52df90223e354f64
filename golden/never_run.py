"""The functions of bisect_cfg that nothing ran, as a page: `python golden/never_run.py coverage.json > never_run.md`.

The input is what `coverage json` writes. What processes had run that ended by a signal, as trials do, must be merged
into its `executed_lines` beforehand: coverage has no data of them.
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
APART = "bisect_cfg/diagnosis"
NOT_MEASURED = """Not measured: `runner/supervisor_process.py` and `probe/native.py` as programs (`python -S -E`), audit
hooks (`probe/input_files.py`), and the studies that GOLDEN_SLOW=1 runs (`trials/environments.py`)."""
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef)


def never_run(node: ast.AST, executed: set[int], within: str = "") -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of the outermost functions of whose bodies no line was executed; without empty ones."""
    for child in ast.iter_child_nodes(node):
        name = within + child.name if isinstance(child, (*DEFINED, ast.ClassDef)) else within
        body = [] if not isinstance(child, DEFINED) else [one for one in child.body if not _says_nothing(one)]
        if body and not executed & {*range(body[0].lineno, child.end_lineno + 1)}:
            yield name, min([child.lineno, *(one.lineno for one in child.decorator_list)]), child.end_lineno
        else:
            yield from never_run(child, executed, f"{name}." if name != within else within)


def _says_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def main(measured: Path) -> None:
    told = json.loads(measured.read_text())["files"]
    executed = {Path(name).absolute(): set(one["executed_lines"]) for name, one in told.items()}
    folders: dict[str, dict[str, list[tuple[str, int, int]]]] = {}
    for path in sorted((ROOT / "bisect_cfg").rglob("*.py")):
        found = [*never_run(ast.parse(path.read_text()), executed.get(path, set()))]
        folders.setdefault(str(path.parent.relative_to(ROOT)), {})[path.name] = found
    print(f"# Functions that none of the goldens runs\n\n{NOT_MEASURED}\n")
    for folder, files in sorted(folders.items(), key=lambda item: (item[0].startswith(APART), item[0])):
        lines = {name: sum(last - first + 1 for _, first, last in found) for name, found in files.items()}
        print(f"## {folder}: {sum(map(len, files.values()))} functions, {sum(lines.values())} lines\n")
        for name, found in files.items():
            if found and folder.startswith(APART):
                print(f"- `{name}`: {len(found)} functions, {lines[name]} lines")
            elif found:
                said = ", ".join(f"`{function}` {first}-{last}" for function, first, last in found)
                print(textwrap.fill(f"- `{name}` ({lines[name]}): {said}", 120, subsequent_indent="  "))
        print()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
