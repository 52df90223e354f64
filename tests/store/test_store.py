"""The store: what is written when, by whom, what counts, and whose names it uses."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal

import optuna
import pytest
from optuna.trial import TrialState

from bisect_cfg import Bisection, Outcome
from bisect_cfg.common.configuration import Purpose, difference
from bisect_cfg.remedy.remedy import Aim, Attempt
from bisect_cfg.search import Ask, Problem
from bisect_cfg.store import store as stores
from bisect_cfg.store.encoding import OBJECTIVE, OTHER, QUESTION, SAFE, SHOWN, SUBSET, result_attributes
from bisect_cfg.store.interface import TrialResult
from bisect_cfg.store.sampler import SearchTrials
from bisect_cfg.store.store import Store, StudyHeld, StudyMismatch, Void
from bisect_cfg.study.recommend import begin, finished, ran

GOOD = {"lr": 1e-6, "bf16": False, "steps": 4, "optim": "adamw"}
BAD = {"lr": 1e-3, "bf16": True, "steps": 16, "optim": "sgd"}


@pytest.fixture(params=["memory", "sqlite"])
def storage(request, tmp_path):
    return optuna.storages.InMemoryStorage() if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"


def opened(storage, **options) -> Store:
    return Store(difference(GOOD, BAD), storage, "s", **options)


def searched(store: Store) -> SearchTrials:
    return SearchTrials(store, Problem(tuple(BAD)), lambda result, subset, reference: result.outcome)


def test_a_value_that_is_neither_level_is_another_one() -> None:
    store = opened(None)
    assert store.params(BAD) == {"lr": 1e-3, "bf16": True, "steps": 16, "optim": "sgd"}
    assert store.params({**BAD, "lr": 1e-5, "optim": "lion"}) == store.params(BAD) | {"lr": OTHER, "optim": OTHER}


def test_a_trial_is_whole_as_soon_as_another_can_see_it(storage) -> None:
    store, other = opened(storage), opened(storage)
    number = store.begin(store.params(BAD), {SUBSET: list(BAD)}).number
    (seen,) = other.trials(SUBSET)
    assert (seen.number, seen.state, seen.params) == (number, TrialState.RUNNING, store.params(BAD))
    assert seen.user_attrs[SUBSET] == list(BAD)
    store.finish(number, {"outcome": "fail"}, Outcome.FAIL)
    (seen,) = other.trials(SUBSET)
    assert (seen.state, seen.value, seen.user_attrs["outcome"]) == (TrialState.COMPLETE, 1.0, "fail")


@pytest.mark.parametrize("why", Void)
def test_a_trial_without_a_result_counts_for_nothing_and_its_number_is_not_used_again(storage, why: Void) -> None:
    store = opened(storage)
    number = store.begin({}, {SUBSET: []}).number
    store.void(number, why)
    store.finish(number, {"outcome": "pass"}, Outcome.PASS)  # it stays closed
    assert store.trials() == [] and store.count() == 0
    assert store.study.trials[number].user_attrs["outcome"] == why
    assert store.begin({}, {SUBSET: []}).number == number + 1


def test_what_a_dead_process_left_running_is_lost_and_nothing_else(storage) -> None:
    dead, store = opened(storage), opened(storage)
    ended, left = (dead.begin({}, {SUBSET: []}).number for _ in range(2))
    dead.finish(ended, {"outcome": "unresolved"}, Outcome.UNRESOLVED)
    with store.alive(), store.alive():
        mine = store.begin({}, {SUBSET: []}).number
        assert [trial.number for trial in store.lost] == [left]
        assert [trial.number for trial in store.trials()] == [ended, mine]


def test_each_phase_sees_its_own_trials(storage) -> None:
    store = opened(storage)
    asked = store.begin(store.params(BAD), {QUESTION: "bad-config-1"}).number
    subset = store.begin(store.params(GOOD), {SUBSET: []}).number
    number = begin(store, Attempt({**BAD, "lr": 1e-5}, 1, 30, Aim.VERIFY, "does it train?"), "from the start")
    assert [trial.number for trial in store.trials(SUBSET)] == [subset]
    assert [trial.number for trial in store.trials(SAFE)] == [number]
    assert store.number_of("bad-config-1") is None  # before it has ended
    for one in (asked, number):
        result = TrialResult(Outcome.PASS, seconds=2.0)
        store.finish(one, result_attributes(result, result.outcome), result.outcome)
    (one,) = (ran(trial, store) for trial in finished(store))
    assert (one.number, one.healthy, one.steps, one.seconds) == (number, True, 30, 2.0)
    assert store.number_of("bad-config-1") == asked and store.number_of("good") is None and store.count() == 3


def test_runs_of_before_the_search_count_as_what_they_ran(storage) -> None:
    """And those of the search before another beginning count for nothing."""
    store = opened(storage)
    trials = searched(store)
    bad = store.begin(store.params(BAD), {QUESTION: "bad-config-1", "purpose": Purpose.WARM_START.value}).number
    good = store.begin(store.params(GOOD), {QUESTION: "good-config", "purpose": Purpose.GOOD_BASELINE.value}).number
    earlier, later = (trials.begin(Ask(mask)).number for mask in (0b01, 0b10))
    trials.count({bad: trials.problem.full, good: 0}, later)
    assert [(record.number, record.subset) for record in trials.records()] == [(bad, 0b1111), (good, 0), (later, 0b10)]
    assert store.trials()[earlier].user_attrs[SUBSET] == ["lr"]


def test_a_run_that_is_told_twice_is_added_once(storage) -> None:
    trials = searched(opened(storage))
    for _ in range(2):
        trials.add(Ask(0b1111, 0, Purpose.BAD_BASELINE), TrialResult(Outcome.FAIL, "boom"))
    trials.add(Ask(0b1111, 0, Purpose.BAD_AGAIN), TrialResult(Outcome.FAIL, "boom"))
    assert [record.purpose for record in trials.records()] == [Purpose.BAD_BASELINE, Purpose.BAD_AGAIN]


def test_optuna_is_shown_the_ends_and_what_is_recommended(storage) -> None:
    store = opened(storage)
    other = {**BAD, "lr": 1e-5, "adam_epsilon": 1e-6}
    first = store.begin({}, {QUESTION: "first"}).number
    store.finish(first, {"outcome": "fail"}, Outcome.FAIL)
    for configuration in ({**BAD, "bf16": False}, other):
        number = begin(store, Attempt(configuration, 0, 30, Aim.VERIFY, ""), "")
        store.finish(number, {"outcome": "pass"}, Outcome.PASS)
    ran = {first: BAD, 1: {**BAD, "bf16": False}, 2: other}
    for best in (1, 1, 2):
        store.show([first], ran.__getitem__, best)
    assert [trial.value for trial in store.study.trials] == [None, 0.0, 0.0, 1.0, 0.0, -1.0]
    assert [trial.user_attrs[SHOWN] for trial in store.study.trials[3:]] == [first, 1, 2] and store.count() == 3
    assert store.study.best_trial.user_attrs[SHOWN] == 2 and store.study.best_trial.params["lr"] == OTHER
    assert store.study.metric_names == [OBJECTIVE]


def test_steps_are_intermediate_values_of_which_many_are_thinned_out(storage) -> None:
    store = opened(storage)
    long = {step: float(step) if step < 1000 else math.nan for step in range(1, 1001)}
    store.finish(store.begin({}, {SUBSET: []}).number, {}, Outcome.FAIL, long)
    (seen,) = (trial.intermediate_values for trial in opened(storage).study.trials)
    assert len(seen) == stores.MOST_INTERMEDIATE and list(seen)[0] == 1 and math.isnan(seen[1000])


def test_another_thing_in_the_same_study_is_refused(storage) -> None:
    token = {"hub_token": "opensesame-hub"}
    factors = difference({**GOOD, "hub_token": None}, {**BAD, **token})
    store = Store(factors, storage, "s", {"failure": "SIGFPE"})
    assert "opensesame" not in repr(store.study.user_attrs) + repr(store.distributions)
    Store(factors, storage, "s", {"failure": "SIGFPE"})
    with pytest.raises(StudyMismatch, match="something else: not the same failure"):
        Store(factors, storage, "s", {"failure": "hang"})
    with pytest.raises(StudyMismatch, match="other configurations: bf16, hub_token differ"):
        Store(difference({**GOOD, "bf16": None}, BAD), storage, "s", {"failure": "SIGFPE"})


def test_there_is_one_writer_and_the_second_is_told_who_it_is(storage) -> None:
    first, second = opened(storage), opened(storage)
    with first.alive(), first.alive():  # a phase within a pass
        with pytest.raises(StudyHeld, match=f"process {os.getpid()} is working in the study 's': wait"):
            with second.alive():
                pass
    with second.alive():
        pass


def test_a_bisection_in_another_process_holds_its_study(tmp_path) -> None:
    address = f"sqlite:///{tmp_path}/s.db"
    spawn = multiprocessing.get_context("spawn")
    held, done = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(address, held, done))
    other.start()
    assert held.wait(60)
    with pytest.raises(StudyHeld, match=f"process {other.pid} is working"):
        Bisection(GOOD, BAD, bool, isolation="none", storage=address, study_name="s").run()
    other.kill()  # who is killed has no time to say that it ends
    other.join()
    with opened(address).alive():
        pass


def _hold(address: str, held, done) -> None:
    with opened(address).alive():
        held.set()
        done.wait()


def test_a_child_that_outlives_the_writer_does_not_hold_the_study_on(tmp_path) -> None:
    address = f"sqlite:///{tmp_path}/s.db"
    spawn = multiprocessing.get_context("spawn")
    born, children = spawn.Event(), spawn.Queue()
    other = spawn.Process(target=_hold_with_a_child, args=(address, born, children))
    other.start()
    child = children.get(timeout=60)
    other.kill()
    other.join()
    try:
        with opened(address).alive():
            assert os.path.exists(f"/proc/{child}")
    finally:
        os.kill(child, signal.SIGKILL)


def _hold_with_a_child(address: str, born, children) -> None:
    with opened(address).alive():
        child = os.fork()
        if not child:
            born.set()
            signal.pause()
        assert born.wait(60)
        children.put(child)
        signal.pause()


def test_optuna_asks_what_the_tool_asks() -> None:
    ours, theirs = (
        Bisection(GOOD, BAD, lambda c: c != BAD, isolation="none", confirm=1, max_trials=2) for _ in range(2)
    )
    for bisection in (ours, theirs):
        bisection.run()  # both ends
    trial = theirs.study.ask()
    values = {name: trial.suggest_categorical(name, (GOOD[name], BAD[name], OTHER)) for name in BAD}
    subset = set(theirs.study.trials[trial.number].user_attrs[SUBSET])
    assert values == {**GOOD, **{name: BAD[name] for name in subset}}
    asked = ours.study.sampler.state().question
    assert {name for index, name in enumerate(BAD) if asked.subset >> index & 1} == subset
