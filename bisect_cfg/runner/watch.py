"""Watching a run until it ends, or ending it."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bisect_cfg.common.failures.tracebacks import source_of
from bisect_cfg.common.json_files import digest, private
from bisect_cfg.probe.protocol import STACK_SIGNAL, STACKS_FILE, Frame
from bisect_cfg.runner.hang import IN_TRAINING, WITHIN, Patience, Place, Silence, heartbeat_in
from bisect_cfg.runner.processes import catches
from bisect_cfg.runner.supervisor import Run
from bisect_cfg.runner.traces import Traces, threads_in
from bisect_cfg.runner.training import Training

POLL_SECONDS = 0.02
"""How often a running trial is looked at: short beside the shortest trial, costly to nobody (about 0.1 ms a look)."""

STACK_DUMP_SECONDS = 1.0
"""How long a silent process gets to write its Python stacks."""

LAST_SECONDS = 2.0
"""An exception that nothing has caught is the end of a run. The process gets this long to end by itself, with its
traceback printed and a status of its own; one whose other threads or exit handlers keep it alive is ended then."""


@dataclass(frozen=True)
class Ending:
    """How a run came to its end, and how it was run; stored in ``ending.json``. Times are in seconds."""

    exit_code: int | None  # None where we ended it
    hang: str | None  # why it was called a hang
    seconds: float
    longest_silence: float = 0.0  # in training, outside of named slow phases
    phases: Mapping[str, float] = field(default_factory=dict)  # name of a slow phase -> its longest silence
    costly: bool = False  # whether it was ended because it takes longer than can be afforded
    stood: Sequence[Place] = ()  # where it hung; empty if it did not, or if that is not known
    paused: Sequence[Place] = ()  # where it stood in pauses after which it went on
    horizon: int | None = None  # optimizer steps that it was to make; None for all the script has
    steps: int = 0  # metric rows
    level: str = ""  # its start
    watched: bool = True  # whether by a probe
    node: str = ""  # where it ran; "" on the tool's own machine


def watch(
    child: Run | Training,
    traces: Traces,
    patience: Patience,
    *,
    enough: Callable[[Traces], bool] = lambda traces: False,
    progress: Callable[[Traces], None] = lambda traces: None,
    interrupted: threading.Event | None = None,
    costly: Callable[[Traces, float], bool] = lambda traces, seconds: False,
) -> Ending:
    """Watch a run until it ends, or end it: when it hangs, when enough is known, when we are interrupted. Afterwards
    nothing of it is left.

    Args:
        child, traces: the run, and what it writes, which is read here.
        patience: when silence is a hang.
        enough: called after every new row; True ends the run (a silent failure is certain).
        progress: called after every new row or event, for a live view.
        interrupted: set by another thread to end the run.
        costly: called all the time with the seconds since the start; True ends the run, which cannot be afforded.

    Raises:
        KeyboardInterrupt: `interrupted` was set.
    """
    start, died = time.monotonic(), math.inf  # when its last exception was seen
    silence, asked = Silence(patience), False

    def ending(code: int | None, hang: str | None = None) -> Ending:
        return ending_of(silence, code, hang, time.monotonic() - start)

    try:
        while True:
            code, now = child.wait(POLL_SECONDS), time.monotonic()
            news = traces.read()
            if news:
                progress(traces)
            if code is None and news and enough(traces):
                return ending(None)
            hang = silence.look(
                now, traces.changes, heartbeat_in(traces.folder), traces.trains, len(traces.metrics.rows)
            )
            if code is not None:
                return ending(code)
            if interrupted is not None and interrupted.is_set():
                raise KeyboardInterrupt
            if traces.died:
                died = min(died, now)
                if now - died > LAST_SECONDS:
                    return ending(None)
            elif costly(traces, now - start):
                return replace(ending(None), costly=True)
            elif hang and asked:  # it has not moved since it was asked for its stacks
                return ending(None, hang)
            elif hang or silence.wants_stacks:
                silence.add_stacks(look_at_stacks(child, keep=hang is not None))
            asked = hang is not None
    finally:
        child.end()


def ending_of(silence: Silence, code: int | None, hang: str | None, seconds: float) -> Ending:
    """How a run ended after so many seconds, with what its silences showed."""
    stood = [] if hang is None else sorted(silence.stood)
    if code == 0:
        silence.end()
    pauses = {doing: round(longest, 3) for doing, longest in silence.pauses.items()}
    longest = pauses.pop(IN_TRAINING, 0.0)
    return Ending(code, hang, seconds, longest, pauses, stood=stood, paused=sorted(silence.places))


def look_at_stacks(child: Run | Training, keep: bool = False) -> set[Place]:
    """Ask all processes of a run for their stacks; where it stands, empty if one of them does not answer. Unless
    `keep`, the stacks are taken out of the files again."""
    probed = child.probed()
    # The signal would kill a process without the handler: one that has just begun, or has become another program.
    asked = [pid for pid in probed.values() if pid is not None and catches(pid, STACK_SIGNAL)]
    sizes = {path: path.stat().st_size for folder in probed if (path := folder / STACKS_FILE).is_file()}
    for pid in asked:
        with contextlib.suppress(OSError):
            os.kill(pid, STACK_SIGNAL)
    if asked:
        time.sleep(STACK_DUMP_SECONDS)
    written = []
    for path, size in sizes.items():
        with contextlib.suppress(OSError), open(path, "r+b", opener=private) as stream:
            stream.seek(size)
            written.append(stream.read().decode("utf-8", "replace"))
            if not keep:
                stream.truncate(size)
    return places_of(written) if len(asked) == len(written) == len(probed) else set()


def places_of(stacks: Sequence[str]) -> set[Place]:
    """Where a run stands, by the stacks of its processes: line by line, and, where the training has called a function
    of the user's, by that function. Digests, so that no secret of a path is stored; empty if one process is silent.

    Threads are a set, since how many of a pool are idle is a matter of chance.
    """
    threads = [threads_in(text) for text in stacks]
    if not threads or not all(threads):
        return set()
    exact = digest([sorted({tuple(frames) for frames in of_process}) for of_process in threads])
    main = [of_process[-1] for of_process in threads]
    within = [_within(frames) for frames in main]
    return {exact} | ({WITHIN + digest(within)} if within != main else set())


def _within(frames: list[Frame]) -> list[Frame]:
    """A stack, innermost frame first, without what the user's innermost function called and the line that it is at;
    whole where no library has called such a function."""
    own = next((place for place, frame in enumerate(frames) if _is_own(frame)), len(frames))
    if all(map(_is_own, frames[own:])):
        return frames
    path, _, function = frames[own]
    return [(path, 0, function), *frames[own + 1 :]]


def _is_own(frame: Frame) -> bool:
    return not source_of(frame[0])[0]
