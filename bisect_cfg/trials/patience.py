"""When is silence a hang?

What a trial shows of itself: the events and metric rows that its probe writes, and the heartbeats it counts (see
`bisect_cfg.probe.heartbeat`). How long it may show nothing depends on what it is doing. Once steps run, a run tells its
own pace: ten times its longest silence so far is a hang. A step that takes thirty times as long as the others is not,
as long as something happens in it.

`Silence` is pure: it is told what was seen and when.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bisect_cfg.probe.protocol import EVERY_STEP, HEARTBEAT_FILE, HEARTBEAT_NAME, HEARTBEAT_SIZE

HANG_TIMES = 10.0
"""Nothing for so many times the longest silence so far is a hang."""

HANG_SECONDS = 20.0
"""... and never less than this: an ordinary step has pauses (a backward pass of long completions, an evaluation)
that its first steps need not have had."""

UNKNOWN_SECONDS = 120.0
"""The least limit where nothing is known yet: for the first step of a script whose pace nobody has seen."""

FIRST_STEP_SECONDS = 60.0
"""The least limit for the first step of any other trial: it pays once for allocation, compilation and caches."""

PHASE_SECONDS = 120.0
"""The least limit while something goes on that is known to be slow and silent: an import, a model being loaded, a
compiler, an engine that starts, a reward call, a checkpoint, the first collective. Each can take a minute without
anything being wrong."""

STEP_TIMES = 30.0
"""A phase that comes in every step hangs when it has been silent for so many times this run's longest step: that tells
how long it takes at most, and a judge that answers in two seconds may take a minute when it is busy."""

STEPS_SEEN = 10
"""... once so many steps have been seen, of all runs so far together; or once one has hung (`runs.Pauses`)."""

LOOK_SECONDS = 1.0
"""A single look counts for no more silence than this. Looks are hundredths of a second apart; if one comes later, it is
we who were stopped or starved, and the trial may have been, too."""


@dataclass(frozen=True)
class Patience:
    """How long a process may stay silent before it is called a hang, in seconds.

    Attributes:
        before_training: until training begins (loading data and models counts here).
        first_step: from the start of training to the end of the first optimizer step.
        step: between two optimizer steps.
        times: None: these limits are as they are, and only events and optimizer steps end a silence. Otherwise
            heartbeats do, too; each limit is the least, and so many times the longest silence seen is the limit
            where that is longer.
        phase: the least limit in a named slow phase. Only with `times`.
        seen: name of a phase -> its longest silence in earlier runs. Only with `times`.
        steady: whether so much has been seen that a phase that comes in every step is judged by those.
    """

    before_training: float
    first_step: float
    step: float
    times: float | None = None
    phase: float = PHASE_SECONDS
    seen: Mapping[str, float] = field(default_factory=dict)
    steady: bool = False


class Silence:
    """How long a trial has been silent, and whether that is a hang.

    Args:
        patience: of the trial.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._sign: Hashable = None
        self._looked: float | None = None
        self._phase = ""
        self._training = False
        self._steps, self._step, self._longest_step = 0, 0.0, 0.0
        self.seconds = 0.0
        """Of the present silence."""
        self.longest = 0.0
        """The longest silence in training so far that has ended, outside of named phases."""
        self.phases: dict[str, float] = {}
        """Name of a phase -> the longest silence in it that has ended."""

    def look(self, now: float, written: Hashable, beat: tuple[int, str], training: bool, steps: int) -> str | None:
        """Take in what is to be seen of the trial now.

        Args:
            now: of a monotonic clock, in seconds.
            written: changes with every event and row of metrics.
            beat: the count of heartbeats, and the name of the phase, "" for none.
            training: whether training has begun.
            steps: optimizer steps seen.

        Returns:
            Why it is a hang, None if it is not (yet).
        """
        passed = 0.0 if self._looked is None else min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        self.seconds += passed
        self._step += passed if training else 0.0
        if steps != self._steps:
            self._longest_step = max(self._longest_step, self._step)
            self._steps, self._step = steps, 0.0
        sign = (written, beat if self._patience.times is not None else None)
        if sign != self._sign:
            self._ended()
            self._sign, self.seconds = sign, 0.0
        self._phase, self._training = beat[1], training
        limit, what = self._limit(steps)
        return f"{what} for {self.seconds:.0f} s" if self.seconds > limit else None

    def _ended(self) -> None:
        if self._phase:
            self.phases[self._phase] = max(self.phases.get(self._phase, 0.0), self.seconds)
        elif self._training:
            self.longest = max(self.longest, self.seconds)

    def _limit(self, steps: int) -> tuple[float, str]:
        patience = self._patience
        if patience.times is None:
            if not self._training:
                return patience.before_training, "no start of training"
            return (patience.step if steps else patience.first_step), "no optimizer step"
        if self._phase:
            seen = max(patience.seen.get(self._phase, 0.0), self.phases.get(self._phase, 0.0))
            least = patience.phase if self._training else max(patience.phase, patience.before_training)
            if patience.steady and steps and self._phase in EVERY_STEP:
                least = min(least, max(HANG_SECONDS, STEP_TIMES * self._longest_step))
            return max(least, patience.times * seen), f"no sign of life in a phase that may be slow ({self._phase})"
        if not self._training:
            return patience.before_training, "no sign of life before the start of training"
        least = patience.step if steps else patience.first_step
        return max(least, patience.times * self.longest), "no heartbeat"


class Pulse:
    """The heartbeat file of a trial, read from outside.

    It is read, not mapped: whatever the trial does to the file, the worst that can come of it is nothing.

    Args:
        folder: of the trial.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEARTBEAT_FILE
        self._handle: int | None = None

    def read(self) -> tuple[int, str]:
        """The count so far, and the name of the phase; (0, "") while there is no such file."""
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            data = os.pread(self._handle, HEARTBEAT_SIZE, 0)
        except OSError:
            return 0, ""
        name = data[HEARTBEAT_NAME].rstrip(b"\0")
        plain = name.isascii() and name.decode("ascii", "replace").isprintable()
        return int.from_bytes(data[:8], sys.byteorder), name.decode("ascii") if plain else ""

    def close(self) -> None:
        """Let go of the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
