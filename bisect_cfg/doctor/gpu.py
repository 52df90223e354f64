"""Whether the GPUs of this machine compute what they should: small products and copies, in processes of their own.

An H20 with an old cuBLAS ends a process with SIGFPE at certain matrix products; two cards with broken peer-to-peer
copies hand over garbage without an error. Both take seconds to find out, before a trial is spent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from bisect_cfg.common.types import Json
from bisect_cfg.doctor import gpu_probes
from bisect_cfg.doctor.findings import Finding

PATIENCE = 600.0
"""Seconds for all probes together: torch from a cold disk, then at most a minute each for a few."""

_H20 = "https://github.com/vllm-project/vllm/issues/2798"
_COPY = "https://github.com/tloen/alpaca-lora/issues/300"


def probe(python: str | None = None) -> list[dict[str, Json]]:
    """Run the probes in the interpreter that trains.

    Returns:
        One dictionary a probe: `probe` (what was computed), `seconds`, and `signal` or `error` if it went wrong.
    """
    source = Path(gpu_probes.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python or sys.executable, "-c", source], capture_output=True, text=True, timeout=PATIENCE
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [{"probe": "start torch", "error": str(error)}]
    results = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            results.append(json.loads(line))
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        results.append({"probe": "start torch", "error": last})
    return results


def findings(results: Iterable[Mapping[str, Json]]) -> list[Finding]:
    """What the probes that went wrong mean."""
    found = []
    for result in results:
        said = f"died of {result['signal']}" if "signal" in result else result.get("error")
        if not said:
            continue
        why = f"{result['probe']}: {said}"
        if result["probe"].startswith("copy"):
            found.append(
                Finding(
                    "problem",
                    "Data does not pass between two GPUs as it should",
                    why,
                    "NCCL_P2P_DISABLE=1, or one GPU (CUDA_VISIBLE_DEVICES=0)",
                    _COPY,
                    "gpu-copy",
                    "Training over several cards would compute with garbage or stop for good.",
                )
            )
        elif result.get("signal") == "SIGFPE":
            found.append(
                Finding(
                    "problem",
                    "This GPU and cuBLAS die of a matrix product (integer division by zero)",
                    why,
                    "pip install -U nvidia-cublas-cu12 (12.4.5.8 is known good), start Python anew; keep bf16",
                    _H20,
                    "gpu-sigfpe",
                    "It is the fault of the library. No training setting has a part in it.",
                )
            )
        elif "product" in result["probe"]:
            found.append(
                Finding(
                    "problem",
                    "This GPU does not compute a matrix product as it should",
                    why,
                    "see nvidia-smi for errors of the card; try another torch or another card",
                    "measured",
                    "gpu-product",
                )
            )
        else:
            found.append(
                Finding(
                    "problem",
                    "The GPUs cannot be used from this Python",
                    why,
                    "nvidia-smi shows the driver's CUDA version; torch's must not be newer",
                    "measured",
                    "gpu-start",
                )
            )
    return found
