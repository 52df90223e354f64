"""Findings: each report's environment shows its problem, a sound one shows none."""

from __future__ import annotations

from typing import Any

import pytest

from bisect_cfg.diagnosis.environment import fingerprint
from bisect_cfg.diagnosis.findings import check

SOUND = {
    "args.learning_rate": 1e-6,
    "args.num_generations": 8,
    "args.per_device_train_batch_size": 8,
    "args.gradient_accumulation_steps": 1,
    "args.max_grad_norm": 1.0,
    "args.beta": 0.0,
    "args.use_vllm": False,
}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0"}
H20 = {"name": "NVIDIA H20", "compute_capability": "9.0"}
T4 = {"name": "Tesla T4", "compute_capability": "7.5"}


def test_this_environment_with_sound_settings_is_clean() -> None:
    assert check(fingerprint(), SOUND) == []
    assert check(fingerprint()) == []


@pytest.mark.parametrize(
    ("environment", "change", "said"),
    [
        ({"gpus": [H20], "cublas": {"version": "12.1.3.1"}, "packages": {"trl": "0.14.0"}}, {}, "H20"),
        ({"gpus": [A100, A100], "launcher": "python"}, {}, "nn.DataParallel"),
        ({"packages": {"vllm": "0.6.6.post1"}}, {"use_vllm": True}, "two GPUs"),
        ({"packages": {"openrlhf": "0.6.0.post1"}}, {}, "wake-up"),
        ({"packages": {"trl": "0.17.0"}}, {"beta": 0.04, "fsdp": "full_shard"}, "FSDP"),
        ({"packages": {"trl": "0.17"}, "variables": {"ACCELERATE_USE_FSDP": "1"}}, {"beta": 0.04}, "FSDP"),
    ],
)
def test_environments_of_the_reports(environment: dict[str, Any], change: dict[str, Any], said: str) -> None:
    changed = {f"args.{name}": value for name, value in change.items()}
    titles = [finding.title for finding in check(environment, {**SOUND, **changed})]
    assert len(titles) == 1 and said in titles[0]


@pytest.mark.parametrize(
    "environment",
    [
        {"gpus": [H20], "cublas": {"version": "12.4.5.8"}},
        {"gpus": [A100], "cublas": {"version": "12.1.3.1"}},
        {"gpus": [A100, A100], "launcher": "accelerate"},
        {"gpus": [A100, A100], "launcher": "python", "variables": {"CUDA_VISIBLE_DEVICES": "0"}},
        {"packages": {"openrlhf": "0.6.0.post2", "trl": "0.18.0", "vllm": "0.7.3"}},
    ],
)
def test_cured_environments_are_clean(environment: dict[str, Any]) -> None:
    assert check(environment, {**SOUND, "args.fsdp": "", "args.beta": 0.04}) == []


@pytest.mark.parametrize(
    ("change", "environment", "level", "said"),
    [
        ({"args.num_generations": 3}, {}, "problem", "whole number of groups"),
        ({"args.num_generations": 1}, {}, "problem", "two generations"),
        ({"args.max_grad_norm": 0}, {}, "warning", "clipping is off"),
        ({"args.learning_rate": 2e-5}, {}, "warning", "learning rate"),
        ({"args.learning_rate": "1e-4"}, {}, "problem", "learning rate"),
        ({"args.fp16": True, "args.bf16": True}, {}, "problem", "both on"),
        ({"args.bf16": True}, {"gpus": [T4]}, "problem", "no bfloat16"),
        ({"args.logging_nan_inf_filter": True}, {}, "note", "NaN loss"),
        ({"model.dtype": "bfloat16", "args.optim": "adamw_torch_fused"}, {}, "note", "lost in bfloat16"),
        ({"args.max_prompt_length": 256}, {"packages": {"trl": "1.16.0"}}, "problem", "max_prompt_length"),
        (
            {"model.dtype": "float16", "args.adam_epsilon": 1e-8, "args.optim": "adamw_torch"},
            {},
            "problem",
            "adam_epsilon",
        ),
    ],
)
def test_rules(change: dict[str, Any], environment: dict[str, Any], level: str, said: str) -> None:
    (finding,) = check(environment, {**SOUND, **change})
    assert finding.level == level and said in finding.title and finding.cure and finding.source


def test_lora_may_learn_faster() -> None:
    assert check({}, {**SOUND, "args.learning_rate": 2e-5, "peft.r": 16}) == []


def test_accumulation_counts_from_017_on() -> None:
    settings = {**SOUND, "args.per_device_train_batch_size": 2, "args.gradient_accumulation_steps": 4}
    assert check({"packages": {"trl": "0.17.0"}}, settings) == []
    assert len(check({"packages": {"trl": "0.15.2"}}, settings)) == 1
