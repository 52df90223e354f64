"""Tables of metrics drawn from seeds: healthy runs with noise, and runs that go wrong in one way or another."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Row = dict[str, float | str | None]
Columns = dict[str, Callable[[int], float | str | None]]
"""Metric -> its value at an index."""


def drawn(seed: int) -> tuple[str, list[Row]]:
    """What is the matter with the table of a seed, and its rows."""
    rng = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    length = rng.choice((rng.randint(3, 20), rng.randint(20, 120), rng.randint(20, 120)))
    at = rng.randint(0, 2 * length // 3)
    columns = KINDS[kind](rng, at, _healthy(rng, length))
    rows: list[Row] = []
    for index in range(length):
        row: Row = {"step": index + 1, "time": float(index)}
        for name, value in columns.items():
            found = value(index)
            row[name] = round(found, 6) if isinstance(found, float) and math.isfinite(found) else found
        rows.append(row)
    return kind, rows


def _healthy(rng: random.Random, length: int) -> Columns:
    spread, pace = rng.choice((0.02, 0.1, 0.4)), rng.random() / length

    def noisy(value: float, least: float = 0.0) -> float:
        return max(value * rng.gauss(1.0, spread), least)

    return {
        "loss": lambda i: rng.gauss(0.0, 0.02),
        "grad_norm": lambda i: noisy(1.5),
        "learning_rate": lambda i: 1e-6 * min(i / 5, 1.0),
        "reward": lambda i: min(noisy(0.2 + 0.5 * pace * i), 1.0),
        "reward_std": lambda i: noisy(0.25),
        "frac_reward_zero_std": lambda i: rng.choice((0.0, 0.0, 0.0, 0.25, 0.5)),
        "entropy": lambda i: noisy(2.0 * (1 - 0.4 * pace * i)),
        "completions/clipped_ratio": lambda i: rng.choice((0.0, 0.0, 0.125)),
    }


def _collapse(rng: random.Random, at: int, columns: Columns) -> Columns:
    low, dead = rng.choice((0.001, 0.05, 0.2, 0.4)), rng.choice((1.0, 0.9, 0.75))
    later = {"entropy": 2.0 * low, "frac_reward_zero_std": dead, "reward": rng.choice((0.0, 0.1, 0.9)),
             "reward_std": 0.0, "grad_norm": rng.choice((0.0, 1e-4, 0.5))}  # fmt: skip
    return _from(at, columns, later)


def _noise(rng: random.Random, at: int, columns: Columns) -> Columns:
    return _from(at, columns, {"entropy": rng.choice((3.0, 5.0, 8.0)), "reward": 0.0, "grad_norm": 9.0})


def _cut_off(rng: random.Random, at: int, columns: Columns) -> Columns:
    later = {"completions/clipped_ratio": 1.0, "reward": rng.choice((0.0, 0.1)), "frac_reward_zero_std": 1.0}
    return _from(at, columns, later)


def _not_finite(rng: random.Random, at: int, columns: Columns) -> Columns:
    names = rng.sample(["loss", "grad_norm", "reward", "entropy", "kl"], rng.randint(1, 3))
    value, until = rng.choice((math.nan, math.inf, -math.inf)), at + rng.choice((1, 5, 7, 9, 1000, 1000))
    old = {name: columns.get(name, lambda i: 0.1) for name in names}
    return {**columns, **{name: _between(at, until, value, old[name]) for name in names}}


def _supervised(rng: random.Random, at: int, columns: Columns) -> Columns:
    start, times = rng.choice((0.7, 2.0, 11.0)), rng.choice((1.5, 2.5, 5.0, 10.0))
    until = at + rng.choice((12, 1000, 1000))

    def loss(index: int) -> float:
        usual = start * (0.5 + 0.5 * 0.95**index) * rng.gauss(1.0, 0.1)
        return usual * times if at <= index < until else usual

    return {"loss": loss, "grad_norm": columns["grad_norm"]}


def _no_gradient(rng: random.Random, at: int, columns: Columns) -> Columns:
    return _from(rng.choice((0, 0, at)), columns, {"grad_norm": 0.0})


def _dead_reward(rng: random.Random, at: int, columns: Columns) -> Columns:
    later = {"frac_reward_zero_std": rng.choice((1.0, 0.9)), "reward_std": 0.0, "reward": rng.choice((0.0, 1.0))}
    return _from(rng.choice((0, 0, 4, at)), columns, later | ({"grad_norm": 0.0} if rng.random() < 0.5 else {}))


def _missing(rng: random.Random, at: int, columns: Columns) -> Columns:
    columns = rng.choice((_collapse, _dead_reward, _not_finite))(rng, at, columns)
    gone = rng.sample(sorted(columns), rng.randint(1, len(columns) - 1))
    return {name: value for name, value in columns.items() if name not in gone}


def _text(rng: random.Random, at: int, columns: Columns) -> Columns:
    names, value = rng.sample(sorted(columns), 3), rng.choice(("nan", "0.1", None, ""))
    return {name: _between(at, 1000, value, old) if name in names else old for name, old in columns.items()}


def _reward_falls(rng: random.Random, at: int, columns: Columns) -> Columns:
    return _from(at + 10, columns, {"reward": rng.choice((0.0, 0.02, 0.1, 0.2))})


KINDS: dict[str, Callable[[random.Random, int, Columns], Columns]] = {
    "healthy": lambda rng, at, columns: columns,
    "collapse": _collapse,
    "noise": _noise,
    "cut off": _cut_off,
    "not finite": _not_finite,
    "supervised": _supervised,
    "no gradient": _no_gradient,
    "dead reward": _dead_reward,
    "missing": _missing,
    "text": _text,
    "reward falls": _reward_falls,
}


def _between(first: int, last: int, value: float | str | None, old: Callable[[int], object]) -> Callable[[int], object]:
    return lambda index: value if first <= index < last else old(index)


def _from(at: int, columns: Columns, later: dict[str, float]) -> Columns:
    return {name: _between(at, 10**9, later[name], old) if name in later else old for name, old in columns.items()}
