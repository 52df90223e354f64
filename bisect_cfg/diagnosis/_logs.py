"""Reads the evidence of a failure out of a log of any size.

Most of a log is healthy: metrics, progress bars, printed completions. So the stream is read in blocks, a
block without a trace of trouble is passed over in one scan, and only the lines of the others are looked at.
What is kept is small: the first tracebacks, the first specific device-side assertion, the signals somebody
reported.

Three rules decide which line counts, because a dying job prints far more than its cause:

- a device-side assertion is printed once per GPU thread and poisons every later CUDA call: the first specific
  line over all ranks wins;
- a traceback that was followed by more training was caught by somebody and killed nothing: only those after
  the last metrics count, if there are any;
- of chained exceptions the last is the one that was raised, and launchers wrap it once more: wrappers count
  only when there is nothing else.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from bisect_cfg.diagnosis._plain_text import plain, split_prefix
from bisect_cfg.diagnosis._words import SHORTEST, Found, Words

BLOCK = 1 << 18
"""Bytes read at a time. Small enough that one bad line costs little, large enough to scan at memory speed."""

LONGEST_LINE = 1 << 16
"""A longer line is cut: binary junk and whole prompts printed on one line say nothing further on."""

WINDOW = 4000
"""Bytes on each side of a word that are taken for its line. Longer ones are printed data, not messages."""

DATA_WINDOWS = 100
"""Windows within printed data that are looked at. In a log that has more of it only the ends of such lines are."""

LONGEST_SHELL_LINE = 400
"""A shell prints the signal and the command; what is longer only happens to have such a word in it."""

LONGEST_TRACEBACK = 4000
"""Lines until an unfinished traceback is given up: a model may print the beginning of one as its answer."""

LONGEST_PAUSE = 100
"""Lines after its last frame until it is given up: thirty ranks that print three lines a frame, all at once."""

MOST_TRACEBACKS = 64
"""Tracebacks kept. The first ones count; a thousand ranks print a thousand of them."""

WRAPPERS = {
    "CalledProcessError",
    "DatasetGenerationError",
    "ChildFailedError",
    "ProcessRaisedException",
    "ProcessExitedException",
    "SignalException",
    "RayTaskError",
    "ActorDiedError",
    "RayActorError",
}
"""Exceptions of launchers and of builders, which say only that something under them failed."""

_PROGRESS = re.compile(rb"\{[^\n]{0,200}'(?:loss|grad_norm)': ")

_ASSERTION = re.compile(
    r"(?P<kernel>[\w:<>~]+)(?:\([^\n]*?\))?: block: \[[^\]]*\], thread: \[[^\]]*\] "
    r"Assertion `(?P<assertion>.*)` failed"
)
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_RAISED = re.compile(
    r"(?!(?:INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL):)"  # logging lines of the same rank in between
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z_]\w*|(?:[a-z_]\w*\.)+(?:error|gaierror|herror|timeout)(?=:))"  # cv2.error
    r"(?::(?: (?P<message>.*))?)?$"
)
_OF_TRACEBACK = re.compile(rb'File "|error:|timeout:|[A-Z_][\w\x80-\xff]*+(?=[:\x00-\x1f\x7f\xef]|\Z)')
"""What a line has that `_FRAME` or `_RAISED` matches, in any colours: an unfinished traceback skips the others."""

_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NOT_RAISED = ("--- Logging error", "Exception ignored in")
_BARE = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>.+)$")
_SIGNALS = (
    re.compile(r"\*\*\* (?P<name>SIG[A-Z]+) received at time="),  # Ray's workers
    re.compile(r"exits with return code = -(?P<number>\d+)$"),  # DeepSpeed's launcher
    # torch.multiprocessing, fish
    re.compile(r"terminated (?:with|by) signal (?P<name>SIG(?!TERM|INT|HUP)[A-Z]+)"),
    re.compile(r"died with <Signals\.(?P<name>SIG[A-Z]+): \d+>"),
    re.compile(r"Signal \d+ \((?P<name>SIG[A-Z]+)\) received by PID"),
    re.compile(r"exitcode\s*: -\d+ \(pid: \d+\).*\((?P<name>SIG[A-Z]+)\)"),
    re.compile(r"exitcode\s*: -(?P<number>\d+) \(pid: \d+\)"),
    re.compile(r"Caught signal (?P<number>\d+) \("),  # UCX, which NCCL and vLLM images carry
    re.compile(r"Signal: .*\((?P<number>\d+)\)$"),  # Open MPI
    re.compile(r"exited on signal (?P<number>\d+) \("),  # its mpirun
    re.compile(r"Fatal Python error: (?P<words>[A-Z][a-z ]+)"),
    re.compile(r"\(exitcode: -(?P<number>\d+)\)"),  # torchrun before its table
    re.compile(r"(?:[Cc]ommand terminated by|interrupted by) signal (?P<number>\d+)"),  # GNU time, PyCharm
    re.compile(r"was sent (?P<name>SIG(?!TERM|INT|HUP)[A-Z]+)!"),  # gunicorn
)
_STATUS = re.compile(
    # docker, Kubernetes, LSF, Slurm, torchrun, make and PyCharm say it in these words; a shell adds 128 to the signal
    r"[Ee]xit(?:ed)?(?: with)?(?: exit)? ?(?:[Cc]ode|[Ss]tatus)[ :=]*(?P<code>-?\d+|0x[0-9A-Fa-f]+)\b"
    r"|exitcode\s*: *(?P<elastic>\d+)\b|Exited \((?P<docker>\d+)\)"
    r"|(?P<killed>OOMKilled|(?<!_)OUT_OF_MEMORY|TERM_MEMLIMIT|0xC0000005|3221225477)"
)
WINDOWS = {
    0xC0000005: "SIGSEGV",
    0xC0000409: "SIGABRT",
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",
    0xC00000FD: "SIGSEGV",
}
"""Windows' exception codes, as the signal that Linux would send: access violation, stack buffer overrun, illegal
instruction, integer division by zero, stack overflow."""

# What a shell prints when its child is killed: not the child's words, and in the user's language. The texts
# are those of glibc's message catalogues. "Killed" and "Aborted" are common words, so only whole lines count.
SHELL_WORDS = {
    "SIGFPE": (
        "[Ff]loating point exception|浮点数例外|浮點數例外|浮点异常|浮動小数点例外|부동 소수점 예외|Flyttalsfel"
        "|Gleitkomma-Ausnahme|Exception en point flottant|Excepción de coma flotante|Liukulukupoikkeus"
        "|Exceção de ponto flutuante|Excepção de vírgula flutuante|Eccezione in virgola mobile"
        "|Исключение в операции с плавающей точкой|Помилка обчислень з рухомою комою"
        "|Błąd w obliczeniach zmiennoprzecinkowych|Gerçel sayı istisnası|Ngoại lệ dấu chấm động"
    ),
    "SIGSEGV": (
        "[Ss]egmentation fault|段错误|段錯誤|程式記憶體區段錯誤|세그멘테이션 오류|Speicherzugriffsfehler"
        "|Erreur de segmentation|Violación de segmento|Falha de segmentação|Falta de segmentação"
        "|Errore di segmentazione|Ошибка сегментирования|Помилка адресування|Naruszenie ochrony pamięci"
    ),
    "SIGBUS": ("Bus error|总线错误|匯流排錯誤|バスエラー|버스 오류|Bus-Zugriffsfehler|Erreur du bus|Ошибка шины"),
    "SIGABRT": "Aborted|已放弃|已中止|中止|중지됨|Abgebrochen|Abandon|Abortado|Annullato|Аварийный останов",
    "SIGKILL": "Killed|已杀死|強制終了|強制結束|죽었음|Getötet|Processus arrêté|Ucciso|Убито",
}
_DUMPED = r"\s*(?:[(（](?:core dumped|吐核|核心已转储|コアダンプ|[^)）]{1,40})[)）])?"
_SHELL = {
    name: re.compile(
        # bash pads the words to 24 characters, so that the command may follow without a blank
        rf"[:：]\s*\d+ (?:{words})(?:\s*[(（]|\S)"
        rf"|(?:^|: |\s{{2,}}|\d |\])(?:{words}){_DUMPED}(?:\s{{2,}}.*|\s+[\w./~-]*python.*)?$"
    )
    for name, words in SHELL_WORDS.items()
}
_HOST_MEMORY = re.compile(
    r"[Oo]ut of memory: Killed process|oom[-_]kill|OOM Killed|ray\.exceptions\.OutOfMemoryError|OOMKilled"
    r"|(?<!_)OUT_OF_MEMORY|TERM_MEMLIMIT|Out Of Memory"
)

_ASSERTED = "Assertion `"
_RAISING = frozenset((b"Error: ", b"Exception: "))
_LITERALS = (
    _ASSERTED,
    "Traceback (most recent",
    "f the above exception, another exc",
    "above exception was the direct cause",
    "Signals.SIG",
    "Signal 8",
    "exitcode",
    "Caught signal",
    "] Signal: ",
    "exited on signal",
    "received by PID",
    " received at time=",
    "exits with return code = -",
    "signal SIG",
    "Fatal Python error",
    *(word.decode() for word in _RAISING),
    "Killed process",
    "OOM Killed",
    "oom-kill",
    "oom_kill",
    "exceptions.OutOfMemoryError",
    "OOMKilled",
    "OUT_OF_MEMORY",
    "TERM_MEMLIMIT",
    "0xC0000005",
    "3221225477",
    "xit code",
    "xit Code",
    "xit status",
    "Exited (1",
    "by signal ",
    "was sent SIG",
    "--- Logging error",
    "Exception ignored in",
    *(word.partition("]")[2] or word for words in SHELL_WORDS.values() for word in words.split("|")),
)
TROUBLE = frozenset(literal.encode() for literal in _LITERALS if len(literal.encode()) >= SHORTEST)
"""What a line must contain to be looked at; lets through all that is matched here."""


EachLine = Callable[[bytes, int, bytes, int, "Traceback | None", set[bytes]], object]
"""Called with a line, its number, the block it stands in, where in it the line ends, the traceback that it ends, and
the words that it has."""


@dataclass
class Traceback:
    """One printed traceback: frames as (file name, function), outermost first, and what was raised."""

    frames: list[tuple[str, str]]
    type_name: str
    message: str
    line: int
    printed: bool = False  # by a logger that could not write its line, or at an object's end: nobody raised it


@dataclass
class _Open:
    """A traceback whose end has not come yet."""

    first: int
    last: int  # line of its last frame
    frames: list[tuple[str, str]] = field(default_factory=list)
    printed: bool = False  # as in `Traceback`

    def until(self) -> int:
        """The line from which on it will not end any more, unless another frame comes before."""
        return 1 + min(self.first + LONGEST_TRACEBACK, self.last + LONGEST_PAUSE)


@dataclass
class LogEvidence:
    """What a log says about how the run died; line numbers count from 1."""

    assertion: tuple[str, str, int] | None = None  # kernel, asserted condition, line
    tracebacks: list[Traceback] = field(default_factory=list)
    signals: dict[str, int] = field(default_factory=dict)  # name -> first line
    signal_lines: dict[str, str] = field(default_factory=dict)
    bare: Traceback | None = None  # an error's line without its traceback, as people paste it
    host_memory: int | None = None
    progress: bool = False  # metrics came after the tracebacks above


def blocks(stream: BinaryIO, size: int = BLOCK) -> Iterator[bytes]:
    """The stream in blocks that end at a line's end, whatever the length of its lines."""
    rest = b""
    block = stream.read(size)
    while block:
        following = stream.read(size)
        if not following:  # the end, with a last line that nothing ends
            yield rest + block
            return
        cut = block.rfind(b"\n") + 1
        if not cut and len(rest) < LONGEST_LINE:
            rest += block
        else:
            yield rest + block[:cut]
            rest = block[cut:]
        block = following


class Reader:
    """Follows the tracebacks of every rank at once, and notes everything else that says how the run died."""

    def __init__(self) -> None:
        self.evidence = LogEvidence()
        self._open: dict[str, _Open] = {}  # by who prints it
        self._data_windows = 0
        self._next_stale = 0  # the line at which one of them may be given up
        self._headed = ""  # who opened the last one at the end of a message of its own
        self._printed: dict[str, int] = {}  # who -> the line up to which a traceback is only printed
        self._last: dict[str, Traceback] = {}  # who -> the last one that ended, which another may follow from

    def words(self) -> frozenset[bytes]:
        """The words of `TROUBLE` that still matter: of thousands of assertions only the first counts."""
        return TROUBLE - {_ASSERTED.encode()} if self.evidence.assertion else TROUBLE

    def feed(
        self, block: bytes, number: int, found: Found, each: EachLine | None = None, most: float = math.inf
    ) -> int:
        """Looks at those lines of a block that have one of the words, and at those that may be part of a traceback.

        Args:
            block: Whole lines.
            number: The number of its first line.
            found: Where it has one of `TROUBLE` (and of others, as the caller likes).
            each: Called with every line looked at, and its number.
            most: Lines that are looked at.

        Returns:
            How many lines were looked at.
        """
        position = counted = checked = looked_at = 0
        trouble = -1  # the place of the next word
        while looked_at < most:
            if trouble < position:
                place = found.first(position)
                trouble = len(block) if place is None else place
            part = _OF_TRACEBACK.search(block, position, trouble) if self._open else None
            at = part.start() if part else trouble
            if at >= len(block):
                break
            low = max(position, at - WINDOW)
            start = max(block.rfind(b"\n", low, at), block.rfind(b"\r", low, at), low - 1) + 1
            end = _line_end(block, at)
            if end == at + WINDOW and _within_data(block, at):
                self._data_windows += 1
                if self._data_windows > DATA_WINDOWS:
                    position = _after_data(block, at)
                    continue
            number += block.count(b"\n", counted, start)
            counted = start
            raw, here = block[start:end], found.within(start, end)
            raised = None
            looked_at += 1
            if self._open or not here.isdisjoint(TROUBLE):
                self._saw_progress(block, checked, start)
                checked = start
                raised = self._line(raw, number, here)
            if each:
                each(raw, number, block, end, raised, here)
            position = end + 1
            if end == at + WINDOW and self._data_windows > DATA_WINDOWS:
                position = _after_data(block, end)
        self._saw_progress(block, checked, len(block))
        return looked_at

    def _saw_progress(self, block: bytes, start: int, end: int) -> None:
        """Notes whether training went on after the errors so far."""
        evidence = self.evidence
        waiting = evidence.bare or evidence.signals or (evidence.tracebacks and not evidence.progress)
        if waiting and _PROGRESS.search(block, start, end):
            evidence.bare = None
            evidence.signals.clear()  # a child of a reward's sandbox, say: training went on
            evidence.signal_lines.clear()
            evidence.progress = bool(evidence.tracebacks)

    def _line(self, raw: bytes, number: int, words: set[bytes]) -> Traceback | None:
        """Follows one line; the traceback that it ends, if it ends one."""
        text = plain(raw.decode("utf-8", "replace"))
        who, said = split_prefix(text)
        said = said.removeprefix("^C")  # the terminal's echo of Ctrl-C
        if said.startswith(_CHAINED):
            last = self._last.pop(who, None)
            self.evidence.tracebacks = [one for one in self.evidence.tracebacks if one is not last]
            return None
        if said.startswith(_NOT_RAISED):
            self._printed[who] = number + 2
            return None
        if "Traceback (most recent call last)" in said:
            self._open[who] = _Open(number, number, printed=number <= self._printed.pop(who, 0))
            self._next_stale = min(self._next_stale, self._open[who].until())
            self._headed = who if who and not said.startswith("Traceback") else ""
            return None
        if number >= self._next_stale:
            for stale in [one for one, unfinished in self._open.items() if number >= unfinished.until()]:
                del self._open[stale]
            self._next_stale = min((unfinished.until() for unfinished in self._open.values()), default=0)
        frame = _FRAME.match(said) if self._open else None
        if frame and not who and self._headed in self._open and self._open[self._headed].first == number - 1:
            self._open[who] = self._open.pop(self._headed)  # of a logger's message only the first line is marked
        if who in self._open:
            frames = self._open[who].frames
            if frame:
                frames.append((frame["file"], frame["function"]))
                self._open[who].last = number
                return None
            raised = _RAISED.match(said) if frames and said[:1].strip() else None
            if raised:
                printed = self._open.pop(who).printed
                found = Traceback(frames, raised["type"], raised["message"] or "", number, printed)
                if not printed:
                    self._last[who] = found
                    self._raised(found)
                    self._signals(said, number)
                return found
            # Anything else is source text, a caret line, or another rank's unmarked line in between.
        if not words.isdisjoint(TROUBLE):
            self._marks(said, number, words)
        return None

    def _raised(self, traceback: Traceback) -> None:
        evidence = self.evidence
        if evidence.progress:
            evidence.tracebacks.clear()
            evidence.progress = False
        if len(evidence.tracebacks) < MOST_TRACEBACKS:
            evidence.tracebacks.append(traceback)

    def _marks(self, said: str, number: int, words: set[bytes]) -> None:
        evidence = self.evidence
        bare = _BARE.match(said) if evidence.bare is None else None
        if bare:
            evidence.bare = Traceback([], bare["type"], bare["message"], number)
        if words & TROUBLE <= _RAISING:
            return
        if evidence.assertion is None and _ASSERTED in said:
            found = _ASSERTION.search(said)
            if found:
                evidence.assertion = (found["kernel"], found["assertion"], number)
        self._signals(said, number)
        if len(said) < LONGEST_SHELL_LINE:
            self._signal(_shell_signal(said), number, said)
        if evidence.host_memory is None and _HOST_MEMORY.search(said):
            evidence.host_memory = number

    def _signals(self, said: str, number: int) -> None:
        for pattern in _SIGNALS:
            found = pattern.search(said)
            if found:
                ((kind, value),) = found.groupdict().items()
                name = {"name": str, "number": lambda number: signal_name(int(number)), "words": _shell_signal}[kind](
                    value
                )
                self._signal(name, number, said)
        status = _STATUS.search(said)
        if status:
            self._signal(_of_status(status), number, said)

    def _signal(self, name: str | None, number: int, said: str) -> None:
        if name and name not in self.evidence.signals:
            self.evidence.signals[name] = number
            self.evidence.signal_lines[name] = said.strip()[:LONGEST_SHELL_LINE]


def _line_end(block: bytes, position: int) -> int:
    limit = min(position + WINDOW, len(block))
    end = block.find(b"\n", position, limit)
    limit = end if end >= 0 else limit
    carriage_return = block.find(b"\r", position, limit)
    return carriage_return if carriage_return >= 0 else limit


def _within_data(block: bytes, position: int) -> bool:
    """Whether the line has begun long before."""
    low = position - WINDOW
    return low >= 0 and block.find(b"\n", low, position) < 0 and block.find(b"\r", low, position) < 0


def _after_data(block: bytes, position: int) -> int:
    """Where the end of a line of printed data begins to be looked at, which has no break near this position."""
    breaks = [block.find(mark, position) for mark in (b"\n", b"\r")]
    return max(min((at for at in breaks if at >= 0), default=len(block)) - WINDOW, position + 1)


def signal_name(number: int) -> str | None:
    """``SIGFPE`` of 8; None if this system has no such signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _of_status(found: re.Match[str]) -> str | None:
    """The signal that an exit status tells of."""
    if found["killed"]:
        return "SIGSEGV" if found["killed"][0] in "03" else "SIGKILL"
    said = found["code"] or found["elastic"] or found["docker"]
    number = int(said, 16 if said.startswith("0x") else 10)
    if number & 0xFFFFFFFF in WINDOWS:
        return WINDOWS[number & 0xFFFFFFFF]
    return signal_name(-number if number < 0 else number - 128) if -65 < number < 0 or 128 < number < 192 else None


def _shell_signal(said: str) -> str | None:
    return next((name for name, pattern in _SHELL.items() if pattern.search(said)), None)


def read(stream: BinaryIO) -> LogEvidence:
    """Reads a log to its end and returns what it says about a failure."""
    reader, words = Reader(), Words(TROUBLE)
    number = 1
    for block in blocks(stream):
        reader.feed(block, number, words.look(block))
        number += block.count(b"\n")
    return reader.evidence
