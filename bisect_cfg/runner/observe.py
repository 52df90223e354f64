"""From the traces of a run that is over to what was seen of it.

The order in which the traces are asked matters: a run whose weights became NaN dies one step later of a sampling error
or an assert in a CUDA kernel, and the weights are what happened.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_cfg.common.failures import signature as signatures
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import (
    ConfigInvalid,
    NonFiniteParameters,
    OriginRefused,
    Raised,
    TooShort,
    TrainEnd,
    Unwatched,
)
from bisect_cfg.runner.checkpoints import in_words
from bisect_cfg.runner.ranks import Rank, differences, only_noticed, ranks_of
from bisect_cfg.runner.traces import Row, Traces, innermost_frame
from bisect_cfg.runner.verdict import INVALID, UNWATCHED, Ended, Observation, trace_of
from bisect_cfg.runner.watch import Ending

_LOG_BYTES = 4 << 20
"""So much of each end of a log is searched for the specific line of a CUDA assertion. It repeats for every thread of
every block, so that the end alone may hold nothing else of it; and what a script prints before may be long."""

_LINE_SHOWN = 300
"""Characters of an error's message that are shown."""


def observe(traces: Traces, folder: Path, ending: Ending) -> Observation:
    """What was seen of a run that is over.

    Args:
        traces: its events and metrics, read to the end.
        folder: its folder, which has ``log.txt``.
        ending: how it came to its end.
    """
    rows = traces.metrics.rows
    begun = traces.begun
    several = ranks_of(traces)
    if several and traces.event(Unwatched) is None:
        death = _death_of_several(several, folder / "log.txt", ending)
        begun = begun or next((row for rank in several if (row := rank.traces.begun)), None)
    else:
        death = _death(traces, folder, folder / "log.txt", ending)
    blamed = next((rank.traces for rank in several if rank.number == death.rank), traces)
    seen = Observation(
        died=death.signature,
        ended=_ended(death, traces),
        steps=len(blamed.metrics.rows),
        seconds=ending.seconds,
        message=death.message,
        place=death.place,
        after=death.after,
        rank=death.rank,
        trained=begun is not None,
        before=blamed.before,
        non_finite_at=death.non_finite_at,
        training_seconds=(rows[-1].get("time", 0.0) - begun.time) if rows and begun else 0.0,
        remarks=tuple(differences(several)),
    )
    return replace(seen, trace=trace_of(seen, traces.as_metrics))


def _ended(death: _Death, traces: Traces) -> Ended:
    end = traces.event(TrainEnd)
    if death.signature is not None:
        return Ended.FAILURE
    if end is None:
        return Ended.STOPPED
    return Ended.HORIZON if end.stopped == "horizon" else Ended.END


def _not_from_there(traces: Traces) -> str:
    """Why a run could not go on from a checkpoint as it was to, "" if it could: this says nothing of the failure."""
    refused, short = traces.event(OriginRefused), traces.event(TooShort)
    if refused is not None:
        return f"the checkpoint's {refused.what} cannot be loaded: {_line(in_words(refused))}"
    if short is not None:
        settings = ", ".join(f"{name}={value}" for name, value in short.settings.items())
        return f"the training is over at step {short.step} of at least {short.wanted} ({settings})"
    return ""


@dataclass(frozen=True)
class _Death:
    """What ended a run before its time; see `Observation`."""

    signature: Signature | None = None
    message: str = ""
    place: str = ""
    after: str = ""
    rank: int | None = None
    non_finite_at: int | None = None


def _death_of_several(ranks: Sequence[Rank], log: Path, ending: Ending) -> _Death:
    """The failure of the process that failed first: not of one that only noticed."""
    if ending.hang is not None:  # one does not come, the others wait for it
        blamed = next((rank for rank in ranks if rank.code is None and not rank.waits_in), ranks[0])
        place = innermost_frame(blamed.folder)
        return _Death(Signature("hang"), ending.hang, place, _waiting(ranks, blamed), blamed.number)
    if any(rank.message for rank in ranks):  # the log is of all of them: what another one died of stands in it
        log = Path(os.devnull)
    found: list[tuple[bool, _Death]] = []
    for rank in ranks:
        if rank.code is None and ending.exit_code is None:
            continue  # we ended it
        death = _death(rank.traces, rank.folder, log, replace(ending, exit_code=rank.code))
        if death.signature is not None:
            found.append((only_noticed(rank.code, rank.message), replace(death, rank=rank.number)))
    if found:
        first = min(found, key=lambda one: one[0])[1]
        # What one rank makes NaN, the others are given by the next all-reduce: whose it was does not show in it.
        alike = [death for _, death in found if death.signature == first.signature and death.message == first.message]
        return replace(first, rank=None) if first.non_finite_at and len(alike) == len(ranks) > 1 else first
    code = ending.exit_code
    if code and not any(rank.traces.event(TrainEnd) for rank in ranks):
        return _Death(signatures.from_exit(code, log), f"the launcher ended with status {code}")
    return _Death()


def _waiting(ranks: Sequence[Rank], blamed: Rank) -> str:
    """Who waits for the process that hangs, and where; "" if nobody does."""
    places = {rank.number: rank.waits_in for rank in ranks if rank is not blamed and rank.waits_in}
    if not places:
        return ""
    numbers = ", ".join(map(str, places))
    one = len(places) == 1
    functions = " or ".join(dict.fromkeys(places.values()))
    return f"{'rank' if one else 'ranks'} {numbers} {'waits' if one else 'wait'} for it in {functions}"


def _death(traces: Traces, folder: Path, log: Path, ending: Ending) -> _Death:
    unwatched = traces.event(Unwatched)
    if unwatched is not None:
        return _Death(
            Signature(UNWATCHED), f"{unwatched.command} loaded torch where nothing could watch it, and was ended"
        )
    not_from_there = _not_from_there(traces)
    if not_from_there:
        return _Death(Signature(INVALID, "", not_from_there), not_from_there)
    invalid = traces.event(ConfigInvalid)
    if invalid is not None and traces.begun is None:
        text = f"{invalid.type}: {invalid.message}"
        return _Death(Signature(INVALID, "", text), text)
    weights = traces.event(NonFiniteParameters)
    begun, ended = traces.begun is not None, traces.event(TrainEnd)
    well = begun and traces.completed is not None
    if well:  # and what comes after the last training is no failure
        ended = TrainEnd(len(traces.metrics.rows))
    exception = None if well else traces.event(Raised)
    if weights is not None:
        after = f"{exception.type}: {_line(exception.message)}" if exception else ""
        at = max(weights.step - traces.before, 1)  # as the rows count
        origin = _origin(traces.metrics.rows, at)
        text = f"NaN or infinite weights ({weights.parameter})"
        return _Death(Signature("non-finite", "parameters", where=origin), text, after=after, non_finite_at=at)
    place = innermost_frame(folder)
    if ending.hang is not None:
        return _Death(Signature("hang"), ending.hang, place)
    if exception is not None:
        frames = [(path, function) for path, _, function in exception.frames]
        found = signatures.from_exception(exception.type, exception.message, frames, _read(log))
        return _Death(found, f"{exception.type}: {_line(exception.message)}")
    if ended is not None:
        if ended.steps == 0 and not traces.metrics.rows:
            return _Death(Signature("no-steps"), "training ended without a single optimizer step")
        return _Death()
    if ending.exit_code is None:  # ended by us because a symptom was certain
        return _Death()
    if ending.exit_code != 0:
        found = signatures.from_exit(ending.exit_code, log)
        if found is not None and found.kind == "signal":
            return _Death(found, found.name, place)
        return _Death(found, str(found))
    if not begun:
        return _Death(Signature("no-training"), "the script ended without training")
    return _Death(Signature("exit", "0"), "the process ended in the middle of training, with exit status 0")


def _origin(rows: Sequence[Row], step: int) -> str:
    """Where weights lost their numbers, as far as metrics tell: in the backward pass, or in an optimizer step that was
    given a finite gradient. It is said, and no part of what makes two failures the same one: the same settings may
    break a larger model in either."""
    norm = next((row.get("grad_norm") for row in reversed(rows) if row["step"] == step), None)
    if norm is None:
        return ""
    return "optimizer step" if math.isfinite(norm) else "gradient"


def _line(text: str) -> str:
    return " ".join(text.split())[:_LINE_SHOWN]


def _read(log: Path) -> str:
    """The head and the tail of a log; all of it if it is short."""
    try:
        with log.open("rb") as stream:
            head = stream.read(_LOG_BYTES)
            stream.seek(max(len(head), stream.seek(0, 2) - _LOG_BYTES))
            between = b"\n" if stream.tell() > len(head) else b""
            return (head + between + stream.read(_LOG_BYTES)).decode("utf-8", "replace")
    except OSError:
        return ""
