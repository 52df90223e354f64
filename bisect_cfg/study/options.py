"""What the command line can say about a bisection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from bisect_cfg.common.configuration import Value
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import flag_of
from bisect_cfg.remedy.remedy import MARGIN
from bisect_cfg.store.inputs import hash_of
from bisect_cfg.targets.good import Assignment, as_given
from bisect_cfg.targets.sides import Given

OF_COMMANDS = ("bad", "config_format")
"""Options of commands of any kind; one of them says that the target is one."""

NOT_REPEATED = ("restart", "flags")
"""Fields of `Options` that say nothing of what the same bisection is."""


@dataclass(frozen=True)
class Options:
    """What the command line can say; see `bisect-cfg bisect --help`."""

    study: Path | None = None
    good: tuple[Assignment, ...] = ()
    bad: tuple[Assignment, ...] = ()
    config_format: str | None = None
    good_packages: Path | None = None
    pins: tuple[Assignment, ...] = ()
    only: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    training: int | None = None
    from_checkpoint: Path | None = None
    until_failure: bool = False
    isolate_data: bool = False
    log: Path | None = None
    prove: str | None = None
    max_disk: float | None = None
    steps: int | None = None
    trial_timeout: float | None = None
    jobs: int = 1
    devices: tuple[str, ...] = ()
    failure: str | None = None
    first: bool = False
    confirm: int | None = None
    confidence: float = 0.95
    prior: str = "risk"
    start: str | None = None
    max_trials: int | None = None
    max_seconds: float | None = None
    storage: str | None = None
    restart: bool = False
    env_cache: Path | None = None
    where: bool = True
    recommend: bool = True
    environments: bool = True
    margin: float = MARGIN
    verify_steps: int | None = None
    verify_seeds: int = 3
    remedies: int | None = None
    keep: tuple[str, ...] = ()
    flags: bool = True  # whether these were given on the command line, which is how they are then called

    def given(self, python: str | None) -> Given:
        """What they say of a command of any kind, whose packages are those of this interpreter."""
        names = (field.name for field in fields(Given) if field.name != "python")
        return Given(**{name: getattr(self, name) for name in names}, python=python)

    def identity(self) -> JsonObject:
        """The options that change what the trials mean; a study keeps them."""
        return {
            **({"good_packages": hash_of(self.good_packages)} if self.good_packages else {}),
            **({"bad": sorted(_with_hash(as_given(text)) for text in self.bad)} if self.bad else {}),
            **{name: value for name in OF_COMMANDS if (value := getattr(self, name)) and name != "bad"},
            "good": sorted(_with_hash(as_given(text)) for text in self.good),
            "pins": sorted(map(as_given, self.pins)),
            "only": sorted(self.only),
            "except": sorted(self.excluded),
            "failure": self.failure,
            "steps": self.steps,
            **({} if self.training is None else {"training": self.training}),
            **({"from_checkpoint": str(self.from_checkpoint.absolute())} if self.from_checkpoint else {}),
        }

    def words(self) -> Iterator[str]:
        """The options as they are typed; what is as by default is left out."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in NOT_REPEATED:
                continue
            flag = flag_of(field.name)
            if isinstance(value, bool):
                yield flag if value else f"--no-{field.name}"
            elif field.name == "devices":
                yield from (flag, ",".join(value))
            else:
                for one in value if isinstance(value, tuple) else [value]:
                    yield from (flag, _typed(one))


def _typed(value: Value | Assignment | Path) -> str:
    """As one word of a command line; from Python a setting is a pair."""
    if isinstance(value, Path) and value.is_relative_to(Path.cwd()):
        value = value.relative_to(Path.cwd())
    return f"{value[0]}={json.dumps(value[1], default=str)}" if isinstance(value, tuple) else str(value)


def _with_hash(good: str) -> str:
    """What follows --good: where it is a file, its content counts."""
    path = Path(good)
    return f"{good} {hash_of(path)}" if "=" not in good and path.is_file() else good
