"""What a traceback says by itself, where no known failure covers it.

An engineer who has never seen a failure still reads a good deal from its traceback: a message that names the
cure; two packages of which one calls the other in a way it does not know; a setting that the script lacks; a
weight whose name the other side does not have; a column that the data lacks; a function of one's own.
`advise` does that and no more: what it says is drawn from the lines of the log, with the place it is read
from, and it is never a known cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from bisect_cfg.diagnosis import _faults, _releases
from bisect_cfg.diagnosis.advice.compared import indivisible, too_few_gpus
from bisect_cfg.diagnosis.advice.data import interrupted, missing_column, missing_file, own_code, raised_below
from bisect_cfg.diagnosis.advice.misnamed import missing_optional, unknown_name, unknown_setting, unset_variable
from bisect_cfg.diagnosis.advice.network import unreachable
from bisect_cfg.diagnosis.advice.numbers import mismatch, refused_by_gpu
from bisect_cfg.diagnosis.advice.otherwise import OF_TORCH, failed_assertion, inside_library, said_alone
from bisect_cfg.diagnosis.advice.parts import by_part, first_step
from bisect_cfg.diagnosis.advice.reading import (
    INNER,
    Advice,
    RaisedError,
    frames_before,
    pip_name,
    quoted,
    said_cure,
    suspected_in,
    without_access,
)
from bisect_cfg.diagnosis.advice.versions import misfit
from bisect_cfg.diagnosis.advice.weights import unfit_weights

DEFINITE = ("versions", "setting", "weights", "column", "own-code", "shapes", "dtypes", "devices")
"""Kinds that add to a general entry which packages, setting, weight, column, file or part of a run is meant."""


def advise(error: _faults.Error | None, packages: Mapping[str, str] | None = None) -> Advice | None:
    """What an error and its traceback say by themselves; None if they say nothing that the message does not.

    Args:
        error: The error, with the text before it.
        packages: The versions that the log prints.
    """
    if error is None or error.weight == _faults.STATUS or (error.weight == _faults.NATIVE and not error.type_name):
        return None
    kind, message = _split(error)
    if kind in ("SystemExit", "MemoryError"):
        return None
    frames = frames_before(error) if error.type_name else ()
    if kind == "KeyboardInterrupt":
        return interrupted(RaisedError(kind, message, frames, error.type_name))
    whole, asked = frames, without_access(frames)
    if kind in ("KeyError", "AttributeError", "IndexError"):
        frames = asked
    read = RaisedError(kind, message, frames, error.type_name)
    read = replace(read, asked_a_row=any("datasets/formatting/" in frame.file for frame in whole[len(asked) :]))
    read = replace(read, cut=raised_below(read))
    for rule in RULES if error.weight == _faults.RAISED else FOR_WORDS:
        advice = rule(read)
        if advice is not None:
            advice = _with_versions(_with_the_message(advice, read), read, packages or {})
            step = first_step(read) if advice.kind in WITHOUT_A_PART else ""
            return replace(advice, steps=(*advice.steps, step)) if step else advice
    return None


def _split(error: _faults.Error) -> tuple[str, str]:
    """The innermost exception's type and message; a wrapper's message may hold another's."""
    text = error.paragraphs()[0]
    kind = error.type_name.rpartition(".")[2]
    message = (
        re.sub(r"^(?:[\w.]+: ?)?", "", text, count=1) if kind and text.startswith((error.type_name, kind)) else text
    )
    inner = INNER.search(message)
    return kind, inner[inner.lastgroup] if inner else message


def _with_the_message(advice: Advice, read: RaisedError) -> Advice:
    """The advice with the message's own words first, where they say what to do."""
    said = None if advice.kind == "message" or OF_TORCH.search(read.message) else said_cure(read)
    if said is None or any(said in step for step in advice.steps):
        suspected = suspected_in(read.message)
        if not suspected or any(suspected in step for step in advice.steps):
            return advice
        names = f"look first at what the message suspects: “{suspected}”"
        return replace(advice, steps=(names, *advice.steps))
    return Advice(advice.kind, advice.says, (quoted(said, read), *advice.steps), advice.place)


def _with_versions(advice: Advice, read: RaisedError, packages: Mapping[str, str]) -> Advice:
    """The advice with the package that is behind first, where versions may be at fault."""
    if advice.kind not in ("versions", "setting", "weights", "library", "assertion"):
        return advice
    callers = {pip_name(frame.package) for frame in read.frames}
    of_versions = advice.kind in ("versions", "setting")
    step = _releases.behind(packages, callers | {"trl", "transformers"} if of_versions else callers)
    if step:
        return replace(advice, steps=(step, *advice.steps))
    shown = [f"{name} {packages[name]}" for name in sorted(packages) if name in callers or name in advice.says.lower()]
    if not shown or not of_versions:
        return advice
    asked = f"the log prints {', '.join(shown)}: is that older or newer than the other side expects?"
    return replace(advice, steps=(*advice.steps, asked))


RULES: tuple[Callable[[RaisedError], Advice | None], ...] = (
    indivisible, too_few_gpus, misfit, missing_optional, unset_variable, unknown_setting, unfit_weights, unknown_name,
    missing_column, unreachable, refused_by_gpu, missing_file, own_code, mismatch, failed_assertion, said_alone,
    inside_library, by_part,
)  # fmt: skip
"""From what says most about the cause to what says least."""

FOR_WORDS = (indivisible, too_few_gpus, unfit_weights, unreachable, mismatch, said_alone)
"""... for what a program says without an exception."""

WITHOUT_A_PART = ("library", "assertion", "message")
"""Kinds of advice to which it is added how to make the part of the run small in which it failed."""
