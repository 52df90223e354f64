"""What a log means: the known failure that explains its cause, what is read from the error itself, what to do next."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from bisect_cfg.common.configuration import Configuration
from bisect_cfg.common.failures import signature as signatures
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.explain.advice import Advice, advise, own_script
from bisect_cfg.explain.hang import only_ended
from bisect_cfg.explain.knowledge import Clue, Entry, load
from bisect_cfg.explain.match import Line, Match, examine, matches
from bisect_cfg.explain.reader import Reading, Source, read_source
from bisect_cfg.probe.redact import mask_arguments, scrub

KNOWN, UNKNOWN, UNREADABLE, NO_FAILURE = 0, 1, 2, 3
"""Exit statuses."""

OTHERS = 4
"""Further known failures that are listed. More means that the log is a collection, not a run."""

_STANDING = (
    "py-spy dump --pid PID for each process shows where it waits",
    "do all ranks run, with one address, one port and an interface that reaches the others (NCCL_SOCKET_IFNAME)?",
)
_OF_NCCL = re.compile(r"^(?!.*GLOO_).*NCCL_")
"""A step that asks or changes something of NCCL alone."""

_TYPED = re.compile(
    r"^(?:[+$>%#] ?)?(?:\S+=\S+ ){0,9}(?:accelerate launch|torchrun|deepspeed|python[\d.]*(?: -u)?|trl \w+)"
    r"(?: -\S+(?: [\w./:-]+)?){0,30} "
    r"(?P<script>(?!\S*(?:site|dist)-packages)[\w./~-]{1,200}\.py)\b(?P<arguments>[^\n|&;<>]{0,400})",
    re.MULTILINE,
)
"""A command line with a script, as somebody typed it."""


@dataclass(frozen=True)
class Explanation:
    """What a log means.

    Attributes:
        lead: the known failure that explains its cause; None if nobody knows it.
        others: further known failures that may explain it.
        mentioned: known failures that the log mentions without that they explain its error.
        error: the line that says most about the cause, None if nothing was printed as an error (or all was survived).
        signature: the failure's own signature, as trials are compared by it.
        advice: what the error says by itself, where no specific failure is known.
        command: the next command to paste, "" where nothing failed.
        lines, rows: how many lines and rows of metrics were read.
        environment: what is known of where it ran.
        not_a_log: what the text is, if nothing failed and it is no log.
        stands: the line of starting or waiting with which a log without an error ends.
    """

    lead: Match | None
    others: tuple[Match, ...]
    mentioned: tuple[Match, ...]
    error: Line | None
    signature: Signature | None
    advice: Advice | None
    command: str = ""
    lines: int = 0
    rows: int = 0
    environment: Fingerprint = field(default_factory=Fingerprint)
    not_a_log: str = ""
    stands: Line | None = None

    @property
    def matches(self) -> tuple[Match, ...]:
        """The known failures that may explain the cause, likeliest first."""
        return ((self.lead,) if self.lead else ()) + self.others

    @property
    def steps(self) -> tuple[str, ...]:
        """What to do, first thing first. What the error says itself comes before what is only known in general."""
        own = self.advice.steps if self.advice else ()
        if self.lead is None:
            return own or (_STANDING if self.stands else ())
        general = self.lead.entry.general and self.lead.case is None
        steps = dict.fromkeys((*own, *self.lead.cures) if general else (*self.lead.cures, *own))
        gloo = self.environment.get("backend") == "gloo"
        return tuple(step for step in steps if not (gloo and _OF_NCCL.search(step)))

    @property
    def status(self) -> int:
        """The exit status: known, a failure that is not known, or no failure."""
        if self.stands is not None:
            return NO_FAILURE  # it may go on
        if self.lead is not None:
            return KNOWN
        return UNKNOWN if self.error is not None or self.signature is not None else NO_FAILURE


def explain(stream: BinaryIO, **known: object) -> Explanation:
    """Explains a log, opened in binary mode; `known` is what `explain_readings` takes."""
    return explain_readings([read_source(Source("", stream))], **known)  # type: ignore[arg-type]  # it checks them


def explain_text(text: str, **known: object) -> Explanation:
    """`explain` for a text in memory: the last lines of a trial, an exception's message."""
    return explain(io.BytesIO(text.encode("utf-8", "replace")), **known)


def explain_readings(
    readings: Sequence[Reading],
    *,
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
    failure: Signature | None = None,
    entries: Sequence[Entry] | None = None,
) -> Explanation:
    """Explains what the files of one run say together.

    Args:
        readings: those files.
        environment: A fingerprint of where it ran, if known; rules out what cannot apply there.
        configuration: The settings it ran with, if known.
        failure: The failure, where somebody saw more than the log has: a process that a signal kills prints nothing.
        entries: The known failures; those of this package if None.
    """
    entries = load() if entries is None else entries
    run = examine(readings, entries, environment, configuration, failure)
    found = matches(run, entries)
    leading = [match for match in found if match.leads]
    lead = leading[0] if leading else None
    cause = run.cause
    stands = run.found.get(Clue("metric", "standing")) if cause is None else None
    if lead is None and cause is not None and only_ended(cause.text):
        cause = None
    specific = lead is not None and (not lead.entry.general or lead.case is not None)
    error = Line(cause.line, scrub(" ".join(cause.message.split()) or cause.text), cause.file) if cause else None
    failed = lead is not None or error is not None
    return Explanation(
        lead,
        tuple(leading[1 : OTHERS + 1]),
        tuple([match for match in found if not match.leads][:OTHERS]),
        error,
        failure or _signature(readings, failed),
        None if specific else _scrubbed(advise(cause)),
        _next_command(readings, own_script(cause)) if failed else "",
        sum(reading.count for reading in readings),
        sum(reading.rows.count for reading in readings),
        run.environment,
        next((one.not_a_log for one in readings if one.not_a_log), ""),
        stands[0] if stands else None,
    )


def _signature(readings: Sequence[Reading], failed: bool) -> Signature | None:
    """The failure as trials compare it; None where nothing failed."""
    if not failed:
        return None
    found = (signatures.from_lines(one.lines) for one in readings if not one.not_a_log)
    shown = next((one for one in found if one is not None), None)
    return shown and replace(shown, message=scrub(shown.message))


def _scrubbed(advice: Advice | None) -> Advice | None:
    return advice and Advice(advice.kind, scrub(advice.says), tuple(map(scrub, advice.steps)))


def _next_command(readings: Sequence[Reading], own: str) -> str:
    """The next command to paste, with the script's own name and flags where the log gives them away."""
    for reading in readings:
        typed = _TYPED.search(reading.ends)
        if typed:
            try:
                arguments = shlex.join(mask_arguments(shlex.split(typed["arguments"])))
            except ValueError:
                arguments = ""
            # A secret that masking by words has missed would be pasted on: then no argument is repeated.
            safe = scrub(typed["arguments"]) == typed["arguments"]
            after = f" -- {arguments}" if arguments and safe else ""
            return str(scrub(f"bisect-cfg bisect {typed['script']}{after}"))
    return str(scrub(f"bisect-cfg bisect {own or 'train.py'}"))
