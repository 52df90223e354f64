"""The study is the only state: what lies beside its records may be lost, and what was decided is read from the runs."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path

from toys import script

RECORDS = {"state.json", "study.db", "study.db-wal", "study.db-shm", "trials", "lock"}

OPEN_TO_ALL = """
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, max_grad_norm=0.2, adam_beta2=0.95, beta=0.04,
        temperature=0.9,
    )
    def step(number):
        if args.learning_rate > 1e-4 and args.temperature < 1 and number == 3:
            raise RuntimeError("boom")
    GRPOTrainer(args, step).train()
"""


def runs(study: Path) -> dict[str, int]:
    """Every run that came to its end, with the time of that."""
    return {path.parent.name: path.stat().st_mtime_ns for path in study.glob("trials/*/ending.json")}


def rows(study: Path, question: str) -> list[tuple]:
    """What the database answers. It is closed again, as a process that is forked must not inherit it."""
    with contextlib.closing(sqlite3.connect(study / "study.db")) as database:
        return sorted(database.execute(question).fetchall())


def trials(study: Path) -> list[tuple]:
    """What the Optuna study records."""
    attributes = rows(study, "select trial_id, key, value_json from trial_user_attributes")
    return rows(study, "select number, state, datetime_complete from trials") + attributes


def answer(study: Path) -> dict:
    result = json.loads((study / "result.json").read_text())
    return {key: result[key] for key in ("status", "complete", "causes", "notes", "recommendation", "start", "horizon")}


def test_what_is_no_record_may_be_deleted(tool):
    script(tool.folder, OPEN_TO_ALL)
    study = tool.folder / "s"
    assert tool("bisect", "train.py", "--study", "s").status == 0
    begun, recorded, said = runs(study), trials(study), answer(study)
    assert said["status"] == "isolated" and said["recommendation"]["verified"]
    others = sorted(path.name for path in study.iterdir() if path.name not in RECORDS)
    assert {"validity.json", "command.json", "server", "result.json"} <= set(others)
    for name in others:
        path = study / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        again = tool("bisect", "train.py", "--study", "s")
        assert again.status == 0, (name, again.all)
        assert (runs(study), trials(study), answer(study)) == (begun, recorded, said), name
        assert path.exists() or name == "server", name  # which stands only where a trial needs it
    tool.assert_nothing_left()


KEEPS_ONE_AND_STARTS_COLD = """
    def forked():
        return open(f"/proc/{os.getppid()}/cmdline").read() == open("/proc/self/cmdline").read()
    args = GRPOConfig(
        output_dir="out", learning_rate=3e-4, weight_decay=0.1, max_grad_norm=0.2, adam_beta2=0.95, beta=0.04,
        temperature=0.9,
    )
    def step(number):
        if args.max_grad_norm > 0.5:
            raise ValueError("no")
        if args.beta and number == 3 and not forked():
            raise RuntimeError("boom")
    GRPOTrainer(args, step).train()
"""
"""Forked, the bad configuration passes; and the good one cannot do without one setting of the user's."""


def test_what_was_decided_is_read_from_the_runs(tool):
    script(tool.folder, KEEPS_ONE_AND_STARTS_COLD)
    study = tool.folder / "s"
    first = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert first.status == 0, first.all
    begun, said = runs(study), answer(study)
    assert said["start"] == "cold" and any("keeps your max_grad_norm" in note for note in said["notes"])
    again = tool("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    assert again.status == 0, again.all
    assert runs(study) == begun and answer(study) == said
