"""Sentences and values as people read them; no colours, no layout."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from bisect_cfg.probe.secrets import scrub

TAGS = ("$dtype", "$secret", "$set", "$opaque")
"""How the probe marks what JSON cannot say (`bisect_cfg.probe.values`)."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Escapes and control characters, those that turn the direction of writing among them."""

_OUR_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")


def shown_safely(text: str) -> str:
    """As `clean`, for a text that has colours of our own (`click.style`)."""
    return "".join(part if _OUR_STYLE.fullmatch(part) else clean(part) for part in _OUR_STYLE.split(text))


SIGNALS = {
    "SIGFPE": "a floating point exception",
    "SIGSEGV": "a segmentation fault",
    "SIGABRT": "an abort",
    "SIGKILL": "killed from outside, usually because memory ran out",
    "SIGBUS": "a bus error",
    "SIGILL": "an illegal instruction",
    "SIGTERM": "terminated from outside",
}
"""What the signals mean, in the words a shell would use."""


def show(value: Any) -> str:
    """A value as the user would write it: 5e-06, True, cosine."""
    if value is None:
        return "default"
    if isinstance(value, float):
        return f"{value:g}"
    return clean(_without_tags(value) if isinstance(value, dict) else value)


def _without_tags(value: Any) -> Any:
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


def clean(said: Any) -> str:
    """A text from a file, a log or a name as it may stand on a terminal: no control characters but line ends, no
    secrets. An escape sequence in a log, or in the name of a folder, must not reach the terminal."""
    words = scrub(str(said))
    return words if words.isprintable() else _CONTROL.sub("", _ESCAPE.sub("", words))


def with_reasons(reasons: Mapping[str, str]) -> str:
    """``seed (randomness stays as in your script); output_dir, run_name (it names a place)``."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(listed)} ({reason})" for reason, listed in names.items())


def count(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """A text in lines of a width, words and names whole.

    Args:
        text: any.
        width: in columns.
        first: before the first line.
        rest: before the others.
    """
    return textwrap.fill(
        " ".join(text.split()),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


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


def failure(kind: str, name: str, message: str, step: int | None) -> str:
    """One sentence on how a run fails."""
    at = f" at step {step}" if step else ""
    if kind == "signal":
        meaning = f" ({SIGNALS[name]})" if name in SIGNALS else ""
        _, _, place = message.partition(" in ")
        return f"dies with {name}{meaning}{at}" + (f", in {place}" if place else "")
    if kind == "non-finite" and name == "parameters":
        found, _, after = message.partition(", then ")
        return f"gets {found or 'NaN or infinite weights'}{at}" + (f", then dies with {after}" if after else "")
    if kind == "non-finite":
        return f"{message}{at}" if message else f"{name} becomes NaN or infinite{at}"
    if kind == "collapse":
        return f"collapses the policy{at}: {message}"
    if kind in ("no-gradient", "dead-reward"):
        return f"learns nothing: {message}"
    if kind == "hang":
        return f"hangs{at}: {message}"
    if kind == "out-of-memory":
        return f"runs out of memory{at}: {message}"
    if kind == "no-steps":
        return "ends before the first optimizer step"
    return f"dies{at} with {message or name}"


def where(place: Mapping[str, Any]) -> list[str]:
    """The `where` block of result.json in one to four lines."""
    if not place["same_failure"]:
        return [place["note"]]
    step = f"step {place['step']}" if place["step"] else ""
    head = [part for part in (step, place["operation"], place["module"]) if part]
    lines = [", ".join(head)] if head else []
    lines += [line for line in (place["line"], place["text"]) if line and line != place["operation"]]
    if place["native"]:
        lines.append(f"native: {place['native']}")
    return lines
