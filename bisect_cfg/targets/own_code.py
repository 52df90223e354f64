"""What the user's code says of its own settings: defaults of keys, which it reads, and what it makes of them."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bisect_cfg.common.words import number_of
from bisect_cfg.probe.protocol import Encoded
from bisect_cfg.targets.interpreters import MOST_MODULES, modules_of, tree_of

READERS = ("get", "pop", "setdefault", "getattr", "getenv")
"""What reads a key, its default last: ``config.get("window", 4)``, ``getattr(config, "window", 4)``."""

_KINDS = ("int", "float", "str", "bool", "list", "tuple")
"""What a value is turned into on its way: ``make_reward(window=int(config["window"]))``."""

_STEPS = 3
"""Through so many variables a value is followed: ``lr = args.lr``, ``rate = float(lr)``, ``learning_rate=rate``."""

Key = TypeVar("Key")

_CONFIGS = ("Config", "Arguments", "Args")
"""What the class ends with whose fields are a library's: a key that is read for one of them is handed on."""


@dataclass(frozen=True)
class OwnCode:
    """Of all modules of a script.

    Attributes:
        defaults: (section, key) -> the one default that the code has for it; the section is "" where it is not seen.
        read: keys that the code reads by name for something other than a field of a configuration object.
        given: field -> the expressions that the code gives it, what its variables were given in their place
            (``(every := args.every) or 500``).
        merged: key by its name with dots -> its value in a dictionary of defaults, with which a file is merged.
        variables: name -> the one plain value that variables of this name are given first.
    """

    defaults: Mapping[tuple[str, str], Encoded] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    given: Mapping[str, list[ast.expr]] = field(default_factory=dict)
    merged: Mapping[str, Encoded] = field(default_factory=dict)
    variables: Mapping[str, Encoded] = field(default_factory=dict)

    def default_of(self, name: str) -> tuple[Encoded, ...]:
        """The default of a key by its name with dots; none if the code has none. The elements of a list are alike."""
        if name in self.merged:  # then a reader's own default is never taken
            return (self.merged[name],)
        section, key = (["", ""] + [part for part in name.split(".") if not part.isdigit()])[-2:]
        return tuple(self.defaults[place] for place in ((section, key), ("", key)) if place in self.defaults)[:1]

    def default_of_variable(self, name: str) -> tuple[Encoded, ...]:
        """The default of a variable of the environment: ``os.environ.get("RATE", "1e-3")``."""
        return self.default_of(f"environ.{name}")

    def default_of_word(self, name: str) -> tuple[Encoded, ...]:
        """The default of a word of the command line (``lr=3e-4``), where a word can say it: of the key of its name, or
        of the variable."""
        found = self.default_of(name) or tuple(self.variables[one] for one in [name] if one in self.variables)
        plain = [value for value in found if isinstance(value, (bool, int, float, str))]
        numbers = [number_of(value) if isinstance(value, str) and value != "nan" else None for value in plain]
        return tuple(plain if number is None else number for number, plain in zip(numbers, plain, strict=True))

    def made_of(self, field: str) -> set[str]:
        """The keys and names of which the code makes a field."""
        return {name for expression in self.given.get(field, ()) for name in names_in(expression)}


def own_code(scripts: Iterable[str], fields: Iterable[str] = ()) -> OwnCode:
    """Read the code of scripts and of the modules beside them that they import, and what it gives these fields."""
    paths = {path for script in scripts for path in (Path(script), *modules_of(Path(script)))}
    found: dict[tuple[str, str], list[Encoded]] = {}
    read: set[str] = set()
    trees: list[ast.Module] = []
    for path in sorted(paths):
        try:
            tree = tree_of(path)
            defaults, names = _said_by(tree)
        except (OSError, ValueError, SyntaxError, RecursionError):  # it cannot be read
            continue
        trees.append(tree)
        read |= names
        for key, value in defaults:
            found.setdefault(key, []).append(value)
    once = _agreed({**_of_parameters(trees), **found})
    modules = [_module(tree) for tree in trees]
    given = {
        name: [_inlined(one, module, _STEPS) for module in modules for one in module.given.get(name, ())]
        for name in fields
    }
    return OwnCode(once, frozenset(read), given, _agreed(_of_dictionaries(trees)), _agreed(_of_variables(trees)))


def _agreed(found: Mapping[Key, list[Encoded]]) -> dict[Key, Encoded]:
    return {key: values[0] for key, values in found.items() if all(repr(one) == repr(values[0]) for one in values)}


@functools.lru_cache(maxsize=MOST_MODULES)
def _said_by(tree: ast.Module) -> tuple[list[tuple[tuple[str, str], Encoded]], set[str]]:
    """(Section, key) and default, as often as a module says one; and the keys that it reads."""
    assigned = _module(tree).assigned
    defaults, read, handed = [], Counter[str](), Counter[str]()
    for node in ast.walk(tree):
        for key, default in reads(node):
            read[key] += 1
            defaults += [((section_of(node, assigned), key), value) for value in _literal(default, assigned)]
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_CONFIGS):
            handed.update(key for inner in ast.walk(node) for key, _ in reads(inner))
    return defaults, set(read - handed)


class _Module(NamedTuple):
    """What is looked up in a module."""

    assigned: dict[str, ast.expr]  # variable -> what it was given, by the last assignment, or runs through
    defined: list[tuple[str, dict[str, tuple[Encoded, ...]]]]  # each function and class, its parameters' defaults
    calls: list[ast.Call]
    given: dict[str, list[ast.expr]]  # keyword, key, variable or attribute -> all that it is given
    parts: dict[tuple[str, str], ast.expr]  # variable and attribute or key of it -> what it was given


@functools.lru_cache(maxsize=MOST_MODULES)
def _module(tree: ast.Module) -> _Module:
    nodes = list(ast.walk(tree))
    assigned: dict[str, ast.expr] = {}
    given: dict[str, list[ast.expr]] = {}
    parts: dict[tuple[str, str], ast.expr] = {}
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name), *_], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                | ast.For(target=ast.Name(id=name), iter=value)
                | ast.comprehension(target=ast.Name(id=name), iter=value)
            ):
                assigned[name] = value
            case (
                ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=name)], value=value)
                | ast.Assign(targets=[ast.Subscript(ast.Name(id=owner), ast.Constant(str(name)))], value=value)
            ):
                parts[owner, name] = value
        for name, value in _given_by(node):
            given.setdefault(name, []).append(value)
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    return _Module(assigned, list(_defined_in(nodes, assigned)), calls, given, parts)


def _literal(value: ast.expr | None, assigned: Mapping[str, ast.expr]) -> tuple[Encoded, ...]:
    """The value of a default that is written out, or given to a variable; none if there is no such value."""
    if isinstance(value, ast.Name):
        value = assigned.get(value.id, value)
    with suppress(ValueError, TypeError, SyntaxError):  # it is no literal
        literal = {} if value is None else ast.literal_eval(value)
        if not isinstance(literal, (dict, set, bytes)):
            return (list(literal) if isinstance(literal, tuple) else literal,)
    return ()


def _of_dictionaries(trees: Iterable[ast.Module]) -> dict[str, list[Encoded]]:
    """Name with dots -> the values in dictionaries of defaults, with which what a file says is merged.

    Such a one is told by its name (``DEFAULTS = {"reward": {"window": 4}}``) or by what is done with it:
    ``config.update(loaded)``, ``{**config, **loaded}``, ``merge(config, loaded)``.
    """
    found: dict[str, list[Encoded]] = {}

    def add(sections: str, of: ast.Dict, assigned: Mapping[str, ast.expr]) -> None:
        for key, value in zip(of.keys, of.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                continue
            if isinstance(value, ast.Dict):
                add(f"{sections}{key.value}.", value, assigned)
            elif literal := _literal(value, assigned):
                found.setdefault(sections + key.value, []).extend(literal)

    for tree in trees:
        assigned = _module(tree).assigned
        based = _merged_with(tree)
        for name, value in assigned.items():
            if isinstance(value, ast.Call) and len(value.args) == 1:  # OmegaConf.create({...})
                value = value.args[0]
            if isinstance(value, ast.Dict) and ("default" in name.lower() or name in based):
                add("", value, assigned)
    return found


def _of_variables(trees: Iterable[ast.Module]) -> dict[str, list[Encoded]]:
    """Name -> the literal that the first variable of this name is given in each module, of functions last."""
    found: dict[str, list[Encoded]] = {}
    for tree in trees:
        first: dict[str, Encoded] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    given = [*zip(names, values, strict=False)]
                case ast.Assign(targets=[one], value=value) | ast.AnnAssign(target=one, value=ast.expr() as value):
                    given = [(one, value)]
                case _:
                    continue
            for target, value in given:
                name = target.id if isinstance(target, ast.Name) else ""
                for literal in _literal(value, {}) if name else ():
                    first.setdefault(name, literal)
        for name, literal in first.items():
            found.setdefault(name, []).append(literal)
    return found


def _merged_with(tree: ast.Module) -> set[str]:
    """The variables into which, or with which, something is merged."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="update"), args=[ast.Name() | ast.Call()]):
                found.add(name)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Name())]):  # config[key] = value
                found.add(name)
            case ast.Call(func=function, args=[first, _, *_]) if "merge" in _last_name(function):
                found |= {one.id for one in ast.walk(first) if isinstance(one, ast.Name)}
            case (
                ast.Dict(keys=[None, *_], values=[ast.Name(id=name), *_])
                | ast.BinOp(left=ast.Name(id=name), op=ast.BitOr())
            ):
                found.add(name)
    return found


def _of_parameters(trees: Iterable[ast.Module]) -> dict[tuple[str, str], list[Encoded]]:
    """(Section, key) -> the defaults of the parameters that a key is handed to.

    ``make_reward(**config["reward"])`` hands on each key of a section by its name, ``make_reward(config["window"])``
    one key to a parameter, of a function or a class of the script's own, whose name stands for one alone.
    """
    modules = [_module(tree) for tree in trees]
    defined: dict[str, list[dict[str, tuple[Encoded, ...]]]] = {}
    for name, parameters in (one for module in modules for one in module.defined):
        defined.setdefault(name, []).append(parameters)
    found: dict[tuple[str, str], list[Encoded]] = {}
    for call, assigned in ((call, module.assigned) for module in modules for call in module.calls):
        function, given = call.func, call.args
        if _last_name(function) == "partial" and given:
            function, given = given[0], given[1:]
        of_name = defined.get(_last_name(function), [])
        if len(of_name) == 1:
            words = [(word.arg, word.value) for word in call.keywords]
            for place, default in _handed([*zip(of_name[0], given, strict=False), *words], of_name[0], assigned):
                found.setdefault(place, []).append(default)
    return found


def _handed(
    given: Iterable[tuple[str | None, ast.expr]],
    parameters: Mapping[str, tuple[Encoded, ...]],
    assigned: Mapping[str, ast.expr],
) -> Iterator[tuple[tuple[str, str], Encoded]]:
    """(Section, key) of each key that is given to a parameter (None: to all by their names), and its default."""
    for parameter, value in given:
        value = _bare(value, assigned)
        key = _key_read(value, assigned)
        if parameter is None:
            handed = {(key, name): default for name, default in parameters.items()}
        else:
            handed = {(section_of(value, assigned), key): parameters.get(parameter, ())} if key else {}
        yield from ((place, default) for place, defaults in handed.items() for default in defaults)


def _defined_in(
    nodes: Iterable[ast.AST], assigned: Mapping[str, ast.expr]
) -> Iterator[tuple[str, dict[str, tuple[Encoded, ...]]]]:
    """Each function and class of a module, with its parameters and their defaults, none where one has none."""
    for node in nodes:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        made: ast.stmt = node
        if isinstance(node, ast.ClassDef):
            made = next((one for one in node.body if getattr(one, "name", "") == "__init__"), node)
        match made:
            case ast.FunctionDef(args=of) | ast.AsyncFunctionDef(args=of) if (
                made is not node or made.name != "__init__"
            ):
                names = [one.arg for one in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
                values = [*of.defaults, *of.kw_defaults]
                pairs = [*zip(names, [None] * (len(names) - len(values)) + values, strict=True)]
            case ast.ClassDef(body=body):
                pairs = [(one.target.id, one.value) for one in body
                         if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]  # fmt: skip
        yield node.name, {one: _literal(value, assigned) for one, value in pairs if one not in ("self", "cls")}


def _last_name(function: ast.expr) -> str:
    return getattr(function, "id", getattr(function, "attr", ""))


def _given_by(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Each field, argument or variable that a node of the code gives something, and what."""
    match node:
        case ast.Call(keywords=words):
            yield from ((word.arg, word.value) for word in words if word.arg)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
        case (
            ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value)
            | ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))], value=value)
        ):
            yield name, value


def _part(node: ast.AST, module: _Module) -> tuple[str, ast.expr | None]:
    """The name of a variable, or of an attribute or key that is read, and what that was given; None if it is not seen.
    Of an object or a dictionary it is what that one part was given."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name, module.assigned.get(name)
        case ast.Attribute(owner, name, ast.Load()) | ast.Subscript(owner, ast.Constant(str(name)), ast.Load()):
            _, whole = _part(owner, module)
            given = dict(_given_by(whole)) if whole is not None else {}
            return name, module.parts.get((getattr(owner, "id", ""), name), given.get(name))
    return "", None


def _inlined(node: ast.expr, module: _Module, steps: int) -> ast.expr:
    """The same with what its variables, and the parts of them that it reads, were given beside their names."""
    name, found = _part(node, module)
    if found is not None and steps:
        return ast.NamedExpr(ast.Name(name, ast.Store()), _inlined(found, module, steps - 1))

    def within(value: Any) -> Any:  # fields of nodes are of any kind
        if isinstance(value, list):
            return [within(one) for one in value]
        if isinstance(value, ast.AST) and not isinstance(value, ast.expr):
            return type(value)(**{part: within(one) for part, one in ast.iter_fields(value)})
        return _inlined(value, module, steps) if isinstance(value, ast.expr) else value

    return type(node)(**{part: within(value) for part, value in ast.iter_fields(node)})


def names_in(expression: ast.AST) -> set[str]:
    """The keys and names in an expression, not those of the objects that keys are read of."""
    match expression:
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            return {name} | names_in(value)
        case ast.Name(id=name):
            return {name}
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method not in READERS:
            inner = [owner, *expression.args, *expression.keywords]
        case _ if read := list(reads(expression)):
            return {key for key, _ in read}.union(*(names_in(default) for _, default in read if default is not None))
        case _:
            inner = list(ast.iter_child_nodes(expression))
    return set().union(*map(names_in, inner))


def section_of(node: ast.AST, assigned: Mapping[str, ast.expr]) -> str:
    """The key under which stands what an expression reads a key of: ``config["reward"].get("window", 4)``, also by a
    name that was given to it; "" if it is not seen."""
    match node:
        case ast.Call(func=ast.Name(), args=[owner, *_]):
            return _key_read(owner, assigned)
        case ast.Call(func=ast.Attribute(value=owner)) | ast.Subscript(value=owner) | ast.Attribute(value=owner):
            return _key_read(owner, assigned)
    return ""


def _key_read(value: ast.expr, assigned: Mapping[str, ast.expr]) -> str:
    """The key that an expression reads by itself, "" if it reads none."""
    return next((key for key, _ in reads(_bare(value, assigned))), "")


def _bare(value: ast.expr, assigned: Mapping[str, ast.expr]) -> ast.expr:
    """An expression without the name that it was given to, what stands for it if it is empty, and its conversion."""
    match value:
        case ast.Name(id=name) if name in assigned:
            return _bare(assigned[name], {})
        case ast.NamedExpr(value=inner):
            return _bare(inner, {})
        case ast.BoolOp(values=[first, *_]):  # ``config.get("reward") or {}``
            return _bare(first, {})
        case ast.Call(func=ast.Name(id=kind), args=[inner]) if kind in _KINDS:
            return _bare(inner, {})
    return value


def reads(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The key that an expression reads (of ``found["--cap"]`` it is `cap`), and the expression of its default if it has
    one."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load()):
            yield _word(key), None
        case ast.Attribute(attr=key, ctx=ast.Load()):
            yield key, None
        case ast.Call(func=ast.Attribute(attr=reader) | ast.Name(id=reader), args=args) if reader in READERS:
            match args[reader == "getattr" :]:
                case [ast.Constant(value=str(key)), *default]:
                    yield _word(key), default[0] if default else None


def _word(key: str) -> str:
    return key.lstrip("-").replace("-", "_") if key.startswith("-") else key
