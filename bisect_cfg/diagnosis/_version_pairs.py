"""Versions that do not work together: a table (`versions.yaml`), for logs and for environments.

A log shows such a pair by a message, so each row of the table is a knowledge entry as well. An environment shows it by
its versions alone; that is a finding where the row calls it certain.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.diagnosis._types import Fingerprint, Json

TABLE = Path(__file__).parent / "versions.yaml"


@dataclass(frozen=True)
class VersionPair:
    """One row of the table; the fields are those of the file."""

    id: str
    title: str
    message: tuple[str, ...]
    packages: dict[str, str]
    says: str
    cure: tuple[str, ...]
    sources: tuple[str, ...]
    sample: str
    cases: tuple[Json, ...] = ()
    certain: bool = False
    early: bool = False
    general: bool = False
    wide: bool = False

    @property
    def source(self) -> str:
        """Its first source as an address."""
        repository, _, number = self.sources[0].partition("#")
        return f"https://github.com/{repository}/issues/{number}" if number.isdigit() else self.sources[0]


@functools.cache
def load(path: Path = TABLE) -> tuple[VersionPair, ...]:
    """All pairs of a table."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return tuple(
        VersionPair(**{**row, **{name: _listed(row[name]) for name in ("message", "cure", "sources")}}) for row in rows
    )


def _listed(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def as_entries() -> Iterator[dict[str, Json]]:
    """The rows as knowledge entries, before they are checked."""
    for pair in load():
        named = ", ".join(f"{name} {specifier}" for name, specifier in pair.packages.items())
        yield {
            "id": pair.id,
            "title": pair.title,
            "any": list(pair.message),
            "meaning": pair.says,
            "trigger": named or "the versions installed",
            "root_cause": "versions that do not work together; no setting of the run is at fault",
            "cures": list(pair.cure),
            "not_helping": ["bisecting the settings of the run"],
            "sources": list(pair.sources),
            "sample": pair.sample,
            "conditions": {"packages": pair.packages},
            "cases": list(pair.cases),
            "early": pair.early,
            "general": pair.general,
            "wide": pair.wide,
        }


def clashing(environment: Fingerprint) -> Iterator[tuple[VersionPair, str]]:
    """The certain pairs that an environment has, and by which versions."""
    from bisect_cfg.diagnosis.conditions import evaluate

    for pair in load():
        conditions = evaluate({"packages": pair.packages}, environment) if pair.certain else []
        if conditions and all(condition.holds for condition in conditions):
            yield pair, ", ".join(condition.found for condition in conditions)
