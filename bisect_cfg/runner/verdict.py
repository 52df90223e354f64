"""What was seen of a run, and what it means: the one judge.

An `Observation` says what happened, without an opinion, and is stored once. `judge` compares it and the run's metric
rows with a `Standard`: the failure under study, and what the good run shows. The standard is known later than the first
runs, so a `Verdict` is never stored; callers that need one judge again. Everything here is plain data and pure.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bisect_cfg.common.configuration import Outcome, present
from bisect_cfg.common.failures import drift, health
from bisect_cfg.common.failures.health import Row, Symptom
from bisect_cfg.common.failures.signature import Signature, is_sampling_error

UNWATCHED = "unwatched"
"""Kind of a run that we ended because one of its processes had loaded torch without a probe."""

INVALID = "invalid"
"""Kind of a run that could not begin as planned: its configuration or its packages were refused."""

REFUSED = "refused"
"""Kind of a run that could not load the checkpoint that it was to go on from: a failure only where it is the one under
study, for otherwise it is owed to where the trial begins."""

SKIPPED, CANNOT_RUN = "skipped", "cannot-run"
"""Kinds of a command that asks not to be judged (exit status 125), and of one that could not be run."""

SAY_NOTHING = (UNWATCHED, INVALID, SKIPPED, CANNOT_RUN)
"""Kinds of runs that say nothing about any failure."""

BY_CHANCE = ("hang", "out-of-memory")
"""Kinds of failures whose step is a matter of time or of what else runs: equal metrics say nothing of them."""

HINDERS = "collapse"
"""The one silent kind with which a run cannot show another failure: a collapsed policy no longer explores. Finite
weights under an infinite gradient norm train on."""


@dataclass(frozen=True)
class Observation:
    """What one run did. Its steps are counted from where it began."""

    died: Signature | None = None  # what ended it before its time; None if it reached its horizon or its own end
    steps: int = 0  # completed
    seconds: float = 0.0
    message: str = ""  # what it died of in its own words, on one line
    place: str = ""  # where it died or hung, ``function (file.py:27)``; "" if unknown
    after: str = ""  # the exception that NaN weights led to; of a hang, which other processes wait, and where
    rank: int | None = None  # of several processes, the one that this is about
    at_horizon: bool = False  # whether it came to the end of what it was to make
    trained: bool = True
    counted: bool = True  # a command that prints no metrics has no steps
    before: int = 0  # steps of the training before the run's first
    non_finite_at: int | None = None  # the step that broke the weights; a first run goes on for a while
    training_seconds: float = 0.0  # from the start of training to the last step
    trace: str = ""  # see `trace_of`

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
    """The metric rows of a run, ascending by step; `earlier`: those before the checkpoint from which it went on."""

    rows: Sequence[Row]
    earlier: Sequence[Row] = ()


@dataclass(frozen=True)
class Failure:
    """The failure under study."""

    signature: Signature  # as the bad configuration showed it
    silent: bool = False  # whether it does not end a run
    asked: str = ""
    """What `--failure` says counts as it as well: "any", "signal", "non-finite", or a regular expression over the
    signature's text; "" for exactly this failure."""
    despite: frozenset[str] = frozenset()
    """Kinds of symptoms that the bad configuration had before it failed: they do not keep the failure from showing."""

    def includes(self, shown: Signature) -> bool:
        """Whether a signature counts as this failure."""
        if not self.asked:
            return self.signature.same(shown)
        if self.asked == "non-finite":
            return shown.kind == "non-finite" or is_sampling_error(shown)
        if self.asked in ("any", "signal"):
            return self.asked in ("any", shown.kind)
        return re.search(self.asked, str(shown), re.IGNORECASE) is not None

    def is_among(self, symptoms: Iterable[Symptom]) -> bool:
        """Whether this is a silent failure, and one of the symptoms is it."""
        return self.silent and any(self.includes(signature_of(symptom)) for symptom in symptoms)


@dataclass(frozen=True)
class Standard:
    """What runs are compared with."""

    failure: Failure | None = None  # None before it was seen
    usual: frozenset[str] = frozenset()
    """Kinds of symptoms of the good run, which are the script's own: a constant reward is "dead" in every trial."""
    good: Sequence[Row] | None = None  # the good run's metric rows; None where nobody asks for health
    scaler: bool = False  # whether the runs have a gradient scaler (fp16), which may skip a few steps

    def with_usual(self, shown: Verdict) -> Standard:
        """The standard once it is known what the good run shows."""
        return replace(self, usual=frozenset(symptom.kind for symptom in shown.symptoms))


@dataclass(frozen=True)
class Verdict:
    """What a run means under a standard."""

    seen: Observation
    outcome: Outcome  # FAIL: the failure under study; any failure, before that is known
    signature: Signature | None  # of what it died of or showed; None for a pass
    symptoms: tuple[Symptom, ...]  # of its metric rows, most severe first
    remarks: tuple[Symptom, ...]  # oddities that are no failure
    healthy: bool | None = None  # whether nothing at all is wrong; None where the standard has no good run
    wrong: drift.Deviation | None = None  # in the metrics of a run that came to its end and is not healthy

    @property
    def _shown(self) -> Symptom | None:
        """The symptom that the verdict rests on."""
        return next((symptom for symptom in self.symptoms if signature_of(symptom) == self.signature), None)

    @property
    def silent(self) -> bool:
        """Whether it failed by what its metric rows show, and not by what it died of."""
        return self._shown is not None

    @property
    def step(self) -> int | None:
        """The step at which it failed, counted from 1, 0 before training began; for a pass how many it made. None where
        there are no steps."""
        seen = self.seen
        if not seen.counted:
            return None
        if seen.died is not None and self._shown is None:
            return (seen.non_finite_at or seen.steps + 1) if seen.trained else 0
        return seen.steps if self._shown is None else self._shown.step

    @property
    def step_of_training(self) -> int | None:
        """The same, counted from the beginning of the training where the run began in the middle of it."""
        return self.step + self.seen.before if self.step and self.signature is not None else self.step

    @property
    def message(self) -> str:
        """What it shows in one line, in its own words where it has any; "" for a pass."""
        if self._shown is not None:
            return self._shown.text
        return self.seen.message or ("" if self.signature is None else str(self.signature))


def judge(seen: Observation, metrics: Metrics, standard: Standard = Standard()) -> Verdict:
    """What a run means. Under the empty standard every failure is the failure under study.

    What a run died of counts before what its metric rows show, except that weights which are not finite may follow from
    such a reward: then that is the failure, as in a run that survives it. Another failure than the one under study is
    UNRESOLVED, and so is a symptom that keeps it from showing (`HINDERS`) and that the bad configuration did not have
    before it failed; other symptoms are ignored.
    """
    symptoms = tuple(health.symptoms(metrics.rows, ended=True, earlier=metrics.earlier))
    remarks = tuple(health.remarks(metrics.rows))
    if seen.died is not None:
        ended_by = [*_led_to(seen.died, symptoms), seen.died]
        failed = next((one for one in ended_by if _is_failure(one, standard)), None)
        outcome = Outcome.FAIL if failed else Outcome.UNRESOLVED
        return Verdict(seen, outcome, failed or seen.died, symptoms, remarks, None if standard.good is None else False)
    shown = [signature_of(symptom) for symptom in symptoms]
    failed = next((one for one in shown if _is_failure(one, standard)), None)
    harmless = standard.usual | (standard.failure.despite if standard.failure else frozenset())
    hindered = next((one for one in shown if one.kind == HINDERS and one.kind not in harmless), None)
    outcome = Outcome.FAIL if failed else Outcome.UNRESOLVED if hindered else Outcome.PASS
    verdict = Verdict(seen, outcome, failed or hindered, symptoms, remarks)
    if standard.good is None:
        return verdict
    found = []
    if seen.counted:
        found = drift.deviations(metrics.rows, standard.good, usual=standard.usual, scaler=standard.scaler)
    return replace(verdict, healthy=not found, wrong=found[0] if found else None)


def _led_to(died: Signature, symptoms: Iterable[Symptom]) -> list[Signature]:
    """The symptoms that what a run died of follows from."""
    of_numbers = died.kind == "non-finite" or is_sampling_error(died)
    shown = (signature_of(symptom) for symptom in symptoms) if of_numbers else ()
    return [one for one in shown if one == Signature("non-finite", health.REWARD)]


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
    failure = verdict.signature
    if failure is None or not metrics.rows or failure.kind in (*BY_CHANCE, *SAY_NOTHING):
        return ""
    if failure.kind == "signal" and failure.message:  # killed from outside
        return ""
    bits = hashlib.blake2b(str(failure).encode("utf-8", "surrogatepass"), digest_size=16)
    for row in metrics.rows:
        if seen.died is not None or health.step_of(row) <= present(verdict.step):
            for name in health.WATCHED:
                value = health.number(row, name)
                bits.update(b"-" if value is None else struct.pack("!d", value))
    return bits.hexdigest()
