"""What was seen of a run, from the files that it left.

The order of the questions to the probe's traces matters: a run whose weights became NaN dies one step later of a
sampling error or an assert in a CUDA kernel, and the weights are what happened. A command has no probe: its exit status
and its output are all there is.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisect_cfg.common.configuration import Name, present
from bisect_cfg.common.failures import signature as signatures
from bisect_cfg.common.failures.health import Row, number, step_of
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.common.text import clean, normalise, plain
from bisect_cfg.probe import protocol
from bisect_cfg.probe.redact import scrub
from bisect_cfg.runner.checkpoints import in_words
from bisect_cfg.runner.ranks import Rank, only_noticed, ranks_of
from bisect_cfg.runner.traces import Traces, innermost_frame, tail_of_log
from bisect_cfg.runner.verdict import CANNOT_RUN, INVALID, REFUSED, SKIPPED, UNWATCHED, Metrics, Observation, trace_of
from bisect_cfg.runner.watch import Ending

LINE_SHOWN = 300
"""Characters of an error's message that are shown."""

SKIP = 125
NOT_RUN = (126, 127)
"""Exit statuses of commands with a meaning of their own: `git bisect run` takes 125 for "cannot be tested"; a shell
gives 126 for what cannot be executed and 127 for what is not there."""

LINES_READ = 40
"""Last lines of a command's output among which one is looked for that says what went wrong."""

_COMPLAINTS = (
    re.compile(r"\b(?:errors?|fatal|panic|exception)\b", re.IGNORECASE),
    re.compile(
        r"\b(?:fail(?:ed|ure|s)?|invalid|illegal|cannot|can't|could not|unable|denied|refused|unknown|unrecogni[sz]ed"
        r"|unexpected|not found|no such|not supported|unsupported|not allowed|incompatible|conflict(?:s|ing)?"
        r"|mutually exclusive|missing|required|must|abort(?:ed)?)\b",
        re.IGNORECASE,
    ),
)
"""How programs say that something went wrong, the plainest words first."""


def observe(traces: Traces, ending: Ending) -> Observation:
    """What was seen of a run with a probe; its traces were read to their end, and ``log.txt`` is in their folder."""
    rows, begun, log = traces.metrics.rows, traces.begun, traces.folder / "log.txt"
    several = ranks_of(traces)
    if several and traces.event(protocol.Unwatched) is None:
        death = _death_of_several(several, log, ending)
        begun = begun or next((row for rank in several if (row := rank.traces.begun)), None)
    else:
        death = _death(traces, log, ending)
    if begun is not None and (unheard := _not_handed_over([traces, *(rank.traces for rank in several)])):
        death = _says_nothing(f"the script trained without being handed {', '.join(unheard)} as this trial has it")
    end = traces.event(protocol.TrainEnd)
    blamed = next((rank.traces for rank in several if rank.number == death.rank), traces)
    seen = replace(
        death,
        at_horizon=death.died is None and end is not None and end.stopped == "horizon",
        steps=len(blamed.metrics.rows),
        seconds=ending.seconds,
        trained=begun is not None,
        before=blamed.before,
        training_seconds=((number(rows[-1], "time") or 0.0) - begun.time) if rows and begun else 0.0,
    )
    return replace(seen, trace=trace_of(seen, traces.as_metrics))


def _says_nothing(message: str) -> Observation:
    return Observation(Signature(INVALID, "", message), message=message)


def _not_handed_over(processes: Sequence[Traces]) -> list[str]:
    """The script's own settings that a run was to have and its script has not got."""
    try:
        orders = json.loads((processes[0].folder / protocol.ORDERS_FILE).read_text())["request"]["overrides"]
    except (OSError, ValueError, KeyError):
        return []
    told = [event for traces in processes for event in traces.all(protocol.ConfigResolved) if event.kind == "script"]
    handed = {Name("script", key).full for event in told for key in event.values}
    return [name for name in orders if Name.of(name).space == "script" and name not in handed]


def _death_of_several(ranks: Sequence[Rank], log: Path, ending: Ending) -> Observation:
    """The failure of the first process that failed, not of one that only noticed that another had gone."""
    well = any(rank.traces.begun is not None and rank.traces.completed is not None for rank in ranks)
    if ending.hang is not None and not well:  # one does not come, the others wait for it
        blamed = next((rank for rank in ranks if rank.code is None and not rank.waits_in), ranks[0])
        place = innermost_frame(blamed.traces.folder)
        return Observation(
            Signature("hang"), message=ending.hang, place=place, after=_waiting(ranks, blamed), rank=blamed.number
        )
    if any(rank.message for rank in ranks):  # all share the log: it shows what another process died of
        log = Path(os.devnull)
    ended = [rank for rank in ranks if rank.code is not None or ending.exit_code is not None]  # not by us
    ended.sort(key=lambda rank: only_noticed(rank.code, rank.message))
    deaths = [(rank, _death(rank.traces, log, replace(ending, exit_code=rank.code))) for rank in ended]
    found = [replace(death, rank=rank.number) for rank, death in deaths if death.died is not None]
    if found:
        first = found[0]
        # The next all-reduce gives the NaN of one rank to all others: nothing shows whose it was.
        alike = [one for one in found if (one.died, one.message) == (first.died, first.message)]
        return replace(first, rank=None) if first.non_finite_at and len(alike) == len(ranks) > 1 else first
    code = ending.exit_code
    if code and not any(rank.traces.event(protocol.TrainEnd) for rank in ranks):
        return Observation(signatures.from_exit(code, log), message=f"the launcher ended with status {code}")
    return Observation()


def _waiting(ranks: Sequence[Rank], blamed: Rank) -> str:
    """Which processes wait for the one that hangs, and where; "" if none does."""
    places = {rank.number: rank.waits_in for rank in ranks if rank is not blamed and rank.waits_in}
    if not places:
        return ""
    who = f"rank {next(iter(places))} waits" if len(places) == 1 else f"ranks {', '.join(map(str, places))} wait"
    return f"{who} for it in {' or '.join(dict.fromkeys(places.values()))}"


def _death(traces: Traces, log: Path, ending: Ending) -> Observation:
    """What ended one process."""
    refused = _refused(traces)
    if refused is not None:
        return refused
    begun, rows = traces.begun is not None, traces.metrics.rows
    well = begun and traces.completed is not None  # no failure, whatever comes after the last training
    raised, end = traces.event(protocol.Raised), traces.event(protocol.TrainEnd)
    if well or (raised is not None and end is not None and not raised.final):  # one that the script only showed
        raised = None
    event = traces.event(protocol.NonFiniteParameters)
    if event is not None:
        after = f"{raised.type}: {_line(raised.message)}" if raised else ""
        at = max(event.step - traces.before, 1)  # as the rows count
        found = Signature("non-finite", "parameters", where=_origin(rows, at))
        return Observation(found, message=f"NaN or infinite weights ({event.parameter})", after=after, non_finite_at=at)
    if ending.hang is not None and not well:
        return Observation(Signature("hang"), message=ending.hang, place=innermost_frame(traces.folder))
    if raised is not None:
        frames = [(path, function) for path, _, function in raised.frames]
        found = signatures.from_exception(raised.type, raised.message, frames, log)
        return Observation(found, message=f"{raised.type}: {_line(raised.message)}")
    end = protocol.TrainEnd(len(rows)) if well else end
    if end is not None:
        if end.steps == 0 and not rows:
            return Observation(Signature("no-steps"), message="training ended without a single optimizer step")
        return Observation()
    if ending.exit_code is None:  # ended by us because a symptom was certain
        return Observation()
    if ending.exit_code != 0:
        found = present(signatures.from_exit(ending.exit_code, log))
        signal = found.kind == "signal"
        return Observation(
            found, message=found.name if signal else str(found), place=innermost_frame(traces.folder) if signal else ""
        )
    if not begun:
        return Observation(Signature("no-training"), message="the script ended without training")
    ended = "the process ended in the middle of training, with exit status 0"
    return Observation(Signature("exit", "0"), message=ended)


def _refused(traces: Traces) -> Observation | None:
    """Why a run says nothing about any failure: it could not be watched, or could not begin as planned."""
    unwatched, refused = traces.event(protocol.Unwatched), traces.event(protocol.OriginRefused)
    short, other = traces.event(protocol.TooShort), traces.event(protocol.OtherSchedule)
    invalid = traces.event(protocol.ConfigInvalid) if traces.begun is None else None
    if unwatched is not None:
        message = f"{unwatched.command} loaded torch where nothing could watch it, and was ended"
        return Observation(Signature(UNWATCHED), message=message)
    if refused is not None:
        message = f"the checkpoint's {refused.what} cannot be loaded: {_line(in_words(refused))}"
        return Observation(Signature(REFUSED, refused.what), message=message)
    if short is not None:
        settings = ", ".join(f"{name}={value}" for name, value in short.settings.items())
        message = f"the training is over at step {short.step} of at least {short.wanted} ({settings})"
    elif other is not None:
        message = (
            f"the schedule begins with the learning rate {other.rate:g} at step {other.place}, and by the "
            f"configuration with {other.own_rate:g} at step {other.own_place}: the script has loaded another's state"
        )
    elif invalid is not None:
        message = f"{invalid.type}: {invalid.message}"
    else:
        return None
    return _says_nothing(message)


def _origin(rows: Sequence[Row], step: int) -> str:
    """Where the weights became NaN, as far as metrics tell: in the backward pass, or in an optimizer step with a finite
    gradient. `Signature.same` leaves it out: the same settings may break a larger model in either."""
    norm = next((number(row, "grad_norm") for row in reversed(rows) if row["step"] == step), None)
    if norm is None:
        return ""
    return "optimizer step" if math.isfinite(norm) else "gradient"


def _line(text: str) -> str:
    return " ".join(text.split())[:LINE_SHOWN]


# ---------------------------------------------------------------------------------------------------- any command


def observe_command(traces: Traces, ending: Ending) -> Observation:
    """What was seen of a run of any command, by what it printed into ``log.txt``."""
    rows = traces.metrics.rows
    died, message = _death_of_command(traces.folder / "log.txt", ending)
    steps = step_of(rows[-1]) if rows else 0
    seen = Observation(died, steps, ending.seconds, scrub(message), trained=bool(rows), counted=bool(rows))
    return replace(seen, trace=trace_of(seen, Metrics(rows)))


def _death_of_command(log: Path, ending: Ending) -> tuple[Signature | None, str]:
    """The signature of what ended a run, and in words; None for one that ended well, or that we ended."""
    code = ending.exit_code
    if ending.hang is not None:
        return Signature("hang"), ending.hang
    if code is None or code == 0:
        return None, ""
    if code == SKIP:
        return Signature(SKIPPED), f"exit status {SKIP}: it cannot be judged"
    lines = tail_of_log(log, LINES_READ)
    line = _complaint_in(lines)
    if code in NOT_RUN:
        return Signature(CANNOT_RUN, str(code)), line or f"exit status {code}"
    found = present(signatures.from_exit(code, log))
    if found.kind == "exit":
        # Programs have few exit statuses and many failures: their messages tell these apart.
        return replace(found, message=normalise(line)), line
    if found.kind == "signal":
        return found, found.name
    if found.kind == "exception" and found.message:
        found = replace(found, where="")  # ranks print tracebacks into each other: which frame is last is chance
    own = (clean(line) for line in reversed(lines) if found.name and found.name in line)
    return found, next(own, str(found))


def _complaint_in(lines: Sequence[str]) -> str:
    """The last line that says that something went wrong, "" if none does. Not simply the last one: programs buffer
    their ordinary output, so that it comes after their complaints."""
    complaints = (line for words in _COMPLAINTS for line in reversed(lines) if words.search(line))
    return plain(next(complaints, "")).strip()
