"""What is made to be shown to others: texts without home directories.

A study's folder keeps paths, since it is resumed by them; what is pasted into an issue or mailed has `~` in their
place. Secrets are masked before anything is written down (`probe.redact`).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, TypeVar

from bisect_cfg.common.words import clean
from bisect_cfg.report.answer import of_plain, plain
from bisect_cfg.report.recorded import Recorded

_HOMES = re.compile(r"(?<![\w.-])(?:/home|/Users|/export/home|[A-Za-z]:\\Users)[/\\][^/\\\s'\":,;]+")
"""Where people's directories lie on Linux, macOS and Windows."""

Plain = TypeVar("Plain")


def shared(value: Plain) -> Plain:
    """A copy of plain data in which no text gives away a home directory, or turns around what stands beside it.

    Args:
        value: a text, or lists and dicts of texts, numbers and None.
    """
    home = os.path.expanduser("~")
    own = re.compile(rf"(?<![\w.-]){re.escape(home)}(?=[/\s'\":,;)\]]|$)") if len(home) > 1 else _HOMES

    def without(value: Any) -> Any:
        if isinstance(value, str):
            return clean(_HOMES.sub("~", own.sub("~", value)))
        if isinstance(value, dict):
            return {without(key): without(item) for key, item in value.items()}
        return [without(item) for item in value] if isinstance(value, (list, tuple)) else value

    made: Plain = without(value)
    return made


def anonymous(recorded: Recorded) -> Recorded:
    """The same study without what gives somebody away."""
    return replace(recorded, answer=of_plain(shared(plain(recorded.answer))))
