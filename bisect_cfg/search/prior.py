"""How risky a setting is, before any trial: prior odds of taking part in a cause.

The odds steer which question comes first and so how many trials an answer takes. They never decide an
answer: a cause is claimed on runs alone. An ordinary setting has odds 1. Each entry gives the reason,
mostly a kind of report that keeps coming back in the trackers of TRL and transformers.

Once it is known how the run fails, the odds are sharper: memory runs out over batch and length, whatever the
learning rate, and a policy that collapses does not mind the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

RISK: dict[str, tuple[float, str]] = {
    "bf16": (
        10.0,
        "other kernels and eight bits of mantissa: crashes in libraries, noise in the policy ratio",
    ),
    "fp16": (30.0, "overflows at 65504, underflows below 6e-8"),
    "dtype": (20.0, "weights in half precision cannot hold Adam's small updates"),
    "torch_dtype": (20.0, "the old name of dtype"),
    "model_init_kwargs": (8.0, "carries dtype and attention of the model"),
    "attn_implementation": (8.0, "other kernels, other masks, other requirements of the GPU"),
    "tf32": (4.0, "other matrix kernels"),
    "learning_rate": (25.0, "the first reason for a policy that collapses"),
    "optim": (6.0, "what it keeps, and in which precision"),
    "adam_epsilon": (6.0, "underflows in half precision"),
    "adam_beta1": (3.0, "lets updates grow past what clipping sees"),
    "adam_beta2": (3.0, "the same, and the second moment starts from too little"),
    "max_grad_norm": (6.0, "0 switches clipping off"),
    "lr_scheduler_type": (3.0, "some need arguments of their own, some start at the peak"),
    "lr_scheduler_kwargs": (3.0, "must fit the scheduler"),
    "warmup_ratio": (2.0, "no warmup makes the first steps the largest"),
    "warmup_steps": (2.0, "no warmup makes the first steps the largest"),
    "temperature": (6.0, "divides the logits: small values overflow, large ones sample noise"),
    "top_p": (3.0, "can leave nothing to sample from once logits are off"),
    "top_k": (3.0, "can leave nothing to sample from once logits are off"),
    "min_p": (3.0, "can leave nothing to sample from once logits are off"),
    "repetition_penalty": (2.0, "changes logits in place"),
    "beta": (5.0, "the KL term's exponential grows without bound; 0 removes the brake"),
    "epsilon": (4.0, "how far one update may move the policy"),
    "epsilon_high": (4.0, "how far one update may move the policy"),
    "loss_type": (4.0, "other normalisation, other scale of the gradient"),
    "scale_rewards": (
        5.0,
        "divides by a standard deviation that can be zero, or leaves a huge reward as it is",
    ),
    "importance_sampling_level": (3.0, "ratios of whole sequences overflow"),
    "num_generations": (4.0, "must divide the batch; two leave hardly a signal"),
    "num_iterations": (3.0, "off-policy updates need the ratio clipped"),
    "per_device_train_batch_size": (3.0, "memory, and divisibility"),
    "gradient_accumulation_steps": (3.0, "divisibility, and how often the policy moves"),
    "steps_per_generation": (3.0, "how far off-policy the updates are"),
    "max_completion_length": (3.0, "memory, and completions without an end"),
    "max_prompt_length": (2.0, "memory, and cut prompts"),
    "use_vllm": (6.0, "another engine with other numerics"),
    "use_liger_kernel": (6.0, "other kernels"),
    "use_liger_loss": (6.0, "other kernels"),
    "torch_compile": (5.0, "other kernels"),
    "gradient_checkpointing": (4.0, "clashes with frozen inputs and with caching"),
    "deepspeed": (6.0, "its own precision and its own clipping"),
    "fsdp": (6.0, "its own precision and its own clipping"),
    "load_in_4bit": (5.0, "quantised weights"),
    "load_in_8bit": (5.0, "quantised weights"),
    "weight_decay": (1.0, "rarely matters within a few steps"),
    "num_train_epochs": (0.3, "a trial ends long before"),
    "max_steps": (0.5, "moves the schedule, little else"),
    "num_processes": (5.0, "what works on one GPU may deadlock on two"),
}
"""Last part of the dotted name -> odds and the reason for them."""

HARMLESS: dict[str, tuple[float, str]] = {
    "logging": (0.05, "writes lines"),
    "report": (0.05, "writes lines"),
    "run_name": (0.05, "a name"),
    "project": (0.05, "a name"),
    "hub": (0.05, "happens after training"),
    "push": (0.05, "happens after training"),
    "save": (0.1, "writes files, and a trial saves nothing"),
    "eval": (0.2, "a trial evaluates nothing"),
    "output_dir": (0.05, "a place"),
    "log": (0.05, "writes lines"),
    "disable_tqdm": (0.05, "a progress bar"),
    "dataloader": (0.5, "moves data about, seldom numbers"),
    "remove_unused_columns": (0.5, "moves data about, seldom numbers"),
    "seed": (0.5, "luck, not a setting"),
}
"""Beginning of the last part of the name -> odds and reason."""

KINDS: dict[str, tuple[float, str]] = {
    "packages": (3.0, "a library is at fault more often than a number"),
    "env": (2.0, "switches kernels and allocators"),
    "peft": (2.0, "what is trained, and in which precision"),
}
"""First part of the dotted name -> odds and reason, where nothing above says more."""


KERNELS = (
    "bf16", "fp16", "dtype", "torch_dtype", "model_init_kwargs", "tf32", "attn_implementation", "use_vllm",
    "use_liger_kernel", "use_liger_loss", "torch_compile", "load_in_4bit", "load_in_8bit",
)  # fmt: skip
"""Settings that choose which compiled code runs, and on numbers of which precision."""

UPDATE = (
    "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm", "warmup_steps",
    "warmup_ratio", "lr_scheduler_type", "lr_scheduler_kwargs", "beta", "epsilon", "epsilon_high",
    "loss_type", "scale_rewards", "importance_sampling_level", "num_iterations", "delta",
)  # fmt: skip
"""Numbers of the update: the same code runs whatever they are."""

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""How completions are drawn."""

SIZE = (
    "per_device_train_batch_size", "max_completion_length", "max_prompt_length", "num_generations",
    "generation_batch_size", "steps_per_generation", "gradient_checkpointing", "vllm_gpu_memory_utilization",
    "vllm_max_model_length",
)  # fmt: skip
"""How much is held at once."""

PROCESSES = ("num_processes", "deepspeed", "fsdp", "fsdp_config", "vllm_mode", "vllm_device", "accelerator_config")
"""How many processes there are and what they tell each other."""

SIGNAL = ((KERNELS, 4.0), (SIZE, 1.0), (PROCESSES, 1.0), (UPDATE, 0.1), (SAMPLING, 0.1))

BY_FAILURE: dict[str, tuple[tuple[tuple[str, ...], float], ...]] = {
    # Compiled code divides by zero or leaves its memory over types, shapes and alignment, not over rates.
    "signal": SIGNAL,
    "cuda-error": SIGNAL,
    # Too large an update, or numbers that cannot hold it. How much is held at once changes neither.
    "non-finite": ((KERNELS, 1.0), (UPDATE, 1.5), (SAMPLING, 0.7), (SIZE, 0.2), (PROCESSES, 0.5)),
    # Mostly the same met one step later: probabilities of NaN; otherwise indices beyond a table.
    "cuda-assert": ((KERNELS, 1.0), (UPDATE, 1.0), (SAMPLING, 2.0), (SIZE, 0.5), (PROCESSES, 1.0)),
    # The policy follows the update's direction too far, or what it samples from has no spread.
    "collapse": ((KERNELS, 0.2), (UPDATE, 2.0), (SAMPLING, 2.0), (SIZE, 0.2), (PROCESSES, 0.1)),
    "no-gradient": ((KERNELS, 0.7), (UPDATE, 1.0), (SAMPLING, 2.0), (SIZE, 1.0), (PROCESSES, 0.2)),
    # All completions of a group get the same reward: cut ones, equal ones, too few.
    "dead-reward": ((KERNELS, 0.2), (UPDATE, 0.5), (SAMPLING, 4.0), (SIZE, 4.0), (PROCESSES, 0.2)),
    # What is held at once, and in how many bytes a number; the update's numbers take no memory.
    "out-of-memory": ((KERNELS, 1.0), (SIZE, 10.0), (PROCESSES, 1.0), (UPDATE, 0.03), (SAMPLING, 0.03)),
    # One process waits for another.
    "hang": ((KERNELS, 1.0), (SIZE, 1.0), (PROCESSES, 10.0), (UPDATE, 0.1), (SAMPLING, 0.1)),
}
"""Kind of failure (see `bisect_cfg.diagnosis.signature`) -> what it does to the odds of each group."""

NAMED = 30.0
"""What it does to the odds of a setting that the failure's message or the line of code names ("Number of reward weights"
and `reward_weights`): such messages are mostly right about where, if not about why."""


def names_it(text: str, name: str) -> bool:
    """Whether a text names a setting, as an identifier or in plain words."""
    words = name.split(".")[-1].split("_")
    return re.search(r"(?<![A-Za-z0-9])" + "[_ -]".join(map(re.escape, words)) + r"(?![A-Za-z0-9])", text, re.I) is not None


def odds_of(
    names: Sequence[str], prior: str | Mapping[str, float], failure: str = "", said: str = ""
) -> tuple[float, ...]:
    """The odds of each name: all 1 for "flat", from the tables for "risk", else from the mapping.

    Args:
        names: dotted names.
        prior: "risk", "flat" or name -> odds; names a mapping leaves out are ordinary.
        failure: the kind of the failure under study, "" if it is not known; it sharpens "risk".
        said: its message and the like: settings that it names are likelier, under "risk".

    Raises:
        ValueError: an unknown prior, or odds that are not positive.
    """
    if prior == "flat":
        return ()
    if prior == "risk":
        return tuple(risk_of(name, failure) * (NAMED if said and names_it(said, name) else 1.0) for name in names)
    if isinstance(prior, str):
        raise ValueError(f"prior must be 'risk', 'flat' or a mapping of names to odds, not {prior!r}")
    odds = tuple(float(prior.get(name, 1.0)) for name in names)
    if any(not 0 < value < float("inf") for value in odds):
        raise ValueError("prior odds must be positive numbers")
    return odds


def risk_of(name: str, failure: str = "") -> float:
    """The risk prior's odds of one dotted name, given how the run fails."""
    first, last = name.split(".")[0], name.split(".")[-1]
    groups = BY_FAILURE.get(failure, ())
    return _anyway(first, last) * next((factor for names, factor in groups if last in names), 1.0)


def _anyway(first: str, last: str) -> float:
    """The odds before it is known how the run fails."""
    if last in RISK:
        return RISK[last][0]
    for beginning, (odds, _) in HARMLESS.items():
        if last.startswith(beginning):
            return odds
    return KINDS[first][0] if first in KINDS and last != first else 1.0
