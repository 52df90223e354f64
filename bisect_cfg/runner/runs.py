"""Runs that are over, as their folders keep them, and what their pauses tell of the runs to come."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from bisect_cfg.common.cells import with_cells
from bisect_cfg.common.configuration import Purpose, present
from bisect_cfg.common.failures.health import number, step_of
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError
from bisect_cfg.probe import protocol
from bisect_cfg.runner.hang import Place
from bisect_cfg.runner.observe import observe, observe_command
from bisect_cfg.runner.ranks import ranks_of
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.traces import Traces, tail_of_log, unprinted
from bisect_cfg.runner.verdict import CANNOT_RUN, SKIPPED, Observation, Standard, Verdict, judge
from bisect_cfg.runner.watch import Ending
from bisect_cfg.store.interface import TrialResult

ENDING_FILE = "ending.json"

SHOWN = ("reward", "loss", "grad_norm")
"""The metrics of which Optuna is shown the first that a run has: what it is made for, then what every trainer logs."""

LINES_SHOWN = 8
"""Of the log of a run that never came to train."""


@dataclass(frozen=True)
class Run:
    """A run that is over: what was seen of it, and the traces it left."""

    seen: Observation
    traces: Traces
    folder: Path
    horizon: int | None = None  # optimizer steps that it was to make; None for all the script has
    start: str = ""  # "" if that is not known
    costly: bool = False  # whether it was ended because it takes longer than can be afforded
    node: str = ""  # of a cluster, where it ran

    @functools.cached_property
    def shown(self) -> Verdict:
        """What it shows by itself, whatever is studied."""
        return judge(self.seen, self.traces.as_metrics)

    def judged(self, standard: Standard) -> Verdict:
        """What it means under a standard."""
        return judge(self.seen, self.traces.as_metrics, standard)

    @property
    def steps_shown(self) -> int:
        """Steps after which it fails by itself. A command that printed no metrics before it failed may print some where
        it does not."""
        return present(self.shown.step) if self.seen.counted else 1

    @property
    def says_nothing(self) -> bool:
        """Whether it could not be run, or says that it cannot be judged."""
        return self.seen.died is not None and self.seen.died.kind in (CANNOT_RUN, SKIPPED)

    @property
    def failing(self) -> tuple[Path, Traces]:
        """Folder and traces of the process that its outcome is about."""
        for rank in ranks_of(self.traces):
            if rank.number == (self.seen.rank or 0):
                return rank.traces.folder, rank.traces
        return self.folder, self.traces

    @functools.cached_property
    def taken(self) -> list[list[protocol.StepRows]]:
        """The rows that each of its processes took."""
        traces = [rank.traces for rank in ranks_of(self.traces)] or [self.traces]
        return [one.all(protocol.StepRows) for one in traces]

    @property
    def evaluating(self) -> list[protocol.StepRows]:
        """The rows of an evaluation set that its processes were at when it died; [] if it did not die of them."""
        last = [next((event for event in reversed(events) if event.evaluated), None) for events in self.taken]
        at = [event for event in last if event is not None and (event.rows or not event.named)]
        return at if self.seen.died is not None else []

    def data_after(self, begun: int) -> protocol.FailingData | None:
        """What it took from a step of the training to the one at which it failed; None if it did not fail, or began
        later than that."""
        failed, shown = self.shown.step_of_training, self.shown
        if shown.signature is None or failed is None or begun < self.seen.before:
            return None
        evaluating, planned = bool(self.evaluating), self.traces.event(protocol.PlannedSteps)
        steps = max(failed - begun - evaluating, 1)
        events = sorted((event for events in self.taken for event in events), key=lambda event: event.step)
        rows = [row for event in events if begun < event.step <= failed and not event.evaluated for row in event.rows]
        return protocol.FailingData(
            [] if shown.silent else list(dict.fromkeys(rows)),
            steps,
            None if planned is None else planned.intake,
            steps if evaluating else None,
        )

    @property
    def attributes(self) -> JsonObject:
        """What the store keeps of it."""
        return {
            "folder": self.folder.name,
            "level": self.start,
            "horizon": self.horizon,
            "observation": msgspec.to_builtins(self.seen),
            "remarks": [asdict(remark) for remark in self.shown.remarks],
            **({"node": self.node} if self.node else {}),
        }

    @property
    def intermediate(self) -> dict[int, float]:
        """Its most telling metric, by step."""
        rows = self.traces.metrics.rows
        told = ([(step_of(row), value) for row in rows if (value := number(row, name)) is not None] for name in SHOWN)
        return dict(next(filter(None, told), []))


def last_lines(run: Run) -> str:
    """How a run ended that shows nothing: the last lines of its log."""
    path = run.folder / "log.txt"
    tail = tail_of_log(path, LINES_SHOWN)
    lines = unprinted(run.traces, "\n".join(tail))[-LINES_SHOWN:] or tail
    text = "\n".join("    " + line for line in lines)
    return f"Its last lines ({path}):\n{with_cells(text)}" if text else "It printed nothing."


def purpose_again(start: str) -> Purpose:
    """What a further run of the bad configuration before the search is for, by how it was started."""
    return Purpose.BAD_AGAIN if start in ("", COLD) else Purpose.WARM_START


def result_of(run: Run, verdict: Verdict) -> TrialResult:
    """The result of a run under a verdict."""
    signature = None if verdict.signature is None else str(verdict.signature)
    return TrialResult(
        verdict.outcome, signature, verdict.message, run.seen.seconds, verdict.step, run.attributes, run.intermediate
    )


# ------------------------------------------------------------------------------------------------- in their folders


def read_ending(folder: Path) -> Ending | None:
    """How a run ended, None if it did not come to its end."""
    try:
        return msgspec.json.decode((folder / ENDING_FILE).read_bytes(), type=Ending)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def load_run(study: Path, name: int | str) -> Run | None:
    """A run that came to its end, read back from its folder; None if there is none.

    Raises:
        InputError: its events are damaged. Without them it would seem to have died before it built a configuration.
    """
    folder = study / "trials" / str(name)
    ending = read_ending(folder)
    if ending is None:
        return None
    traces = Traces(folder)
    traces.read()
    if not ending.watched:
        return Run(observe_command(traces, ending), traces, folder, ending.horizon, COLD, node=ending.node)
    events = traces.events.path
    if not traces.events.rows and (ending.steps or (events.is_file() and events.stat().st_size)):
        raise InputError(
            f"The study is damaged: {events} holds no event of its run.",
            "Put the file back, or start over with --restart (the old study is kept beside it).",
        )
    return Run(observe(traces, ending), traces, folder, ending.horizon, ending.level, ending.costly, ending.node)


def written_by_runs(study: Path) -> set[str]:
    """What the runs of a study folder wrote, those too during which the tool was killed."""
    written: set[str] = set()
    for path in (study / "trials").glob(f"*/{protocol.EVENTS_FILE}"):
        traces = Traces(path.parent)
        traces.read()
        written |= {row.path for row in traces.all(protocol.Opened) if row.mode == "w"}
    return written


class Pauses:
    """The longest silences of the runs so far, in seconds: they tell how long one may be in the runs to come."""

    def __init__(self) -> None:
        self.silence: float | None = None  # in training, outside of named slow phases; None before a run made a step
        self.phases: dict[str, float] = {}  # name of a slow phase -> silence
        self.passing: float | None = None  # of the runs that ended with status 0; None before one did
        self.stood: set[Place] = set()  # where runs hung
        self.paused: set[Place] = set()  # where runs stood in pauses after which they went on

    @property
    def hangs(self) -> frozenset[Place]:
        """Where they hung and none has paused."""
        return frozenset(self.stood - self.paused)

    @classmethod
    def of(cls, study: Path) -> Pauses:
        """Those of the runs in a study folder."""
        found = cls()
        for path in study.glob(f"trials/*/{ENDING_FILE}"):
            ending = read_ending(path.parent)
            if ending is not None:
                found.add(ending)
        return found

    def add(self, ending: Ending) -> None:
        """Take in another run."""
        if ending.steps:
            self.silence = max(self.silence or 0.0, ending.longest_silence)
        if ending.exit_code == 0:
            self.passing = max(self.passing or 0.0, ending.longest_silence)
            if ending.steps:
                for name in protocol.IN_EACH_TRAINING:  # too short to be seen, perhaps
                    self.phases.setdefault(name, 0.0)
        for name, seconds in ending.phases.items():
            self.phases[name] = max(self.phases.get(name, 0.0), seconds)
        self.stood |= set(ending.stood)
        self.paused |= set(ending.paused)
