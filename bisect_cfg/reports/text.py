"""Sentences and values as people read them; no colours, no layout."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from bisect_cfg.common.cells import SUFFIX
from bisect_cfg.common.configuration import Value
from bisect_cfg.common.failures.health import RULES
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import scrub

if TYPE_CHECKING:
    from bisect_cfg.probe.protocol import Origin
    from bisect_cfg.remedy.terms import Health
    from bisect_cfg.runner.verdict import Verdict

NAMED = 5
"""So many settings are named; of more, their number is said."""

TAGS = ("$dtype", "$secret", "$set", "$opaque")
"""How the probe marks what JSON cannot say (`bisect_cfg.probe.values`)."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
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

VERBS = {
    **{rule.kind: rule.words for rule in RULES if rule.failure},
    "hang": "hangs",
    "out-of-memory": "runs out of memory",
    "unwatched": "is stopped",
}
"""What runs do that end in a failure of these kinds."""


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


def others(complete: bool, not_varied: Mapping[str, str]) -> str:
    """Whether there may be other causes than those found.

    Args:
        complete: whether the search has settled that there are none among what was varied.
        not_varied: name -> why all trials have the user's value.
    """
    from bisect_cfg.targets.pinned import without_good_value  # not for all that prints a sentence

    if not complete:
        return "There may be other causes: the search ended before that was settled."
    if not (names := without_good_value(not_varied)):
        return "No other cause is left among the settings that differ."
    return (
        f"No other cause is left among the settings that were varied. All runs had your {', '.join(names)}, for which "
        "no good value is known: whether a cause needs them is open. --good NAME=VALUE has them varied."
    )


def count(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def subset(bad: Collection[str], everything: Sequence[str]) -> str:
    """Which factors are bad, in the fewest words: ``yours without bf16``, ``only bf16, beta``.

    Args:
        bad: their names.
        everything: the names of all factors.
    """
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


def failure(shown: Verdict, step: int | None = None) -> str:
    """One sentence without its subject and its dot on how a run fails: ``dies at step 3 with ValueError: no``.

    Args:
        shown: by the run; it is a failure.
        step: at which another run with the same failure fails; what came after it in this one is left out. None: of
            this run.
    """
    seen, kind, name = shown.seen, shown.signature.kind, shown.signature.name
    said = shown.message.rstrip(".")
    other = step is not None
    step = step if other else shown.step_of_training
    at = "" if seen.rank is None else f" on rank {seen.rank}"
    if seen.counted:
        at += f" at step {step}" if step else " before the first step of training"
    place = f", in {seen.place}" if seen.place else ""
    if kind == "signal":
        return f"dies with {name}{f' ({SIGNALS[name]})' if name in SIGNALS else ''}{at}{place}"
    if kind == "exit":
        ends = f"ends with exit status {name}{at}" if name != "0" else f"ends in the middle of training{at}"
        return ends + (f": {said}" if shown.signature.message else "")
    if kind == "non-finite" and name == "parameters":
        then = f", then dies with {seen.after.rstrip('.')}" if seen.after and not other else ""
        return f"gets {said}{at}{then}"
    if kind in ("no-gradient", "dead-reward"):
        return f"{VERBS[kind]}: {said}"
    if kind in VERBS:
        return f"{VERBS[kind]}{at}: {said}{place}" + (f"; {seen.after}" if seen.after else "")
    if kind in ("no-steps", "no-training"):
        return "ends before the first step of training"
    return f"dies{at} with {said or name}"


def since(origin: Origin) -> str:
    """Where trials begin, to follow "from" or "shown"."""
    if origin.checkpoint is None:
        return f"with the weights of step 0 and the data from step {origin.step} of your run on"
    return f"from step {origin.step} of your run on"


def unhealthy(health: Health) -> str:
    """Why a run that looked for safe values is not healthy; "" if it is."""
    return failure(health.died) if health.died is not None else health.why


def where(place: JsonObject) -> list[str]:
    """The `where` block of result.json in one to five lines."""
    if not place["same_failure"]:
        return [place["note"]]
    step = f"step {place['step']}" if place["step"] else ""
    head = [part for part in (step, place["operation"], place["module"]) if part]
    lines = [", ".join(head)] if head else []
    lines += [line for line in (place["line"], place["text"]) if line and line != place["operation"]]
    own = [frame for frame in place.get("frames", ()) if f"{SUFFIX}, cell" in frame]
    if own and own[-1] != place["line"]:
        lines.append(f"called from {own[-1]}")
    if place["native"]:
        lines.append(f"native: {place['native']}")
    return lines
