"""Signals that ended a process, as shells, launchers, schedulers and containers report them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from bisect_cfg.common.failures.excerpt import LogLine

SENT_BY_OTHERS = ("SIGABRT", "SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")
"""Signals that often follow a failure instead of being it: a launcher ends the other ranks, the NCCL watchdog
aborts a process whose peer died. An explanation in the log goes before these."""

LONGEST_SHELL_LINE = 400
"""Characters of a line in which a shell reports a signal; a longer one only happens to have such a word in it."""

_SHELL_WORDS = {
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
"""What a shell prints when its child is killed, in the user's language, by glibc's message catalogues."""

_DUMPED = r"\s*(?:[(（](?:core dumped|吐核|核心已转储|コアダンプ|[^)）]{1,40})[)）])?"
_SHELL = {
    name: re.compile(
        # bash pads the words to 24 characters, so that the command may follow without a blank
        rf"[:：]\s*\d+ (?:{words})(?:\s*[(（]|\S)"
        rf"|(?:^|: |\s{{2,}}|\d |\])(?:{words}){_DUMPED}(?:\s{{2,}}.*|\s+[\w./~-]*python.*)?$"
    )
    for name, words in _SHELL_WORDS.items()
}
"""The words above are common ones: only whole lines count, or the end of what a shell prints before them."""

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
    r"[Ee]xit(?:ed)?(?: with)?(?: exit)? ?(?:[Cc]ode|[Ss]tatus)[ :=]*(?P<code>-?\d+)\b"
    r"|exitcode\s*: *(?P<elastic>\d+)\b|Exited \((?P<docker>\d+)\)"
    r"|(?P<killed>OOMKilled|(?<!_)OUT_OF_MEMORY|TERM_MEMLIMIT)"
)


def signal_name(number: int) -> str | None:
    """``SIGFPE`` of 8; None if this system has no such signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def signals(lines: Iterable[LogLine]) -> dict[str, LogLine]:
    """The signals that a log reports, each with the first line that does."""
    found: dict[str, LogLine] = {}
    for line in lines:
        if name := reported_signal(line.text):
            found.setdefault(name, line)
    return found


def reported_signal(text: str) -> str | None:
    """The signal that a line reports; None if it reports none."""
    for pattern in _SIGNALS:
        if match := pattern.search(text):
            ((kind, value),) = match.groupdict().items()
            if kind == "number":
                value = signal_name(int(value))
            if name := _in_shell_words(value) if kind == "words" else value:
                return name
    if (match := _STATUS.search(text)) and (name := _of_status(match)):
        return name
    return _in_shell_words(text) if len(text) < LONGEST_SHELL_LINE else None


def _in_shell_words(text: str) -> str | None:
    return next((name for name, pattern in _SHELL.items() if pattern.search(text)), None)


def _of_status(match: re.Match[str]) -> str | None:
    """The signal that an exit status tells of: a shell adds 128 to its number."""
    if match["killed"]:
        return "SIGKILL"
    number = int((match["code"] or match["elastic"] or match["docker"])[:10])
    return signal_name(-number if number < 0 else number - 128) if -65 < number < 0 or 128 < number < 192 else None
