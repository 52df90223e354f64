"""The trials of a study that has no answer, as its database has them: for people who want to see how far it came."""

from __future__ import annotations

import json
from pathlib import Path

from bisect_cfg.configuration import Value
from bisect_cfg.jsonfile import JsonObject


def recorded_trials(folder: Path) -> list[JsonObject]:
    """One row a trial, running ones included, in the form of result.json; empty if none is recorded here."""
    path = folder / "study.db"
    if not path.exists():
        return []
    import optuna

    from bisect_cfg.study.storage import sqlite_storage
    from bisect_cfg.study.store import VOID

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = sqlite_storage(path)
    try:
        summaries = optuna.get_all_study_summaries(storage)
        if not summaries:
            return []
        factors = summaries[-1].user_attrs.get("factors") or {}
        trials = optuna.load_study(study_name=summaries[-1].study_name, storage=storage).get_trials(deepcopy=False)
    finally:
        storage.engine.dispose()
    levels = {name: (_read(good), _read(bad)) for name, (good, bad) in factors.items()}
    rows = []
    for trial in trials:
        known = trial.user_attrs
        if known.get("outcome") in VOID or not ("subset" in known or "recommend" in known):
            continue
        if "subset" in known:
            values = {name: pair[name in known["subset"]] for name, pair in levels.items()}
        else:
            values = {name: bad for name, (_, bad) in levels.items()} | known["recommend"].get("configuration", {})
        result = known.get("result") or {}
        rows.append(
            {
                "number": trial.number,
                "outcome": known.get("outcome", "") if trial.state.is_finished() else "running",
                "signature": known.get("signature"),
                "seconds": known.get("seconds"),
                "step": result.get("step", known.get("step")),
                "purpose": known.get("purpose", "search"),
                "reason": known.get("reason", ""),
                "companions": ", ".join(known.get("companions", ())),
                "values": values,
                "suspicion": known.get("suspicion"),
                "folder": f"trials/{(known.get('attributes') or {}).get('folder', trial.number)}",
                "remarks": [],
            }
        )
    return rows


def _read(words: str) -> Value:
    """A value as the store has written it down."""
    try:
        return json.loads(words)
    except ValueError:
        return words
