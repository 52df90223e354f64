"""A stand-in for torch, transformers and trl: the settings of GRPOConfig, and a trainer whose steps cost microseconds.

A script that uses it starts at once and trains in real processes, so that hundreds of bisections can be run, killed
and looked at in minutes. `write` puts it into a folder, which goes on PYTHONPATH of whoever runs the script. Names and
defaults are those of the real classes. Its trainer writes a checkpoint into `output_dir` at every step: what must never
happen to a user's own folder shows.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

SETTINGS: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "learning_rate": ("float", 5e-5, (1e-3, 3e-4, 0.1)),
    "weight_decay": ("float", 0.0, (0.1, 0.01)),
    "warmup_steps": ("float", 0, (10, 3)),
    "max_grad_norm": ("float", 1.0, (0.1, 100.0)),
    "lr_scheduler_type": ("str", "linear", ("cosine", "constant")),
    "optim": ("str", "adamw_torch_fused", ("sgd", "adafactor", "adamw_torch")),
    "adam_epsilon": ("float", 1e-8, (1e-4, 1e-20)),
    "adam_beta1": ("float", 0.9, (0.5, 0.99)),
    "adam_beta2": ("float", 0.999, (0.95, 0.99999)),
    "per_device_train_batch_size": ("int", 8, (4, 64)),
    "gradient_accumulation_steps": ("int", 1, (3, 16)),
    "gradient_checkpointing": ("bool", True, (False,)),
    "bf16": ("bool | None", None, (True,)),
    "fp16": ("bool", False, (True,)),
    "tf32": ("bool | None", None, (True, False)),
    "neftune_noise_alpha": ("float | None", None, (5.0,)),
    "label_smoothing_factor": ("float", 0.0, (0.1,)),
    "torch_compile": ("bool", False, (True,)),
    "beta": ("float", 0.0, (0.1, 0.04, 10.0)),
    "temperature": ("float", 1.0, (0.1, 2.0)),
    "top_p": ("float", 1.0, (0.5, 0.9)),
    "top_k": ("int", 0, (50, 1)),
    "min_p": ("float | None", None, (0.1,)),
    "repetition_penalty": ("float", 1.0, (1.3, 3.0)),
    "num_generations": ("int", 8, (4, 2)),
    "max_completion_length": ("int", 256, (64, 12)),
    "loss_type": ("str", "dapo", ("grpo", "dr_grpo", "bnpo")),
    "epsilon": ("float", 0.2, (0.5, 0.01)),
    "epsilon_high": ("float | None", None, (0.28,)),
    "scale_rewards": ("str", "group", ("batch", "none")),
    "mask_truncated_completions": ("bool", False, (True,)),
    "num_iterations": ("int", 1, (2, 4)),
    "disable_dropout": ("bool", False, (True,)),
    "shuffle_dataset": ("bool", True, (False,)),
    "sync_ref_model": ("bool", False, (True,)),
    "importance_sampling_level": ("str", "token", ("sequence",)),
}
"""Name to type, default, and the values that a training script may set instead."""

TRAINING = [name for name in SETTINGS if list(SETTINGS).index(name) < list(SETTINGS).index("beta")]
"""Those of TrainingArguments; the others are GRPOConfig's own."""


def _fields(names: list[str]) -> str:
    return "\n".join(f"    {name}: {SETTINGS[name][0]} = {SETTINGS[name][1]!r}" for name in names)


LIBRARY = {
    "torch/__init__.py": """
        __version__ = "0"
        class cuda:
            is_initialized = staticmethod(lambda: False)
        class version:
            cuda = None
        get_num_threads = lambda: 1
        set_num_threads = lambda count: None
    """,
    "transformers/__init__.py": "",
    "transformers/trainer.py": """
        import os, types

        class TrainerCallback:
            def on_train_begin(self, args, state, control, **kwargs): pass
            def on_step_begin(self, args, state, control, **kwargs): pass
            def on_step_end(self, args, state, control, **kwargs): pass
            def on_log(self, args, state, control, logs=None, **kwargs): pass
            def on_train_end(self, args, state, control, **kwargs): pass

        class Model:
            def named_parameters(self):
                return []

        class Trainer:
            steps = 300

            def __init__(self, args, step=lambda number: None):
                self.args, self.step, self.callbacks = args, step, []
                self.model = Model()
                self.state = types.SimpleNamespace(global_step=0, max_steps=self.steps)
                if args.output_dir is not None:
                    os.makedirs(args.output_dir, exist_ok=True)

            def add_callback(self, callback):
                self.callbacks.append(callback)

            def train(self):
                control = types.SimpleNamespace(should_log=False)
                for callback in self.callbacks:
                    callback.on_train_begin(self.args, self.state, control)
                for number in range(1, self.steps + 1):
                    for callback in self.callbacks:
                        callback.on_step_begin(self.args, self.state, control)
                    changes = self.step(number)
                    self.state.global_step = number
                    with open(os.path.join(self.args.output_dir or ".", "checkpoint"), "w") as file:
                        file.write(str(number))
                    for callback in self.callbacks:
                        callback.on_step_end(self.args, self.state, control)
                    logs = {"loss": 0.5, "grad_norm": 1.0, "reward": 0.1, "reward_std": 0.3, "entropy": 2.0}
                    logs.update(changes or {})
                    for callback in self.callbacks:
                        callback.on_log(self.args, self.state, control, logs=logs)
                for callback in self.callbacks:
                    callback.on_train_end(self.args, self.state, control)
    """,
    "trl/__init__.py": """
        from trl.trainer.grpo_config import GRPOConfig
        from transformers.trainer import Trainer as GRPOTrainer
    """,
    "trl/trainer/__init__.py": "",
}

TRAINING_ARGUMENTS = """from dataclasses import dataclass


@dataclass
class TrainingArguments:
    output_dir: str | None = None
{fields}
    report_to: str | list[str] | None = "none"
    save_strategy: str = "steps"
    push_to_hub: bool = False
    hub_token: str | None = None
    seed: int = 42
    logging_nan_inf_filter: bool = True
    world_size = 1

    def __post_init__(self):
        if self.per_device_train_batch_size < 1:
            raise ValueError("per_device_train_batch_size must be positive")
"""

GRPO_CONFIG = """from dataclasses import dataclass
from transformers.training_args import TrainingArguments


@dataclass
class GRPOConfig(TrainingArguments):
{fields}
    model_init_kwargs: dict | str | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.num_generations < 2:
            raise ValueError("num_generations must be at least 2")
"""


def write(folder: Path) -> Path:
    """Write the library; returns `folder`."""
    texts = {name: textwrap.dedent(text).lstrip() for name, text in LIBRARY.items()}
    texts["transformers/training_args.py"] = TRAINING_ARGUMENTS.format(fields=_fields(TRAINING))
    own = [name for name in SETTINGS if name not in TRAINING]
    texts["trl/trainer/grpo_config.py"] = GRPO_CONFIG.format(fields=_fields(own))
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
