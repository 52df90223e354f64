"""Whether the processes of one distributed run find the same environment.

A launcher starts one process a GPU, on one machine or several. They are to compute the same; a node with another
torch, another driver or without a variable that the others have ends in a hang or in numbers that drift apart, long
after the start.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.doctor.findings import Finding

MUST_AGREE = (
    ("Python", "CUDA", "cuBLAS", "GPUs")
    + ("torch", "trl", "transformers", "accelerate", "deepspeed", "vllm", "peft", "triton", "flash-attn")
)  # fmt: skip
"""What takes part in the training itself; another driver, numpy or variable is only a warning."""

MAY_DIFFER = ("CUDA_VISIBLE_DEVICES",)
"""Variables that tell the ranks apart."""

_SOURCE = "https://docs.pytorch.org/docs/stable/elastic/run.html"


def compare(environments: Sequence[Fingerprint]) -> list[Finding]:
    """What differs between ranks, by their fingerprints, each with `rank` (a number or a name) and `host`."""
    found = []
    for tables, absent in zip(zip(*map(_facts, environments), strict=True), ("none", "absent", "unset"), strict=True):
        for what in dict.fromkeys(name for table in tables for name in table if name not in MAY_DIFFER):
            sides: dict[str, list[Fingerprint]] = {}
            for environment, table in zip(environments, tables, strict=True):
                sides.setdefault(table.get(what, absent), []).append(environment)
            if len(sides) > 1:
                level, title = "problem" if what in MUST_AGREE else "warning", f"Not all processes have the same {what}"
                why = "; ".join(f"{value} on {where(group)}" for value, group in sides.items())
                cure = f"the same {what} everywhere, then start again"
                found.append(Finding(level, title, why, cure, _SOURCE, "ranks-differ"))
    return found


def missing(world_size: int, environments: Sequence[Fingerprint]) -> list[Finding]:
    """Ranks that never came to the script's configuration, although the launcher was to start them."""
    came = {environment["rank"] for environment in environments if "rank" in environment}
    absent = [rank for rank in range(world_size) if rank not in came]
    if not absent or not came:
        return []
    why = f"rank {_ranges(absent)} of {world_size} never came to its configuration"
    cure = "look at the log of those processes; on several machines, run this on each of them"
    return [Finding("problem", "Not every process came up", why, cure, _SOURCE, "ranks-missing")]


def where(environments: Sequence[Fingerprint]) -> str:
    """``node1 (ranks 0-3), node2 (rank 4)``."""
    hosts: dict[str, list[object]] = {}
    for environment in environments:
        hosts.setdefault(str(environment.get("host", "this machine")), []).append(environment.get("rank"))
    parts = []
    for host, ranks in hosts.items():
        numbers = [rank for rank in ranks if isinstance(rank, int)]
        noun = "rank" if len(numbers) == 1 else "ranks"
        parts.append(f"{host} ({noun} {_ranges(numbers)})" if numbers else host)
    return ", ".join(parts)


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3, 6``: runs of numbers, which all lie as far from their place in the order."""
    runs = itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)


def _facts(environment: Fingerprint) -> tuple[Mapping[str, str], ...]:
    """What may differ: of the machine, packages, variables."""
    cublas = environment.get("cublas") or {}
    gpus = Counter(gpu["name"] for gpu in environment.get("gpus") or [])
    versions = {
        "Python": environment.get("python") or "unknown",
        "CUDA": environment.get("cuda") or "none",
        "cuBLAS": cublas.get("loaded_version") or cublas.get("version") or "none",
        "driver": environment.get("driver") or "none",
        "GPUs": ", ".join(f"{number} x {name}" for name, number in gpus.items()) or "none",
    }
    return versions, environment.get("packages") or {}, environment.get("variables") or {}
