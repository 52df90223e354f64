"""Where an error was raised, and whose lines those are."""

from __future__ import annotations

import re

from bisect_cfg.diagnosis import _faults
from bisect_cfg.diagnosis.advice.reading import Frame, frames_before


def frames_of(cause: _faults.Error | None) -> tuple[Frame, ...]:
    """The frames before an error, without those of Python's own library; none where there is no error."""
    frames = frames_before(cause) if cause is not None else ()
    return tuple(frame for frame in frames if frame.package != "python")


def raised(cause: _faults.Error | None) -> str:
    """Where an error was raised, and from which line of one's own."""
    frames = frames_of(cause) if cause is not None and cause.type_name else ()
    if not frames:
        return ""
    own = next((frame for frame in reversed(frames) if not frame.package), None)
    if own is frames[-1]:
        return f"It was raised at {own}."
    called_from = f", called from {own}" if own else ""
    return f"It was raised at {frames[-1]}{called_from}."


def raised_in_own_file(cause: _faults.Error | None) -> bool:
    """Whether an exception was raised in the user's own file, and in no package that it calls."""
    frames = frames_of(cause)
    return bool(frames) and not frames[-1].package


def own_script(cause: _faults.Error | None) -> str:
    """The user's script in a traceback: its outermost frame, if that is nobody's package."""
    frames = frames_of(cause)
    outer = frames[0].file if frames and not frames[0].package and frames[0].file.endswith(".py") else ""
    return outer if re.fullmatch(r"[\w./~+-]+", outer) else ""
