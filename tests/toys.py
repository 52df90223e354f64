"""Toy training scripts for tests: real GRPO on a 2-layer Qwen2 built in code, seconds instead of hours.

`write` puts a script (and the module `toy` that it imports) into a folder. `SETTINGS` are arguments of GRPOConfig
under which a step takes a few hundredths of a second on a CPU.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

TOY = '''
"""Model, tokenizer, data and reward, all built in code."""

import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

torch.set_num_threads(1)
WORDS = ["<eos>", *"0123456789+="]


def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<eos>", eos_token="<eos>", padding_side="left",
        model_input_names=["input_ids", "attention_mask"],  # TRL 0.14 hands all that it gets to generate
    )


def config():
    return Qwen2Config(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, pad_token_id=0, eos_token_id=0, bos_token_id=None,
    )


def model():
    set_seed(0)
    return Qwen2ForCausalLM(config())


def saved_model(folder):
    """A folder that `from_pretrained` loads."""
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def data(rows=64):
    numbers = random.Random(0)
    return Dataset.from_dict({"prompt": [f"{numbers.randint(0, 9)} + {numbers.randint(0, 9)} =" for _ in range(rows)]})


def reward(completions, **kwargs):
    return [sum(word in "02468" for word in text.split()) / 8 for text in completions]


def trainer(args, **changes):
    from trl import GRPOTrainer

    parts = {
        "model": None, "processing_class": tokenizer(), "reward_funcs": reward, "args": args, "train_dataset": None,
    }
    parts.update(changes)
    parts["model"] = parts["model"] if parts["model"] is not None else model()
    parts["train_dataset"] = parts["train_dataset"] if parts["train_dataset"] is not None else data()
    return GRPOTrainer(**parts)
'''

SETTINGS = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 8,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
}


def settings(**changes: object) -> str:
    """`SETTINGS` with changes, as the arguments of a call."""
    return ", ".join(f"{name}={value!r}" for name, value in {**SETTINGS, **changes}.items())


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    """Write a script that can ``import toy``; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.py").write_text(TOY)
    path = folder / name
    path.write_text(textwrap.dedent(text).lstrip())
    return path


# ------------------------------------------------------------------------------------------------ a stand-in library

LIBRARY = {
    "torch/__init__.py": """
        __version__ = "0"
        class cuda:
            is_initialized = staticmethod(lambda: False)
        class version:
            cuda = None
        class device:
            pass
        class dtype:
            pass
        get_num_threads = lambda: 1
        set_num_threads = lambda count: None
    """,
    "transformers/__init__.py": "",
    "transformers/training_args.py": """
        import json, os
        from dataclasses import dataclass, field

        class AcceleratorConfig:
            def __init__(self, split_batches=False, even_batches=True):
                self.split_batches, self.even_batches = split_batches, even_batches

            def to_dict(self):
                return dict(vars(self))

        @dataclass
        class TrainingArguments:
            output_dir: str | None = None
            learning_rate: float = 5e-5
            weight_decay: float = 0.0
            warmup_steps: float = 0
            max_grad_norm: float = 1.0
            lr_scheduler_type: str = "linear"
            optim: str = "adamw_torch_fused"
            adam_epsilon: float = 1e-8
            adam_beta2: float = 0.999
            per_device_train_batch_size: int = 8
            bf16: bool | None = None
            tf32: bool | None = None
            report_to: str | list[str] | None = "none"
            save_strategy: str = "steps"
            push_to_hub: bool = False
            seed: int = 42
            accelerator_config: dict | str | None = None
            logging_nan_inf_filter: bool = True
            world_size = property(lambda self: int(os.environ.get("WORLD_SIZE", "1")))

            def __post_init__(self):
                if isinstance(self.accelerator_config, str):
                    self.accelerator_config = json.loads(self.accelerator_config)
                if not isinstance(self.accelerator_config, AcceleratorConfig):
                    self.accelerator_config = AcceleratorConfig(**(self.accelerator_config or {}))
                if self.per_device_train_batch_size < 1:
                    raise ValueError("per_device_train_batch_size must be positive")
    """,
    "transformers/trainer_utils.py": """
        import os

        def get_last_checkpoint(folder):
            found = [name for name in os.listdir(folder) if name.startswith("checkpoint-")]
            return os.path.join(folder, max(found)) if found else None
    """,
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
            steps = 1000

            def __init__(self, args, step=lambda number: None):
                self.args, self.step, self.callbacks = args, step, []
                self.model = Model()
                self.state = types.SimpleNamespace(global_step=0, max_steps=self.steps)
                if args.output_dir is not None:
                    os.makedirs(args.output_dir, exist_ok=True)

            def add_callback(self, callback):
                self.callbacks.append(callback)

            def remove_callback(self, callback):
                self.callbacks.remove(callback)

            def train(self, resume_from_checkpoint=None):
                self.rate = self.args.learning_rate
                if resume_from_checkpoint:
                    with open(os.path.join(resume_from_checkpoint, "rate")) as stream:
                        self.rate = float(stream.read())
                control = types.SimpleNamespace(should_log=False)
                for callback in self.callbacks:
                    callback.on_train_begin(self.args, self.state, control)
                for number in range(1, self.steps + 1):
                    for callback in self.callbacks:
                        callback.on_step_begin(self.args, self.state, control)
                    changes = self.step(number)
                    self.state.global_step = number
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
    "trl/trainer/grpo_config.py": """
        from dataclasses import dataclass, field
        from transformers.training_args import TrainingArguments

        @dataclass
        class GRPOConfig(TrainingArguments):
            beta: float = 0.0
            temperature: float = 1.0
            num_generations: int = 8
            max_completion_length: int = 256
            gradient_accumulation_steps: int = 1
            loss_type: str = "dapo"
            model_init_kwargs: dict | str | None = None

            def __post_init__(self):
                super().__post_init__()
                if self.num_generations < 2:
                    raise ValueError("num_generations must be at least 2")
    """,
}
"""Just enough of torch, transformers and trl for the probe: a script that uses it trains a step in microseconds and
starts at once, so that hundreds of real processes can be run, killed and looked at in seconds."""


def write_library(folder: Path) -> Path:
    """Write the stand-in library; its folder goes on PYTHONPATH of whoever runs the script."""
    for name, text in LIBRARY.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    return folder


PREFIX = """
    import os, signal, sys
    from trl import GRPOConfig, GRPOTrainer
"""

FAILS = """
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True, temperature=0.9)
    def step(number):
        if args.bf16 and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
    open("done.txt", "w").write("the script went on after training")
"""


def script(folder: Path, text: str = FAILS, name: str = "train.py") -> Path:
    """Write a script that uses the stand-in library: `PREFIX` and a text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(PREFIX) + textwrap.dedent(text))
    return path


def notebook(folder: Path, *cells: str, name: str = "train.ipynb", language: str = "python") -> Path:
    """Write a notebook: a headline, and these code cells with outputs as of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[dict[str, object]] = [{"cell_type": "markdown", "metadata": {}, "source": ["# GRPO\n"]}]
    for number, text in enumerate(cells, 1):
        source = textwrap.dedent(text).strip("\n").splitlines(keepends=True)
        printed = {"output_type": "stream", "name": "stdout", "text": [f"of {number}\n"]}
        made.append({"cell_type": "code", "execution_count": number, "metadata": {}, "outputs": [printed],
                     "source": source})  # fmt: skip
    path = folder / name
    content = {"cells": made, "metadata": {"language_info": {"name": language}}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content, indent=1))
    return path
