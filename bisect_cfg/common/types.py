"""What this room hands about: the environment of a run as it is known, and what JSON can hold."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"


class Gpu(TypedDict, total=False):
    """One GPU, as nvidia-smi or a log names it."""

    name: str
    memory_mb: int | None
    compute_capability: str


class Cublas(TypedDict, total=False):
    """The cuBLAS that is installed, and the one that a process has loaded, where somebody has looked."""

    package: str | None
    version: str | None
    shadowed_by: str | None
    loaded_version: str | None
    loaded_from: str


class Fingerprint(TypedDict, total=False):
    """A fingerprint (`fingerprint.fingerprint`), or the part of one that a log tells."""

    python: str
    executable: str
    packages: dict[str, str]
    cuda: str | None
    cublas: Cublas
    driver: str | None
    gpus: list[Gpu]
    variables: dict[str, str]
    platform: str
    cpus: int | None
    memory_mb: int | None
    launcher: str | None
    host: str
    local_ranks: int
    world_size: int
    task: str  # "rl" or "supervised", of the rows of a log
