"""Metric rows are found in any form; collapsed runs are recognised, healthy ones never accused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_cfg.common.failures import metric_rows
from bisect_cfg.common.failures.metric_rows import rows_in
from bisect_cfg.explain.metric_facts import FACTS, MetricRow, Rows, facts

Make = Callable[[float, random.Random], dict[str, Any]]
HARMLESS = {"rows", "large-gradient", "growing-gradient"}
"""Facts that mean something beside others only."""


def around(dice: random.Random, mean: float, spread: float, low: float = 0.0, high: float = math.inf) -> float:
    return min(max(dice.gauss(mean, spread), low), high)


def row(
    dice: random.Random,
    reward: float,
    spread: float,
    entropy: float,
    norm: float = 0.3,
    dead: float = 0.2,
    cut: float = 0.1,
) -> dict[str, Any]:
    return {
        "loss": dice.gauss(0, 0.01), "grad_norm": abs(dice.gauss(norm, norm / 3)), "reward": reward,
        "reward_std": spread, "entropy": entropy,
        "frac_reward_zero_std": dead, "completions/clipped_ratio": cut,
    }  # fmt: skip


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


# What a run looks like after the share t of its time.
COLLAPSED: dict[str, Make] = {
    "at once": lambda t, d: row(d, around(d, 0.3, 0.05), 0.2, around(d, 1.1, 0.1)) if t < 0.2
        else row(d, 0.0, 0.0, 0.001, 0.0, 1.0),
    "dies midway": lambda t, d: row(d, around(d, 0.2 + 0.6 * t, 0.06), 0.25, around(d, 0.8 - 0.3 * t, 0.05)) if t < 0.55
        else row(d, around(d, 0.01, 0.01), 0.01, around(d, 0.05, 0.01), 0.02, 0.95),
    "up into noise": lambda t, d: row(d, around(d, 0.2 + 0.5 * t, 0.06), 0.25, around(d, 0.6, 0.05)) if t < 0.5
        else row(d, around(d, 0.02, 0.02), 0.03, around(d, 0.6 + 20 * (t - 0.5), 0.3), 2.0, 0.8, 1.0),
    "cut off": lambda t, d: row(d, around(d, 0.3, 0.06), 0.25, around(d, 0.6, 0.05), cut=0.2) if t < 0.4
        else row(d, 0.0, 0.0, around(d, 0.5, 0.1), 0.0, 1.0, 1.0),
    "cut off, with some gradient": lambda t, d: row(d, around(d, 0.4, 0.04), 0.25, around(d, 0.6, 0.05)) if t < 0.75
        else without(row(d, around(d, 0.02, 0.01), 0.02, 0.6, 90.0, 0.5, 0.98), "entropy"),
    "slowly": lambda t, d: row(d, around(d, 0.4 * (1 - t) ** 2, 0.03), 0.25 * (1 - t), 1.2 * math.exp(-8 * t),
        dead=min(1.0, 1.2 * t)),
    "without entropy": lambda t, d: without(
        row(d, around(d, 0.5, 0.1), 0.3, 1.0) if t < 0.5 else row(d, 0.0, 0.0, 1.0, 0.0, 1.0),
        "entropy", "frac_reward_zero_std"),
    "the reward alone": lambda t, d: without(
        row(d, around(d, 0.6, 0.08), 0.3, 1.0) if t < 0.6 else row(d, around(d, 0.01, 0.02), 0.02, 1.0, 0.5),
        "entropy", "frac_reward_zero_std", "reward_std", "completions/clipped_ratio"),
    "empty answers": lambda t, d: row(d, d.gauss(-2, 0.3), 0.5, around(d, 1.2, 0.1)) if t < 0.3
        else row(d, 0.0, 0.0, 0.001, 0.0, 1.0),
    "negative rewards": lambda t, d: row(d, d.gauss(-0.2 + t, 0.1), 0.5, around(d, 0.9, 0.05)) if t < 0.5
        else row(d, d.gauss(-1.0, 0.01), 0.0, around(d, 0.02, 0.005), 0.01, 0.97),
    "gave up a part of what it had learnt": lambda t, d: row(d, around(d, 0.7 + 2.2 * t, 0.12), 0.3, 1.0 - 1.6 * t)
        if t < 0.5 else row(d, around(d, 1.1, 0.06), 0.0, max(0.0015, 0.2 - 2 * (t - 0.5)), 0.002, 1.0),
    "far below its start": lambda t, d: row(d, around(d, 0.3 + 0.3 * t, 0.03), 0.3, around(d, 0.6, 0.02)) if t < 0.5
        else row(d, around(d, 0.1, 0.01), 0.2, around(d, 0.55, 0.02)),
}  # fmt: skip


def sparse(t: float, dice: random.Random) -> dict[str, Any]:
    hit = dice.random() < 0.25
    return row(dice, 0.125 * hit, 0.33 * hit, around(dice, 0.6, 0.05), 0.2 * hit, 0.875 if hit else 1.0)


HEALTHY: dict[str, Make] = {
    "noisy": lambda t, d: row(d, around(d, 0.4, 0.2, 0, 1), 0.3, around(d, 0.5, 0.15, 0.05), dead=0.6 * d.random()),
    "plateau": lambda t, d: row(d, around(d, 0.2 + 0.5 * min(3 * t, 1), 0.06), 0.2,
        around(d, 0.5 - 0.2 * min(3 * t, 1), 0.05, 0.02), dead=0.3),
    "little entropy from the start":
        lambda t, d: row(d, around(d, 0.6, 0.08), 0.2, around(d, 0.05, 0.02, 0.005), dead=0.5),
    "sparse reward": sparse,
    "learnt": lambda t, d: row(d, around(d, min(0.2 + 1.5 * t, 1), 0.02 * (1 - t), 0, 1), 0.3 * max(0.0, 1 - 1.2 * t),
        math.exp(-6 * t), 0.3 if t < 0.7 else 0.0, min(1.0, max(0.1, 1.4 * t))),
    "entropy rises with the reward":
        lambda t, d: row(d, around(d, 0.2 + 0.4 * t, 0.08), 0.3, around(d, 0.4 + 0.8 * t, 0.05)),
    "entropy falls with learning": lambda t, d: row(d, around(d, 0.2 + 0.4 * t, 0.08), 0.3,
        around(d, 2 * math.exp(-3 * t), 0.02, 0.01), dead=0.3 + 0.4 * t),
    "a dip": lambda t, d: row(d, around(d, 0.2 if 0.4 < t < 0.5 else 0.5, 0.08), 0.3, around(d, 0.5, 0.05), dead=0.3),
    "large rewards": lambda t, d: row(d, d.gauss(3 + 4 * t, 1.0), 1.2, around(d, 0.5, 0.05), 1.5, 0.1),
    "negative rewards": lambda t, d: row(d, d.gauss(-2 + 1.5 * t, 0.4), 0.8, around(d, 1.1, 0.1), dead=0.0),
    "long answers":
        lambda t, d: row(d, around(d, 0.2 + 0.1 * t, 0.06), 0.2, around(d, 0.4, 0.05), cut=around(d, 0.9, 0.1, 0, 1)),
    "harder prompts": lambda t, d: row(d, around(d, 0.7 - 0.35 * t, 0.06), 0.3, around(d, 0.5, 0.05)),
    "a step down": lambda t, d: row(d, around(d, 0.7 if t < 0.5 else 0.4, 0.06), 0.3, around(d, 0.5, 0.05)),
    "a sampling filter": lambda t, d: {**row(d, around(d, 0.4 + 0.2 * t, 0.06), 0.2, around(d, 0.4, 0.05)),
        "sampling/importance_sampling_ratio/mean": around(d, 0.98, 0.01)},
}  # fmt: skip


def run(make: Make, count: int, seed: int = 3) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [{"step": step, **make(step / count, dice)} for step in range(count)]


def read(text: str, block: int = 1 << 20) -> Rows:
    rows, number = Rows(), 1
    lines = text.encode().splitlines(keepends=True)
    while lines:
        size = 0
        taken = 0
        while taken < len(lines) and (size < block or not taken):
            size += len(lines[taken])
            taken += 1
        rows.feed(b"".join(lines[:taken]), number)
        number, lines = number + taken, lines[taken:]
    return rows


def told(rows: str | list[dict[str, Any]]) -> set[str]:
    """The facts that matter of a log, or of rows as the Trainer prints them."""
    text = rows if isinstance(rows, str) else "".join(f"{row}\n" for row in rows)
    return set(facts(read(text).rows)) - HARMLESS


@pytest.mark.parametrize("count", [40, 300])
@pytest.mark.parametrize("name", COLLAPSED)
def test_a_collapsed_run_is_recognised(name: str, count: int) -> None:
    for seed in range(3):
        assert "collapse" in told(run(COLLAPSED[name], count, seed)), seed


@pytest.mark.parametrize("count", [40, 300])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_not_accused(name: str, count: int) -> None:
    for seed in range(3):
        assert told(run(HEALTHY[name], count, seed)) == set(), seed


def test_a_policy_that_recovers_is_not_collapsed_and_thinned_rows_say_the_same() -> None:
    lost = run(COLLAPSED["at once"], 40)
    assert told(lost + run(HEALTHY["plateau"], 120)) == set()
    assert "collapse" in told(run(COLLAPSED["dies midway"], 9000))
    assert told(run(HEALTHY["noisy"], 9000)) == set()


def many(*parts: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in order: how many of each; a value may be a function of the row's place in all of them."""
    rows: list[dict[str, Any]] = []
    for count, values in parts:
        for _ in range(count):
            rows.append({name: value(len(rows)) if callable(value) else value for name, value in values.items()})
    return rows


NAN, INF = math.nan, math.inf
POLICY = {"loss": 0.01, "grad_norm": 0.3, "reward": lambda at: 0.4 + at % 5 / 50, "reward_std": 0.2, "entropy": 0.6}
POLICY |= {"kl": 0.01, "frac_reward_zero_std": 0.1}
CLIPPED = {"completions/clipped_ratio": 1.0}
LOST = {"entropy": 0.001, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}
LOSS = {"loss": lambda at: 2.0 - at / 200, "grad_norm": 1.0, "learning_rate": 1e-5}
RATIO, APART = "sampling/importance_sampling_ratio/mean", "sampling/sampling_logp_difference/mean"
CASES: list[tuple[str, list[dict[str, Any]], set[str]]] = [
    ("healthy policy", many((40, POLICY)), set()),
    ("healthy loss", many((60, LOSS)), set()),
    ("NaN", many((9, POLICY), (9, POLICY | {"grad_norm": NAN})), {"non-finite-gradient", "was-finite"}),
    ("one NaN", many((9, POLICY), (1, POLICY | {"grad_norm": NAN}), (9, POLICY)), set()),
    ("infinite", many((9, POLICY), (9, POLICY | {"grad_norm": INF})), {"infinite-gradient", "was-finite"}),
    ("loss ends in NaN", many((5, {"step": lambda at: at, "loss": 0.5}), (1, {"step": 6, "loss": NAN})),
     {"non-finite-loss"}),
    ("loss came back", many((5, LOSS), (1, LOSS | {"loss": NAN}), (5, LOSS)), set()),
    ("no reward", many((9, POLICY), (3, POLICY | {"reward": None})), {"missing-reward"}),
    ("no spread", many((9, POLICY), (3, POLICY | {"reward_std": NAN})), {"undefined-spread"}),
    ("KL overflows", many((9, POLICY), (9, POLICY | {"kl": INF})), {"kl-overflow"}),
    ("KL without a token", many((9, POLICY), (1, POLICY | {"kl": NAN}), (20, POLICY)), set()),
    ("KL explodes", many((30, POLICY), (12, POLICY | {"kl": 30.0, "reward": 0.15})), {"kl-diverged"}),
    ("reward NaN", many((9, POLICY), (9, POLICY | {"reward": NAN, "grad_norm": NAN})),
     {"non-finite-gradient", "was-finite", "reward-nan"}),
    ("dead", many((20, POLICY | {"reward_std": 0.0, "frac_reward_zero_std": 1.0, "reward": 0.0, "grad_norm": 0.0})),
     {"dead-reward", "no-gradient"}),
    ("cut off", many((20, POLICY | CLIPPED)),
     {"all-clipped", "cut-off-in-vain"}),
    ("cut off, and then lost", many((16, POLICY | CLIPPED), (24, POLICY | CLIPPED | LOST)),
     {"all-clipped", "collapse"}),
    ("ends unseen", many((40, POLICY | {"completions/clipped_ratio": 0.97, "completions/mean_length": 410.0,
                                        "completions/max_length": 1024.0})),
     {"all-clipped", "cut-off-in-vain", "ends-unseen"}),
    ("no rate", many((40, LOSS | {"learning_rate": 0.0})), {"no-learning-rate"}),
    ("vanished", many((12, LOSS), (9, LOSS | {"loss": 0.0})), {"loss-vanished"}),
    ("learnt by heart", many((60, {"loss": lambda at: 2 * 0.8**at if at < 40 else 0.0, "grad_norm": 0.1})), set()),
    ("gradient lost", many((9, LOSS), (1, LOSS | {"loss": 9.0}), (12, LOSS | {"grad_norm": 0.0})), {"gradient-lost"}),
    ("jumped", many((20, LOSS), (6, LOSS | {"loss": 6.0}), (30, LOSS)), {"loss-jumped"}),
    ("diverged", many((20, LOSS), (12, LOSS | {"loss": 8.0})), {"loss-diverged", "loss-jumped"}),
    ("no token", many((9, LOSS | {"loss": 0.0, "grad_norm": 0.0})), {"no-gradient"}),
    ("a trick", many((60, POLICY), (60, POLICY | {"reward": 0.95, "kl": 0.6, "entropy": 0.05})), {"reward-jumped"}),
    ("filter", many((9, POLICY | {RATIO: 0.2})), {"biased-ratio"}),
    ("ratio drifts", many((20, POLICY | {RATIO: 0.99}), (40, POLICY | {RATIO: 0.5})), set()),
    ("memory", many((60, LOSS | {"perf/cpu_memory_used_gb": lambda at: 200.0 + 20 * at})), {"memory-grew"}),
    ("memory levels off", many((60, LOSS | {"cpu_memory": lambda at: min(100.0 + 20 * at, 300.0)})), set()),
    ("part", many((120, POLICY | {"reward": lambda at: 0.4 + at / 200, "rewards/accuracy_reward/mean":
                                  lambda at: max(0.35 - at / 250, 0.01)})), {"part-lost"}),
    ("penalty", many((120, POLICY | {"rewards/repetition/mean": lambda at: max(0.35 - at / 250, 0.01)})), set()),
    ("logits", many((20, LOSS | {"rewards/chosen": -0.05, "logits/chosen": NAN})), {"logits-nan"}),
    ("reward model", many((60, LOSS | {"margin": 0.1, "min_reward": -1.0, "mean_reward": 0.1, "max_reward": 1.0}),
                          (20, LOSS | {"margin": 0.1, "min_reward": -1.0, "mean_reward": 0.0, "max_reward": 1.0})),
     set()),
    ("held out", [one for at in range(8) for one in (*many((5, {"loss": 2.0 - at / 5, "grad_norm": 1.0})),
                                                     {"eval_loss": 1.5 - at / 2 if at < 2 else at / 2})],
     {"held-out-loss-rose"}),
    ("no steps", [{"train_runtime": 0.1, "train_loss": 0.0, "epoch": 0}], {"no-steps"}),
    ("trained", [{"train_runtime": 9.1, "train_loss": 0.3, "epoch": 1.0}], set()),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_facts(rows: list[dict[str, Any]], expected: set[str]) -> None:
    assert told(rows) == expected
    added = Rows()
    for number, row in enumerate(rows, 1):
        added.add(row, number, str(row))
    assert set(facts(added.rows)) - HARMLESS == expected


PRINTED: dict[str, tuple[str, str]] = {  # heading, row
    "Trainer": ("", "{{'loss': {loss:.4f}, 'grad_norm': {grad_norm:.4f}, 'reward': {reward:.4f}, 'reward_std': "
                    "{reward_std:.4f}, 'entropy': {entropy:.4f}, 'frac_reward_zero_std': {dead}}}"),
    "strings": ("", "{{'loss': '{loss:.4f}', 'reward': '{reward:.4f}', 'reward_std': '{reward_std:.4f}', 'entropy': "
                    "'{entropy:.4f}', 'grad_norm': '{grad_norm:.4f}'}}"),
    "verl": ("", "(TaskRunner pid=7) step:{step} - actor/pg_loss:{loss} - actor/grad_norm:{grad_norm} - actor/entropy:"
                 "{entropy} - critic/rewards/mean:{reward}"),
    "bars": ("", "step {step:4} | train/reward {reward:.4f} | actor/grad_norm {grad_norm:.3f} | policy/entropy "
                 "{entropy:.4f} | reward_std {reward_std:.3f}"),
    "equals": ("", "[{step}/900] reward={reward:.3f} reward_std={reward_std:.3f} entropy={entropy:.4f} "
                   "gnorm={grad_norm:.3f} len=211"),
    "JSON": ("", '{{"step": {step}, "reward/mean": {reward}, "reward/std": {reward_std}, "entropy": {entropy}}}'),
    "own": ("", "Episode {step}/160 - Reward: {reward:.3f} - Loss: {loss:.4f} - entropy: {entropy:.4f}"),
    "bar of tqdm": ("", "Train: 5%|#| {step}/160 [00:10<01:40, 1.2it/s, policy_loss={loss:.3f}, reward={reward:.3f}, "
                        "entropy={entropy:.3f}]"),
    "notebook": ("Step\tTraining Loss\treward\treward_std\tentropy\n", "{step}\t{loss:.4f}\t{reward:.4f}\t"
                 "{reward_std:.4f}\t{entropy:.4f}"),
    "Markdown": ("| step | loss | reward | entropy |\n|---|---|---|---|\n", "| {step} | {loss:.4f} | {reward:.4f} | "
                 "{entropy:.4f} |"),
    "pandas": ("     step   loss  reward  entropy\n", "{step}  {step:6}{loss:10.4f}{reward:9.4f}{entropy:9.4f}"),
    "rich": ("┃ Step ┃ Loss ┃ Reward ┃ Entropy ┃\n", "│ {step:<4} │ {loss:.4f} │ {reward:.4f} │ {entropy:.4f} │"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_rows_in_any_form(name: str) -> None:
    for make, expected in ((COLLAPSED["dies midway"], True), (HEALTHY["plateau"], False)):
        rows = [row | {"dead": row["frac_reward_zero_std"]} for row in run(make, 120)]
        heading, form = PRINTED[name]
        text = "Loading\n" + heading + "".join(form.format_map(row) + "\n" for row in rows)
        assert ("collapse" in told(text), len(told(text)) > 0) == (expected, expected)
        found = read(text, block=900)
        assert found.count == len(found.rows) == 120
        assert [row.number for row in found.rows][:1] == [2 + heading.count("\n")]
        assert read(text.replace("\n", "\r"), 900).count == 120


def test_megatron_and_carriage_returns() -> None:
    line = " iteration {k:8}/ 9 | consumed samples: 256 | learning rate: 1E-06 | lm loss: {loss:E} | grad norm: 1.2 |\n"
    rows = read("".join(line.format(k=k, loss=2.0 - k / 50) for k in range(1, 12))).rows
    assert rows[0].values == {"step": 1, "consumed_samples": 256, "learning_rate": 1e-6, "loss": 1.98, "grad_norm": 1.2}
    assert [row.values["step"] for row in rows_in(line.format(k=3, loss=1).encode())] == [3]


@pytest.mark.parametrize("text", [
    "To lower the loss, set learning_rate to 1e-6.\n" * 9, "Completion 3\nReward: 1.0\n" * 30,
    "{'prompt': 'a', 'completion': 'b', 'reward': 0.0}\n" * 9, "eval: word_error_rate=0.12, errors=0\n" * 9,
])  # fmt: skip
def test_what_is_no_row(text: str) -> None:
    assert read(text).rows == []


@given(
    st.lists(
        st.sampled_from(
            [
                b"{'loss': ",
                b"nan",
                b"'reward': 1e999",
                b"}",
                b"\n",
                b"\r",
                b"Step Loss",
                b"Step\tloss\n",
                b"|",
                b"7",
                b"\t",
                b" ",
                b"step:3 - ",
                b"\xff\x00",
                b"inf",
                b"-1.5e3",
                b"loss=",
                b"entropy: ",
            ]
        )
        | st.binary(max_size=9),
        max_size=60,
    )
)
def test_any_bytes_are_read(parts: list[bytes]) -> None:
    block = b"".join(parts)
    rows = Rows()
    rows.feed(block, 1)
    assert facts(rows.rows).keys() <= FACTS.keys() and len(list(rows_in(block))) <= block.count(b"\n") + len(block)


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(3, 60), st.integers(1, 20), st.integers(0, 400))
def test_thinning_keeps_the_first_the_last_and_a_nan(count: int, most: int, last: int, broken: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_rows, "MOST_ROWS", most)
        patch.setattr(metric_rows, "LAST_ROWS", last)
        text = "".join(f"{{'loss': {'nan' if at == broken else 0.5}, 'step': {at}}}\n" for at in range(count))
        found = read(text, 1000)
    steps = [row.values["step"] for row in found.rows]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-last:] == [*range(count)][-last:]
    assert len(steps) <= most + last + metric_rows.BROKEN_ROWS and (broken >= count or broken in steps)
    assert abs(found.count - count) <= count / 2 and (count > most or found.count == count)


COLUMN = st.sampled_from([0.0, 1.0, -1.0, 0.4, NAN, INF, -INF, 1.7e308, -1.7e308, 1e-300])
NAMES = st.sampled_from(
    "loss grad_norm reward reward_std entropy kl frac_reward_zero_std length clipped_ratio learning_rate ratio "
    "rewards/accuracy/mean logits/chosen min_reward margin engine_difference cpu_memory eval_loss accuracy max_reward "
    "completions/max_length step".split()
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, st.tuples(COLUMN, COLUMN, st.integers(1, 3)), min_size=1), st.integers(1, 90))
def test_rows_of_any_columns_end_in_facts(columns: dict[str, tuple[float, float, int]], count: int) -> None:
    rows = [
        MetricRow(at, "", {name: two if at > count / 2 else one for name, (one, two, every) in columns.items()
                           if at % every == 0})
        for at in range(count)
    ]  # fmt: skip
    found = facts(rows)
    assert found.keys() <= FACTS.keys() and all(1 <= len(shown) <= 3 for shown in found.values())
    assert {row.number for shown in found.values() for row in shown} <= set(range(count))
