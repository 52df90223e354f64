"""What only follows from another failure: it never leads over the error that it follows from.

A process that dies takes others along. A trainer does not reach the server that died while it started, the next start
finds the port still taken, other ranks wait until their time is up, a data loader's worker is gone, somebody presses
Ctrl-C, a scheduler ends what hangs. Each of these is a cause only where the log has no error of its own before it: the
first error that is no consequence counts, of whatever process, unless the run got over it (`_recovered`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ENDED_FROM_OUTSIDE = (
    r"CANCELLED AT|DUE TO TIME LIMIT|TERM_RUNLIMIT|\bwalltime\b|KeyboardInterrupt|^\^C|SignalException|signal SIGTERM"
    r"|\bKilled\b(?! process)|SIGKILL|exit(?:ed)? (?:with )?(?:code|status)\W{0,3}(?:-9|137|143)\b"
)
_NOT_THERE = (
    r"[Ss]erver can't be reached|Server is not up yet|[Cc]onnection refused|ECONNREFUSED|Errno 111\b"
    r"|[Aa]ll connection attempts failed|RemoteDisconnected|Remote end closed|[Ss]erver disconnected"
    r"|[Cc]onnection (?:reset|aborted|closed|broken)|Broken ?[Pp]ipe|Cannot connect to host|Max retries exceeded"
    r"|Read timed out|ReadTimeout|(?:EngineDead|ActorDied|WorkerCrashed|OwnerDied|NodeDied|ObjectLost)Error"
    r"|died unexpectedly|[Ee]ngine loop (?:has died|is not running)|Background loop (?:has errored|is stopped)"
    r"|Request failed: 5\d\d|Internal Server Error|BrokenProcessPool|process \d+ terminated with"
    r"|worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly|Pin memory thread exited|^_?queue\.Empty"
)
_LEFT_BEHIND = r"EADDRINUSE|[Aa]ddress already in use"
_WAITED_FOR = (
    r"Watchdog caught collective|timed out after|ran for \d+ milliseconds before timing out|DistBackendError"
    r"|Timed out waiting|remote process exited|socketProgress|closed by (?:remote )?peer|DistStoreError"
)
_FOLLOWS = re.compile("|".join((_ENDED_FROM_OUTSIDE, _NOT_THERE, _LEFT_BEHIND, _WAITED_FOR)))

_TEARS_DOWN = re.compile(
    r"\*\*\* (?:STEP|JOB) .{0,80}CANCELLED AT|taking the entire process down|milliseconds before timing out"
)
"""A collective times out after minutes; a process that had been killed before would have been reported by then."""

_OUTSIDE = re.compile(r"(?:host='?|://|host )(?!localhost|\d)[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b|huggingface|wandb")
"""A service that somebody else runs does not go away because a run has failed."""


def follows(text: str) -> bool:
    """Whether an error's words may tell of nothing but another failure's consequence."""
    return bool(_FOLLOWS.search(text)) and not _OUTSIDE.search(text)


def tears_down(text: str) -> bool:
    """Whether an error's words tell that all that is left of a run is ended with it."""
    return bool(_TEARS_DOWN.search(text))


def after(first: int, lines: Sequence[tuple[int, str]]) -> bool:
    """Whether what an answer rests on are consequences of the error on an earlier line.

    Args:
        first: the last line of that error.
        lines: the numbers of the lines, and what they say.
    """
    return bool(lines) and all(number > first and follows(text) for number, text in lines)
