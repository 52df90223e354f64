"""Whether the processes of one distributed run find the same environment.

A launcher starts one process a GPU, on one machine or several. They are to compute the same; a node with another
torch, another driver or without a variable that the others have ends in a hang or in numbers that drift apart, long
after the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bisect_cfg.common.types import Fingerprint
from bisect_cfg.doctor.findings import Finding

LIBRARIES = (
    "torch",
    "trl",
    "transformers",
    "accelerate",
    "deepspeed",
    "vllm",
    "peft",
    "triton",
    "flash-attn",
)
"""Packages whose versions must agree; another numpy or datasets is only a warning."""

MAY_DIFFER = ("CUDA_VISIBLE_DEVICES",)
"""Variables that tell the ranks apart."""

_SOURCE = "https://docs.pytorch.org/docs/stable/elastic/run.html"


def compare(environments: Sequence[Fingerprint]) -> list[Finding]:
    """What differs between ranks.

    Args:
        environments: Fingerprints, each with `rank` (a number or a name) and `host`.
    """
    found = []
    for what, values in _facts(environments):
        groups: dict[str, list[Fingerprint]] = {}
        for environment, value in zip(environments, values, strict=True):
            groups.setdefault(value, []).append(environment)
        if len(groups) < 2:
            continue
        hard = what in ("Python", "CUDA", "cuBLAS", "GPUs") or what in LIBRARIES
        sides = "; ".join(f"{value} on {where(group)}" for value, group in groups.items())
        found.append(
            Finding(
                "problem" if hard else "warning",
                f"Not all processes have the same {what}",
                sides,
                f"the same {what} everywhere, then start again",
                _SOURCE,
                "ranks-differ",
            )
        )
    return found


def missing(world_size: int, environments: Sequence[Fingerprint]) -> list[Finding]:
    """Ranks that never came to the script's configuration, although the launcher was to start them."""
    came = {environment["rank"] for environment in environments}
    absent = [rank for rank in range(world_size) if rank not in came]
    if not absent or not came:
        return []
    return [
        Finding(
            "problem",
            "Not every process came up",
            f"rank {_ranges(absent)} of {world_size} never came to its configuration",
            "look at the log of those processes; on several machines, run this on each of them",
            _SOURCE,
            "ranks-missing",
        )
    ]


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
    """``0-3, 6``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _facts(environments: Sequence[Fingerprint]) -> list[tuple[str, list[str]]]:
    def packages(environment: Fingerprint) -> Mapping[str, str]:
        return environment.get("packages") or {}

    def cublas(environment: Fingerprint) -> str:
        known = environment.get("cublas") or {}
        return str(known.get("loaded_version") or known.get("version") or "none")

    def gpus(environment: Fingerprint) -> str:
        names = [gpu["name"] for gpu in environment.get("gpus") or []]
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"

    facts = [
        ("Python", [str(one.get("python", "unknown")) for one in environments]),
        ("CUDA", [str(one.get("cuda") or "none") for one in environments]),
        ("cuBLAS", [cublas(one) for one in environments]),
        ("driver", [str(one.get("driver") or "none") for one in environments]),
        ("GPUs", [gpus(one) for one in environments]),
    ]
    names = dict.fromkeys(name for one in environments for name in packages(one))
    facts += [(name, [packages(one).get(name, "absent") for one in environments]) for name in names]
    variables = dict.fromkeys(name for one in environments for name in one.get("variables") or {})
    for name in variables:
        if name not in MAY_DIFFER:
            facts.append((name, [(one.get("variables") or {}).get(name, "unset") for one in environments]))
    return facts
