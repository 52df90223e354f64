"""From the end and the output of a command to what was seen of its run: there is no probe in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisect_cfg.common.failures import signature as signatures
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.text import clean, normalise, plain
from bisect_cfg.probe.secrets import scrub
from bisect_cfg.runner.traces import Row, tail_of_log
from bisect_cfg.runner.verdict import CANNOT_RUN, SKIPPED, Ended, Metrics, Observation, trace_of
from bisect_cfg.runner.watch import Ending

SKIP = 125
NOT_RUN = (126, 127)
"""Exit statuses with a meaning of their own: `git bisect run` takes 125 for "cannot be tested"; a shell gives 126 for
what cannot be executed and 127 for what is not there."""

LINES_READ = 40
"""Of the end of an output, in which a line is looked for that says what went wrong."""

_COMPLAINTS = (
    re.compile(r"\b(?:errors?|fatal|panic|exception)\b", re.IGNORECASE),
    re.compile(
        r"\b(?:fail(?:ed|ure|s)?|invalid|illegal|cannot|can't|could not|unable|denied|refused|unknown|unrecogni[sz]ed"
        r"|unexpected|not found|no such|not supported|unsupported|not allowed|incompatible|conflict(?:s|ing)?"
        r"|mutually exclusive|missing|required|must|abort(?:ed)?)\b",
        re.IGNORECASE,
    ),
)
"""How programs say that something went wrong, the plainest words first."""


def observe_command(rows: Sequence[Row], folder: Path, ending: Ending) -> Observation:
    """Say what happened in a run of a command that is over.

    Args:
        rows: the metrics that it printed.
        folder: of the run, which has ``log.txt``.
        ending: how it came to its end.
    """
    died, message = _death(folder / "log.txt", ending)
    ended = Ended.FAILURE if died is not None else Ended.END if ending.exit_code == 0 else Ended.STOPPED
    steps = rows[-1]["step"] if rows else 0
    seen = Observation(died, ended, steps, ending.seconds, scrub(message), trained=bool(rows), counted=bool(rows))
    return replace(seen, trace=trace_of(seen, Metrics(rows)))


def _death(log: Path, ending: Ending) -> tuple[Signature | None, str]:
    """The signature of what ended a run, and in words; None for one that ended well, or that we ended."""
    code = ending.exit_code
    if ending.hang is not None:
        return Signature("hang"), ending.hang
    if code is None or code == 0:
        return None, ""
    if code == SKIP:
        return Signature(SKIPPED), f"exit status {SKIP}: it cannot be judged"
    lines = tail_of_log(log, LINES_READ)
    line = complaint_in(lines)
    if code in NOT_RUN:
        return Signature(CANNOT_RUN, str(code)), line or f"exit status {code}"
    found = signatures.from_exit(code, log)
    if found.kind == "exit":
        # Programs have few exit statuses and many failures: what they say of it tells them apart.
        return replace(found, message=normalise(line)), line
    if found.kind == "signal":
        return found, found.name
    if found.kind == "exception" and found.message:
        found = replace(found, where="")  # ranks print their tracebacks into each other: whose frame is last is chance
    own = (clean(line) for line in reversed(lines) if found.name and found.name in line)
    return found, next(own, str(found))


def complaint_in(lines: Sequence[str]) -> str:
    """The last of some lines that says that something went wrong, "" if none does. Not simply the last one: what a
    program buffers, its ordinary output, comes after what it complains of."""
    told = (line for words in _COMPLAINTS for line in reversed(lines) if words.search(line))
    return plain(next(told, "")).strip()
