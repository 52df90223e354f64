"""Values, counts and durations as people read and type them, and how a text of others may stand on a terminal."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence

from bisect_cfg.common.configuration import Value
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import scrub

PROGRAM = "bisect-cfg"

NAMED = 5
"""So many settings are named; of more, their number is said."""

TAGS = ("$dtype", "$secret", "$set", "$opaque")
"""How the probe marks what JSON cannot say (`bisect_cfg.probe.values`)."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])?")
_OUR_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")


def shown_safely(text: str) -> str:
    """As `clean`, for a text that has colours of our own (`click.style`)."""
    return "".join(part if _OUR_STYLE.fullmatch(part) else clean(part) for part in _OUR_STYLE.split(text))


def show(value: Value, name: str = "") -> str:
    """A value as the user would write it: 5e-06, True, cosine; of a variable (by its name) that is not set, that."""
    if value is None:
        return "not set" if name.startswith("env.") else "default"
    if isinstance(value, float):
        return f"{value:g}"
    return clean(_without_tags(value) if isinstance(value, dict) else value)


def _without_tags(value: Value) -> Value:
    """Values as the probe encodes them (a dtype, a secret, a set) without the marks of their kinds."""
    if isinstance(value, list):
        return [_without_tags(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)) in TAGS:
        return next(iter(value.values()))
    if "$object" in value:
        return f"{value['$object']}(...)"
    return {key: _without_tags(item) for key, item in value.items()}


def clean(said: Value) -> str:
    """A text from a file, a log or a name as it may stand on a terminal: only what is printable besides line ends, no
    secrets. An escape sequence in a log, or in the name of a folder, must not reach the terminal."""
    words = _ESCAPE.sub("", scrub(str(said)))
    if words.isprintable():
        return words
    return "".join(one if one in "\t\n" or one.isprintable() else " " if one.isspace() else "" for one in words)


def with_reasons(reasons: Mapping[str, str]) -> str:
    """``seed (randomness stays as in your script); output_dir, run_name (it names a place)``."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(listed)} ({reason})" for reason, listed in names.items())


def count(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def short_path(path: str | os.PathLike[str]) -> str:
    """A path relative to where the user is, if it lies there."""
    return os.fspath(path).removeprefix(os.path.join(os.getcwd(), ""))


def program() -> str:
    """How the user calls `bisect-cfg`: by its name where that is on the PATH, else as it was called this time."""
    called, found = sys.argv[0] if sys.argv else "", shutil.which(PROGRAM)
    if os.path.basename(called) == PROGRAM and os.path.isfile(called):
        if found is None or not os.path.samefile(found, called):
            return shlex.quote(short_path(called))
    elif called.endswith(os.path.join("bisect_cfg", "__main__.py")) and found is None:
        return f"{shlex.quote(short_path(sys.executable))} -m bisect_cfg"
    return PROGRAM


def percent(share: float) -> str:
    """``63 %``."""
    return f"{100 * share:.0f} %"


def subset(bad: Collection[str], everything: Sequence[str]) -> str:
    """Which of all factors are bad, in the fewest words: ``yours without bf16``, ``only bf16, beta``."""
    missing = [name for name in everything if name not in bad]
    if not bad:
        return "the good configuration"
    if not missing:
        return "your configuration"
    if len(missing) <= len(bad):
        return "yours without " + _few(missing)
    return "only " + _few([name for name in everything if name in bad])


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} settings: {', '.join(names[: NAMED - 1])}, ..."


def duration(seconds: float) -> str:
    """``0.6 s``, ``47 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def number_of(text: str) -> int | float | None:
    """The number that a text is, None if it is none. The one place where texts become numbers. `InputError` where it is
    NaN, or larger than a number can be; infinity is taken where it is written out."""
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
