"""Whether a known failure's conditions hold for an environment and a configuration.

Each condition holds, does not hold, or cannot be decided because the fingerprint does not know. One that does
not hold rules an entry out; only those that hold count for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

from bisect_cfg.configuration import Configuration, Value
from bisect_cfg.diagnosis._types import Fingerprint
from bisect_cfg.parameters.comparing import agrees, is_comparison


class Conditions(TypedDict, total=False):
    """Where a known failure applies; the fields are those of a knowledge entry."""

    packages: dict[str, str]
    gpu: str
    cuda: str
    cublas: str
    parameters: dict[str, Value]
    launcher: str
    device: str
    task: str
    phase: str
    progress: str
    collectives: str
    answers: str
    memory: str
    cuda_available: bool
    variables: dict[str, str]


WORDS = {
    "device": "runs on",
    "task": "is a training of kind",
    "phase": "fails in",
    "progress": "had last come to",
    "collectives": "has",
    "answers": "has a server that answers at",
    "memory": "has GPU memory that is",
}
"""Facts that are one word, matched by a regular expression, and how a sentence about them begins."""

_ASKED = {"collectives": "ranks apart", "answers": "another address than was asked"}
"""... and how it goes on, where what is asked is any value."""


@dataclass(frozen=True)
class Checked:
    """One condition: what it asks, what is the case, and whether it holds (None: not known)."""

    asks: str
    found: str
    holds: bool | None


def evaluate(
    conditions: Conditions,
    environment: Fingerprint | None = None,
    configuration: Configuration | None = None,
) -> list[Checked]:
    """Judges an entry's conditions one by one.

    Args:
        conditions: As in a knowledge entry.
        environment: A `fingerprint`.
        configuration: Parameter -> value, with or without a namespace (`args.bf16` or `bf16`).
    """
    environment = environment or {}
    settings = with_bare_names(configuration)
    return [*_environment(conditions, environment), *_parameters(conditions.get("parameters", {}), settings)]


def with_bare_names(configuration: Configuration | None) -> Configuration:
    """A configuration in which `args.bf16` is found as `bf16`, too."""
    known = configuration or {}
    return {**{name.rpartition(".")[2]: value for name, value in reversed(known.items())}, **known}


def _environment(conditions: Conditions, environment: Fingerprint) -> Iterator[Checked]:
    packages = environment.get("packages") or {}
    for name, specifier in conditions.get("packages", {}).items():
        yield _version(name, specifier, packages.get(name))
    if "cuda" in conditions:
        yield _version("CUDA", conditions["cuda"], environment.get("cuda"))
    if "cublas" in conditions:
        cublas = environment.get("cublas") or {}  # what is loaded counts, where somebody has looked
        version = cublas.get("loaded_version") or cublas.get("version")
        yield _version("cuBLAS", conditions["cublas"], version)
    if "gpu" in conditions:
        names = [gpu["name"] for gpu in environment.get("gpus") or []]
        holds = any(re.search(conditions["gpu"], name) for name in names) if names else None
        yield Checked(f"GPU {conditions['gpu']}", ", ".join(dict.fromkeys(names)) or "unknown", holds)
    for name, begins in WORDS.items():
        if name in conditions:
            word = environment.get(name)
            holds = None if not word else bool(re.fullmatch(conditions[name], word))
            asked = _ASKED.get(name) or conditions[name].replace("|", " or ")
            yield Checked(f"{begins} {asked}", word or "unknown", holds)
    if "cuda_available" in conditions:
        available = environment.get("cuda_available")
        holds = None if available is None else available == conditions["cuda_available"]
        yield Checked(f"torch.cuda.is_available() is {conditions['cuda_available']}", str(available), holds)
    for name, pattern in conditions.get("variables", {}).items():
        value = (environment.get("variables") or {}).get(name)
        holds = None if value is None else bool(re.fullmatch(pattern, value))
        yield Checked(f"{name}={pattern}", "unknown" if value is None else f"{name}={value}", holds)
    if "launcher" in conditions:
        launcher = environment.get("launcher")
        holds = None if launcher is None else launcher == conditions["launcher"]
        yield Checked(f"launched by {conditions['launcher']}", launcher or "unknown", holds)


def _version(name: str, specifier: str, version: str | None) -> Checked:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    asks = f"{name} {specifier}"
    if version is None:
        return Checked(asks, "unknown", None)
    try:
        # 0.16.0.dev0 has what 0.16.0 has, and 2.5.1+cu121 is 2.5.1; but 0.6.0.post2 is more than 0.6.0.
        parsed = Version(version)
        release = parsed.base_version if parsed.is_prerelease else parsed.public
        holds = SpecifierSet(specifier).contains(release)
    except InvalidVersion:
        return Checked(asks, version, None)
    return Checked(asks, f"{name} {version}", holds)


def _parameters(wanted: Mapping[str, Value], settings: Configuration) -> Iterator[Checked]:
    for name, value in wanted.items():
        asks = f"{name} {value}" if is_comparison(value) else f"{name}={value}"
        if name not in settings:
            yield Checked(asks, "unknown", None)
            continue
        yield Checked(asks, f"{name}={settings[name]}", agrees(value, settings[name]))
