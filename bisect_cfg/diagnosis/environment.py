"""The environment a trial runs in, as one small dictionary.

The same settings crash on one machine and train on the next: the H20 floating point exception needs a GPU,
a CUDA tag and a cuBLAS version together. So every verdict carries this fingerprint, and the conditions of the
known issues are checked against it. It is read from package metadata, `nvidia-smi` and the kernel; torch is
never imported, because that takes seconds and would initialise what the trials want untouched.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from bisect_cfg.diagnosis import _packages

PATIENCE = 20.0
"""Seconds for `nvidia-smi` or another interpreter to answer; a cold driver takes several."""

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_USE_V1",
    "WORLD_SIZE",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_MIXED_PRECISION",
)
"""Variables that change how training runs. Named one by one, because an environment holds secrets."""

_QUERY = "name,memory.total,driver_version,compute_cap"


def fingerprint(python: str | None = None) -> dict[str, Any]:
    """What a training process started here would find.

    Args:
        python: The interpreter that trains; this one if None.

    Returns:
        `python`, `executable`, `packages` (name -> version), `cuda` (torch's CUDA tag, None for a CPU build),
        `cublas` (`package`, `version`, `shadowed_by`), `driver`, `gpus` (each `name`, `memory_mb`,
        `compute_capability`), `variables`, `platform`, `cpus`, `memory_mb`; and `error` where the interpreter
        could not be asked.
    """
    result = _packages.installed() if python is None else _ask(python)
    driver, gpus = _gpus()
    result |= {
        "driver": driver,
        "gpus": gpus,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "memory_mb": _memory_mb(),
    }
    return result


def describe(environment: dict[str, Any]) -> str:
    """The fingerprint in one line for people: what a bug report would be asked for first."""
    parts = [f"Python {environment.get('python', '?')}"]
    packages = environment.get("packages") or {}
    named = ("torch", "trl", "transformers", "vllm", "openrlhf")
    parts += [f"{name} {packages[name]}" for name in named if name in packages]
    if environment.get("cuda"):
        parts.append(f"CUDA {environment['cuda']}")
    cublas = environment.get("cublas") or {}
    if cublas.get("version"):
        parts.append(f"cuBLAS {cublas['version']}")
    gpus = [gpu["name"] for gpu in environment.get("gpus") or []]
    parts += [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)] or ["no GPU"]
    return ", ".join(parts)


def _ask(python: str) -> dict[str, Any]:
    source = Path(_packages.__file__).read_text(encoding="utf-8")
    try:
        answer = subprocess.run(
            [python, "-c", source], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        return json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"executable": python, "packages": {}, "error": f"{python} could not be asked: {error}"}


def _gpus() -> tuple[str | None, list[dict[str, Any]]]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):  # no GPU, no driver, or one that hangs
        return None, []
    return parse_gpus(answer.stdout)


def parse_gpus(table: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Driver version and GPUs from `nvidia-smi`'s comma separated answer."""
    driver, gpus = None, []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4:
            continue
        name, memory, driver, capability = cells
        memory_mb = int(memory) if memory.isdigit() else None  # "[N/A]" where memory is shared with the host
        gpus.append({"name": name, "memory_mb": memory_mb, "compute_capability": capability})
    return driver, gpus


def _memory_mb() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    except (ValueError, OSError, AttributeError):
        return None
