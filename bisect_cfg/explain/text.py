"""An explanation as a screen for people, with the cure in its fourth line, and as JSON for tools."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict

from bisect_cfg.common.json_files import Json
from bisect_cfg.common.text import WIDEST, wrapped
from bisect_cfg.common.words import PROGRAM, program
from bisect_cfg.explain.explanation import Explanation
from bisect_cfg.explain.match import Line, Match

SHORT = 15
"""Lines of the screen; `--all` shows the rest."""

LONGEST_EVIDENCE = 240
"""Characters of a log line that are shown."""

STEPS = 3
"""Cures on the screen."""

LABEL = 8
"""Columns of the labels."""

SCHEMA = 2
"""Version of what --json prints."""

_ONLY_LOOKS = re.compile(
    r"\?(?:\s|$)|^(?:[\w ]+: )?(?:(?:pip install )?py-spy|nvidia-smi|dmesg|print|read|look|compare|count|check)\b"
    r"|\bas (?:a )?checks?\b|^[^;(]*\bshows? the\b"
)
"""A step that asks or looks, and changes nothing that stays."""

_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")


def render(explanation: Explanation, paths: Sequence[str] = (), everything: bool = False) -> str:
    """The explanation as plain text.

    Args:
        explanation: what a log means.
        paths: as they were given, for the commands that are shown.
        everything: all evidence, causes, sources and mentioned failures; otherwise at most `SHORT` lines.
    """
    width = min(shutil.get_terminal_size().columns, WIDEST)
    if explanation.lead is None and explanation.error is None and explanation.signature is None:
        return _nothing(explanation, width)
    head = _head(explanation, width, everything)
    steps = explanation.steps if everything else explanation.steps[:STEPS]
    fix = _numbered(steps, width)
    foot = []
    lead = explanation.lead
    if lead is not None:
        sources = ["measured with tiny models on a CPU" if one == "measured" else one for one in lead.entry.sources]
        shown = sources if everything else sources[:1]
        foot += _labelled("SOURCE", [f"{one}  [{lead.entry.id}]" if one is shown[-1] else one for one in shown])
    typed = explanation.command.replace(PROGRAM, program(), 1)
    foot += _labelled("TRY", [typed]) if typed else []
    if everything:
        return "\n".join([*head, "", *fix, *_why(explanation, width), *_rest(explanation, width), *foot])
    given = " ".join(paths) or "LOG"
    more = bool(explanation.others or explanation.mentioned) or len(explanation.steps) > STEPS
    foot += _labelled("MORE", [f"{program()} explain {given} --all"]) if more else []
    room = SHORT - len(head) - 1 - len(foot)
    least = min(len(_why(explanation, width, sentences=1)), 2)
    while len(fix) > max(room - least, 2) and len(steps) > 1:
        steps = steps[:-1]
        fix = _numbered(steps, width)
    fitting = (_why(explanation, width, sentences) for sentences in (None, 3, 2, 1))
    why = next((lines for lines in fitting if len(lines) <= room - len(fix)), [])
    return "\n".join([*head, "", *fix, *why, *foot])


def as_json(explanation: Explanation, problems: Sequence[str] = ()) -> str:
    """The whole explanation for tools."""
    content = {
        "schema": SCHEMA,
        "status": explanation.status,
        "error": explanation.error and asdict(explanation.error),
        "signature": explanation.signature.to_json() if explanation.signature else None,
        "advice": explanation.advice and asdict(explanation.advice),
        "steps": list(explanation.steps),
        "matches": [_match(match) for match in explanation.matches],
        "mentioned": [_match(match) for match in explanation.mentioned],
        "environment": dict(explanation.environment),
        "not_a_log": explanation.not_a_log,
        "stands": explanation.stands and asdict(explanation.stands),
        "lines": explanation.lines,
        "rows": explanation.rows,
        "unreadable": list(problems),
        "command": explanation.command,
    }
    return json.dumps(content, indent=1)  # ASCII: whatever the terminal's encoding, it is JSON, and printable


def _match(match: Match) -> dict[str, Json]:
    return {
        "id": match.entry.id,
        "title": match.title,
        "score": match.score,
        "general": match.entry.general,
        "why": match.why,
        "cures": list(match.cures),
        "lines": [asdict(line) for line in match.lines],
        "unchecked": list(match.unchecked),
        "settings": list(match.entry.bisect),
        "sources": list(match.entry.sources),
    }


def _head(explanation: Explanation, width: int, everything: bool) -> list[str]:
    """What happened and where, and the error's own words: two lines, so that the cure begins in the fourth."""
    lead, shown = explanation.lead, explanation.error
    evidence = [line for line in lead.lines if not line.text.startswith("File ")] if lead is not None else []
    if evidence and (shown is None or shown.number not in [line.number for line in evidence]):
        shown = evidence[0]  # what the title is about; the error only came of it
    place = f" ({_at(shown)})" if shown else ""
    if lead is None:
        title = f"No known failure; this is the error{place}:"
    elif explanation.stands is not None:
        title = f"No error. If nothing follows, the run stands still: {lead.title}{place}"
    else:
        title = f"{lead.title}{place}"
    words = shown.text if shown else str(explanation.signature or "")
    limit = LONGEST_EVIDENCE if everything else 2 * width - 4
    lines = wrapped(" ".join(words.split())[:limit], width, "  ", "  ").split("\n") if words.strip() else []
    titles = wrapped(title, width, "", "").split("\n")
    return [*titles, *(lines if everything else lines[: max(1, 3 - len(titles))])]


def _why(explanation: Explanation, width: int, sentences: int | None = None) -> list[str]:
    """Why it happens: all that is known of it, or so many sentences."""
    lead, advice = explanation.lead, explanation.advice
    parts = [] if lead is None else _SENTENCE.split(lead.why)
    if lead is not None and lead.entry.general and lead.case is None:
        parts.append("Several things end like this.")
    if advice is not None and advice.says:
        parts.append(f"From the traceback: {advice.says}")
    return _labelled("WHY", [" ".join(parts[:sentences])], width) if parts else []


def _rest(explanation: Explanation, width: int) -> list[str]:
    lines: list[str] = []
    lead = explanation.lead
    if lead is not None:
        lines += [""] + [f"{line.number:>8} | {line.text[:LONGEST_EVIDENCE]}" for line in lead.lines]
        if lead.unchecked:
            lines += _labelled("IF", [f"{'; '.join(lead.unchecked)} (the log does not say)"], width)
        if lead.case is None and lead.entry.cases:
            lines += ["", "Several things end like this. What tells which:"]
            lines += [
                wrapped(f"{lead.filled(case.title)}: {lead.filled(case.cures[0])}", width, "  - ", "    ")
                for case in lead.entry.cases
            ]
    for label, found in (("It may also be:", explanation.others), ("The log also mentions:", explanation.mentioned)):
        if found:
            lines += ["", label]
            lines += [
                wrapped(
                    f"{one.title}{f' ({_at(one.lines[0])})' if one.lines else ''} [{one.entry.id}]",
                    width,
                    "  - ",
                    "    ",
                )
                for one in found
            ]
    return [*lines, ""]


def _nothing(explanation: Explanation, width: int) -> str:
    if not explanation.lines and not explanation.rows:
        return "There is nothing in it: not one line."
    if explanation.not_a_log:
        said = f"This looks like {explanation.not_a_log}, not like the log of a run."
        return wrapped(f"{said} Give what the run printed, or its folder.", width, "", "")
    if explanation.stands is not None:
        said = (
            "No error was found, but the output ends before training began. If nothing comes after this line, the run "
            "stands still; if it died, the end of its output is missing (2>&1)."
        )
        lines = [
            wrapped(said, width, "", ""),
            f"  {_at(explanation.stands)}: {explanation.stands.text[:LONGEST_EVIDENCE]}",
        ]
        return "\n".join([*lines, "", *_numbered(explanation.steps, width)])
    read = f"{explanation.lines:,} lines" + (f" and {explanation.rows:,} rows of metrics" if explanation.rows else "")
    said = f"No failure found in {read}."
    if not explanation.rows:
        said += " If the run did fail, its error was printed elsewhere: give the output of every process (2>&1)."
    return wrapped(said, width, "", "")


def _at(line: Line) -> str:
    return f"{line.file}, line {line.number}" if line.file else f"line {line.number}"


def _labelled(label: str, texts: Sequence[str], width: int = 0) -> list[str]:
    """Texts behind a label in capitals, wrapped at a width; 0 keeps each on its line, to be copied."""
    lines = []
    for text in texts:
        first, rest = f"{label:<{LABEL}}", " " * LABEL
        lines += wrapped(text, width, first, rest).split("\n") if width else [f"{first}{text}"]
        label = ""
    return lines


def _numbered(steps: Sequence[str], width: int) -> list[str]:
    """The steps, each behind what it is: FIX, or CHECK for one that only asks or looks."""
    lines, before = [], ""
    for number, step in enumerate(steps, 1):
        label = "CHECK" if _ONLY_LOOKS.search(step) else "FIX"
        first = f"{'' if label == before else label:<{LABEL}}"
        lines += wrapped(step, width, f"{first}{number}. ", " " * (LABEL + 3)).split("\n")
        before = label
    return lines
