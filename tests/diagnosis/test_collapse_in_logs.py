"""Collapse from rows alone: of runs as they go wrong and of healthy ones, by one definition for trials and for logs."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bisect_cfg.diagnosis import _metrics, _row_facts, health
from bisect_cfg.diagnosis._logs import blocks
from bisect_cfg.diagnosis._metrics import WORDS, Rows
from bisect_cfg.diagnosis._rows import Row
from bisect_cfg.diagnosis._rows_of_policy import collapse as _collapse
from bisect_cfg.diagnosis._run import FACT_OF
from bisect_cfg.diagnosis.explain import explain, explain_paths, explain_text
from bisect_cfg.diagnosis.signature import SILENT_KINDS, Signature

Make = Callable[[float, random.Random], dict[str, Any]]


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


def run(make: Make, count: int, seed: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [{"step": step, **make(step / count, dice)} for step in range(count)]


def log(rows: list[dict[str, Any]]) -> str:
    return "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [40, 300])
@pytest.mark.parametrize("name", COLLAPSED)
def test_a_collapsed_run_is_recognised(name: str, count: int, seed: int) -> None:
    found = explain_text(log(run(COLLAPSED[name], count, seed))).matches
    assert found and found[0].entry.id == "policy-collapse"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [40, 300])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_not_accused(name: str, count: int, seed: int) -> None:
    assert [match.entry.id for match in explain_text(log(run(HEALTHY[name], count, seed))).matches] == []


@pytest.mark.parametrize(
    "make", [*COLLAPSED.values(), *HEALTHY.values()], ids=[*COLLAPSED, *(f"healthy: {name}" for name in HEALTHY)]
)
def test_trials_and_logs_agree_on_the_same_rows(make: Make) -> None:
    """The rule that ends running trials, and the change points over the whole series."""
    for seed in range(3):
        rows = run(make, 120, seed)
        facts: dict[str, list[Row]] = {}
        named = [{name.removeprefix("completions/"): value for name, value in row.items()} for row in rows]
        _collapse(facts, [Row(index, "", row) for index, row in enumerate(named)])
        assert (health.collapse(rows) is not None) == ("collapse" in facts)


def test_a_filter_acts_from_the_first_row_on() -> None:
    name = "sampling/importance_sampling_ratio/mean"
    rows = run(HEALTHY["plateau"], 60, 0)
    filtered = [{**row, name: 0.2} for row in rows]
    drifted = [{**row, name: 0.99 if index < 20 else 0.5} for index, row in enumerate(rows)]
    assert explain_text(log(filtered)).matches[0].entry.id == "sampling-filter-bias"
    assert not explain_text(log(drifted)).matches


def test_a_policy_that_recovers_is_not_collapsed_in_a_log() -> None:
    rows = run(COLLAPSED["at once"], 40, 0) + run(HEALTHY["plateau"], 120, 1)
    assert "policy-collapse" not in [match.entry.id for match in explain_text(log(rows)).matches]


def test_a_healthy_log_does_not_pay_for_change_points() -> None:
    code = (
        "import sys; from bisect_cfg.diagnosis.explain import explain_text; explain_text(sys.stdin.read()); "
        "sys.exit(any(name in sys.modules for name in ('ruptures', 'scipy', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=log(run(HEALTHY["noisy"], 200, 0)), text=True)
    assert done.returncode == 0


@pytest.mark.parametrize("broken", ["nan", "0.0"])
def test_a_run_of_nan_is_not_called_a_collapse(broken: str) -> None:
    row = "{{'loss': {}, 'grad_norm': {}, 'reward': {}, 'reward_std': {}, 'frac_reward_zero_std': {}, 'entropy': {}}}\n"
    healthy = "".join(row.format(0.1, 0.5, 0.5 + step % 3 / 10, 0.2, 0.1, 2.0) for step in range(20))
    lost = row.format(broken, broken, 0.0, 0.0, 1.0, 0.0) * 20
    found = explain_text(healthy + lost).matches
    assert found
    assert ("policy-collapse" in [match.entry.id for match in found]) == (broken == "0.0")


def as_lines(name: str, rows: list[dict[str, Any]]) -> str:
    """The same rows as trainers of one's own print them."""
    shapes: dict[str, Callable[[dict[str, Any]], str]] = {
        "bars": lambda row: f"step {row['step']:4} | train/reward {row['reward']:.4f} | actor/grad_norm "
            f"{row['grad_norm']:.3f} | policy/entropy {row['entropy']:.4f} | reward_std {row['reward_std']:.3f}",
        "equals": lambda row: f"[{row['step']}/900] reward={row['reward']:.3f} reward_std={row['reward_std']:.3f} "
            f"entropy={row['entropy']:.4f} gnorm={row['grad_norm']:.3f} len=211",
        "JSON": lambda row: json.dumps({"step": row["step"], "reward/mean": row["reward"], "policy/kl": 0.01,
            "reward/std": row["reward_std"], "policy/entropy": row["entropy"], "policy/grad_norm": row["grad_norm"]}),
        "columns": lambda row: f"{row['step']:5} {row['reward']:8.4f} {row['reward_std']:8.4f}  {row['entropy']:8.4f}  "
            f"{row['grad_norm']:8.3f}".replace("  ", " ").replace(" ", "   "),
        "CSV": lambda row: f"{row['step']},{row['loss']:.4f},{row['reward']:.4f},{row['reward_std']:.4f},"
            f"{row['entropy']:.4f},{row['grad_norm']:.4f}",
    }  # fmt: skip
    header = "step,grpo/total_loss,rollout/rewards/mean,rollout/reward_std,policy/entropy_mean,opt/grad_norm\n"
    headers = {"CSV": header, "columns": "step   reward   reward_std   entropy   grad_norm\n"}
    return headers.get(name, "") + "".join(f"{shapes[name](row)}\n" for row in rows)


@pytest.mark.parametrize("shape", ["bars", "equals", "JSON", "CSV", "columns"])
def test_rows_of_a_trainer_of_ones_own(shape: str, tmp_path: Path) -> None:
    path = tmp_path / ("metrics.csv" if shape == "CSV" else "train.log")
    for make, expected in ((COLLAPSED["dies midway"], ["policy-collapse"]), (HEALTHY["noisy"], [])):
        path.write_text(as_lines(shape, run(make, 120, 1)))
        explanation, _ = explain_paths([str(path)])
        assert [match.entry.id for match in explanation.matches][:1] == expected
        assert explanation.rows == 120


def test_what_broke_with_the_reward_is_told() -> None:
    dice = random.Random(3)
    rows = [
        {"reward": around(dice, 0.4 if at < 70 else 0.1, 0.02), "reward_std": 0.3, "entropy": around(dice, 0.6, 0.01),
         "grad_norm": 0.2, "env/tool_calls": around(dice, 3.0 if at < 70 else 0.02, 0.05)}
        for at in range(140)
    ]  # fmt: skip
    found = explain_text("".join(map(printed, rows))).matches[0]
    assert found.entry.id == "policy-collapse" and "environment" in found.title
    assert any("env/tool_calls" in line.text and " -> 0" in line.text for line in found.evidence)


def test_a_loss_that_jumps_where_a_run_resumes() -> None:
    before = [{"lm loss": 8 * 0.75**at, "grad norm": 1.0} for at in range(10)]
    after = [{"lm loss": 10 * 0.9**at, "grad norm": 6.0} for at in range(30)]
    loads = "loading checkpoint from out/iter_0000010\n"
    resumed = "".join(map(printed, before)) + loads + "".join(map(printed, after))
    assert leading(resumed) == ["loss-jumped-at-resume"]
    spike = [*before, *before[-1:], {"lm loss": 6.0, "grad norm": 9.0}, *([before[-1]] * 20)]
    assert leading(loads + "".join(map(printed, spike))) == []


@pytest.mark.parametrize(("growth", "entry"), [(20.0, ["host-memory-grows"]), (0.2, []), (None, [])])
def test_memory_that_grows_to_the_end(growth: float | None, entry: list[str]) -> None:
    dice = random.Random(4)
    used = [200 + (growth * at if growth is not None else 120 * min(at / 20, 1)) for at in range(100)]
    rows = [{"reward": around(dice, 0.4, 0.05), "grad_norm": 0.2, "perf/cpu_memory_used_gb": gb} for gb in used]
    assert leading("".join(map(printed, rows))) == entry


def test_a_reward_that_jumps_with_kl_and_entropy_is_a_trick() -> None:
    dice = random.Random(5)

    def rows(kl: float, entropy: float) -> str:
        return "".join(
            printed({"reward": around(dice, 0.35 if at < 60 else 0.95, 0.02), "grad_norm": 0.3, "reward_std": 0.2,
                     "kl": 0.01 if at < 60 else kl, "entropy": 0.4 if at < 60 else entropy})
            for at in range(120)
        )  # fmt: skip

    assert leading(rows(0.6, 0.05)) == ["reward-jumped"]
    assert leading(rows(0.02, 0.35)) == []


def test_a_learning_rate_of_nothing() -> None:
    rows = [{"loss": 0.693, "grad_norm": 1e-4, "learning_rate": 0.0, "rewards/margins": 1e-3} for _ in range(40)]
    assert leading("".join(map(printed, rows))) == ["no-learning-rate"]
    warm = [{**row, "learning_rate": at * 1e-7} for at, row in enumerate(rows)]
    assert leading("".join(map(printed, warm))) == []


@pytest.mark.parametrize(("name", "entry"), [("accuracy_reward", ["reward-part-lost"]), ("repetition_penalty", [])])
def test_a_part_of_the_reward_that_is_given_up(name: str, entry: list[str]) -> None:
    dice = random.Random(6)
    rows = [
        {"reward": around(dice, 0.4 + 0.005 * at, 0.03), "reward_std": 0.2, "grad_norm": 0.3, "kl": 0.01,
         "entropy": 0.5, f"rewards/{name}/mean": around(dice, max(0.35 - 0.004 * at, 0.01), 0.005)}
        for at in range(120)
    ]  # fmt: skip
    assert leading("".join(map(printed, rows))) == entry


def printed(values: dict[str, float]) -> str:
    return f"{values}\n"


def leading(log: str) -> list[str]:
    return [match.entry.id for match in explain_text(log).matches][:1]


def test_a_reward_that_falls_to_nothing_at_the_end_is_a_collapse() -> None:
    dice = random.Random(1)
    plateau = [around(dice, 0.6, 0.02) for _ in range(100)]
    fall = [0.5, 0.4, 0.2, 0.1, 0.05, *[0.0] * 6]
    rows = [{"critic/score/mean": reward, "actor/grad_norm": 0.012} for reward in (*plateau, *fall)]
    assert leading("".join(map(printed, rows))) == ["policy-collapse"]
    assert leading("".join(map(printed, rows[:104]))) == []
    sparse = [{"reward": float(dice.random() < 0.3), "grad_norm": 0.2} for _ in range(200)]
    assert leading("".join(map(printed, sparse))) == []


@pytest.mark.parametrize(
    ("end", "entry"),
    [
        ({"reward": 0.32, "reward_std": 0.006, "entropy": 0.0007, "frac_reward_zero_std": 0.98}, ["policy-collapse"]),
        (
            {
                "reward": 0.99,
                "rewards/accuracy/mean": 0.99,
                "reward_std": 0.006,
                "entropy": 0.0007,
                "frac_reward_zero_std": 0.98,
            },
            [],
        ),
        ({"reward": 0.32, "reward_std": 0.3, "entropy": 0.0007, "frac_reward_zero_std": 0.2}, []),
        ({"reward": 0.94, "reward_std": 0.004, "rewards/accuracy/mean": 0.0}, ["policy-collapse"]),
        ({"reward": 0.94, "reward_std": 0.004, "rewards/accuracy/mean": 0.9}, []),
    ],
)
def test_completions_that_have_become_alike_before_the_task_was_solved(end: dict[str, float], entry: list[str]) -> None:
    began = {"reward": 0.16, "reward_std": 0.34, "entropy": 0.55, "frac_reward_zero_std": 0.18}
    began |= {"rewards/accuracy/mean": 0.16, "grad_norm": 0.25}
    between = [
        {name: value + (end.get(name, value) - value) * at / 30 for name, value in began.items()} for at in range(30)
    ]
    rows = [*between, *[{**began, **end, "grad_norm": 0.0076}] * 10]
    assert leading("".join(map(printed, rows))) == entry


def test_equal_best_and_worst_scores_are_a_dead_reward_though_the_kl_term_still_moves_the_weights() -> None:
    row = "step:{} - actor/grad_norm:0.006 - critic/score/mean:0.0 - critic/score/max:{} - critic/score/min:0.0\n"
    assert leading("".join(row.format(step, "0.0") for step in range(20))) == ["dead-reward"]
    assert leading("".join(row.format(step, "1.0") for step in range(20))) == []


@pytest.mark.parametrize(
    "log",
    [
        "{'train_runtime': 28841.9, 'train_steps_per_second': 0.163, 'train_loss': 0.8914, 'epoch': 3.0}\n",
        "***** train metrics *****\n  epoch          =  1.0\n  train_runtime  =  0:10:00\n",
        "{'train_runtime': 1.0}\nTraceback (most recent call last):\n  File \"/w/t.py\", line 3, in f\n"
        "RuntimeError: x\n",
    ],
)
def test_a_run_that_trained_or_failed_did_not_end_without_a_step(log: str) -> None:
    assert "no-steps" not in [match.entry.id for match in explain_text(log).matches]


@pytest.mark.parametrize(("reward", "entry"), [("0.0", ["nothing-left-to-learn"]), ("0.7", [])])
def test_the_last_values_that_wandb_sums_up(reward: str, entry: list[str]) -> None:
    last = f"wandb: train/grad_norm 0.0\nwandb: train/reward {reward}\nwandb: train/reward_std 0.0\nwandb: \n"
    assert leading("wandb: Run summary:\n" + last) == entry


LOSSES: dict[str, tuple[bool, Callable[[float], float]]] = {
    "a preference that is turned round": (True, lambda t: 0.69 - 0.3 * t if t < 0.5 else 5.0),
    "pretraining": (True, lambda t: 2.6 + 9 * math.exp(-9 * t) if t < 0.6 else 7.3),
    "little by little": (True, lambda t: 1.4 if t < 0.4 else 1.4 + 9 * (t - 0.4)),
    "a spike": (False, lambda t: 6.0 if 0.5 < t < 0.6 else 1.4 - 0.5 * t),
    "the last rows": (False, lambda t: 6.0 if t > 0.993 else 1.4 - 0.5 * t),
    "other data": (False, lambda t: 1.4 - 2 * t if t < 0.5 else 1.7),
    "learnt by heart": (False, lambda t: 1.5 * math.exp(-9 * t) + 0.4 * (0.9 < t)),
    "training from nothing": (False, lambda t: 2.6 + 9 * math.exp(-9 * t)),
}


@pytest.mark.parametrize("count", [40, 1000])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_rises_for_good_is_divergence(name: str, count: int) -> None:
    diverges, loss = LOSSES[name]
    dice = random.Random(count)
    rows = [
        {"step": step, "loss": round(dice.gauss(1, 0.03) * loss(step / count), 4), "grad_norm": 0.5}
        for step in range(count)
    ]
    found = explain_text(log(rows)).matches
    assert [match.entry.id for match in found] == ["loss-diverged"] * diverges
    failure = Signature("diverged")  # as a trial's health calls the same
    known = explain(io.BytesIO(log(rows).encode()), failure=failure).matches if diverges else []
    assert [match.entry.id for match in known] == ["loss-diverged"] * diverges


def test_each_silent_failure_is_a_fact_of_the_metrics() -> None:
    assert {"non-finite", *SILENT_KINDS} <= FACT_OF.keys()
    assert set(FACT_OF.values()) <= _row_facts.FACTS.keys()


def test_the_loss_of_a_policy_says_nothing() -> None:
    values = [0.01] * 30 + [5.0] * 30
    for other in ({"reward": 0.5, "reward_std": 0.2}, {"actor/pg_clipfrac": 0.1}):
        assert not explain_text(log([{"loss": value, "grad_norm": 0.5, **other} for value in values])).matches
    assert not explain_text(log([{"loss": value} for value in [-0.1, *values]])).matches


def in_blocks(log: bytes, size: int) -> Rows:
    rows, number = Rows(), 1
    for block in blocks(io.BytesIO(log), size):
        rows.feed(block, number, {word for word in WORDS if word in block})
        number += block.count(b"\n")
    return rows


@pytest.mark.parametrize("name", [*COLLAPSED, *HEALTHY])
def test_a_log_of_more_rows_than_are_kept_says_what_all_of_them_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, make, count = random.Random(name), {**COLLAPSED, **HEALTHY}[name], 1500
    lines = [f"{make(at / count, dice)}\n".encode() for at in range(count)]

    def facts() -> tuple[set[str], int]:
        rows = in_blocks(b"".join(lines), 1 << 14)
        return set(rows.facts()), rows.count

    monkeypatch.setattr(_metrics, "MOST_ROWS", 10 * count)
    of_all, read = facts()
    assert read == count
    monkeypatch.setattr(_metrics, "MOST_ROWS", 300)
    monkeypatch.setattr(_metrics, "LAST_ROWS", 40)
    of_some, read = facts()
    assert of_some == of_all and read < 0.8 * count


def test_rows_of_a_table_are_thinned_too_and_the_last_ones_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_metrics, "MOST_ROWS", 100)
    table = "Step | Training Loss\n" + "".join(f"{step} | {0.5 + step % 7 / 10}\n" for step in range(1, 5001))
    rows = in_blocks(table.encode(), 1 << 12)
    series = rows.series()
    steps = [int(one.values["step"]) for one in series]
    assert steps == sorted(steps) and steps[-256:] == [*range(4745, 5001)] and rows.count < 1000
    assert all(one.line == step + 1 for one, step in zip(series, steps, strict=True))
    assert len(steps) - 256 > 40 and max(after - before for before, after in itertools.pairwise(steps)) < 5000 // 40


def entry_of(make: Callable[[float, random.Random], dict[str, Any]], count: int = 120) -> tuple[str, str]:
    """The entry and the headline for rows that a function of the share of the run gives."""
    dice = random.Random(3)
    found = explain_text("".join(f"{make(at / count, dice)}\n" for at in range(count)))
    return (found.matches[0].entry.id, found.matches[0].title) if found.matches else ("", "")


def test_a_policy_without_entropy_that_learns_no_more_has_collapsed_whatever_its_reward() -> None:
    def certain(until: float) -> tuple[str, str]:
        return entry_of(
            lambda t, dice: {
                "loss": 0.01,
                "grad_norm": 0.3,
                "entropy": 0.9 * 0.02 ** min(2 * t, 1.0),
                "reward": around(dice, 0.3 + (until - 0.3) * t if until > 0.5 else min(0.3 + t, 0.5), 0.02),
            }
        )

    assert certain(0.5)[0] == "policy-collapse" and "entropy fell" in certain(0.5)[1]
    assert certain(0.95)[0] == ""  # it still learns


def test_answers_of_a_few_tokens_are_a_collapse_unless_they_solve_the_task() -> None:
    def short(best: float) -> tuple[str, str]:
        return entry_of(
            lambda t, dice: {
                "policy_loss": 0.0,
                "reward": 0.2 + (best - 0.2) * t,
                "group_reward_std": 0.3 * (1 - t) ** 4,
                "response_length": 300 * 0.02**t,
            }
        )

    assert short(0.5)[0] == "policy-collapse" and "few tokens" in short(0.5)[1]
    assert short(1.0)[0] == ""


def test_kl_that_explodes_late_is_told_with_the_row_where_it_left() -> None:
    kl = lambda t: 0.02 if t < 0.8 else 0.02 * 10 ** (20 * (t - 0.8))  # noqa: E731
    make = lambda t, dice: {"loss": 0.01, "grad_norm": 0.3, "kl": kl(t), "reward": 0.7 if t < 0.85 else 0.2}  # noqa: E731
    assert entry_of(make)[0] == "kl-diverged"
    found = explain_text("".join(f"{make(at / 120, None)}\n" for at in range(120)))
    assert 100 < found.matches[0].evidence[0].number < 110
    assert entry_of(lambda t, dice: {**make(t, dice), "reward": 0.7}) == ("", "")


def test_completions_that_are_all_cut_off_and_hardly_rewarded() -> None:
    make = lambda t, dice: {"loss": 0.0, "grad_norm": 0.3, "completions/clipped_ratio": 1.0, "reward_std": 0.04}  # noqa: E731
    little, growing = ({"reward": 0.02}, lambda t: {"reward": 0.2 + 0.5 * t})
    assert entry_of(lambda t, dice: {**make(t, dice), **little})[0] == "completions-cut-off"
    assert entry_of(lambda t, dice: {**make(t, dice), **growing(t)}) == ("", "")


def test_chosen_answers_that_fall_with_the_rejected_ones() -> None:
    def preferences(fall: float) -> str:
        return entry_of(
            lambda t, dice: {
                "loss": 0.69 - 0.6 * t,
                "grad_norm": 3.0,
                "learning_rate": 1e-6,
                "rewards/accuracies": 0.5 + t / 2,
                "logps/chosen": -160 - fall * t,
                "logps/rejected": -160 - 1.5 * fall * t,
            }
        )[0]

    assert preferences(900.0) == "preferences-displaced" and preferences(60.0) == ""


@pytest.mark.parametrize(("loss", "title"), [(0.0, "no token has a label"), (0.6931, "no weight seems to move")])
def test_a_supervised_run_without_a_gradient_is_told_by_its_loss(loss: float, title: str) -> None:
    make = lambda t, dice: {"loss": loss, "grad_norm": 0.0, "learning_rate": 1e-5, "epoch": t}  # noqa: E731
    assert title in entry_of(make, 20)[1]


@pytest.mark.parametrize(
    ("rows", "entry"),
    [
        ('{"step":1,"loss":0.5}\n{"step":2,"loss":NaN}\n', "non-finite-gradient"),
        ('{"step":1,"loss":0.5}\n{"step":2,"loss":NaN}\n{"step":3,"loss":0.4}\n', ""),
        ('{"step":1,"loss":0.5,"grad_norm":1}\n{"step":2,"loss":NaN,"grad_norm":1}\n', ""),
    ],
)
def test_a_loss_that_ends_in_nan_is_lost_after_two_rows(rows: str, entry: str) -> None:
    found = explain_text(rows)
    assert [match.entry.id for match in found.matches][:1] == ([entry] if entry else [])
    assert "grad_norm is NaN" not in str(found)


@pytest.mark.parametrize(("floor", "gone"), [(0.002, True), (0.12, False)])
@pytest.mark.parametrize("titled", ["in the file's name", "in its first line"])
def test_an_entropy_alone_as_tensorboard_exports_it(floor: float, gone: bool, titled: str, tmp_path: Path) -> None:
    rows = "".join(f"17500{at:05}.5,{at},{max(1.05 - at * 0.02, floor):.6f}\n" for at in range(100))
    title = "run-grpo-tag-actor_entropy.csv"
    path = tmp_path / (title if titled == "in the file's name" else "some.csv")
    comment = "" if titled == "in the file's name" else f"# {title}\n"
    path.write_text(f"{comment}Wall time,Step,Value\n{rows}")
    explanation, _ = explain_paths([str(path)])
    assert [match.entry.id for match in explanation.matches] == ["policy-collapse"] * gone


def test_the_entropy_of_a_supervised_run_alone_is_no_collapse() -> None:
    rows = "".join(f"{{'loss': {1 / (at + 1):.4f}, 'entropy': {max(1 - at * 0.03, 0.001):.4f}}}\n" for at in range(80))
    assert not explain_text(rows).matches


@pytest.mark.parametrize(
    ("name", "end", "told"),
    [
        ("eval/gsm8k_acc", 0.1, True),
        ("val-core/aime/acc/mean@8", 0.1, True),
        ("eval/gsm8k_acc", 0.45, False),
        ("eval/loss_of_accumulated", 0.1, False),
    ],
)
def test_a_held_out_accuracy_that_falls_while_the_reward_rises(name: str, end: float, told: bool) -> None:
    at_end = 60
    rows = "".join(
        f"| {10 * at} | {4 + at / 12:.2f} | {0.62 + (end - 0.62) * max(at - 20, 0) / at_end:.3f} | {0.01 * at:.3f} |\n"
        for at in range(at_end + 20)
    )
    log = f"| step | rewards/judge/mean | {name} | kl |\n|---|---|---|---|\n{rows}"
    assert [match.entry.id for match in explain_text(log).matches] == ["reward-part-lost"] * told


def test_a_table_with_a_column_for_the_evaluation() -> None:
    """Most of its cells are empty; where one is not, the loss of the training stands beside it."""
    losses = [1.5 + step % 3 / 50 for step in range(13)] + [2.6, 5.1, 7.7] + [8.9 + step % 3 / 50 for step in range(24)]
    rows = [
        f"| {20 * n} | {loss:.3f} | 1.5 | 1.0e-03 | {f'{loss:.3f}' if n % 10 == 0 else ''} |"
        for n, loss in enumerate(losses, 1)
    ]
    table = "| step | loss | grad_norm | lr | eval_loss |\n|---:|---:|---:|---:|---:|\n" + "\n".join(rows) + "\n"
    assert "The loss diverged" in str(explain_text(table))


def test_what_goes_on_as_it_began_has_not_left_its_course() -> None:
    dice = random.Random(5)
    rows = [row(dice, 1.5, 0.3, 0.3 - 0.0007 * at) | {"kl": 0.0004 * at} for at in range(212)]
    gone = [row(dice, 0.0, 0.0, math.nan, math.nan) | {"kl": math.nan} for _ in range(60)]
    facts = _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate([*rows, *gone])], [], None)
    assert "non-finite-gradient" in facts and "left-course" not in facts
    for at, one in enumerate(rows[-6:]):
        one["kl"] = 3.0 * (at + 1)
    facts = _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate([*rows, *gone])], [], None)
    assert "left-course" in facts


def test_right_answers_that_are_gone_at_the_end_are_told_though_the_format_is_paid() -> None:
    dice = random.Random(6)
    right = [0.3 + 0.002 * at for at in range(180)] + [0.6 - 0.02 * at for at in range(30)] + [0.0] * 30
    rows = [
        row(dice, one + 0.98, 0.3, 0.4) | {"rewards/accuracy_reward/mean": one, "rewards/format_reward/mean": 0.98}
        for one in right
    ]
    for at, one in enumerate(rows):
        one["reward"] = right[at] + 0.98
    facts = _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None)
    assert "part-lost" in facts


def test_rewards_that_go_up_and_down_by_prompt_without_a_gradient_are_dead() -> None:
    rows = [
        {"loss": 0.0, "grad_norm": 0.0, "reward": reward, "reward_std": 0.0, "frac_reward_zero_std": 1.0}
        for reward in (3.0, 7.0, 7.0, 5.0, 5.0, 9.0, 7.0, 9.0, 3.0, 7.0, 7.0, 9.0, 5.0, 5.0)
    ]
    facts = _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None)
    assert "dead-reward" in facts


def test_a_column_of_rewards_that_nobody_fills_is_none() -> None:
    rows = [{"loss": 1.5 - at / 100, "learning_rate": 1e-5, "eval_loss": None, "reward": None} for at in range(40)]
    facts = _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None)
    assert not facts
    for one in rows:
        one["kl"] = 0.01
    facts = _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None)
    assert "missing-reward" in facts


def test_a_frame_that_begins_with_the_epoch_is_read_once() -> None:
    lines = [
        f"{at:<4} {at // 10}  {10 * at:>4}  0.01 {0.4 + at / 200:.3f} {0.5 + at / 300:.3f} 0.25" for at in range(60)
    ]
    text = "      epoch  step  train_loss  val_acc  reward  grad_norm\n" + "\n".join(lines) + "\n"
    rows = Rows()
    rows.feed(text.encode(), 1, [word for word in WORDS if word in text.encode()])
    assert rows.count == 60 and not rows.facts()


def test_logits_that_are_nan_beside_a_finite_loss() -> None:
    row = '{"loss": 0.69, "grad_norm": 2.1, "rewards/chosen": -0.05, "logits/chosen": NaN, "epoch": 0.03}\n'
    rows = Rows()
    rows.feed((20 * row).encode(), 1, [word for word in WORDS if word in row.encode()])
    assert "logits-nan" in rows.facts()
    rows = Rows()
    rows.feed((20 * row.replace("NaN", "null")).encode(), 1, [word for word in WORDS if word in row.encode()])
    assert not rows.facts()


def test_the_mean_reward_of_a_reward_model_is_no_reward() -> None:
    dice = random.Random(7)
    rows = [
        {"loss": 0.7 - at / 400, "min_reward": -1.0, "mean_reward": dice.gauss(0.1, 0.1), "max_reward": 1.0}
        | {"margin": at / 100, "accuracy": 0.5 + at / 400}
        for at in range(120)
    ]
    for one in rows[60:]:
        one["mean_reward"] = 0.0
    made = [_metrics.row_of(at, one) for at, one in enumerate(rows)]
    assert not _row_facts.facts_of(made, [], None)
    assert "min_reward" in made[0].values and made[0].values["reward"] == rows[0]["mean_reward"]


def test_a_reward_that_is_missing_until_the_first_episode_has_ended() -> None:
    def facts(rewards: list[float]) -> set[str]:
        rows = [{"reward": reward, "kl": 0.01, "loss": 0.1} for reward in rewards]
        return set(_row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None))

    assert not facts([math.nan] * 3 + [1.0] * 20)
    assert facts([1.0] * 20 + [math.nan]) == facts([math.nan] * 20) == {"missing-reward"}


def test_the_reward_of_the_chosen_answers_is_none_of_a_policy() -> None:
    rows = [
        {"loss": 0.69 - at / 500, "reward": 0.03 - at / 60, "accuracy": 0.5 + at / 200, "learning_rate": 5e-7}
        for at in range(90)
    ]
    for one in rows[40:]:
        one["reward"] = 0.0
    assert not _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None)
    rows = [one | {"kl": 0.01} for one in rows]
    assert _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None)


def test_tables_of_stable_baselines() -> None:
    def table(at: int) -> str:
        reward = 900 + 9 * at if at < 60 else max(8.0, 1440 - 300 * (at - 60))
        return (
            f"{'-' * 41}\n| rollout/                |             |\n|    ep_rew_mean          | {reward:<11.3g} |\n"
            f"| time/                   |             |\n|    iterations           | {at:<11} |\n"
            f"| train/                  |             |\n|    approx_kl            | 0.0116      |\n"
            f"|    entropy_loss         | -4.24       |\n|    loss                 | 30          |\n{'-' * 41}\n"
        )

    collapsed = explain_text("".join(map(table, range(120))))
    assert collapsed.matches and collapsed.rows == 120
    assert not explain_text("".join(map(table, range(60)))).matches


@pytest.mark.parametrize(("name", "told"), [("rewards/chosen", False), ("rewards/style/std", True)])
def test_a_reward_that_is_nan_with_the_gradient(name: str, told: bool) -> None:
    rows = [{"loss": 0.5, "grad_norm": 0.3, name: 0.1} for _ in range(20)]
    rows += [{"loss": 0.5, "grad_norm": math.nan, name: math.nan} for _ in range(20)]
    facts = _row_facts.facts_of([_metrics.row_of(at, one) for at, one in enumerate(rows)], [], None)
    assert ("reward-nan" in facts) is told


@pytest.mark.parametrize(("accuracy", "collapsed"), [(0.34, True), (0.98, False)])
def test_answers_without_a_choice_whose_format_alone_is_paid(accuracy: float, collapsed: bool) -> None:
    """A total of 1.34 is no solved task where half of it is had by the form of every answer."""
    noise = random.Random(0)
    rows = []
    for at in range(200):
        left = max(0.004, 0.8 * 0.93**at)
        part = min(1.0, max(0.0, noise.gauss(0.3 + (accuracy - 0.3) * min(at / 80, 1), 0.0 if accuracy > 0.9 else 0.1)))
        spread = 0.3 if left > 0.1 else 0.0
        rows.append(
            {"loss": 0.0, "grad_norm": spread, "rewards/accuracy/mean": part, "rewards/format/mean": 1.0,
             "entropy": left, "reward": 1 + part, "reward_std": spread, "frac_reward_zero_std": 0.3 if spread else 1.0}
        )  # fmt: skip
    facts = _row_facts.facts_of([Row(at, "", row) for at, row in enumerate(rows)], [], None)
    assert bool(facts.keys() & {"collapse", "one-answer"}) == collapsed
