"""What an error says by itself, where no known failure covers it.

An engineer who has never seen a failure still reads a good deal from its traceback: two packages of which one calls the
other in a way it does not know, a value that is refused and what would be allowed, shapes, devices and data types that
do not fit, a server that cannot be reached, a line of one's own. Each rule (`advice.yaml`) is a pattern of the message
with what it means; what it says is drawn from the log alone, and is never called a known cause.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bisect_cfg.common.failures.tracebacks import source_of
from bisect_cfg.explain.events import RAISED, STATUS, Event

LONGEST = 160
"""Characters of a sentence that is quoted from a message."""


@dataclass(frozen=True)
class Advice:
    """What to do about an error by its own words: its kind, what it means, the steps, first thing first."""

    kind: str
    says: str
    steps: tuple[str, ...]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pattern of a message, and what it means.

    In `says` and `steps`, `{name}` is a named group of the pattern; `{who}` is the package (or "your code") of the
    innermost frame, `{place}` its file and line. `types` limits the rule to exceptions of these types.
    """

    kind: str
    pattern: re.Pattern[str]
    says: str
    steps: tuple[str, ...]
    types: tuple[str, ...] = ()


@functools.cache
def rules() -> list[Rule]:
    """The rules of `advice.yaml`."""
    data = (Path(__file__).parent / "advice.yaml").read_bytes()
    return msgspec.yaml.decode(data, type=list[Rule], dec_hook=lambda _, pattern: re.compile(pattern, re.DOTALL))


_CURE = re.compile(
    r"(?:^|(?<=[.;!:] )|(?<=\n))(?P<cure>"
    r"(?:[Pp]lease |[Tt]ry |[Cc]onsider |[Yy]ou (?:should|must|need to|can|may) |[Uu]se |[Ss]et "
    r"|[Ii]nstall |[Pp]ass |[Mm]ake sure |[Ee]nsure |[Rr]educe |[Ii]ncrease |[Ee]nable |[Dd]isable |[Uu]pgrade )"
    r"[^\n]{8,160}?)(?=[.;!](?:\s|$)|\n|$)"
)
"""A sentence of a message that says what to do."""

_FIELD = re.compile(r"\{(?P<name>\w+)(?:\|(?P<default>[^{}]*(?:\{\w+\}[^{}]*)?))?\}")


def advise(event: Event | None) -> Advice | None:
    """What an error and its traceback say by themselves; None if they say nothing that the message does not."""
    if event is None or event.weight == STATUS:
        return None
    text = event.message or event.text
    message = re.sub(r"^[\w.]+(?:\(\w+\))?: ?", "", text, count=1) if event.type_name else text
    found = None
    for rule in rules():
        if rule.types and event.type_name not in rule.types:
            continue
        caught = rule.pattern.search(message[:2000])
        if caught:
            found = _filled(rule, caught, event)
            break
    own = raised_in_own_file(event)
    if own and (found is None or found.kind in ("column", "none", "attribute")):
        says = found.says if found else "It was raised in your own code."
        step = f"look at {own}: print what that line is given, for the input that it fails on"
        found = Advice("own-code", says, (step, *(found.steps if found else ())))
    cure = said_cure(message)
    if not cure or (found is not None and cure in " ".join(found.steps)):
        return found
    quoted = f"the message says: “{cure}”"
    if found is None:
        return Advice("message", "", (quoted,))
    first = found.kind not in ("value", "own-code")
    return replace(found, steps=(quoted, *found.steps) if first else (*found.steps, quoted))


def said_cure(message: str) -> str:
    """The sentence of a message that says what to do; "" if there is none."""
    found = _CURE.search(message[:3000])
    return found["cure"].strip()[:LONGEST] if found else ""


def raised_in_own_file(event: Event) -> str:
    """File and line of the user's own code if the exception was raised there; "" otherwise."""
    if event.weight != RAISED or not event.frames or source_of(event.frames[-1][0])[0]:
        return ""
    return _place(event.frames[-1])


def own_script(event: Event | None) -> str:
    """The user's script in a traceback: its outermost frame, if that is nobody's package."""
    if event is None or not event.frames or source_of(event.frames[0][0])[0]:
        return ""
    file = event.frames[0][0]
    return file if re.fullmatch(r"[\w./~+-]+\.py", file) else ""


def _place(frame: tuple[str, int, str]) -> str:
    file, line, function = frame
    return f"{file}:{line}" + (f" ({function})" if function and not function.startswith("<") else "")


def _filled(rule: Rule, caught: re.Match[str], event: Event) -> Advice:
    frame = event.frames[-1] if event.frames else None
    packages = [source_of(one[0])[0] for one in event.frames]
    who = next((one for one in reversed(packages) if one not in ("python", "")), "") if packages else ""
    groups = {name: " ".join(value.split()) for name, value in caught.groupdict().items() if value}
    names = {
        "who": who if packages and packages[-1] else "your code" if packages else "the program",
        "place": _place(frame) if frame else "the line that failed",
        "package": groups.get("module", "").partition(".")[0],
        **groups,
    }
    return Advice(rule.kind, _fill(rule.says, names), tuple(_fill(step, names) for step in rule.steps))


def _fill(text: str, names: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found["name"]
        default = found["default"]
        return names.get(name) or (_fill(default, names) if default else "")

    return " ".join(_FIELD.sub(value, text).split())
