"""The loop that isolates and recommends: who is begun, recorded and closed when, and why a limit ends it."""

from __future__ import annotations

import threading
import time

import pytest

from bisect_cfg.engines.local import LocalEngine
from bisect_cfg.study.bisection import Bisection
from bisect_cfg.study.loop import Action, Limits, run_loop


class Counting:
    """Runs the numbers up to `last`, `jobs` at a time, and writes down what happens."""

    def __init__(self, last: int, jobs: int, *, enough: int | None = None) -> None:
        self.running: list[int] = []
        self.said: list[tuple[str, int]] = []
        self.recorded: list[int] = []
        self._next, self._last, self._jobs, self._enough = 0, last, jobs, enough
        self._ended = threading.Event()

    def next_action(self) -> int | Action:
        if self._enough is not None and len(self.recorded) >= self._enough:
            return Action.DONE
        if len(self.running) >= self._jobs:
            return Action.WAIT
        if self._next == self._last:
            return Action.WAIT if self.running else Action.DONE
        self._next += 1
        self.running.append(self._next)
        return self._next

    def asked(self, begun: int) -> int:
        return begun

    def run(self, begun: int) -> int:
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


def test_so_many_run_at_once_and_each_is_recorded_once() -> None:
    work, together = Counting(9, 3), threading.Barrier(3)
    work.run = lambda begun: together.wait(30) * 0 + begun * 10
    run_loop(work, LocalEngine(work, 3))
    assert sorted(work.recorded) == list(range(1, 10)) and work.said == [] and work.running == []


@pytest.mark.parametrize(("jobs", "in_place"), [(1, False), (3, True)])
def test_one_at_a_time_and_simulated_trials_run_in_this_thread_in_order(jobs: int, in_place: bool) -> None:
    work, threads = Counting(7, jobs), set()
    work.run = lambda begun: threads.add(threading.current_thread()) or begun * 10
    run_loop(work, LocalEngine(work, jobs, in_place))
    assert work.recorded == list(range(1, 8)) and threads == {threading.current_thread()}


def test_what_runs_when_all_is_known_is_ended_and_closed() -> None:
    work = Counting(9, 3, enough=2)
    run_loop(work, LocalEngine(work, 3))
    assert sorted(work.recorded) == [1, 2]
    assert work.said[0][0] == "interrupted" and work.said[1][0] == "going on"
    assert {number for said, number in work.said[2:]} <= {3, 4, 5} and work.running == []


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_cannot_be_run_or_recorded_is_closed_and_the_error_comes_up(jobs: int, error: type) -> None:
    work = Counting(9, jobs)

    def struck(begun: int, *came: int) -> int:
        if begun == 3:
            raise error
        return begun * 10 if not came else Counting.record(work, begun, *came)

    if error is KeyboardInterrupt:
        work.run = struck
    else:  # a full disk
        work.record = struck
    with pytest.raises(error):
        run_loop(work, LocalEngine(work, jobs))
    assert ("closed", 3) in work.said and work.running == [] and 3 not in work.recorded


@pytest.mark.parametrize(
    ("limits", "done", "said"),
    [
        (Limits(), 1000, ""),
        (Limits(2, flags=True), 1, ""),
        (Limits(1, flags=True), 1, "Stopped after 1 trial, as --max-trials asks."),
        (Limits(2), 3, "Stopped after 3 trials, as max_trials asks."),
        (Limits(None, time.monotonic() - 1, flags=True), 1, "Stopped when the time was up, as --max-seconds asks."),
        (Limits(None, time.monotonic() - 1), 1, "Stopped when the time was up, as max_seconds asks."),
        (Limits(None, time.monotonic() + 3600), 1, ""),
    ],
)
def test_why_it_stops_in_the_words_of_whoever_has_set_the_limit(limits: Limits, done: int, said: str) -> None:
    assert limits.spent(done) == said
    if limits.max_trials == 1:
        report = Bisection({"a": 0}, {"a": 1}, lambda c: not c["a"], isolation="none", limits=limits).run()
        assert report.notes[-1] == said
