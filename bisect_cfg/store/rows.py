"""The trials of a study as rows: of a report, and in the form of result.json, as the storage has them, for people who
want to see how far it came."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import optuna
from optuna.storages import BaseStorage
from optuna.study import StudySummary
from optuna.trial import FrozenTrial
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from bisect_cfg.common.configuration import Outcome, Value
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import scrub
from bisect_cfg.store.causes import Trial
from bisect_cfg.store.encoding import purpose_of, result_of, values_of
from bisect_cfg.store.storage import BESIDE, cannot_open, open_storage, sqlite_storage
from bisect_cfg.store.store import CONCLUDED, VOID

INTERMEDIATE = "intermediate value"
"""What the metric is called that a function told of its steps."""

Levels = Mapping[str, tuple[Value, Value]]
"""Factor -> its good and its bad value."""


def recorded_trials(folder: Path) -> list[Trial]:
    """The trials of a study's folder, running ones included; empty if none is recorded there.

    Raises:
        InputError: the database is damaged.
    """
    path = folder / "study.db"
    if not path.exists():
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = sqlite_storage(path)
        try:
            every = optuna.get_all_study_summaries(storage)
            return next((_stored_rows(storage, one) for one in every if BESIDE not in one.study_name), [])
        finally:
            storage.engine.dispose()
    except DatabaseError as error:
        advice = "Put the file back, or begin anew: `bisect-cfg bisect` with --restart keeps the old study beside it."
        raise cannot_open(path, error, advice) from None


def stored_trials(address: str, name: str | None = None) -> tuple[JsonObject, list[Trial]]:
    """What was concluded in a study of a storage (without a name: the only one), {} if nothing yet, and its trials.

    Raises:
        InputError: the storage cannot be opened, or has no such study.
    """
    file = Path(address.removeprefix("sqlite:///"))
    try:
        if address.startswith("sqlite:///") and not file.exists():
            raise ValueError(f"{file} is not there")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = open_storage(address)
        known = {summary.study_name: summary for summary in optuna.get_all_study_summaries(storage)}
    except (SQLAlchemyError, ImportError, OSError, ValueError) as error:
        raise cannot_open(address, error) from None
    if name is None and len(known) == 1:
        (name,) = known
    if name not in known:
        which = f"has no study {name}" if name is not None else "has several studies" if known else "has no study"
        raise InputError(f"The storage {scrub(address)} {which}.", f"It has: {', '.join(known)}." if known else "")
    return known[name].user_attrs.get(CONCLUDED) or {}, _stored_rows(storage, known[name])


def _stored_rows(storage: BaseStorage, study: StudySummary) -> list[Trial]:
    factors = study.user_attrs.get("factors") or {}
    trials = optuna.load_study(study_name=study.study_name, storage=storage).get_trials(deepcopy=False)
    return rows_of(trials, {name: (_read(good), _read(bad)) for name, (good, bad) in factors.items()})


def rows_of(trials: Iterable[FrozenTrial], levels: Levels) -> list[Trial]:
    """The trials of a study, running ones included, without those that count for nothing."""
    return [
        row_of(trial, levels)
        for trial in trials
        if trial.user_attrs.get("outcome") not in VOID and values_of(trial, levels) is not None
    ]


def row_of(trial: FrozenTrial, levels: Levels, outcome: Outcome | None = None) -> Trial:
    """A trial of the storage, with its outcome by what is known now, or as recorded."""
    known, result, over = trial.user_attrs, result_of(trial), trial.state.is_finished()
    purpose, run = purpose_of(trial)
    seen = known.get("outcome", result.outcome.value) if outcome is None else outcome.value
    return Trial(
        trial.number,
        seen if over else "running",
        purpose.of_run(run),
        result.signature,
        result.seconds if over else None,
        result.step_of_training,
        known.get("reason", ""),
        ", ".join(known.get("companions", ())),
        values_of(trial, levels) or {},
        f"trials/{result.attributes.get('folder', trial.number)}",
        result.attributes.get("level"),
        suspicion=known.get("suspicion"),
        metrics=tuple({"step": step, INTERMEDIATE: value} for step, value in trial.intermediate_values.items()),
        node=result.attributes.get("node"),
    )


def _read(words: str) -> Value:
    """A value as the store has written it down."""
    try:
        return json.loads(words)
    except ValueError:
        return words
