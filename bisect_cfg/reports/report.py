"""The answer of a bisection, as data. Cheap to import: pandas comes in only for the frame of trials."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Claim:
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


@dataclass(frozen=True)
class Evidence:
    """What a cause rests on: it fails, and without any one of its parameters it passes."""

    fails: Claim
    without: Mapping[str, Claim]

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
    values: Mapping[str, Mapping[str, Any]]
    companions: tuple[str, ...]
    signature: str | None
    evidence: Evidence
    inseparable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Correction:
    """Factors whose reset to good cures the bad configuration."""

    parameters: tuple[str, ...]
    passes: Claim


@dataclass(frozen=True)
class Report:
    """What `Bisection.run` returns.

    Attributes:
        status: "isolated", "no_failure", "baseline_fails" or "inconclusive".
        causes: every minimal failing subset found.
        corrections: tested ones, the one that gives up least first.
        complete: whether there is provably (or, if the failure is flaky, with the stated confidence) no
            other.
        safe_configuration: a configuration that was run and passed, nearest to the bad one; None if none did.
        signature: the failure under study.
        masking: (settings that hide the failure, the cause they hide).
        reproduction_rate: how often the failure shows where it can.
        reproduction_interval: its 95 % interval.
        notes: honest sentences.
        rows: one dict a trial, see `trials`.
        seconds: time spent in trials.
    """

    status: str
    causes: tuple[Cause, ...] = ()
    corrections: tuple[Correction, ...] = ()
    complete: bool = False
    safe_configuration: dict[str, Any] | None = None
    signature: str | None = None
    masking: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    reproduction_rate: float | None = None
    reproduction_interval: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    seconds: float = 0.0

    @property
    def trials(self) -> pandas.DataFrame:
        """One row a real run, baselines included: number, outcome, signature, seconds, step, purpose, reason,
        companions, then one column a factor with the value it had."""
        import pandas

        return pandas.DataFrame(list(self.rows))

    def __str__(self) -> str:
        lines = [f"{self.status}: {len(self.causes)} cause(s) in {len(self.rows)} trials"]
        for cause in self.causes:
            parts = [
                f"{n}={cause.values[n]['bad']!r} (good: {cause.values[n]['good']!r})"
                for n in cause.parameters
            ]
            lines.append(f"  {' with '.join(parts)}")
            lines.append(f"    fails {cause.evidence.fails} with {cause.signature}")
            lines += [f"    without {name}: passes {claim}" for name, claim in cause.evidence.without.items()]
            if cause.companions:
                lines.append(f"    valid only together with {', '.join(cause.companions)}")
        if self.causes:
            lines.append(f"  these are all the causes: {'yes' if self.complete else 'not shown'}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The notebook's view: the causes with their evidence, then every trial."""
        e = html.escape
        parts = [f"<h4>bisect-cfg: {e(self.status.replace('_', ' '))}, {len(self.rows)} trials</h4>"]
        for cause in self.causes:
            rows = "".join(
                f"<tr><td>{e(name)}</td><td>{e(repr(v['good']))}</td><td>{e(repr(v['bad']))}</td>"
                f"<td>{e(str(cause.evidence.without.get(name, '')))}</td></tr>"
                for name, v in cause.values.items()
            )
            parts.append(
                f"<p>fails {e(str(cause.evidence.fails))}: <code>{e(str(cause.signature))}</code></p>"
                f"<table><tr><th>setting</th><th>good</th><th>bad</th>"
                f"<th>passes without it</th></tr>{rows}</table>"
            )
            if cause.companions:
                parts.append(f"<p>valid only together with {e(', '.join(cause.companions))}</p>")
        if self.causes:
            answer = "these are all the causes" if self.complete else "there may be other causes"
            parts.append(f"<p>{answer}</p>")
        parts += [f"<p>{e(note)}</p>" for note in self.notes]
        return "\n".join(parts)
