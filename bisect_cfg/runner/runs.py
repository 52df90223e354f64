"""Runs that are over, as their folders keep them, and what their silences tell of the runs to come."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import msgspec

from bisect_cfg.configuration import Purpose, Value
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import JsonObject, write_json
from bisect_cfg.probe.protocol import IN_EACH_TRAINING
from bisect_cfg.runner.hang import Place
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.observe_command import observe_command
from bisect_cfg.runner.ranks import ranks_of
from bisect_cfg.runner.starts import COLD
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Observation, Standard, Verdict, judge
from bisect_cfg.runner.watch import Ending
from bisect_cfg.store.interface import TrialResult

SHOWN = ("reward", "loss", "grad_norm")
"""Metrics of which Optuna can be shown one, the most telling first: what a run is made for, then what every trainer
logs."""


@dataclass(frozen=True)
class Run:
    """A run that is over: what happened, and the traces it left.

    Attributes:
        seen: what happened.
        traces: what its probe wrote.
        folder: of the run.
        horizon: optimizer steps it was to make; None for all the script has.
        start: how it was started; "" if that is not known.
        costly: whether it was ended because it takes longer than can be afforded.
    """

    seen: Observation
    traces: Traces
    folder: Path
    horizon: int | None = None
    start: str = ""
    costly: bool = False

    @functools.cached_property
    def shown(self) -> Verdict:
        """What it shows by itself, whatever is studied."""
        return judge(self.seen, self.traces.as_metrics)

    def judged(self, standard: Standard) -> Verdict:
        """What it means under a standard."""
        return judge(self.seen, self.traces.as_metrics, standard)

    @property
    def failing(self) -> tuple[Path, Traces]:
        """Folder and traces of the process that its outcome is about."""
        several = {rank.number: rank for rank in ranks_of(self.traces)}
        rank = several.get(self.seen.rank or 0)
        return (rank.folder, rank.traces) if rank is not None else (self.folder, self.traces)


def read_ending(folder: Path) -> tuple[Ending, JsonObject] | None:
    """How a run ended, and what else ``ending.json`` says of it; None if it did not come to its end."""
    try:
        kept = json.loads((folder / "ending.json").read_text(encoding="utf-8"))
        known = {field.name: kept.pop(field.name) for field in fields(Ending) if field.name in kept}
        known["phases"] = {str(name): float(seconds) for name, seconds in known.get("phases", {}).items()}
        known["stood"], known["paused"] = str(known.get("stood", "")), tuple(map(str, known.get("paused", ())))
        ending = Ending(**known)
        float(ending.longest_silence), int(kept.get("steps", 0))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    told = isinstance(ending.exit_code, (int, type(None))) and isinstance(ending.hang, (str, type(None)))
    return (ending, kept) if told and isinstance(ending.seconds, (int, float)) else None


def load_run(study: Path, number: int | str) -> Run | None:
    """A run that ended before, read back from its folder; None if there is none that came to its end.

    Raises:
        InputError: its events are damaged. Without them it would seem to have died before it built a configuration.
    """
    folder = study / "trials" / str(number)
    found = read_ending(folder)
    if found is None:
        return None
    ending, kept = found
    traces = Traces.of(folder)
    traces.read()
    if not kept.get("watched", True):
        seen = observe_command(traces.metrics.rows, folder, ending)
        return Run(seen, traces, folder, kept.get("horizon"), COLD)
    if not traces.events.rows and (kept.get("steps") or _has_text(traces.events.path)):
        raise InputError(
            f"The study is damaged: {traces.events.path} holds no event of its run.",
            "Put the file back, or start over with --restart (the old study is kept beside it).",
        )
    seen = observe(traces, folder, ending)
    return Run(seen, traces, folder, kept.get("horizon"), kept.get("level", ""), ending.costly)


def _has_text(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def purpose_again(start: str) -> Purpose:
    """What a further run of the bad configuration before the search is for, by how it was started."""
    return Purpose.BAD_AGAIN if start in ("", COLD) else Purpose.WARM_START


class Pauses:
    """The longest silences of the runs so far, which tell how long one may be in the runs to come.

    Attributes:
        silence: in training, outside of named slow phases, in seconds; None if no run has made a step yet.
        phases: name of a slow phase -> seconds.
        passing: the longest silence of those that ended with status 0, in seconds; None if none did.
        stood: where they hung.
        paused: where they stood in pauses after which they went on.
    """

    def __init__(self) -> None:
        self.silence: float | None = None
        self.phases: dict[str, float] = {}
        self.passing: float | None = None
        self.stood: set[Place] = set()
        self.paused: set[Place] = set()

    @property
    def hangs(self) -> frozenset[Place]:
        """Where they hung and none has paused."""
        return frozenset(self.stood - self.paused)

    @classmethod
    def of(cls, study: Path) -> Pauses:
        """Those of the runs that a study folder holds."""
        found = cls()
        for path in study.glob("trials/*/ending.json"):
            ending = read_ending(path.parent)
            if ending is not None:
                found.note(ending[0], int(ending[1].get("steps", 0)))
        return found

    def note(self, ending: Ending, steps: int) -> None:
        """Another run is over, after so many steps."""
        if steps:
            self.silence = max(self.silence or 0.0, ending.longest_silence)
        if ending.exit_code == 0:
            self.passing = max(self.passing or 0.0, ending.longest_silence)
            if steps:
                for name in IN_EACH_TRAINING:  # if too short to be seen
                    self.phases.setdefault(name, 0.0)
        for name, seconds in ending.phases.items():
            self.phases[name] = max(self.phases.get(name, 0.0), seconds)
        self.stood |= {ending.stood} - {""}
        self.paused |= set(ending.paused)


def result_of(run: Run, verdict: Verdict) -> TrialResult:
    """The result of a run, with what is worth keeping of it; its folder keeps it.

    Args:
        run: that is over.
        verdict: on it.
    """
    seen, signature = run.seen, verdict.signature
    attributes = {
        "folder": run.folder.name,
        "level": run.start,
        "horizon": run.horizon,
        "observation": msgspec.to_builtins(seen),
        "remarks": [asdict(remark) for remark in verdict.remarks],
    }
    told = None if signature is None else str(signature)
    shown = intermediate_of(run.traces.metrics.rows)
    result = TrialResult(verdict.outcome, told, verdict.message, seen.seconds, verdict.step, attributes, shown)
    kept = {name: value for name, value in asdict(result).items() if name != "intermediate"}  # it is in the metrics
    write_json(run.folder / "result.json", {**kept, "outcome": verdict.outcome.value})
    return result


def intermediate_of(rows: Sequence[JsonObject]) -> dict[int, float]:
    """The metric that shows best how a run went, by step: the first of `SHOWN` that it has."""
    name = next((name for name in SHOWN if any(is_value(row.get(name)) for row in rows)), None)
    return {} if name is None else {row["step"]: float(row[name]) for row in rows if is_value(row.get(name))}


def is_value(value: Value) -> bool:
    """Whether it is a number, finite or not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
