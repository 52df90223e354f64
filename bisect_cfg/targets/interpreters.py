"""Which Python a command of any kind runs, and the same command with the programs of another environment.

The first word tells: an interpreter, a program that names one in its first line (``#!``), as pip and uv write them, or
one that lies beside the interpreter of an environment. Of any other (a shell) only the user knows, who says it with
``--python``. Wherever a command's words name programs beside that interpreter, a trial has those of its own
environment; what the command starts by name finds them first, as in an environment that is activated.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bisect_cfg.errors import InputError

PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
"""What an interpreter is called."""

_OWN_CHOICE = ("uv", "uvx", "poetry", "pipenv", "pdm", "hatch", "pixi", "rye", "conda", "mamba", "micromamba", "tox",
               "docker", "podman", "apptainer", "singularity", "ssh", "ray")  # fmt: skip
"""Programs that choose the environment of what they start by themselves, whatever is first on PATH."""

MOST_MODULES = 500
"""So many modules of a script's own are looked for."""

_READ = 512
"""Characters of a program's beginning that are read: its first lines, with a path each."""


def python_of(words: Sequence[str], told: str | None = None) -> str:
    """The interpreter whose packages a command uses; `told` is what stands after ``--python``.

    Raises:
        InputError: it cannot be told, or there is none.
    """
    name = os.path.basename(words[0])
    if name in _OWN_CHOICE:
        raise InputError(
            f"`{name}` chooses the environment its command runs in, so no trial can be given another one.",
            "Name the program itself, as in: -- .venv/bin/python train.py {flags}",
        )
    found = told or named_by(words[0]) or _beside(words[0])
    if found is None:
        raise InputError(
            f"Which Python `{name}` runs is not known, so its packages cannot be varied.",
            "Name it, as in --python .venv/bin/python. Trials then find the programs of another environment first on "
            "PATH.",
        )
    path = shutil.which(found)
    if path is None:
        raise InputError(f"There is no Python interpreter {found}.", "--python takes its path, or its name on PATH.")
    return os.path.abspath(path)


def runs_code(words: Sequence[str]) -> bool:
    """Whether a command is an interpreter with its code in an argument (``python -u -c``): no file to watch."""
    if not PYTHON.fullmatch(os.path.basename(words[0])):
        return False
    flags = itertools.takewhile(lambda word: word.startswith("-") and word != "--", words[1:])
    return any(re.fullmatch(r"-[A-Za-z]*c", flag) for flag in flags)


def said_by(command: Sequence[str], seconds: float) -> Any:
    """The last line that a command prints, read as JSON; None if that cannot be had in so many seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def named_by(word: str) -> str | None:
    """The interpreter that a program is, or that its first line names."""
    path = shutil.which(word)
    if path is None:
        return None
    if PYTHON.fullmatch(os.path.basename(path)):
        return path
    try:
        with open(path, "rb") as stream:
            lines = stream.read(_READ).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not lines or not lines[0].startswith("#!"):
        return None
    told = lines[0][2:].split()
    if told[:1] == ["/bin/sh"] and len(lines) > 1 and lines[1].startswith("'''exec'"):
        told = shlex.split(lines[1].removeprefix("'''exec'"))  # a path too long for a first line, as pip writes it
    if told and os.path.basename(told[0]) == "env":
        told = [one for one in told[1:] if not one.startswith("-")]
    return told[0] if told and PYTHON.fullmatch(os.path.basename(told[0])) else None


def _beside(word: str) -> str | None:
    """The interpreter of the environment that a program lies in."""
    folder = os.path.dirname(os.path.abspath(shutil.which(word) or word))
    return os.path.join(folder, "python") if _of_environment(folder) else None


def moved(words: Sequence[str], own: str, python: str) -> list[str]:
    """A command with the programs beside the interpreter `python` in place of those beside the interpreter `own`."""
    here, there = os.path.dirname(own), Path(python).parent
    first = os.path.abspath(shutil.which(words[0]) or words[0])
    if os.path.dirname(first) == here or PYTHON.fullmatch(os.path.basename(first)):
        beginning = [str(there / os.path.basename(first))]
    else:
        named = named_by(words[0])
        beginning = [python, first] if named is not None else [words[0]]
    if os.path.dirname(first) == here and not _of_environment(here) and not os.path.exists(beginning[0]):
        beginning = [words[0]]  # a program of the system's, beside its Python
    for word in words[1:]:
        other = there / os.path.basename(word)
        ours = os.sep in word and os.path.dirname(os.path.abspath(word)) == here
        beginning.append(str(other) if ours and other.exists() else word)
    return beginning


def _of_environment(folder: str) -> bool:
    """Whether a folder of programs is that of an environment."""
    return os.path.exists(os.path.join(os.path.dirname(folder), "pyvenv.cfg"))


def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module as it is now; one that was read before and has not changed is not parsed again.

    Raises:
        OSError, ValueError, SyntaxError, RecursionError: it cannot be read.
    """
    return _parsed(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=MOST_MODULES)
def _parsed(path: Path, changed: int) -> ast.Module:
    return ast.parse(path.read_bytes())


def modules_of(script: Path) -> list[Path]:
    """The modules that a Python script imports, directly or through one another, as its text says: from its folder, or
    from one of the two above it, where `python -m` may be started."""
    found: dict[Path, None] = {}
    waiting = [script]
    while waiting and len(found) < MOST_MODULES:
        importing = waiting.pop()
        folders = [importing.parent, *importing.parent.parents[:2]]
        try:
            tree = tree_of(importing)
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        for node in ast.walk(tree):
            names = [one.name for one in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{name}" for name in names)]
            for name in (name for name in names if name.partition(".")[0] not in sys.stdlib_module_names):
                within = [name.split(".")[:number] for number in range(1, name.count(".") + 2)]
                parts = [folder.joinpath(*part) for folder in folders for part in within]
                for path in (file for part in parts for file in (part.with_suffix(".py"), part / "__init__.py")):
                    if path not in found and path != script and path.is_file():
                        found[path] = None
                        waiting.append(path)
    return list(found)
