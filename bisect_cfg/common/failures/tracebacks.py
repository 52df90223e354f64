"""Python's tracebacks in a log in which several processes print at once.

The one parser of tracebacks: signatures compare failures by what it finds, `explain` reads causes from it. It follows
every rank on its own. A device-side assertion, a message in a box and a line of another rank may stand within one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bisect_cfg.common.failures.excerpt import LogLine

LONGEST, LONGEST_PAUSE = 4000, 100
"""Lines until an unfinished traceback is given up, and lines after its last frame: thirty ranks print three lines a
frame at once. A model may print the beginning of one as its answer."""

EXCEPTION = re.compile(
    r"(?!(?:INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL):)"  # logging lines of the same rank in between
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z_]\w*|(?:[a-z_]\w*\.)+(?:error|gaierror|herror|timeout)(?=:))"  # cv2.error
    r"(?::(?: (?P<message>.*))?)?$"
)
"""The line that ends a traceback."""

REPORTED = ("--- Logging error", "Exception ignored in")
"""What stands before an exception that Python only reports: a logger could not write, an object ended."""

_BEGIN = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_PACKAGES = {
    "accelerate", "bisect_cfg", "deepspeed", "openrlhf", "peft", "torch", "transformers", "trl", "unsloth", "verl",
    "vllm",
}  # fmt: skip
"""Whose files are known outside of an installation too."""

_BOX = re.compile(r"^[│┃║|] ?|\s*[│┃║|]$")


@dataclass
class Traceback:
    """One printed traceback."""

    frames: list[tuple[str, int, str]] = field(default_factory=list)  # (file, line, function), outermost first
    type_name: str = ""  # of the exception; "" if the log ends before it
    message: str = ""  # its first line
    first: int = 0  # number of its first line
    last: int = 0
    who: str = ""  # the rank or worker that printed it
    raised: bool = True  # False where Python only reports it: a logger that could not write, an object's end
    chained: bool = False  # whether another exception was raised while this one was handled

    @property
    def places(self) -> list[tuple[str, str]]:
        """(file, function) of the frames."""
        return [(file, function) for file, _, function in self.frames]


def tracebacks(lines: Iterable[LogLine]) -> list[Traceback]:
    """The tracebacks of a log in the order of their last lines; last one without a type where the log ends within."""
    return list(_follow(lines))


def _follow(lines: Iterable[LogLine]) -> Iterator[Traceback]:
    unfinished: dict[str, Traceback] = {}
    finished: dict[str, Traceback] = {}  # by who: the last one, which another may follow from
    reported: dict[str, int] = {}  # by who: the line up to which a traceback is only reported
    for line in lines:
        text = line.text
        if text[:1] in "│┃║|":
            text = _BOX.sub("", text)
        if _BEGIN in text:
            outer = finished.get(line.who)
            if text.startswith("Original ") and outer is not None and outer.message.startswith("Caught "):
                outer.raised = False  # torch quotes what a worker process or a replica died of: that is the failure
            begun = Traceback(first=line.number, last=line.number, who=line.who)
            begun.raised = line.number > reported.pop(line.who, 0)
            unfinished[line.who] = begun
            continue
        if text.startswith(_CHAINED):
            if line.who in finished:
                finished[line.who].chained = True
            continue
        if text.startswith(REPORTED):
            reported[line.who] = line.number + 2
            continue
        if not unfinished:
            continue
        who = line.who
        if who not in unfinished and not who:
            # Of a logger's message only the first line says who prints it.
            who = next((one for one, open_ in unfinished.items() if open_.last == line.number - 1), who)
        current = unfinished.get(who)
        if current is None:
            continue
        frame = _FRAME.match(text)
        if frame:
            current.frames.append((frame["file"], int(frame["line"]), frame["function"] or ""))
            current.last = line.number
            continue
        if line.number > current.last + LONGEST_PAUSE or line.number > current.first + LONGEST:
            del unfinished[who]
            continue
        found = EXCEPTION.match(text.rstrip()) if current.frames and text[:1].strip() else None
        if found:
            current.type_name, current.message, current.last = found["type"], found["message"] or "", line.number
            finished[who] = unfinished.pop(who)
            yield current
    yield from (one for one in unfinished.values() if one.frames)


def source_of(file: str) -> tuple[str, str]:
    """Whose code a file of a stack is: a package's name, "python" of the standard library and of what has no file, ""
    of the user; and its dotted module, the same on every machine, "" where there is no file."""
    if "ipykernel" in file or file.startswith(("<ipython-input", "<stdin>")):
        return "", "__main__"
    if file.startswith("<"):
        return "python", ""
    *folders, name = re.split(r"[/\\]", file)
    parts = [*folders, name.removesuffix(".py")]
    start, owner = len(folders), ""  # a user's script: its place on disk says nothing
    for index, part in enumerate(folders):
        if part in ("site-packages", "dist-packages"):
            start, owner = index + 1, parts[index + 1]
        elif re.fullmatch(r"python3\.\d+", part):
            start, owner = index + 1, "python"
    if not owner:
        start = next((index for index in reversed(range(start)) if parts[index] in _PACKAGES), start)
        owner = parts[start] if start < len(folders) else ""
    if name.endswith((".pxi", ".pyx")):  # a library's compiled code names its sources without a folder
        owner = "python"
    return owner, ".".join(parts[start:]).removesuffix(".__init__")
