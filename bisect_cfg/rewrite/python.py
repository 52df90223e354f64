"""Places in Python, by a walk over its syntax tree.

What a source gives to names is collected: keywords of calls, keys of dictionaries, assignments, defaults of fields, of
parameters and of options. Where a name stands in place of a value, the caller asks for that name next
(`Place.read_from`). Only the text of the value is exchanged, and the new source must parse to the same tree with
nothing else changed (`proven`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from bisect_cfg.common.configuration import Configuration, Value, present
from bisect_cfg.rewrite.places import Places
from bisect_cfg.rewrite.spans import Change, Piece, Place, parsed, plain, same

HOLDERS = {"model": ("from_pretrained", "ModelConfig"), "peft": ("LoraConfig",)}
"""Namespace -> the calls that take its settings as keywords; all others are those of the training config."""

ARGS = "args"
"""The namespace of the training config."""

CONVERSIONS = ("float", "int", "str", "bool")
"""Calls whose argument is the value."""


@dataclass(frozen=True, eq=False)
class _Gift:
    """A value that is given to a name."""

    name: str  # the name
    value: ast.expr | None  # the node of the value; None where a statement binds the name to what is not written there
    kind: str  # "keyword", "key", "attribute", "default" or "variable"
    holder: ast.Call | ast.Dict | None = None  # of a keyword its call, of a key its dictionary
    also: tuple[str, ...] = ()  # other names of the same (the flags of an option)
    within: str = ""  # of a key, the name that its dictionary is given to
    source: _Source | None = None  # the file


class _Source:
    """One file, read; what it gives to names is in `gifts`."""

    def __init__(self, path: Path, text: str, tree: ast.Module) -> None:
        self.path, self.text, self.tree, self.nodes = path, text, tree, list(ast.walk(tree))
        self._lines = text.split("\n")
        self._starts = [0, *accumulate(len(line) + 1 for line in self._lines)]
        found = [gift for node in self.nodes for gift in _gifts_of(node)]
        names = {id(gift.value): gift.name for gift in found}
        self.gifts = [replace(gift, within=names.get(id(gift.holder), ""), source=self) for gift in found]

    def span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """From where a node begins in the text to where it ends."""
        ends = ((node.lineno, node.col_offset), (present(node.end_lineno), present(node.end_col_offset)))
        start, end = (self._starts[line - 1] + len(self._lines[line - 1].encode()[:at].decode()) for line, at in ends)
        return start, end

    def code(self, node: ast.expr) -> str:
        return self.text[slice(*self.span(node))]


def _gifts_of(node: ast.AST) -> Iterator[_Gift]:
    """What one node gives to names."""
    match node:
        case ast.Call():
            yield from (_Gift(word.arg, word.value, "keyword", node) for word in node.keywords if word.arg)
            if _called(node.func) == "setattr" and len(node.args) == 3:
                yield _Gift(_string(node.args[1]), node.args[2], "attribute")
            names, default = _option(node), [word.value for word in node.keywords if word.arg == "default"]
            yield from (_Gift(name, default[0], "default", also=names) for name in names if default)
        case ast.Dict():
            entries = zip(map(_string, node.keys), node.values, strict=True)
            yield from (_Gift(name, value, "key", node) for name, value in entries if name)
        case ast.Assign():
            yield from (_assigned(target, node.value, "variable") for target in node.targets)
        case ast.AnnAssign(value=ast.expr() as value):
            yield _assigned(node.target, _default_of(value), "default")
        case ast.AugAssign() | ast.For() | ast.comprehension():
            yield _assigned(node.target, None, "variable")
        case ast.arguments():
            positional = [*node.posonlyargs, *node.args][::-1]
            pairs = [
                *zip(positional, node.defaults[::-1], strict=False),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]
            yield from (_Gift(one.arg, _default_of(value), "default") for one, value in pairs if value is not None)


def _assigned(target: ast.expr, value: ast.expr | None, kind: str) -> _Gift:
    match target:
        case ast.Attribute():
            return _Gift(target.attr, value, "attribute")
        case ast.Subscript():
            return _Gift(_string(target.slice), value, "key")
        case ast.Name():
            return _Gift(target.id, value, kind)
    return _Gift("", value, kind)


def _option(call: ast.Call) -> tuple[str, ...]:
    """The names of what argparse or click is told of an option; () of another call."""
    if _called(call.func) not in ("add_argument", "option"):
        return ()
    named = [_string(word.value) for word in call.keywords if word.arg == "dest"]
    return (*named, *(_string(word).lstrip("-").replace("-", "_") for word in call.args if _string(word)))


@lru_cache(maxsize=64)
def _source(path: Path, text: str) -> _Source | None:
    tree = None if "\r" in text.replace("\r\n", "") else _tree(text)  # a line ends there for Python, and for no editor
    return None if tree is None else _Source(path, text, tree)


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _sources(texts: Mapping[Path, str]) -> list[_Source]:
    return [source for path, text in texts.items() if (source := _source(path, text)) is not None]


def proven(path: Path, text: str, after: str, goal: Mapping[ast.AST, object]) -> bool:
    """Whether a new text of a source parses to its tree with these nodes exchanged."""
    source, tree = _source(path, text), _tree(after)
    try:
        return source is not None and tree is not None and _form(source.tree, goal) == _form(tree, {})
    except RecursionError:
        return False


def _form(node: object, goal: Mapping[ast.AST, object]) -> object:
    """A tree as values that can be compared, with some nodes exchanged."""
    if isinstance(node, ast.AST):
        node = goal.get(node, node)
    if isinstance(node, list):
        return [_form(one, goal) for one in node]
    if not isinstance(node, ast.AST):
        return repr(node)
    return type(node), [_form(value, goal) for _, value in ast.iter_fields(node)]


# -------------------------------------------------------------------------------------------------------- places


def places(where: Places, change: Change, names: Collection[str]) -> list[tuple[Path, Place]]:
    """Where the sources of a run give a value to one of the names.

    If the call that builds the training config names the setting, nothing else counts.
    """
    sources, config = _sources(where.python), where.config
    gifts = [gift for source in sources for gift in source.gifts if gift.name in names]
    if change.name in where.assigned:
        gifts = [gift for gift in gifts if gift.kind == "attribute"]
    elif change.key in names:
        namespace = change.name.partition(".")[0]
        classes = HOLDERS.get(namespace, (config,))
        line = where.built.get(namespace if namespace in HOLDERS else ARGS)
        calls = [call for _, call in _config_calls(sources, classes, line)]
        direct = [gift for gift in gifts if change.field and gift.within == change.field]
        gifts = direct or [gift for gift in gifts if gift.kind == "keyword" and gift.holder in calls] or gifts
    own = {node.name for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)}
    held = ((one, one.holder) for one in gifts)
    gifts = [one for one, by in held if not isinstance(by, ast.Call) or _counts(_called(by.func), own, config)]
    bound = {gift.name for gift in gifts if gift.value is None}
    once = {id(gift.value): gift for gift in gifts if gift.value is not None}  # an option has several names
    return [(present(gift.source).path, _place(gift, change, gift.name not in bound)) for gift in once.values()]


def _config_calls(
    sources: Iterable[_Source], names: Iterable[str], line: tuple[str, int] | None
) -> list[tuple[_Source, ast.Call]]:
    """Calls of these classes and of the user's own subclasses; of several, the one on that line."""
    known = set(filter(None, names))  # a script that died before has no training config
    classes = [node for source in sources for node in source.nodes if isinstance(node, ast.ClassDef)]
    while more := {one.name for one in classes if known & set(map(_called, one.bases))} - known:
        known |= more
    calls = [(source, node) for source in sources for node in source.nodes if isinstance(node, ast.Call)]
    found = [(source, call) for source, call in calls if _called(call.func) in known]
    there = [
        (source, call)
        for source, call in found
        if line and str(source.path.absolute()) == line[0] and call.lineno <= line[1] <= present(call.end_lineno)
    ]
    return there or found


def _counts(owner: str, own: Collection[str], config: str) -> bool:
    """Whether a call's keywords may be the run's: not those of another config of a library (SFTConfig)."""
    other = owner.endswith(("Config", "Arguments")) and owner not in (config, "LoraConfig", "ModelConfig")
    return not other or owner in own


def _place(gift: _Gift, change: Change, certain: bool) -> Place:
    """A gift as a place; certain: nothing else binds its name to what is not written there."""
    value, source = present(gift.value), present(gift.source)
    node = value
    while isinstance(node, ast.Call) and _called(node.func) in CONVERSIONS and len(node.args) == 1:
        node = node.args[0]
    code = source.code(node)
    shown = f"{gift.name}{'=' if gift.kind == 'keyword' else ' = '}{source.code(value)}"
    dtype = isinstance(node, ast.Attribute) and _called(node.value) == "torch"  # torch.float16, or its name
    read_from = () if dtype else _names(node)
    now = node.attr if isinstance(node, ast.Attribute) and dtype else parsed(code)
    literal_there = dtype or isinstance(node, ast.Constant) or not isinstance(now, str)
    matches = certain and not read_from and literal_there and same(now, change.old)

    def put(new: Value) -> Piece | None:
        made = _tree(written := literal(new, code))
        first = None if made is None else made.body[0]
        return Piece(*source.span(node), written, {node: first.value}) if isinstance(first, ast.Expr) else None

    return Place(source.span(value)[0], " ".join(shown.split()), matches, put, (*read_from, *gift.also))


def _names(node: ast.expr) -> tuple[str, ...]:
    """The names that a value is read from: ``lr``, ``args.lr``, ``config["lr"]``, ``config.get("lr")``."""
    match node:
        case ast.Name():
            return (node.id,)
        case ast.Attribute():
            return (node.attr,)
        case ast.Subscript():
            return tuple(filter(None, [_string(node.slice)]))
        case ast.Call() if _called(node.func) in ("get", "getattr"):
            return tuple(filter(None, map(_string, node.args[:2])))
    return ()


# -------------------------------------------------------------------------------------------------------- new settings


def added(where: Places, values: Configuration) -> tuple[Path, Piece] | None:
    """The piece that adds keywords to the one call that builds the training config; None if that cannot be done."""
    found = _config_calls(_sources(where.python), (where.config,), where.built.get(ARGS))
    given = [source.span(one)[1] for source, call in found for one in (*call.args, *(k.value for k in call.keywords))]
    if len(found) != 1 or not given:
        return None
    source, call = found[0]
    pairs = ", ".join(f"{name}={literal(value)}" for name, value in values.items())
    more = [ast.keyword(name, ast.parse(literal(value), mode="eval").body) for name, value in values.items()]
    goal = {call: ast.Call(call.func, call.args, [*call.keywords, *more])}
    return source.path, Piece(max(given), max(given), f", {pairs}", goal)


def call_of(where: Places) -> tuple[Path, int] | None:
    """The file of the one call that builds the training config, and where it stands; None if it is not one."""
    found = _config_calls(_sources(where.python), (where.config,), where.built.get(ARGS))
    return (found[0][0].path, found[0][0].span(found[0][1])[0]) if len(found) == 1 else None


def literal(value: Value, old: str = "") -> str:
    """A value as Python writes it, in the manner of the old code."""
    value = plain(value)
    if isinstance(value, str) and old.startswith("torch."):
        return f"torch.{value}"
    text = repr(value)
    single = isinstance(value, str) and '"' not in text and not old.startswith("'")
    return text.replace("'", '"') if single else text


# ---------------------------------------------------------------------------------------------------- syntax trees


def _called(node: ast.expr) -> str:
    """The last name of what is called: ``GRPOConfig`` of ``trl.GRPOConfig``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _string(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _default_of(value: ast.expr) -> ast.expr:
    """The default inside of ``field(default=...)``, ``field(default_factory=lambda: ...)`` and ``Option(...)``."""
    given = {word.arg: word.value for word in value.keywords} if isinstance(value, ast.Call) else {}
    made = given.get("default", given.get("default_factory", value))
    if isinstance(made, ast.Lambda):
        return made.body
    if made is value and isinstance(value, ast.Call) and _called(value.func) in ("Option", "Argument") and value.args:
        return value.args[0]
    return made
