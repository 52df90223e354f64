"""When is silence a hang?

Signs of life of a trial are the events and metric rows that its probe writes, and the heartbeats that it counts (see
`bisect_cfg.probe.heartbeat`). How long there may be none depends on what it is doing. Once steps run, the run sets its
own pace: ten times its longest silence so far is a hang. A step that takes thirty times as long as the others is none
while heartbeats go on.

The first hang of a study is waited for in full. Its stacks are kept, and so are those of pauses that came to an end. A
later run is the same hang if its stacks stand where one hung and none paused, for five times the longest pause. Stacks
that move, in a loop that has no end, are compared by the user's function in which they stay: what is asked of a step is
asked of that silence then, and no longer what is asked of a slow phase.

`Silence` is pure: the caller tells it what was seen and when, and it says when it needs the stacks of the run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Collection, Hashable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from bisect_cfg.probe.protocol import HEARTBEAT_FILE, HEARTBEAT_NAME, HEARTBEAT_SIZE

HANG_TIMES = 10.0
"""Nothing for so many times the longest silence so far is a hang."""

HANG_SECONDS = 20.0
"""... and never less than this: an ordinary step has pauses (a backward pass of long completions, an evaluation)
that its first steps need not have had."""

UNKNOWN_SECONDS = 120.0
"""The least limit for the first step of a script whose pace nobody has seen."""

FIRST_STEP_SECONDS = 60.0
"""The least limit for the first step of any other trial: it pays once for allocation, compilation and caches."""

PHASE_SECONDS = 120.0
"""The least limit while something goes on that is known to be slow and silent: an import, a model being loaded, a
compiler, an engine that starts, the next token, a reward call, a checkpoint, a report of metrics, the first collective.
Each can take a minute without anything being wrong."""

LOOK_SECONDS = 1.0
"""A single look counts for no more silence than this. Looks are hundredths of a second apart; if one comes later, it is
we who were stopped or starved, and the trial may have been, too."""

PAUSE_SECONDS = 5.0
"""A silence is a pause from then on: it is worth a look at the stacks, which costs the run some milliseconds. No known
hang is recognised sooner."""

KNOWN_TIMES = 5.0
"""... nor sooner than so many times the longest silence that is known to have ended well: half of what is asked of a
hang that nobody has seen before, since here it is also known where it stands."""

APART_SECONDS = 1.0
"""So far apart are two looks at stacks that do not move."""

IN_TRAINING = ""
"""What a run does in training while it is in none of the named slow phases."""

Place = str
"""Where a run stood: a digest of the Python stacks of all threads of all its processes, or, behind `WITHIN`, of the
functions that they were in (`watch.places_of`)."""

WITHIN = "within "


@dataclass(frozen=True)
class Patience:
    """How long a run may stay silent before it is called a hang, in seconds."""

    before_training: float  # loading data and models counts here
    first_step: float  # from the start of training to the end of the first optimizer step
    step: float  # between two optimizer steps
    times: float | None = None
    """None: these limits are as they are, and only what the run writes ends a silence. Otherwise heartbeats do, too;
    each limit is the least, and so many times the longest silence seen is the limit where that is longer. The fields
    below are for this alone."""
    phase: float = PHASE_SECONDS  # in a named slow phase
    seen: Mapping[str, float] = field(default_factory=dict)  # phase or `IN_TRAINING` -> longest silence of earlier runs
    hangs: Collection[Place] = ()  # where earlier runs have hung and none has paused
    repeats: bool = False  # whether this configuration has hung; of any other it must be known how long it may pause
    sign: str = "optimizer step"  # what is waited for where `times` is None


class Silence:
    """How long a trial has been silent, and whether that is a hang. All times are in seconds."""

    def __init__(self, patience: Patience) -> None:
        self.seconds = 0.0  # of the present silence
        self.pauses: dict[str, float] = {}  # what the run did -> the longest silence in it that has ended
        self.places: set[Place] = set()  # where the run stood in silences that have ended
        self._patience = patience
        self._sign: Hashable = None
        self._looked: float | None = None
        self._doing: str | None = None  # a phase or `IN_TRAINING`; None before training
        self._stacks: list[tuple[float, Set[Place]]] = []  # in the present silence: after how long, where it stood
        self._next_stacks = PAUSE_SECONDS

    def look(self, now: float, written: Hashable, beat: tuple[int, str], training: bool, steps: int) -> str | None:
        """Take in the present state of the trial; why it is a hang, None if it is not (yet).

        Args:
            now: of a monotonic clock.
            written: changes with every event and metric row.
            beat: the count of heartbeats, and the name of the phase, "" for none.
            training, steps: whether training has begun, and optimizer steps seen.
        """
        self.seconds += 0.0 if self._looked is None else min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        sign = (written, beat if self._patience.times is not None else None)
        if sign != self._sign:
            self.end()
            self._sign = sign
        self._doing = beat[1] or (IN_TRAINING if training else None)
        limit, what = self._limit(beat[1], training, steps)
        if self.seconds > limit:
            return f"{what} for {self.seconds:.0f} s"
        if any(self.seconds >= self._known_from(place) for place in self.stood & self._known()):
            return f"{what} for {self.seconds:.0f} s, where an earlier run hung"
        return None

    def end(self) -> None:
        """End the present silence: there was a sign of life, or the run came to its own end."""
        if self._doing is not None:
            self.pauses[self._doing] = max(self.pauses.get(self._doing, 0.0), self.seconds)
        self.places |= {place for _, places in self._stacks for place in places}
        self.seconds, self._stacks, self._next_stacks = 0.0, [], PAUSE_SECONDS

    @property
    def wants_stacks(self) -> bool:
        """Whether the caller should look at the stacks of the run now. Never before training: the run may wait for a
        process that nobody can ask."""
        wanted = self._patience.times is not None and self._doing is not None
        return wanted and self.seconds >= self._next_stacks

    def add_stacks(self, places: Set[Place]) -> None:
        """Take in where the stacks of the run stand now; empty if that is not known."""
        self._stacks.append((self.seconds, places))
        again = (max(self.seconds + APART_SECONDS, self._known_from(place)) for place in places & self._known())
        self._next_stacks = min(again, default=2 * self.seconds)

    @property
    def stood(self) -> set[Place]:
        """Where the run stands in the present silence; empty if it moves, or was not looked at twice."""

        def stands(place: Place) -> bool:
            still = list(itertools.takewhile(lambda look: place in look[1], reversed(self._stacks)))
            return still[0][0] - still[-1][0] >= APART_SECONDS

        return {place for place in (self._stacks[-1][1] if self._stacks else ()) if stands(place)}

    def _known(self) -> set[Place]:
        return set(self._patience.hangs) - self.places

    def _known_from(self, place: Place) -> float:
        """Seconds of silence from which on it may be the hang that is known of a place."""
        seen = self._patience.seen
        if self._doing is None or not (self._patience.repeats or self._doing in seen):
            return math.inf
        longest = max(self.pauses.get(self._doing, 0.0), seen.get(self._doing, 0.0), self.pauses.get(IN_TRAINING, 0.0))
        if place.startswith(WITHIN):
            return max(HANG_SECONDS, HANG_TIMES * longest)
        return max(PAUSE_SECONDS, KNOWN_TIMES * longest)

    def _limit(self, phase: str, training: bool, steps: int) -> tuple[float, str]:
        """Seconds of silence that are a hang, and what is missing then."""
        patience = self._patience
        least = patience.step if steps else patience.first_step
        if patience.times is None:
            return (least, f"no {patience.sign}") if training else (patience.before_training, "no start of training")
        if phase:
            seen = max(patience.seen.get(phase, 0.0), self.pauses.get(phase, 0.0))
            least = patience.phase if training else max(patience.phase, patience.before_training)
            return max(least, patience.times * seen), f"no sign of life in a phase that may be slow ({phase})"
        if not training:
            return patience.before_training, "no sign of life before the start of training"
        return max(least, patience.times * self.pauses.get(IN_TRAINING, 0.0)), "no heartbeat"


def heartbeat_in(folder: Path) -> tuple[int, str]:
    """How many heartbeats a run has counted in its folder, and the name of its phase; (0, "") while there is no count.

    The file is read, not mapped, so that nothing the run does to it can harm the tool.
    """
    data = b""
    with contextlib.suppress(OSError), open(folder / HEARTBEAT_FILE, "rb", buffering=0) as stream:
        data = stream.read(HEARTBEAT_SIZE) or b""
    name = data[HEARTBEAT_NAME].rstrip(b"\0").decode("ascii", "replace")
    return int.from_bytes(data[:8], sys.byteorder), name if name.isascii() and name.isprintable() else ""
