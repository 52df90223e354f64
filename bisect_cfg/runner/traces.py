"""What a run tells while it goes on: the events, metric rows and stacks of its probe, or what a command prints.

The files are read while the run still writes them. It can write anything into them: lines of another form are skipped.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from bisect_cfg.common.cells import place_of
from bisect_cfg.common.failures.health import Row, Symptom, Watch, number, step_of
from bisect_cfg.common.failures.metric_rows import KNOWN, rows_in
from bisect_cfg.common.json_files import private
from bisect_cfg.common.text import plain
from bisect_cfg.probe import protocol
from bisect_cfg.probe.redact import mask, scrub
from bisect_cfg.runner.verdict import Metrics

T = TypeVar("T")
E = TypeVar("E", bound=protocol.Event)

FIRST_ROWS, LAST_ROWS = 16, 200
"""Of what was logged before a checkpoint: enough to tell what the run began with and what it was like lately. A trial
that collapses is compared with that each time a row comes."""

TAIL_BYTES, HEAD_BYTES = 1 << 16, 1 << 20
"""Of the end of a log, in which its last lines are looked for; of its beginning, which is compared with others."""

ROUNDED = 1e-4
"""LLaMA-Factory prints the loss with four digits."""

SIGNALS = {
    "Floating point exception": signal.SIGFPE,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
}
"""What faulthandler calls the signals that it handles."""

_FATAL = re.compile(r"Fatal Python error: (?P<what>.+)")
_THREAD = re.compile(r"^(?=(?:Current t|T)hread 0x)", re.MULTILINE)
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


class Tail(Generic[T]):
    """The rows in a file that grows while it is read; `take` adds those of new lines, each ended by one of `ends`."""

    def __init__(self, path: Path, take: Callable[[bytes, list[T]], None], ends: Sequence[bytes] = (b"\n",)) -> None:
        self.path = path
        self.rows: list[T] = []
        self._take, self._ends = take, ends
        self._position = self._size = 0  # up to here its lines were taken, and how long it was

    def read(self) -> bool:
        """Read what was added; whether there was anything, if only half a line."""
        try:
            with self.path.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                if size == self._size:
                    return False
                self._size, self._position = size, min(self._position, size)  # a log can be cut
                stream.seek(self._position)
                data = stream.read()
        except FileNotFoundError:
            return False
        whole = data[: max(map(data.rfind, self._ends)) + 1]
        self._position += len(whole)
        self._take(whole, self.rows)
        return True


def _json_lines(read_row: Callable[[object], T | None]) -> Callable[[bytes, list[T]], None]:
    """How rows of JSON are taken; `read_row` makes a row of each line's data, or None to skip it."""

    def take(lines: bytes, rows: list[T]) -> None:
        for line in lines.split(b"\n")[:-1]:
            # A full disk cuts a line short, and others may write here: the remaining lines still count.
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                row = read_row(mask(json.loads(line)))  # the probe masks what it knows, others do not
                if row is not None:
                    rows.append(row)

    return take


def _printed_lines(lines: bytes, rows: list[Row]) -> None:
    """Take the metric rows that a command prints. Their steps are the command's own, where it prints them."""
    for row in rows_in(lines):
        last = step_of(rows[-1]) if rows else 0
        printed = row.values.get("step")
        if printed is None and rows and _is_again(row.values, rows[-1]):
            rows[-1] = {**row.values, **rows[-1]}
            continue
        step = last + 1 if printed is None or not math.isfinite(printed) else int(printed)
        if step > last:  # several ranks may print a step
            rows.append({**row.values, "step": step})


def _is_again(values: Mapping[str, float], before: Row) -> bool:
    """Whether two rows without steps are of the same one: LLaMA-Factory prints a line of its own beside the Trainer's,
    with fewer metrics (https://github.com/hiyouga/LLaMA-Factory/blob/main/src/llamafactory/train/callbacks.py)."""
    ours, theirs = KNOWN & values.keys(), KNOWN & before.keys()
    fewer = "loss" in ours & theirs and (ours < theirs or theirs < ours)
    return (
        fewer and not abs(values["loss"] - (number(before, "loss") or 0)) > ROUNDED
    )  # so that two NaN are the same, too


class Traces:
    """What one run has told so far: its events, and one metric row for each optimizer step of the training under study.

    Steps are counted from where the run began: of a run from a checkpoint they are not the training's own.

    Args:
        folder: of the run, into which its probe writes.
        printed: whether it is a command without a probe, whose rows are in what it prints into ``log.txt``.
    """

    def __init__(self, folder: Path, printed: bool = False) -> None:
        self.folder = folder
        self.events = Tail(folder / protocol.EVENTS_FILE, _json_lines(read_event))
        self.metrics: Tail[Row] = Tail(folder / protocol.METRICS_FILE, _json_lines(self._metric_row))
        if printed:
            self.metrics = Tail(folder / "log.txt", _printed_lines, ends=(b"\n", b"\r"))
        self._printed = printed
        self.begun: protocol.TrainBegin | None = None
        """The training under study: the last that began; None once the script prepares another one."""
        self.completed: protocol.Completed | None = None
        """The last training that came to its own end before the script did; None if another has begun since."""
        self.before = 0  # steps of the training before the run's first
        self.earlier: tuple[Row, ...] = ()  # the rows of those steps, as the checkpoint has them
        self.changes = 0  # reads that found something new
        self._before: dict[int, int] = {}  # number of a training -> its steps before its first row
        self._ahead: list[Row] = []  # rows of a training whose `TrainBegin` was not read yet
        self._watch = Watch()

    def _metric_row(self, row: object) -> Row | None:
        """One step's metrics as the probe writes them, None of anything else."""
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            return None
        if not isinstance(row.get("time", 0.0), (int, float)):
            return None
        before = self._before.setdefault(row.get("training", 1), max(row["step"] - 1, 0))
        return {**row, "step": row["step"] - before} if before else row

    def read(self) -> bool:
        """Read what is new in both files; whether there was anything."""
        new = any([self.events.read(), self.metrics.read()])
        if new:
            self.changes += 1
            self._select_training()
        return new

    def _select_training(self) -> None:
        """Find the training under study among those of the script, and keep its rows alone."""
        self.begun = self.completed = None
        number = 1
        for event in self.events.rows:
            if isinstance(event, protocol.TrainBegin):
                self.begun, self.completed, number = event, None, event.number
            elif isinstance(event, protocol.Completed):
                self.completed = event
            elif self.completed is not None and (
                isinstance(event, protocol.TrainerBuilt) or _is_training_config(event)
            ):
                self.begun = None
        over = self.begun is None and self.completed is not None
        rows = [(int(row.get("training") or 1), row) for row in (*self._ahead, *self.metrics.rows)]
        # The events were read before the rows: another training may have begun in between.
        self._ahead = [row for training, row in rows if training > number]
        self.metrics.rows = [] if over else [row for training, row in rows if training == number]
        resumed = self.event(protocol.Resumed)
        if resumed is not None and resumed.checkpoint is not None and not self.before:
            self.earlier = _earlier_rows(Path(resumed.checkpoint), resumed.step)
        self.before = self._before.get(number, 0 if resumed is None else resumed.step)

    def adopt(self) -> None:
        """Once the run is over: if it has not trained, take over the events of a child process that built a training
        config. A child writes files of its own until it trains (see the probe's `record`)."""
        if self.begun is not None:
            return
        for path in sorted(self.folder.glob("children/*-events.jsonl"), key=lambda path: path.stat().st_mtime):
            tail = Tail(path, _json_lines(read_event))
            tail.read()
            if any(isinstance(event, protocol.ConfigBuilt) and _is_training_config(event) for event in tail.rows):
                with open(self.events.path, "ab", opener=private) as stream:
                    stream.write(path.read_bytes())
                self.events.read()
                return

    def event(self, kind: type[E]) -> E | None:
        """The last event of that kind, or None."""
        return next((row for row in reversed(self.events.rows) if isinstance(row, kind)), None)

    def all(self, kind: type[E]) -> list[E]:
        """All events of that kind, in their order; of steps those of the training under study alone."""
        rows = self.events.rows
        begun = [number for number, row in enumerate(rows) if isinstance(row, protocol.TrainBegin)]
        rows = rows[begun[-1] :] if begun and kind in (protocol.StepRows, protocol.CheckpointSaved) else rows
        return [row for row in rows if isinstance(row, kind)]

    @property
    def trains(self) -> bool:
        """Whether it is training, as far as that can be told: a command always may be."""
        return self._printed or (self.begun is not None and self.completed is None)

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
        return any(row.final for row in self.all(protocol.Raised))


def add_event(folder: Path, event: protocol.Event) -> None:
    """Write an event of ours beside those of a run's probe."""
    with open(folder / protocol.EVENTS_FILE, "ab", opener=private) as stream:
        stream.write(json.dumps(protocol.event_row(event, 0.0)).encode() + b"\n")


def read_event(row: object) -> protocol.Event | None:
    """Return the event of a line's data; None for what is none, or of a kind that this version does not know."""
    if not isinstance(row, dict):
        return None
    tag = row.get("event")
    cls = protocol.Event.known.get(tag) if isinstance(tag, str) else None
    if cls is None:
        return None
    try:
        event: protocol.Event = msgspec.convert({name: value for name, value in row.items() if value is not None}, cls)
        object.__setattr__(event, "time", msgspec.convert(row.get("time", 0.0), float))
    except msgspec.ValidationError:
        return None
    return event


def _is_training_config(event: protocol.Event) -> bool:
    return getattr(event, "kind", "") == "args"


@functools.lru_cache(maxsize=8)
def _earlier_rows(checkpoint: Path, step: int) -> tuple[Row, ...]:
    """The first and the last rows that a training had logged when it saved a checkpoint after this step. They are
    numbered backwards from it (0 is the last). Empty where they cannot be read."""
    try:
        logged = json.loads((checkpoint / protocol.STATE_FILE).read_text(encoding="utf-8"))["log_history"]
        rows = [
            {name: _number(value) for name, value in row.items()} | {"step": int(row["step"]) - step}
            for row in logged
            if "loss" in row and isinstance(row.get("step"), (int, float)) and row["step"] <= step
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()
    return tuple(rows[:FIRST_ROWS] + rows[max(len(rows) - LAST_ROWS, FIRST_ROWS) :])


def _number(value: float | str | None) -> float | str | None:
    with contextlib.suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value


def tail_of_log(path: Path, lines: int = 12) -> list[str]:
    """The last lines of a log as text; empty without a log."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
            return _lines_of(stream.read())[-lines:]
    except OSError:
        return []


def log_lines(path: Path) -> list[str]:
    """The first lines of a log as text; empty without a log."""
    try:
        with path.open("rb") as stream:
            return _lines_of(stream.read(HEAD_BYTES))
    except OSError:
        return []


def _lines_of(log: bytes) -> list[str]:
    """Lines that are not empty, without secrets; of the states of a progress bar the last one."""
    rows = [scrub(plain(line)).rstrip() for line in log.decode("utf-8", "replace").split("\n")]
    return [row for row in rows if row]


def unprinted(traces: Traces, log: str) -> list[str]:
    """The traceback of the exception that ended a run, as the probe saw it, in lines. Empty if the log shows it, as it
    does unless the script's output goes elsewhere."""
    raised = traces.event(protocol.Raised)
    if raised is None:
        return []
    frames = traceback.StackSummary.from_list([(*frame, None) for frame in raised.frames])
    text = "".join(["Traceback (most recent call last):\n", *frames.format(), f"{raised.type}: {raised.message}"])
    lines = [scrub(line) for line in text.split("\n")]
    # A syntax error is printed without its place, which its text ends with.
    begun = (line for line in log.splitlines() if line.startswith(f"{raised.type}: "))
    shown = lines[-1] in log or any(lines[-1].startswith(line) for line in begun)
    return [] if shown else lines


# ------------------------------------------------------------------------------------------------------ stacks


_OF_COLLECTIVES = "/torch/distributed/"


def stacks_in(folder: Path) -> str:
    """What faulthandler wrote in the folder of a process; "" if nothing."""
    try:
        return (folder / protocol.STACKS_FILE).read_text(errors="replace")
    except OSError:
        return ""


def fatal_signal(stacks: str) -> signal.Signals | None:
    """The signal that the process died of; None if faulthandler says nothing of one."""
    found = _FATAL.search(stacks)
    return SIGNALS.get(found["what"].strip()) if found else None


def threads_in(stacks: str) -> list[list[protocol.Frame]]:
    """The stacks of all threads that faulthandler dumped, each innermost frame first. The last one is of the thread
    that died, or of the main thread where the process was asked for its stacks."""
    texts = [text.partition("\n\n")[0] for text in _THREAD.split(stacks)[1:]]
    texts.sort(key=lambda text: text.startswith("Current"))
    return [[(row["path"], int(row["line"]), row["function"]) for row in _FRAME.finditer(text)] for text in texts]


def stack_frames(stacks: str) -> list[protocol.Frame]:
    """The last of `threads_in`; empty if there is none."""
    return next(reversed(threads_in(stacks)), [])


def innermost_frame(folder: Path) -> str:
    """Where the thread that crashed stood (of a hang, the main thread): ``function (file.py:27)``, "" if unknown. Of a
    collective, which stands in torch's code, the line that called it: ``all_reduce, called by sync (train.py:75)``."""
    frames = stack_frames(stacks_in(folder))
    if not frames:
        return ""
    collective = _OF_COLLECTIVES in frames[0][0]
    caller = next((frame for frame in frames if _OF_COLLECTIVES not in frame[0]), None) if collective else None
    path, line, function = caller or frames[0]
    called = "" if caller is None else f"{frames[0][2]}, called by "
    return f"{called}{function} ({place_of(path, line) or f'{Path(path).name}:{line}'})"
