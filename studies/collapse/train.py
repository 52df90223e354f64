"""GRPO on collecting the right letters, concisely.

The options come from config.yaml, or from --config FILE, and from flags.
"""

import os
import random
import sys
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer, TrlParser

LETTERS = "abcdef"


@dataclass
class ScriptArguments:
    rows: int = field(default=1000, metadata={"help": "How many prompts to make."})


def build_model():
    vocabulary = {token: i for i, token in enumerate(["<eos>", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        initializer_range=0.1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), tokenizer


def build_dataset(rows):
    letters = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(letters.sample(LETTERS, 4)) for _ in range(rows)]})


def collected_reward(prompts, completions, **kwargs):
    """The share of the prompt's letters that are in the answer."""
    pairs = [(set(prompt.split()), set(text.split())) for prompt, text in zip(prompts, completions, strict=True)]
    return [len(wanted & written) / len(wanted) for wanted, written in pairs]


def conciseness_reward(completions, **kwargs):
    return [-0.25 * len(completion.split()) for completion in completions]


def main(script_args, training_args):
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[collected_reward, conciseness_reward],
        args=training_args,
        train_dataset=build_dataset(script_args.rows),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--config" not in arguments:
        arguments = ["--config", os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.yaml"), *arguments]
    if "--output_dir" not in arguments:
        arguments += ["--output_dir", os.path.join(tempfile.gettempdir(), "grpo-letters")]
    main(*TrlParser((ScriptArguments, GRPOConfig)).parse_args_and_config(arguments))
