"""Lines of training logs, made readable and comparable.

A log line carries more than what happened: the terminal's colours, the progress bar it overwrote, the rank
and process that printed it, the time, the engine's own file and line. `clean` takes those off and leaves what
a person would quote. `normalise` goes on and takes out all that differs between two runs of the same failure:
numbers, addresses, paths, device indices. Two messages mean the same if their normal forms are equal.
"""

from __future__ import annotations

import re
import string
import textwrap

WIDEST = 100
"""Columns of running text; wider lines are hard to read, whatever the terminal."""

MESSAGE_LIMIT = 300
"""Characters kept of a normal form. Enough for every message we know; some dump whole tensors or prompts."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_NUMBERED = re.compile(r"^(?=[ \d]{6,}\t) *\d+\t")  # cat -n
_KAGGLE = re.compile(r"^\d+\.\d+s\t\d+\t")  # what a saved version of a notebook puts before each line
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")

# Who printed the line: torchrun, accelerate, srun and Ray or vLLM workers. Ranks interleave their lines, so
# this part also tells the tracebacks of one rank from those of another.
_WHO = re.compile(
    r"\[(?:rank|default|local_rank)? ?\d{1,5}\]:? ?"
    r"|\[[A-Za-z]\w*[ _-](?:rank|worker|actor|node|replica)[ =:_-]?\d{1,5}\]:? ?"  # [Generator rank 1]
    r"|\((?:\w[\w.:\[\]=-]*,? )?(?:\w+=[\w.:-]+,? )*pid=\d+(?:,? \w+=[\w.:-]+)*\) ?"
    r"|\[\d+,(?:mpirank:)?\d+(?:,[\w-]+)?\]<std(?:out|err)>: ?"  # Open MPI, SageMaker
    r"|\d{1,4}: (?=\S| {2})"
    r"|[A-Za-z](?=[\w./]*[-\d])[\w./-]{0,80} +\| ?(?=\S| {2})"  # docker compose, foreman, Kubeflow: trainer-0 | ...
    r"|[a-z][a-z_-]{1,30} +\| (?=\[(?:rank|[IWEF]\d|\d{4}-)|Traceback \(|  |[\w.]{1,80}(?:Error|Exception): )"
    r"|\[(?:pod/)?[a-z][\w./-]*[-/][\w.-]*\] (?!\[?(?:INFO|WARN|ERROR))"  # kubectl --prefix, a launcher's job name
    r"|\[[a-z][\w.-]{1,24}\] (?=Traceback \(most| {2,}\S|(?:\w+\.)*[A-Z]\w+(?:Error|Exception)\b)"  # of a script's own
    r"|(?:(?!cv2\.error:)[a-z][a-z0-9-]*\d[a-z0-9.-]*|\d+\.\d+\.\d+\.\d+): (?=\S| {2})"  # pdsh, DeepSpeed: node2: ...
    r"|(?=[A-Z0-9-]{5,}: )[A-Z][A-Z-]*\d[A-Z0-9-]*: (?=\S| {2})"  # the same with host names in capitals
    r"|\([a-z]\w+\) (?=[A-Z\[])"  # (raylet), (autoscaler)
    # stern, kubectl with pod and container: trainer-worker-1 pytorch ...
    r"|[a-z][a-z0-9-]*-[a-z0-9]{1,10} [a-z][a-z0-9-]{2,24} (?=\[rank\d|Traceback \(most|  \S|[IWEF]\d{4} \d\d:"
    r"|(?:\w+\.)*[A-Z]\w+(?:Error|Exception)\b)"
    r"|\[[a-z][a-z_-]*\d+(?:\|\d+)?\]:(?=\S| )"  # torchx: [trainer0|3]:
    r"|std(?:err|out): ?"
)
# When and where the logging call was: Python logging, loguru, Docker and Kubernetes, vLLM and glog (the C++ side
# of torch and Ray).
_WHEN = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+ [IWEFC] \d+ \d+\] ?"
    r"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out"
    r"|err) [FP])?(?: ?[-|:]| )? ?"
    r"(?:(?:INFO|SUCCESS|WARNING|ERROR|CRITICAL) +\| [\w.<>]+:[\w.<>]+:\d+ - )?"
    r"|(?:INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[?[\w./]+:\d+\]? ?)?"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\s\]]+:\d+\] ?"
    r"|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d (?:[\w.-]+ [\w./@-]+(?:\[\d+\])?: )?"  # journald, syslog
    r"|\[?\d\d/\d\d(?:/\d{2,4})? \d\d:\d\d:\d\d(?:[.,]\d+)?\]? (?:- \w+ - [\w.]+ - )?"
    r"|\[\d\d:\d\d:\d\d(?:[.,]\d+)?\] ?"
)
_SGLANG = re.compile(r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?P<ranks>(?:[A-Z]{2,4}\d+ ?)+)\] ?")
"""The time, and the ranks of a process of SGLang in its groups: TP3, DP0 TP1."""
# What such a prefix begins with. Most lines of a traceback begin with a blank, and need no closer look; of the others
# the first words tell.
_PREFIX_BEGINS = frozenset("[(0123456789" + string.ascii_letters)

_SET = re.compile(r"\{('[^'\n]*'(?:, '[^'\n]*')+)\}")
_URL = re.compile(r"\bhttps?://[^\s'\"<>)\]]+")
_PATH = re.compile(
    r"(?<![\w/<>.])(?:~|\.{1,2})?(?:/[\w.@+=-]+){1,}/?"  # /a/b, ./a, ~/a
    r"|\b[A-Za-z]:\\[^\s'\"<>|]+"
    r"|(?<![\w/])(?:[\w.-]+/)+[\w.-]+\.(?:py|pyx|cu|cuh|cc|cpp|h|so|json|ya?ml|safetensors|bin|pt|txt|log)\b"
)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_HEX = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}(?:-[0-9a-f]{4,12})*\b")
# Numbers that stand alone, with their unit if one sticks to them. Those inside a word (Qwen2.5, bf16, int64)
# are part of a name.
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d+(?:[.,]\d+)*|\.\d+)(?:[eE][-+]?\d+)?(?=(?:[KMGT]i?B|[mun]?s|%)?(?![\w]|\.\d))"
)


def split_all(line: str) -> tuple[str, str, str]:
    """Splits who printed a line, when and where in the code (as far as it says), and what it says. Leading blanks of
    that are kept: in a traceback they carry the structure."""
    who = when = ""
    while line[:1] in _PREFIX_BEGINS:
        match = _WHO.match(line)
        if match:
            who += match.group()
        elif match := _SGLANG.match(line):
            who += f"[{match['ranks']}] "
            when += match["time"]
        else:
            match = _WHEN.match(line)
            when += match.group() if match else ""
        if not match or not match.group():
            break
        line = line[match.end() :]
    return who.strip(), when, line


def plain(line: str) -> str:
    """The line as a terminal would show it: no escape codes, only what the last carriage return left; without the
    number that `cat -n` puts before it."""
    if line.startswith(("^C[", "^CTraceback")):  # the terminal's echo of Ctrl-C
        line = line[2:]
    if "\t" in line[:8]:
        line = _NUMBERED.sub("", line)
    if "s\t" in line[:12]:
        line = _KAGGLE.sub("", line)
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    line = line.rstrip("\r\n")
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return line if line.isprintable() else _CONTROL.sub("", line)


def clean(line: str) -> str:
    """What the line says: as a terminal shows it, without rank, worker and time, blanks trimmed."""
    return split_all(plain(line).lstrip())[2].strip()


def normalise(text: str) -> str:
    """The normal form of a message: one line, without what differs between two runs of one failure.

    Numbers become ``<n>``, addresses and hashes ``<hex>``, file names ``<path>``, URLs ``<url>``; sets of strings are
    sorted, for Python prints them in another order each time. Of several
    lines the first one that says something is kept, and the next one too where the first only announces it.

    >>> normalise("[rank1]: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has 79.1 GiB")
    'CUDA out of memory. Tried to allocate <n> GiB. GPU <n> has <n> GiB'
    """
    lines = [said for said in map(clean, text.split("\n")) if said]
    if not lines:
        return ""
    message = lines[0]
    if len(lines) > 1 and (message.endswith(":") or "validation error" in message):
        message += " " + lines[1]
    message = _SET.sub(lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", message)
    message = _URL.sub("<url>", message)
    message = _ADDRESS.sub("<hex>", message)
    message = _PATH.sub("<path>", message)
    message = _HEX.sub("<hex>", message)
    message = _NUMBER.sub("<n>", message)
    return " ".join(message.split())[:MESSAGE_LIMIT]


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> str:
    """A text in lines of so many columns, words and names whole: an address or a command is there to be copied.

    Not by rich, which wraps for a console, has one indent for all lines, and folds a word that is longer than a line.
    """
    lines = textwrap.TextWrapper(width, first, rest, break_long_words=False, break_on_hyphens=False)
    return lines.fill(" ".join(text.split()))
