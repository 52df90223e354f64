"""A notebook as a target: its code cells, in their order, made the script that they amount to.

Lines of IPython's own (``!nvidia-smi``, ``%cd``, ``%%bash``) become the calls of ``get_ipython()`` that IPython itself
makes of them; it is asked for each, so that every line stays where it is. That is what nbconvert does too, which would
bring two dozen packages besides IPython (a server's among them) into an environment that trains, and hands on a cell
under ``%%time`` as one string, in which no line can be found again.

What only concerns the page (``%matplotlib``, ``%%capture``, ``%%time``) is left out, and packages are not installed: a
trial must not change what the next one runs in. What Jupyter has and a plain script lacks is put in front: ``display``,
and the notebook's folder on ``sys.path``.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bisect_cfg.common.cells import MARK, code_cells
from bisect_cfg.common.files import read_text
from bisect_cfg.errors import InputError

_LANGUAGES = ("python", "python3", "ipython", "ipython3")

_INSTALLS = re.compile(
    r"(?:^\s*|[;&|(]\s*|\b(?:sudo|then|do|time)\s+|\s-m\s+)(?:\w+=\S*\s+)*(?:\S*/)?"
    r"(?:pip[\d.]*\s+(?:-\S+\s+)*(?:un)?install|uv\s+(?:-\S+\s+)*(?:pip\s+(?:(?:un)?install|sync)|add|sync|remove)"
    r"|(?:apt|apt-get|aptitude|dpkg|conda|mamba|micromamba|poetry)\s+(?:-\S+\s+)*"
    r"(?:install|update|upgrade|add|remove|-i)\b)",
    re.MULTILINE,
)
"""Commands of a shell, and magics of the same words, that change what is installed."""

_OF_THE_PAGE = re.compile(
    r"(?:matplotlib|pylab|config|autoreload|aimport|tensorboard|pinfo2?|pdoc|psource|who|whos|history|precision|xmode"
    r"|colors|load_ext (?:autoreload|tensorboard)|reload_ext (?:autoreload|tensorboard))\b.*",
    re.DOTALL,
)
"""Magics that change what is shown, and nothing that is computed."""

_CELLS_OF_THE_PAGE = ("html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG")
_TRANSPARENT = ("capture", "time", "prun", "wandb")
"""Magics over a cell whose code runs as it would without them."""
_SHELLS = ("bash", "sh", "script", "!", "sx", "system")

_NO_CODE = re.compile(r"\s*(?:#.*)?$")
_FUTURE = re.compile(r"^from __future__ import ([\w ,]+)", re.MULTILINE)
_LEFT_OUT = "pass  # left out: "


@dataclass(frozen=True)
class Notebook:
    """A notebook that was made a script.

    Attributes:
        text: of the script.
        notes: what is not run as it stands there.
    """

    text: str
    notes: tuple[str, ...]


def read_notebook(path: Path) -> list[str]:
    """The code cells of a notebook.

    Raises:
        InputError: it is none, or none in Python, or has no code.
    """
    try:
        text = read_text(path, "utf-8-sig")
        cells, told = code_cells(text), json.loads(text).get("metadata") or {}
        language = told.get("language_info", {}).get("name") or told.get("kernelspec", {}).get("language") or "python"
    except OSError as error:
        raise InputError(f"The notebook {path} cannot be read: {error.strerror}.", "Check its permissions.") from None
    except (ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is not a notebook: {error}.",
            "Open it in Jupyter and save it again, or name the .py file that trains.",
        ) from None
    if language.lower() not in _LANGUAGES:
        raise InputError(f"The notebook {path} is in {language}, and only Python can be run.", "Name one in Python.")
    if not cells:
        raise InputError(f"The notebook {path} has no code in it.", "Save it in Jupyter first, if it has some there.")
    return cells


def as_script(
    path: Path, cells: Sequence[str], python: str, lacking: Callable[[Sequence[str]], Collection[str]]
) -> Notebook:
    """Make a script of a notebook.

    Args:
        path: of the notebook.
        cells: its code.
        python: the interpreter that is to run it.
        lacking: which of some modules that one does not have.

    Raises:
        InputError: a cell is no Python, or needs IPython where there is none.
    """
    made = [_Cell(path.name, number).made(source) for number, source in enumerate(cells, 1)]
    for_ipython = next((line for cell in made for line in cell.for_ipython), "")
    if for_ipython and lacking(["IPython"]):
        raise InputError(
            f"A line of the notebook is for IPython, which {python} does not have: {for_ipython}",
            "Install ipython there, or take the line out of the notebook.",
        )
    parts = [_head(path, made), *(f"{MARK.format(number)}\n{cell.text}" for number, cell in enumerate(made, 1))]
    installs = "; ".join(line for cell in made for line in cell.installs)
    notes = (f"Not run, because trials install nothing: {installs}.",) if installs else ()
    return Notebook("\n".join(parts), notes)


class _Call(NamedTuple):
    """A call of `get_ipython()`."""

    method: str
    arguments: list[str]


@dataclass
class _Cell:
    """One cell on its way into the script."""

    notebook: str
    number: int
    text: str = ""
    installs: list[str] = field(default_factory=list)
    for_ipython: list[str] = field(default_factory=list)
    future: list[str] = field(default_factory=list)

    def made(self, source: str) -> _Cell:
        lines = [f"{line}\n" for line in source.rstrip().split("\n")]
        if not _is_python(source):
            lines = self._without_magics(lines)
        self.text = "".join(lines)
        try:
            _check(self.text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            quoted = (self.text.split("\n")[line - 1 : line] or [""])[0].strip()
            raise InputError(
                f"{self._at(line)} is not valid Python ({getattr(error, 'msg', error)}): {quoted}",
                "Fix the cell, and save the notebook.",
            ) from None
        self.future = [name for names in _FUTURE.findall(self.text) for name in re.split(r"[\s,]+", names.strip())]
        self.text = _FUTURE.sub("pass", self.text)  # a script has it at its beginning
        return self

    def _at(self, line: int) -> str:
        return f"{self.notebook}, cell {self.number}, line {line}"

    # ------------------------------------------------------------------------------------------- lines of IPython

    def _without_magics(self, lines: list[str]) -> list[str]:
        """The lines, as many as there were, with what IPython makes of its own ones."""
        first = next((number for number, line in enumerate(lines) if not _NO_CODE.match(line)), 0)
        if lines[first].startswith("%%"):  # Colab lets its own comments stand before it (`#@title`)
            return self._under_magic(lines, first)
        first = next(number for number, line in enumerate(lines) if line.strip())
        from IPython.core.inputtransformer2 import TRANSFORM_LOOP_LIMIT, TransformerManager, leading_indent

        manager = TransformerManager()
        lines = lines[:first] + leading_indent(lines[first:])
        for _ in range(TRANSFORM_LOOP_LIMIT):
            try:
                changed, after = manager.do_one_token_transform(lines)
            except SyntaxError:  # the cell is no Python, which is said in a moment
                break
            if not changed:
                break
            start, end, new = _difference(lines, after)
            lines = lines[:start] + self._made_of("".join(new), lines[start:end], start + 1) + lines[end:]
        return lines

    def _under_magic(self, lines: list[str], first: int) -> list[str]:
        """The lines of a cell under a magic of its own, which stands in the line `first`."""
        name, _, line = lines[first][2:].strip().partition(" ")
        blank, body = lines[:first], lines[first + 1 :]
        if name in _TRANSPARENT:
            rest = [*blank, "\n", *body]
            plain = _is_python("".join(body))
            return [*blank, f"# {lines[first]}", *(rest if plain else self._without_magics(rest))[first + 1 :]]
        if name in _SHELLS:
            for position, one in enumerate(body):
                if _INSTALLS.search(one):
                    self._not_installed(one, first + position + 2)
                    body[position] = "\n"
        if name in _CELLS_OF_THE_PAGE or (name in _SHELLS and not "".join(body).strip()):
            return [*blank, f"{_LEFT_OUT}%%{name}\n", *["\n"] * len(body)]
        self.for_ipython.append(f"{self._at(first + 1)}: {lines[first].strip()}")
        call = f"get_ipython().run_cell_magic({name!r}, {line!r}, {''.join(body)!r})\n"
        return [*blank, call, *["\n"] * len(body)]

    def _made_of(self, new: str, old: list[str], line: int) -> list[str]:
        """What stands in place of lines that IPython has made a call of."""
        indent = new[: len(new) - len(new.lstrip())]
        left, call = _call_in(new.strip())
        quoted = "".join(old).strip()
        empty = f"{indent}{left}[]\n" if left else f"{indent}{_LEFT_OUT}{' '.join(quoted.split())}\n"
        if call is None:
            made = new
        elif _INSTALLS.search(" ".join(call.arguments)):
            self._not_installed(quoted, line)
            made = empty
        elif call.method == "run_line_magic" and _OF_THE_PAGE.fullmatch(" ".join(call.arguments)):
            made = empty
        elif call.method == "run_line_magic" and call.arguments[0] == "time" and call.arguments[1]:
            made = f"{indent}{left}{call.arguments[1]}\n"
        else:
            self.for_ipython.append(f"{self._at(line)}: {quoted}")
            made = new
        return [made, *["\n"] * (len(old) - 1)]

    def _not_installed(self, command: str, line: int) -> None:
        self.installs.append(f"{' '.join(command.split())} (cell {self.number}, line {line})")


def _check(source: str) -> None:
    """See that a cell is Python.

    Raises:
        SyntaxError, ValueError: it is not.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(source, "cell", "exec", dont_inherit=True)


def _is_python(source: str) -> bool:
    try:
        _check(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _difference(before: list[str], after: list[str]) -> tuple[int, int, list[str]]:
    """(from, to) of the lines that were changed, and what stands there now."""
    start = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before))
    rest = min(len(before), len(after)) - start
    same = next((n for n in range(rest) if before[-1 - n] != after[-1 - n]), rest)
    return start, len(before) - same, after[start : len(after) - same]


def _call_in(text: str) -> tuple[str, _Call | None]:
    """What stands left of a call of `get_ipython()` (``files = ``), and the call."""
    try:
        node: Any = ast.parse(text).body[0]
        node = node.value
        if node.func.value.func.id == "get_ipython":
            call = _Call(node.func.attr, [argument.value for argument in node.args])
            return text[: text.index("get_ipython()")], call
    except (SyntaxError, AttributeError, IndexError):
        pass
    return "", None


# ---------------------------------------------------------------------------------------------- in front of the cells


def _head(path: Path, cells: Sequence[_Cell]) -> str:
    """What Jupyter has done before the first cell."""
    path = path.absolute()
    code = "\n".join(cell.text for cell in cells)
    future = sorted({name for cell in cells for name in cell.future})
    parts = [
        f"""
        # {path.name}, made a script by bisect-cfg: after "In [n]" stands the n-th cell with code in it.
        """,
        f"from __future__ import {', '.join(future)}" if future else "",
        f"""
        def _as_in_jupyter():
            import sys
            sys.path[:] = [{str(path.parent)!r} if place == sys.path[0] else place for place in sys.path]
            sys.argv[0] = {str(path)!r}
            globals().pop("__file__", None)  # a process that is spawned does not run the cells again
        _as_in_jupyter()
        """,
        _IPYTHON if "get_ipython()" in code else "",
        _DISPLAY if re.search(r"\bdisplay\(", code) else "",
    ]
    return "\n".join(filter(None, (textwrap.dedent(part).strip() for part in parts))) + "\n"


# No history: it is kept by a thread, and with one nothing can be forked.
_IPYTHON = """
def get_ipython():
    import sys
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    if not InteractiveShell.initialized():
        without_history = Config({"HistoryManager": {"enabled": False}})
        shell = InteractiveShell.instance(config=without_history, user_module=sys.modules["__main__"])
        shell.system = shell.system_raw
    return InteractiveShell.instance()
"""

_DISPLAY = """
try:
    from IPython.display import display
except ImportError:
    display = print
"""
