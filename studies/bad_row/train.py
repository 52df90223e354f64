"""GRPO on copying letters, with a model that knows 128 positions. One prompt of 4000 is much longer than the others.

Every option of GRPOConfig is a flag: python train.py --learning_rate 2e-6
"""

import os
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

ROWS, LONG_ROW = 4000, 1275
POSITIONS = 128
LETTERS = "abcd"


def parse_arguments():
    parser = HfArgumentParser(GRPOConfig)
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-copy"),
        learning_rate=2e-6,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=32,
        pad_to_multiple_of=64,
        adam_beta2=0.99,
        weight_decay=0.01,
        max_grad_norm=0.5,
        warmup_steps=10,
        lr_scheduler_type="cosine",
        temperature=0.9,
        loss_type="grpo",
        seed=7,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=10,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
    )
    return parser.parse_args_into_dataclasses()[0]


def build_model():
    vocabulary = {token: number for number, token in enumerate(["<eos>", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=POSITIONS,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return GPT2LMHeadModel(config), tokenizer


def build_dataset():
    letters = random.Random(0)
    lengths = [70 if row == LONG_ROW else letters.randint(4, 12) for row in range(ROWS)]
    return Dataset.from_dict({"prompt": [" ".join(letters.choices(LETTERS, k=length)) for length in lengths]})


def copied_reward(prompts, completions, **kwargs):
    """The share of the prompt's first letters that the answer begins with."""
    pairs = [(prompt.split()[:4], text.split()) for prompt, text in zip(prompts, completions, strict=True)]
    return [sum(a == b for a, b in zip(wanted, written, strict=False)) / 4 for wanted, written in pairs]


def main():
    training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=copied_reward,
        args=training_args,
        train_dataset=build_dataset(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
