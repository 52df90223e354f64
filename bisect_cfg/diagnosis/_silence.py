"""Runs that stand still: the log ends in a long silence, and no error says why.

Silence itself prints nothing. What tells of it is what comes after: a person's note ("# 12:31, still nothing"), a
watcher that reports one and the same step again and again, a scheduler that ends the job hours after the last line, or
Ctrl-C in the middle of a wait. Only the end of a log is looked at, and a log that just ends is not taken for stalled.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bisect_cfg.diagnosis._plain_text import plain, split_all

LONG = datetime.timedelta(minutes=20)
"""Silence that is no slow step: generation, evaluation and saving of large models take minutes."""

LONGEST = datetime.timedelta(days=30)
"""More than that is two clocks or two ways to write a date, not silence."""

REPEATS = 3
"""Reports of one and the same step that a watcher has to make."""

LAST_LINES = 400
"""Lines of the end that are looked at: a rank that waits prints warnings for each of its peers."""

NEAR = 40
"""Lines before the end in which a person's note counts; an earlier one is about something that went on."""

_DATE = re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_DAY = re.compile(r"(?<![\d-])(\d\d)[-/](\d\d) (\d\d):(\d\d):(\d\d)")
_GLOG = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)")
_CLOCK = re.compile(r"(?<![\d:.<])()()([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?(?![\d:<]|, +[\d?.]+(?:s/it|it/s))")
_NOTE = re.compile(
    r"\s*(?:#|//|<-|\^\^|\.\.\.|>>>|\((?!\w+ pid=)|\[?(?:note|NOTE|me|user)\b|-- )|.*(?:卡住|卡在|不动了)"
    r"|.*\bno (?:new|more|further) (?:output|log|lines?) (?:for|since) \d+ ?(?:h|min)"
)
_HANGS = re.compile(
    r"\b(?:hangs?|hung|hanging|stuck|frozen|freezes|froze|stalled|never (?:returns|finishes|ends|continues)"
    r"|no (?:more |further |new )?"
    r"(?:output|progress|log|lines? (?:for|since))|nothing (?:more|happens|happened|else|for|since|after)"
    r"|still (?:nothing|waiting|the same|at|running)"
    r"|(?:waited|waiting|sits here|for) (?:\w+ ){0,3}(?:hours?|minutes?|min|h)\b)|卡住|卡在|不动了",
    re.IGNORECASE,
)
_STEP = re.compile(r"(?:\bstep[ :=]*|\| *)(\d+/\d+)|\bstep[ :=]*(\d+)\b", re.IGNORECASE)
_ENDED = re.compile(
    r"CANCELLED AT|DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime|KeyboardInterrupt|^\^C|signal SIGTERM|SignalException"
    r"|got signal: (?:2|15)\b|Received (?:2|15) death signal|[Cc]ontext canceled|DeadlineExceeded"
    r"|^(?!.*State:).*Terminated$|py-spy dump"
)
_BY_SOMEBODY = re.compile(r"CANCELLED AT (?!.*DUE TO)")
_WAITS = re.compile(
    r", line \d+, in (?:_?wait\w*|select|poll|recv\w*|acquire|barrier|synchronize|communicate|get_objects|_wait_for_\w+"
    r"|_recv\w*|accept|connect|all_(?:reduce|gather)\w*|broadcast\w*|init_communicator|monitored_barrier)$"
    r"|\bncclCommInitRank\w*\("
)
_FINISHED = re.compile(
    r"train_runtime|training (?:is |was |has )?(?:completed?|finished|done)\b|finished training"
    r"|^(?:all )?(?:done|finished)\b"
    r"|(?-i:\bCOMPLETED\b)|exit(?:ed)? (?:with )?(?:code|status)?:? ?0\b",
    re.IGNORECASE,
)
_STARTS = re.compile(
    r"\b(?:retrying|retry (?:in|after|attempt)|[Ww]aiting for|still waiting|MEMBER: \d+/\d+|[Ii]nitializ\w+ (?:torch )?"
    r"(?:distributed|process group)|as PyTorch extensions root\.\.\.|Loading extension module|init_process_group"
    r"|ncclCommInitRank\w* (?!.*COMPLETE)|[Rr]endezvous)",
)
"""Lines of a program that is not there yet: it starts together with others, or tries to reach them."""
_BAR = re.compile(r"\b0%\|[^|]*\| *(?P<done>0)/[1-9]\d* \[.*|\d+%\|[^|]*\| *(?P<other>\d+)/\d+ \[")
"""A progress bar."""
_STEPPED = re.compile(
    r"\bstep[ :=]*\d|\bepoch[ :=]*\d|\bloss\b"
    r"|^\s*(?:Train\w*:? +|Epoch \d+:? +)?\d+%\|[^|]*\| *[1-9]\d*/\d+ \[",
    re.IGNORECASE,
)
"""A line of a program that is past its start."""
_SERVES = re.compile(
    r"Application startup complete|Uvicorn running|Starting vLLM API server|Serving Flask|Jupyter Server"
)
_IDLE = re.compile(r"GET /|POST /|HTTP/1", re.IGNORECASE)


@dataclass(frozen=True)
class Standstill:
    """Where a log falls silent, and what tells of it.

    Attributes:
        line: the last line on which something moved, counted from 1; 0 if nothing ever did.
        text: what that line says.
        told_line: the line that tells of the silence.
        told: what that line says.
        lasted: how long it was silent, None where no clock says so.
    """

    line: int
    text: str
    told_line: int
    told: str
    lasted: datetime.timedelta | None = None

    def __str__(self) -> str:
        if self.lasted is None:
            return self.text
        minutes = int(self.lasted.total_seconds() // 60)
        length = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
        return f"{self.text} (and nothing for {length} after it)"


def only_ended(text: str) -> bool:
    """Whether an error says no more than that somebody ended the run."""
    return bool(_ENDED.search(text))


def silence(tail: bytes, number: int, rows: int) -> Standstill | None:
    """The silence in which a log ends; None if it does not.

    Args:
        tail: the end of the log, whole lines.
        number: the number of the line after the last one.
        rows: how many rows of metrics the log has.
    """
    raw = tail.decode("utf-8", "replace").split("\n")
    raw = raw[:-1] if raw and not raw[-1] else raw
    first = number - len(raw)
    lines = [(first + index, plain(line)) for index, line in enumerate(raw)][-LAST_LINES:]
    lines = [(at, text) for at, text in lines if text.strip()]
    if any(_SERVES.search(text) for _, text in lines):
        return None  # a server waits for requests, and somebody ends it
    if not lines or any(_FINISHED.search(text) for _, text in lines[-NEAR:]):
        return None
    return _noted(lines) or _repeated(lines) or _ended(lines, rows)


def standing(tail: bytes, number: int) -> tuple[int, str] | None:
    """The line, and its number, by which a log ends in a start, a retry or before the first step (perhaps with a ^C
    after it); None if it does not.

    That is no failure by itself: it may go on, or its end may be missing.
    """
    raw = tail.decode("utf-8", "replace").split("\n")
    raw = raw[:-1] if raw and not raw[-1] else raw
    first = number - len(raw)
    lines = [(first + at, text) for at, text in enumerate(map(plain, raw)) if text.strip()][-LAST_LINES:]
    if not lines or any(_FINISHED.search(text) or _SERVES.search(text) for _, text in lines):
        return None
    interrupted = len(lines) > 1 and re.fullmatch(r"\^C+\s*", lines[-1][1]) is not None
    at, text = lines[-2] if interrupted else lines[-1]
    if _STARTS.search(text) or (interrupted and not any(_STEPPED.search(line) for _, line in lines)):
        return at, text.strip()
    bars = [(at, bar) for at, text in lines for bar in _BAR.finditer(text)]
    if bars and bars[-1][1]["done"] is not None:
        return bars[-1][0], bars[-1][1].group().strip()
    return None


def _time(text: str) -> tuple[datetime.datetime, bool] | None:
    """The time that a line carries, and whether it has a date."""
    for pattern, dated in ((_DATE, True), (_DAY, True), (_GLOG, True), (_CLOCK, False)):
        found = pattern.search(text[:200])
        if found:
            numbers = [int(part or 0) for part in found.groups()]
            year, month, day = (numbers if len(numbers) == 6 else [2000, *numbers])[:3]
            hour, minute, second = numbers[-3:]
            try:
                return datetime.datetime(year or 2000, month or 1, day or 1, hour, minute, second), dated
            except ValueError:
                return None
    return None


def _between(early: str, late: str) -> datetime.timedelta | None:
    """The time from one line to another; a line without a date is on the same day, or the next."""
    one, other = _time(early), _time(late)
    if one is None or other is None:
        return None
    (before, dated), (after, also) = one, other
    if not (dated and also):
        before, after = (time.replace(year=2000, month=1, day=1) for time in (before, after))
        if after < before:
            after += datetime.timedelta(days=1)
    elif 2000 in (before.year, after.year):
        before, after = before.replace(year=2000), after.replace(year=2000)
    return after - before if after - before < LONGEST else None


def _last_moved(lines: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """The last line of the program's own output that has a time, or else the last one."""
    program = [(at, text) for at, text in lines if not _NOTE.match(text) and not text.lstrip().startswith("|")]
    timed = [(at, text) for at, text in program if _time(text)]
    return (timed or program or [(0, "")])[-1]


def _noted(lines: Sequence[tuple[int, str]]) -> Standstill | None:
    """A person's note at the end that it hangs."""
    for index in range(len(lines) - 1, max(len(lines) - NEAR, 0) - 1, -1):
        at, text = lines[index]
        if not _NOTE.match(text) or not _HANGS.search(text) or len(text) > 240:
            continue
        moved = _last_moved(lines[:index])
        lasted = _between(moved[1], text)
        return Standstill(*moved, at, text.strip(), lasted if lasted and lasted >= LONG else None)
    return None


def _repeated(lines: Sequence[tuple[int, str]]) -> Standstill | None:
    """A watcher that reports the same step, or that it waits, until the end."""
    last_time = _time(lines[-1][1])
    step = _STEP.search(lines[-1][1])
    if last_time is None or _IDLE.search(lines[-1][1]):
        return None
    shape = step.group() if step else re.sub(r"\d+", "0", split_all(lines[-1][1])[2])
    if not step and not re.search(r"[Ww]ait|[Rr]etry|still", shape):
        return None
    same = []
    for at, text in reversed(lines):
        if (shape in text) if step else re.sub(r"\d+", "0", split_all(text)[2]) == shape:
            same.append((at, text))
        elif same and _time(text):
            break
    lasted = _between(same[-1][1], same[0][1]) if len(same) >= REPEATS else None
    if lasted is None or lasted < LONG:
        return None
    return Standstill(*same[-1], same[0][0], same[0][1].strip(), lasted)


def _ended(lines: Sequence[tuple[int, str]], rows: int) -> Standstill | None:
    """A job that somebody or a scheduler ended long after its last line."""
    ends = [index for index, (_, text) in enumerate(lines) if _ENDED.search(text)]
    if not ends:
        return None
    index = ends[0]
    at, text = lines[index]
    moved = _last_moved(lines[:index])
    # A terminal's ^C has no time; what is printed next may have one.
    timed = next((later for _, later in lines[index:] if _time(later)), text)
    lasted = _between(moved[1], timed)
    if lasted is not None and lasted >= LONG:
        return Standstill(*moved, at, text.strip(), lasted)
    interrupted = any("KeyboardInterrupt" in line for _, line in lines[index:])
    waited = interrupted and any(_WAITS.search(line.rstrip()) for _, line in lines[-NEAR:])
    if not rows and (_BY_SOMEBODY.search(text) or waited):
        return Standstill(*moved, at, text.strip())
    return None
