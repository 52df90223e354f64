"""A run that collapsed is recognised, and a healthy one is not, in whatever form its metrics are printed or kept."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.diagnosis import _console, _frames
from bisect_cfg.diagnosis._metrics import canonical, row_of
from bisect_cfg.diagnosis._rows import KNOWN
from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_paths, explain_text

Rows = list[dict[str, float]]


def rows(collapses_at: int) -> Rows:
    """A run of 160 steps that learns, up to where it collapses."""
    noise, made = random.Random(4), []
    for step in range(1, 161):
        gone = step > collapses_at
        made.append(
            {
                "step": step,
                "loss": 0.0 if gone else noise.gauss(0, 0.02),
                "grad_norm": 0.0 if gone else abs(noise.gauss(0.4, 0.1)),
                "reward": 0.0 if gone else max(min(0.7, 0.2 + 0.006 * step) + noise.gauss(0, 0.04), 0.0),
                "reward_std": 0.0 if gone else 0.3 + noise.gauss(0, 0.02),
                "entropy": 0.002 if gone else 0.6 - 0.001 * step + noise.gauss(0, 0.01),
                "kl": 3.2 if gone else 0.001 * step,
                "length": 17.0 if gone else 300.0,
            }
        )
    return made


def each(line: str) -> Callable[[Rows], str]:
    """Every row in the same words."""
    return lambda made: "".join(line.format(**row) + "\n" for row in made)


def pairs(made: Rows, *names: str) -> list[list[float]]:
    return [[row[name] for name in names] for row in made]


FRAME = "╭──────────────────────┬────────────╮\n"
PRINTED: dict[str, Callable[[Rows], str]] = {
    "nemo-rl.log": each(
        "========================= Step {step}/160 =========================\n▶ Generating responses for batch of size"
        " 64...\n📊 Training Results:\n  • Loss: {loss:.4f}\n  • Avg Reward: {reward:.4f}\n"
        "  • Mean Generation Length: {length:.4f}\n\n⏱️  Timing:\n  • Total step time: 12.12s"
    ),
    "prime-rl.log": each(
        "12:01:02 SUCCESS Step {step} | Time: 12.31s | Loss: {loss:.4f} | Entropy: {entropy:.4f} | Mismatch KL: 0.0012"
        " | Grad. Norm: {grad_norm:.4f} | LR: 1.00e-06 | Throughput: 2991 tokens/s\n"
        "12:01:02 SUCCESS Step {step} | Time: 11.2s | Reward: {reward:.4f} | Throughput: 2991.2 tokens/s"
    ),
    "areal.log": each(
        "(trainer) 20260101-10:00:00.000 StatsLogger INFO: Epoch 1/10 Step {step}/160 Train step {step}/1600 done.\n"
        + FRAME
        + "│ grpo_actor/task_reward/avg │ {reward:.4e} │\n├───┼───┤\n│ grpo_actor/entropy/avg │ {entropy:.4e} │\n"
        "│ grpo_actor/update/grad_norm │ {grad_norm:.4e} │"
    ),
    "skyrl.log": each(
        "(skyrl_entrypoint pid=88) 2026-01-01 10:00:00.000 | INFO | skyrl_train.utils.tracking:log:100 - "
        "{{'reward/avg_raw_reward': {reward}, 'policy/policy_loss': {loss}, 'policy/policy_entropy': {entropy}, "
        "'policy/raw_grad_norm': {grad_norm}, 'trainer/global_step': {step}}}"
    ),
    "slime.log": each(
        "(RolloutManager pid=3) [2026-04-20 00:00:47] rollout.py:1210 - rollout {step}: {{'rollout/raw_reward': "
        "{reward}, 'rollout/rewards': -1.3e-10, 'rollout/truncated': 0.0}}\n(MegatronTrainRayActor pid=4) "
        "[2026-04-20 00:00:47] "
        "model.py:612 - step {step}: {{'train/loss': {loss}, 'train/entropy_loss': {entropy}, 'train/grad_norm': "
        "{grad_norm}, 'train/step': {step}}}"
    ),
    "lightning.log": each(
        "Epoch 0:  50%|████      | {step}/160 [00:10<01:40,  1.20it/s, loss={loss:.3f}, v_num=0, "
        "train_reward={reward:.3f}, entropy={entropy:.3f}]"
    ),
    "own.log": each("Episode {step}/160 - Reward: {reward:.3f} - Loss: {loss:.4f}"),
    "aligned.log": each(
        "[rank0]:[titan] 2026-01-01 10:00:00,123 - root - INFO - step: {step:2d}  loss: {loss:7.4f}  grad_norm: "
        "{grad_norm:7.4f}  reward: {reward:7.4f}  memory: 12.10GiB(15.2%)  tps: 3,002  mfu: 2.1%"
    ),
    "trlx.log": each(
        "[RANK 0] losses/total_loss: {loss:.2f} | losses/policy_loss: {loss:.2f} | rollout_scores/mean: {reward:.3f}"
        " | policy/sqrt_kl: {kl:.3f}: 50%|█| {step}/160 [10:00<11:00, 1.2s/it]"
    ),
    "commas.csv": lambda made: "step;loss;reward;reward_std\n"
    + "".join(
        f"{row['step']};{row['loss']:.4f};{row['reward']:.4f};{row['reward_std']:.4f}\n".replace(".", ",")
        for row in made
    ),
    "grpo_reward.json": lambda made: json.dumps([[1.7e9, *pair] for pair in pairs(made, "step", "reward")]),
    "pairs.json": lambda made: json.dumps({name: pairs(made, "step", name) for name in ("reward", "entropy")}),
    "columns.json": lambda made: json.dumps({f"{name}s": [row[name] for row in made] for name in ("step", "reward")}),
    "inside.json": lambda made: json.dumps({"config": {"lr": 1e-6, "betas": [0.9, 0.99]}, "metrics": made}),
    "reward": lambda made: "".join(f"17000{row['step']:05d} {row['reward']} {row['step']}\n" for row in made),
    "pandas.txt": lambda made: ">>> print(df)\n     step   loss  grad_norm  reward  reward_std  entropy\n"
    + "".join(
        f"{at:<4}{row['step']:6}{row['loss']:10.4f}{row['grad_norm']:9.4f}{row['reward']:9.4f}{row['reward_std']:9.4f}"
        f"{row['entropy']:9.4f}\n"
        for at, row in enumerate(made)
    ),
    "pandas_without_index.txt": lambda made: "In [7]: print(df)\n  step   loss  reward  entropy\n"
    + "".join(f"{row['step']:6}{row['loss']:10.4f}{row['reward']:9.4f}{row['entropy']:9.4f}\n" for row in made),
    "rich.txt": lambda made: "┏━━━━━━┳━━━━━━┓\n┃ Step ┃ Loss     ┃ Reward  ┃ Entropy  ┃\n┡━━━━━━╇━━━━━━┩\n"
    + "".join("│ {step:<4} │ {loss:.4f} │ {reward:.4f} │ {entropy:.4f} │\n".format_map(row) for row in made),
    "wrapped.txt": lambda made: "     step   reward \\\n"
    + "".join(f"{at:<4}{row['step']:6}{row['reward']:9.4f}   \n" for at, row in enumerate(made))
    + "\n     reward_std  entropy  \n"
    + "".join(f"{at:<4}{row['reward_std']:9.4f}{row['entropy']:9.4f}  \n" for at, row in enumerate(made))
    + "\n[160 rows x 4 columns]\n",
    "table.html": lambda made: "<div>\n<progress value='160' max='160'></progress>\n</div>\n<table>\n<thead>"
    "<tr><th>Step</th><th>Training Loss</th><th>reward</th><th>reward_std</th>"
    "<th>completions / mean_length</th></tr></thead>\n"
    + "".join(
        f"<tr>\n<td>{row['step']}</td>\n<td>{row['loss']:.4f}</td>\n<td>{row['reward']:.4f}</td>\n"
        f"<td>{row['reward_std']:.4f}</td><td>{row['length']}</td></tr>\n"
        for row in made
    )
    + "</table>\n",
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_metrics_in_any_form(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(PRINTED[name](rows(100)))
    matches = explain_paths([str(path)])[0].matches
    assert matches and matches[0].entry.id in ("policy-collapse", "kl-diverged"), matches
    path.write_text(PRINTED[name](rows(1000)))
    assert explain_paths([str(path)])[0].status == NO_FAILURE


def test_what_a_program_says_of_each_completion_is_no_row() -> None:
    said = "".join(f"Completion {at}\nReward: {float(at < 60)}\n" for at in range(120))
    assert explain_text(said).status == NO_FAILURE


def test_what_stands_below_a_table_is_read_as_well(tmp_path: Path) -> None:
    table = "Step\tTraining Loss\treward\n" + "".join(f"{at}\t0.01\t0.5\n" for at in range(1, 13))
    path = tmp_path / "notebook.txt"
    path.write_text(
        f"{table}File ~/a.py:2, in f()\n\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    found = explain_paths([str(path)])[0]
    assert found.matches[0].entry.id == "gpu-out-of-memory" and found.error and found.error.number == 16


def test_a_cell_s_error_that_an_editor_keeps(tmp_path: Path) -> None:
    stack = "-----\nIndexError    Traceback (most recent call last)\nFile ~/a.py:2, in f()\n\n"
    stack += "IndexError: list index out of range"
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"name": "IndexError", "message": "list index out of range", "stack": stack}))
    found = explain_paths([str(path)])[0]
    assert found.error is not None and found.error.text == "IndexError: list index out of range"


SPELLED = st.lists(st.sampled_from(["Step 1", "reward", " | ", ": ", "0.5", "nan", "\n", "│", "Avg Loss", "-", "1e-6"]))


@given(st.one_of(st.text(), SPELLED.map("".join)))
def test_any_text_can_be_looked_at_for_rows(text: str) -> None:
    for row in (*_console.rows_of(text, 1, canonical, KNOWN, row_of), *_frames.frames(text, 1, row_of)):
        assert 1 <= row.line <= text.count("\n") + 1 and row.values


@given(st.lists(st.floats(0, 1), min_size=8, max_size=30), st.integers(0, 5))
def test_every_step_has_its_row(rewards: list[float], noise: int) -> None:
    said = "".join(
        f"== Step {at} ==\n" + "Time: 3.1s\n" * noise + f"  Loss: 0.01\n  Mean Reward: {reward:.5f}\n"
        for at, reward in enumerate(rewards)
    )
    found = _console.rows_of(said, 1, canonical, KNOWN, row_of)
    assert [row.values["step"] for row in found] == list(range(len(rewards)))
    assert [row.values["reward"] for row in found] == [float(f"{reward:.5f}") for reward in rewards]
