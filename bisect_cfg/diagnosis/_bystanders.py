"""Errors of others in the same log: a monitor, an exporter, a thread that only reports. The run goes on without them.

Such an error is told by its own traceback, not by its words, which may be those of a real failure (a driver that does
not answer, a pipe that is broken):

    thread    Python says that a thread ended ("Exception in thread ..."), by an error that only follows from another
    program   the outermost frame is of a script that watches or reports, and of no package
    word      the next lines say that the run goes on, or that only the reporting ends
    utility   a command of the shell complains, of a copy or of a look at the machine

It counts where it is all that the log has.
"""

from __future__ import annotations

import re

from bisect_cfg.diagnosis._consequences import follows
from bisect_cfg.diagnosis._faults import STATUS, Error
from bisect_cfg.diagnosis._plain_text import clean
from bisect_cfg.diagnosis.advice.reading import PACKAGES

_REPORTS = r"metrics?|telemetry|monitor(?:ing)?|stats|reporting|upload(?:s|ing)?|export(?:er|ing)?|watcher"
_GOES_ON = re.compile(
    r"\b(?:job|run|training|trainer|main process) (?:continues|goes on|keeps (?:going|running)|is (?:not affected|fine)"
    rf"|unaffected)\b|\b(?:{_REPORTS}):? (?:is |are |was |were )?(?:disabled|skipped|switched off|giving up)\b"
    r"|\b(?:continuing|going on|carrying on|proceeding) without\b|\bparent process is gone\b",
    re.IGNORECASE,
)
_WATCHES = re.compile(
    r"(?:^|[_-])(?:exporter|monitor|telemetry|prometheus|dcgm|gpustat|heartbeat|uploader|watcher|shipper|collectd"
    r"|sidecar)(?:$|[_-])|^(?:tensorboard|wandb|swanlab|mlflow|aim|clearml|jupyter\w*)$",
    re.IGNORECASE,
)
"""Names of scripts and commands that only watch or report."""
_REPORTER = re.compile(
    r"/(?:wandb|swanlab|mlflow|comet_ml|neptune|clearml|aim|tensorboardX?|prometheus_client|opentelemetry|sentry_sdk)/"
)
_UTILITY = re.compile(r"(?:cp|mv|rm|ln|tee|tar|cat|df|du|rsync|scp|gsutil|rclone|aws|nvidia-smi): ")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+')
_OF_PYTHON = re.compile(r"/python3[\d.]*/(?!(?:site|dist)-packages)|/(?:threading|socketserver|runpy)\.py$|^<frozen ")
_THREAD = re.compile(r"Exception in thread \S|(?:Task|Future) exception was never retrieved")

NEXT_LINES = 2
"""Lines after an error in which whoever printed it says what comes of it; and before its traceback, whose it is."""


def _begins(error: Error) -> tuple[int, list[str]]:
    """The lines before an error, and where among them its own traceback begins, without those it goes back to."""
    lines = error.before.decode("utf-8", "replace").removesuffix("\n").split("\n")
    at = len(lines) - 1
    while error.traced and at > 0 and "Traceback (most recent call last)" not in lines[at]:
        at -= 1
    return (at if error.traced else len(lines)), lines


def of_bystander(error: Error) -> bool:
    """Whether an error is of somebody beside the run: a monitor, a reporter, a thread that only follows."""
    if any(map(_GOES_ON.search, (error.text, *error.more[:NEXT_LINES]))) or _UTILITY.match(error.text):
        return True
    if not error.traced:
        return False
    begins, lines = _begins(error)
    files = [found["file"] for line in lines[begins:] if (found := _FRAME.search(clean(line)))]
    own = next((file for file in files if not _OF_PYTHON.search(file)), "")
    if any(map(_THREAD.search, lines[max(begins - NEXT_LINES, 0) : begins + 1])):
        return follows(error.text) or bool(_REPORTER.search(own))
    stem = own.rpartition("/")[2].removesuffix(".py")
    of_package = PACKAGES.keys() & {*own.split("/")[:-1]} or "site-packages" in own or "dist-packages" in own
    return not of_package and bool(_WATCHES.search(stem))


def places(errors: list[Error], ended_well: bool) -> set[int]:
    """The lines of the errors of bystanders and of their tracebacks; none if nothing else says that something failed.

    Args:
        errors: all that nothing survived.
        ended_well: whether the run came to its end, or has rows that say what became of it.
    """
    beside = [error for error in errors if of_bystander(error)]
    others = any(error.weight < STATUS for error in errors if error not in beside)
    if not beside or not (others or ended_well):
        return set()
    found: set[int] = set()
    for error in beside:
        begins, lines = _begins(error)
        after = min(len(error.more), NEXT_LINES)
        found.update(range(error.line - len(lines) + begins, error.line + after + 1))
    return found
