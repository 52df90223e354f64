"""From the traces of one run to what happened, and from that to an outcome.

`observe` says what happened, without an opinion: which signature the run died with, which symptoms it
showed, how far it came. `judge` holds that against the failure under study. The order in `observe` matters: a run
whose weights became NaN dies one step later of a sampling error or an assert in a CUDA kernel, and the weights
are what happened.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_cfg.common.failures import health
from bisect_cfg.common.failures import signature as signatures
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.configuration import Outcome
from bisect_cfg.probe.protocol import (
    ConfigInvalid,
    NonFiniteParameters,
    OriginRefused,
    Raised,
    TooShort,
    TrainEnd,
    Unwatched,
)
from bisect_cfg.trials.checkpoints import in_words
from bisect_cfg.trials.files import Row, Traces, innermost_frame
from bisect_cfg.trials.process import Ending
from bisect_cfg.trials.ranks import Rank, differences, only_noticed, ranks_of

# How much of each end of a log is searched for the specific line of a CUDA assertion. It repeats for every thread of
# every block, so that the end alone may hold nothing else of it; and what a script prints before may be long.
_LOG_BYTES = 4 << 20
_LINE_SHOWN = 300
"""Characters of an error's message that are shown."""


UNWATCHED = "unwatched"
"""Kind of a run that we ended because a process in it had loaded torch and no probe."""

SKIPPED, CANNOT_RUN = "skipped", "cannot-run"
"""Kinds of a command that says itself that it cannot be judged (exit status 125), or that could not be run."""

SAY_NOTHING = (UNWATCHED, SKIPPED, CANNOT_RUN)
"""Kinds of runs that say nothing about a failure."""


@dataclass(frozen=True)
class Observation:
    """What one run did.

    Attributes:
        died: signature of what ended it before its time, None if it reached its horizon or its own end.
        symptoms: what its metrics show, most severe first.
        steps: optimizer steps completed.
        message: what it died of in its own words, on one line; "" if it did not die.
        place: where it was when it died or hung, ``function (file.py:27)``; "" if that is not known.
        after: of a run whose weights became NaN, the exception that ended it then; of one that hangs, which other
            processes wait, and where.
        rank: of several processes, the one that this is about; None where there is one.
        counted: whether steps can be told at all; a command that prints no metrics has none.
        before: steps of the training before the run's own, which are counted from 1.
        non_finite_at: the first step after which its weights were not finite; a first run goes on for a while.
        trained: whether training began at all.
        invalid: why the configuration could not be built, if that is what ended it.
        remarks: oddities that are no failure.
        seconds: wall-clock time of the run.
        training_seconds: time from the start of training to the last step.
    """

    died: Signature | None
    symptoms: tuple[health.Symptom, ...]
    steps: int
    message: str
    trained: bool
    invalid: str | None
    remarks: tuple[health.Symptom, ...]
    seconds: float
    training_seconds: float
    place: str = ""
    after: str = ""
    rank: int | None = None
    counted: bool = True
    before: int = 0
    non_finite_at: int | None = None

    @property
    def failure(self) -> Signature | None:
        """The failure this run shows: what it died of, or else its most severe symptom."""
        if self.died is not None:
            return self.died
        return signature_of(self.symptoms[0]) if self.symptoms else None

    @property
    def step(self) -> int | None:
        """The step at which it failed, counted from 1, 0 before training began; for a healthy run how many it made.
        None where there are no steps."""
        if not self.counted:
            return None
        if self.died is not None:
            if not self.trained:
                return 0
            return self.non_finite_at or self.steps + 1
        return self.symptoms[0].step if self.symptoms else self.steps

    @property
    def step_of_training(self) -> int | None:
        """The same, counted from the beginning of the training where the run began in the middle of it."""
        return self.step + self.before if self.step and self.failure is not None else self.step

    @property
    def silent_kinds(self) -> frozenset[str]:
        """Kinds of its silent symptoms."""
        return frozenset(symptom.kind for symptom in self.symptoms if symptom.kind in health.SILENT_KINDS)

    @property
    def pace(self) -> float | None:
        """Seconds per optimizer step, None if there was none."""
        return self.training_seconds / self.steps if self.steps else None


def signature_of(symptom: health.Symptom) -> Signature:
    """The signature under which a symptom is compared."""
    return Signature(symptom.kind, symptom.name)


def observe(traces: Traces, folder: Path, ending: Ending) -> Observation:
    """Say what happened in a run that is over.

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
    invalid = traces.event(ConfigInvalid)
    symptoms = traces.symptoms(True)
    blamed = next((rank.traces for rank in several if rank.number == death.rank), traces)
    return Observation(
        died=death.signature,
        symptoms=tuple(symptoms),
        steps=len(blamed.metrics.rows),
        message=death.message,
        trained=begun is not None,
        invalid=f"{invalid.type}: {invalid.message}" if invalid and not begun else None,
        remarks=(*health.remarks(rows), *differences(several)),
        seconds=ending.seconds,
        training_seconds=(rows[-1].get("time", 0.0) - begun.time) if rows and begun else 0.0,
        place=death.place,
        after=death.after,
        rank=death.rank,
        before=blamed.before,
        non_finite_at=death.non_finite_at,
    )


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
        return _Death(Signature("invalid", "", not_from_there), not_from_there)
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


FailureTest = Callable[[Signature], bool]
"""Whether a signature counts as the failure under study."""


def same_as(studied: Signature) -> FailureTest:
    """The default: exactly the failure that the bad configuration shows."""
    return studied.same


def widened(kind: str) -> FailureTest:
    """The test for ``--failure``: "any", "signal", "non-finite", or a regular expression over the signature's text.

    Raises:
        ValueError: the regular expression does not compile.
    """
    if kind == "any":
        return lambda signature: True
    if kind == "signal":
        return lambda signature: signature.kind == "signal"
    if kind == "non-finite":
        return lambda signature: signature.kind == "non-finite" or signatures.is_sampling_error(signature)
    try:
        pattern = re.compile(kind, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"--failure {kind!r} is not a regular expression: {error}") from None
    return lambda signature: pattern.search(str(signature)) is not None


def judge(seen: Observation, is_failure: FailureTest, usual: frozenset[str]) -> tuple[Outcome, Signature | None]:
    """The outcome of a run under the failure under study.

    Args:
        seen: what happened.
        is_failure: whether a signature is the failure under study.
        usual: kinds of silent symptom that the good configuration shows as well (a script whose reward is constant
            is "dead" in every trial): they are the script's, not the configuration's.

    Returns:
        The outcome, and the signature it rests on (None for a pass).
    """
    if seen.died is not None and seen.died.kind in SAY_NOTHING:
        return Outcome.UNRESOLVED, seen.died
    if seen.died is not None:
        return (Outcome.FAIL if is_failure(seen.died) else Outcome.UNRESOLVED), seen.died
    shown = [signature_of(symptom) for symptom in seen.symptoms]
    for signature in shown:
        if is_failure(signature):
            return Outcome.FAIL, signature
    for signature in shown:
        # A collapsed policy no longer explores, so it says nothing about the failure under study. Finite weights
        # under an infinite gradient norm train on: a remark, no obstacle.
        if signature.kind == "collapse" and signature.kind not in usual:
            return Outcome.UNRESOLVED, signature
    return Outcome.PASS, None
