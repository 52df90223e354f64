"""Findings: each report's environment shows its problem, a sound one shows none."""

from __future__ import annotations

from typing import Any

import pytest

from bisect_cfg.common.fingerprint import fingerprint
from bisect_cfg.doctor.findings import check

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
SHADOWED = {"package": "nvidia-cublas-cu12", "version": "12.4.5.8", "shadowed_by": "/usr/lib/b"}


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
        ({"args.temperature": 0.9}, {"packages": {"trl": "0.15.2"}}, "warning", "out of the loss"),
        ({}, {"python": "3.9.18", "packages": {"torch": "2.5.1", "trl": "0.16.0"}}, "note", "too old"),
        ({"args.max_prompt_length": 256}, {"packages": {"trl": "1.16.0"}}, "problem", "max_prompt_length"),
        ({"args.learning_rate": 1e-4, "peft.r": 16}, {}, "warning", "learning rate"),
        ({}, {"gpus": [A100, A100], "local_ranks": 8}, "problem", "More processes than GPUs"),
        ({}, {"cublas": {**SHADOWED, "loaded_from": "/usr/lib/b"}}, "warning", "cuBLAS is loaded"),
        ({}, {"cublas": SHADOWED}, "warning", "cuBLAS would be loaded"),
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
    assert "{" not in finding.why + finding.cure


def test_what_was_mended_since_is_not_held_against_newer_versions() -> None:
    newer = {"python": "3.10.13", "packages": {"torch": "2.5.1", "trl": "0.16.0"}}
    assert check(newer, {**SOUND, "args.temperature": 0.9}) == []
    assert check({"packages": {"trl": "0.15.2"}}, {**SOUND, "args.temperature": 1.0}) == []


def test_lora_may_learn_faster() -> None:
    assert check({}, {**SOUND, "args.learning_rate": 2e-5, "peft.r": 16}) == []


def test_accumulation_counts_from_017_on() -> None:
    settings = {**SOUND, "args.per_device_train_batch_size": 2, "args.gradient_accumulation_steps": 4}
    assert check({"packages": {"trl": "0.17.0"}}, settings) == []
    assert len(check({"packages": {"trl": "0.15.2"}}, settings)) == 1


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"packages": {"accelerate": "0.34.0", "transformers": "4.52.4"}}, "accelerate is too old"),
        ({"packages": {"trl": "0.25.0", "vllm": "0.12.0"}}, "TRL is too old for this vLLM"),
        ({"packages": {"vllm": "0.11.0", "transformers": "5.1.0"}}, "does not know transformers 5"),
        (
            {"gpus": [{"name": "NVIDIA GeForce RTX 5090", "compute_capability": "12.0"}], "cuda": "12.4"},
            "no code for this GPU",
        ),
        ({"gpus": [{"name": "NVIDIA GeForce RTX 5090"}], "cuda": "12.4"}, "no code for this GPU"),
        (
            {"gpus": [{"name": "Tesla V100-SXM2-32GB", "compute_capability": "7.0"}], "cuda": "13.0"},
            "no code for this GPU any more",
        ),
        ({"driver": "470.86", "cuda": "13.0"}, "driver is too old"),
        ({"python": "3.11.7", "packages": {"trl": "1.16.0"}}, "torch is not installed"),
        ({"python": "3.11.7", "packages": {"torch": "2.9.0"}}, "No trainer"),
    ],
)
def test_versions_and_hardware_that_do_not_work_together(environment: dict[str, Any], said: str) -> None:
    (finding,) = check(environment)
    assert finding.level == "problem" and said in finding.title
    assert finding.cure and finding.source.startswith("https://") and finding.id


@pytest.mark.parametrize(
    "environment",
    [
        {"packages": {"accelerate": "1.3.0", "transformers": "4.52.4"}},
        {"packages": {"accelerate": "0.34.0", "transformers": "4.51.3"}},
        {"packages": {"trl": "0.27.0", "vllm": "0.12.0"}},
        {"gpus": [{"name": "NVIDIA GeForce RTX 5090", "compute_capability": "12.0"}], "cuda": "12.8"},
        {
            "gpus": [{"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0"}],
            "cuda": "13.0",
            "driver": "580.65.06",
        },
        {"driver": "535.183.01", "cuda": "12.4"},
        {"python": "3.11.7", "packages": {"torch": "2.9.0", "verl": "0.5.0"}},
        {},
    ],
)
def test_versions_and_hardware_that_do(environment: dict[str, Any]) -> None:
    assert check(environment) == []
