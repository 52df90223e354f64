"""`bisect-cfg explain`: a log in, cause and cure out. No GPU, no script, no torch.

reader          files and folders, read in bounded memory
events          the failures that a log prints, and which of them is the cause
metric_facts    what the rows of metrics show, by the rules that trials are judged by
hang            a log that ends in a silence or before its first step
not_a_log       a script, a page of text, a passed test run
knowledge       known failures, as data (`entries/*.yaml`)
conditions      where a known failure applies
match           which known failures a log shows, and which may lead
advice          what an error says by itself
text            the screen, and JSON
"""

from __future__ import annotations

import io
import shlex
import sys

from bisect_cfg.common.words import clean
from bisect_cfg.explain.explanation import (
    KNOWN,
    NO_FAILURE,
    UNKNOWN,
    UNREADABLE,
    Explanation,
    explain,
    explain_readings,
    explain_text,
)
from bisect_cfg.explain.reader import Unreadable, read
from bisect_cfg.explain.text import as_json, render

__all__ = [
    "KNOWN", "NO_FAILURE", "UNKNOWN", "UNREADABLE", "Explanation", "explain", "explain_command", "explain_readings",
    "explain_text",
]  # fmt: skip


def explain_command(*paths: str, json: bool = False, everything: bool = False) -> int:
    """What `bisect-cfg explain` does; "-" reads standard input.

    Returns:
        The exit status: 0 something known was found, 1 a failure that nobody knows, 3 no failure, 2 unreadable.
    """
    try:
        readings, problems = read(paths)
    except (OSError, Unreadable) as error:
        said = f"{paths[0]}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        said = f"bisect-cfg explain: {said}. Give a log, a folder of a run, or - for standard input."
        print(clean(said), file=sys.stderr)
        return UNREADABLE
    explanation = explain_readings(readings)
    for problem in problems:
        print(clean(f"bisect-cfg explain: not read: {problem}."), file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a log may hold what this terminal cannot show
    if json:
        print(as_json(explanation, problems))
    else:
        print(clean(render(explanation, [shlex.quote(path) for path in paths], everything)))
    # A file that says nothing is no proof that all is well where another one could not be read.
    return UNREADABLE if problems and explanation.status == NO_FAILURE else explanation.status
