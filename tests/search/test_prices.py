"""What a run costs: learned from the times, told beforehand, and used to ask for less."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from tools import slow

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.search import Problem, Record
from bisect_cfg.search.case import Prices
from bisect_cfg.search.problem import Counts

sys.path.insert(0, str(Path(__file__).parents[2] / "studies" / "search_cost"))
import seconds as study  # noqa: E402

NAMES = tuple(f"f{i}" for i in range(10))


def records_of(rng: random.Random, factors: list[float], count: int) -> list[Record]:
    records = []
    for number in range(count):
        mask = rng.randrange(1 << len(factors))
        failed = mask & 2
        took = 10 * math.exp(sum(f for i, f in enumerate(factors) if mask >> i & 1)) * (0.5 if failed else 1)
        outcome = Outcome.FAIL if failed else Outcome.PASS
        records.append(Record(mask, outcome, Purpose.SEARCH, number, took * math.exp(rng.gauss(0, 0.05))))
    return records


@pytest.mark.parametrize("seed", range(5))
def test_the_one_costly_setting_is_learned_from_the_times(seed: int) -> None:
    rng = random.Random(seed)
    factors = [0.0] * 10
    factors[rng.choice((0, *range(2, 10)))] = math.log(20)
    prices = Prices.of(Problem(NAMES), Counts(records_of(rng, factors, 24)))
    assert int(np.argmax(np.abs(prices.factors))) == factors.index(max(factors))
    assert prices.factors.max() > math.log(5)
    assert 0.35 < prices.fail < 0.75


def test_equal_times_have_no_price() -> None:
    records = [Record(mask, Outcome.PASS, Purpose.SEARCH, mask, 3.0) for mask in range(1, 9)]
    assert Prices.of(Problem(NAMES), Counts(records)).flat
    assert Prices.of(Problem(NAMES), Counts([])).flat


def test_what_is_known_beforehand_holds_until_times_say_otherwise() -> None:
    work = (math.log(30), *[0.0] * 9)
    assert Prices.of(Problem(NAMES, work=work), Counts([])).of_mask(1) == pytest.approx(30)
    rng = random.Random(0)
    told = Prices.of(Problem(NAMES, work=work), Counts(records_of(rng, [0.0] * 10, 40)))
    assert told.of_mask(1) < 15


@pytest.mark.training
@pytest.mark.parametrize("known", [slow(False), True])
def test_the_times_save_time_and_change_no_answer(known: bool) -> None:
    total = {True: 0.0, False: 0.0}
    for seed in range(12):
        case = study.Case.draw(19, 1, seed, costly=2)
        for aware in (True, False):
            conclusion, _, seconds = study.solve(case, aware, known)
            assert {c.parameters for c in conclusion.causes} == set(case.causes) and conclusion.complete
            total[aware] += seconds
    # Measured on 200: 0.75 where the times must be learned, 0.6 where they are known.
    assert total[True] < (0.8 if known else 1.0) * total[False]
