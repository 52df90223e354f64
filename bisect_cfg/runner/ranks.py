"""A run of several processes that train together: how they are started, when it is over, and whose failure it was.

The first of them writes into the trial's folder, each other one into ``ranks/N`` of it (see the probe's `ranks`). A run
is over when all of them are, or soon after one has failed. A process that is over waits, so that the others do not die
of a lost connection. If a signal ended it they do; then the failure is that of the process that was ended.
"""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_cfg.probe import protocol
from bisect_cfg.probe.protocol import Over, RankBegin
from bisect_cfg.probe.ranks import FOLDER, LAUNCHED
from bisect_cfg.probe.redact import HIDDEN, mask_arguments
from bisect_cfg.runner.processes import alive
from bisect_cfg.runner.traces import Traces, add_event, fatal_signal, stack_frames, stacks_in
from bisect_cfg.targets.launch_settings import given_to_each, shares_out

GRACE_SECONDS = 1.0
"""How long after a process has gone to wait until its parent reports how it ended: torchrun looks every 0.1 s, a Python
script reports at once."""

OTHERS_SECONDS = 3.0
"""When a process died only because another was gone, how long to wait for the failure of that other one."""

OF_EACH_RUN = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")
"""Variables that a launcher sets differently in each run."""

_NOTICED = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|remote process exited|communicator was aborted"
    r"|failed to (?:recv|send), got|Connection was likely closed|Socket Timeout|recvValue failed|sendBytes failed"
    r"|Connection refused",
    re.IGNORECASE,
)
"""What a process reports when another one is gone (gloo, NCCL, c10d's store)."""

_COLLECTIVE = re.compile(
    r"torch/distributed/(?!run\.py|elastic)|torch/nn/parallel/distributed|accelerate/utils/operations"
)
"""Files in which a process waits for the others."""


def only_noticed(exit_code: int | None, message: str) -> bool:
    """Whether a process died because another one was gone: of a lost connection, or ended by the launcher."""
    return exit_code == -signal.SIGTERM or _NOTICED.search(message) is not None


@dataclass
class Rank:
    """One of the processes of a run."""

    number: int  # as the launcher counts
    traces: Traces
    code: int | None = None  # how it ended, as `subprocess` has it; None while that is not known

    @property
    def pid(self) -> int | None:
        """Its process id; None before it has reported it."""
        row = self.traces.event(RankBegin)
        return row.pid if row else None

    @property
    def message(self) -> str:
        """The exception that it died of, or ""."""
        row = self.traces.event(protocol.Raised)
        return f"{row.type}: {row.message}" if row else ""

    @property
    def cut_short(self) -> bool:
        """Whether its probe ended it because its weights are not finite, so that the others wait for it in vain."""
        row = self.traces.event(protocol.TrainEnd)
        return self.code == 0 and row is not None and row.stopped == protocol.NON_FINITE

    @property
    def waits_in(self) -> str:
        """The collective function in which its last stack shows it waiting for the others, or ""."""
        frames = stack_frames(stacks_in(self.traces.folder))
        # The outermost frame of them: what the training called.
        inside = [function for path, _, function in frames if _COLLECTIVE.search(str(path)) and function != "wrapper"]
        return inside[-1] if inside else ""


class Ranks:
    """The processes of one run, as far as they have reported to exist. The caller reads the traces of its folder."""

    def __init__(self, traces: Traces) -> None:
        self._folder = traces.folder
        self._known = {0: Rank(0, traces)}
        self.world = 1  # how many there are to be
        self._gone: dict[int, float] = {}  # rank -> when its process was first seen gone
        self._noticed: float | None = None  # when the first one died of another's absence, or was cut short

    @property
    def all(self) -> list[Rank]:
        """Those that are known, by number; none if the run has one process."""
        return self.known if self.world > 1 else []

    @property
    def known(self) -> list[Rank]:
        """Those that are known, by number."""
        return [self._known[number] for number in sorted(self._known)]

    def read(self) -> None:
        """Take in what is new."""
        for path in self._folder.glob(f"{FOLDER}/*"):
            if path.name.isdigit() and int(path.name) not in self._known:
                self._known[int(path.name)] = Rank(int(path.name), Traces(path))
        said: dict[int | None, int] = {}  # process id -> exit code
        for rank in reversed(self.known):  # its own report before the launcher's, which is with the first
            if rank.number:
                rank.traces.read()
            row = rank.traces.event(RankBegin)
            self.world = max(self.world, 1 if row is None else row.world_size)
            for over in rank.traces.all(Over):
                said.setdefault(over.pid, over.code)
        for rank in self.all:
            if rank.code is None:
                rank.code = said.get(rank.pid, 1 if rank.traces.died else None)

    def pids(self) -> dict[Path, int | None]:
        """Folder -> process id of each process, None if it is not known yet."""
        others = {self._folder / FOLDER / str(number): None for number in range(1, self.world)}
        return others | {rank.traces.folder: rank.pid for rank in self.all}

    def code(self, codes: Mapping[int, int] | None = None) -> int | None:
        """Exit code of the run; None if it goes on. `codes`: process id -> exit code, of those that the supervisor or a
        server has waited for."""
        now, ranks = time.monotonic(), self.all
        for rank in ranks:
            if rank.code is None and rank.pid is not None and codes and rank.pid in codes:
                self._note(rank, codes[rank.pid])
            if rank.code is None and rank.pid is not None and not alive(rank.pid):
                if now - self._gone.setdefault(rank.number, now) >= GRACE_SECONDS:
                    self._note(rank, died_of(rank.traces.folder) or 1)
        failed = [rank for rank in ranks if rank.code]
        for rank in failed:
            if not only_noticed(rank.code, rank.message):
                return rank.code
        over = all(rank.code is not None for rank in ranks)
        gone = failed or [rank for rank in ranks if rank.cut_short]  # the others wait for it in vain
        if gone:
            self._noticed = self._noticed or now
            if over or now - self._noticed >= OTHERS_SECONDS:
                return gone[0].code
        return 0 if over and len(self._known) == self.world else None

    def _note(self, rank: Rank, code: int) -> None:
        """Record how a process has ended, which nobody else has."""
        rank.code = code
        add_event(self._folder, Over(code, rank.pid or 0))


def ranks_of(traces: Traces) -> list[Rank]:
    """The processes of a run that is over; none if it had one."""
    ranks = Ranks(traces)
    ranks.read()
    return ranks.all


def died_of(folder: Path) -> int | None:
    """The signal that faulthandler saw in a process, as a negative exit code; None if it saw none."""
    number = fatal_signal(stacks_in(folder))
    return None if number is None else -number


# ------------------------------------------------------------------------------------------------ how they are started


@dataclass(frozen=True)
class FirstLaunch:
    """What a launcher started in the first run: enough to fork the same processes from a server."""

    words: tuple[str, ...]  # command line of the processes
    given: tuple[Mapping[str, str], ...]  # environment variables that each got, by rank
    typed: int  # how many processes the user's command starts
    several: bool = False  # whether in some trials several processes train together

    @property
    def shared(self) -> dict[str, str]:
        """What all of them are given alike. The server needs it: some is read when a library is loaded."""
        first, *others = self.given
        return {
            name: value
            for name, value in first.items()
            if name not in (*LAUNCHED, *OF_EACH_RUN) and all(given.get(name) == value for given in others)
        }

    def environments(
        self, port: int, folder: Path, processes: int, changes: Mapping[str, str | None] | None = None
    ) -> list[dict[str, str]]:
        """Environment variables of each process of a run in a folder, which meet at a port. `changes`: other variables
        of the run. A single process is not told of others if the launcher has started several, unless the model is
        sharded."""
        if processes == 1 != len(self.given) and not shares_out(self.given[0], changes or {}):
            return [self.shared]
        if processes == len(self.given) == 1 and "MASTER_PORT" not in self.given[0]:
            return [dict(self.given[0])]
        started: Sequence[Mapping[str, str]] = self.given
        if processes != len(self.given):  # the same but for the numbers
            started = [{**self.given[0], **own} for own in given_to_each(processes)]
        found = []
        for number, given in enumerate(started):
            run = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if "TORCHELASTIC_RUN_ID" in given:
                run["TORCHELASTIC_RUN_ID"] = f"bisect-cfg-{port}"
                # There is no agent with a store: the first process serves it.
                run["TORCHELASTIC_USE_AGENT_STORE"] = "False"
                run["TORCHELASTIC_ERROR_FILE"] = str(folder / f"error-{number}.json")
            found.append({**given, **run})
        return found


def launched_in(traces: Traces, arguments: Sequence[str]) -> FirstLaunch | None:
    """What the launcher of a finished run has started; None if that cannot be told. `arguments`: of the script, with
    the secrets that are masked in the traces."""
    hidden = dict(zip(mask_arguments(arguments), arguments, strict=True))
    ranks = Ranks(traces)
    ranks.read()
    rows = [row for rank in ranks.known if (row := rank.traces.event(RankBegin)) is not None and row.words]
    if len(rows) != ranks.world:
        return None
    words = tuple(hidden.get(word, word) if HIDDEN in word else word for word in rows[0].words)
    return FirstLaunch(words, tuple(dict(row.given) for row in rows), len(rows))


# ------------------------------------------------------------------------------------------------ where they meet

_ports_given: set[int] = set()


def own_port(environment: Mapping[str, str]) -> dict[str, str]:
    """A free ``MASTER_PORT`` where the environment makes a training config open a process group of one (inside
    torchrun); nothing otherwise. Trials at the same time must not meet, and one that is being ended holds its port."""
    alone = environment.get("WORLD_SIZE", "1") == "1" and "MASTER_PORT" in environment
    return {"MASTER_PORT": str(free_port())} if alone else {}


def free_port() -> int:
    """A port that nobody listens on, a different one each time."""
    port = 0
    for _ in range(100):  # usually the system gives a new one each time
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        if port not in _ports_given:
            break
    _ports_given.add(port)
    return port
