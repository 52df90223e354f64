"""GRPO in several processes; the first gives the weights to an engine after each step.

torchrun --nproc_per_node 2 train.py --offload_params true
"""

import os
import random
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import distributed
from transformers import (
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdef"


@dataclass
class ScriptArguments:
    offload_params: bool = field(default=False, metadata={"help": "Keep the weights in host memory between steps."})
    sync_steps: int = field(default=4, metadata={"help": "Give the weights to the engine every so many steps."})


def parse_arguments():
    parser = HfArgumentParser((ScriptArguments, GRPOConfig))
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-sync"),
        learning_rate=2e-6,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        num_generations=4,
        temperature=0.9,
        max_completion_length=24,
        loss_type="grpo",
        logging_steps=1,
        use_cpu=True,
        report_to="none",
    )
    return parser.parse_args_into_dataclasses()


class WeightSync(TrainerCallback):
    """Gathers the weights for the engine of the first process."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.host, self.group = {}, None

    def on_train_begin(self, args, state, control, **kwargs):
        if distributed.is_initialized():
            self.group = distributed.new_group()  # apart from that of the gradients

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.arguments.offload_params:
            self.host = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
        if state.global_step % self.arguments.sync_steps or self.group is None:
            return
        for name, weight in model.named_parameters():
            if self.arguments.offload_params and distributed.get_rank() > 0:
                continue  # "what is in host memory need not be gathered"
            total = self.host.get(name, weight).detach().clone()
            distributed.all_reduce(total, group=self.group)


def build_model():
    vocabulary = {token: number for number, token in enumerate(["<eos>", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), tokenizer


def build_dataset():
    letters = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(letters.choices(LETTERS, k=5)) for _ in range(400)]})


def vowel_reward(completions, **kwargs):
    return [sum(text.count(vowel) for vowel in "ae") / max(len(text.split()), 1) for text in completions]


def main():
    script_args, training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=vowel_reward,
        args=training_args,
        train_dataset=build_dataset(),
        callbacks=[WeightSync(script_args)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
