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


def packages(**versions: str) -> dict[str, Any]:
    return {"packages": versions}


BLACKWELL = {"name": "NVIDIA GeForce RTX 5090", "compute_capability": "12.0"}
FSDP = {"args.beta": 0.04, "args.fsdp": "full_shard"}
HALF = {"model.dtype": "float16", "args.adam_epsilon": 1e-8, "args.optim": "adamw_torch"}
SMALL = {"args.per_device_train_batch_size": 2, "args.gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    ("environment", "change", "level", "said"),
    [
        # of the reports, and what cures them
        ({"gpus": [H20], "cublas": {"version": "12.1.3.1"}, **packages(trl="0.14.0")}, {}, "problem", "H20"),
        ({"gpus": [H20], "cublas": {"version": "12.4.5.8"}}, FSDP, "", ""),
        ({"gpus": [A100], "cublas": {"version": "12.1.3.1"}}, FSDP, "", ""),
        ({"gpus": [A100, A100], "launcher": "python"}, {}, "warning", "nn.DataParallel"),
        ({"gpus": [A100, A100], "launcher": "accelerate"}, {}, "", ""),
        ({"gpus": [A100, A100], "launcher": "python", "variables": {"CUDA_VISIBLE_DEVICES": "0"}}, {}, "", ""),
        (packages(vllm="0.6.6.post1"), {"args.use_vllm": True}, "problem", "two GPUs"),
        (packages(openrlhf="0.6.0.post1"), {}, "problem", "wake-up"),
        (packages(openrlhf="0.6.0.post2", trl="0.18.0", vllm="0.7.3"), FSDP, "", ""),
        (packages(trl="0.17.0"), FSDP, "problem", "FSDP"),
        ({**packages(trl="0.17"), "variables": {"ACCELERATE_USE_FSDP": "1"}}, {"args.beta": 0.04}, "problem", "FSDP"),
        # settings
        ({}, {"args.num_generations": 3}, "problem", "whole number of groups"),
        (packages(trl="0.17.0"), SMALL, "", ""),  # accumulation counts from 0.17 on
        (packages(trl="0.15.2"), SMALL, "problem", "whole number of groups"),
        ({}, {"args.num_generations": 1}, "problem", "two generations"),
        ({}, {"args.max_grad_norm": 0}, "warning", "clipping is off"),
        ({}, {"args.learning_rate": 2e-5}, "warning", "learning rate"),
        ({}, {"args.learning_rate": "1e-4"}, "problem", "learning rate"),
        ({}, {"args.learning_rate": 1e-4, "peft.r": 16}, "warning", "learning rate"),
        ({}, {"args.learning_rate": 2e-5, "peft.r": 16}, "", ""),  # LoRA may learn faster
        ({}, {"args.fp16": True, "args.bf16": True}, "problem", "both on"),
        ({}, HALF, "problem", "adam_epsilon"),
        ({"gpus": [T4]}, {"args.bf16": True}, "problem", "no bfloat16"),
        ({}, {"args.logging_nan_inf_filter": True}, "note", "NaN loss"),
        ({}, {"model.dtype": "bfloat16", "args.optim": "adamw_torch_fused"}, "note", "lost in bfloat16"),
        (packages(trl="0.15.2"), {"args.temperature": 0.9}, "warning", "out of the loss"),
        (packages(trl="0.15.2"), {"args.temperature": 1.0}, "", ""),
        (packages(trl="1.16.0"), {"args.max_prompt_length": 256}, "problem", "max_prompt_length"),
        # versions and hardware that work together, or do not
        ({"python": "3.9.18", **packages(torch="2.5.1", trl="0.16.0")}, {}, "note", "too old"),
        ({"python": "3.10.13", **packages(torch="2.5.1", trl="0.16.0")}, {"args.temperature": 0.9}, "", ""),
        ({"gpus": [A100, A100], "local_ranks": 8}, {}, "problem", "More processes than GPUs"),
        ({"cublas": {**SHADOWED, "loaded_from": "/usr/lib/b"}}, {}, "warning", "cuBLAS is loaded"),
        ({"cublas": SHADOWED}, {}, "warning", "cuBLAS would be loaded"),
        (packages(accelerate="0.34.0", transformers="4.52.4"), None, "problem", "accelerate is too old"),
        (packages(accelerate="1.3.0", transformers="4.52.4"), None, "", ""),
        (packages(accelerate="0.34.0", transformers="4.51.3"), None, "", ""),
        (packages(trl="0.25.0", vllm="0.12.0"), None, "problem", "TRL is too old for this vLLM"),
        (packages(trl="0.27.0", vllm="0.12.0"), None, "", ""),
        (packages(vllm="0.11.0", transformers="5.1.0"), None, "problem", "does not know transformers 5"),
        ({"gpus": [BLACKWELL], "cuda": "12.4"}, None, "problem", "no code for this GPU"),
        ({"gpus": [{"name": BLACKWELL["name"]}], "cuda": "12.4"}, None, "problem", "no code for this GPU"),
        ({"gpus": [BLACKWELL], "cuda": "12.8"}, None, "", ""),
        ({"gpus": [{"name": "V100", "compute_capability": "7.0"}], "cuda": "13.0"}, None, "problem", "GPU any more"),
        ({"gpus": [A100], "cuda": "13.0", "driver": "580.65.06"}, None, "", ""),
        ({"driver": "470.86", "cuda": "13.0"}, None, "problem", "driver is too old"),
        ({"driver": "535.183.01", "cuda": "12.4"}, None, "", ""),
        ({"python": "3.11.7", **packages(trl="1.16.0")}, None, "problem", "torch is not installed"),
        ({"python": "3.11.7", **packages(torch="2.9.0")}, None, "problem", "No trainer"),
        ({"python": "3.11.7", **packages(torch="2.9.0", verl="0.5.0")}, None, "", ""),
        ({}, None, "", ""),
    ],
)  # fmt: skip
def test_what_is_found(environment: dict[str, Any], change: dict[str, Any] | None, level: str, said: str) -> None:
    found = check(environment, None if change is None else {**SOUND, **change})
    assert [finding.level for finding in found] == [level] * bool(level)
    for finding in found:
        assert said in finding.title and finding.cure and finding.id and "{" not in finding.why + finding.cure
        assert finding.source == "measured" or finding.source.startswith("https://")
