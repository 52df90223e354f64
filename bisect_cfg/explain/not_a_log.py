"""Texts about failures that are no log of one: scripts, pages, settings, data, and tests that passed.

One rule: a text in which no line looks printed by a run is what most of its lines are. So a log with a pasted script is
a log, and so is a bug report that quotes a traceback (people save issues to files); prose that only mentions an error
is a page of text. Tests that passed come first: what they print on the way was provoked.
"""

from __future__ import annotations

import re

MOST, HALF = 0.7, 0.5
"""Share of the lines that makes a text what they are; where its first line says so too, half of them are enough."""

FEW = 3  # a text of fewer lines may be all that a run printed
LAST = 500  # characters of the end in which the summary of a test run stands

_PASSED = re.compile(r"^=* ?(?:\d+ \w+, )*\d+ passed\b.* in [\d.]+s|^Ran \d+ tests? in .*\n+OK\b", re.MULTILINE)
_FAILED = re.compile(r"\b[1-9]\d* (?:failed|errors?)\b|^FAILED\b", re.MULTILINE)
_PRINTED = re.compile(
    r"\s*(?:[>|] ?)?Traceback \(most|(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Warning)(?:: |$)|\[?rank ?\d|\{'"
    r"|\s*\d+%\||(?:DEBUG|INFO|ERROR|WARN(?:ING)?|CRITICAL|FATAL)\b|[\[(]?\d{4}-\d\d-\d\d[ T]\d\d:|\[?\d\d:\d\d:\d\d"
    r"|\[[EWF]\d{4}|\([\w.]+ pid=|\S+: (?:line \d+: |error: |fatal: )|.*\(core dumped\)|.*Assertion .* failed|Killed$"
    r"|Aborted|Bus error|Segmentation fault|Floating point exception|terminate called|Fatal Python error|#\d+ +0x"
    r"|E   |step[ :]\d|(?:\S+ )?\$ |In \[\d+\]:"
)
"""Beginnings of lines that only a run prints; the exceptions of a docstring ("Raises:") are indented."""

LONGEST = 400
"""Characters of a line that are looked at: the time of a regular expression stays bounded."""

_CODE = re.compile(
    r"\s*(?:(?:async )?def |class \w|import \w|from \S+ import |return\b|raise |(?:el)?if .*:$|else:$|try:$"
    r"|except\b|with .*:$|for .* in .*:$|while .*:$|@\w|self\.|[\w.]+(?:\[[^\]]+\])? \+?= |#|//|/\*|\"\"\""
    r"|[)\]}]+[,;:]?$|export |set -|echo |done$|.*\b(?:then|do|fi)$|exit \d|[\w.]+\(.*\)$|.*[;{\\(,\[]$"
    r"|[-+](?![-+ ]*\d)|@@ )"
)
_DEFINES = re.compile(r"#!|\s*(?:(?:async )?def \w+\(|class \w+[(:]|import \w|from \S+ import )|diff --git |@@ -")
_FOUND = re.compile(r"(?!.*Warning: )(?:\./)?[\w./-]+\.(?:py|md|rst|txt|ya?ml|toml|sh|cpp|go|rs)[:-]\d+[:-]")
_KEY = re.compile(
    r"\s*(?:- )*[a-z_][\w./-]*(?::(?: |$)| ?= ?\S)|\s*\[[\w.-]+\]$|\s*- \S|\s*[{}\[\]],?$|\s*\"[\w.-]+\": |\s*(?:#|//)"
)
_STATE = re.compile(r"\b(?:exitCode|lastState|containerStatuses|terminated|phase|Exit Code|Reason):|\bNaN\b")
"""What Kubernetes says of a container, and metrics, have keys too."""
_OPTION = re.compile(r"\s+-{1,2}[a-zA-Z]|\s{8,}\S|usage: ")
_TITLE = re.compile(r"#{1,4} (?!python |torchrun |accelerate |bash )\w|<(?i:h[1-6]|!doctype|html)|={4,}$|---$")
_WRITTEN = re.compile(  # Markdown, HTML, sentences
    r"\s*(?:#{1,5} |[-*+•] |\d+[.)] |>|\|.*\|$|```|[=~-]{3,}$|</?\w+)|.*(?:`[^`]+`|\*\*|\]\()"
    r"|[A-Z\"'(][^ ]* .*\w.*[.:?!,)]$"
)
_SENTENCE = re.compile(r"\b[A-Z][a-z]* (?:[^\s.?!]+ )+[^\s.?!]+[.?!](?=\s|$)")
_EXAMPLE = re.compile(
    r"\s*\{.*\"(?:question|prompt|instruction|problem|query|input|messages|conversations)\": ?[\"\[{]"
    r"(?:.*\"(?:answer|response|completion|output|solution|chosen|label|ground_truth)\": |.*\"role\": )"
)


def kind_of(text: str, whole: bool) -> str:
    """What a text is if it is no log of a run, "" for a log.

    Args:
        text: all of it, or its beginning and end.
        whole: whether it is all; otherwise what is left out may be a run's.
    """
    lines = [line[:LONGEST] for line in text.split("\n") if line.strip()]
    end = text[-LAST:]
    if (passed := _PASSED.search(end)) and not _FAILED.search(end):
        if not any(map(_PRINTED.match, end[passed.end() :].split("\n")[1:])):
            return "a passed test run"
    if not lines or any(map(_PRINTED.match, lines)):
        return ""

    def most(pattern: re.Pattern[str], share: float = MOST) -> bool:
        return sum(map(bool, map(pattern.match, lines))) > share * len(lines)

    written = _TITLE.match(lines[0]) is not None or len(_SENTENCE.findall(text)) >= FEW
    distinct = len({*lines}) > HALF * len(lines) and not _STATE.search(text)  # a program repeats what it prints
    nested = any(line[0].isspace() or line.lstrip()[0] in "#/" for line in lines)
    kinds = {
        "a data set": most(_EXAMPLE),
        "the findings of a search": whole and len(lines) >= FEW and most(_FOUND),
        "the help of a command": whole and lines[0].startswith("usage: ") and most(_OPTION, HALF),
        "a script": whole and len(lines) >= FEW and any(map(_DEFINES.match, lines)) and most(_CODE),
        "a file of settings": whole and len(lines) > FEW and distinct and nested and most(_KEY),
        "a page of text": whole and len(lines) >= FEW and written and most(_WRITTEN),
    }
    return next((kind for kind, holds in kinds.items() if holds), "")
