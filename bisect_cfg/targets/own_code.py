"""What the user's code says of its own settings: defaults of keys, which it reads, and what it makes of them."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bisect_cfg.probe.protocol import Encoded
from bisect_cfg.targets.interpreters import MOST_MODULES, modules_of, tree_of

_READERS = ("get", "pop", "setdefault", "getattr")
"""What reads a key, its default last: ``config.get("window", 4)``, ``getattr(config, "window", 4)``."""

_STEPS = 3
"""Through so many variables a value is followed: ``lr = args.lr``, ``rate = float(lr)``, ``learning_rate=rate``."""

_CONFIGS = ("Config", "Arguments", "Args")
"""What the class ends with whose fields are a library's: a key that is read for one of them is handed on."""


@dataclass(frozen=True)
class OwnCode:
    """Of all modules of a script.

    Attributes:
        defaults: (section, key) -> the one default that the code has for it; the section is "" where it is not seen.
        read: keys that the code reads by name for something other than a field of a configuration object.
        made_of: field, argument or variable -> the keys and names from which the code makes it.
    """

    defaults: Mapping[tuple[str, str], Encoded] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    made_of: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def default_of(self, name: str) -> Encoded:
        """The default of a key by its name with dots, None if the code has none."""
        sections, _, key = name.rpartition(".")
        section = sections.rpartition(".")[2]
        return self.defaults.get((section, key), self.defaults.get(("", key)))


def own_code(scripts: Iterable[str]) -> OwnCode:
    """Read the code of scripts and of the modules beside them that they import."""
    paths = {path for script in scripts for path in (Path(script), *modules_of(Path(script)))}
    found: dict[tuple[str, str], list[Encoded]] = {}
    read: set[str] = set()
    made_of: dict[str, frozenset[str]] = {}
    for path in sorted(paths):
        try:
            defaults, names, made = _said_by(tree_of(path))
        except (OSError, ValueError, SyntaxError, RecursionError):  # it cannot be read
            continue
        read |= names
        made_of |= {name: made_of.get(name, frozenset()) | keys for name, keys in made.items()}
        for key, value in defaults:
            found.setdefault(key, []).append(value)
    once = {key: values[0] for key, values in found.items() if all(repr(one) == repr(values[0]) for one in values)}
    return OwnCode(once, frozenset(read), made_of)


@functools.lru_cache(maxsize=MOST_MODULES)
def _said_by(tree: ast.Module) -> tuple[list[tuple[tuple[str, str], Encoded]], set[str], dict[str, frozenset[str]]]:
    """(Section, key) and default, as often as a module says one; the keys that it reads; and what it makes of which."""
    assigned = {node.targets[0].id: node.value for node in ast.walk(tree)
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    defaults, read, handed = [], Counter(), Counter()
    for node in ast.walk(tree):
        for key, default in _reads(node):
            read[key] += 1
            value = assigned.get(default.id, default) if isinstance(default, ast.Name) else default
            with suppress(ValueError, TypeError, SyntaxError):  # it is no literal
                literal = None if value is None else ast.literal_eval(value)
                if literal is not None and not isinstance(literal, (dict, set, bytes)):
                    section = _section(node, assigned)
                    defaults.append(((section, key), list(literal) if isinstance(literal, tuple) else literal))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_CONFIGS):
            handed.update(key for inner in ast.walk(node) for key, _ in _reads(inner))
    return defaults, set(read - handed), _made_of(tree, assigned)


def _made_of(tree: ast.AST, assigned: Mapping[str, ast.expr]) -> dict[str, frozenset[str]]:
    """Field, argument or variable -> the keys and names in the expression that it is given, and in what those are."""
    found: dict[str, frozenset[str]] = {}

    def add(name: str, value: ast.expr) -> None:
        found[name] = found.get(name, frozenset()) | _names_in(value, assigned, _STEPS)

    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str(name), value=value):
                add(name, value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        add(key.value, value)
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
                add(name, value)
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))], value=value):
                add(name, value)
    return found


def _names_in(value: ast.expr, assigned: Mapping[str, ast.expr], steps: int) -> frozenset[str]:
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    keys = {key for node in ast.walk(value) for key, _ in _reads(node)}
    inner = (_names_in(assigned[name], assigned, steps - 1) for name in names if name in assigned and steps)
    return frozenset(names | keys).union(*inner)


def _section(node: ast.AST, assigned: Mapping[str, ast.expr]) -> str:
    """The key under which stands what an expression reads a key of: ``config["reward"].get("window", 4)``, also by a
    name that was given to it."""
    owner = node.args[0] if isinstance(node.func, ast.Name) else node.func.value
    if isinstance(owner, ast.Name):
        owner = assigned.get(owner.id, owner)
    if isinstance(owner, ast.BoolOp):  # ``config.get("reward") or {}``
        owner = owner.values[0]
    return next((key for key, _ in _reads(owner)), "")


def _reads(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The key that an expression reads, and the expression of its default if it has one."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load()):
            yield key, None
        case ast.Attribute(attr=key, ctx=ast.Load()):
            yield key, None
        case ast.Call(func=ast.Attribute(attr=reader) | ast.Name(id=reader), args=args) if reader in _READERS:
            match args[reader == "getattr" :]:
                case [ast.Constant(value=str(key)), *default]:
                    yield key, default[0] if default else None
