"""What was seen of a run, and what it means: the one judge.

An `Observation` says what happened, without an opinion, and is stored once. `judge` holds it and the run's metric rows
against a `Standard`: the failure under study, and what the good run shows. The standard is known later than the first
runs, so a `Verdict` is never stored; whoever needs one judges again. Everything here is plain data and pure.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bisect_cfg.common.failures import drift, health
from bisect_cfg.common.failures.health import Row, Symptom
from bisect_cfg.common.failures.signature import Signature, is_sampling_error
from bisect_cfg.configuration import Outcome

UNWATCHED = "unwatched"
"""Kind of a run that we ended because a process in it had loaded torch and no probe."""

INVALID = "invalid"
"""Kind of a run that could not begin as it was to: its configuration, its checkpoint or its packages were refused."""

SKIPPED, CANNOT_RUN = "skipped", "cannot-run"
"""Kinds of a command that says itself that it cannot be judged (exit status 125), or that could not be run."""

SAY_NOTHING = (UNWATCHED, INVALID, SKIPPED, CANNOT_RUN)
"""Kinds of runs that say nothing about any failure."""

BY_CHANCE = ("hang", "out-of-memory")
"""Kinds of failures whose step is a matter of time or of what else runs: equal metrics say nothing of them."""

HINDERS = "collapse"
"""The one silent kind with which a run cannot show another failure: a collapsed policy no longer explores. Finite
weights under an infinite gradient norm train on."""


class Ended(enum.StrEnum):
    """What ended a run."""

    FAILURE = "failure"
    HORIZON = "horizon"
    END = "end"
    """The script's training is over."""
    STOPPED = "stopped"
    """We had seen enough."""


@dataclass(frozen=True)
class Observation:
    """What one run did.

    Attributes:
        died: signature of what ended it before its time, None if it reached its horizon or its own end.
        ended: what ended it.
        steps: optimizer steps completed.
        seconds: wall-clock time of the run.
        message: what it died of in its own words, on one line; "" if it did not die.
        place: where it was when it died or hung, ``function (file.py:27)``; "" if that is not known.
        after: of a run whose weights became NaN, the exception that ended it then; of one that hangs, which other
            processes wait, and where.
        rank: of several processes, the one that this is about; None where there is one.
        trained: whether training began at all.
        counted: whether steps can be told at all; a command that prints no metrics has none.
        before: steps of the training before the run's own, which are counted from 1.
        non_finite_at: the first step after which its weights were not finite; a first run goes on for a while.
        training_seconds: time from the start of training to the last step.
        remarks: oddities beside those of its metric rows.
        trace: a digest of its watched metrics up to the step at which it failed, see `trace_of`.
    """

    died: Signature | None
    ended: Ended
    steps: int
    seconds: float
    message: str = ""
    place: str = ""
    after: str = ""
    rank: int | None = None
    trained: bool = True
    counted: bool = True
    before: int = 0
    non_finite_at: int | None = None
    training_seconds: float = 0.0
    remarks: tuple[Symptom, ...] = ()
    trace: str = ""

    @property
    def invalid(self) -> bool:
        """Whether its configuration could not be built, so that it never came to train."""
        return self.died is not None and self.died.kind == INVALID and not self.trained

    @property
    def pace(self) -> float | None:
        """Seconds per optimizer step, None if there was none."""
        return self.training_seconds / self.steps if self.steps else None


@dataclass(frozen=True)
class Metrics:
    """The metric rows of a run, ascending by step.

    Attributes:
        rows: its own.
        earlier: those of the same training before the checkpoint from which it went on.
    """

    rows: Sequence[Row]
    earlier: Sequence[Row] = ()


@dataclass(frozen=True)
class Failure:
    """The failure under study.

    Attributes:
        signature: as the bad configuration showed it.
        silent: whether it is one that does not end a run.
        asked: what `--failure` says counts as it as well: "any", "signal", "non-finite", or a regular expression over
            the signature's text; "" for exactly this failure.
    """

    signature: Signature
    silent: bool = False
    asked: str = ""

    def includes(self, shown: Signature) -> bool:
        """Whether a signature counts as this failure.

        Raises:
            ValueError: `asked` is a regular expression that does not compile.
        """
        if not self.asked:
            return self.signature.same(shown)
        if self.asked == "non-finite":
            return shown.kind == "non-finite" or is_sampling_error(shown)
        if self.asked in ("any", "signal"):
            return self.asked in ("any", shown.kind)
        return _pattern(self.asked).search(str(shown)) is not None

    def is_among(self, symptoms: Iterable[Symptom]) -> bool:
        """Whether this is a silent failure, and one of the symptoms is it."""
        return self.silent and any(self.includes(signature_of(one)) for one in symptoms)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"--failure {text!r} is not a regular expression: {error}") from None


@dataclass(frozen=True)
class Standard:
    """What runs are held against.

    Attributes:
        failure: under study; None before it was seen.
        usual: kinds of symptom that the good configuration shows as well (a script whose reward is constant is "dead"
            in every trial): they are the script's, not the configuration's.
        good: the good run's metric rows, which healthy is measured against; None where nobody asks for health.
        scaler: whether the runs have a gradient scaler (fp16), which may skip a few steps.
    """

    failure: Failure | None = None
    usual: frozenset[str] = frozenset()
    good: Sequence[Row] | None = None
    scaler: bool = False

    def with_usual(self, shown: Verdict) -> Standard:
        """The standard once it is known what the good run shows."""
        return replace(self, usual=frozenset(one.kind for one in shown.symptoms))


@dataclass(frozen=True)
class Verdict:
    """What a run means under a standard.

    Attributes:
        seen: what happened.
        outcome: PASS, FAIL (the failure under study; any, before that is known) or UNRESOLVED.
        signature: of what it died of or showed, None for a pass.
        symptoms: what its metric rows show, most severe first.
        remarks: oddities that are no failure.
        healthy: whether nothing at all is wrong with it; None where the standard has no good run.
        wrong: what is wrong with its metrics where it came to its end and is not healthy.
    """

    seen: Observation
    outcome: Outcome
    signature: Signature | None
    symptoms: tuple[Symptom, ...]
    remarks: tuple[Symptom, ...]
    healthy: bool | None = None
    wrong: drift.Deviation | None = None

    @property
    def step(self) -> int | None:
        """The step at which it failed, counted from 1, 0 before training began; for a pass how many it made. None where
        there are no steps."""
        seen = self.seen
        if not seen.counted:
            return None
        if seen.died is not None:
            return (seen.non_finite_at or seen.steps + 1) if seen.trained else 0
        shown = [one for one in self.symptoms if signature_of(one) == self.signature]
        return shown[0].step if shown else seen.steps

    @property
    def step_of_training(self) -> int | None:
        """The same, counted from the beginning of the training where the run began in the middle of it."""
        return self.step + self.seen.before if self.step and self.signature is not None else self.step

    @property
    def message(self) -> str:
        """What it shows in one line, in its own words where it has any; "" for a pass."""
        if self.signature is None or self.seen.message:
            return self.seen.message
        return next((one.text for one in self.symptoms if signature_of(one) == self.signature), str(self.signature))


def judge(seen: Observation, metrics: Metrics, standard: Standard = Standard()) -> Verdict:
    """What a run means. Under the empty standard every failure is the failure under study.

    What a run died of counts before what its metric rows show. Another failure than the one under study is UNRESOLVED,
    and so is a symptom that keeps it from showing (`HINDERS`); other symptoms are none of its business.
    """
    symptoms = tuple(health.symptoms(metrics.rows, ended=True, earlier=metrics.earlier))
    remarks = (*health.remarks(metrics.rows), *seen.remarks)
    if seen.died is not None:
        outcome = Outcome.FAIL if _is_failure(seen.died, standard) else Outcome.UNRESOLVED
        return Verdict(seen, outcome, seen.died, symptoms, remarks, None if standard.good is None else False)
    shown = [signature_of(one) for one in symptoms]
    failed = next((one for one in shown if _is_failure(one, standard)), None)
    hindered = next((one for one in shown if one.kind == HINDERS and one.kind not in standard.usual), None)
    outcome = Outcome.FAIL if failed else Outcome.UNRESOLVED if hindered else Outcome.PASS
    verdict = Verdict(seen, outcome, failed or hindered, symptoms, remarks)
    if standard.good is None:
        return verdict
    found = []
    if seen.counted:
        found = drift.deviations(metrics.rows, standard.good, usual=standard.usual, scaler=standard.scaler)
    return replace(verdict, healthy=not found, wrong=found[0] if found else None)


def _is_failure(shown: Signature, standard: Standard) -> bool:
    if standard.failure is None:
        return True
    return shown.kind not in SAY_NOTHING and standard.failure.includes(shown)


def signature_of(symptom: Symptom) -> Signature:
    """The signature under which a symptom is compared."""
    return Signature(symptom.kind, symptom.name)


def trace_of(seen: Observation, metrics: Metrics) -> str:
    """A digest of the watched metrics, bit for bit, up to the step at which a run failed: two failing runs of one
    configuration that have the same one are one computation done twice. "" where nothing follows from it: no rows, no
    failure, or one of `BY_CHANCE` or sent from outside."""
    verdict = judge(seen, metrics)
    if verdict.signature is None or not metrics.rows or verdict.signature.kind in (*BY_CHANCE, *SAY_NOTHING):
        return ""
    if verdict.signature.kind == "signal" and verdict.signature.message:  # killed from outside
        return ""
    bits = hashlib.blake2b(str(verdict.signature).encode("utf-8", "surrogatepass"), digest_size=16)
    for row in metrics.rows:
        if seen.died is not None or row["step"] <= verdict.step:
            for name in health.WATCHED:
                value = health.number(row, name)
                bits.update(b"-" if value is None else struct.pack("!d", value))
    return bits.hexdigest()
