"""What remains: an assertion, a message that says what to do, a failure inside of a package."""

from __future__ import annotations

import re

from bisect_cfg.diagnosis.advice.reading import (
    IN_REWARD,
    LONGEST_QUOTE,
    PACKAGES,
    TOOLS,
    Advice,
    RaisedError,
    belongs_to,
    called,
    place_of,
    quoted,
    said_cure,
    settings_in,
    settings_of,
    told_cure,
)

_CONDITIONS = {
    "dtype": "it compares number types: one type for all weights (an adapter, a value head or a layer "
    "left in float32 next to bfloat16 breaks that)",
    "is_available": "it asks whether something is installed or present on this machine",
    "shape": "it compares shapes: print both sides of it",
    "device": "it compares devices: print where both sides lie",
}
"""What a condition is about, by a word of it."""


OF_TORCH = re.compile(
    r"size of tensor a|'weight' must be 2-D|Sizes of tensors must|all tensors to be on the same device|expanded size"
    r"|mat1 and mat2|must have the same dtype|same reduction dim|_AssertionError"
)
"""Messages of torch that say "must" without saying what to do."""

_SHELL_TRACE = re.compile(r"\++ \S")


def failed_assertion(read: RaisedError) -> Advice | None:
    """An assertion, with or without words."""
    if read.type != "AssertionError":
        return None
    frame, place = read.last, place_of(read.last)
    source = frame.source if frame else ""
    message = read.message.strip().removeprefix("AssertionError").strip(": ")
    message = "" if _SHELL_TRACE.match(message) else message  # what `set -x` prints after an error without words
    if not message and not source.startswith("assert"):
        return None
    # An assertion of several lines shows its first one alone.
    condition = re.match(r"assert (?P<condition>[^(\s].*?|\(.+?)(?:, *[fr]?['\"(].*|,? *[\\(]?)$", source)
    names = settings_of(source)
    says = f"{belongs_to(frame)} checks a condition that does not hold"
    says += f": {message[:LONGEST_QUOTE].rstrip('.')}." if message else ""
    if condition:
        says += f"{'' if message else '.'} The condition: “{condition['condition'][:LONGEST_QUOTE]}”."
    steps = []
    if names:
        steps.append(f"change {', '.join(names)}, which the check reads, so that it holds")
    elif message:
        named = settings_in(message)
        steps.append(
            f"see to it that it holds: {message[:LONGEST_QUOTE]}" + (f" (it names {', '.join(named)})" if named else "")
        )
    elif condition:
        steps.append(f"see to it that it holds: {condition['condition'][:LONGEST_QUOTE]}")
    asked = condition["condition"] if condition else ""
    about = next((words for word, words in _CONDITIONS.items() if re.search(rf"{word}(?![a-z]|_count)", asked)), "")
    if about and "is_available" not in asked and not re.search(r"[=!<>]=|[<>]|\bin\b|\bis\b", asked):
        about = ""  # a call about it compares nothing
    if about:
        steps.append(about)
    if frame and frame.package:
        steps.append(
            f"{place} shows the lines around the check; if the settings agree with it, a newer {called(frame.package)}"
        )
    return Advice("assertion", says, tuple(steps), place)


def said_alone(read: RaisedError) -> Advice | None:
    """A message that says itself what to do."""
    if OF_TORCH.search(read.message):
        return None  # an operation says "must" of what it was given, and not what to do
    said = said_cure(read)
    raiser = read.raiser
    refused = raiser is not None and raiser.package == "torch" and not raiser.source.startswith(("raise", "assert"))
    if said is None or (refused and not told_cure(read.message)):
        return None  # an operation of torch says what it was given, and not what to do
    place = place_of(read.last)
    says = (
        f"{belongs_to(raiser)} refuses to go on, and says why."
        if read.frames and not read.cut and raiser is read.last
        else ("The message says itself what to change.")
    )
    return Advice("message", says, (quoted(said, read),), place)


def inside_library(read: RaisedError) -> Advice | None:
    """Whatever else failed inside of a package."""
    frame = read.raiser
    if frame is None or not frame.package:
        return None
    place, source = place_of(frame), frame.source
    where = read.place()
    above = next(
        (
            one.package
            for one in reversed(read.frames)
            if one.package in PACKAGES and one.package not in TOOLS | {frame.package}
        ),
        "",
    )
    by = f" (which {called(above)} calls)" if above and frame.package not in PACKAGES else ""
    who = called(above) if by else called(frame.package)
    if read.type == "CompilationError":
        kernel = re.search(r"\bdef (\w+)\(", read.message)
        named = f" {kernel[1]}" if kernel else ""
        says = f"{called(frame.package)}{by} could not compile the kernel{named} ({place}): the last line says why."
        steps = [
            "that last line: what does not exist there, or has another type or shape? A name that is "
            f"missing means that the kernel was written for a newer {called(frame.package)}, most often",
            f"{called(frame.package)} and the package that the kernel is from of versions that are made for each other",
        ]
        return Advice("library", says, tuple(steps), place)
    if source.startswith("raise") and read.message:
        says = (
            f"{called(frame.package)}{by} checked something and refuses to go on: "
            f"“{read.message[:LONGEST_QUOTE]}” ({place})."
        )
        names = settings_in(read.message)
        steps = [f"the message names {', '.join(names)}: is that what you meant to give?"] if names else []
        steps.append(
            f"the lines above {place} show what was checked; if all is as it should be, search the issues of {who}"
        )
        return Advice("library", says, tuple(steps), place)
    says = (
        f"It failed inside of {called(frame.package)}{by}"
        + (f", {where}" if where else "")
        + f", at {place}"
        + (f": “{source[:LONGEST_QUOTE]}”." if source else ".")
    )
    names = settings_of(source)
    steps = []
    if "NoneType" in read.message:
        steps.append(
            "something on that line is None: mostly what should have made it failed or was left out "
            "(warnings above), or a setting has no value"
        )
    if names:
        steps.append(
            f"the settings read on that line: {', '.join(names)}; are they what {called(frame.package)} expects?"
        )
    if re.search(
        r"unsupported operand type|must be (?:str|real number|int|float)|not (?:iterable"
        r"|subscriptable|callable)|object cannot be|has no len\(\)",
        read.message,
    ) and IN_REWARD.search(source + frame.function):
        steps.append(
            "mostly a reward function handed over something else than one number for each answer (a dict, a list, None)"
        )
    handed = re.search(
        r"'(list|dict|str|int|float|tuple|bool|ndarray|bytes)' object (?:has no attribute|is not"
        r"|does not|cannot)|(list|string) indices must be integers",
        read.message,
    )
    if handed:
        steps.append(
            f"it was handed a value of type {handed[1] or handed[2]} where it expects something "
            f"else: a row of the data, a reward or a setting of another form (print it)"
        )
    if handed is None and "NoneType" not in read.message:
        steps.append(f"print what that line reads ({place}): its type and value, and where it was made")
    steps.append(f"the issues of {who}, searched for the message: it may be a case that this version does not handle")
    return Advice("library", says, tuple(steps), place)
