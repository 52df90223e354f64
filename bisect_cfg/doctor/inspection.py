"""Run a user's command up to its training, never into it, and hear what it sets and where it runs.

For `bisect-cfg doctor`. The command may be a launcher: then every process that it starts tells of itself. The other
side is `bisect_cfg.probe.dry_run`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.capture.captured import Capture, read_capture
from bisect_cfg.common.fingerprint import with_loaded_cublas
from bisect_cfg.common.types import Fingerprint
from bisect_cfg.jsonfile import write_json
from bisect_cfg.probe import machine, packages
from bisect_cfg.probe.protocol import (
    ORDERS_FILE,
    Arrived,
    ConfigInvalid,
    Event,
    Inspect,
    Raised,
    Stopped,
    to_json,
)
from bisect_cfg.trials.files import Traces, tail_of_log
from bisect_cfg.trials.process import LAST_SECONDS, POLL_SECONDS, LaunchedChild, Reaper, kill_group, launch
from bisect_cfg.trials.server import probe_environment
from bisect_cfg.trials.training import check_watched

START_SECONDS = 1800.0
"""How long a script may load data and a model before it comes to its trainer; as for a first trial."""

MEETING_SECONDS = 180.0
"""How long the other processes of a launched run may come after the first. They start together and import the same;
what separates them is a cold disk."""

LOG_LINES = 8


@dataclass(frozen=True)
class InspectedRank:
    """What one process told.

    Attributes:
        environment: its fingerprint, with `rank`, `local_rank`, `world_size` and `host`.
        capture: its configuration; None if it never came to one.
        dtype: of the weights that the trainer was given, None if it was to load them itself.
        refused: why the library refused the configuration, in its own words.
        exception: what ended the script before it was to be ended, as ``Type: message``.
        stopped: whether it came to where it was to be ended.
    """

    environment: Fingerprint
    capture: Capture | None
    dtype: str | None
    refused: str | None
    exception: str | None
    stopped: bool


@dataclass(frozen=True)
class Inspection:
    """What a command showed: its processes by rank, its last lines, and how it ended."""

    ranks: tuple[InspectedRank, ...]
    log: tuple[str, ...]
    exit_code: int | None
    seconds: float


def inspect(command: Sequence[str], *, launched: bool, shared: bool) -> Inspection:
    """Run a command up to its training.

    Args:
        command: the user's own.
        launched: whether it is a launcher, not the script itself.
        shared: whether other machines may take part; they must see the folder that all write into, which then lies
            in the working folder.

    Raises:
        OSError: the command cannot be started.
        InputError: it starts something that cannot be watched.
    """
    base = os.getcwd() if shared and os.access(".", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=".bisect-cfg-doctor-", dir=base))
    reaper = Reaper()
    started = time.monotonic()
    try:
        orders_path = folder / ORDERS_FILE
        environment, restore = probe_environment(os.environ, orders_path)
        orders = Inspect(restore, str(folder), [packages.__file__, machine.__file__], launched)
        write_json(orders_path, to_json(orders))
        process = launch(command, environment, folder, "log.txt", reaper)
        try:
            code = _wait(process, folder, started)
        finally:
            kill_group(process.pid)
            process.wait()
        check_watched(_traces(folder))
        found = [_rank(path) for path in sorted(folder.glob("rank-*"))]
        ranks = sorted((one for one in found if one), key=lambda one: one.environment["rank"])
        log = tail_of_log(folder / "log.txt", LOG_LINES)
        return Inspection(tuple(ranks), tuple(log), code, time.monotonic() - started)
    finally:
        reaper.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: LaunchedChild, folder: Path, started: float) -> int | None:
    """Until it ends, or until waiting longer is of no use; its exit code, None if it had to be ended."""
    first: float | None = None
    over: float | None = None
    while (code := process.poll()) is None:
        now = time.monotonic()
        if first is None and any(folder.glob("rank-*")):
            first = now
        several = first is not None and _world(folder) > 1
        if over is None and not several and any(_traces(path).died for path in folder.glob("rank-*")):
            over = now
        if over is not None and now - over > LAST_SECONDS:  # other threads of it, or its exit handlers, stay
            return None
        if now - started > START_SECONDS or (several and now - first > MEETING_SECONDS):
            return None
        time.sleep(POLL_SECONDS)
    return code


def _world(folder: Path) -> int:
    for path in folder.glob("rank-*"):
        arrived = _traces(path).event(Arrived)
        if arrived is not None:
            return arrived.world_size
    return 1


def _traces(folder: Path) -> Traces:
    traces = Traces.of(folder)
    traces.read()
    return traces


def _rank(folder: Path) -> InspectedRank | None:
    traces = _traces(folder)
    arrived, stopped = traces.event(Arrived), traces.event(Stopped)
    if arrived is None:
        return None
    found = dict(arrived.environment)
    environment = with_loaded_cublas(found, found.pop("loaded_cublas"))
    environment |= {name: getattr(arrived, name) for name in ("rank", "local_rank", "world_size", "host")}
    # Where a script configures several trainings, the one that the trainer got.
    rows: list[Event] = traces.events.rows
    if stopped is not None and stopped.args is not None:
        rows = [row for row in rows if getattr(row, "kind", "") != "args" or row.index == stopped.args]
    invalid, exception = traces.event(ConfigInvalid), traces.event(Raised)
    return InspectedRank(
        environment,
        read_capture(rows),
        stopped.trained_dtype if stopped else None,
        invalid.message if invalid and not stopped else None,
        f"{exception.type}: {exception.message}" if exception and not stopped else None,
        stopped is not None,
    )
