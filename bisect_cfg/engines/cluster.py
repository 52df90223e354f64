"""A Ray cluster: what starts the engine process that has sites there, and what its nodes have."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bisect_cfg.common.fingerprint import Fingerprint
from bisect_cfg.engines.sites import SiteEngine
from bisect_cfg.errors import InputError
from bisect_cfg.targets.script import Script

RAY = "ray"
"""Stands for the cluster that ``RAY_ADDRESS`` names, or else the one of this machine."""

MOST_SLOTS = 16
"""Trials at once if nothing else is said. Simulated with 19 settings, 16 slots are 4.6 times sooner than one for 2.8
times its GPU time; 64 are 5.2 times sooner for 8.9 times."""

EVERY_SLOT = 10_000
"""More than any cluster has: where all nodes are to be seen."""


def ray_command(on: str, slots: int, gpus: int | None) -> list[str]:
    """What starts the engine process of a Ray cluster.

    Args:
        on: `RAY` or an address.
        slots: at most so many trials at once.
        gpus: of each trial; None: one, where there are any.

    Raises:
        InputError: Ray is not installed.
    """
    if on == "slurm":
        raise InputError("Only `bisect-cfg bisect` submits jobs of Slurm.", "In a job that has Ray: --on ray.")
    if importlib.util.find_spec("ray") is None:
        raise InputError(
            "Ray is not installed here, so there is no way to a Ray cluster.",
            'pip install "bisect-cfg[ray]", with the version of Ray and of Python that the cluster has.',
        )
    address = os.environ.get("RAY_ADDRESS") or "auto" if on == RAY else on
    about = {"address": address, "slots": slots, "gpus": gpus, "python": sys.executable}
    return [sys.executable, str(Path(__file__).with_name("ray_process.py")), json.dumps(about)]


def fingerprints_of(command: Sequence[str], python: str) -> dict[str, Fingerprint]:
    """Node -> what an interpreter finds there, of all nodes on which the engine process has sites. Nothing is run.

    Raises:
        InputError: there is no site.
    """
    found: dict[str, Fingerprint] = {}
    target = Script(Path("none.py"), python=python)
    try:
        with tempfile.TemporaryDirectory() as folder:
            SiteEngine(command, target, Path(folder), slots=EVERY_SLOT, on_hello=found.__setitem__).close()
    except InputError:  # no node can run trials, as none sees that folder
        if not found:
            raise
    return found
