"""What the package imports is what pyproject.toml declares, and its rooms import from below."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"

GOES_BY = {"ipython": "IPython", "pyyaml": "yaml"}
"""Distributions that are imported under another name."""

OURS = {"bisect_cfg", "_bisect_cfg_probe", "protocol"}
"""`probe/native.py` runs as a script of its own, with `protocol.py` beside it."""

RUN_BY_USERS = re.compile(r"probe/|targets/ask_accelerate\.py|doctor/gpu_probes\.py|engines/ray_process\.py").match
"""Of a file: whether it is run by the interpreter that trains, or that of a cluster."""


def imported() -> dict[str, set[str]]:
    """Top-level module -> the files that import it."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "bisect_cfg").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(ROOT / "bisect_cfg")))
    return {name: paths for name, paths in found.items() if name not in sys.stdlib_module_names | OURS}


FLOORS = (
    {"errors", "crash", "interrupts", "probe", "common"},
    {"search"},
    {"store"},
    {"targets", "explain"},
    {"runner", "rewrite"},
    {"recommend", "remedy", "doctor"},
    {"reports", "report", "engines"},
    {"kinds"},
    {"options"},
    {"study"},
    {"api", "background", "job", "cli", "entry", "__init__", "__main__"},
)
"""The rooms of the package, lowest first: none imports one that lies higher, nor, from the search up to the story, one
beside it."""


def imported_rooms() -> dict[tuple[str, str], str]:
    """(room, room that it imports) -> a file that does."""
    found: dict[tuple[str, str], str] = {}
    package = ROOT / "bisect_cfg"
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "bisect_cfg":
                names = [f"bisect_cfg.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                if name.startswith("bisect_cfg."):
                    other = name.split(".")[1]
                    found[room, other] = str(path.relative_to(ROOT))
    return found


def test_imports_point_down() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    arrows = {pair: path for pair, path in imported_rooms().items() if pair[0] != pair[1]}
    assert arrows
    assert {pair: path for pair, path in arrows.items() if floor[pair[1]] > floor[pair[0]]} == {}
    rooms = range(1, len(FLOORS) - 1)
    assert {pair: path for pair, path in arrows.items() if floor[pair[1]] == floor[pair[0]] in rooms} == {}


def imported_modules() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, inside of functions and for types alone, too."""
    paths = {}
    for path in (ROOT / "bisect_cfg").rglob("*.py"):
        paths[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = set()
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
                base = ".".join(filter(None, (base, node.module)))
                names |= {one if (one := f"{base}.{alias.name}") in paths else base for alias in node.names}
        found[module] = (names & paths.keys()) - {module}
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = imported_modules()
    assert sum(map(len, graph.values())) > len(graph)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def declared(requirements: list[str]) -> set[str]:
    """The modules of distributions."""
    names = (re.split(r"[^\w.-]", text)[0].lower() for text in requirements)
    return {GOES_BY.get(name, name).replace("-", "_") for name in names}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    """What only another interpreter runs may import what a training or a cluster has, which is in an extra."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    ours, of_others = declared(project["dependencies"]), declared([*extras["train"], *extras["ray"]])
    by_us = {name: rest for name, paths in imported().items() if (rest := {p for p in paths if not RUN_BY_USERS(p)})}
    assert by_us.keys() == ours
    assert imported().keys() <= ours | of_others


def test_no_private_name_of_optuna() -> None:
    found = []
    for path in (ROOT / "bisect_cfg").rglob("*.py"):
        text = path.read_text("utf-8")
        if "optuna" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value)
                if owner not in ("self", "cls"):
                    found.append(f"{path.name}: {owner}.{node.attr}")
    assert found == []


@pytest.mark.parametrize("folder", ["studies", "golden", "docs"])
def test_programs_beside_the_package_import_what_is_there(folder: str) -> None:
    missing = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bisect_cfg":
                module = importlib.import_module(node.module)
                missing += [(path.name, one.name) for one in node.names if not hasattr(module, one.name)]
    assert not missing
