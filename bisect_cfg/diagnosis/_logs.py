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

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from bisect_cfg.diagnosis._anchors import scanner
from bisect_cfg.diagnosis._text import plain, split_prefix

BLOCK = 1 << 18
"""Bytes read at a time. Small enough that one bad line costs little, large enough to scan at memory speed."""

LONGEST_LINE = 1 << 16
"""A longer line is cut: binary junk and whole prompts printed on one line say nothing further on."""

WINDOW = 4000
"""Bytes on each side of an anchor that are taken for its line; longer ones are printed data, not messages."""

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
    "ChildFailedError",
    "ProcessRaisedException",
    "ProcessExitedException",
    "SignalException",
    "RayTaskError",
    "ActorDiedError",
    "RayActorError",
}
"""Exceptions of launchers, which say only that a process under them failed."""

_PROGRESS = re.compile(rb"\{[^\n]{0,200}'(?:loss|grad_norm)': ")

_ASSERTION = re.compile(
    r"(?P<kernel>[\w:<>~]+)(?:\([^\n]*?\))?: block: \[[^\]]*\], thread: \[[^\]]*\] "
    r"Assertion `(?P<assertion>.*)` failed"
)
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_RAISED = re.compile(
    r"(?!(?:INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL):)"  # logging lines of the same rank in between
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z_]\w*)(?::(?: (?P<message>.*))?)?$"
)
_OF_TRACEBACK = re.compile(rb'File "|[A-Z_][\w\x80-\xff]*+(?=[:\x00-\x1f\x7f\xef]|\Z)')
"""What a line has that `_FRAME` or `_RAISED` matches, in any colours: an unfinished traceback skips the others."""

_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
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
    re.compile(r"Fatal Python error: (?P<words>[A-Z][a-z ]+)"),
)

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
    "SIGBUS": (
        "Bus error|总线错误|匯流排錯誤|バスエラー|버스 오류|Bus-Zugriffsfehler|Erreur du bus|Ошибка шины"
    ),
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
    r"[Oo]ut of memory: Killed process|oom[-_]kill|OOM Killed|ray\.exceptions\.OutOfMemoryError"
)

_LITERALS = (
    "Assertion `",
    "Traceback (most recent",
    "f the above exception, another exc",
    "above exception was the direct cause",
    "Signals.SIG",
    "Signal 8",
    "exitcode",
    "Caught signal",
    "] Signal: ",
    "received by PID",
    " received at time=",
    "exits with return code = -",
    "signal SIG",
    "Fatal Python error",
    "Error: ",
    "Exception: ",
    "Killed process",
    "OOM Killed",
    "oom-kill",
    "oom_kill",
    "exceptions.OutOfMemoryError",
    *(word.partition("]")[2] or word for words in SHELL_WORDS.values() for word in words.split("|")),
)
ANCHORS = tuple((literal,) for literal in _LITERALS if len(literal.encode()) >= 4)
"""What a line must contain to be looked at, for `_anchors.scanner`; lets through all that is matched here."""

_TROUBLE = scanner(ANCHORS)


EachLine = Callable[[bytes, int], object]


class Scan(Protocol):
    """Finds the next place in a block that has to be looked at: a compiled expression, or a `_pairs.PairScanner`."""

    def search(self, block: bytes, position: int = 0, /) -> re.Match[bytes] | None: ...


@dataclass
class Traceback:
    """One printed traceback: frames as (file name, function), outermost first, and what was raised."""

    frames: list[tuple[str, str]]
    type_name: str
    message: str
    line: int


@dataclass
class _Open:
    """A traceback whose end has not come yet."""

    first: int
    last: int  # line of its last frame
    frames: list[tuple[str, str]] = field(default_factory=list)

    def until(self) -> int:
        """The line from which on it will not end any more, unless another frame comes before."""
        return 1 + min(self.first + LONGEST_TRACEBACK, self.last + LONGEST_PAUSE)


@dataclass
class Evidence:
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
    while True:
        block = stream.read(size)
        if not block:
            if rest:
                yield rest
            return
        cut = block.rfind(b"\n") + 1
        if not cut and len(rest) < LONGEST_LINE:
            rest += block
            continue
        yield rest + block[:cut]
        rest = block[cut:]


class Reader:
    """Follows the tracebacks of every rank at once, and notes everything else that says how the run died."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self._open: dict[str, _Open] = {}  # by who prints it
        self._next_stale = 0  # the line at which one of them may be given up
        self._last: dict[str, Traceback] = {}  # who -> the last one that ended, which another may follow from

    def anchors(self) -> tuple[tuple[str], ...]:
        """The `ANCHORS` that still matter: of thousands of assertions only the first counts."""
        return ANCHORS[1:] if self.evidence.assertion else ANCHORS

    def feed(self, block: bytes, number: int, scan: Scan, each: EachLine | None = None) -> None:
        """Looks at those lines of a block that the scan stops at, and at those that may be part of a traceback.

        Args:
            block: Whole lines.
            number: The number of its first line.
            scan: Stops at all `ANCHORS` (and more, as the caller likes).
            each: Called with every line looked at, and its number.
        """
        position = counted = checked = 0
        trouble, trouble_end = -1, -1  # the scan's next stop
        while True:
            if trouble < position:
                found = scan.search(block, position)
                trouble, trouble_end = found.span() if found else (len(block), len(block))
            part = _OF_TRACEBACK.search(block, position, trouble) if self._open else None
            at, hit = part.span() if part else (trouble, trouble_end)
            if at >= len(block):
                break
            low = max(position, at - WINDOW)
            start = max(block.rfind(b"\n", low, hit), block.rfind(b"\r", low, hit), low - 1) + 1
            end = _line_end(block, hit)
            number += block.count(b"\n", counted, start)
            counted = start
            raw = block[start:end]
            if each:
                each(raw, number)
            if self._open or _TROUBLE.search(raw):
                self._saw_progress(block, checked, start)
                checked = start
                self._line(raw, number)
            position = end + 1
        self._saw_progress(block, checked, len(block))

    def _saw_progress(self, block: bytes, start: int, end: int) -> None:
        """Notes whether training went on after the errors so far."""
        evidence = self.evidence
        waiting = evidence.bare or evidence.signals or (evidence.tracebacks and not evidence.progress)
        if waiting and _PROGRESS.search(block, start, end):
            evidence.bare = None
            evidence.signals.clear()  # a child of a reward's sandbox, say: training went on
            evidence.signal_lines.clear()
            evidence.progress = bool(evidence.tracebacks)

    def _line(self, raw: bytes, number: int) -> None:
        text = plain(raw.decode("utf-8", "replace"))
        who, said = split_prefix(text)
        if said.startswith(_CHAINED):
            last = self._last.pop(who, None)
            self.evidence.tracebacks = [one for one in self.evidence.tracebacks if one is not last]
            return
        if "Traceback (most recent call last)" in said:
            self._open[who] = _Open(number, number)
            self._next_stale = min(self._next_stale, self._open[who].until())
            return
        if number >= self._next_stale:
            for stale in [one for one, unfinished in self._open.items() if number >= unfinished.until()]:
                del self._open[stale]
            self._next_stale = min((unfinished.until() for unfinished in self._open.values()), default=0)
        if who in self._open:
            frames = self._open[who].frames
            frame = _FRAME.match(said)
            if frame:
                frames.append((frame["file"], frame["function"]))
                self._open[who].last = number
                return
            raised = _RAISED.match(said) if frames and said[:1].strip() else None
            if raised:
                del self._open[who]
                self._last[who] = Traceback(frames, raised["type"], raised["message"] or "", number)
                self._raised(self._last[who])
                self._signals(said, number)
                return
            # Anything else is source text, a caret line, or another rank's unmarked line in between.
        if _TROUBLE.search(raw):
            self._marks(said, number)

    def _raised(self, traceback: Traceback) -> None:
        evidence = self.evidence
        if evidence.progress:
            evidence.tracebacks.clear()
            evidence.progress = False
        if len(evidence.tracebacks) < MOST_TRACEBACKS:
            evidence.tracebacks.append(traceback)

    def _marks(self, said: str, number: int) -> None:
        evidence = self.evidence
        bare = _BARE.match(said) if evidence.bare is None else None
        if bare:
            evidence.bare = Traceback([], bare["type"], bare["message"], number)
        if evidence.assertion is None and "Assertion `" in said:
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
                name = {"name": str, "number": lambda number: signal_name(int(number)), "words": _shell_signal}[kind](value)
                self._signal(name, number, said)

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


def signal_name(number: int) -> str | None:
    """``SIGFPE`` of 8; None if this system has no such signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _shell_signal(said: str) -> str | None:
    return next((name for name, pattern in _SHELL.items() if pattern.search(said)), None)


def read(stream: BinaryIO) -> Evidence:
    """Reads a log to its end and returns what it says about a failure."""
    reader = Reader()
    number = 1
    for block in blocks(stream):
        reader.feed(block, number, _TROUBLE)
        number += block.count(b"\n")
    return reader.evidence
