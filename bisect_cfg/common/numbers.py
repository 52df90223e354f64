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
