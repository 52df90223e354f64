"""Numbers that a person typed, and the bounds of options."""

from __future__ import annotations

import math
import re

from bisect_cfg.errors import InputError


def number_of(text: str) -> int | float | None:
    """The number that a text is, None if it is none. The one place where texts become numbers.

    Raises:
        InputError: it is NaN, or larger than a number can be. Infinity is taken where it is written out.
    """
    text = re.sub(r"^([-+]?)\.(?=inf|nan)", r"\1", text.strip(), flags=re.IGNORECASE)  # as YAML has it
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    if math.isnan(number):
        raise InputError("NaN is not a value that a run could have.", "Give a number.")
    if math.isinf(number) and "inf" not in text.lower():
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise InputError(f"{shown} is larger than a number can be.", "Give a number that can be computed with.")
    return number


def finite_number(text: object, lowest: float = -math.inf, highest: float = math.inf, above: bool = False) -> float:
    """A finite number within bounds, for the options of both doors.

    Args:
        text: as typed, or a number.
        lowest: smallest that is taken.
        highest: largest that is taken.
        above: whether `lowest` itself is not taken.

    Raises:
        InputError: it is none; says what is taken.
    """
    number = number_of(text) if isinstance(text, str) else text
    real = isinstance(number, (int, float)) and not isinstance(number, bool)
    if real and -math.inf < number < math.inf and lowest <= number <= highest and not (above and number == lowest):
        return number
    bounds = [f"{'above' if above else 'from'} {lowest:g}"] if lowest > -math.inf else []
    bounds += [f"{'up ' if above or not bounds else ''}to {highest:g}"] if highest < math.inf else []
    raise InputError(f"{text!r} is not a finite number{' ' if bounds else ''}{' '.join(bounds)}.")
