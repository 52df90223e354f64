"""Reading what a probe writes while it is still being written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bisect_cfg.diagnosis._text import plain
from bisect_cfg.diagnosis.stacks import stack_frames
from bisect_cfg.jsonfile import private
from bisect_cfg.probe.secrets import holds_known, scrub, scrub_texts

Row = dict[str, Any]

_NUMBER = (int, float)
_EVENTS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "config": {"kind": str, "index": int, "cls": str, "module": str, "raw": dict, "defaults": dict, "types": dict},
    "resolved": {"kind": str, "index": int, "values": dict},
    "assigned": {"kind": str, "index": int, "name": str},
    "invalid": {"type": str, "message": str},
    "exception": {"type": str, "message": str, "frames": list},
    "train_begin": {},
    "train_end": {"steps": int},
    "non_finite_parameters": {"step": int, "parameter": str},
    "arrived": {"environment": dict, "world_size": int},
    "exit": {"code": int},
    "over": {"code": int},
    "unwatched": {"command": str},
}
"""What the tool reads of the probe's events, and of which type it is."""

_OPTIONAL: dict[str, type | tuple[type, ...]] = {"own_files": list, "modules": list, "environment": dict}
"""The same for what an event may have."""


def is_event(row: Any) -> bool:
    """Whether a line is an event as the probe writes them: the script can write into that file as well."""
    if not (isinstance(row, dict) and isinstance(row.get("event"), str) and _is_number(row.get("time", 0.0))):
        return False
    wanted = _EVENTS.get(row["event"], {})
    if not all(isinstance(row.get(name), kind) for name, kind in wanted.items()):
        return False
    if not all(isinstance(row[name], kind) for name, kind in _OPTIONAL.items() if row.get(name) is not None):
        return False
    frames = row.get("frames", []) if row["event"] == "exception" else []
    return all(isinstance(frame, list) and len(frame) == 3 for frame in frames)


def is_metrics(row: Any) -> bool:
    """Whether a line is one step's metrics as the probe writes them."""
    return isinstance(row, dict) and _is_number(row.get("time", 0.0)) and isinstance(row.get("step"), int)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBER) and not isinstance(value, bool)


@dataclass
class Tail:
    """The complete lines of a growing file of JSON lines."""

    path: Path
    is_row: Callable[[Any], bool] = is_event
    rows: list[Row] = field(default_factory=list)
    _position: int = 0

    def read(self) -> bool:
        """Take in what has been added; whether there was anything."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._position)
                data = stream.read()
        except FileNotFoundError:
            return False
        end = data.rfind(b"\n") + 1
        self._position += end
        new = data[:end].split(b"\n")[:-1]
        for line in new:
            # Cut short by a full disk, or written by somebody else: the other lines still count.
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if holds_known(line.decode("utf-8", "replace")):  # of an argument, say: the probe does not know them
                    row = scrub_texts(row)
                if self.is_row(row):
                    self.rows.append(row)
        return bool(new)


@dataclass
class Traces:
    """Both files of one trial: what happened, and one row of metrics per optimizer step."""

    events: Tail
    metrics: Tail

    @classmethod
    def of(cls, folder: Path) -> Traces:
        return cls(Tail(folder / "events.jsonl"), Tail(folder / "metrics.jsonl", is_metrics))

    def read(self) -> bool:
        """Take in what is new in either; whether there was anything."""
        seen = [self.events.read(), self.metrics.read()]
        return any(seen)

    def adopt(self) -> None:
        """Once the run is over: if it never came to train, and a process that it started has built a training config,
        take over what that one wrote. It keeps to files of its own until it trains (see the probe's `record`)."""
        if self.event("train_begin"):
            return
        folder = self.events.path.parent
        for path in sorted(folder.glob("children/*-events.jsonl"), key=lambda path: path.stat().st_mtime):
            tail = Tail(path)
            tail.read()
            if any(row["event"] == "config" and row["kind"] == "args" for row in tail.rows):
                with open(self.events.path, "ab", opener=private) as stream:
                    stream.write(path.read_bytes())
                self.events.read()
                return

    def event(self, kind: str, **wanted: Any) -> Row | None:
        """The last event of that kind with those details, or None."""
        for row in reversed(self.events.rows):
            if row["event"] == kind and all(row.get(name) == value for name, value in wanted.items()):
                return row
        return None


def tail_of_log(path: Path, lines: int = 12, limit: int = 65536) -> list[str]:
    """The last lines of a log as text, the states of a progress bar reduced to the last one.

    Args:
        path: the log; may not exist.
        lines: how many lines at most.
        limit: how many bytes at the end of the file are looked at.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - limit))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    rows = [scrub(plain(line)).rstrip() for line in text.split("\n")]
    return [row for row in rows if row][-lines:]


def innermost_frame(folder: Path) -> str:
    """Where the thread that crashed (or the main thread of a hang) was: ``function (file.py:27)``, "" if unknown."""
    try:
        found = stack_frames((folder / "stacks.txt").read_text(errors="replace"))
    except OSError:
        return ""
    return f"{found[0][2]} ({Path(found[0][0]).name}:{found[0][1]})" if found else ""
