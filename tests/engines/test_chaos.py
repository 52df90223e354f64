"""Bisections on sites that die, hang, answer late or twice, come back and refuse: on a virtual clock, so that each is
the same at each run."""

from __future__ import annotations

import gc
import random
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future
from pathlib import Path

import psutil
import pytest
from tools import slow

from bisect_cfg.common.configuration import Configuration, Outcome
from bisect_cfg.runner.plan import Plan, Result
from bisect_cfg.search.problem import bits
from bisect_cfg.study.bisection import Bisection
from tests.engines.simulated import Runner, virtual
from tests.search.oracles import Oracle, draw

SITES, BISECTIONS = 100, 20


def mask(configuration: Configuration) -> int:
    return sum(value << int(name[1:]) for name, value in configuration.items())


def causes(oracle: Oracle) -> set[frozenset[str]]:
    return {frozenset(f"f{bit}" for bit in bits(cause)) for cause in oracle.causes}


@pytest.mark.parametrize("seed", [0, *(slow(seed) for seed in range(1, 10))])
def test_whatever_sites_do_each_answer_is_right_or_says_that_it_is_none(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    oracles, now = [draw(rng, rng.randint(3, 8)) for _ in range(BISECTIONS)], 0
    nodes = [f"node-{site // 4}" for site in range(SITES)]
    versions = {f"node-{node}": "2.9.1" for node in rng.sample(range(25), 3)}
    shows = lambda configuration, node: oracles[now].run(mask(configuration))  # noqa: E731
    right = 0
    with virtual(monkeypatch, tmp_path, nodes, shows, seed=seed, versions=versions) as engine:
        for now, oracle in enumerate(oracles):  # noqa: B007  # what runs show now
            good, bad = ({f"f{bit}": side for bit in range(oracle.size)} for side in (0, 1))
            report = Bisection(good, bad, Runner(engine, now), jobs=8).search()
            found = {frozenset(cause.parameters) for cause in report.causes}
            assert found <= causes(oracle) and (not report.complete or found == causes(oracle)), (now, report)
            right += report.complete
            assert [row.number for row in report.rows] == sorted({row.number for row in report.rows})
            for row in report.rows:  # each says what its own subset shows, or that it was lost each time
                told = oracle.run(mask(row.values))
                assert row.outcome == ("unresolved" if row.signature == "lost" else told.value), (now, row)
            assert not engine._running() and not engine._waiting
        assert right >= BISECTIONS * 2 / 3 and engine.ended and all(engine.did.values()), (right, engine.did)


@pytest.mark.parametrize("trials", [600, slow(5000)])
def test_the_tool_is_after_many_trials_as_it_was_after_a_few(
    trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [f"node-{site // 4}" for site in range(SITES)]
    with virtual(monkeypatch, tmp_path, nodes, lambda *about: Outcome.PASS) as engine:
        process, measured, numbers = psutil.Process(), list[tuple[int, int, int]](), iter(range(trials))
        running: dict[Future[Result], int] = {}
        for ended in range(trials):
            while len(running) < SITES / 2 and (number := next(numbers, None)) is not None:
                running[engine.submit(Plan(number, {"a": 1}, None))] = number
            future = min(engine.wait(running, return_when=FIRST_COMPLETED)[0], key=running.__getitem__)
            number = running.pop(future)
            assert future.result().name == number
            engine.disk.pop(number, None)
            engine.notes.clear()
            if ended in (trials // 5, trials - SITES):
                gc.collect()
                measured.append((sys.getallocatedblocks(), threading.active_count(), process.num_fds()))
        (blocks, *others), (blocks_after, *others_after) = measured
        assert others_after == others and blocks_after - blocks < 2000, measured
        assert engine.lost > trials / 5 and not running
