"""Changes of Python sources.

libcst says what the sources hold, where in the text it stands, and what a name means where it is used; only
the piece that gives the value is exchanged. What computes its value is not guessed at: it is said where
that happens.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import libcst as cst
from libcst.metadata import (
    Assignment,
    ByteSpanPositionProvider,
    CodeSpan,
    ImportAssignment,
    MetadataWrapper,
    Scope,
    ScopeProvider,
)

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.recommend.edits._place import (
    Change,
    Occurrence,
    parsed,
    plain,
    same,
    splice,
    whole_lines,
    without_item,
)

HOLDERS = {"model": ("from_pretrained", "ModelConfig"), "peft": ("LoraConfig",)}
"""Namespace -> the calls that its settings are keywords of; all others are of the training config's."""

ARGS = "args"
"""The namespace of the training config's own."""

CONVERSIONS = ("float", "int", "str", "bool")
"""Calls whose argument is the value."""

DEEPEST = 5
"""So many names are followed from one to the next."""


@dataclass(frozen=True, eq=False)
class _Gift:
    """A value that is given to a name.

    Attributes:
        name: to which.
        value: what is given.
        kind: "keyword", "key", "attribute", "default" or "variable".
        owner: of a keyword, what is called.
        whole: what has to go with the value, and the items it is one of; None if it cannot go.
        also: other names of the same (the flags of an argparse option).
    """

    name: str
    value: cst.CSTNode
    kind: str
    owner: str = ""
    whole: tuple[cst.CSTNode, tuple[cst.CSTNode, ...]] | None = None
    also: tuple[str, ...] = ()


@dataclass(eq=False)
class _Source(cst.CSTVisitor):
    """One file, read."""

    path: Path
    text: str
    tree: MetadataWrapper
    spans: Mapping[cst.CSTNode, CodeSpan] = field(default_factory=dict)
    scopes: Mapping[cst.CSTNode, Scope | None] = field(default_factory=dict)
    gifts: list[_Gift] = field(default_factory=list)
    calls: list[cst.Call] = field(default_factory=list)
    bases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)

    # What libcst calls for each node of the tree.

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.bases[node.name.value] = tuple(_called(base.value) for base in node.bases)

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append(node)
        owner = _called(node.func)
        for argument in node.args:
            if argument.keyword is not None:
                gift = _Gift(argument.keyword.value, argument.value, "keyword", owner, (argument, tuple(node.args)))
                self.gifts.append(gift)
        if owner == "setattr" and len(node.args) == 3 and (name := _string(node.args[1].value)):
            self.gifts.append(_Gift(name, node.args[2].value, "attribute"))
        if owner in ("add_argument", "option"):  # of argparse, of click
            given = {word.keyword.value: word.value for word in node.args if word.keyword is not None}
            flags = [_string(word.value) for word in node.args if word.keyword is None]
            names = [
                *filter(None, [_string(given.get("dest"))]),
                *(flag.lstrip("-").replace("-", "_") for flag in flags),
            ]
            for name in names:
                if "default" in given:
                    self.gifts.append(_Gift(name, given["default"], "default", also=tuple(names)))
                if "action" in given:
                    self.switches.add(name)

    def visit_Dict(self, node: cst.Dict) -> None:
        for element in node.elements:
            if isinstance(element, cst.DictElement) and (name := _string(element.key)):
                self.gifts.append(_Gift(name, element.value, "key", whole=(element, tuple(node.elements))))

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._assigned(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.target, _default_of(node.value), "default")

    def visit_Param(self, node: cst.Param) -> None:
        if node.default is not None:
            self.gifts.append(_Gift(node.name.value, _default_of(node.default), "default"))

    def _assigned(self, target: cst.CSTNode, value: cst.CSTNode, kind: str = "variable") -> None:
        if isinstance(target, cst.Attribute):
            self.gifts.append(_Gift(target.attr.value, value, "attribute"))
        elif isinstance(target, cst.Subscript) and (name := _index(target)):
            self.gifts.append(_Gift(name, value, "key"))
        elif isinstance(target, cst.Name):
            self.gifts.append(_Gift(target.value, value, kind))

    # What is asked of it.

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where a node stands in the text."""
        found = self.spans[node]
        data = self.text.encode()
        start = len(data[: found.start].decode())
        return start, start + len(data[found.start : found.start + found.length].decode())

    def code(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def line(self, node: cst.CSTNode) -> int:
        return self.text.count("\n", 0, self.span(node)[0]) + 1

    def last_line(self, node: cst.CSTNode) -> int:
        return self.text.count("\n", 0, self.span(node)[1]) + 1


@lru_cache(maxsize=64)
def _source(path: Path, text: str) -> _Source | None:
    """One file, read; None if it is not Python, or not all of it is kept by libcst (form feeds are not)."""
    try:
        tree = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except (cst.ParserSyntaxError, ValueError, RecursionError):
        return None
    if tree.module.code != text:
        return None
    spans, scopes = tree.resolve(ByteSpanPositionProvider), tree.resolve(ScopeProvider)
    source = _Source(path, text, tree, spans, scopes)
    tree.module.visit(source)
    return source


def switches(texts: Mapping[Path, str]) -> set[str]:
    """Options of argparse that take no value."""
    return {name for source in _sources(texts) for name in source.switches}


BuiltAt = Mapping[str, tuple[str, int]]
"""Namespace of settings -> the line (absolute path, number) that was seen to build what has them."""


def places(
    texts: Mapping[Path, str], change: Change, names: Collection[str], config: str, assigned: bool, built: BuiltAt
) -> list[Occurrence]:
    """Where the sources give a value to one of the names.

    If the training config is built in one of them and the call names the setting, that is where it is given, and
    nothing else counts.

    Args:
        texts: path -> text, the script first.
        change: what is looked for.
        names: what it may be called.
        config: the class of the training config.
        assigned: whether the run was seen to set it as an attribute, after the config was built.
        built: where; of several calls that one counts.
    """
    sources = _sources(texts)
    if assigned:
        return _as_places(
            sources,
            [(s, g) for s in sources for g in s.gifts if g.kind == "attribute" and g.name in names],
            change,
        )
    direct = list(_direct(sources, change, config, built)) if change.key in names else []
    found = _as_places(sources, direct, change)
    if any(place.matches for place in found) or any(gift.kind == "keyword" for _, gift in direct):
        return found
    rest = [(s, g) for s in sources for g in s.gifts if g.name in names and _counts(g, sources, config)]
    return _as_places(sources, [*direct, *rest], change)


def config_call(texts: Mapping[Path, str], config: str, built: BuiltAt) -> tuple[Path, int] | None:
    """(path, line) of the one call that builds the training config; None if there is none, or more than one."""
    found = _config_calls(_sources(texts), (config,), built.get(ARGS))
    return (found[0][0].path, found[0][0].line(found[0][1])) if len(found) == 1 else None


def unpacked(texts: Mapping[Path, str], config: str, built: BuiltAt) -> list[str]:
    """What that call is given with two stars, of which nobody knows what it holds."""
    found = _config_calls(_sources(texts), (config,), built.get(ARGS))
    return [
        source.code(argument.value) for source, call in found[:1] for argument in call.args if argument.star == "**"
    ]


def added(texts: Mapping[Path, str], values: Configuration, config: str, built: BuiltAt) -> tuple[Path, str] | None:
    """A source with further keywords in the one call that builds the training config: its path and its new text."""
    found = _config_calls(_sources(texts), (config,), built.get(ARGS))
    if len(found) != 1 or not found[0][1].args:
        return None
    source, call = found[0]
    text, pairs = source.text, ", ".join(f"{name}={literal(value)}" for name, value in values.items())
    start, end = source.span(call.args[-1])
    lines = whole_lines(text, start, end)
    if lines is None:
        return _still_python(source.path, splice(text, (end, end, f", {pairs}")))
    indent = text[lines[0] : start]
    rest = text[end : lines[1]]
    ending = rest[len(rest.rstrip("\r\n")) :]
    comma = "" if rest.lstrip().startswith(",") else ","
    return _still_python(
        source.path, splice(text, (end, end, comma), (lines[1], lines[1], f"{indent}{pairs},{ending}"))
    )


def literal(value: Value, old: str = "") -> str:
    """A value as Python writes it, in the manner of the old one."""
    value = plain(value)
    if isinstance(value, str) and old.startswith("torch."):
        return f"torch.{value}"
    text = repr(value)
    single = isinstance(value, str) and '"' not in text and not old.startswith("'")
    return text.replace("'", '"') if single else text


# -------------------------------------------------------------------------------------------------------- places


def _sources(texts: Mapping[Path, str]) -> list[_Source]:
    return [source for path, text in texts.items() if (source := _source(path, text)) is not None]


def _direct(sources: list[_Source], change: Change, config: str, built: BuiltAt) -> Iterator[tuple[_Source, _Gift]]:
    """What the calls that take the setting are given for it: as a keyword, or in a dictionary that is a keyword."""
    namespace = change.name.partition(".")[0]
    namespace = namespace if namespace in HOLDERS else ARGS
    for source, call in _config_calls(sources, HOLDERS.get(namespace, (config,)), built.get(namespace)):
        keywords = {word.keyword.value: word for word in call.args if word.keyword is not None}
        for name in change.names if not change.field else ():
            if name in keywords:
                word = keywords[name]
                yield source, _Gift(name, word.value, "keyword", whole=(word, tuple(call.args)))
        within = [keywords[change.field].value] if change.field in keywords else []
        within += [word.value for word in call.args if word.star == "**"]
        for value in within:
            place, node, _ = _follow(sources, source, value)
            inside = {id(one) for one in (*getattr(node, "elements", ()), *getattr(node, "args", ()))}
            for gift in place.gifts:
                if gift.name in change.names and gift.whole is not None and id(gift.whole[0]) in inside:
                    yield place, gift


def _config_calls(
    sources: list[_Source], names: Iterable[str], line: tuple[str, int] | None
) -> list[tuple[_Source, cst.Call]]:
    """Calls of these classes, and of classes of the user's own that are made of them; of several that on a line."""
    known = set(names)
    for _ in range(DEEPEST):
        known |= {name for source in sources for name, bases in source.bases.items() if known & set(bases)}
    found = [(source, call) for source in sources for call in source.calls if _called(call.func) in known]
    there = [
        (source, call)
        for source, call in found
        if line and os.path.abspath(source.path) == line[0] and source.line(call) <= line[1] <= source.last_line(call)
    ]
    return there or found


def _counts(gift: _Gift, sources: list[_Source], config: str) -> bool:
    """Whether it may be the setting: not what another config of a library is given (SFTConfig beside GRPOConfig)."""
    if gift.kind != "keyword" or not gift.owner.endswith(("Config", "Arguments")) or gift.owner == config:
        return True
    return any(gift.owner in source.bases for source in sources)


def _as_places(sources: list[_Source], gifts: Iterable[tuple[_Source, _Gift]], change: Change) -> list[Occurrence]:
    """Gifts as places, each value once."""
    found: dict[int, Occurrence] = {}
    for source, gift in gifts:
        place, value = _occurrence(sources, source, gift, change)
        found.setdefault(id(value), place)
    return list(found.values())


def _occurrence(sources: list[_Source], source: _Source, gift: _Gift, change: Change) -> tuple[Occurrence, cst.CSTNode]:
    """A gift as a place, and the value that stands there."""
    target, node, read_from = _follow(sources, source, gift.value)
    code = target.code(node)
    # A dtype is torch.float16, or its name.
    found = node.attr.value if isinstance(node, cst.Attribute) else parsed(code)
    matches = not read_from and same(found, change.old) and (isinstance(node, cst.Attribute) or not _is_name(node))
    direct = target is source and node is gift.value

    def put(new: Value) -> str | None:
        if new is None and direct and gift.whole is not None:
            own, items = gift.whole
            after = without_item(source.text, [source.span(one) for one in items], source.span(own))
        else:
            after = splice(target.text, (*target.span(node), literal(new, code)))
        still = _still_python(target.path, after)
        return None if still is None else still[1]

    shown = source.code(gift.whole[0]) if gift.whole is not None else f"{gift.name} = {source.code(gift.value)}"
    if matches:
        return Occurrence(target.path, target.line(node), code, True, (), put), node
    here = Occurrence(source.path, source.line(gift.value), " ".join(shown.split()), False, (*read_from, *gift.also))
    return here, gift.value


def _follow(
    sources: list[_Source], source: _Source, node: cst.CSTNode, depth: int = 0
) -> tuple[_Source, cst.CSTNode, tuple[str, ...]]:
    """(file, node, names) of what a value is: where it is written, or the names under which it is read there."""
    if isinstance(node, cst.Call) and _called(node.func) in CONVERSIONS and len(node.args) == 1:
        return _follow(sources, source, node.args[0].value, depth)
    if isinstance(node, cst.Call) and _called(node.func) in ("get", "getattr"):
        return source, node, tuple(filter(None, (_string(word.value) for word in node.args[:2])))
    if isinstance(node, cst.Subscript):
        return source, node, tuple(filter(None, [_index(node)]))
    if isinstance(node, cst.Attribute) and _called(node.value) != "torch":
        return source, node, (node.attr.value,)
    if not _is_name(node) or depth == DEEPEST:
        return source, node, ()
    scope = source.scopes.get(node)
    given = list(scope[node.value]) if scope is not None else []
    if len(given) == 1 and isinstance(given[0], ImportAssignment):
        others = [s for s in sources if s is not source]
        gifts = [(s, g) for s in others for g in s.gifts if g.name == node.value and g.kind in ("variable", "default")]
        if len(gifts) == 1:
            return _follow(sources, gifts[0][0], gifts[0][1].value, depth + 1)
    elif len(given) == 1 and isinstance(given[0], Assignment):
        values = list(_values_of(source, given[0]))
        if len(values) == 1:
            return _follow(sources, source, values[0], depth + 1)
    return source, node, ()


def _values_of(source: _Source, assignment: Assignment) -> Iterator[cst.CSTNode]:
    """What a name is given where it is assigned: nothing if that is a loop, or a parameter that callers give."""
    node = assignment.node
    if isinstance(node, cst.Param):
        given = [g.value for g in source.gifts if g.kind == "keyword" and g.name == node.name.value]
        own = _name_of_function(assignment)
        calls = [call for call in source.calls if _called(call.func) == own and call.args]
        inside = {id(word.value) for call in calls for word in call.args}
        told = [value for value in given if id(value) in inside]
        if told or calls:
            yield from told if len(calls) == 1 and all(word.keyword for word in calls[0].args) else ()
        elif node.default is not None:
            yield _default_of(node.default)
        return
    for gift in source.gifts:
        if gift.kind in ("variable", "default") and gift.name == assignment.name:
            scope = source.scopes.get(node)
            if scope is assignment.scope and source.scopes.get(gift.value, scope) is scope:
                yield gift.value


def _name_of_function(assignment: Assignment) -> str:
    return getattr(assignment.scope, "name", "") or ""


def _still_python(path: Path, text: str) -> tuple[Path, str] | None:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    return path, text


# ---------------------------------------------------------------------------------------------------- small ones


def _called(node: cst.CSTNode) -> str:
    """The last name of what is called: ``GRPOConfig`` of ``trl.GRPOConfig``."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_name(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value not in ("True", "False", "None")


def _string(node: cst.CSTNode | None) -> str:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else ""
    return value if isinstance(value, str) else ""


def _index(node: cst.Subscript) -> str:
    first = node.slice[0].slice
    return _string(first.value) if isinstance(first, cst.Index) else ""


def _default_of(value: cst.CSTNode) -> cst.CSTNode:
    """The default inside of ``field(default=...)``, ``field(default_factory=lambda: ...)`` and ``Option(...)``."""
    if not isinstance(value, cst.Call):
        return value
    given = {word.keyword.value: word.value for word in value.args if word.keyword is not None}
    if "default" in given:
        return given["default"]
    made = given.get("default_factory")
    if isinstance(made, cst.Lambda):
        return made.body
    return value.args[0].value if _called(value.func) in ("Option", "Argument") and value.args else value
