"""`bisect-cfg explain`: a log in, what it means out. No GPU, no script, no torch.

Each file is read once (`_reading`); all that is known is matched against it (`_matching`), and what the files of one
run say together decides what may lead (`_run`). Here the answer is put together: what is known, first what speaks most
for it; advice from the traceback, where nothing is, or only something general. What nobody knows is said to be unknown,
with the failure's own words and the line they stand on.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

from bisect_cfg.configuration import Configuration
from bisect_cfg.diagnosis import _faults, _render, signature
from bisect_cfg.diagnosis._lead import doubt
from bisect_cfg.diagnosis._next_command import next_command
from bisect_cfg.diagnosis._raised import own_script, raised
from bisect_cfg.diagnosis._reading import Reading
from bisect_cfg.diagnosis._render import NO_FAILURE, UNREADABLE, Explanation, Line, Match
from bisect_cfg.diagnosis._run import Run, apart, of_metrics
from bisect_cfg.diagnosis._types import Fingerprint
from bisect_cfg.diagnosis.advice import DEFINITE, Advice, advise
from bisect_cfg.diagnosis.advice.data import of_a_row
from bisect_cfg.diagnosis.advice.reading import frames_before, settings_in, told_cure
from bisect_cfg.diagnosis.knowledge import Clue, Entry, load
from bisect_cfg.probe.secrets import scrub

SHOWN_MORE = 2
"""Lines after an error's first one that are shown with it where they belong to the same sentence."""

_UNFINISHED = re.compile(r"[:,(]$|\b(?:the|an?|of|to|and|or|with|is|in|by|for|from|that)$")
"""A line that cannot be the end of a message."""


def explain(
    stream: BinaryIO,
    *,
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
    failure: signature.Signature | None = None,
    entries: Sequence[Entry] | None = None,
) -> Explanation:
    """Explains a log.

    Args:
        stream: The log, opened in binary mode; it is read once, to its end.
        environment: A `fingerprint` of where it ran, if known; rules out what cannot apply there.
        configuration: The settings it ran with, if known.
        failure: The failure, where somebody saw more than the log has: a process killed by a signal prints
            nothing.
        entries: The known failures; those of this package if None.
    """
    reading = Reading(load() if entries is None else entries)
    reading.read(stream)
    return combine([reading], environment=environment, configuration=configuration, failure=failure)


def explain_text(text: str, **options: object) -> Explanation:
    """`explain` for a text in memory: the last lines of a trial, an exception's message."""
    return explain(io.BytesIO(text.encode("utf-8", "replace")), **options)


def explain_paths(paths: Sequence[str]) -> tuple[Explanation, list[str]]:
    """Explains files or folders of one run together; and says which of them could not be read.

    Raises:
        Unreadable: none could.
    """
    from bisect_cfg.diagnosis._formats import sources

    opened, problems = sources(paths)
    entries, readings = load(), []
    for source in opened:
        reading = Reading(entries, source.name, source.quoting)
        for row in source.rows:
            reading.rows.add(row)
        if source.stream is not None:
            reading.read(source.stream)
        readings.append(reading)
    return combine(readings), problems


def explain_command(*paths: str, as_json: bool = False) -> int:
    """What `bisect-cfg explain` does; "-" reads standard input.

    Returns:
        The exit status: 0 something known was found, 1 a failure that nobody knows, 3 no failure, 2 unreadable.
    """
    from bisect_cfg.diagnosis._formats import Unreadable

    try:
        explanation, problems = explain_paths(paths)
    except (OSError, Unreadable) as error:
        said = f"{paths[0]}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
        print(f"bisect-cfg explain: {said}. Give a log, a folder of a run, or - for standard input.", file=sys.stderr)
        return UNREADABLE
    for problem in problems:
        print(f"bisect-cfg explain: not read: {problem}.", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a log may hold what this terminal cannot show
    print(_render.as_json(explanation, problems) if as_json else _render.render(explanation))
    # A file that says nothing is no proof that all is well where another one could not be read.
    return UNREADABLE if problems and explanation.status == NO_FAILURE else explanation.status


def combine(
    readings: Sequence[Reading],
    *,
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
    failure: signature.Signature | None = None,
) -> Explanation:
    """Explains what one or several files of the same run say together."""
    run = Run(readings, environment, configuration, failure)
    judged = [one for entry in readings[0].entries if (one := run.judge(entry)) is not None]
    matches, ended = apart([match for match, leads in judged if leads], run.found)
    aside = [match for match, leads in judged if not leads] + ended
    order = lambda match: (-match.score, match.evidence[0].number if match.evidence else 0)  # noqa: E731
    matches.sort(key=order)
    aside.sort(key=order)
    cause, errors, by_error = run.cause, run.errors, dict(run.reading_of)
    again = next((one for reading in readings for one in reading.repeated()), None) if not errors else None
    if again is not None and matches and matches[0].entry.general and of_metrics(matches[0].entry, run.found):
        by_error[id(again)] = next(reading for reading in readings if again in reading.repeated())
        beside = "an error comes again and again beside it"
        matches = [replace(match, doubt=beside) if match.entry.general else match for match in matches]
        cause = again
    silent = Clue("metric", "stalled") in run.found
    stands = readings[0].stands() if len(readings) == 1 and not errors and not silent else None
    last = max(errors, key=lambda error: error.line) if len(readings) == 1 and errors else None
    packages = run.where.get("packages") or {}
    advice = _without_secrets(_advice_beside(matches, cause, packages))
    matches = [replace(match, absent=run.absent) for match in matches]
    matches = _doubted(matches, cause, advice, run.shown)
    doubted = bool(matches) and bool(matches[0].doubt)
    if cause is None and failure is None and doubted and not of_metrics(matches[0].entry, run.found):
        matches, aside = [], [*matches, *aside]
    if matches and doubted and advice is None:
        advice = _without_secrets(advise(cause, packages))
    return Explanation(
        tuple(matches),
        failure or _signature(readings, errors),
        next_command(
            next((reading.command for reading in readings if reading.command), None),
            readings[0].head.decode("utf-8", "replace"),
            own_script(cause),
        ),
        sum(reading.lines for reading in readings),
        _line_of(cause, by_error),
        _line_of(last, by_error) if last is not cause else None,
        tuple(aside),
        sum(reading.rows.count for reading in readings),
        run.told,
        advice,
        "" if stands or len(readings) > 1 else readings[0].no_log(),
        stands,
        _said(cause, matches[0], advice) if matches and cause is not None else "",
        raised(cause),
    )


def _signature(readings: Sequence[Reading], errors: Sequence[_faults.Error]) -> signature.Signature | None:
    """The failure by its signals and tracebacks; None where those that are there killed nothing."""
    evidence = readings[0].logs.evidence
    for reading in readings[1:]:
        evidence = evidence if signature.from_evidence(evidence) else reading.logs.evidence
    survived_all = not errors and (
        evidence.progress
        or any(reading.quoting for reading in readings)
        or not any(reading.signals() for reading in readings)
    )
    return None if survived_all else _scrubbed(signature.from_evidence(evidence))


def _doubted(matches: Sequence[Match], cause: _faults.Error | None, advice: Advice | None, shown: str) -> list[Match]:
    """The matches with what speaks against their lead; those that may lead first."""
    message = cause.paragraphs()[0] if cause is not None else ""
    key = re.fullmatch(r"KeyError: ['\"]([^'\"]+)['\"]", message)
    of_row = of_a_row(key[1], frames_before(cause)) if key and cause is not None else None
    judged = []
    for match in matches:
        lines = {line.number for line in match.evidence}
        elsewhere = cause is not None and any(not cause.line <= line <= cause.line + len(cause.more) for line in lines)
        definite = advice is not None and match is matches[0]
        said = match.doubt or doubt(
            match.entry, match.decided, message, definite, shown, elsewhere, match.absent, of_row
        )
        judged.append(replace(match, doubt=said))
    # Who started a process says nothing of its failure, not even where what is known of that is in doubt.
    return sorted(judged, key=lambda match: bool(match.doubt) or match.entry.aftermath)


def _said(cause: _faults.Error, match: Match, advice: Advice | None) -> str:
    """What the error's message says to do, if what is known says nothing of it."""
    said = scrub(told_cure(cause.paragraphs()[0]))
    known = " ".join((*match.steps, *match.entry.cures, *match.entry.not_helping, match.entry.meaning))
    known += " ".join(advice.steps) if advice else ""
    return "" if said in known or any(name.strip("-") in known for name in settings_in(said)) else said


def _advice_beside(matches: Sequence[Match], cause: _faults.Error | None, packages: Mapping[str, str]) -> Advice | None:
    """What the traceback says, where nothing is known, or only something general that it makes definite."""
    if matches and not matches[0].entry.general:
        return None
    advice = advise(cause, packages)
    return advice if not matches or (advice is not None and advice.kind in DEFINITE) else None


def _scrubbed(failure: signature.Signature | None) -> signature.Signature | None:
    return failure and replace(failure, message=scrub(failure.message))


def _without_secrets(advice: Advice | None) -> Advice | None:
    if advice is None:
        return None
    return replace(advice, says=scrub(advice.says), steps=tuple(map(scrub, advice.steps)))


def _line_of(error: _faults.Error | None, by_error: Mapping[int, Reading]) -> Line | None:
    if error is None:
        return None
    text, rest = error.text, error.more[:SHOWN_MORE]
    if error.folded and rest:
        text, rest = text + rest[0], rest[1:]
    # Python's own messages indent what goes on; what is only printed next (by another process) is not part of it.
    for more in rest:
        if not _UNFINISHED.search(text) and not more[:1].isspace():
            break
        text = f"{text} {more.strip()}"
    return Line(error.line, scrub(text), by_error[id(error)].name)
