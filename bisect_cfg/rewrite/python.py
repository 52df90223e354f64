"""Edits of Python, by a walk over its syntax tree.

What a source gives to names is collected: keywords of calls, keys of dictionaries, assignments, defaults of fields, of
parameters and of argparse options. Where a name stands in place of a value, the caller asks for that name next
(`Place.read_from`). Only the text of the value is exchanged, and the new source must parse to the same tree with that
one value changed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from bisect_cfg.common.configuration import Configuration, Value
from bisect_cfg.rewrite.spans import Change, Piece, Place, parsed, plain, removals, same, splice, whole_lines

HOLDERS = {"model": ("from_pretrained", "ModelConfig"), "peft": ("LoraConfig",)}
"""Namespace -> the calls that take its settings as keywords; all others are those of the training config."""

ARGS = "args"
"""The namespace of the training config."""

CONVERSIONS = ("float", "int", "str", "bool")
"""Calls whose argument is the value."""

_BOM = "\ufeff"
"""Before the text of a file that was written on Windows."""

BuiltAt = Mapping[str, tuple[str, int]]
"""Namespace of settings -> the line (absolute path, number) that was seen to build what has them."""


@dataclass(frozen=True, eq=False)
class _Gift:
    """A value that is given to a name.

    Attributes:
        name: the name.
        value: the node of the value; None where a statement binds the name to what is not written there.
        kind: "keyword", "key", "attribute", "default" or "variable".
        holder: of a keyword its call, of a key its dictionary: the value can be removed there.
        also: other names of the same (the flags of an argparse option).
        within: of a key, the name that its dictionary is given to.
    """

    name: str
    value: ast.expr | None
    kind: str
    holder: ast.Call | ast.Dict | None = None
    also: tuple[str, ...] = ()
    within: str = ""


@dataclass(eq=False)
class _Source:
    """One file, read."""

    path: Path
    text: str
    tree: ast.Module
    gifts: list[_Gift] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)
    bases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._data, self._lines = self.text.encode(), [0]  # where each line begins, in bytes, as the tree counts
        for line in self._data.split(b"\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)
        self._lines[0] = len(_BOM.encode()) if self.text.startswith(_BOM) else 0
        for node in ast.walk(self.tree):
            self._visit(node)
        holders = {id(gift.value): gift.name for gift in self.gifts}
        self.gifts = [replace(gift, within=holders.get(id(gift.holder), "")) for gift in self.gifts]

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.ClassDef():
                self.bases[node.name] = tuple(map(_called, node.bases))
            case ast.Call():
                self._visit_call(node)
            case ast.Dict():
                pairs = zip(map(_string, node.keys), node.values, strict=True)
                self.gifts += [_Gift(name, value, "key", node) for name, value in pairs if name]
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value, "variable")
            case ast.AnnAssign(value=ast.expr()):
                self._assign(node.target, _default_of(node.value), "default")
            case ast.arguments():
                positional = [*node.posonlyargs, *node.args][::-1]
                pairs = [
                    *zip(positional, node.defaults[::-1], strict=False),
                    *zip(node.kwonlyargs, node.kw_defaults, strict=True),
                ]
                self.gifts += [_Gift(one.arg, _default_of(value), "default") for one, value in pairs if value]
            case ast.AugAssign() | ast.For() | ast.comprehension():
                self._assign(node.target, None, "variable")

    def _visit_call(self, node: ast.Call) -> None:
        self.calls.append(node)
        owner, given = _called(node.func), {word.arg: word.value for word in node.keywords if word.arg}
        self.gifts += [_Gift(name, value, "keyword", node) for name, value in given.items()]
        if owner == "setattr" and len(node.args) == 3 and (name := _string(node.args[1])):
            self.gifts.append(_Gift(name, node.args[2], "attribute"))
        if owner in ("add_argument", "option"):  # of argparse, of click
            flags = [_string(word).lstrip("-").replace("-", "_") for word in node.args]
            names = tuple(filter(None, [_string(given.get("dest")), *flags]))
            if "default" in given:
                self.gifts += [_Gift(name, given["default"], "default", also=names) for name in names]
            if given.keys() & {"action", "is_flag"}:
                self.switches |= set(names)

    def _assign(self, target: ast.expr, value: ast.expr | None, kind: str) -> None:
        if isinstance(target, ast.Attribute):
            self.gifts.append(_Gift(target.attr, value, "attribute"))
        elif isinstance(target, ast.Subscript) and (name := _string(target.slice)):
            self.gifts.append(_Gift(name, value, "key"))
        elif isinstance(target, ast.Name):
            self.gifts.append(_Gift(target.id, value, kind))

    def span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """Where a node stands in the text."""
        ends = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        start, end = (len(self._data[: self._lines[line - 1] + column].decode()) for line, column in ends)
        return start, end

    def code(self, node: ast.expr) -> str:
        return self.text[slice(*self.span(node))]

    def checked(self, piece: Piece, instead: Mapping[ast.AST, ast.AST | None]) -> Piece | None:
        """The piece, if with it the source parses to its tree with these nodes exchanged; None removes one."""
        known: dict[int, ast.AST] = {}
        after = _tree(splice(self.text, piece))
        try:
            wanted = copy.deepcopy(self.tree, known)
            wanted = _Exchange({known[id(node)]: new for node, new in instead.items()}).visit(wanted)
            return piece if after is not None and ast.dump(after) == ast.dump(wanted) else None
        except RecursionError:
            return None


class _Exchange(ast.NodeTransformer):
    def __init__(self, instead: Mapping[ast.AST, ast.AST | None]) -> None:
        self._instead = instead

    def visit(self, node: ast.AST) -> ast.AST | None:
        return self._instead[node] if node in self._instead else self.generic_visit(node)


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text.removeprefix(_BOM))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=64)
def _source(path: Path, text: str) -> _Source | None:
    tree = None if "\r" in text.replace("\r\n", "") else _tree(text)  # a line ends there for Python, and for no editor
    return None if tree is None else _Source(path, text, tree)


def _sources(texts: Mapping[Path, str]) -> list[_Source]:
    return [source for path, text in texts.items() if (source := _source(path, text)) is not None]


def switches(texts: Mapping[Path, str]) -> set[str]:
    """Options of argparse and click that take no value."""
    return {name for source in _sources(texts) for name in source.switches}


# -------------------------------------------------------------------------------------------------------- places


def places(
    texts: Mapping[Path, str], change: Change, names: Collection[str], config: str, assigned: bool, built: BuiltAt
) -> list[tuple[Path, Place]]:
    """Where the sources give a value to one of the names.

    If the call that builds the training config names the setting, nothing else counts.

    Args:
        texts: path -> text, the script first.
        change: what is looked for.
        names: what it may be called.
        config: the class of the training config.
        assigned: whether the run was seen to set it as an attribute of the finished config.
        built: of several calls, which one counts.
    """
    sources = _sources(texts)
    gifts = [(source, gift) for source in sources for gift in source.gifts if gift.name in names]
    if assigned:
        gifts = [(source, gift) for source, gift in gifts if gift.kind == "attribute"]
    elif change.key in names:
        namespace = change.name.partition(".")[0]
        classes = HOLDERS.get(namespace, (config,))
        calls = [
            call for _, call in _config_calls(sources, classes, built.get(namespace if namespace in HOLDERS else ARGS))
        ]
        direct = [one for one in gifts if one[1].within == change.field] if change.field else []
        direct = direct or [one for one in gifts if one[1].kind == "keyword" and one[1].holder in calls]
        gifts = direct or gifts
    gifts = [
        (source, gift) for source, gift in gifts if gift.kind != "keyword" or _counts(gift.holder, sources, config)
    ]
    bound = {gift.name for _, gift in gifts if gift.value is None}
    gifts = [(source, gift) for source, gift in gifts if gift.value is not None]
    return [(source.path, _place(source, gift, change, gift.name not in bound)) for source, gift in _once(gifts)]


def _once(gifts: Iterable[tuple[_Source, _Gift]]) -> Iterable[tuple[_Source, _Gift]]:
    """Each value once: an option has several names."""
    return {id(gift.value): (source, gift) for source, gift in gifts}.values()


def _config_calls(
    sources: list[_Source], names: Iterable[str], line: tuple[str, int] | None
) -> list[tuple[_Source, ast.Call]]:
    """Calls of these classes and of the user's own subclasses; of several, the one on that line."""
    known = set(filter(None, names))  # a script that died before has no training config
    while more := {name for source in sources for name, bases in source.bases.items() if known & set(bases)} - known:
        known |= more
    found = [(source, call) for source in sources for call in source.calls if _called(call.func) in known]
    there = [
        (source, call)
        for source, call in found
        if line and str(source.path.absolute()) == line[0] and call.lineno <= line[1] <= call.end_lineno
    ]
    return there or found


def _counts(call: ast.Call, sources: list[_Source], config: str) -> bool:
    """Whether its keywords may be the run's: not those of another config of a library (SFTConfig beside GRPOConfig)."""
    owner = _called(call.func)
    other = owner.endswith(("Config", "Arguments")) and owner not in (config, "LoraConfig", "ModelConfig")
    return not other or any(owner in source.bases for source in sources)


def _place(source: _Source, gift: _Gift, change: Change, certain: bool) -> Place:
    """A gift as a place.

    Args:
        source: of the gift.
        gift: the gift.
        change: what is looked for.
        certain: whether nothing else binds its name to what is not written there.
    """
    node = gift.value
    while isinstance(node, ast.Call) and _called(node.func) in CONVERSIONS and len(node.args) == 1:
        node = node.args[0]
    code = source.code(node)
    shown = f"{gift.name}{'=' if gift.kind == 'keyword' else ' = '}{source.code(gift.value)}"
    dtype = isinstance(node, ast.Attribute) and _called(node.value) == "torch"  # torch.float16, or its name
    read_from = () if dtype else _names(node)
    value = node.attr if dtype else parsed(code)
    literal_there = dtype or isinstance(node, ast.Constant) or not isinstance(value, str)
    matches = certain and not read_from and literal_there and same(value, change.old)

    def put(new: Value) -> Piece | None:
        if new is None and gift.holder is not None:
            return _removed(source, gift)
        made = _tree(written := literal(new, code))
        return None if made is None else source.checked((*source.span(node), written), {node: made.body[0].value})

    start = source.span(gift.value)[0]
    return Place(start, " ".join(shown.split()), matches, put, (*read_from, *gift.also))


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


def _removed(source: _Source, gift: _Gift) -> Piece | None:
    """The piece that removes a keyword, or a key with its value."""
    if isinstance(gift.holder, ast.Dict):
        pairs = zip(gift.holder.keys, gift.holder.values, strict=True)
        gone = next([key, value] for key, value in pairs if value is gift.value)
    else:
        gone = [word for word in gift.holder.keywords if word.value is gift.value]
    pieces = removals(source.text, source.span(gone[0])[0], source.span(gone[-1])[1])
    return next((piece for piece in pieces if source.checked(piece, dict.fromkeys(gone))), None)


# -------------------------------------------------------------------------------------------------------- new settings


def added(texts: Mapping[Path, str], values: Configuration, config: str, built: BuiltAt) -> tuple[Path, Piece] | None:
    """The piece that adds keywords to the one call that builds the training config; None if that cannot be done."""
    found = _config_calls(_sources(texts), (config,), built.get(ARGS))
    if len(found) != 1 or not (found[0][1].args or found[0][1].keywords):
        return None
    (source, call), text = found[0], found[0][0].text
    start, end = max(map(source.span, (*call.args, *call.keywords)))
    pairs = ", ".join(f"{name}={literal(value)}" for name, value in values.items())
    piece = end, end, f", {pairs}"
    if (lines := whole_lines(text, start, end)) is not None:
        rest = text[end : lines[1]]
        line = text[lines[0] : start] + pairs + "," + rest[len(rest.rstrip("\r\n")) :]
        has_comma = rest.lstrip().startswith(",")
        piece = (lines[1], lines[1], line) if has_comma else (end, lines[1], f",{rest}{line}")
    more = ast.parse(f"f({pairs})", mode="eval").body.keywords
    longer = ast.Call(call.func, call.args, [*call.keywords, *more])
    checked = source.checked(piece, {call: longer})
    return None if checked is None else (source.path, checked)


def call_of(texts: Mapping[Path, str], config: str, built: BuiltAt) -> tuple[Path, int, str] | None:
    """Of the one call that builds the training config its file, where it stands, and what it unpacks last with two
    stars ("" if nothing); None if there is none, or more than one."""
    found = _config_calls(_sources(texts), (config,), built.get(ARGS))
    if len(found) != 1:
        return None
    source, call = found[0]
    stars = [source.code(word.value) for word in call.keywords if word.arg is None]
    return source.path, source.span(call)[0], stars[-1] if stars else ""


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
    if not isinstance(value, ast.Call):
        return value
    given = {word.arg: word.value for word in value.keywords}
    made = given.get("default_factory")
    if "default" in given:
        return given["default"]
    if isinstance(made, ast.Lambda):
        return made.body
    return value.args[0] if _called(value.func) in ("Option", "Argument") and value.args else value
