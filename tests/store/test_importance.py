"""What Optuna's own tools make of a study agrees with its answer."""

from __future__ import annotations

import random

import optuna
import pytest

from bisect_cfg import Bisection
from bisect_cfg.common.configuration import Outcome
from bisect_cfg.store.interface import TrialResult

NAMES = tuple("abcdefghijkl")
GOOD = {name: (1e-6 * 10**number, 256 + number, False, "adamw")[number % 4] for number, name in enumerate(NAMES)}
BAD = {name: (3e-2 * 10**number, 8 + number, True, None)[number % 4] for number, name in enumerate(NAMES)}


@pytest.mark.parametrize(("rate", "seed"), [(1.0, 0), (1.0, 1), (0.7, 0)])
@pytest.mark.parametrize("kind", ["one setting", "two together", "two, each by itself"])
def test_importance_ranks_the_guilty_first_and_the_best_trial_is_recommended(kind: str, rate: float, seed: int) -> None:
    rng = random.Random(seed)
    a, b = rng.sample(NAMES, 2)
    causes = {"one setting": [{a}], "two together": [{a, b}], "two, each by itself": [{a}, {b}]}[kind]

    def trial(configuration: dict) -> TrialResult:
        bad = {name for name in NAMES if configuration[name] == BAD[name]}
        shown = any(cause <= bad for cause in causes) and (bad == {*NAMES} or rng.random() < rate)
        return TrialResult(Outcome.FAIL if shown else Outcome.PASS, "boom" if shown else None, seconds=1.0)

    storage = optuna.storages.InMemoryStorage()
    report = Bisection(GOOD, BAD, trial, isolation="none", storage=storage, study_name="s").run()
    assert {frozenset(cause.parameters) for cause in report.causes} == {frozenset(cause) for cause in causes}
    study = optuna.load_study(study_name="s", storage=storage)
    guilty = {name for cause in report.causes for name in cause.parameters}
    assert {*list(optuna.importance.get_param_importances(study))[: len(guilty)]} == guilty
    assert study.best_trial.params == {name: report.safe_configuration[name] for name in NAMES} and report.complete
