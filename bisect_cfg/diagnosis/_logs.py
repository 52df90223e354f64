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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from bisect_cfg.diagnosis._text import plain, split_prefix

BLOCK = 1 << 18
"""Bytes read at a time. Small enough that one bad line costs little, large enough to scan at memory speed."""

LONGEST_LINE = 1 << 16
"""A longer line is cut: binary junk and whole prompts printed on one line say nothing further on."""

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
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_SIGNALS = (
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
        "Floating point exception|浮点数例外|浮點數例外|浮点异常|浮動小数点例外|부동 소수점 예외|Flyttalsfel"
        "|Gleitkomma-Ausnahme|Exception en point flottant|Excepción de coma flotante|Liukulukupoikkeus"
        "|Exceção de ponto flutuante|Excepção de vírgula flutuante|Eccezione in virgola mobile"
        "|Исключение в операции с плавающей точкой|Помилка обчислень з рухомою комою"
        "|Błąd w obliczeniach zmiennoprzecinkowych|Gerçel sayı istisnası|Ngoại lệ dấu chấm động"
    ),
    "SIGSEGV": (
        "Segmentation fault|段错误|段錯誤|程式記憶體區段錯誤|세그멘테이션 오류|Speicherzugriffsfehler"
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
    name: re.compile(rf"(?:^|: |\s{{2,}}|\d )(?:{words}){_DUMPED}(?:\s{{2,}}.*|\s+[\w./~-]*python.*)?$")
    for name, words in SHELL_WORDS.items()
}
_HOST_MEMORY = re.compile(
    r"[Oo]ut of memory: Killed process|oom[-_]kill|OOM Killed|ray\.exceptions\.OutOfMemoryError"
)

# One scan that decides which blocks and lines are looked at; it must let through all that is matched above.
_TROUBLE = re.compile(
    "|".join(
        (
            r"Traceback \(most|ssertion `|Signals\.SIG|Signal \d|Signal:|exitcode|aught signal",
            r"Fatal Python|Killed|oom[-_]kill|\.OutOfMemoryError",
            *SHELL_WORDS.values(),
        )
    ).encode()
)


@dataclass
class Traceback:
    """One printed traceback: frames as (file name, function), outermost first, and what was raised."""

    frames: list[tuple[str, str]]
    type_name: str
    message: str
    line: int


@dataclass
class Evidence:
    """What a log says about how the run died; line numbers count from 1."""

    assertion: tuple[str, str, int] | None = None  # kernel, asserted condition, line
    tracebacks: list[Traceback] = field(default_factory=list)
    signals: dict[str, int] = field(default_factory=dict)  # name -> first line
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


class _Reader:
    """Follows the tracebacks of every rank at once."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self._open: dict[str, list[tuple[str, str]]] = {}

    def busy(self) -> bool:
        return bool(self._open)

    def line(self, raw: bytes, number: int) -> None:
        text = plain(raw[:LONGEST_LINE].decode("utf-8", "replace"))
        who, said = split_prefix(text)
        if "Traceback (most recent call last)" in said:
            self._open[who] = []
            return
        if who in self._open:
            frame = _FRAME.match(said)
            if frame:
                self._open[who].append((frame["file"], frame["function"]))
                return
            raised = _RAISED.match(said) if said[:1].strip() else None
            if raised:
                frames = self._open.pop(who)
                self._raised(Traceback(frames, raised["type"], raised["message"] or "", number))
            # Anything else is source text, a caret line, or another rank's unmarked line in between.
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
        if evidence.assertion is None and "ssertion `" in said:
            found = _ASSERTION.search(said)
            if found:
                evidence.assertion = (found["kernel"], found["assertion"], number)
        for pattern in _SIGNALS:
            found = pattern.search(said)
            if found:
                ((kind, value),) = found.groupdict().items()
                name = {"name": str, "number": _named, "words": _shell_signal}[kind](value)
                if name:
                    evidence.signals.setdefault(name, number)
        if len(said) < 400:
            name = _shell_signal(said)
            if name:
                evidence.signals.setdefault(name, number)
        if evidence.host_memory is None and _HOST_MEMORY.search(said):
            evidence.host_memory = number


def _named(number: str) -> str | None:
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return None


def _shell_signal(said: str) -> str | None:
    return next((name for name, pattern in _SHELL.items() if pattern.search(said)), None)


def read(stream: BinaryIO) -> Evidence:
    """Reads a log to its end and returns what it says about a failure."""
    reader = _Reader()
    evidence = reader.evidence
    number = 1
    for block in blocks(stream):
        first = _TROUBLE.search(block)
        if first or reader.busy():
            for offset, raw in enumerate(block.split(b"\n")):
                if raw and (reader.busy() or _TROUBLE.search(raw)):
                    reader.line(raw, number + offset)
                if evidence.tracebacks and not evidence.progress and _PROGRESS.search(raw):
                    evidence.progress = True
        elif evidence.tracebacks and not evidence.progress and _PROGRESS.search(block):
            evidence.progress = True
        number += block.count(b"\n")
    return evidence
