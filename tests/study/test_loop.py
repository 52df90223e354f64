"""The loop that isolates and recommends: who is begun, recorded and closed when."""

from __future__ import annotations

import threading

import pytest

from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.engines.simulated import SimulatedEngine
from bisect_cfg.study.loop import Action, run_loop


class Counting:
    """Runs the numbers up to `last`, `jobs` at a time, and writes down what happens."""

    def __init__(self, last: int, jobs: int, *, enough: int | None = None) -> None:
        self.running: list[int] = []
        self.said: list[tuple[str, int]] = []
        self.most = 0
        self._next, self._last, self._jobs, self._enough = 0, last, jobs, enough
        self._ended = threading.Event()
        self.recorded: list[int] = []

    def next_action(self) -> int | Action:
        if self._enough is not None and len(self.recorded) >= self._enough:
            return Action.DONE
        if len(self.running) >= self._jobs:
            return Action.WAIT
        if self._next == self._last:
            return Action.WAIT if self.running else Action.DONE
        self._next += 1
        self.running.append(self._next)
        self.most = max(self.most, len(self.running))
        return self._next

    def execute(self, begun: int) -> int:
        if self._enough is not None and begun > self._enough:  # goes on until it is ended
            assert self._ended.wait(30)
        return begun * 10

    def record(self, begun: int, came: int) -> None:
        assert came == begun * 10
        self.recorded.append(begun)
        self.running.remove(begun)

    def interrupt(self) -> None:
        self.said.append(("interrupted", len(self.running)))
        self._ended.set()

    def go_on(self) -> None:
        self.said.append(("going on", len(self.running)))

    def close(self, begun: int) -> None:
        self.said.append(("closed", begun))


@pytest.mark.parametrize("jobs", [1, 3])
def test_everything_is_recorded_once(jobs: int) -> None:
    work = Counting(7, jobs)
    run_loop(work, LocalEngine(work.execute, jobs))
    assert sorted(work.recorded) == list(range(1, 8)) and work.most == jobs
    assert work.said == [] and work.running == []


def test_one_at_a_time_is_in_order_and_in_this_thread() -> None:
    work = Counting(4, 1)
    threads = set()
    work.execute = lambda begun: threads.add(threading.current_thread()) or begun * 10
    run_loop(work, LocalEngine(work.execute, 1))
    assert work.recorded == [1, 2, 3, 4] and threads == {threading.current_thread()}


def test_simulated_trials_run_in_this_thread_as_if_at_once() -> None:
    work = Counting(7, 3)
    threads = set()
    run_loop(work, SimulatedEngine(lambda begun: threads.add(threading.current_thread()) or begun * 10, 3))
    assert work.recorded == list(range(1, 8)) and work.most == 3 and threads == {threading.current_thread()}


def test_what_runs_when_all_is_known_is_ended_and_closed() -> None:
    work = Counting(9, 3, enough=2)
    run_loop(work, LocalEngine(work.execute, 3))
    assert sorted(work.recorded) == [1, 2]
    assert work.said[0][0] == "interrupted" and work.said[1][0] == "going on"
    assert {number for said, number in work.said[2:]} <= {3, 4, 5} and work.running == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_closes_what_runs_and_comes_up(jobs: int) -> None:
    work = Counting(9, jobs)

    def struck(begun: int) -> int:
        if begun == 3:
            raise KeyboardInterrupt
        return begun * 10

    work.execute = struck
    with pytest.raises(KeyboardInterrupt):
        run_loop(work, LocalEngine(work.execute, jobs))
    assert ("closed", 3) in work.said and work.running == [] and 3 not in work.recorded


def test_a_result_that_cannot_be_recorded_is_closed() -> None:
    work = Counting(9, 1)

    def full(begun: int, came: int) -> None:
        raise OSError("no space left")

    work.record = full
    with pytest.raises(OSError, match="no space"):
        run_loop(work, LocalEngine(work.execute, 1))
    assert ("closed", 1) in work.said
