"""Who runs a trial, and whether that process still lives."""

from __future__ import annotations

import os
import socket

from bisect_cfg.jsonfile import JsonObject

SAME_START_SECONDS = 5.0
"""A process's start time moves a little when the clock is set."""


def this_process() -> JsonObject:
    """Who runs a trial, so that others can tell whether it lives."""
    import psutil

    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def same_process(worker: JsonObject, other: JsonObject) -> bool:
    """Whether two are one and the same of this machine: process numbers are used again, so the start time counts."""
    return worker.get("pid") == other["pid"] and _same_start(worker, other["started"])


def is_running(worker: JsonObject) -> bool:
    """Whether that process of this machine still runs."""
    import psutil

    try:
        process = psutil.Process(int(worker["pid"]))
        return _same_start(worker, process.create_time()) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False


def _same_start(worker: JsonObject, started: float) -> bool:
    return abs(float(worker.get("started", 0)) - started) < SAME_START_SECONDS
