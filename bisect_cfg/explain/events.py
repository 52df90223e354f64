"""The failures that a log prints, and which of them is the cause.

An error comes as a traceback, as an exception's line alone, as native code's last words, as a program's or a logger's
line, as a signal, or as nothing but an exit status in a launcher's table. Each becomes an `Event` with what it weighs:
a launcher says that something under it failed, an exception says what.

A dying job prints far more than its cause. Three rules find it:

- what was survived is no cause: rows of metrics come after it, the run ends well, or the program says what it does
  about it (it tries again, falls back) and goes on;
- what only follows from another failure is no cause where another one is there, whichever rank says it first: a peer
  that waits in vain, a server that is not there any more, Ctrl-C, a port that is still taken;
- of what is left, the heaviest counts, of each process its last, and of all processes the first.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter

from bisect_cfg.common.failures.excerpt import LogLine
from bisect_cfg.common.failures.signals import SENT_BY_OTHERS, reported_signal
from bisect_cfg.common.failures.signature import ASSERTION, HOST_MEMORY, PROGRESS, WRAPPERS
from bisect_cfg.common.failures.tracebacks import REPORTED, Traceback, tracebacks

RAISED, NATIVE, SAID, LOGGED, AFTERWARDS, STATUS = range(6)
"""Weights, the heaviest first: an exception; a crash of native code; a program's own words; a logger's line at level
ERROR; what follows from another process's end; a launcher or a bare exit status."""

MESSAGE_LINES = 14
"""Lines that may belong to a message after its first one: a box of 80 columns, pydantic's list of fields."""

MOST = 400
"""Events that are kept, the first half and the last half: a thousand ranks print a thousand of them."""

REACH = 3
"""Lines after an error within which a program says what it does about it."""

LAST = 40
"""Lines of the end of a log in which a run says that it ended well; it prints much while it shuts down."""

WORK = 2
"""Lines of work after that which show that it went on."""


@dataclass(frozen=True)
class Event:
    """One failure that a log prints.

    Attributes:
        kind: "exception", "native", "said", "logged", "signal" or "status".
        line: number of the line that says what failed.
        text: that line, without rank and time.
        rank: the rank or worker that printed it, "" if it does not say.
        weight: how much it says about the cause, `RAISED` (most) to `STATUS`.
        message: the text with the lines that belong to it.
        frames: (file, line, function) of its traceback, outermost first.
        first, last: numbers of the first line of its traceback and of the last of its message.
        survived: whether the run went on after it.
        follows: whether its words may tell of nothing but another failure's consequence.
        file: the name of the file it stands in, where there are several.
    """

    kind: str
    line: int
    text: str
    rank: str
    weight: int
    message: str = ""
    frames: tuple[tuple[str, int, str], ...] = field(default=(), repr=False)
    first: int = 0
    last: int = 0
    survived: bool = False
    follows: bool = False
    file: str = ""

    @property
    def type_name(self) -> str:
        """The exception's type without its module, "" if it is none."""
        found = _EXCEPTION.match(self.text)
        return found["type"].rpartition(".")[2] if found else ""


_TYPE = (
    r"(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*"
    r"(?:Error|Exception|Interrupt|Failure|Exit|OutOfResources|OutOfMemory|Timeout|TimedOut|Died|Unavailable|NotFound)"
)
_EXCEPTION = re.compile(rf"(?:E\s+)?(?P<type>{_TYPE})(?:\((?P<inner>\w+)\))?(?:: ?(?P<message>.*))?$")
_DOTTED = re.compile(r"(?P<type>(?:[a-z_]\w*\.)+[A-Z]\w*): (?P<message>\S.*)$")
_INSIDE = re.compile(rf"(?:^|[\s\]|>:-])(?P<type>{_TYPE}): (?P<message>\S.*)$")
_ALONE = {"KeyboardInterrupt", "AssertionError", "MemoryError", "NotImplementedError", "EOFError", "StopIteration"}
"""Exceptions that are often raised without a message."""

_NATIVE = re.compile(
    r"terminate called (?:after|without)|libc\+\+abi: terminating|^\s*what\(\):|panicked at|Fatal Python error"
    r"|uncorrectable ECC|NVRM: Xid|Xid \(|CUDA [eE]rror(?:: | \(\S+:\d+\): )|NCCL WARN Cuda failure"
    r"|NET/IB ?: Got completion .*(?:status=|error )\d|\bError [a-z ]+ at line \d+ in file /\S+"
    r"|(?:\bpython[\d.]*: |^)\S+:\d+: .*: Assertion `|: block: \[.{1,80}Assertion `|No space left on device"
)
_SAID = re.compile(
    r"^(?:[\w./ -]{0,80}: )?(?:line \d+: )?(?:error|ERROR|Error|fatal|FATAL|fatal error)(?:\[\w+\])?: ?\S"
    r"|^nccl\w+(?:Error|Failure|Usage|Argument): |: (?:command|file) not found$|nvcc fatal|^Error executing job"
    r"|^Could not override '|^make: \*\*\*|^ninja: |[Ee]rror response from daemon"
    r"|^Error (?:in|while|during) [\w. ]{1,40}: \S|CUDA out of memory\. Tried to allocate"
    r"|slurmstepd: error|srun: error|The node was low on resource|crashed after using all available RAM"
)
_LEVEL = re.compile(
    r"(?:^|[\s\[|(>:-])(?:ERROR|CRITICAL|FATAL)(?=[\s\]|:)\[-]|$)(?! *=(?![=>]))|^\[?[EF]\d{4} \d\d:\d\d"
    r"|\[E(?:\d{3,4}| +[\w./-]+\.\w+[:\s]\d| \d| +[\w./-]+\.(?:cpp|cc|cu|h|py)\b)|,\d{3} [EFC] \d+ \d+\]"
    r"|\"(?:level|levelname|severity)\": ?\"(?:error|ERROR|critical|CRITICAL)\""
)
_STATUS = re.compile(
    r"exitcode\s*: *-?[1-9]|exit(?:ed)?(?: with)?(?: exit)? ?(?:code|status)[ :=]*-?[1-9]"
    r"|exits with return code = -?[1-9]|OOMKilled|OUT_OF_MEMORY|TERM_MEMLIMIT|Exited \(1\d\d\)"
    r"|non-zero (?:exit|return)|was sent SIGKILL|terminated abruptly|Exit Code: *[1-9]"
)
_LAUNCHER = re.compile(
    rf"{'|'.join(sorted(WRAPPERS))}|WorkerCrashedError|EngineDeadError|Engine core initialization failed"
    r"|EngineCore failed to start|WorkerProc initialization failed|slurmstepd: error: \*\*\* "
    r"|Sending process \d+ closing signal|: [Ss]erver launch failed$"
)
_AFTERWARDS = re.compile(
    r"[Cc]onnection (?:reset|closed|refused) by|Broken pipe|BrokenPipeError|ConnectionResetError|EOFError"
    r"|DistBackendError|remote process exited|NCCL communicator was aborted|DistNetworkError|DistStoreError"
    r"|CancelledError|Watchdog caught|CUDA kernel errors might be|device-side assert triggered"
    r"|leaked semaphore|SystemExit"
)
_HARMLESS = re.compile(
    r"Unable to register cu\w+ (?:factory|plugin)|pip's dependency resolver|factory for plugin|TF-TRT Warning"
    r"|destroy_process_group\(\) was not called|Logging error|not a git repository|Failed to send MESSAGE_TASK_EXIT"
    r"|\b(?:0|no) uncorrectable ECC|[Ee]rror_?rate|ignore_errors|raise_error|\b0 errors?\b|no errors?\b(?!$)|errors?=0"
    r"|on_error|errors='|INTENDED_SYSTEM_EXIT"
)
"""Printed as an error by runs that go on."""

_FOLLOWS = re.compile(
    r"CANCELLED AT|DUE TO TIME LIMIT|TERM_RUNLIMIT|\bwalltime\b|KeyboardInterrupt|^\^C|SignalException|signal SIGTERM"
    r"|\bKilled\b(?! process)|SIGKILL|exit(?:ed)? (?:with )?(?:code|status)\W{0,3}(?:-9|137|143)\b"
    r"|[Ss]erver can't be reached|Server is not up yet|[Cc]onnection refused|ECONNREFUSED|Errno 111\b"
    r"|[Aa]ll connection attempts failed|RemoteDisconnected|Remote end closed|[Ss]erver disconnected"
    r"|[Cc]onnection (?:reset|aborted|closed|broken)|Broken ?[Pp]ipe|Cannot connect to host|Max retries exceeded"
    r"|Read timed out|ReadTimeout|(?:EngineDead|ActorDied|WorkerCrashed|OwnerDied|NodeDied|ObjectLost)Error"
    r"|died unexpectedly|[Ee]ngine loop (?:has died|is not running)|Background loop (?:has errored|is stopped)"
    r"|Request failed: 5\d\d|Internal Server Error|BrokenProcessPool|process \d+ terminated with"
    r"|worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly|Pin memory thread exited|^_?queue\.Empty"
    r"|EADDRINUSE|[Aa]ddress already in use|Watchdog caught collective|timed out after"
    r"|ran for \d+ milliseconds before timing out|DistBackendError|Timed out waiting|remote process exited"
    r"|socketProgress|closed by (?:remote )?peer|DistStoreError|taking the entire process down"
)
_OUTSIDE = re.compile(r"(?:host='?|://|host )(?!localhost|\d)[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b|huggingface|wandb")
"""A service that somebody else runs does not go away because a run has failed."""

_ROW = re.compile(r"['\"](?:loss|grad_norm|reward)['\"]: |^step:\d+ - |lm loss: |^\s*iteration +\d+/")
_RECORD = re.compile(
    r'^\s*File "|^\d\d:\d\d:\d\d(?:[.,]\d+)? +[A-Z]{3}|^[=*#-]{5,}|^Traceback|^[\^~\s]+$|^\s*\d+%\|'
    r"|^\[?(?:INFO|DEBUG|WARNING|ERROR)\b|^During handling|^The above exception|^wandb:"
    r"|^Exception (?:ignored in|in thread) |^Current thread 0x|^Thread 0x|^failed \(exitcode: |^\[[IWEF]\d{3,4} "
    r"|^[!$%] ?[a-z]|^\w[\w ]*: +\d+%\||^Sending process \d+ closing|^slurmstepd: |^srun: |^terminate called"
    r"|^\++ \S|^[\w.-]+ exited with code \d|^Set the environment variable HYDRA_|^\^C|^\S+:\d+: \w*Warning\b"
)
"""Lines that begin something else, and end a message."""

_ENDED_WELL = re.compile(
    r"\b[Tt]raining (?:is |has |run )?(?:completed?|finished|done)\b|\b[Ff]inished training\b"
    r"|\b(?:[Cc]ompleted|[Ff]inished) successfully|['\"]train_runtime['\"]?: |Training completed\. Do not forget"
    r"|\b[Jj]ob '[^']{1,80}' succeeded\b|\bexit(?:ed)?(?: with)? (?:code|status)[:= ]*0\b|\bCOMPLETED +0:0"
    r"|\b(?:has been|was|is|were) successfully \w+"
    r"|\b[Ss]uccessfully (?:installed|saved|written|uploaded|pushed|exported)"
    r"|[Ss]tatus[=: ]+\W?(?:success|SUCCESS|succeeded|SUCCEEDED)|All (?:checks|tests) passed"
)
"""What a run, or who started it, says at its end."""

_COPES = re.compile(
    r"\bretry(?:ing)?\b(?! (?:limit|budget))|\bre-?tried\b|\b(?:trying|tried|try) again\b"
    r"|\bresum(?:e|ing) (?:download|from)"
    r"|\bfall(?:ing|s|en)? ?back\b|\bfell back\b|\bfallback\b|\boptional\b|\bskip(?:ped|ping)\b(?!=)|\bbacking off\b"
    r"|\battempt \d+(?: of |/)\d|\brestart(?:ed|ing)\b|\bignor(?:ed|ing)\b(?!=)|\btrying \S+ instead|\bcontinuing\b"
    r"|\bcarrying on\b|\bproceeding\b|\b(?:decreasing|reducing|lowering) (?:the )?batch size"
    r"|\busing (?:the )?(?:latest |local )?(?:cached?|mirror|default|\S+ instead)\b|\brequeued\b|-> ?(?:reward|score)",
    re.IGNORECASE,
)
_GAVE_UP = re.compile(
    r"\bgiv(?:e|ing|en) up\b|\bgave up\b|\bfailed after\b|Max retries exceeded|no (?:more )?retries", re.I
)
_WORKS = re.compile(
    r"(?<!\d)100%(?:\||\s|\[)|HTTP/1\.1\" 200|Application startup complete|Uvicorn running|\bstep[: ]\d"
    r"|\b(?:completed?|finished|succeeded|saved|wrote|written|uploaded|installed|connected|done|loaded|evaluated)\b"
    r"|(?<!\d)[1-9]?\d%\|[^|]{0,200}\| *\d+/\d+ \[|\b(?:loss|reward|accuracy)['\"]?[:=] ?-?\d",
    re.IGNORECASE,
)
"""A line of a program that goes on, or has come to its end."""


def find_events(lines: Sequence[LogLine], file: str = "") -> list[Event]:
    """The events of a log in the order of their lines.

    Args:
        lines: of the log, ascending.
        file: its name, where there are several.
    """
    position = {line.number: at for at, line in enumerate(lines)}
    printed = tracebacks(lines)
    ends = {one.last: one for one in printed if one.type_name}
    inside = {number for one in printed if not one.raised for number in range(one.first, one.last + 1)}
    # Where Python shuts down, it reports an exception without a traceback.
    inside |= {line.number + 1 for line in lines if line.text.startswith(REPORTED)} - ends.keys()
    inside |= {number for one in ends.values() for number in range(one.first, one.last) if number in position}
    found = []
    for line in lines:
        ended = ends.get(line.number)
        if (ended is None and line.number in inside) or (ended is not None and not ended.raised):
            continue
        event = _event(line, ended)
        if event is not None:
            found.append(event)
    found += [_cut_off(one, lines[-1]) for one in printed if not one.type_name and _ends_within(one, lines)]
    if len(found) > MOST:
        found = [*found[: MOST // 2], *found[-MOST // 2 :]]
    found = [one if one.message else _with_message(one, lines, position[one.line]) for one in found]
    found = [replace(one, file=file, follows=follows(one.text)) for one in sorted(found, key=lambda one: one.line)]
    return _with_survival(found, lines, position)


def follows(text: str) -> bool:
    """Whether an error's words may tell of nothing but another failure's consequence."""
    return bool(_FOLLOWS.search(text[:600])) and not _OUTSIDE.search(text[:600])


def cause_of(events: Iterable[Event]) -> Event | None:
    """The event that says most about why the run died; None if nothing did."""
    left = [one for one in events if not one.survived]
    if not left:
        return None
    own = [one for one in left if not one.follows and one.weight not in (AFTERWARDS, STATUS)]
    chosen = _first(own or left)
    if own and chosen.weight > NATIVE:
        # A program's words or a logger's line say less than an exception, unless they came first.
        raised = [one for one in left if one.frames and one.line < chosen.line and one.weight < STATUS]
        return _first(raised) if raised else chosen
    return chosen


def _first(events: list[Event]) -> Event:
    """The first of what ended a process, among the events that weigh most."""
    heaviest = min(one.weight for one in events)
    chosen = [one for one in events if one.weight == heaviest]
    if heaviest == RAISED:
        chosen = [one for one in chosen if one.frames] or chosen
        last: dict[tuple[str, str], Event] = {}
        for one in chosen:  # what a process printed before its last exception was caught: it dies once
            before = last.get((one.file, one.rank))
            if before is None or before.type_name != one.type_name:
                last[one.file, one.rank] = one
        named = [one for one in last.values() if one.rank]
        chosen = named if len(named) > 1 else [*last.values()]
    return min(chosen, key=lambda one: (one.line, one.file))


def _event(line: LogLine, ended: Traceback | None) -> Event | None:
    text = _unframed(line.text.strip())
    if ended is not None:
        weight = _weight(text, RAISED)
        return Event(
            "exception", line.number, text, line.who, weight, frames=tuple(ended.frames), first=ended.first
        )  # fmt: skip
    if not _worth_a_look(line.shown):
        return None
    if text.endswith("Traceback (most recent call last):") or _HARMLESS.search(text) or _ROW.search(text):
        return None
    kind, weight = _kind(line, text)
    return Event(kind, line.number, text, line.who, weight, first=line.number) if kind else None


def _kind(line: LogLine, text: str) -> tuple[str, int]:
    if name := reported_signal(text):
        # What others send ends a process that may have said itself what it died of.
        return "signal", STATUS if name in SENT_BY_OTHERS else NATIVE
    if HOST_MEMORY.search(text):
        return "native", NATIVE
    if _STATUS.search(text) and not _EXCEPTION.match(text):
        return "status", STATUS
    found = _EXCEPTION.match(text) or _DOTTED.match(text)
    if found:
        if not found["message"] and found["type"].rpartition(".")[2] not in _ALONE:
            return "", STATUS
        return "exception", _weight(text, RAISED)
    if _NATIVE.search(text):
        return "native", _weight(text, NATIVE)
    if _LEVEL.search(line.shown[:160]):
        inside = _INSIDE.search(text)
        if inside and not any(text.count(mark, 0, inside.start()) % 2 for mark in '"`'):
            return "exception", _weight(text, RAISED)
        return "logged", _weight(text, LOGGED)
    if (len(text) < 600 or "CUDA out of memory" in text) and _SAID.search(text):
        return "said", _weight(text, SAID)
    return "", STATUS


_WORTH = re.compile(
    r"rror|xception|nterrupt|OutOfRes|xit|OOMK|OUT_OF_MEM|TERM_MEM|atal|ERROR|CRITICAL|FATAL|terminate called"
    r"|libc\+\+abi|panicked|out of memory|\[[EF][ \d]|,\d{3} [EFC] |NCCL WARN Cuda|imed out|imeout|not found"
    r"|SIG|ignal|X[iI][dD]|ECC|abruptly|nccl[A-Z]\w+: |Got completion|Assertion `|Could not override|No space"
    r"|Out of memory|oom|low on resource|available RAM|^make: |^ninja: |what\(\)|Died|NotFound|Failure|Unavailable"
)


def _worth_a_look(text: str) -> bool:
    """Whether a line has a word of an error, or is short enough to be what a shell says of a signal."""
    return bool(_WORTH.search(text)) or (0 < len(text.strip()) < 120 and reported_signal(text) is not None)


def _weight(text: str, weight: int) -> int:
    if _LAUNCHER.search(text[:300]):
        return STATUS
    return max(weight, AFTERWARDS) if _AFTERWARDS.search(text[:300]) else weight


_TABLE = re.compile(r"^[\s│┃║|]+|[\s│┃║|]+$")
_RULE = re.compile(r"^[\s╭╰╮╯─━═┏┓┗┛├┤+=-]+$")


def _unframed(text: str) -> str:
    """The text without the box that rich draws around it."""
    return _TABLE.sub("", text) if text[:1] in "│┃║|" or text[-1:] in "│┃║" else text


def _with_message(event: Event, lines: Sequence[LogLine], at: int) -> Event:
    """The event with the lines that go on with what its first one said."""
    parts, last = [event.text], event.line
    for line in lines[at + 1 : at + 4 * MESSAGE_LINES]:
        if line.number - last > MESSAGE_LINES:
            break
        if line.who and line.who != event.rank:
            continue  # another rank's line in between
        text = _unframed(line.text.rstrip())
        if _RULE.match(text) and text.strip():
            continue
        if not text.strip() or (line.when and not lines[at].when):
            break
        if _RECORD.search(text) or _ROW.search(text) or _EXCEPTION.match(text) or ASSERTION.search(text):
            break
        parts.append(text)
        last = line.number
        if len(parts) > MESSAGE_LINES:
            break
    return replace(event, message="\n".join(parts), last=last)


def _ends_within(one: Traceback, lines: Sequence[LogLine]) -> bool:
    return bool(lines) and one.raised and lines[-1].number - one.last <= REACH


def _cut_off(one: Traceback, last: LogLine) -> Event:
    file, number, function = one.frames[-1]
    text = f'File "{file}", line {number}, in {function} (the log ends within this traceback)'
    return Event("exception", one.last, text, one.who, LOGGED, text, tuple(one.frames), one.first, last.number)


def _with_survival(events: list[Event], lines: Sequence[LogLine], position: dict[int, int]) -> list[Event]:
    """The events, each with whether the run went on after it."""
    last_row = 0
    for line in lines:
        if _ROW.search(line.text) and (PROGRESS.search(line.text) or "step:" in line.text or "loss" in line.text):
            last_row = line.number
    last_traceback = max((one.line for one in events if one.frames and one.line > last_row), default=0)
    ended = max((line.number for line in lines if _ENDED_WELL.search(line.text)), default=0)
    ended = ended if ended > last_traceback else 0
    return [
        replace(one, survived=one.last < last_row or one.line < ended or _coped_with(one, lines, position))
        for one in events
    ]


def _coped_with(event: Event, lines: Sequence[LogLine], position: dict[int, int]) -> bool:
    """Whether the program says beside an error what it does about it, and lines of work follow."""
    start = position.get(event.line, 0)
    beside = [line.text for line in lines[start : start + 1 + REACH]]
    if not any(_COPES.search(text) and not _GAVE_UP.search(text) for text in beside):
        return False
    return worked_after(lines, event.line)


def worked_after(lines: Sequence[LogLine], number: int) -> bool:
    """Whether lines of work follow on a line, before a traceback or before the program gives up, or the run ended
    well."""
    if any(_ENDED_WELL.search(line.text) for line in lines[-LAST:]):
        return True
    work = 0
    for line in islice(lines, bisect_right(lines, number, key=attrgetter("number")), None):
        if "Traceback (most recent call last)" in line.text or _GAVE_UP.search(line.text):
            return False
        work += bool(_WORKS.search(line.text)) and not line.text.startswith("wandb: ")
        if work >= WORK:
            return True
    return False
