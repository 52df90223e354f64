"""What a study's folder holds, as people are shown it: the answer, or how far it came, and what its trials traced.

Read from the files alone, so that a report can be made of a study that is still running, was interrupted, or was made
elsewhere. Everything has the form of result.json; what a study without an answer lacks is empty in it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, Required, TypedDict

from bisect_cfg.common.configuration import Purpose, Value, equal
from bisect_cfg.common.files import convert, load_json, read_text
from bisect_cfg.common.json_files import JsonObject, digest
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import METRICS_FILE
from bisect_cfg.reports import text
from bisect_cfg.reports.answer import failure_of
from bisect_cfg.runner.runs import load_run
from bisect_cfg.runner.traces import tail_of_log
from bisect_cfg.store.folder import check_entries, is_at_work
from bisect_cfg.store.state import STATE_FILE, read_state

EMPTY: JsonObject = {
    "schema": 1, "complete": False, "failure": None, "where": None, "rows": None, "placement": None, "causes": [],
    "not_varied": {},
    "corrections": [], "masking": [], "reproduction": {"rate": None, "interval_95": []}, "recommendation": None,
    "known_issue": None, "environment": {}, "notes": [], "warnings": [], "seconds": None, "horizon": None,
    "start": None, "said": [],
}  # fmt: skip
"""What a study has that came to nothing."""

EMPTY_ROW: JsonObject = {"values": {}, "reason": "", "remarks": [], "signature": None, "step": None, "seconds": 0.0}
"""What a row may lack: a study that ended before its search, or was made by an earlier version."""

LOG_LINES = 25
"""Of a log: a traceback's innermost frames and its message."""

NO_METRICS = frozenset({"time", "step", "training"})
"""Keys of a row of metrics that say which row it is."""

Levels = Mapping[str, tuple[Value, Value]]
"""Factor -> its good and its bad value."""


class _Levels(TypedDict):
    good: Any
    bad: Any


class _Claim(TypedDict, total=False):
    subset: list[str]
    seen: Required[int]
    runs: Required[int]
    trials: Required[list[int]]


class _Evidence(TypedDict):
    fails: _Claim
    passes_without: dict[str, _Claim]


class _Cause(TypedDict):
    parameters: dict[str, _Levels]
    companions: NotRequired[list[str]]
    evidence: _Evidence


class _Row(TypedDict, total=False):
    number: Required[int]
    outcome: Required[str]
    purpose: Required[str]
    values: JsonObject
    reason: str
    remarks: list[str]
    signature: str | None
    step: float | None
    seconds: float | None
    folder: str
    suspicion: dict[str, float] | None


class _Target(TypedDict):
    script: str
    arguments: list[str]
    command: NotRequired[str]


class _Failure(TypedDict, total=False):
    kind: Required[str]
    message: str
    step: float | None


class _Recommendation(TypedDict, total=False):
    configuration: JsonObject
    changes: dict[str, JsonObject]
    edits: list[JsonObject]
    diff: str
    alternatives: list[JsonObject]
    unplaced: list[JsonObject]


class _Answer(TypedDict, total=False):
    """The form of result.json, as far as what is shown rests on it."""

    status: Required[str]
    target: Required[_Target]
    trials: Required[list[_Row]]
    complete: bool | None
    failure: _Failure | None
    where: JsonObject | None
    rows: JsonObject | None
    placement: JsonObject | None
    causes: list[_Cause]
    not_varied: dict[str, str]
    corrections: list[JsonObject]
    masking: list[JsonObject]
    reproduction: JsonObject
    recommendation: _Recommendation | None
    known_issue: JsonObject | None
    environment: JsonObject
    notes: list[str]
    warnings: list[JsonObject]
    seconds: float | None
    horizon: int | None
    start: str | None
    said: list[Any]


@dataclass(frozen=True)
class Recorded:
    """What is known of a study.

    Attributes:
        folder: of the study; None for one of a function, whose trials leave no files.
        result: the content of result.json, or as much of it as there is without an answer.
        said: why there is no answer, or none that is final, in a sentence; "" if there is one.
    """

    folder: Path | None
    result: JsonObject
    said: str = ""

    @property
    def log(self) -> list[str]:
        """The last lines of the user's own command, as it failed."""
        first = next((row["folder"] for row in self.trials if row["purpose"] == Purpose.BAD_BASELINE), None)
        if self.folder is None:
            return []
        # Of one that was interrupted no trial tells.
        path = self.folder / first if first else _last_begun(self.folder)
        return [] if path is None else tail_of_log(path / "log.txt", LOG_LINES)

    @property
    def trials(self) -> list[JsonObject]:
        """The rows of result.json, in the order of the reasoning."""
        return self.result["trials"]

    @property
    def levels(self) -> Levels:
        """The two values of every factor, as the runs of the two ends had them; those of the causes first."""
        known: dict[str, tuple[Value, Value]] = {}
        for cause in self.result["causes"]:
            known |= {name: (value["good"], value["bad"]) for name, value in cause["parameters"].items()}
        ends = [
            next((row["values"] for row in self.trials if row["purpose"] == purpose and row.get("values")), {})
            for purpose in (Purpose.GOOD_BASELINE, Purpose.BAD_BASELINE)
        ]
        good, bad = ends
        return known | {name: (good[name], bad[name]) for name in bad if name in good and name not in known}

    @property
    def guilty(self) -> frozenset[str]:
        """The factors of all causes."""
        return frozenset(name for cause in self.result["causes"] for name in cause["parameters"])

    @property
    def told(self) -> set[int]:
        """The numbers of the trials that are told in full: of the evidence, and those that the reader asked for."""
        return {*self.evidence, *(row["number"] for row in self.trials if row["purpose"] == Purpose.ASKED)}

    @property
    def evidence(self) -> list[int]:
        """The numbers of the trials that the answer rests on: of the causes, the corrections and what is recommended,
        and the first run of either end."""
        claims = [claim for cause in self.result["causes"] for claim in _claims(cause["evidence"])]
        claims += [correction["passes"] for correction in self.result["corrections"]]
        claims += [(self.result["recommendation"] or {}).get("evidence") or {}]
        numbers = {number for claim in claims for number in claim.get("trials", ())}
        for purpose in (Purpose.BAD_BASELINE, Purpose.GOOD_BASELINE):
            numbers |= {row["number"] for row in self.trials if row["purpose"] == purpose}
        return [row["number"] for row in self.trials if row["number"] in numbers]

    def metrics(self, row: JsonObject, most: int | None = None) -> list[JsonObject]:
        """The metrics of a trial, a row a step; see `read_metrics`."""
        if self.folder is None:
            return row.get("metrics") or []
        return read_metrics(self.folder / row["folder"], most)

    def only(self, trials: list[JsonObject]) -> Recorded:
        """The same study with these trials alone."""
        return replace(self, result={**self.result, "trials": trials})


def read(folder: Path, storage: str | None = None) -> Recorded:
    """What a study's folder holds.

    Args:
        folder: of the study.
        storage: where the trials are of one that is not finished, if they are elsewhere.

    Raises:
        InputError: it holds no study, or its answer cannot be read.
    """
    if not any(os.path.lexists(folder / name) for name in (STATE_FILE, "result.json")):
        raise InputError(f"{folder} holds no study.", "Name the folder that `bisect-cfg bisect` has written.")
    check_entries(folder)
    state = read_state(folder)
    try:
        result = load_json(read_text(folder / "result.json"), ours=True)
        convert(result, _Answer)
    except (FileNotFoundError, NotADirectoryError):
        result = None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / 'result.json'} cannot be read: {error}.",
            "Run the same `bisect-cfg bisect` command again: no trial is repeated, and the file is rewritten.",
        ) from None
    working = is_at_work(folder)
    if result is not None:
        said = "bisect-cfg is at work in this study again; this is the answer that it had before." if working else ""
        rows = [{**EMPTY_ROW, "folder": f"trials/{row.get('number')}", **row} for row in result["trials"]]
        return Recorded(folder, {**EMPTY, **result, "trials": rows}, said)
    from bisect_cfg.store.rows import recorded_trials, stored_trials  # of a finished study no database is looked at

    elsewhere = state.study if state is not None and storage and state.storage == digest(storage) else None
    rows = recorded_trials(folder) if elsewhere is None else stored_trials(storage, elsewhere)[1]
    first = next((row["folder"] for row in rows if row["purpose"] == Purpose.BAD_BASELINE), None)
    status, said = _without_answer(rows, working, _last_begun(folder) is not None)
    if elsewhere is None and state is not None and state.study and not (folder / "study.db").exists():
        said += " Its trials are recorded in the storage that --storage named, and not in this folder."
    libraries = {} if state is None else {name: version for name, version in state.libraries.items() if version}
    found = {
        **EMPTY,
        "status": status,
        "failure": first and _failure_of(folder, first.rpartition("/")[2]),
        "environment": {"packages": libraries, "gpus": [{"name": name} for name in (state.gpus if state else ())]},
        "target": {
            "script": "?" if state is None else state.target["script"],
            "arguments": [] if state is None else state.target["arguments"],
        },
        "seconds": sum(row["seconds"] or 0.0 for row in rows),
        "trials": rows,
    }
    return Recorded(folder, found, said)


def _last_begun(folder: Path) -> Path | None:
    """The folder of the run that began last."""
    begun = (folder / "trials").glob("*")
    return max((path for path in begun if path.is_dir()), key=lambda path: path.stat().st_mtime, default=None)


def _failure_of(folder: Path, name: str) -> JsonObject | None:
    """The failure that a run has shown; None if it is not over, or its traces are damaged: there is nothing to show."""
    with contextlib.suppress(InputError):
        run = load_run(folder, name)
        return None if run is None else failure_of(run)
    return None


def _without_answer(rows: list[JsonObject], working: bool, begun: bool) -> tuple[str, str]:
    done = text.count(sum(row["outcome"] != "running" for row in rows), "trial")
    if working:
        return "running", f"bisect-cfg is at work in this study: {done} done. There is no answer yet."
    if not begun:
        return "empty", "Nothing has been run in this study yet: there is no trial and no answer."
    again = "The same `bisect-cfg bisect` command goes on where it was."
    over = any(row["outcome"] != "running" for row in rows)
    when = f"before its time, with {done} done" if over else "while its first run was running"
    return "unfinished", f"This study has no answer: it ended {when}. {again}"


def _claims(evidence: JsonObject) -> list[JsonObject]:
    return [evidence["fails"], *evidence["passes_without"].values()]


def read_metrics(folder: Path, most: int | None = None) -> list[JsonObject]:
    """A trial's rows of metrics, as far as they can be read, of the training that it is about.

    Args:
        folder: of the trial.
        most: no more rows than this, evenly spaced, and the last one; None for all. The others are not even parsed.
    """
    try:
        lines = (folder / METRICS_FILE).read_bytes().splitlines()
    except OSError:
        return []
    if most is not None and len(lines) > most:
        lines = [lines[number * (len(lines) - 1) // (most - 1)] for number in range(most)]
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


def level(values: Mapping[str, Value], name: str, levels: Levels) -> str:
    """Which of its levels a factor has in a trial: "good", "bad", or "other" for what lies elsewhere."""
    good, bad = levels[name]
    value = values.get(name)
    return "bad" if equal(value, bad) else "good" if equal(value, good) else "other"


def asked(row: JsonObject, levels: Levels) -> str:
    """What a trial tests, in a few words."""
    values = row.get("values") or {}
    moved = row["purpose"] == Purpose.ASKED and any(
        name not in levels or level(values, name, levels) == "other" for name in values
    )
    if moved or Purpose.read(row["purpose"])[0] is Purpose.RECOMMEND:
        yours = {name: bad for name, (_, bad) in levels.items()}
        changed = [f"{n}: {text.show(v, n)}" for n, v in values.items() if n not in yours or not equal(v, yours[n])]
        return ", ".join(changed) or "your configuration"
    if not values or not levels:  # it ended before its settings were known, or nothing was isolated
        return "the good configuration" if row["purpose"] == Purpose.GOOD_BASELINE else "your configuration"
    bad = [name for name in levels if level(values, name, levels) == "bad"]
    return text.subset(bad, list(levels))


def ruled_out(rows: Iterable[JsonObject], least: float) -> dict[int, list[str]]:
    """Number of a trial -> the factors that were suspected when it was asked, and were not when the next one was.

    Args:
        rows: in the order of the reasoning, each with the suspicion at that time, if it is known.
        least: the least probability that counts as suspected.
    """
    known = [(row["number"], row["suspicion"]) for row in rows if row.get("suspicion")]
    found: dict[int, list[str]] = {}
    for (number, before), (_, after) in zip(known, known[1:], strict=False):
        found[number] = [name for name, was in before.items() if was >= least > after.get(name, 0.0)]
    return found


def finite(value: Value) -> float | None:
    """A number that can be drawn, else None."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None
