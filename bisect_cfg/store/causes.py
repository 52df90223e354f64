"""The answer of a bisection, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bisect_cfg.common.configuration import Configuration, Outcome, Purpose, Value
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import HIDDEN, hides, scrub

SHOWN_LENGTH = 60
"""Characters of a value that are shown."""

RETURNED_FALSE = "fail"
"""The signature of a function that returned False: it says no more than that it failed."""


class Printed(dict[str, Value]):
    """Settings by name. Printed, they are without the secrets in them: the output of a cell is kept and passed on."""

    def __repr__(self) -> str:
        return str(scrub(repr(dict(self))))


@dataclass(frozen=True)
class Claim:
    """That a configuration fails, or passes, and how often that was seen."""

    subset: tuple[str, ...] | None  # the factors that were bad in the run; None if no such configuration can be valid
    seen: int = 0  # runs that came out as claimed
    runs: int = 0  # runs that came out at all (PASS or FAIL)
    trials: tuple[int, ...] = ()  # their numbers
    note: str = ""  # why there is no run, when there is none

    def __str__(self) -> str:
        return self.note if self.subset is None else f"{self.seen}/{self.runs}"


@dataclass(frozen=True)
class Evidence:
    """What a cause rests on: it fails, and without any one of its parameters it passes."""

    fails: Claim
    without: Mapping[str, Claim]

    def __repr__(self) -> str:
        parts = [f"fails {_evidence(self.fails)}"]
        parts += [f"passes {_evidence(claim)} without {name}" for name, claim in self.without.items()]
        return ", ".join(parts)

    @property
    def trials(self) -> tuple[int, ...]:
        """The numbers of all the trials, ascending."""
        return tuple(sorted({*self.fails.trials, *(n for c in self.without.values() for n in c.trials)}))


@dataclass(frozen=True)
class Cause:
    """A minimal failing subset.

    Attributes:
        parameters: its factors, sorted by name.
        values: name -> {"good": value, "bad": value}.
        companions: what else was bad in the proving runs, only so that they were valid.
        signature: the failure.
        evidence: the trials it rests on.
        inseparable: those of the parameters that no valid configuration tells apart.
    """

    parameters: tuple[str, ...]
    values: Mapping[str, Mapping[str, Value]]
    companions: tuple[str, ...]
    signature: str | None
    evidence: Evidence
    inseparable: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self}: {self.evidence!r}>"

    def __str__(self) -> str:
        levels = (
            f"{name}={_shown(name, v['bad'])} (good: {_shown(name, v['good'])})" for name, v in self.values.items()
        )
        return " with ".join(levels)


@dataclass(frozen=True)
class Correction:
    """Factors whose reset to good cures the bad configuration."""

    parameters: tuple[str, ...]
    passes: Claim


@dataclass(frozen=True)
class TrialRow:
    """A real run."""

    number: int  # of the trial
    outcome: Outcome  # the verdict on it
    signature: str | None  # of its failure; None if it did not fail
    seconds: float  # it took
    step: int | None  # the optimizer step at which it failed, or ended; None if that is not known
    purpose: Purpose  # what it was for
    # which run it was where several have the same purpose; of one for safe values, for which part of that
    run: str = ""
    reason: str = ""  # why it was asked
    companions: tuple[str, ...] = ()  # what was bad only so that it was valid
    values: Configuration = field(default_factory=dict)  # of the factors, by name

    def record(self) -> dict[str, Value]:
        """All but the values, as tables and files show it: the names are those of `RECORDED`."""
        return {
            "number": self.number,
            "outcome": self.outcome.value,
            "signature": self.signature,
            "seconds": self.seconds,
            "step": self.step,
            "purpose": self.purpose.of_run(self.run),
            "reason": self.reason,
            "companions": ", ".join(self.companions),
        }


@dataclass(frozen=True)
class Report:
    """What a bisection has found; `StudyReport` is the same with its trials and plots.

    Attributes:
        status: how it ended, a `Status`; of a study without an answer another word, as in its report.
        causes: every minimal failing subset found.
        corrections: tested ones, the one that gives up least first.
        complete: whether there is provably (or, if the failure is flaky, with the stated confidence) no
            other.
        safe_configuration: a configuration that was run and passed, nearest to the bad one; None if none did. Of a
            training script: the one recommended, None if no remedy trains healthily.
        signature: the failure under study.
        masking: (settings that hide the failure, the cause they hide).
        reproduction_rate: how often the failure shows where it can.
        reproduction_interval: its 95 % interval.
        notes: honest sentences.
        rows: the trials.
        seconds: time spent in trials.
        recommendation: of a training script: what to use instead and what that rests on, as in result.json.
        stopped: which limit has ended the search before its time, in a sentence; "" if none did.
        message: what the failing run says of itself, with its own numbers; "" if it says nothing.
    """

    status: str
    causes: tuple[Cause, ...] = ()
    corrections: tuple[Correction, ...] = ()
    complete: bool = False
    safe_configuration: dict[str, Value] | None = None
    signature: str | None = None
    masking: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    reproduction_rate: float | None = None
    reproduction_interval: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    rows: tuple[TrialRow, ...] = field(default=(), repr=False)
    seconds: float = 0.0
    recommendation: JsonObject | None = field(default=None, repr=False)
    stopped: str = field(default="", repr=False)
    message: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.safe_configuration is not None:
            object.__setattr__(self, "safe_configuration", Printed(self.safe_configuration))


def _shown(name: str, value: Value) -> str:
    """A value of a setting, not at any length, and no secret."""
    words = HIDDEN if hides(name, value) else scrub(repr(value))
    return words if len(words) <= SHOWN_LENGTH else words[: SHOWN_LENGTH - 3] + "..."


def _evidence(claim: Claim) -> str:
    """A claim with the numbers of its trials."""
    if claim.subset is None or not claim.trials:
        return str(claim)
    return f"{claim} (trial{'s' if len(claim.trials) > 1 else ''} {', '.join(map(str, claim.trials))})"


def wilson(successes: int, runs: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a rate; unlike the usual one it is sensible at 5 of 5."""
    z = 1.96  # standard deviations on either side that hold 95 %
    rate, square = successes / runs, z * z
    centre = (rate + square / (2 * runs)) / (1 + square / runs)
    half = z * ((rate * (1 - rate) + square / (4 * runs)) / runs) ** 0.5 / (1 + square / runs)
    return max(0.0, centre - half), min(1.0, centre + half)
