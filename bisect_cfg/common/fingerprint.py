"""The environment a trial runs in, as one small dictionary.

The same settings crash on one machine and train on the next: the H20 floating point exception needs a GPU,
a CUDA tag and a cuBLAS version together. So every verdict carries this fingerprint, and the conditions of the
known issues are checked against it. It is read from package metadata, `nvidia-smi` and the kernel; torch is
never imported, because that takes seconds and would initialise what the trials want untouched. Only
`loaded_cublas` imports it, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import msgspec

from bisect_cfg.probe import machine

PATIENCE = 20.0
"""Seconds for another interpreter to say what it has installed."""

IMPORT_PATIENCE = 180.0
"""Seconds for torch to be imported; from a cold network disk that takes minutes."""


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
    """What `fingerprint` says, or the part of it that a log tells."""

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
    rank: int | str  # of a process of a launch; the name of a recorded file
    local_rank: int
    error: str  # the interpreter could not be asked
    task: str  # "rl" or "supervised", of the rows of a log
    backend: str  # "gloo", where a log shows that its processes talk over it


def fingerprint(python: str | None = None) -> Fingerprint:
    """What a training process started here by an interpreter (None: by this one) would find. There is an `error` in it
    where the interpreter could not be asked, and its `cuda`, which is torch's tag, is None for a CPU build."""
    result: Fingerprint = machine.installed() if python is None else _ask(python)
    return {**result, **machine.machine()}


def packages_of(python: str) -> dict[str, str]:
    """Name -> version of the packages that matter to a training, as an interpreter finds them now."""
    found = machine.installed() if python == sys.executable else _ask(python)
    return found["packages"]


def loaded_cublas(python: str | None = None) -> Cublas | None:
    """The cuBLAS that torch really loads (`loaded_from`, `loaded_version`), asked of a process that imports torch; None
    if it loads none, is not there, or does not come up."""
    try:
        return msgspec.convert(_run(python or sys.executable, IMPORT_PATIENCE, "cublas"), Cublas | None)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def with_loaded_cublas(environment: Fingerprint, loaded: Cublas | None) -> Fingerprint:
    """The fingerprint with `loaded_from` and `loaded_version` in its `cublas`.

    The wheel's own version, which has a fourth number, is kept as the loaded one where the library lies inside it.
    """
    if loaded is None:
        return environment
    cublas: Cublas = {**(environment.get("cublas") or {}), **loaded}
    if "/nvidia/" in loaded["loaded_from"] and (cublas.get("version") or "").startswith(
        loaded["loaded_version"] or "-"
    ):
        cublas["loaded_version"] = cublas["version"]
    return {**environment, "cublas": cublas}


def describe(environment: Fingerprint) -> str:
    """The fingerprint in one line for people: what a bug report would be asked for first."""
    parts = [f"Python {environment.get('python', '?')}"]
    packages = environment.get("packages") or {}
    named = ("torch", "trl", "transformers", "accelerate", "vllm", "deepspeed", "openrlhf")
    parts += [f"{name} {packages[name]}" for name in named if name in packages]
    if environment.get("cuda"):
        parts.append(f"CUDA {environment['cuda']}")
    cublas = environment.get("cublas") or {}
    version = cublas.get("loaded_version") or cublas.get("version")
    if version:
        parts.append(f"cuBLAS {version}")
    if environment.get("driver"):
        parts.append(f"driver {environment['driver']}")
    gpus = [_gpu(gpu) for gpu in environment.get("gpus") or []]
    parts += [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)] or ["no GPU"]
    return ", ".join(parts)


def _gpu(gpu: Gpu) -> str:
    memory = gpu.get("memory_mb")
    return f"{gpu['name']} ({memory / 1024:.0f} GiB)" if memory else str(gpu["name"])


def _ask(python: str) -> Fingerprint:
    try:
        return msgspec.convert(_run(python, PATIENCE), Fingerprint)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"executable": python, "packages": {}, "error": f"{python} could not be asked: {error}"}


def _run(python: str, patience: float, *arguments: str) -> object:
    """What `machine` prints in another interpreter; its source is handed over, nothing is put on its path."""
    command = [python, "-c", Path(machine.__file__).read_text(encoding="utf-8"), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=True)
    return json.loads(answer.stdout.splitlines()[-1])
