"""Fields that a script computes of settings of its own: ``eval_strategy="steps" if args.eval_every else "no"``.

Such a field is what the script makes of its flags: to vary it apart from them would be a run that no command line
gives. The expressions of the code are worked out as far as that can be done without running it; that one is understood
is seen by what it comes to at the user's values, which is what the run had.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bisect_cfg.common.configuration import equal
from bisect_cfg.probe.protocol import Encoded
from bisect_cfg.targets.own_code import OwnCode, names_in, reads, section_of

_CALLED: dict[str, Callable[..., Encoded]] = {
    one.__name__: one for one in (abs, bool, float, int, len, max, min, round, str)
}
_METHODS: dict[str, Callable[..., Encoded]] = {name: getattr(str, name) for name in ("lower", "upper", "strip")}
_OPERATORS: dict[type[ast.AST], Callable[..., Encoded]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Not: operator.not_, ast.USub: operator.neg,
    ast.UAdd: operator.pos, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip


class _UnknownError(Exception):
    """What an expression comes to cannot be told."""


@dataclass(frozen=True)
class Computed:
    """A field that the script computes.

    Attributes:
        expression: that the code gives it.
        of: names of the script's own settings with which it changes.
    """

    expression: ast.expr
    of: frozenset[str]

    def value(self, own: Mapping[str, Encoded]) -> tuple[Encoded, ...]:
        """What it is with these settings of the script's own, by name; none if that cannot be told."""
        return value_of(self.expression, own)


def computed(
    field: str, value: Encoded, code: OwnCode, bad: Mapping[str, Encoded], good: Mapping[str, Encoded]
) -> Computed | None:
    """How the script computes a field, if it is seen to do so.

    Args:
        field: of a configuration object.
        value: that it had in the user's run.
        code: of the script.
        bad: name -> the user's value of each setting of the script's own.
        good: the same where they are good; the user's where that is not known.
    """
    differing = [name for name in bad if not equal(bad[name], good[name])]
    found = []
    for expression in code.given.get(field, ()):
        now, then = value_of(expression, bad), value_of(expression, good)
        if not now or not equal(now[0], value):
            continue
        names = names_in(expression)
        of = frozenset(
            name
            for name in differing
            if name.rpartition(".")[2] in names
            and (
                value_of(expression, {**bad, name: good[name]}) != now
                or value_of(expression, {**good, name: bad[name]}) != then
            )
        )
        found.append((Computed(expression, of), then))
    # One that changes with nothing may be of this field, and the others of one that has its name.
    agreed = [one for one, then in found if then == found[0][1]]
    return next((one for one in agreed if one.of), None) if len(agreed) == len(found) else None


def value_of(expression: ast.expr, own: Mapping[str, Encoded]) -> tuple[Encoded, ...]:
    """What an expression comes to with these settings of the script's own, by name; none if that cannot be told."""
    try:
        return (_value(expression, own),)
    except (_UnknownError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        return ()


def _value(node: ast.AST, own: Mapping[str, Encoded]) -> Encoded:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name):
            return _own(name, "", own)
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            return own[f"script.{name}"] if f"script.{name}" in own else _value(value, own)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, own) else other, own)
        case ast.BoolOp(op=kind, values=[*before, last]):
            for one in before:
                deciding = _value(one, own)
                if bool(deciding) is isinstance(kind, ast.Or):
                    return deciding
            return _value(last, own)
        case ast.UnaryOp(op=kind, operand=one):
            return _applied(kind, [_value(one, own)])
        case ast.BinOp(left=left, op=kind, right=right):
            return _applied(kind, [_value(left, own), _value(right, own)])
        case ast.Compare(left=left, ops=kinds, comparators=others):
            values = [_value(one, own) for one in (left, *others)]
            return all(_applied(*one) for one in zip(kinds, zip(values, values[1:], strict=False), strict=True))
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [_value(one, own) for one in parts]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLED:
            return _CALLED[name](*(_value(one, own) for one in args))
        case ast.Call(func=ast.Attribute(value=one, attr=name), args=[], keywords=[]) if name in _METHODS:
            return _METHODS[name](_value(one, own))
    for key, default in reads(node):
        try:
            return _own(key, section_of(node, {}), own)
        except _UnknownError:
            if default is None:
                raise
            return _value(default, own)
    raise _UnknownError


def _applied(kind: ast.AST, values: Iterable[Encoded]) -> Encoded:
    if type(kind) not in _OPERATORS:
        raise _UnknownError
    return _OPERATORS[type(kind)](*values)


def _own(key: str, section: str, own: Mapping[str, Encoded]) -> Encoded:
    """A setting of the script's own, which the code reads by a key; a variable that is not set is none."""
    names = [name for name in own if name.rpartition(".")[2] == key]
    exact = {"environ": f"env.{key}", "": f"script.{key}"}.get(section)
    closer = [name for name in names if name == exact or (section and name.endswith(f".{section}.{key}"))]
    found = [own[name] for name in closer or names if not (name.startswith("env.") and own[name] is None)]
    if len(found) != 1:
        raise _UnknownError
    return found[0]
