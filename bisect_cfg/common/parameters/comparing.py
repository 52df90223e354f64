"""What a data file asks of a setting's value, and whether a value is that: one language for all of them.

true, false      switched on, or off (0, None and "no" are off)
0.5, adamw       that number or text; capitals do not matter
'>1', '!=0'      a comparison of numbers
[a, b]           one of these is enough
'*'              any value
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

from bisect_cfg.common.configuration import Value

_COMPARISON = re.compile(r"(<=|>=|==|!=|<|>)\s*(.+)")
_OPERATORS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_ON, _OFF = ("true", "yes", "on"), ("", "false", "none", "no", "off", "[]", "{}")


def is_comparison(wanted: Value) -> bool:
    """Whether a comparison of numbers is asked for."""
    return isinstance(wanted, str) and _COMPARISON.fullmatch(wanted) is not None


def agrees(wanted: Value, actual: Value) -> bool | None:
    """Whether a value is what is asked for; None if that cannot be said: a number is asked for, and it is none.

    Args:
        wanted: what the data file says.
        actual: the value, of a configuration or as a log prints it.
    """
    if isinstance(wanted, list):
        return any(agrees(one, actual) for one in wanted)
    if wanted == "*":
        return True
    actual = plain(actual)
    if isinstance(wanted, bool):
        return is_on(actual) is wanted
    if comparison := _COMPARISON.fullmatch(wanted) if isinstance(wanted, str) else None:
        sign, limit = comparison.groups()
        number = None if isinstance(actual, bool) else _number(actual)
        return None if number is None else _OPERATORS[sign](number, float(limit))
    if wanted is None or actual is None or isinstance(actual, bool):
        return wanted is actual or str(wanted).lower() == str(actual).lower() != "none"
    numbers = _number(wanted), _number(actual)
    return numbers[0] == numbers[1] if None not in numbers else str(wanted).lower() == str(actual).lower()


def is_on(value: Value) -> bool | None:
    """Whether something is switched on; None for a value that is neither on nor off."""
    if isinstance(value, (bool, int, float)) or value is None:
        return bool(value)
    number, text = _number(value), str(value).lower()
    if number is not None:
        return bool(number)
    return True if text in _ON else False if text in _OFF else None


def plain(value: Value) -> Value:
    """A value as people write it: a tagged or real torch dtype is its name."""
    if isinstance(value, Mapping) and "$dtype" in value:
        return value["$dtype"]
    text = str(value)
    return text.removeprefix("torch.") if text.startswith("torch.") else value


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
