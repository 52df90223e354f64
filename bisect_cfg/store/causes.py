"""The answer of a bisection, as data: claims, causes, corrections and trials in the form of result.json.

The search's conclusion, the answer of a study and the report of a notebook hold the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bisect_cfg.common.configuration import Outcome, Purpose, Value
from bisect_cfg.probe.redact import HIDDEN, hides, scrub

SHOWN_LENGTH = 60
"""Characters of a value that are shown."""

RETURNED_FALSE = "fail"
"""The signature of a function that returned False: it says no more than that it failed."""


class Part(msgspec.Struct, frozen=True, dict=True):
    """A part of the answer; what a file lacks of it has its default, and keys that are not known are skipped."""


class Printed(dict[str, Value]):
    """Settings by name. Printed, they are without the secrets in them: the output of a cell is kept and passed on."""

    def __repr__(self) -> str:
        return str(scrub(repr(dict(self))))


class Levels(Part, frozen=True):
    """The two values of a setting."""

    good: Any
    bad: Any


class Claim(Part, frozen=True):
    """That a configuration fails, or passes, and how often that was seen.

    Attributes:
        subset: the factors that were bad in the run; None if no such configuration can be valid.
        seen: runs that came out as claimed.
        runs: runs that came out at all (PASS or FAIL).
        trials: their numbers.
        note: why there is no run, when there is none.
    """

    subset: tuple[str, ...] | None
    seen: int = 0
    runs: int = 0
    trials: tuple[int, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        return self.note if self.subset is None else f"{self.seen}/{self.runs}"

    def __repr__(self) -> str:
        """With the numbers of its trials."""
        if self.subset is None or not self.trials:
            return str(self)
        return f"{self} (trial{'s' if len(self.trials) > 1 else ''} {', '.join(map(str, self.trials))})"


class Evidence(Part, frozen=True):
    """What a cause rests on: it fails, and without any one of its parameters it passes."""

    fails: Claim
    without: dict[str, Claim] = msgspec.field(name="passes_without")

    def __repr__(self) -> str:
        passes = (f"passes {claim!r} without {name}" for name, claim in self.without.items())
        return ", ".join([f"fails {self.fails!r}", *passes])


class ConfigFile(Part, frozen=True):
    """A configuration file that a command names."""

    name: str
    text: str


class Cause(Part, frozen=True):
    """A minimal failing subset.

    Attributes:
        levels: the two values of each of its factors.
        evidence: the trials it rests on.
        companions: what else was bad in the proving runs, only so that they were valid.
        inseparable: those of the parameters that no valid configuration tells apart.
        signature: the failure.
        step: at which it fails by itself.
        text: what the run does with it: "dies with SIGFPE at step 1".
        watched: for how many steps at least the runs went on whose passing it rests on; None where they came to their
            own end.
        command: of a target of any kind, the whole command with it alone.
        config: the file which that names.
    """

    levels: dict[str, Levels] = msgspec.field(name="parameters")
    evidence: Evidence
    companions: tuple[str, ...] = ()
    inseparable: tuple[str, ...] = ()
    signature: str | None = None
    step: int | None = None
    text: str = ""
    watched: int | None = None
    command: str | None = None
    config: ConfigFile | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its factors, sorted by name."""
        return tuple(sorted(self.levels))

    @property
    def values(self) -> dict[str, dict[str, Value]]:
        """Name -> {"good": value, "bad": value}."""
        return {name: {"good": one.good, "bad": one.bad} for name, one in self.levels.items()}

    def __repr__(self) -> str:
        return f"<{self}: {self.evidence!r}>"

    def __str__(self) -> str:
        shown = (f"{n}={_shown(n, one.bad)} (good: {_shown(n, one.good)})" for n, one in self.levels.items())
        return " with ".join(shown)


class Correction(Part, frozen=True):
    """Factors whose reset to good cures the bad configuration."""

    parameters: tuple[str, ...]
    passes: Claim


class Masking(Part, frozen=True):
    """Settings that hide the failure of a cause."""

    settings: tuple[str, ...]
    hide: tuple[str, ...]


class Reproduction(Part, frozen=True):
    """How often the failure shows where it can."""

    rate: float | None = None
    interval_95: tuple[float, ...] = ()


class Trial(Part, frozen=True):
    """A real run, baselines included.

    Attributes:
        number: of the trial.
        outcome: the verdict on it: "pass", "fail", "unresolved", or "running".
        purpose: what it was for, with the run it was where several have the same purpose.
        signature: of its failure; None if it did not fail.
        seconds: it took.
        step: the optimizer step at which it failed, else how many it trained; None if that is not known.
        reason: why it was asked.
        companions: what was bad only so that it was valid.
        values: of the factors, by name.
        folder: of what it traced, in that of the study.
        start: how its process came to be.
        seed: of a run for safe values.
        suspicion: of each factor, when it was asked.
        remarks: oddities.
        metrics: of a function, what it told of its steps.
        node: of a cluster, where it ran.
    """

    number: int
    outcome: str
    purpose: str
    signature: str | None = None
    seconds: float | None = None
    step: int | None = None
    reason: str = ""
    companions: str = ""
    values: dict[str, Any] = {}
    folder: str = ""
    start: str | None = None
    seed: int | None = None
    suspicion: dict[str, float] | None = None
    remarks: tuple[str, ...] = ()
    metrics: tuple[dict[str, Any], ...] = ()
    node: str | None = None

    @property
    def kind(self) -> Purpose:
        """What it was for."""
        return Purpose.read(self.purpose)[0]

    @property
    def failed(self) -> bool:
        """Whether it shows the failure under study."""
        return self.outcome == Outcome.FAIL.value

    @property
    def passed(self) -> bool:
        """Whether it shows no failure."""
        return self.outcome == Outcome.PASS.value


@dataclass(frozen=True)
class Report:
    """What a bisection has found.

    Attributes:
        status: how it ended, a `Status`.
        causes: every minimal failing subset found.
        corrections: tested ones, the one that gives up least first.
        complete: whether there is provably (or, if the failure is flaky, with the stated confidence) no
            other.
        safe_configuration: a configuration that was run and passed, nearest to the bad one; None if none did. Of a
            training script: the one recommended, None if no remedy trains healthily.
        signature: the failure under study.
        masking: settings that hide the failure of a cause.
        reproduction: how often the failure shows where it can.
        notes: honest sentences.
        rows: the trials.
        seconds: time spent in trials.
        stopped: which limit has ended the search before its time, in a sentence; "" if none did.
        message: what the failing run says of itself, with its own numbers; "" if it says nothing.
    """

    status: str
    causes: tuple[Cause, ...] = ()
    corrections: tuple[Correction, ...] = ()
    complete: bool = False
    safe_configuration: Mapping[str, Value] | None = None
    signature: str | None = None
    masking: tuple[Masking, ...] = ()
    reproduction: Reproduction = Reproduction()
    notes: tuple[str, ...] = ()
    rows: tuple[Trial, ...] = field(default=(), repr=False)
    seconds: float = 0.0
    stopped: str = ""
    message: str = ""


def _shown(name: str, value: Value) -> str:
    """A value of a setting, not at any length, and no secret."""
    words = HIDDEN if hides(name, value) else scrub(repr(value))
    return words if len(words) <= SHOWN_LENGTH else words[: SHOWN_LENGTH - 3] + "..."


def wilson(successes: int, runs: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a rate; unlike the usual one it is sensible at 5 of 5."""
    z = 1.96  # standard deviations on either side that hold 95 %
    rate, square = successes / runs, z * z
    centre = (rate + square / (2 * runs)) / (1 + square / runs)
    half = z * ((rate * (1 - rate) + square / (4 * runs)) / runs) ** 0.5 / (1 + square / runs)
    return max(0.0, centre - half), min(1.0, centre + half)
