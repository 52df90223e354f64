"""What people write about errors, and what tests print that provoke them: neither is a log of something that failed.

Such a text has lines that a log has as well, a whole traceback among them. So it is told by its frame:

    tests that passed   a test runner's first line, and its summary, in which nothing failed; what is between was
                        provoked
    a manual            its sections
    a letter            its head; the error stands in what it quotes, or in a sentence
    a reply             the error stands in the lines that it quotes, and sentences go on from there
    questions           that are answered
    a talk              each line is somebody's, with the time
    a page of HTML      headings and paragraphs, and what it shows stands between the marks of one line
    a page              a title that says that it is about troubles, and sentences around what it shows
    prose               nothing but sentences, and somebody who speaks ("we")
    a table             of words, in Markdown; or of tickets or runs, with what became of them (`_data_files`)
    a query             SQL, that looks for errors
    a ticket            whose first lines say that it is done with
    a database's log    in which statements that are refused are noted, and it serves on

A report of a failure ("I get this:" and a traceback) has none of these frames, and is read as a log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bisect_cfg.diagnosis._data_files import of_columns

WORDS, SHORT = 35, 2
"""A text of fewer words, a table of fewer lines may be a message."""

FIRST_LINES, LAST_LINES = 8, 12
"""Lines from the top in which a frame begins, and from the end in which a runner's summary stands."""

SECTIONS, SENTENCES, MOST, FEW, ONE_IN = 2, 2, 0.7, 3, 1 / 5
"""A manual has so many sections beside its name, a letter or a page so many sentences; a talk is most of its lines, has
a few at least, and one in so many of them has a word that programs do not print."""

_RUNNERS = (
    # where it begins, what says at the end that all passed, what says that something did not
    (r"=+ test session starts =+", r"=+ (?:\d+ \w+, )*\d+ passed\b", r"^=+ .*\d+ (?:failed|errors?)\b"),
    (r"\w+ \([\w.]+\)(?: \.\.\.|$)|\.{2,}$", r"Ran \d+ tests? in .*\n+OK\b", r"FAILED \("),
    (r"\[=+\] Running \d+ tests?", r"\[  PASSED  \] \d+ tests?", r"\[  FAILED  \]"),
    (r"=== RUN ", r"^(?:ok|PASS)\b", r"^(?:--- )?FAIL\b"),
    (r"(?:> jest|PASS) ", r"Tests: +(?:\d+ (?:skipped|todo), )*\d+ passed", r"^Tests?(?: Suites)?: .*\d+ failed"),
    (r"running \d+ tests?$", r"test result: ok\.", r"test result: FAILED"),
    (r"Trying:$", r"^Test passed\.|and 0 failed", r"and [1-9]\d* failed"),
    (r"Test project |Start +\d+: ", r"100% tests passed", r"[1-9]\d* tests failed out of"),
)
"""Test runners: Python's three, GoogleTest, Go's, Jest, Rust's, doctest, CTest."""

_SECTION = re.compile(
    r"(?:NAME|SYNOPSIS|DESCRIPTION|OPTIONS|ARGUMENTS|EXAMPLES?|EXIT (?:STATUS|CODES?)|ENVIRONMENT(?: VARIABLES)?|FILES"
    r"|DIAGNOSTICS|ERRORS|RETURN VALUES?|SEE ALSO|NOTES|BUGS|AUTHORS?|COMMANDS|USAGE|CAVEATS|HISTORY|STANDARDS)\s*$"
)
_MAIL = re.compile(r"(?:From|To|Cc|Subject|Date|Sent|Von|An|Betreff|发件人|收件人|主题): ?\S")
_ANSWERED = re.compile(r"\W{0,3}(?:(?:Q(?:uestion)?|A(?:nswer)?) ?\d*(?: \([^)]*\))?[:.] |[问答][:：])")
_SAID = re.compile(
    r"\[?(?:\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4},? )?\d{1,2}:\d\d(?::\d\d)?(?: ?[AP]M)?\]? <?[A-Za-z][\w .-]{0,24}>?: \S"
)
_TALKS = re.compile(
    r"\?(?:$|\s)|\b(?:thanks?|thx|lol|yes|yeah|nope?|ok|okay|anyone|you|your|my|me|I|we|fine|works?|solved|fixed|maybe)\b"
    r"|[:;]-?[)D]|[？吗了谢]",
    re.IGNORECASE,
)
_SPEAKS = re.compile(r"[A-Za-z@][\w.@-]*(?: [A-Z][\w.-]*)? +\[?\d{1,2}:\d\d(?: ?[AP]M)?\]?$")
_EXPORTED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)? +\S{1,24}$")
"""Who says the next line, and when, as WeChat exports it."""
_ABOUT_TROUBLES = re.compile(
    r"post-?mortem|incident (?:report|review)|retrospective|trouble-?shooting|\bFAQ|frequently asked|run ?book|playbook"
    r"|known (?:issues|problems|errors)|common (?:errors|problems|pitfalls|issues)|glossary|cheat ?sheet|\bhow to\b"
    r"|lessons learned|release notes|migration guide|\bguide\b|tutorial",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"^(?:[A-Z(\"'`][^ ]*|- [A-Z]?\w+|[a-z]+,?)(?: [^ ]+){2,}[.:?!]\)?$")
_LOGS = re.compile(
    r"Traceback \(most|(?:\[?rank ?\d|\(\w+ pid=)|(?:INFO|ERROR|WARNING|CRITICAL)\b|\{'|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d"
    r"|\s*\d+%\||(?:\w+\.)*\w+(?:Error|Exception): |srun: |slurmstepd: |wandb: "
)
_OF_POSTGRES = re.compile(r"(?:^|[\s\]])(?:LOG|ERROR|STATEMENT|DETAIL|HINT|CONTEXT|WARNING|FATAL):  \S")
_ENDED_IT = re.compile(
    r"(?:^|[\s\]])PANIC:  \S|terminating any other active server processes|database system is shut down"
)
"""PostgreSQL sets two blanks after its levels; FATAL ends a connection, or the server where it then says so."""
_FRONT_MATTER = re.compile(r"---\n(?:[\w-]+:.*\n|  .*\n)*?title:.*\n(?:[\w-]+:.*\n|[ -].*\n)*?---\n")
"""What a page of a site begins with: its title and date."""
_FENCED = re.compile(r"^ *```.*?^ *```[ ]*$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r">(?!>>)")

_PASTED = re.compile(r"```.*?```", re.DOTALL)
_SPEAKERS = re.compile(r"^\[?\d{1,2}:\d\d(?::\d\d)?\]? <?([A-Za-z][\w.-]{0,24})>?: \S", re.MULTILINE)
_SOLVED = re.compile(
    r"\b(?:fixed|solved|resolved|works now|working now|sorted out|thanks|thank you|thx|that (?:did|was) it)\b",
    re.IGNORECASE,
)
"""People who are done with what they show each other; who still asks has a failure to be explained."""

_SHOWN = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
_TAG = re.compile(
    r"\s*<(?:!doctype|/?(?:h[1-6]|p|pre|code|[uod]l|li|d[td]|div|table|t[rdh]|html|body|head|title|section|article|a|br))"
    r"\b",
    re.IGNORECASE,
)


def _is_html(text: str) -> bool:
    """Whether it is a page with paragraphs or headings; what it shows is left out. A notebook's page is none."""
    lines = [line for line in _SHOWN.sub("<pre>", text).split("\n") if line.strip()]
    tagged = [line for line in lines if _TAG.match(line)]
    titled = any(re.search(r"<(?:h[1-6]|p|dd|title)\b", line) for line in tagged)
    return (
        titled
        and len(tagged) > MOST * len(lines)
        and not re.search(r"Traceback \(most|jp-Notebook|nbconvert", "\n".join(lines))
    )


def told(text: str) -> str:
    """What a text is that only tells of errors; "" for a log.

    Args:
        text: its beginning, or all of it.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return ""
    if _passed(lines) or _passed_in_xml(text):
        return "the output of tests that passed"
    if _is_html(text):
        return "a page of HTML"
    if sum(map(bool, map(_EXPORTED.match, lines))) >= max(SENTENCES, len(lines) / 3):
        return "a conversation"
    speakers = {found[1] for found in _SPEAKERS.finditer(text)} | {
        line.split()[0] for line in lines if _SPEAKS.match(line)
    }
    if len(speakers) > 1 and _SOLVED.search(_PASTED.sub("", text)):
        lines = [
            line for line in _PASTED.sub("(shown)", text).split("\n") if line.strip()
        ]  # what they showed each other
    plain = [line for line in lines if not _QUOTED.match(line)]
    sentences = [line for line in plain if _SENTENCE.match(line.strip())]
    logged = any(map(_LOGS.match, plain))
    kinds = {
        "a conversation": len(lines) >= FEW
        and (
            sum(map(bool, map(_SAID.match, lines))) > MOST * len(lines) or sum(map(bool, map(_SPEAKS.match, lines))) > 1
        )
        and sum(map(bool, map(_TALKS.search, lines))) >= ONE_IN * len(lines)
        and not logged,
        "questions with answers": sum(map(bool, map(_ANSWERED.match, lines))) > 1 and not logged,
        "a table": _is_table(lines),
        "a query": _is_query(lines) and not logged,
        "the log of a database": sum(map(bool, map(_OF_POSTGRES.search, lines))) > MOST * len(lines)
        and not any(map(_ENDED_IT.search, lines)),
        "a ticket that is done with": _is_ticket(lines),
        "a page of text": _is_page(text) or _FRONT_MATTER.match(text) is not None or (not logged and _is_prose(text)),
        "a reply": len(plain) < len(lines)
        and len(sentences) >= SENTENCES
        and not any(_LOGS.match(line.lstrip()) for line in plain),
        "a letter": sum(map(bool, map(_MAIL.match, lines[:FIRST_LINES]))) > 1 and not logged,
        "a page of a manual": _is_manual(lines),
    }
    return next((kind for kind, holds in reversed(kinds.items()) if holds), "")


_EXPECTED = re.compile(
    rb"\bas expected: |\bsimulated\b|\((?:expected|ignored|harmless|provoked)\)"
    rb"|\(expected (?:by|in) (?:a |the )?tests?[\w_]*"
    rb"|(?:Error|Exception)\b[^\n]{0,80}\b(?:means that|is (?:raised|printed) when|occurs when|happens when)\b"
    rb"|^\W{0,3}\[(?:RESOLVED|OK|CLEARED|RECOVERED)\]"
    rb"|\b(?:xfail(?:ed)?|XFAIL): |^\W*caught [A-Z]\w+(?:Error|Exception)|<-+ ?(?:sample|example)"
)


_OF_EXPECTED = (
    b"xpected", b"simulated", b"(ignored", b"(harmless", b"(provoked", b"means that", b"is raised when",
    b"is printed when", b"occurs when", b"happens when", b"[RESOLVED]", b"[OK]", b"[CLEARED]", b"[RECOVERED]",
    b"xfail", b"XFAIL", b"caught ", b"sample", b"example",
)  # fmt: skip
"""One of them is in every match; they are looked for ten times as quickly."""


def expected(line: bytes) -> bool:
    """Whether a line says itself that the error in it is none: it was provoked, or caught."""
    return any(word in line for word in _OF_EXPECTED) and bool(_EXPECTED.search(line))


def _passed(lines: Sequence[str]) -> bool:
    """Whether a test runner's output says at its end that all it ran has passed."""
    first, end = lines[:FIRST_LINES], "\n".join(lines[-LAST_LINES:])
    return any(
        any(re.match(begins, line) for line in first)
        and (summary := re.search(passed, end, re.MULTILINE)) is not None
        and not any(map(_LOGS.match, end[summary.end() :].split("\n")))
        and re.search(failed, end, re.MULTILINE) is None
        for begins, passed, failed in _RUNNERS
    )


def _passed_in_xml(text: str) -> bool:
    """Whether it is JUnit's report of tests, none of which failed."""
    if not _XML.match(text):
        return False
    counts = [int(count) for suite in _SUITE.findall(text) for count in _COUNT.findall(suite)]
    return bool(counts) and not any(counts)


_XML = re.compile(r"\s*(?:<\?xml\b[^>]*>\s*)?<testsuites?\b")
_SUITE = re.compile(r"<testsuites?\b[^>]*>")
_COUNT = re.compile(r'\b(?:errors|failures)="(\d+)"')

_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
"""A time to the second, as only a log has it: journald begins each line with the month's name."""


def _is_prose(text: str) -> bool:
    """Whether all of it is one or more paragraphs of a text in which somebody speaks."""
    return (
        len(text.split()) > WORDS
        and not _CLOCK.search(text)
        and all(re.match(r"[A-Z][a-z]+[ ,.]", line) for line in text.splitlines() if line.strip())
        and len(re.findall(r"[\w%)][.?!](?= [A-Z]|\s*$)", text)) > SENTENCES
        and re.search(r"\b(?:[Ww]e|[Oo]ur|I|[Tt]hey)\b", text) is not None
    )


def _is_table(lines: Sequence[str]) -> bool:
    """Whether it is a table of words in Markdown, or one of tickets or runs."""
    if len(lines) > SHORT and re.match(r"\|(?: ?:?-+:? ?\|)+$", lines[1]) and all(line[0] == "|" for line in lines):
        cells = [cell.strip() for line in lines[2:] for cell in line.strip("| \n").split("|")]
        return sum(map(bool, map(re.compile(r"-?[\d.]+(?:e-?\d+)?%?$").match, cells))) < (1 - MOST) * len(cells)
    return bool(of_columns(lines[0].split(max(",;\t", key=lines[0].count))))


def _is_query(lines: Sequence[str]) -> bool:
    """Whether it is SQL: what it looks for has not happened."""
    code = [line.strip() for line in lines if not line.lstrip().startswith("--")]
    starts = re.compile(r"(?:SELECT|WITH|INSERT INTO|CREATE (?:TABLE|VIEW|INDEX)|UPDATE|DELETE FROM)\b", re.IGNORECASE)
    clauses = re.compile(r"(?:FROM|WHERE|VALUES|SET|GROUP BY|ON)\b", re.IGNORECASE)
    return bool(code) and starts.match(code[0]) is not None and any(map(clauses.match, code[1:]))


def _is_ticket(lines: Sequence[str]) -> bool:
    """Whether its first lines say that what is told was put right."""
    head = "\n".join(lines[:FIRST_LINES])
    done = re.search(r"\b(?:status|state):? *(?:resolved|closed|done|fixed|completed)\b", head, re.IGNORECASE)
    return done is not None and any(
        re.match(r"(?:resolution|impact|root cause|fix):", line, re.IGNORECASE) for line in lines
    )


def _is_manual(lines: Sequence[str]) -> bool:
    sections = [line for line in lines if _SECTION.match(line)]
    named = any(line.startswith("NAME") for line in lines[:FIRST_LINES])
    return named and len(sections) > SECTIONS and not any(_LOGS.match(line) for line in lines if not line[0].isspace())


def _is_page(text: str) -> bool:
    """Whether a title says that a text is about troubles, and all that looks like a log stands in what it shows."""
    lines = [line for line in _FENCED.sub("", text).split("\n") if line.strip()]
    around = [line for line in lines if not line.startswith(("    ", "\t"))]
    if not any(_ABOUT_TROUBLES.search(line) and not _LOGS.match(line) for line in lines[:2]):
        return False
    sentences = sum(map(bool, (_SENTENCE.match(line.strip()) for line in around)))
    return sentences >= SENTENCES and not any(map(_LOGS.match, around))
