"""What a class takes as it is installed here, beside a log that says what it does not take.

The log may come from another environment; what is installed here tells all the same whether a setting is an old name
or a new one. Source is parsed, nothing is imported: that takes milliseconds, and works in a broken environment.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.metadata
import importlib.util
import re
from pathlib import Path

from bisect_cfg.diagnosis.advice.reading import called, pip_name
from bisect_cfg.parameters import successors

PLACES = {
    "trl": ("trainer/*.py", "scripts/utils.py", "experimental/*/*.py"),
    "transformers": ("training_args*.py", "trainer.py"),
    "accelerate": ("accelerator.py", "utils/dataclasses.py"),
    "peft": ("config.py", "tuners/*/config.py"),
}
"""Where the classes are that a training script makes."""

ALIKE, FEW = 0.7, 3
"""Names that share so much with the one in the message are worth showing, and so many of them."""

RENAMED = {"tokenizer": "processing_class", "max_seq_length": "max_length", "evaluation_strategy": "eval_strategy"}
"""What only the class tells whether it has it by the new name (SFTConfig's max_length, not another one's)."""

_OF_SETTINGS = re.compile(r"(?:Config|Configuration|Arguments)$")
_REFUSED = re.compile(r"\b(?P<owner>[A-Z]\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'")


def taken_here(message: str) -> str:
    """What the class in a message about an unexpected argument takes as it is installed here, and what follows.

    Returns:
        A sentence; "" if the message is another one, or the class is not installed here.
    """
    found = _REFUSED.search(message)
    if found is None:
        return ""
    owner, name = found["owner"], found["name"]
    package = next((package for package in PLACES if owner in _classes(package)), "")
    if not package:
        return ""
    taken = _arguments(package, owner)
    who = (
        f"looked up on this machine, not in the log: {called(package)} {importlib.metadata.version(pip_name(package))}"
    )
    if name in taken:
        return f"{who} has {name}: if the log is of another environment, that one is older (pip install -U {package})"
    if RENAMED.get(name) in taken:
        return f"{who} calls it {RENAMED[name]}: write that in {owner}(...)"
    if name in successors():
        return f"{who} has no {name}. {successors()[name].removesuffix('.')}"
    elsewhere = [other for other in _classes(package) if name in _arguments(package, other)]
    near = difflib.get_close_matches(owner, [other for other in elsewhere if _OF_SETTINGS.search(other)], 1, 0.0)
    if near:
        return f"{who} takes {name} in {near[0]}, not in {owner}"
    alike = difflib.get_close_matches(name, sorted(taken), FEW, ALIKE)
    sounds = f"; {', '.join(alike)} sound{'s' * (len(alike) == 1)} alike" if alike else ""
    return f"{who} has no {name}{sounds}: leave it out, or install the {called(package)} of the recipe's date"


def _arguments(package: str, owner: str) -> frozenset[str]:
    """The arguments and fields of a class, those of its bases included."""
    classes, seen, taken = _classes(package), set[str](), set[str]()
    waiting = [owner]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        where = classes if name in classes else _classes("transformers")
        if name in where:
            bases, arguments = where[name]
            waiting += bases
            taken |= arguments
    return frozenset(taken)


@functools.cache
def _classes(package: str) -> dict[str, tuple[list[str], set[str]]]:
    """The classes of a package by name: their bases, and their own arguments and fields."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    found: dict[str, tuple[list[str], set[str]]] = {}
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in (path for pattern in PLACES[package] for path in sorted(Path(folder).glob(pattern))):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (OSError, SyntaxError, ValueError):
                continue
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                    found.setdefault(node.name, (bases, _own(node)))
    return found


def _own(node: ast.ClassDef) -> set[str]:
    fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            fields |= {argument.arg for argument in (*one.args.args, *one.args.kwonlyargs)} - {"self"}
    return fields
