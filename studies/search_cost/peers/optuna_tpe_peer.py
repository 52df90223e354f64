"""Optuna's TPE with two choices a factor, minimising how many are bad in a configuration that fails.

It has no rule for when to stop and proves nothing; it is stopped here the moment it has run the cause, which no
user could know, or after `BUDGET` runs.
"""

from __future__ import annotations

import optuna
from oracles import Answer, Oracle

PACKAGE = "optuna"
SETTINGS = (1,)
BUDGET = 300

optuna.logging.set_verbosity(optuna.logging.WARNING)


def solve(oracle: Oracle, repeats: int) -> Answer:
    """One cause."""

    def objective(trial: optuna.Trial) -> float:
        chosen = [i for i in range(oracle.size) if trial.suggest_categorical(f"f{i}", ["good", "bad"]) == "bad"]
        mask = sum(1 << i for i in chosen)
        if oracle.fails(mask, repeats):
            if mask in oracle.instance.causes:
                trial.study.stop()
            return float(len(chosen))
        return float(2 * oracle.size - len(chosen))  # worse than any failure, better the nearer to one

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial({f"f{i}": "bad" for i in range(oracle.size)})
    study.optimize(objective, n_trials=BUDGET)
    best = study.best_trial.params
    return Answer(frozenset({sum(1 << i for i in range(oracle.size) if best[f"f{i}"] == "bad")}))
