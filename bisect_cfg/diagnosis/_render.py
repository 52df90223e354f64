"""An explanation, and its text: what happened, where in the log, what to do first, why we think so; the next command
last."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bisect_cfg.diagnosis._components import Absent, fits, fitting_settings, fitting_steps, fitting_text
from bisect_cfg.diagnosis._plain_text import WIDEST, wrapped
from bisect_cfg.diagnosis._types import Fingerprint, Json
from bisect_cfg.diagnosis.advice import Advice
from bisect_cfg.diagnosis.knowledge import Entry, EntryCase
from bisect_cfg.diagnosis.signature import Signature

LONGEST_EVIDENCE = 240
"""Characters of a log line that are shown."""

ALTERNATIVES = 4
"""Further matches that are listed. More means that the log is a collection, not a run."""

OTHERWISE = 3
"""Cures of the whole family that are shown where the log has decided for one of its causes."""

SOURCES = 4
"""Sources that are shown; `--json` has all."""

SCHEMA = 1
"""Version of what --json prints."""

DECIDED = 2
"""Causes whose cures are given, where the log speaks for several of those that an error may have."""

_NOT_WHICH = re.compile(
    r"^Error executing job|\b(?:encountered|got|met|had) an? ?error|\bencountered error|\berror (?:occurred|during)|"
    r"\btraining failed\b", re.IGNORECASE
)  # fmt: skip
"""Lines that tell of an error and not which."""

_FIELD = re.compile(r"\{(?P<name>[a-z]\w*)\|(?P<default>[^{}|]*)\}")

KNOWN, UNKNOWN, UNREADABLE, NO_FAILURE = 0, 1, 2, 3
"""Exit statuses."""


@dataclass(frozen=True)
class Line:
    """A line of the log, counted from 1, and the file it stands in where there are several."""

    number: int
    text: str
    file: str = ""


@dataclass(frozen=True)
class Match:
    """A known failure that the log shows, why, and how strongly."""

    entry: Entry
    score: int
    why: tuple[str, ...]
    evidence: tuple[Line, ...]
    unchecked: tuple[str, ...] = ()  # conditions that neither the log nor a fingerprint decides
    named: Mapping[str, str] = field(default_factory=dict)  # what the clues' named groups caught
    decided: tuple[EntryCase, ...] = ()  # of the causes that the error may have, those for which the log speaks
    open: tuple[EntryCase, ...] = ()  # ... and those of which it says nothing
    absent: Absent = field(default_factory=Absent)  # components that have no part in this failure
    doubt: str = ""  # why it does not lead (`_lead`): it is named after the error, as what that may have to do with

    @property
    def title(self) -> str:
        """What happened, in one line: as special as the log allows."""
        return self.filled(self.decided[0].title if self.decided else self.entry.title)

    @property
    def steps(self) -> tuple[str, ...]:
        """What to do, first thing first."""
        decided = [cure for case in self.decided[:DECIDED] for cure in case.cures]
        return fitting_steps(tuple(dict.fromkeys(map(self.filled, decided or self.entry.cures))), self.absent)

    @property
    def otherwise(self) -> tuple[str, ...]:
        """Cures of the whole family, where the log has decided for one of its causes."""
        if self.decided and self.decided[0].meaning:
            return ()  # it is another failure than the one that the entry as a whole is about
        shown = fitting_steps(tuple(map(self.filled, self.entry.cures)), self.absent)
        return tuple(cure for cure in shown if cure not in self.steps)[:OTHERWISE]

    @property
    def meaning(self) -> str:
        """What happened, as far as it fits what is at work in the log."""
        said = self.decided[0].meaning if self.decided else ""
        return self.filled(said) if said else fitting_text(self.filled(self.entry.meaning), self.absent)

    @property
    def undecided(self) -> tuple[EntryCase, ...]:
        """The causes of which the log says nothing, and that are of something that may have a part."""
        return tuple(case for case in self.open if fits(case.title, self.absent.unseen))

    def filled(self, text: str) -> str:
        """The text with the log's own words: `{port|29500}` is the group `port` of a clue, or 29500."""
        return _FIELD.sub(lambda field: self.named.get(field["name"]) or field["default"], text)


@dataclass(frozen=True)
class Explanation:
    """What a log means.

    Attributes:
        matches: the known failures it shows, likeliest first.
        signature: the failure's own signature, as trials are compared by it; None where the log has none.
        command: the next command to paste.
        lines: how many lines were read.
        error: the error that says most about what went wrong, None if nothing was printed as one (or all was survived).
        last: the last error of the log, if that is another one.
        seen: known failures that the log mentions without that they explain its error.
        rows: how many rows of metrics were read.
        environment: what the log says about where it ran.
        advice: what the traceback says by itself, where no specific failure is known.
        no_log: what the text is, if nothing failed and it is no log.
        stands: the line of starting, retrying or step 0 with which a log without a failure ends.
        said: what the error's own message says to do, if the first match does not say the same.
        raised: where the error was raised, and from which line of one's own, as far as frames tell.
    """

    matches: tuple[Match, ...]
    signature: Signature | None
    command: str
    lines: int = 0
    error: Line | None = None
    last: Line | None = None
    seen: tuple[Match, ...] = ()
    rows: int = 0
    environment: Fingerprint = field(default_factory=dict)
    advice: Advice | None = None
    no_log: str = ""
    stands: Line | None = None
    said: str = ""
    raised: str = ""

    @property
    def steps(self) -> tuple[str, ...]:
        """What to do, first thing first; () where nothing is known and the traceback says nothing.

        What the message itself says comes first where little is known, and last where a cause is known.
        """
        own = (f"do what the message says: “{self.said}”",) if self.said else ()
        of_traceback = self.advice.steps if self.advice else ()
        if not self.matches:
            return of_traceback
        lead = self.matches[0]
        if lead.doubt:
            return (*own, *of_traceback)
        if lead.decided:
            return (*lead.steps, *of_traceback, *own)  # a cause that the log tells says more than one frame
        return (*own, *of_traceback, *lead.steps) if lead.entry.general else (*of_traceback, *lead.steps, *own)

    @property
    def status(self) -> int:
        """The exit status: known, a failure that is not known, or no failure."""
        if self.stands is not None:
            return NO_FAILURE  # it may go on
        if self.matches and not self.matches[0].entry.aftermath and not self.matches[0].doubt:
            return KNOWN
        return UNKNOWN if self.matches or self.error is not None or self.signature is not None else NO_FAILURE

    def __str__(self) -> str:
        return render(self)


def render(explanation: Explanation) -> str:
    """The whole explanation as plain text."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    leads = bool(explanation.matches) and not explanation.matches[0].doubt
    parts = [_known(explanation, width)] if leads else [_unknown(explanation, width)]
    others = [*explanation.matches[1:], *explanation.seen][:ALTERNATIVES]
    if others:
        lines = ["It may also be:" if leads else "The log also mentions, which need not be the cause:"]
        for match in others:
            place = f" ({_at(match.evidence[0])})" if match.evidence else ""
            lines.append(wrapped(f"{match.title}{place} [{match.entry.id}]", width, "  - ", "    "))
        parts.append("\n".join(lines))
    parts.append(_next(explanation, width))
    return "\n\n".join(part for part in parts if part)


def as_json(explanation: Explanation, problems: Sequence[str] = ()) -> str:
    """The whole explanation for tools."""
    content = {
        "schema": SCHEMA,
        "status": explanation.status,
        "error": _line(explanation.error),
        "last_error": _line(explanation.last or explanation.error),
        "signature": explanation.signature.to_json() if explanation.signature else None,
        "said": explanation.said,
        "advice": dataclasses.asdict(explanation.advice) if explanation.advice else None,
        "raised": explanation.raised,
        "matches": [_match(match) for match in explanation.matches],
        "mentioned": [_match(match) for match in explanation.seen],
        "environment": dict(explanation.environment),
        "no_log": explanation.no_log,
        "stands": _line(explanation.stands),
        "lines": explanation.lines,
        "rows": explanation.rows,
        "unreadable": list(problems),
        "command": explanation.command,
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _line(line: Line | None) -> dict[str, Json] | None:
    return None if line is None else {"line": line.number, "text": line.text, "file": line.file}


def _match(match: Match) -> dict[str, Json]:
    entry = match.entry
    return {
        "id": entry.id,
        "title": match.title,
        "score": match.score,
        "doubt": match.doubt,
        "general": entry.general,
        "why": list(match.why),
        "evidence": [_line(line) for line in match.evidence],
        "unchecked": list(match.unchecked),
        "meaning": match.meaning,
        "trigger": match.filled(entry.trigger),
        "root_cause": match.filled(entry.root_cause),
        "cures": list(match.steps),
        "undecided": [
            {"title": match.filled(case.title), "cures": list(map(match.filled, case.cures))} for case in match.open
        ],
        "not_helping": list(map(match.filled, entry.not_helping)),
        "settings": list(entry.bisect),
        "sources": list(entry.sources),
    }


def _at(line: Line) -> str:
    return f"line {line.number}" + (f" of {line.file}" if line.file else "")


def _error(explanation: Explanation) -> list[str]:
    """The error's own words and its line, and the last one of the log where that is another."""
    lines, error = [], explanation.error
    known = explanation.matches[0].evidence if explanation.status == KNOWN else ()
    if error is not None and known and "Error: " not in error.text and _NOT_WHICH.search(error.text):
        error = known[0]
    if error is not None:
        lines.append(f"  {_at(error)}: {error.text[:LONGEST_EVIDENCE]}")
    if explanation.last is not None:
        lines.append(f"  and last, {_at(explanation.last)}: {explanation.last.text[:LONGEST_EVIDENCE]}")
    return lines


def _known(explanation: Explanation, width: int) -> str:
    match = explanation.matches[0]
    entry = match.entry
    lines = []
    if explanation.stands is not None:
        lines += [wrapped("No error was found. If nothing follows, the run stands still, like this:", width), ""]
    lines += [wrapped(match.title, width, "", "")]
    error = _error(explanation)
    if error:
        lines += ["", "The error in the log:", *error]
    if entry.general:
        this = "the log speaks for this one" if match.decided else "what follows is the most frequent"
        lines += ["", wrapped(f"Several things end like this; {this}.", width, "", "")]
    lines += ["", wrapped(match.meaning, width, "", "")]
    advice = explanation.advice
    lines += ["", wrapped(f"From the traceback: {advice.says}", width, "", "")] if advice else []
    lines += ["", "What to do, in this order:"]
    lines += _numbered(explanation.steps, width)
    if match.decided and match.otherwise:
        lines += ["If that is not it:"]
        lines += [wrapped(one, width, "  - ", "    ") for one in match.otherwise]
    elif match.undecided and not match.decided:
        lines += ["Several things end like this. What tells which:"]
        lines += [
            wrapped(f"{match.filled(case.title)}: {match.filled(case.cures[0])}", width, "  - ", "    ")
            for case in match.undecided
        ]
    vague = entry.general and not match.decided  # what holds for its most frequent cause may not for this one
    if entry.not_helping and not vague:
        lines += ["What does not help:"] + [
            wrapped(match.filled(one), width, "  - ", "    ") for one in entry.not_helping
        ]
    lines += ["", f"Why this [{entry.id}]:"]
    lines += [wrapped(reason, width, "  - ", "    ") for reason in match.why]
    shown = explanation.error and (explanation.error.file, explanation.error.number)
    lines += [
        f"  {line.number:>8} | {line.text[:LONGEST_EVIDENCE]}" + (f"  ({line.file})" if line.file else "")
        for line in match.evidence[:4]
        if (line.file, line.number) != shown or len(match.evidence) == 1
    ]
    if match.unchecked:
        lines += [wrapped(f"if {'; '.join(match.unchecked)} (the log does not say)", width, "  - ", "    ")]
    own = bool(match.decided) and bool(match.decided[0].meaning)
    if entry.trigger and not own:
        lines += [
            wrapped(fitting_text(match.filled(entry.trigger), match.absent), width, "Trigger:    ", "            ")
        ]
    if entry.root_cause and not own and not vague:
        lines += [
            wrapped(fitting_text(match.filled(entry.root_cause), match.absent), width, "Root cause: ", "            ")
        ]
    sources = ["measured with tiny models on a CPU" if one == "measured" else one for one in entry.sources]
    lines += ["", "Known from:"] + [f"  {source}" for source in sources[:SOURCES]]
    return "\n".join(lines)


def _unknown(explanation: Explanation, width: int) -> str:
    if explanation.error is None and explanation.signature is None:
        if not explanation.lines and not explanation.rows:
            return wrapped("There is nothing in it: not one line.", width, "", "")
        if explanation.no_log:
            text = f"This looks like {explanation.no_log}, not like the log of a run."
            text += " Give what the run printed, or its folder."
            return wrapped(text, width, "", "")
        if explanation.stands is not None:
            text = (
                "No error was found, but the output ends before training began. If nothing comes after that line any "
                "more, the run stands still; if the run died, the end of its output is missing (2>&1). The line:"
            )
            said = f"  {_at(explanation.stands)}: {explanation.stands.text[:LONGEST_EVIDENCE]}"
            step = (
                "If it stands still: look at each process with `py-spy dump --pid PID`; do all ranks run, do they use "
                "one address, one port and a network interface (NCCL_SOCKET_IFNAME) that reaches the others, and how "
                "long does the first step take (generation without vLLM, weights gathered anew for each token)?"
            )
            return wrapped(text, width, "", "") + f"\n\n{said}\n\n" + wrapped(step, width, "", "")
        of_rows = explanation.rows > explanation.lines  # a table of a notebook is few lines
        read = f"{explanation.rows} rows of metrics" if of_rows else f"{explanation.lines} lines"
        text = (
            f"No failure was found in these {read}: no error that ended the run, no traceback, no signal, no metrics "
            "that went wrong. If the run died all the same, the end of its output is missing; add 2>&1 to the command "
            "that writes the log."
        )
        return wrapped(text, width, "", "")
    shown = _error(explanation) or ([f"  {explanation.signature}"] if explanation.signature else [])
    advice, raised = explanation.advice, explanation.raised
    possible = _possible(explanation.matches[0], width) if explanation.matches else []
    if advice is None:
        text = "The log shows a failure that no known issue covers. A cause would be a guess. The failure:"
        lines = [wrapped(text, width, "", ""), "", *shown]
        lines += ["", wrapped(raised, width, "", "")] if raised else []
        return "\n".join([*lines, *possible])
    text = (
        "The log shows a failure that no known issue covers. What follows is read from the log's own lines, not from a "
        "known report."
    )
    lines = [wrapped(text, width, "", ""), "", "The error in the log:", *shown, "", wrapped(advice.says, width, "", "")]
    told = (
        bool(advice.place)
        and advice.place.partition(" in ")[0] in advice.says
        and advice.place in raised
        and "called from" not in raised
    )
    lines += [wrapped(raised, width, "", "")] if raised and not told else []
    if explanation.steps:
        lines += ["", "What to do, in this order:", *_numbered(explanation.steps, width)]
    return "\n".join([*lines, *possible])


def _possible(match: Match, width: int) -> list[str]:
    """What is known of failures like this one, and by what to tell whether it is that."""
    title = f"{match.title} [{match.entry.id}]. {match.meaning}"
    lines = ["", "It may have to do with this, which is not certain:", wrapped(title, width, "  ", "  ")]
    cases = [f"{match.filled(case.title)}: {match.filled(case.cures[0])}" for case in match.undecided]
    return [*lines, *(wrapped(one, width, "  - ", "    ") for one in (cases or match.steps[:OTHERWISE]))]


def _numbered(steps: Sequence[str], width: int) -> list[str]:
    return [wrapped(step, width, f"  {number}. ", "     ") for number, step in enumerate(steps, 1)]


def _next(explanation: Explanation, width: int) -> str:
    """The next command, where a bisection of settings would tell something."""
    if explanation.no_log and not explanation.matches and explanation.error is None:
        return ""
    if not explanation.matches and explanation.error is None and explanation.signature is None:
        return wrapped("To compare a configuration that fails with one that works:", width, "", "") + (
            f"\n\n  {explanation.command}"
        )
    known = explanation.matches[0] if explanation.matches and not explanation.matches[0].doubt else None
    settings = fitting_settings(known.entry.bisect, known.absent) if known else ()
    if known and not settings:
        return ""  # a missing package, a full disk, a dead network: no setting of the run is at fault
    if not known and explanation.advice is not None and explanation.advice.kind in NOT_OF_SETTINGS:
        return ""
    own = explanation.advice is None or explanation.advice.kind == "own-code"
    if not known and own and explanation.error and explanation.error.text.startswith(OF_THE_SCRIPT):
        return wrapped(
            "That is a slip in the script or its data, so its line number is the place to look.", width, "", ""
        )
    text = "To find out which of your settings do it, with short real runs"
    text += f" (suspects: {', '.join(settings)}):" if settings else ":"
    return wrapped(text, width, "", "") + f"\n\n  {explanation.command}"


OF_THE_SCRIPT = (
    "SyntaxError",
    "IndentationError",
    "NameError",
    "FileNotFoundError",
    "UnboundLocalError",
    "KeyboardInterrupt",
)
"""Exceptions that no setting of a run brings about."""


NOT_OF_SETTINGS = ("versions", "own-code", "column", "network", "weights", "message", "setting", "assertion", "file")
"""Advice that bisecting values of settings adds nothing to."""
