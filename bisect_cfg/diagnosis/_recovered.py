"""What a run got over: troubles that a log prints and that ended nothing.

An error is a failure only if the run did not get over it. Rows of metrics that come after it tell that (`_metrics`); a
log without rows tells it in words, and three kinds of them count:

    an end     what a run, or who started it, says at its end: "Successfully installed", "Training completed", exit
               status 0, a pod that was started. All that stands before it and is no traceback was survived; a shell
               that echoes "training done" does so whatever became of the command before it
    a goal     what only a program that came through prints: the Trainer's totals. Tracebacks before it were caught
    coping     the program says beside the trouble what it does about it (it tries again, resumes, falls back, skips,
               does without), and a line that comes after that shows it at work or done

Only the end of a log is looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDED_WELL = re.compile(
    rb"(?i:\btraining (?:is |has |run )?(?:completed?|finished|done)\b|\bfinished training\b"
    rb"|\b(?:completed|finished) successfully|\bsuccessfully (?P<installed>installed|built)\b"
    rb"|\bsuccessfully (?:rebased|pulled|pushed|uploaded|saved|written|finished|completed|exported|converted)\b"
    rb"|\b(?:has been|was|is) successfully (?:saved|completed))"
    rb"|\b(?:run|job|training|pipeline|workflow)[^\n]{0,40}\bstatus[=: ]+\W?(?:[Ss]uccess|SUCCESS|[Ss]ucceeded)"
    rb"|\b[Jj]ob '[^'\n]{1,80}' succeeded\b"  # Ray's
    rb"|All (?:checks|tests) passed|\bexit(?:ed)?(?: with)? (?:code|status)[:= ]*0\b"
    rb"|(?m:^Already up to date)|\bCOMPLETED +0:0|\bJob completed\b"
    rb"|\bNetwork (?:error resolved|connection (?:was )?restored)\b"
    rb"|(?P<pod>\bSuccessfully assigned\b|\bStarted +pod/|\bStarted container\b|\bReadiness probe succeeded"
    rb"|\b0/\d+ +Completed\b)"
)
"""What a run, or who started it, says at its end."""

_INSTALLER = re.compile(
    rb"^ *(?:Collecting|Downloading|Building|Installing|Looking in|error: subprocess)|pip3? install", re.M
)
"""Where an installer begins; that it came to its end says nothing of what was run before."""

_LOOPS = (b"CrashLoopBackOff", b"Back-off restarting")
"""A container that is started again and again has not come through by being started."""

_CAME_THROUGH = re.compile(rb"['\"]train_runtime['\"]?: |Training completed\. Do not forget to share")
"""What the Trainer prints after its last step, and nobody else."""

_COPES = re.compile(
    r"(?i:\bretry(?:ing)?\b(?! (?:limit|budget))|\bre-?tried\b|\b(?:trying|tried) again\b|\btrying to resume\b"
    r"|\bresum(?:e|ing) (?:download|from|normal)"
    r"|\bfall(?:ing|s|en)? ?back\b|\bfell back\b|\bfallback\b|\boptional\b|\bskip(?:ped|ping)\b(?!=)"
    r"|\bskip (?:line|row|file|sample|record|batch)\b|\bbacking off\b"
    r"|\battempt \d+(?: of |/)\d|\b(?:will be|being|was) restarted\b|\brestarting\b|\bignor(?:ed|ing)\b(?!=)"
    r"|\btrying \S+ instead|\bTrial \d+ failed\b|\bcontinuing\b|\bcarrying on\b|\bproceeding\b|, \w+ disabled$"
    r"|\bUP_FOR_RETRY\b|\btrying batch size"
    r"|\b(?:decreasing|reducing|lowering) (?:the )?batch size"
    r"|\busing (?:the )?(?:(?:latest |local )?cached|mirror|default|\S+ instead)\b"
    r"|\brequeued\b|-> ?(?:reward|score)s?[ =:]*-?\d|HTTP/1\.1\" 400\b|\(ok\b|\b(?:RESTARTS|restarts? left)\b)"
)
"""What a program says it does about a trouble."""

_REFUSED = re.compile(r"HTTP/1\.1\" 400\b")
_GAVE_UP = re.compile(
    r"(?i:\bgiv(?:e|ing|en) up\b|\bgave up\b|\bfailed after\b|\bretr(?:y|ies) (?:limit|exhausted|exceeded)"
    r"|no (?:more )?(?:restarts|retries) left)|Max retries exceeded(?!.*thrown while requesting)|\b0 restarts left"
)
"""... and what it says where that was in vain."""

_AT_WORK = re.compile(
    r"(?<!\d)100%(?:\||\s|\[)|\bok\b|\b[1-9]/[1-9] +Running\b|HTTP/1\.1\" 200"
    r"|Application startup complete|Uvicorn running"
    r"|\bView run at\b|\bstep[: ]\d"
    r"|\b(?:complete|completed|finished|succeeded|success|saved|wrote|written|moved|synced|uploaded|installed|deployed|upgraded|connected|done)\b"
    r"|\bscored (?P<all>\d+) of (?P=all)\b|(?<!\d)[1-9]?\d%\|[^|]*\| *\d+/\d+ \["
    r"|\b(?:loss|reward|accuracy)['\"]?[:=] ?-?\d"
    r"|\b(?:fetched|loaded|evaluated)\b|\bexit 0$|^\|.*\|\s*-?\d+\.\d+\s*\|",
    re.IGNORECASE,
)
"""A line of a program that goes on, or has come to its end."""

_AFTER_ANY_END = "wandb: "
"""What a reporter prints at the end of a run that failed as well."""

REACH, RIGHT_AFTER, AT_WORK = 4, 2, 3
"""Lines before a word of coping that it is about, those in which it has to follow on a traceback, and lines of work to
the end after which another try was not in vain."""

_GOES_ON = re.compile(
    r"(?i:\bfall(?:ing|s)? ?back\b|\bfell back\b|\busing (?:the |a )?(?:latest |local )?(?:cached?|mirror|default)\b"
    r"|(?<!exception )\bignor(?:ed|ing)\b|\bskip(?:ped|ping)\b|\bcontinuing\b|\bcarrying on\b|\bproceeding\b)"
)
"""Words that follow on an exception which was caught; that something is tried again may follow on one it died of."""


@dataclass(frozen=True)
class Recovery:
    """Up to where a log was got over, by the number of the line; 0 for nowhere.

    Attributes:
        since: the line from which on what ended well was at work.
        ended: the last line of an end, behind every traceback.
        through: the last line that only a program that came through prints.
        coped: lines of trouble about which the program did something.
        caught: those of them on which a traceback may end.
        work: lines of a program at work, or that has done its work.
    """

    since: int = 0
    ended: int = 0
    through: int = 0
    coped: frozenset[int] = frozenset()
    caught: frozenset[int] = frozenset()
    work: frozenset[int] = frozenset()


def recovery(tail: bytes, lines: int) -> Recovery:
    """What the end of a log tells of troubles that were got over.

    Args:
        tail: the end of the log.
        lines: how many lines the whole log has.
    """

    def place(found: re.Match[bytes] | None) -> int:
        return lines - tail.count(b"\n", found.start()) + tail.endswith(b"\n") if found else 0

    traced = tail.rfind(b"Traceback (most recent call last)")
    loops = any(word in tail for word in _LOOPS)
    ends = [found for found in _ENDED_WELL.finditer(tail) if found.start() > traced and not (loops and found["pod"])]
    through = [*_CAME_THROUGH.finditer(tail)]
    ended = ends[-1] if ends and (traced < 0 or (through and through[-1].start() > traced)) else None
    begun = _INSTALLER.search(tail) if ended and ended["installed"] else None
    return Recovery(place(begun), place(ended), place(through[-1] if through else None), *_coped(tail, lines))


def _coped(tail: bytes, lines: int) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    text = tail.decode("utf-8", "replace").removesuffix("\n").split("\n")
    first = lines - len(text) + 1
    found: set[int] = set()
    caught: set[int] = set()
    work: set[int] = set()
    at_work, dies_later = 0, False  # further down: lines of work, and whether it dies of another exception
    for at in range(len(text) - 1, -1, -1):
        line = text[at]
        if _GAVE_UP.search(line) or line.endswith("Traceback (most recent call last):"):
            at_work = 0
            dies_later |= "Traceback" in line
        elif _COPES.search(line):
            if at_work and _REFUSED.search(line):  # the server says what was wrong with it before or after that
                found.update(range(first + at, first + at + REACH))
            if at_work:
                found.update(range(first + max(0, at - REACH), first + at + 1))
            if ((at_work or dies_later) and _GOES_ON.search(line)) or at_work >= AT_WORK:
                caught.update(range(first + max(0, at - RIGHT_AFTER), first + at))
        elif _AT_WORK.search(line) and not line.startswith(_AFTER_ANY_END):
            at_work += 1
            work.add(first + at)
    return frozenset(found), frozenset(caught), frozenset(work)
