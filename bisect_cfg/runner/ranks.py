"""A run of several processes that train together: following them all to their end, and whose failure it was.

The first of them writes into the trial's folder, each other one into ``ranks/N`` of it (see the probe's `world`). A run
is over when all of them are, or soon after one has failed. Those that are over wait where they are, so that nobody dies
of their absence; where one was ended by a signal the others do, of a lost connection, and that is the other's failure.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.capture.launched import given_to_each, shares_out
from bisect_cfg.common.failures.health import Symptom
from bisect_cfg.jsonfile import private
from bisect_cfg.probe.protocol import (
    EVENTS_FILE,
    NON_FINITE,
    STACKS_FILE,
    Over,
    Raised,
    RankBegin,
    TrainEnd,
    event_row,
)
from bisect_cfg.probe.secrets import HIDDEN, mask_arguments
from bisect_cfg.probe.world import FOLDER, LAUNCHED
from bisect_cfg.runner.processes import alive
from bisect_cfg.runner.traces import Traces, fatal_signal, stack_frames

WORD_SECONDS = 1.0
"""How long after a process has gone who waited for it is waited for to say how: torchrun looks every 0.1 s, a Python
script tells at once."""

OTHERS_SECONDS = 3.0
"""When one process has only noticed that another has gone, how long that other one's own failure is waited for."""

DIFFERS = "ranks-differ"
"""Kind of a remark: processes that should agree do not."""

GRAD_NORM_SHARE = 1e-3
"""All processes clip the same gradients: a norm that differs by more than this share is no rounding."""

OF_EACH_RUN = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
"""What a launcher gives its processes for this one run."""

_NOTICED = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|remote process exited|communicator was aborted"
    r"|failed to (?:recv|send), got|Connection was likely closed|Socket Timeout|recvValue failed|sendBytes failed"
    r"|Connection refused",
    re.IGNORECASE,
)
"""What a process says of another one that has gone (gloo, NCCL, c10d's store)."""

_COLLECTIVE = re.compile(
    r"torch/distributed/(?!run\.py|elastic)|torch/nn/parallel/distributed|accelerate/utils/operations"
)
"""Files in which a process waits for the others."""


def only_noticed(exit_code: int | None, message: str) -> bool:
    """Whether a process died because another one was gone: of a lost connection, or ended by the launcher."""
    return exit_code == -signal.SIGTERM or _NOTICED.search(message) is not None


@dataclass
class Rank:
    """One of the processes of a run.

    Attributes:
        number: as the launcher counts.
        folder: where it writes.
        traces: what it wrote.
        code: how it ended, as `subprocess` has it; None while that is not known.
    """

    number: int
    folder: Path
    traces: Traces
    code: int | None = None

    @property
    def pid(self) -> int | None:
        """Of its process; None before it has said so."""
        row = self.traces.event(RankBegin)
        return row.pid if row else None

    @property
    def message(self) -> str:
        """What it died of, "" if of no exception."""
        row = self.traces.event(Raised)
        return f"{row.type}: {row.message}" if row else ""

    @property
    def cut_short(self) -> bool:
        """Whether it was ended by us, before it came to where the others are, because its weights are not finite."""
        row = self.traces.event(TrainEnd)
        return self.code == 0 and row is not None and row.stopped == NON_FINITE

    @property
    def waits_in(self) -> str:
        """The function in which its last stack shows it waiting for the others, "" if it does not."""
        try:
            frames = stack_frames((self.folder / STACKS_FILE).read_text(errors="replace"))
        except OSError:
            return ""
        # The outermost of them in a row: what the training called.
        inside = [function for path, _, function in frames if _COLLECTIVE.search(str(path)) and function != "wrapper"]
        return inside[-1] if inside else ""


class Ranks:
    """The processes of one run, as far as they have shown themselves.

    Args:
        traces: of the trial's folder; whoever calls reads them.
    """

    def __init__(self, traces: Traces) -> None:
        self._folder = traces.events.path.parent
        self._known = {0: Rank(0, self._folder, traces)}
        self.world = 1
        """How many there are to be."""
        self._gone: dict[int, float] = {}  # number -> when its process was first seen gone
        self._noticed: float | None = None  # when one had only noticed, or was cut short

    @property
    def all(self) -> list[Rank]:
        """Those that have shown themselves, by number; none if the run has one process."""
        return self.known if self.world > 1 else []

    @property
    def known(self) -> list[Rank]:
        """Those that have shown themselves, by number."""
        return sorted(self._known.values(), key=lambda rank: rank.number)

    def read(self) -> None:
        """Take in what is new."""
        if (self._folder / FOLDER).is_dir():
            for path in (self._folder / FOLDER).iterdir():
                if path.name.isdigit() and int(path.name) not in self._known:
                    self._known[int(path.name)] = Rank(int(path.name), path, Traces.of(path))
        for number, rank in self._known.items():
            if number:
                rank.traces.read()
            row = rank.traces.event(RankBegin)
            if row is not None:
                self.world = max(self.world, row.world_size)
        if self.world > 1:
            self._read_ends()

    def _read_ends(self) -> None:
        said = {row.pid: row.code for row in self._known[0].traces.all(Over)}
        for rank in self._known.values():
            if rank.code is not None:
                continue
            own = rank.traces.event(Over)
            if own is not None and own.pid == rank.pid:
                rank.code = own.code
            elif rank.pid in said:  # the launcher has waited for it
                rank.code = said[rank.pid]
            elif rank.traces.died:
                rank.code = 1

    def pids(self) -> dict[Path, int | None]:
        """Folder -> process id of each process, None before it has shown itself."""
        others = {self._folder / FOLDER / str(number): None for number in range(1, self.world)}
        return others | {rank.folder: rank.pid for rank in self.all}

    def _note(self, rank: Rank, code: int) -> None:
        """How a process has ended, which nobody else has written down."""
        rank.code = code
        with open(self._folder / EVENTS_FILE, "ab", opener=private) as stream:
            stream.write(json.dumps(event_row(Over(code, rank.pid or 0), 0.0)).encode() + b"\n")

    def code(self, codes: Mapping[int, int] | None = None) -> int | None:
        """How the run ended, as an exit code; None if it goes on.

        Args:
            codes: process id -> exit code, of those that the tool itself has waited for.
        """
        now = time.monotonic()
        for rank in self.all:
            if rank.code is None and rank.pid in (codes or {}):
                self._note(rank, codes[rank.pid])
            if rank.code is None and rank.pid is not None and not alive(rank.pid):
                waited = now - self._gone.setdefault(rank.number, now)
                if waited >= WORD_SECONDS:
                    self._note(rank, died_of(rank.folder) or 1)
        failed = [rank for rank in self.all if rank.code]
        for rank in failed:
            if not only_noticed(rank.code, rank.message):
                return rank.code
        gone = failed or [rank for rank in self.all if rank.cut_short]  # the others will wait for it in vain
        if gone and self._noticed is None:
            self._noticed = now
        if gone and (now - self._noticed >= OTHERS_SECONDS or all(rank.code is not None for rank in self.all)):
            return gone[0].code
        if len(self._known) == self.world and all(rank.code is not None for rank in self.all):
            return 0
        return None


@dataclass(frozen=True)
class FirstLaunch:
    """What a launcher started in the first run: enough to fork the same from a process that waits.

    Attributes:
        words: the command line of its processes.
        given: what it put into the environment of each, first to last.
        typed: how many of them the user's own command starts.
        several: whether there are trials in which several train together.
    """

    words: tuple[str, ...]
    given: tuple[Mapping[str, str], ...]
    typed: int
    several: bool = False

    @property
    def shared(self) -> dict[str, str]:
        """What all processes are given alike, for the process that they are forked from: read when a library loads."""
        own = {name for name in LAUNCHED if any(name in given for given in self.given)}
        first = self.given[0]
        return {
            name: value
            for name, value in first.items()
            if name not in own and name not in OF_EACH_RUN and all(given.get(name) == value for given in self.given)
        }

    def environments(
        self, port: int, folder: Path, processes: int, changes: Mapping[str, str | None] | None = None
    ) -> list[dict[str, str]]:
        """What each process of a run is given.

        Args:
            port: where they meet.
            folder: of the run.
            processes: how many there are: one that the launcher would not have started alone is told of no others,
                unless the model is shared out.
            changes: environment variables that the run has besides, None for one that is unset.
        """
        if processes == 1 != len(self.given) and not shares_out(self.given[0], changes or {}):
            return [self.shared]
        if processes == len(self.given) == 1 and "MASTER_PORT" not in self.given[0]:
            return [dict(self.given[0])]
        started = self.given
        if processes != len(self.given):  # each is told what the first is, but for its number and theirs
            started = [{**self.given[0], **own} for own in given_to_each(processes)]
        found = []
        for number, given in enumerate(started):
            run = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if "TORCHELASTIC_RUN_ID" in given:
                run["TORCHELASTIC_RUN_ID"] = f"bisect-cfg-{port}"
                # No agent serves a store here: the first process keeps it.
                run["TORCHELASTIC_USE_AGENT_STORE"] = "False"
                run["TORCHELASTIC_ERROR_FILE"] = str(folder / f"error-{number}.json")
            found.append({**given, **run})
        return found


def launched_in(traces: Traces, arguments: Sequence[str]) -> FirstLaunch | None:
    """What the launcher of a run that is over has started; None where that cannot be told.

    Args:
        traces: of the run.
        arguments: of the script, with the secrets that no trace has.
    """
    hidden = dict(zip(mask_arguments(arguments), arguments, strict=True))
    ranks = Ranks(traces)
    ranks.read()
    rows = [row for rank in ranks.known if (row := rank.traces.event(RankBegin)) is not None and row.words]
    if len(rows) != ranks.world:
        return None
    words = tuple(hidden.get(word, word) if HIDDEN in word else word for word in rows[0].words)
    return FirstLaunch(words, tuple(dict(row.given) for row in rows), len(rows))


def ranks_of(traces: Traces) -> list[Rank]:
    """The processes of a run that is over; none if it had one."""
    ranks = Ranks(traces)
    ranks.read()
    return ranks.all


def differences(ranks: Sequence[Rank]) -> list[Symptom]:
    """What differs between processes that should agree."""
    first = {row["step"]: row.get("grad_norm") for row in ranks[0].traces.metrics.rows} if ranks else {}
    for rank in ranks[1:]:
        for row in rank.traces.metrics.rows:
            ours, theirs = first.get(row["step"]), row.get("grad_norm")
            if ours is None or theirs is None or ours != ours or theirs != theirs:
                continue
            if abs(ours - theirs) > GRAD_NORM_SHARE * max(abs(ours), abs(theirs)):
                step = int(row["step"])
                text = f"grad_norm differs between the processes: at step {step} it is {ours:.4g} on rank 0 and "
                return [Symptom(DIFFERS, "grad_norm", step, f"{text}{theirs:.4g} on rank {rank.number}")]
    return []


def died_of(folder: Path) -> int | None:
    """The signal that faulthandler saw in a process, as a negative exit code; None if it saw none."""
    try:
        number = fatal_signal((folder / STACKS_FILE).read_text(errors="replace"))
    except OSError:
        return None
    return None if number is None else -number
