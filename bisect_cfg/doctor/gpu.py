"""Whether the GPUs of this machine compute what they should: small products and copies, in processes of their own.

An H20 with an old cuBLAS ends a process with SIGFPE at certain matrix products; two cards with broken peer-to-peer
copies hand over garbage without an error. Both take seconds to find out, before a trial is spent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.doctor import gpu_probes
from bisect_cfg.doctor.findings import Finding, holding

PATIENCE = 600.0
"""Seconds for all probes together: torch from a cold disk, then at most a minute each for a few."""


def probe(python: str | None = None) -> list[JsonObject]:
    """Run the probes in the interpreter that trains.

    Returns:
        One dictionary a probe: `probe` (what was computed), `seconds`, and `signal` or `error` if it went wrong.
    """
    command = [python or sys.executable, "-c", Path(gpu_probes.__file__).read_text(encoding="utf-8")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        return [{"probe": "start torch", "error": str(error)}]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        results.append({"probe": "start torch", "error": last})
    return results


def findings(results: Iterable[JsonObject]) -> list[Finding]:
    """What the probes that went wrong mean."""
    found = []
    for result in results:
        computed, signal = result["probe"], result.get("signal")
        wrong = f"died of {signal}" if signal else result.get("error")
        if wrong:
            fact = "wrong_product" if "product" in computed else "no_start"
            fact = "wrong_copy" if computed.startswith("copy") else "divided_by_zero" if signal == "SIGFPE" else fact
            found += holding({}, {fact: f"{computed}: {wrong}"})
    return found
