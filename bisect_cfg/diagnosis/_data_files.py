"""Data in which errors are told of: tickets, chats, data sets, tables of runs. Nothing failed in a file of them.

The names of the fields tell such data from a log that a collector has kept as records: a ticket has a title and a
state, a chat says who speaks, a data set has questions and answers, a table of runs has a line for each run and no
step. A log's record has a time and a message (`_formats`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

RECORDS = 20
"""Records by whose fields a file is told."""

DEEP = 3
"""Levels of tables in tables that are looked through: an answer of a service, its list, a record's parts."""

_CHATS = (
    ({"role"}, {"content"}),
    ({"user", "author", "sender", "username", "from", "speaker"}, {"text", "body", "content"}),
)
_TICKETS = (
    {"title", "summary", "subject", "headline"},
    {"body", "description", "status", "state", "labels", "comments", "assignee", "priority", "severity", "html_url",
     "resolution", "tags"},
)  # fmt: skip
_DATA_SETS = (
    {"question", "prompt", "instruction", "problem", "problem_statement", "query", "input"},
    {"answer", "answers", "response", "completion", "output", "solution", "chosen", "ground_truth", "reference",
     "label", "test_cases", "patch", "canonical_solution", "tests", "expected"},
)  # fmt: skip
_BY_FIELDS = (
    *((pair, "a conversation in JSON") for pair in _CHATS),
    (_TICKETS, "data about tickets"),
    (_DATA_SETS, "rows of a data set"),
)
"""What records are that have one field of each of two sets."""

_OF_TICKETS = {
    "id", "ticket", "incident", "title", "status", "state", "assignee", "priority", "labels", "summary", "reporter",
    "issue", "severity", "cause", "cure", "fix", "solution", "pattern", "error", "resolution", "description",
}  # fmt: skip
_OF_RUNS = {
    "run",
    "run_name",
    "run_id",
    "name",
    "trial",
    "trial_id",
    "experiment",
    "exp",
    "exp_name",
    "job",
    "jobid",
    "model",
}
_OF_RESULTS = {"state", "status", "notes", "note", "comment", "comments", "tags", "result", "outcome", "verdict"}
_OF_LOGS = {"message", "log", "time", "timestamp", "@timestamp", "date", "level", "host", "service", "step"}
"""Names of columns in an export of tickets, in a table of runs, and in a log's export."""
_STEPS = {
    "step",
    "steps",
    "global_step",
    "_step",
    "epoch",
    "iteration",
    "iter",
    "time",
    "timestamp",
    "wall time",
    "_timestamp",
}
"""Columns by which the lines of a table follow on each other."""

FEWEST_COLUMNS, FEWEST_OF_TICKETS = 3, 2


def data_in_json(text: str, whole: bool) -> str:
    """What a text in JSON is that only tells of errors; "" for a log, or anything else.

    Args:
        text: its beginning, or all of it.
        whole: whether that is all of it.
    """
    records = list(_records(text, whole))
    if not records:
        return ""
    for (one, other), kind in _BY_FIELDS:
        fitting = [fields for fields in records if fields & one and fields & other]
        if len(fitting) > len(records) / 2:
            return kind
    return ""


def of_columns(names: Sequence[str]) -> str:
    """What a table is by the names of its columns, if it tells of tickets or runs; "" otherwise."""
    lowered = {name.strip().strip('"').lower() for name in names}
    if len(lowered) < FEWEST_COLUMNS:
        return ""
    if lowered & _OF_RUNS and lowered & _OF_RESULTS and not lowered & _STEPS:
        return "a table of runs"
    return "a table of tickets" if len(lowered & _OF_TICKETS) >= FEWEST_OF_TICKETS and not lowered & _OF_LOGS else ""


def of_runs(names: Sequence[str], lines: Sequence[Mapping[str, str]]) -> bool:
    """Whether a table has a line for each run, and no steps: its lines do not follow on each other."""
    by_name = {name.strip().lower(): name for name in names}
    if by_name.keys() & _STEPS:
        return False
    called = [[line.get(by_name[run], "") for line in lines] for run in by_name.keys() & _OF_RUNS]
    return any(len(set(each)) == len(each) and not any(map(_is_number, each)) for each in called)


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdigit()


def _records(text: str, whole: bool) -> Iterator[set[str]]:
    """The fields of the first records, in lower case; none where the text is not of JSON alone."""
    decoder, at, values = json.JSONDecoder(), 0, []
    text = text.strip("\ufeff \t\r\n")
    if text[:1] not in ("{", "["):
        return
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError):
        at = 1 if text.startswith("[") else 0
        while at < len(text) and len(values) < RECORDS:
            at += len(text[at:]) - len(text[at:].lstrip(", \t\r\n"))
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                if whole and text[at:] not in ("", "]"):
                    return  # something else stands between them
                break
            values.append(value)
    found = [fields for value in values for fields in _fields(value, DEEP)]
    yield from found[:RECORDS]


def _fields(value: object, deep: int) -> Iterator[set[str]]:
    """The fields of a table, or of the tables in a list."""
    if isinstance(value, dict):
        inner = [fields for part in value.values() if isinstance(part, list) for fields in _fields(part, deep - 1)]
        # An answer of a service has its records in a list; a record's own list (comments) says what it is as well.
        own = {str(name).lower() for name in value}
        outer = bool(inner) and not any(own & one and own & other for (one, other), _ in _BY_FIELDS)
        yield from inner if outer else [own]
    elif isinstance(value, list) and deep > 0:
        for part in value[:RECORDS]:
            yield from _fields(part, deep)
