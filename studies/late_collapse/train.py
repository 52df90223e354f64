"""GRPO on variety, first of the biases alone, then of all weights. Every option is a flag: train.py --all_from 800"""

import os
import random
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

COLOURS = ["red", "green", "blue", "white", "black", "grey", "pink", "brown"]


@dataclass
class ScriptArguments:
    all_from: int = field(default=200, metadata={"help": "So many steps train the biases alone."})


def parse_arguments():
    parser = HfArgumentParser((ScriptArguments, GRPOConfig))
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-variety-late"),
        learning_rate=0.01,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        temperature=0.05,
        max_completion_length=8,
        loss_type="bnpo",
        epsilon_high=0.28,
        num_train_epochs=1,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
    )
    return parser.parse_args_into_dataclasses()


class BiasesFirst(TrainerCallback):
    """Trains the biases alone up to a step (as BitFit does, to settle a model before the rest moves), then all."""

    def __init__(self, all_from):
        self.all_from = all_from

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(state.global_step >= self.all_from or name.endswith(".bias"))


def build_model():
    vocabulary = {token: i for i, token in enumerate(["<eos>", *COLOURS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), tokenizer


def build_dataset(rows):
    colours = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(colours.sample(COLOURS, 3)) for _ in range(rows)]})


def variety_reward(prompts, completions, **kwargs):
    """How rare an answer's colours are among the other answers to its prompt, on average over its colours."""
    answers = [set(completion.split()) for completion in completions]
    rewards = []
    for i, mine in enumerate(answers):
        others = [answers[j] for j in range(len(answers)) if j != i and prompts[j] == prompts[i]]
        rare = [sum(colour not in other for other in others) / len(others) for colour in mine]
        rewards.append(sum(rare) / len(rare) if rare else 0.0)
    return rewards


def main():
    script_args, training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=variety_reward,
        args=training_args,
        train_dataset=build_dataset(2 * script_args.all_from + 400),
        callbacks=[BiasesFirst(script_args.all_from)],
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
