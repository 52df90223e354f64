"""What the folder of a study holds: its answer, or how far it came, and what its trials traced.

Read from the files alone, so that a report can be made of a study that is still running, was interrupted, or was made
elsewhere; and what of it is shown to others.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bisect_cfg.common import words
from bisect_cfg.common.configuration import Purpose, Value, equal
from bisect_cfg.common.json_files import JsonObject, digest
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import METRICS_FILE
from bisect_cfg.report.answer import EMPTY, RUNNING, UNFINISHED, Answer, Failure, Target, of_plain, plain, read_answer
from bisect_cfg.report.answer_of import failure_of
from bisect_cfg.runner.runs import load_run
from bisect_cfg.runner.traces import tail_of_log
from bisect_cfg.store.causes import Trial
from bisect_cfg.store.folder import check_entries, is_at_work
from bisect_cfg.store.state import STATE_FILE, State, read_state

LOG_LINES = 25
"""Of a log: a traceback's innermost frames and its message."""

GLYPHS = {"pass": "✓", "fail": "✕", "unresolved": "?", "running": "…"}
WORDS = {"pass": "passes", "fail": "fails", "unresolved": "unresolved", "running": "is running"}
"""Of the outcomes, in tables."""

SUSPECTED = 0.01
"""From this probability on a factor counts as suspected."""

_HOMES = re.compile(r"(?<![\w.-])(?:/home|/Users|/export/home|[A-Za-z]:\\Users)[/\\][^/\\\s'\":,;]+")
"""Where people's directories lie on Linux, macOS and Windows."""

NO_METRICS = frozenset({"time", "step", "training"})
"""Keys of a row of metrics that say which row it is."""


@dataclass(frozen=True)
class Recorded:
    """What is known of a study."""

    folder: Path | None  # of the study; None for one of a function, whose trials leave no files
    answer: Answer  # of the study, or as much of it as there is

    @property
    def log(self) -> list[str]:
        """The last lines of the user's own command, as it failed."""
        if self.folder is None:
            return []
        first = next((trial.folder for trial in self.answer.trials if trial.kind is Purpose.BAD_BASELINE), None)
        path = self.folder / first if first else _last_begun(self.folder)  # of one that was interrupted no trial tells
        return [] if path is None else tail_of_log(path / "log.txt", LOG_LINES)

    @property
    def shown_in_full(self) -> set[int]:
        """The numbers of the trials of the evidence, and of those that the reader asked for."""
        asked = (trial.number for trial in self.answer.trials if trial.kind is Purpose.ASKED)
        return {*self.answer.evidence, *asked}

    def metrics(self, trial: Trial) -> list[JsonObject]:
        """The metric rows of a trial; see `read_metrics`."""
        return list(trial.metrics) if self.folder is None else read_metrics(self.folder / trial.folder)

    def only(self, trials: Iterable[Trial]) -> Recorded:
        """The same study with these trials alone."""
        return replace(self, answer=msgspec.structs.replace(self.answer, trials=tuple(trials)))


def read(folder: Path, storage: str | None = None) -> Recorded:
    """What a study's folder holds. Trials of an unfinished one may be in a storage elsewhere.

    Raises:
        InputError: it holds no study, or its answer cannot be read.
    """
    if not any(os.path.lexists(folder / name) for name in (STATE_FILE, "result.json")):
        raise InputError(f"{folder} holds no study.", "Name the folder that `bisect-cfg bisect` has written.")
    check_entries(folder)
    state, answer, working = read_state(folder), read_answer(folder), is_at_work(folder)
    if answer is None:
        return Recorded(folder, _unfinished(folder, state, storage, working))
    if working:
        note = "bisect-cfg is at work in this study again; this is the answer that it had before."
        answer = msgspec.structs.replace(answer, notes=(note, *answer.notes))
    return Recorded(folder, answer)


def _unfinished(folder: Path, state: State | None, storage: str | None, working: bool) -> Answer:
    """What there is of a study without an answer; the first of the notes says why there is none."""
    from bisect_cfg.store.rows import recorded_trials, stored_trials  # of a finished study no database is looked at

    elsewhere = state.study if state is not None and storage and state.storage == digest(storage) else None
    trials = tuple(recorded_trials(folder) if elsewhere is None else stored_trials(storage or "", elsewhere)[1])
    first = next((trial.folder for trial in trials if trial.kind is Purpose.BAD_BASELINE), None)
    status, note = _why_unfinished(trials, working, _last_begun(folder) is not None)
    if elsewhere is None and state is not None and state.study and not (folder / "study.db").exists():
        note += " Its trials are recorded in the storage that --storage named, and not in this folder."
    environment: JsonObject = {}
    target = Target("?")
    if state is not None:
        packages = {name: version for name, version in state.libraries.items() if version}
        environment = {"packages": packages, "gpus": [{"name": name} for name in state.gpus]}
        target = Target(state.target["script"], tuple(state.target["arguments"]))
    return Answer(
        status,
        trials,
        failure=None if first is None else _failure_of(folder, Path(first).name),
        environment=environment,
        target=target,
        notes=(note,),
        seconds=sum(trial.seconds or 0.0 for trial in trials),
    )


def _last_begun(folder: Path) -> Path | None:
    """The folder of the run that began last."""
    begun = (folder / "trials").glob("*")
    return max((path for path in begun if path.is_dir()), key=lambda path: path.stat().st_mtime, default=None)


def _failure_of(folder: Path, name: str) -> Failure | None:
    """The failure that a run has shown; None if it is not over, or its traces are damaged: there is nothing to show."""
    with contextlib.suppress(InputError):
        return failure_of(load_run(folder, name))
    return None


def _why_unfinished(trials: Iterable[Trial], working: bool, begun: bool) -> tuple[str, str]:
    over = sum(trial.outcome != RUNNING for trial in trials)
    done = words.count(over, "trial")
    if working:
        return RUNNING, f"bisect-cfg is at work in this study: {done} done. There is no answer yet."
    if not begun:
        return EMPTY, "Nothing has been run in this study yet: there is no trial and no answer."
    when = f"before its time, with {done} done" if over else "while its first run was running"
    again = "The same `bisect-cfg bisect` command goes on where it was."
    return UNFINISHED, f"This study has no answer: it ended {when}. {again}"


def read_metrics(folder: Path) -> list[JsonObject]:
    """The metric rows in the folder of a trial, as far as they can be read, of the training that it is about."""
    try:
        lines = (folder / METRICS_FILE).read_bytes().splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # cut short by whoever killed it
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    last = max((row.get("training", 1) for row in rows), default=1)
    return [row for row in rows if row.get("training", 1) == last]


# ------------------------------------------------------------------------------------------------- the trials in words


@dataclass(frozen=True)
class Row:
    """A trial in the tables."""

    number: int  # of the trial
    outcome: str  # "pass", "fail", "unresolved" or "running"
    what: str  # what it tests
    came: str  # what came out, and when
    seconds: str  # how long it took, in words
    reason: str  # why it was asked
    evidence: bool  # whether the answer rests on it


def rows(answer: Answer) -> list[Row]:
    """Every trial in words."""
    evidence = set(answer.evidence)
    return [
        Row(
            trial.number,
            trial.outcome if trial.outcome in GLYPHS else "unresolved",
            tested(trial, answer),
            _came(trial),
            "" if trial.seconds is None else words.duration(trial.seconds),
            trial.reason or trial.purpose,
            trial.number in evidence,
        )
        for trial in answer.trials
    ]


def _came(trial: Trial) -> str:
    verb, step = WORDS.get(trial.outcome, trial.outcome), trial.step
    if trial.outcome == "pass":
        return f"{verb}, {words.count(step, 'step')}" if step else verb
    at = f" at step {step}" if step else " before training" if step == 0 else ""
    more = trial.signature and trial.signature != trial.outcome  # a function that returns False says no more
    return f"{verb}{at}: {words.clean(trial.signature)}" if more else verb + at


def tested(trial: Trial, answer: Answer) -> str:
    """What a trial tests, in a few words."""
    values, levels = trial.values, answer.levels
    moved = trial.kind is Purpose.ASKED and any(
        name not in levels or answer.level(trial, name) == "other" for name in values
    )
    if moved or trial.kind is Purpose.RECOMMEND:
        changed = [
            f"{name}: {words.show(value, name)}"
            for name, value in values.items()
            if name not in levels or not equal(value, levels[name].bad)
        ]
        return ", ".join(changed) or "your configuration"
    if not values or not levels:  # it ended before its settings were known, or nothing was isolated
        return "the good configuration" if trial.kind is Purpose.GOOD_BASELINE else "your configuration"
    return words.subset([name for name in levels if answer.level(trial, name) == "bad"], list(levels))


def finite(value: Value) -> float | None:
    """A number that can be drawn, else None."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


# -------------------------------------------------------------------------------------------------------- for others

# A study's folder keeps paths, since it is resumed by them; what is pasted into an issue or mailed has `~` in place of
# home directories. Secrets are masked before anything is written down (`probe.redact`).

Plain = TypeVar("Plain")


def shared(value: Plain) -> Plain:
    """A copy of plain data in which no text gives away a home directory, or turns around what stands beside it.

    Args:
        value: a text, or lists and dicts of texts, numbers and None.
    """
    home = os.path.expanduser("~")
    own = re.compile(rf"(?<![\w.-]){re.escape(home)}(?=[/\s'\":,;)\]]|$)") if len(home) > 1 else _HOMES

    def without(value: Any) -> Any:
        if isinstance(value, str):
            return words.clean(_HOMES.sub("~", own.sub("~", value)))
        if isinstance(value, dict):
            return {without(key): without(item) for key, item in value.items()}
        return [without(item) for item in value] if isinstance(value, (list, tuple)) else value

    made: Plain = without(value)
    return made


def anonymous(recorded: Recorded) -> Recorded:
    """The same study without what gives somebody away."""
    return replace(recorded, answer=of_plain(shared(plain(recorded.answer))))
