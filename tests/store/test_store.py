"""The store: what is written when, who is taken for dead, and whose names it uses."""

from __future__ import annotations

import ast
import contextlib
import math
import sqlite3
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

import bisect_cfg
from bisect_cfg import Bisection, Outcome
from bisect_cfg.configuration import difference
from bisect_cfg.recommend.attempts import Aim, Attempt
from bisect_cfg.recommend.safe_trials import SafeTrials
from bisect_cfg.search import Ask
from bisect_cfg.store import storage as storages
from bisect_cfg.store import store as stores
from bisect_cfg.store.encoding import SUBSET
from bisect_cfg.store.interface import TrialResult
from bisect_cfg.store.store import Store, Void

GOOD = {"lr": 1e-6, "bf16": False, "steps": 4, "optim": "adamw"}
BAD = {"lr": 1e-3, "bf16": True, "steps": 16, "optim": "sgd"}


@pytest.fixture(params=["memory", "sqlite"])
def storage(request, tmp_path):
    return optuna.storages.InMemoryStorage() if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"


def opened(storage) -> Store:
    return Store(difference(GOOD, BAD), storage, "s")


def test_a_process_that_was_killed_before_it_made_an_index_leaves_one_study(tmp_path: Path) -> None:
    """SIGKILL between Optuna's table and the index that keeps names unique: who finds the table makes none any more."""
    address = f"sqlite:///{tmp_path}/s.db"
    optuna.storages.RDBStorage(address)
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as database:
        database.execute("DROP INDEX ix_studies_study_name")
        database.execute("DROP INDEX ix_trials_study_id")
    for _ in range(2):
        opened(address)
    assert len(optuna.get_all_study_names(address)) == 1
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert {"ix_studies_study_name", "ix_trials_study_id"} <= names


def test_the_indexes_are_those_that_optuna_makes(tmp_path: Path) -> None:
    optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/s.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as database:
        made = {sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql > ''")}
    assert made == {statement.replace(" IF NOT EXISTS", "") for statement in storages._INDEXES.values()}


def test_values_between_the_levels_are_parameters_and_others_are_not() -> None:
    store = opened(None)
    assert store.params(BAD) == {"lr": 1e-3, "bf16": True, "steps": 16, "optim": "sgd"}
    assert store.params({**BAD, "lr": 1e-5, "steps": 8, "optim": "lion"}) == {"lr": 1e-5, "bf16": True, "steps": 8}
    assert store.params({**BAD, "lr": 1.0, "steps": 8.5}) == {"bf16": True, "optim": "sgd"}


def test_a_trial_is_whole_as_soon_as_another_can_see_it(storage) -> None:
    store, other = opened(storage), opened(storage)
    number = store.start(store.params(BAD), {SUBSET: list(BAD)}).number
    (seen,) = other.trials(SUBSET)
    assert (seen.number, seen.state, seen.params) == (number, TrialState.RUNNING, store.params(BAD))
    assert seen.user_attrs[SUBSET] == list(BAD) and seen.user_attrs["worker"]["pid"]
    store.finish(number, {"outcome": "fail"}, Outcome.FAIL)
    (seen,) = other.trials(SUBSET)
    assert (seen.state, seen.value, seen.user_attrs["outcome"]) == (TrialState.COMPLETE, 3.0, "fail")


def test_a_trial_that_was_closed_meanwhile_stays_closed(storage) -> None:
    store, other = opened(storage), opened(storage)
    number = store.start({}, {SUBSET: []}).number
    other.void(number, Void.LOST)
    store.finish(number, {"outcome": "pass"}, Outcome.PASS)
    assert store.trials(SUBSET) == []
    assert store.study.trials[number].user_attrs["outcome"] == "lost"


def test_each_phase_sees_its_own_trials(storage) -> None:
    store = opened(storage)
    safe = SafeTrials(store)
    searched = store.start(store.params(GOOD), {SUBSET: []}).number
    number = safe.start(Attempt({**BAD, "lr": 1e-5}, 1, 30, Aim.VERIFY, "does it train?"), "from the start")
    assert [trial.number for trial in store.trials(SUBSET)] == [searched]
    assert [trial.number for trial in safe.all()] == [number] and safe.asked(Aim.VERIFY) == 1
    safe.finish(number, {"seconds": 2.0}, Outcome.PASS)
    (ran,) = safe.ran()
    assert (ran.number, ran.healthy, ran.steps, ran.seconds) == (number, True, 30, 2.0)


def test_trials_of_before_another_beginning_count_for_nothing(storage) -> None:
    store = opened(storage)
    numbers = [store.start(store.params(GOOD), {SUBSET: []}).number for _ in range(3)]
    store.since = numbers[2]
    assert [trial.number for trial in store.trials(SUBSET)] == numbers[2:]


def test_the_living_and_the_dead_of_this_machine(storage) -> None:
    store, other = opened(storage), opened(storage)
    with store.alive():
        number = store.start({}, {SUBSET: []}).number
        assert other.abandoned(SUBSET) == []
    assert [trial.number for trial in other.abandoned(SUBSET)] == [number]
    with store.alive():
        assert other.abandoned(SUBSET) == []


def test_the_best_trial_is_a_healthy_one_that_gives_up_least(storage) -> None:
    store = Store(difference(GOOD, BAD), storage, "s", weights={"lr": 3.0, "bf16": 1.0, "steps": 0.0, "optim": 0.0})
    safe, best = SafeTrials(store), {**BAD, "lr": 10**-4.5}
    for subset in ((), ("bf16",), ("lr",), tuple(BAD)):
        configuration = {**GOOD, **{name: BAD[name] for name in subset}}
        number = store.start(store.params(configuration), {SUBSET: list(subset)}).number
        store.finish(number, {}, Outcome.FAIL if len(subset) == len(BAD) else Outcome.PASS)
    other = {**BAD, "adam_epsilon": 1e-6}
    for configuration, outcome in (
        (GOOD, Outcome.PASS), (best, Outcome.PASS), (BAD, Outcome.FAIL), (other, Outcome.PASS)
    ):  # fmt: skip
        safe.finish(safe.start(Attempt(configuration, 0, 30, Aim.VERIFY, ""), ""), {}, outcome)
    assert [trial.value for trial in store.study.trials] == pytest.approx([2.0, 1.75, 1.25, 3.0, 1.0, 0.375, 3.0, 0.2])
    assert store.study.best_trial.user_attrs["besides"] == ["adam_epsilon"]
    assert store.study.metric_names is not None and "given up" in store.study.metric_names[0]


def test_a_study_of_an_earlier_version_goes_on_with_its_values(storage) -> None:
    optuna.create_study(storage=storage, study_name="s", direction="maximize")
    store = opened(storage)
    for configuration, outcome in ((BAD, Outcome.FAIL), (GOOD, Outcome.PASS)):
        store.finish(store.start(store.params(configuration), {SUBSET: []}).number, {}, outcome)
    assert [trial.value for trial in store.study.trials] == [1.0, 0.0]


def test_steps_are_intermediate_values_of_which_many_are_thinned_out(storage) -> None:
    store = opened(storage)
    long = {step: float(step) if step < 1000 else math.nan for step in range(1, 1001)}
    number = store.start({}, {SUBSET: []}).number
    store.finish(number, {}, Outcome.FAIL, long)
    store.add({}, {SUBSET: []}, Outcome.PASS, {1: 0.5, 2: 0.25})
    seen, added = (trial.intermediate_values for trial in opened(storage).study.trials)
    assert len(seen) == stores.MOST_INTERMEDIATE and list(seen)[0] == 1 and math.isnan(seen[1000])
    assert added == {1: 0.5, 2: 0.25}


def test_what_a_function_tells_of_its_steps_is_recorded() -> None:
    def trial(configuration) -> TrialResult:
        outcome = Outcome.FAIL if configuration["bf16"] else Outcome.PASS
        return TrialResult(outcome, None if outcome is Outcome.PASS else "boom", intermediate={1: 0.5, 2: 0.25})

    for isolation in ("none", "process"):
        bisection = Bisection(GOOD, BAD, trial, isolation=isolation, max_trials=2)
        bisection.run()
        assert [trial.intermediate_values for trial in bisection.study.trials] == [{1: 0.5, 2: 0.25}] * 2


def test_a_silent_worker_on_another_machine_is_dead(storage, monkeypatch) -> None:
    elsewhere = {"host": "elsewhere", "pid": 1, "started": 0.0}
    with monkeypatch.context() as there:
        there.setattr(stores, "this_process", lambda: elsewhere)
        store = opened(storage)
        number = store.start({}, {SUBSET: []}).number
    now = [1000.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: now[0])
    here = opened(storage)
    assert here.abandoned(SUBSET) == []  # seen for the first time
    now[0] += stores.SILENCE_SECONDS - 1
    assert here.abandoned(SUBSET) == []
    store.beat()
    now[0] += stores.SILENCE_SECONDS - 1
    assert here.abandoned(SUBSET) == []  # it has been heard of
    now[0] += stores.SILENCE_SECONDS + 1
    assert [trial.number for trial in here.abandoned(SUBSET)] == [number]


def test_the_later_of_two_that_ask_the_same_withdraws() -> None:
    storage = optuna.storages.InMemoryStorage()
    first, second = (
        Bisection(GOOD, BAD, bool, isolation="none", storage=storage, study_name="s").study.sampler for _ in range(2)
    )
    asked = second.state().question
    assert isinstance(asked, Ask)
    assert first.begin(first.state().question, []) is not None
    assert second.begin(asked, []) is None  # both had read the empty study
    outcomes = [trial.user_attrs.get("outcome") for trial in optuna.load_study(study_name="s", storage=storage).trials]
    assert outcomes == [None, "withdrawn"]


def test_optuna_asks_what_the_tool_asks() -> None:
    ours = Bisection(GOOD, BAD, bool, isolation="none", confirm=1)
    theirs = Bisection(GOOD, BAD, bool, isolation="none", confirm=1)
    for bisection in (ours, theirs):
        bisection.add(BAD, TrialResult(Outcome.FAIL, "boom"), "bad baseline")
        bisection.add(GOOD, TrialResult(Outcome.PASS), "good baseline")
    trial = theirs.study.ask(theirs.store.distributions)
    subset = set(theirs.study.trials[trial.number].user_attrs[SUBSET])
    assert trial.params == ours.store.params({**GOOD, **{name: BAD[name] for name in subset}})
    asked = ours.study.sampler.state().question
    assert {factor.name for index, factor in enumerate(ours.factors) if asked.subset >> index & 1} == subset


def test_no_private_name_of_optuna() -> None:
    found = []
    for path in Path(bisect_cfg.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        if "optuna" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value)
                if owner not in ("self", "cls"):
                    found.append(f"{path.name}: {owner}.{node.attr}")
    assert found == []
