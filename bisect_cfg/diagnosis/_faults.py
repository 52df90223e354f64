"""The errors that a log prints, whatever their shape.

`_logs` follows tracebacks and signals, which is what two failures are compared by. A person who reads a log wants
more: the line that says what went wrong, even if no traceback came with it. Errors come as the last line of a
traceback, as an exception's line alone, as a logger's line (`ERROR 08-12 ...`, `[E socket.cpp`), as a program's own
words (`train.py: error:`, `slurmstepd: error:`), or as nothing but an exit status in a launcher's table. `Errors`
collects them with the lines that belong to them, since a message may be wrapped or stand on the next line, and says
which of them came first (`cause`) and which last (`last`).

What is printed like an error and ends nothing is left out: `--- Logging error ---`, an exception in `__del__`, the
double registration of TensorFlow's plugins. What training survived is told by the rows of metrics that came after.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bisect_cfg.diagnosis._consequences import follows
from bisect_cfg.diagnosis._logs import WRAPPERS
from bisect_cfg.diagnosis._plain_text import plain, split_all

RAISED, NATIVE, SAID, LOGGED, AFTERWARDS, STATUS = range(6)
"""How much an error says about the cause, most first: an exception; a crash of native code; a program's own words; a
logger's line at level ERROR; an exception that follows from another process's death; a wrapper or a bare exit
status."""

FIRST, LAST = 64, 64
"""Errors kept from the beginning and from the end of a log. A thousand ranks print a thousand of them."""

PARAGRAPH_LINES = 14
PARAGRAPH_BYTES = 4000
"""What may belong to an error after its first line: a message in a box of 80 columns, a table of a launcher."""

BEFORE_BYTES, BEFORE_LINES = 1 << 15, 600
"""What is kept of the text before an error: its traceback, printed by eight ranks at once."""

NARROWEST, FOLDED = 60, 3
"""Columns of a terminal at least, and lines that it has cut at its width."""

WRAPPED = 3
"""Lines right after an error that belong to it though they do not name its rank: the terminal has wrapped it."""

LONGEST = 2000
"""Characters of an error's first line that are looked at; longer ones are printed data."""

IGNORED_LINES = 200
"""A traceback that follows "Logging error" or "Exception ignored in", and harms nothing, ends within so many lines."""

LONGEST_SAYING = 600
"""Longer lines in which something like a failure is said are prose or data, not a complaint."""

LITERALS = (
    "Error: ", "Error:\n", "Exception: ", "Interrupt", "OutOfResources", "xit code", "exitcode", "xit status",
    "xited with", "OOMKilled", "OUT_OF_MEMORY", "TERM_MEMLIMIT", " error: ", "fatal: ", "atal error", "ERROR",
    "CRITICAL", "FATAL", "terminate called", "panicked at", "command not found", "rror executing job", "Bus error",
    "Exited (1", "[E socket", "[c10d]", "ProcessGroupNCCL.cpp", "rror response from daemon", "Error in ",
    "Error while ", "Error during ",
    "Fatal Python", "libc++abi: terminating",
    "CUresult error", "nvcc fatal", '"error"', "Out of memory: ", "No space left", ".cc:", "CUDA Error: ",
    "NCCL WARN Cuda",
    "was sent SIGKILL", "0xC0000005", "3221225477", "NVRM: Xid", "Xid (", "uncorrectable ECC", "terminated abruptly",
    "low on resource", "using all available RAM", "Status message: ", "' failed", "ncclI", "ncclU", "ncclS", "ncclR",
    "CUDA out of memory. Tried", "Got completion", " in file /", "Could not override '", ": Assertion `",
)  # fmt: skip
WORDS = frozenset(literal.encode() for literal in LITERALS)
"""What a line has that may be an error (tracebacks are found by `_logs`)."""

_WORTH = re.compile(
    rb"rror|xception|nterrupt|OutOfRes|xit|OOMK|OUT_OF_MEM|TERM_MEM|atal|ERROR|CRITICAL|FATAL|terminate called"
    rb"|libc\+\+abi|panicked"
    rb"|out of memory\. Tried"
    rb"|\[[EF][ \d]|,\d{3} [EFC] |NCCL WARN Cuda|timed out|not found|SIGKILL|0xC0000|3221225477|X[iI][dD]|ECC|abruptly"
    rb"|Status message|' failed|nccl[A-Z]\w+: "
    rb"|Got completion|: Assertion `|Could not override|No space|Out of memory|low on resource|available RAM"
)
_TYPE = (
    r"(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*"
    r"(?:Error|Exception|Interrupt|Failure|Exit|OutOfResources|OutOfMemory|Timeout|TimedOut|Died|Unavailable|NotFound)"
)
_EXCEPTION = re.compile(rf"(?:E\s+)?(?P<type>{_TYPE})(?:\((?P<inner>\w+)\))?(?:: ?(?P<message>.*))?$")
_DOTTED = re.compile(r"(?P<type>(?:[a-z_]\w*\.)+[A-Z]\w*): (?P<message>\S.*)$")
_INSIDE = re.compile(rf"(?:^|[\s\]|>:-])(?P<type>{_TYPE}): (?P<message>\S.*)$")
_NATIVE = re.compile(
    r"terminate called (?:after|without)|libc\+\+abi: terminating|^\s*what\(\):|panicked at|Fatal Python error"
    r"|uncorrectable ECC"
    r"|NVRM: Xid|Xid \("
    r"|CUDA [eE]rror(?:: | \(\S+:\d+\): )|NCCL WARN Cuda failure|NET/IB ?: Got completion .*(?:status=|error )\d"
    r"|CUresult error\b.*\b[a-z_]+\.cpp"
    r"|\bError [a-z ]+ at line \d+ in file /\S+\.(?:hip|cu|cpp)\b"  # bitsandbytes
    r"|(?:\bpython[\d.]*: |^)\S+:\d+: .*: Assertion `"  # a prefix that ends in a number is taken off
    r"|Process finished with exit code -?\d+ \(|No space left on device"
)
_OF_NATIVE = (
    "terminate called", "libc++abi: ", "CUresult error", "what():", "panicked at", "Fatal Python", "uncorrectable ECC",
    "Xid", "CUDA ",
    "NCCL WARN", "Got completion", " at line ", ": Assertion `", "Process finished", "No space left",
)  # fmt: skip
"""One of them is in every match; they are looked for ten times as quickly."""
_SAID = re.compile(
    r"^(?:[\w./ -]{0,80}: )?(?:line \d+: )?(?:error|ERROR|Error|fatal|FATAL|fatal error)(?:\[\w+\])?: ?\S"
    r"|^nccl\w+(?:Error|Failure|Usage|Argument): |^Job '\S+' failed$"
    r"|^Status message: (?:Unexpected error|Job \w+ command failed)"
    r"|: (?:command|file) not found$|nvcc fatal|^Error executing job|^Could not override '|^make: \*\*\*|^ninja: "
    r"|[Ee]rror response from daemon|^Error (?:in|while|during) [\w. ]{1,40}: \S|^Error in cpuinfo"
    r"|CUDA out of memory\. Tried to allocate"
    r"|slurmstepd: error|srun: error|fatal error: |The node was low on resource|crashed after using all available RAM"
)
_LEVEL = re.compile(
    r"(?:^|[\s\[|(>:-])(?:ERROR|CRITICAL|FATAL)(?=[\s\]|:)\[-]|$)(?! *=(?![=>]))|^\[?[EF]\d{4} \d\d:\d\d"
    r"|\[E(?:\d{3,4}| +[\w./-]+\.\w+[:\s]\d| \d| +[\w./-]+\.(?:cpp|cc|cu|h|py)\b)"
    r"|,\d{3} [EFC] \d+ \d+\]"
)
_STATUS = re.compile(
    r"exitcode\s*: *-?[1-9]|exit(?:ed)?(?: with)?(?: exit)? ?(?:code|status)[ :=]*-?(?:[1-9]|0x[cC])"
    r"|exits with return code = -?[1-9]"
    r"|OOMKilled|OUT_OF_MEMORY|TERM_MEMLIMIT|Exited \(1\d\d\)|non-zero (?:exit|return)|was sent SIGKILL"
    r"|terminated abruptly"
    r"|0xC0000005|3221225477|Exit Code: *[1-9]"
)
_WRAPPERS = re.compile(
    rf"{'|'.join(sorted(WRAPPERS))}|WorkerCrashedError|EngineDeadError|Engine core initialization failed"
    r"|EngineCore failed to start|WorkerProc initialization failed|slurmstepd: error: \*\*\* "
    r"|: [Ss]erver launch failed$|[Ee]rror: Updating weights for the generation policy failed"
)
_CONSEQUENCES = re.compile(
    r"[Cc]onnection (?:reset|closed|refused) by|Broken pipe|BrokenPipeError|ConnectionResetError|EOFError"
    r"|DistBackendError"
    r"|remote process exited|NCCL communicator was aborted|DistNetworkError|DistStoreError|CancelledError"
    r"|Watchdog caught"
    r"|CUDA kernel errors might be|device-side assert triggered|cancelled by cancel scope|leaked semaphore|SystemExit"
)
_HARMLESS = re.compile(
    r"Unable to register cu\w+ (?:factory|plugin)|pip's dependency resolver|factory for plugin|TF-TRT Warning"
    r"|destroy_process_group\(\) was not called|Logging error|rror while (?:fetching|trying to fetch) .{0,60}retry"
    r"|not a git repository|Failed to send MESSAGE_TASK_EXIT|\b(?:0|no) uncorrectable ECC"
    r"|[Ee]rror_?rate|ignore_errors|raise_error|0 errors?\b|no errors\b|no error\b(?!$)|errors?=0|on_error|errors='"
)
"""Printed as an error by runs that go on."""

_ROW = re.compile(r"['\"](?:loss|grad_norm|reward)['\"]: |^step:\d+ - |lm loss: |^\s*iteration +\d+/")
_RECORD = re.compile(
    r'^\s*File "|^"""\s*$|^\d\d:\d\d:\d\d(?:[.,]\d+)? +[A-Z]{3}|^[=*#-]{5,}|^Traceback|^[\^~\s]+$|^\s*\d+%\|'
    r"|^\[?(?:INFO|DEBUG|WARNING|ERROR)\b|^During handling|^The above exception|^wandb: "
    r"|^Exception (?:ignored in|in thread) |^Current thread 0x|^Thread 0x|^failed \(exitcode: |^\[[IWEF]\d{3,4} "
    r"|^[!$%] ?[a-z]|^(?:\([\w.-]+\) )?[\w.-]+@[\w.-]+[:~]|^\w[\w ]*: +\d+%\|"
    r"|^Sending process \d+ closing|^ray\.exceptions\.|^slurmstepd: |^srun: |^make: \*\*\*|^terminate called"
    r"|^(?:tee|cp|mv|rm|ln|tar|cat|df|du|rsync|scp|gsutil|rclone|aws|nvidia-smi): |^\++ \S|^[\w.-]+ exited with code \d"
    r"|^Set the environment variable HYDRA_|^Server is not up yet|^\^C|^\S+:\d+: \w*Warning\b|^\[[a-z]\w*\] \w"
)
"""Lines that begin something else, and end what came before."""
_PADDED_RANK = re.compile(r"\s+\d+: ")
"""srun's numbers of tasks, all of one width."""
_TABLE = re.compile(r"^[\s│┃║|]+|[\s│┃║|]+$")
_RULE = re.compile(r"^[\s╭╰╮╯─━═┏┓┗┛├┤+=-]+$")


@dataclass
class Error:
    """One printed error.

    Attributes:
        line: its line, counted from 1.
        text: what that line says, without rank, worker and time.
        who: the rank or worker that printed it, "" if it does not say.
        weight: how much it says about the cause (`RAISED` ... `STATUS`).
        type_name: the exception's type, "" for another shape.
        rest: the text after it.
        traced: whether it ended a traceback.
        stamped: whether its line begins with a time or a place of the code.
        before: the text before it, in which its traceback stands.
        width: how long its line is, with all that stands before the text.
    """

    line: int
    text: str
    who: str
    weight: int
    type_name: str = ""
    rest: bytes = b""
    traced: bool = False
    stamped: bool = False
    before: bytes = b""
    width: int = 0

    @functools.cached_property
    def more(self) -> list[str]:
        """The lines after it that belong to it. Asked once the log is read: of most errors of a long one, never."""
        return list(_continued(self.rest, self))

    @functools.cached_property
    def traceback(self) -> int:
        """How many lines before it its traceback begins, with those of the exceptions it goes back to; 0 without."""
        lines = self.before.split(b"\n")[-BEFORE_LINES:]
        begins = [at for at, line in enumerate(lines) if b"Traceback (most recent call last)" in line]
        if not begins:
            return len(lines) if self.traced else 0
        first = begins.pop()
        while begins and any(mark in line for line in lines[begins[-1] : first] for mark in _CHAINED):
            first = begins.pop()
        return len(lines) - first

    @functools.cached_property
    def folded(self) -> bool:
        """Whether a terminal has cut its line: it is as long as the longest before it, and several are."""
        if self.width < NARROWEST:
            return False
        widths = [len(plain(line.decode("utf-8", "replace"))) for line in self.before.split(b"\n")[-BEFORE_LINES:]]
        return max(widths) == self.width and widths.count(self.width) >= FOLDED

    def paragraphs(self) -> tuple[str, str]:
        """All it says on one line: wrapped between words, and wrapped within them."""
        parts = [self.text, *self.more]
        return " ".join(part.strip() for part in parts), "".join(parts)


class Errors:
    """Collects the errors of a log that goes by."""

    def __init__(self) -> None:
        self._first: list[Error] = []
        self._last: deque[Error] = deque(maxlen=LAST)
        self._unfinished: list[Error] = []
        self._ignored: dict[str, int] = {}  # who -> the line up to which a traceback ends nothing
        self._beside: dict[str, int] = {}  # who -> the line up to which an exception ends nothing
        self._known: set[int] = set()  # lines that were looked at
        self._block = self._previous = b""

    def begin(self, block: bytes) -> None:
        """Takes the rest of an error's lines from the block that follows it."""
        for error in self._unfinished:
            error.rest += block[:PARAGRAPH_BYTES]
        self._unfinished = []
        self._previous, self._block = self._block[-BEFORE_BYTES:], block

    def knows(self, number: int) -> bool:
        """Whether this line was looked at."""
        return number in self._known

    def ignore(self, number: int) -> None:
        """A line that ends a traceback which somebody only printed."""
        self._known.add(number)

    def line(self, raw: bytes, number: int, block: bytes, end: int, raised: str | None, anyway: bool = False) -> None:
        """Looks at one line.

        Args:
            raw: the line.
            number: its number, from 1.
            block: where it stands in; its following lines are taken from there.
            end: where it ends.
            raised: the type of the exception, if the line ends a traceback.
            anyway: look at it, though it has no word of an error.
        """
        if raised is None and not anyway and not _WORTH.search(raw):
            return
        self._known.add(number)
        shown = plain(raw[:LONGEST].decode("utf-8", "replace"))
        if _OF_A_DAEMON.match(shown):
            return
        who, when, said = split_all(shown)
        indented = bool(when) and said.startswith("  ")  # of a traceback that a logger prints
        said = unframed(said.strip())
        if (logged := _LOGGED_JSON.match(said)) and _OF_LEVEL.search(said):
            said = shown = f"ERROR {logged['said']}"
        if said.startswith("--- Logging error") or said.startswith("Exception ignored in"):
            self._ignored[who] = number + IGNORED_LINES
            self._beside[who] = number + 2  # where Python shuts down it prints the exception alone
            return
        if raised is None and number <= self._beside.get(who, 0):
            return
        if raised is not None and number <= self._ignored.pop(who, 0):
            return
        judged = classify(shown, said, raised)
        if judged is None or (indented and judged[0] == LOGGED):
            return
        weight, type_name = judged
        given_up = weight == NATIVE and ("Got completion" in said or "Aborted" in said)
        if given_up and any(GAVE_UP.search(one.text) for one in (*self._first, *self._last)):
            weight = AFTERWARDS  # it has ended itself for waiting in vain, or its peer has
        error = Error(
            number,
            said.removeprefix("E   ").strip(),
            who,
            weight,
            type_name,
            traced=raised is not None,
            stamped=bool(when),
            width=len(shown),
        )
        error.rest = block[end + 1 : end + 1 + PARAGRAPH_BYTES]
        if len(error.rest) < PARAGRAPH_BYTES:
            self._unfinished.append(error)
        start = end - len(raw)
        error.before = block[max(0, start - BEFORE_BYTES) : start]
        if start < BEFORE_BYTES and block is self._block:
            error.before = self._previous[start - BEFORE_BYTES :] + error.before
        if len(self._first) < FIRST:
            self._first.append(error)
        else:
            self._last.append(error)

    def cut_off(self, tail: bytes, number: int) -> None:
        """Takes a traceback for an error that the log ends within.

        Args:
            tail: the end of the log.
            number: of its last line.
        """
        lines = tail.decode("utf-8", "replace").rstrip().split("\n")
        number -= tail.count(b"\n", len(tail.rstrip())) - tail.endswith(b"\n")
        said = [split_all(plain(line))[2] for line in lines]
        begins = next((at for at in range(len(said) - 1, -1, -1) if said[at][:1].strip()), -1)
        frames = [at for at in range(begins + 1, len(said)) if said[at].startswith('  File "')]
        if begins >= 0 and frames and said[begins].startswith("Traceback (most recent call last)"):
            text = f"{said[frames[-1]].strip()} (the log ends within this traceback)"
            self._last.append(Error(number - len(said) + 1 + frames[-1], text, "", LOGGED))

    def after(self, survived: Callable[[Error], bool]) -> list[Error]:
        """Those that nothing survived, in the order of the log."""
        return sorted((one for one in (*self._first, *self._last) if not survived(one)), key=lambda one: one.line)


_OF_A_DAEMON = re.compile(
    r"[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d [\w.-]+ (?:sshd|CRON|crond?|systemd-(?!oomd)\w+|dbus-daemon|named|ntpd"
    r"|postfix\S*|chronyd|rsyslogd|NetworkManager|smartd|snapd|polkitd|auditd|sudo|su)(?:\[\d+\])?: "
)
"""A line of the system's log that a daemon of the machine wrote, which trains nothing."""

_LOGGED_JSON = re.compile(r'\{"(?=.*?"(?:event|message|msg)": ?"(?P<said>(?:[^"\\]|\\.)+)")')
_OF_LEVEL = re.compile(r'"(?:level|levelname|severity)": ?"(?i:error|critical|fatal)"')
"""A record of a logger that writes JSON, between lines that are none."""

GAVE_UP = re.compile(r"Watchdog caught|taking the entire process down")
"""What torch's watchdog says before it ends its process with SIGABRT."""

_CHAINED = (b"The above exception was the direct cause", b"During handling of the above exception", b'"""')


def cause(errors: list[Error]) -> Error | None:
    """The error that says most about why a run died.

    An exception that a process printed before another one was caught: a process dies once. So the last of each process
    counts, of these the first, since a process whose peer has died complains later. Where that one says no more than
    what follows from another failure, an error before it counts that says more.
    """
    if not errors:
        return None
    chosen = _first(errors)
    if undefined := _UNDEFINED.match(chosen.text):
        name = re.compile(rb"\b%s\b" % undefined["name"].encode())
        failed = [error for error in errors if error.line < chosen.line and is_own(error) and _names(error, name)]
        return failed[0] if failed else chosen
    if not follows(chosen.text):
        return chosen
    own = [error for error in errors if error.line < chosen.line and is_own(error)]
    return _first(own) if own else chosen


_UNDEFINED = re.compile(r"NameError: name '(?P<name>\w+)' is not defined")
"""In a notebook, and after an import that was tried, it follows from what should have defined the name."""


def _names(error: Error, name: re.Pattern[bytes]) -> bool:
    """Whether an error's traceback has a name."""
    lines = error.before.split(b"\n")[-error.traceback - 1 :] if error.traceback else []
    return not _UNDEFINED.match(error.text) and any(map(name.search, lines))


def is_own(error: Error) -> bool:
    """Whether an error says of what it died itself."""
    if follows(error.text):
        return False
    return error.traced or error.weight in (RAISED, NATIVE) or (error.weight == SAID and "error: " in error.text)


def _first(errors: list[Error]) -> Error:
    """The first of what ended a process, among the errors that say most."""
    best = min(error.weight for error in errors)
    chosen = [error for error in errors if error.weight == best]
    if best == RAISED:
        if any(error.traced for error in chosen):
            chosen = [error for error in chosen if error.traced]
        last: dict[str, Error] = {}
        for error in chosen:
            before = last.get(error.who)
            if before is not None and before.type_name == error.type_name and not _HANDED_ON.search(before.text):
                continue  # several processes that do not say who they are: the first of the same kind
            last[error.who] = error
        named = [error for who, error in last.items() if who] or [*last.values()]
        return min(named if len(named) > 1 else last.values(), key=lambda error: error.line)
    return chosen[0]


_HANDED_ON = re.compile(r": Caught \w+ in (?:DataLoader worker|replica|\w+ process)")
"""A worker's exception, raised once more where its result was asked for; its own traceback follows."""


def classify(shown: str, said: str, raised: str | None = None) -> tuple[int, str] | None:
    """How much a line says as an error, and the exception's type; None if it is none.

    Args:
        shown: the line as a terminal shows it.
        said: the same without rank, worker and time.
        raised: the type, if it ends a traceback.
    """
    if raised is not None:
        return _weight(said, RAISED), raised
    if said.endswith("Traceback (most recent call last):"):
        return (STATUS, "") if _LEVEL.search(shown[:160]) else None  # the exception follows, if it was not cut off
    if _HARMLESS.search(said) or _ROW.search(said):
        return None
    if _STATUS.search(said) and not _EXCEPTION.match(said):
        return STATUS, ""
    found = _EXCEPTION.match(said) or _DOTTED.match(said)
    if found:
        if not found["message"] and found["type"].rpartition(".")[2] not in _ALONE:
            return None
        return _weight(said, RAISED), found["type"]
    if any(word in said for word in _OF_NATIVE) and _NATIVE.search(said):
        return _weight(said, NATIVE), ""
    level = _LEVEL.search(shown[:160])
    if level:
        inside = _INSIDE.search(said)
        if inside and not _quoted(said, inside.start()):
            return _weight(said, RAISED), inside["type"]
        return _weight(said, LOGGED), ""
    if (len(said) < LONGEST_SAYING or _OF_MEMORY in said) and _SAID.search(said):
        return _weight(said, SAID), ""
    return None


_OF_MEMORY = "CUDA out of memory. Tried"
"""Torch's message, which is long, and stands at the end of longer warnings."""

_ALONE = {"KeyboardInterrupt", "AssertionError", "MemoryError", "NotImplementedError", "EOFError", "StopIteration"}
"""Exceptions that are often raised without a message."""


def _weight(said: str, weight: int) -> int:
    if _WRAPPERS.search(said[:300]):
        return STATUS
    return max(weight, AFTERWARDS) if _CONSEQUENCES.search(said[:300]) else weight


def _quoted(text: str, position: int) -> bool:
    return any(text.count(mark, 0, position) % 2 for mark in '"`')


def unframed(text: str) -> str:
    """The text without the box that rich draws around it."""
    return _TABLE.sub("", text) if text[:1] in "│┃║|" or text[-1:] in "│┃║" else text


def _continued(rest: bytes, error: Error) -> Iterator[str]:
    """The lines that go on with what an error's first line said."""
    who = error.who
    lines = rest.decode("utf-8", "replace").split("\n")
    taken = 0
    for index, line in enumerate(lines[: 4 * PARAGRAPH_LINES]):
        shown = plain(line)
        padded = shown[:1] in " \t" and (shown.lstrip()[:1] in "[(" or (who and _PADDED_RANK.match(shown)))
        other, when, said = split_all(shown.lstrip() if padded else shown)
        if other and other != who:
            continue  # another rank's line in between
        if when and not error.stamped:
            return  # a logger's line after an exception that was printed without one
        if who and not other and shown[:1] not in (" ", "\t") and index >= WRAPPED:
            continue
        if who and not other:
            said = said.removeprefix(who)  # with two blanks behind it, it is no prefix by itself
        said = unframed(said.rstrip())
        if _RULE.match(said) and said.strip():
            continue
        if not said.strip():
            if taken:
                return
            continue
        if _RECORD.search(said) or _ROW.search(said) or _EXCEPTION.match(said):
            return
        yield said
        taken += 1
        if taken >= PARAGRAPH_LINES:
            return
