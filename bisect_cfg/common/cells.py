"""A notebook's code cells, and which line of a notebook that was made a script is which cell's.

A cell is counted as Jupyter counts after "Restart and run all": the n-th that is not empty. In the script
``# %% In [n]`` stands before it, and each of its lines stands for the one in the notebook with the same number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.common.files import load_json, read_text

SUFFIX = ".ipynb"

MARK = "# %% In [{}]"
"""Before a cell in the script; editors know the beginning of it as that of a cell."""

_MARKED = re.compile(r"# %% In \[(\d+)\]")
_CUT = re.compile(rf"^{_MARKED.pattern}\n", re.MULTILINE)
_IN_TRACEBACK = re.compile(r'File "(?P<path>[^"\n]+\.ipynb\.py)", line (?P<line>\d+)(?:, in <module>)?')


class CellLine(NamedTuple):
    """A line of a cell, counted from 1, with its text."""

    notebook: str
    cell: int
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.notebook}, cell {self.cell}, line {self.line}"


def code_cells(text: str) -> list[str]:
    """The code cells of a notebook that are not empty, by the text of its file: JSON, of format 3 or later
    (https://nbformat.readthedocs.io/en/latest/format_description.html). A ValueError if it is none."""
    try:
        content = load_json(text)
        sheets = content["worksheets"] if "worksheets" in content else [content]
        cells = [cell for sheet in sheets for cell in sheet["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"] if "source" in cell else cell["input"]) for cell in cells]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("it has no cells as notebooks have") from error
    return [source for source in sources if source.strip()]


def script_of(notebook: Path, folder: Path) -> Path:
    """Where in a folder a notebook lies that was made a script; no module can have such a name."""
    return folder / f"{notebook.name}.py"


def place_of(path: str | Path, line: int) -> CellLine | None:
    """The line of the notebook that a line of a script stands for; None if it stands for none."""
    path = Path(path)
    if not is_made(path):
        return None
    try:
        return place_in(read_text(path), line, path)
    except (OSError, ValueError):
        return None


def is_made(path: Path) -> bool:
    """Whether a script is one that was a notebook, by its name."""
    return path.name.endswith(f"{SUFFIX}.py")


def place_in(text: str, line: int, path: Path) -> CellLine | None:
    """The same, of a script with this text."""
    lines, notebook = text.split("\n") if is_made(path) else [], path.name.removesuffix(".py")
    for before in range(min(line, len(lines)) - 1, -1, -1):
        if (found := _MARKED.fullmatch(lines[before])) is not None:
            own = line - before - 1
            return CellLine(notebook, int(found[1]), own, lines[line - 1].strip()) if own else None
    return None


def cells_in(text: str) -> dict[int, str]:
    """The cells of a script that was a notebook, by number; 0 is what stands before the first."""
    parts = [part[:-1] if part.endswith("\n\n") else part for part in _CUT.split(text)]  # an empty line between
    return {0: parts[0], **{int(number): cell for number, cell in zip(parts[1::2], parts[2::2], strict=True)}}


def named(path: str, line: int, function: str, otherwise: Callable[[str], str]) -> str:
    """A frame of a stack in words: ``train.py:27 in reward``, ``train.ipynb, cell 4, line 3 in reward: y = x``; a file
    that is no notebook is named by `otherwise`."""
    place = place_of(path, line)
    if place is None:
        return f"{otherwise(path)}:{line} in {function}"
    within = "" if function == "<module>" else f" in {function}"
    return f"{place}{within}: {place.text}"


def with_cells(text: str) -> str:
    """A text that quotes tracebacks, with the cells in place of the lines of a script."""

    def cell(match: re.Match[str]) -> str:
        return str(place_of(match["path"], int(match["line"])) or match[0])

    return _IN_TRACEBACK.sub(cell, text)
