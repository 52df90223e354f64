"""Reading what a probe writes while it is still being written."""

from __future__ import annotations

import contextlib
import functools
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from bisect_cfg.cells import place_of
from bisect_cfg.common.failures.health import Row, Symptom, Watch
from bisect_cfg.common.text import plain
from bisect_cfg.jsonfile import private
from bisect_cfg.probe.protocol import (
    EVENTS_FILE,
    METRICS_FILE,
    STACKS_FILE,
    STATE_FILE,
    Completed,
    ConfigBuilt,
    Event,
    Raised,
    Resumed,
    TrainBegin,
    TrainerBuilt,
    read_event,
)
from bisect_cfg.probe.secrets import holds_known, scrub, scrub_texts
from bisect_cfg.runner.verdict import Metrics
from bisect_cfg.trials.stacks import stack_frames

T = TypeVar("T")
E = TypeVar("E", bound=Event)


FIRST_ROWS, LAST_ROWS = 16, 200
"""Of what was logged before a checkpoint: enough to tell what the run began with and what it was like lately. A trial
that collapses is compared with that each time a row comes."""


TAIL_BYTES = 1 << 16
"""Of the end of a log, in which its last lines are looked for."""


def read_metrics(row: object) -> Row | None:
    """One step's metrics as the probe writes them; None for anything else."""
    known = isinstance(row, dict) and isinstance(row.get("step"), int)
    time = row.get("time", 0.0) if known else None
    return row if isinstance(time, (int, float)) and not isinstance(time, bool) else None


class Counted:
    """Rows whose steps are counted from where the run began: those of one that goes on from a checkpoint are not the
    training's.

    Attributes:
        before: number of a training -> its steps before its first row.
    """

    def __init__(self) -> None:
        self.before: dict[int, int] = {}

    def __call__(self, row: object) -> Row | None:
        found = read_metrics(row)
        if found is None:
            return None
        before = self.before.setdefault(found.get("training", 1), max(found["step"] - 1, 0))
        return {**found, "step": found["step"] - before} if before else found


class Tail(Generic[T]):
    """The complete lines of a growing file of JSON lines.

    Args:
        path: of the file.
        read_row: what a line is; None for one that is passed over.

    Attributes:
        rows: what has been read.
    """

    def __init__(self, path: Path, read_row: Callable[[object], T | None]) -> None:
        self.path = path
        self.rows: list[T] = []
        self._read_row = read_row
        self._position = 0
        self._held_secret = False

    @property
    def clean(self) -> bool:
        """Whether no line of the file holds a secret that is known, as far as it was read; that must be all of it."""
        with contextlib.suppress(OSError):
            return not self._held_secret and self.path.stat().st_size == self._position
        return True

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
            secret = holds_known(line.decode("utf-8", "replace"))  # the probe masks what it knows, others do not
            self._held_secret |= secret
            # Cut short by a full disk, or written by somebody else: the other lines still count.
            with contextlib.suppress(ValueError, RecursionError):
                plain = json.loads(line)
                row = self._read_row(scrub_texts(plain) if secret else plain)
                if row is not None:
                    self.rows.append(row)
        return bool(new)


@functools.lru_cache(maxsize=8)
def earlier_rows(checkpoint: Path, step: int) -> tuple[Row, ...]:
    """What a run had logged by the time of a checkpoint: the first rows and the last, their steps counted from there
    backwards (0 is the last). Empty where that cannot be read.

    Args:
        checkpoint: its folder.
        step: of the training, at which it was saved.
    """
    try:
        logged = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["log_history"]
        rows = [
            {**row, "step": int(row["step"]) - step}
            for row in logged
            if "loss" in row and isinstance(row.get("step"), (int, float)) and row["step"] <= step
        ]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()
    numbers = [
        {name: float(v) if isinstance(v, str) and _is_number(v) else v for name, v in row.items()} for row in rows
    ]
    return tuple(numbers[:FIRST_ROWS] + numbers[max(len(numbers) - LAST_ROWS, FIRST_ROWS) :])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass
class Traces:
    """Both files of one trial: what happened, and one row of metrics per optimizer step.

    Attributes:
        events: of the whole run.
        metrics: of the training that the run is about; its steps are counted from where the run began.
        counted: does that.
        begun: that training: the last that has begun; None once the script prepares another one.
        completed: the last that has come to its own end, with the script going on; None if another has begun since.
        before: steps of the training before the run's: of one that goes on from a checkpoint.
        earlier: rows of before, as the checkpoint has them: what its metrics were like.
    """

    events: Tail[Event]
    metrics: Tail[Row]
    counted: Counted
    begun: TrainBegin | None = None
    completed: Completed | None = None
    before: int = 0
    earlier: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        self._watch = Watch()
        self._ahead: list[Row] = []  # of a training whose beginning was not read yet

    @classmethod
    def of(cls, folder: Path) -> Traces:
        counted = Counted()
        return cls(Tail(folder / EVENTS_FILE, read_event), Tail(folder / METRICS_FILE, counted), counted)

    def read(self) -> bool:
        """Take in what is new in either; whether there was anything."""
        seen = [self.events.read(), self.metrics.read()]
        if any(seen):
            self._tell_trainings_apart()
        return any(seen)

    def _tell_trainings_apart(self) -> None:
        self.begun = self.completed = None
        number = 1
        for row in self.events.rows:
            if isinstance(row, TrainBegin):
                self.begun, self.completed, number = row, None, row.number
            elif isinstance(row, Completed):
                self.completed = row
            elif self.completed is not None and (isinstance(row, TrainerBuilt) or getattr(row, "kind", "") == "args"):
                self.begun = None
        # The events were read first: a row can be there of a training that has begun in between.
        over, last = self.begun is None and self.completed is not None, self.metrics.rows[-1:]
        if number > 1 or over or self._ahead or any(row.get("training", 1) > 1 for row in last):
            rows = [(row.get("training", 1), row) for row in (*self._ahead, *self.metrics.rows)]
            self._ahead = [row for training, row in rows if training > number]
            self.metrics.rows = [] if over else [row for training, row in rows if training == number]
        resumed = self.event(Resumed)
        if resumed is not None and resumed.checkpoint is not None and not self.before:
            self.earlier = earlier_rows(Path(resumed.checkpoint), resumed.step)
        self.before = self.counted.before.get(number, 0 if resumed is None else resumed.step)

    def adopt(self) -> None:
        """Once the run is over: if it never came to train, and a process that it started has built a training config,
        take over what that one wrote. It keeps to files of its own until it trains (see the probe's `record`)."""
        if self.begun is not None:
            return
        folder = self.events.path.parent
        for path in sorted(folder.glob("children/*-events.jsonl"), key=lambda path: path.stat().st_mtime):
            tail = Tail(path, read_event)
            tail.read()
            if any(isinstance(row, ConfigBuilt) and row.kind == "args" for row in tail.rows):
                with open(self.events.path, "ab", opener=private) as stream:
                    stream.write(path.read_bytes())
                self.events.read()
                return

    def event(self, kind: type[E]) -> E | None:
        """The last event of that kind, or None."""
        return next((row for row in reversed(self.events.rows) if isinstance(row, kind)), None)

    def all(self, kind: type[E]) -> list[E]:
        """All events of that kind, in their order."""
        return [row for row in self.events.rows if isinstance(row, kind)]

    @property
    def as_metrics(self) -> Metrics:
        """The metric rows, as a run is judged by them."""
        return Metrics(self.metrics.rows, self.earlier)

    def symptoms(self, ended: bool) -> list[Symptom]:
        """What the metrics show so far; see `health.symptoms`."""
        return self._watch.symptoms(self.metrics.rows, ended, self.earlier)

    @property
    def died(self) -> bool:
        """Whether an exception has ended the run."""
        return any(row.final for row in self.all(Raised))


def tail_of_log(path: Path, lines: int = 12) -> list[str]:
    """The last lines of a log as text, the states of a progress bar reduced to the last one.

    Args:
        path: the log; may not exist.
        lines: how many lines at most.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    rows = [scrub(plain(line)).rstrip() for line in text.split("\n")]
    return [row for row in rows if row][-lines:]


def traceback_of(traces: Traces) -> list[str]:
    """The exception that ended a run, as the probe saw it, in the lines that Python prints; of a script that sends its
    own output elsewhere the log has none. Empty if there was none."""
    raised = traces.event(Raised)
    if raised is None:
        return []
    frames = traceback.StackSummary.from_list([(*frame, None) for frame in raised.frames])
    printed = ["Traceback (most recent call last):\n", *frames.format(), f"{raised.type}: {raised.message}"]
    return [scrub(line) for line in "".join(printed).split("\n")]


def unprinted(traces: Traces, log: str) -> list[str]:
    """`traceback_of` a run whose log does not show it, since what the script prints goes elsewhere; else empty."""
    told, raised = traceback_of(traces), traces.event(Raised)
    if raised is None or told[-1] in log:
        return []
    # A syntax error is printed without its place, which its text ends with.
    begun = (line for line in log.splitlines() if line.startswith(f"{raised.type}: "))
    return [] if any(told[-1].startswith(line) for line in begun) else told


def innermost_frame(folder: Path) -> str:
    """Where the thread that crashed (or the main thread of a hang) was: ``function (file.py:27)``, "" if unknown."""
    try:
        found = stack_frames((folder / STACKS_FILE).read_text(errors="replace"))
    except OSError:
        return ""
    if not found:
        return ""
    path, line, function = found[0]
    return f"{function} ({place_of(path, line) or f'{Path(path).name}:{line}'})"
