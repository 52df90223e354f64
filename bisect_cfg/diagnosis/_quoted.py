"""Texts about errors, which are no logs: source code, a diff, a history, a page, findings of a search, passed tests.

Each of them quotes messages of failures, and nothing failed in it.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Sequence

from bisect_cfg.diagnosis._data_files import data_in_json
from bisect_cfg.diagnosis._told import told

LINES = 400
"""Lines of the beginning by which such a text is told."""

END = 400
"""Characters of the end in which the summary of passed tests stands."""

TITLES = 5
"""Lines from the top in which a diff has begun: a mail or a commit message may stand before it."""

SHORT, FEW, DEFINITIONS = 2, 5, 1
"""Of so few lines, or of so few of code, nothing is told; more than one definition makes code of them."""

HISTORY = 1 / 4
"""Share of lines that begin a commit, in a log of git's; the others are its author, date and message."""

KEYS = 3
"""A text with no more keys than this, and a comment, may be a message."""

MOSTLY = 0.7
"""Share of lines that have the form of code, of a list or of a search's findings, where the text is one."""

_LOGGED = re.compile(
    r"Traceback|\[?rank ?\d|(?:INFO|ERROR|WARNING|CRITICAL)\b|\{'|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\s*\d+%\|"
    r"|(?:\w+\.)*\w+(?:Error|Exception): |srun: |slurmstepd: |wandb: "
    r"|\d\d:\d\d:\d\d +(?:DEBUG|INFO|SUCCESS|WARNING|ERROR)\b"
)
"""Beginnings of lines that only a log has."""

_COMMIT = re.compile(r"commit [0-9a-f]{7,40}\b|[0-9a-f]{7,10} (?:\(|\w)")
_DIFF = re.compile(r"diff --git |--- (?:a/|\S+\s+\d{4}-)|Index: \S+$|@@ -\d+,\d+ \+\d+")
_FOUND = re.compile(
    r"(?!.*:\d+: \w*Warning: )"  # Python's own warnings look like that
    r"(?:\./)?[\w./-]+\.(?:py|md|rst|txt|ya?ml|toml|sh|js|ts|go|rs|ipynb)[:-]\d+[:-]"
)
_LISTED = re.compile(r"\s*(?:[-+•]|\*{1,2}|\d+[.)]|#\d+:?|[A-Z]{2,8}-\d+:?) +\S")
_HEADING = re.compile(r"#{1,4} \w|={1,4} \w(?!.*=$)|```|[=~-]{4,}$")
_TITLE = re.compile(r"#{1,4} \w|= \w(?!.*=$)")
_RELEASE = re.compile(
    r"(?:#{1,4} |=+ )?(?:\[?v?\d+\.\d+[\w.]*\]?(?: |$)|\[?Unreleased|(?:Release|Version) v?\d|(?:# )?Change ?log"
    r"|What's (?:new|Changed))",
    re.IGNORECASE,
)
"""The head of a release in a list of changes."""
_RULED = re.compile(r"(?:[=-]{4,}\n)?\w.{2,80}\n[=~-]{4,}\n")
_PASSED = re.compile(r"=+ (?:\d+ \w+, )*\d+ passed.* in [\d.:]+s?\b|^Ran \d+ tests? in .*\n+OK\b", re.MULTILINE)
_NOT_PASSED = re.compile(r"\d+ (?:failed|errors?)\b")
_CODE = re.compile(
    r"^\s*(?:(?:async )?def |class |import |from \S+ import |return\b|raise |(?:el)?if .*:$|else:$|try:$"
    r"|except\b|with .*:$"
    r"|for .* in .*:$|while .*:$|@\w|self\.|\w+(?:\[\w+\])? = |#|//|/\*| \*|\"\"\"|[)\]}]+[,;:]?$|export "
    r"|echo |fi$|done$"
    r"|then$|\w+\(.*\)$|.*[;{\\]$|.*[(,\[]$)"
)
_OPTION = re.compile(r"\s+-{1,2}[a-zA-Z]|\s{8,}\S")
_DEFINED = re.compile(
    r"\s*(?:(?:async )?def \w+\(|class \w+|import \w|from \S+ import |#include |function \w|fn \w|func \w"
    r"|package \w|public |const \w|let \w|var \w)"
)
_SHAPES = (_COMMIT, _FOUND, _LISTED, _HEADING, _CODE, _DEFINED, _OPTION)


def quotes(head: bytes, whole: bool = False) -> str:
    """What a text is that is about errors, and no log; "" for a log.

    Args:
        head: its beginning.
        whole: whether that is all of it.
    """
    text = head.decode("utf-8", "replace")
    kind = told(text) or data_in_json(text, whole)
    if kind:
        return kind
    lines = [line for line in text.split("\n")[:LINES] if line.strip()]
    kind = _of_people(lines, text)
    if kind:
        return kind
    if lines and _TITLE.match(lines[0]) and "Traceback (most recent call last)" not in text:
        lines = [line for line in _EXAMPLE.sub("", text).split("\n")[:LINES] if line.strip()]
    if not lines or lines[0].lstrip()[:1] in "{[" or any(map(_LOGGED.match, lines)):
        return ""
    if _PASSED.search(text[-END:]):
        return "" if _NOT_PASSED.search(text[-END:]) else "the output of tests that passed"
    count = {kind: sum(map(bool, map(kind.match, lines))) for kind in _SHAPES}
    kinds = {
        "a history of commits": count[_COMMIT] >= max(SHORT, HISTORY * len(lines))
        or (
            lines[0].startswith("commit ")
            and bool(_COMMIT.match(lines[0]))
            and lines[1:2] != []
            and lines[1].startswith("Author: ")
        ),
        "a list of changes": any(map(_RELEASE.match, lines[:TITLES]))
        and count[_LISTED] + count[_HEADING] > MOSTLY * len(lines)
        and count[_LISTED] >= SHORT,
        "a page of text": (count[_HEADING] >= 2 and (bool(_TITLE.match(lines[0])) or bool(_RULED.match(text.lstrip()))))
        or _is_markdown(lines),
        "a diff": any(map(_DIFF.match, lines[:TITLES])),
        "the help of a command": lines[0].startswith("usage: ") and count[_OPTION] > len(lines) / 2,
        "the findings of a search": len(lines) > SHORT and count[_FOUND] > MOSTLY * len(lines),
        "a list of translations": sum(line.startswith(("msgid ", "msgstr ")) for line in lines) > MOSTLY * len(lines),
        "a list": len(lines) > SHORT and count[_LISTED] > MOSTLY * len(lines),
        "a script": lines[0].startswith("#!") and count[_CODE] > (1 - MOSTLY) * len(lines),
        "source code": (count[_DEFINED] > DEFINITIONS and len(lines) > FEW and count[_CODE] > MOSTLY * len(lines))
        or (whole and _is_python(text, lines[0])),
        "a file of settings": (whole and _is_settings(lines)) or _is_commented(lines),
        "a page of a manual": _TROFF.match(text.lstrip()) is not None,
    }
    # Code with comments looks like a page of text, too; what is said last is the most definite.
    return next((kind for kind, holds in reversed(kinds.items()) if holds), "")


def _of_people(lines: Sequence[str], text: str) -> str:
    """What people typed, and what Kubernetes says of a pod that has done its work."""
    typed = [int(found[1]) for line in lines if (found := _TYPED.match(line))]
    if len(lines) > FEW and len(typed) == len(lines) and typed == list(range(typed[0], typed[0] + len(typed))):
        return "a history of commands"
    if _RUNS.search(text) and _READY.search(text) and not _ENDED_BADLY.search(text) and "Traceback (most" not in text:
        return "the state of a pod that runs"
    return "the state of a pod that succeeded" if _SUCCEEDED.search(text) else ""


_TYPED = re.compile(r"\s*(\d{1,5})  +[a-z./~]\S*")
_RUNS, _READY = re.compile(r"^Status:\s+Running\s*$", re.M), re.compile(r"^\s+ContainersReady\s+True\b", re.M)
_ENDED_BADLY = re.compile(r"Reason:\s+(?!Completed)[A-Z]\w*|Exit Code:\s+[1-9]|Back-?[Oo]ff|Unhealthy|Evicted|Killing")
_SUCCEEDED = re.compile(r"^(?:Status|status|phase):\s+Succeeded\s*$", re.MULTILINE)
_EXAMPLE = re.compile(r"^(?P<fence>```|-{4,}$|\.{4,}$).*?^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)


def _is_markdown(lines: Sequence[str]) -> bool:
    """Whether a heading is followed by sentences that are marked up, or by a report in plain ones. A root shell's
    prompt looks like the heading, and what it prints has no marks and no sentences."""
    rest = lines[1:]
    marked = [line for line in rest if _MARKED.search(line)]
    titled = [line for line in rest if _TITLED.match(line)]
    written = [
        line
        for line in rest
        if _MARKED.search(line) or _LISTED.match(line) or _SENTENCE.search(line) or _TITLED.match(line)
    ]
    return (
        bool(_TITLE.match(lines[0]))
        and max(len(marked), len(titled)) >= SHORT
        and len(written) > (MOSTLY if len(titled) < SHORT else 1 / 2) * len(rest)
    )


_MARKED = re.compile(r"`[^`\n]+`|\*\*?\w[^*\n]*\w\*\*?|\[[^\]\n]+\]\([^)\n]+\)")
_TITLED = re.compile(
    r"(?:Summary|Timeline|Root cause|Impact|Cause|Actions?(?: items)?|Resolution|Fix|Background)\b.{0,20}:", re.I
)
_SENTENCE = re.compile(r"^[A-Z][a-z]*,? [a-z].*[.:,]$|^[a-z]+ .*[.]$")


def is_settings_in_json(head: bytes) -> bool:
    """Whether a whole text is one JSON object: a file of settings, and no line that a run printed."""
    try:
        content = json.loads(head) if head.lstrip()[:1] == b"{" else None
    except ValueError:
        return False
    return isinstance(content, dict) and any(isinstance(value, dict) for value in content.values())


def _is_settings(lines: Sequence[str]) -> bool:
    """Whether it is a file of settings in YAML: names in small letters, each once, with comments; or with tables."""
    # The lines of a text in a value look like any text, so they are left to the parser.
    if len(lines) > KEYS and _OF_YAML.match(lines[0]) and not any(map(_OF_A_STATE.search, lines)):
        if _is_nested("\n".join(lines)):
            return True
    keys = [found[1] for line in lines if (found := _KEY.match(line))]
    plain = [line for line in lines if not _KEY.match(line) and not re.match(r"\s*(?:#|- |---$)", line)]
    return len(keys) > KEYS and not plain and len(set(keys)) > len(keys) / 2 and any("#" in line for line in lines)


def _is_commented(lines: Sequence[str]) -> bool:
    """Whether it is mostly comments in whole lines, and more of them than a shell would echo."""
    comments = [line for line in lines if _COMMENT.match(line)]
    return len(comments) > COMMENTS and len(comments) > len(lines) / 2


COMMENTS = 20
_COMMENT = re.compile(r"\s*#(?:$|[ #\t=-])")
_TROFF = re.compile(r"(?:['.]\\\".*\n)*\.(?:TH|Dd|so) ")
_OF_YAML = re.compile(r"\s*(?:#|---$|(?:- )*[A-Za-z_][\w.-]*:(?:\s|$)|- \S)")
_OF_A_STATE = re.compile(r"\b(?:exitCode|lastState|containerStatuses|terminated|phase):")
"""What Kubernetes says of a container, in YAML as well."""


def _is_nested(text: str) -> bool:
    """Whether it is YAML with tables in tables."""
    import yaml

    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return False
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return any(
        isinstance(part, dict) or (isinstance(part, list) and any(isinstance(one, dict) for one in part))
        for part in parts
    )


_KEY = re.compile(r"\s*(?:- )?([a-z_][\w.-]*):(?=\s|$)")


def _is_python(text: str, first: str) -> bool:
    """Whether it is a whole Python program."""
    if not re.match(r"#|import |from |def |class |@|\"\"\"|\w+ = ", first):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):
            parsed = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    statements = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    return any(isinstance(node, statements) for node in parsed.body)
