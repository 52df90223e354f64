"""Runs that stand still: the log ends in a long silence, and no error says why.

What tells of a silence comes after it: a person's note ("# 12:31, still nothing"), a watcher that reports the same step
again and again, or an end that somebody or a scheduler made hours after the last line. A log that just ends is not
taken for stalled; that it ends in a start or a retry is said (`standing`), which is no failure by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from bisect_cfg.common.failures.excerpt import LogLine

FACTS = {
    "stalled": "the log ends in a long silence, without an error",
    "standing": "the log ends while the run starts, retries or has no step yet",
}
# Less is a slow step (generation, evaluation and saving of large models take minutes), more is two clocks.
LONG, LONGEST = timedelta(minutes=20), timedelta(days=30)
REPEATS, LAST_LINES, NEAR = 3, 400, 40  # reports of one step; lines of the end, and those in which a note counts

_TIMES = (
    re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)"),
    re.compile(r"(?<![\d-])()(\d\d)[-/](\d\d) (\d\d):(\d\d):(\d\d)"),
    re.compile(r"\b[IWEF]()(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)"),  # glog
    re.compile(r"(?<![\d:.<])()()()([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?(?![\d:<]|, +[\d?.]+(?:s/it|it/s))"),
)
_NOTE = re.compile(
    r"\s*(?:#|//|<-|\^\^|\.\.\.|>>>|\((?!\w+ pid=)|\[?(?:note|NOTE|me|user)\b|-- )|.*(?:卡住|卡在|不动了)"
    r"|.*\bno (?:new|more|further) (?:output|log|lines?) (?:for|since) \d+ ?(?:h|min)"
)
_HANGS = re.compile(
    r"(?i)\b(?:hangs?|hung|hanging|stuck|frozen|freezes|froze|stalled|never (?:returns|finishes|ends|continues)"
    r"|no (?:more |further |new )?(?:output|progress|log|lines? (?:for|since))"
    r"|nothing (?:more|happens|happened|else|for|since|after)|still (?:nothing|waiting|the same|at|running)"
    r"|(?:waited|waiting|sits here|for) (?:\w+ ){0,3}(?:hours?|minutes?|min|h)\b)|卡住|卡在|不动了"
)
_STEP = re.compile(r"(?i)(?:\bstep[ :=]*|\| *)\d+/\d+|\bstep[ :=]*\d+\b")
_ENDED = re.compile(
    r"CANCELLED AT|DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime|KeyboardInterrupt|^\^C|signal SIGTERM|SignalException"
    r"|got signal: (?:2|15)\b|Received (?:2|15) death signal|[Cc]ontext canceled|DeadlineExceeded"
    r"|^(?!.*State:).*Terminated$|py-spy dump"
)
_WAITS = re.compile(
    r", line \d+, in (?:_?wait\w*|select|poll|_?recv\w*|acquire|barrier|synchronize|communicate|get_objects"
    r"|_wait_for_\w+|accept|connect|all_(?:reduce|gather)\w*|broadcast\w*|init_communicator|monitored_barrier)$"
    r"|\bncclCommInitRank\w*\("
)
_ROW = re.compile(r"\d%\||^\s*\{'\w|\bstep:\d")
_FINISHED = re.compile(
    r"(?i)train_runtime|training (?:is |was |has )?(?:completed?|finished|done)\b|finished training"
    r"|^(?:all )?(?:done|finished)\b|(?-i:\bCOMPLETED\b)|exit(?:ed)? (?:with )?(?:code|status)?:? ?0\b"
)
_STARTS = re.compile(
    r"\b(?:retrying|retry (?:in|after|attempt)|[Ww]aiting for|still waiting|MEMBER: \d+/\d+|[Ii]nitializ\w+ (?:torch )?"
    r"(?:distributed|process group)|as PyTorch extensions root\.\.\.|Loading extension module|init_process_group"
    r"|ncclCommInitRank\w* (?!.*COMPLETE)|[Rr]endezvous)"
)
_BAR = re.compile(r"\b(\d+)%\|[^|]*\| *(\d+)/[1-9]\d* \[.*")
_STEPPED = re.compile(r"\bstep[ :=]*\d|\bepoch[ :=]*\d|\bloss\b|\d+%\|[^|]*\| *[1-9]\d*/\d+ \[", re.IGNORECASE)
_SERVES = re.compile(r"Application startup complete|Uvicorn running|vLLM API server|Serving Flask|Jupyter Server")


@dataclass(frozen=True)
class Standstill:
    """Number and text of the last line on which something moved (0 if nothing did), and of that which tells of the
    silence; how long it lasted, None where no clock says so."""

    line: int
    text: str
    told_line: int
    told: str
    lasted: timedelta | None = None

    def __str__(self) -> str:
        if self.lasted is None:
            return self.text
        hours, minutes = divmod(int(self.lasted.total_seconds() // 60), 60)
        return f"{self.text} (and nothing for {f'{hours} h ' if hours else ''}{minutes} min after it)"


def only_ended(text: str) -> bool:
    """Whether an error says no more than that somebody ended the run."""
    return bool(_ENDED.search(text))


def silence(lines: Sequence[LogLine], rows: int) -> Standstill | None:
    """The silence in which a log ends, None if it does not; `rows` is how many metric rows the log has."""
    last = [line for line in lines[-LAST_LINES:] if line.shown.strip()]
    serves = any(_SERVES.search(line.shown) for line in last)  # a server waits for requests, and somebody ends it
    over = not last or serves or any(_FINISHED.search(line.text) for line in last[-NEAR:])
    return None if over else _noted(last) or _repeated(last) or _ended(last, rows)


def standing(lines: Sequence[LogLine]) -> LogLine | None:
    """The line of a start, a retry or a bar at 0 % by which a log ends (perhaps with a ^C after it)."""
    last = [line for line in lines[-LAST_LINES:] if line.shown.strip()]
    if not last or any(_FINISHED.search(line.text) or _SERVES.search(line.shown) for line in last):
        return None
    interrupted = len(last) > 1 and re.fullmatch(r"\^C+\s*", last[-1].shown) is not None
    end = last[-2] if interrupted else last[-1]
    if _STARTS.search(end.shown) or (interrupted and not any(_STEPPED.search(line.shown) for line in last)):
        return end
    bars = [(line, bar) for line in last for bar in _BAR.finditer(line.shown)]
    return bars[-1][0] if bars and bars[-1][1].group(1, 2) == ("0", "0") else None


def _time(line: LogLine) -> datetime | None:
    """The time that a line carries; one without a year is of 2000, one without a date of its first day."""
    for found in filter(None, (pattern.search(line.shown[:200]) for pattern in _TIMES)):
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
        with suppress(ValueError):
            return datetime(year or 2000, month or 1, day or 1, hour, minute, second)
    return None


def _standstill(before: Sequence[LogLine], told: LogLine, timed: LogLine) -> Standstill:
    """A silence after the last line of `before` that is the program's (and has a time, if one has)."""
    program = [line for line in before if not _NOTE.match(line.shown) and not line.shown.lstrip().startswith("|")]
    moved = ([line for line in program if _time(line)] or program or [LogLine(0, "", "", "", "")])[-1]
    since, until, lasted = _time(moved), _time(timed), timedelta(0)
    if since and until:
        undated = any(time.date() == date(2000, 1, 1) for time in (since, until))
        if undated:
            since, until = (datetime.combine(date(2000, 1, 1), time.time()) for time in (since, until))
        elif 2000 in (since.year, until.year):
            since, until = since.replace(year=2000), until.replace(year=2000)
        lasted = until - since + timedelta(days=undated and until < since)
    worked = any(_ROW.search(line.shown) for line in program if line.number > moved.number)  # rows carry no time
    known = LONG <= lasted < LONGEST and not worked
    return Standstill(moved.number, moved.shown, told.number, told.shown.strip(), lasted if known else None)


def _noted(lines: Sequence[LogLine]) -> Standstill | None:
    """A person's note at the end that it hangs."""
    for at in range(len(lines) - 1, max(len(lines) - NEAR, 0) - 1, -1):
        text = lines[at].shown
        if len(text) <= 240 and _NOTE.match(text) and _HANGS.search(text):
            return _standstill(lines[:at], lines[at], lines[at])
    return None


def _repeated(lines: Sequence[LogLine]) -> Standstill | None:
    """A watcher that reports the same step, or that it waits, until the end."""
    last, step = lines[-1], _STEP.search(lines[-1].shown)
    waits = step is not None or re.search(r"[Ww]ait|[Rr]etry|still", last.text)
    if not waits or _time(last) is None or re.search("GET /|POST /|HTTP/1", last.shown):
        return None
    shape, same = re.sub(r"\d+", "0", last.text), []
    for line in reversed(lines):
        if step.group() in line.shown if step else re.sub(r"\d+", "0", line.text) == shape:
            same.append(line)
        elif _time(line):
            break
    found = _standstill(same[-1:], last, last) if len(same) >= REPEATS else None
    return found if found and found.lasted else None


def _ended(lines: Sequence[LogLine], rows: int) -> Standstill | None:
    """A job that somebody or a scheduler ended long after its last line, or, before its first row, in a wait."""
    if (at := next((at for at, line in enumerate(lines) if _ENDED.search(line.shown)), None)) is None:
        return None
    # A terminal's ^C has no time; what is printed next may have one.
    found = _standstill(lines[:at], lines[at], next((line for line in lines[at:] if _time(line)), lines[at]))
    by_somebody = re.search(r"CANCELLED AT (?!.*DUE TO)", lines[at].shown)
    waits = any(_WAITS.search(line.shown.rstrip()) for line in lines[-NEAR:])
    waited = waits and any("KeyboardInterrupt" in line.shown for line in lines[at:])
    return found if found.lasted or (not rows and (by_somebody or waited)) else None
