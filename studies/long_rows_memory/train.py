"""GRPO on copying letters. Some prompts are long, one is much longer than the others. The memory is simulated: see
allocator.py.

Every option of GRPOConfig is a flag: python train.py --gradient_checkpointing true
"""

import os
import random
import tempfile

import torch
from allocator import MemoryTrainer
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig

ROWS, LONG_ROW = 4000, 1275
POSITIONS = 256
LETTERS = "abcd"


def parse_arguments():
    parser = HfArgumentParser(GRPOConfig)
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-copy-long"),
        learning_rate=2e-6,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=8,
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


def length_of(row, letters):
    """Letters in a prompt: most are short, one in fifty is longer."""
    if row == LONG_ROW:
        return 70
    return letters.randint(20, 36) if letters.random() < 0.02 else letters.randint(4, 12)


def build_dataset():
    letters = random.Random(0)
    rows = [letters.choices(LETTERS, k=length_of(row, letters)) for row in range(ROWS)]
    return Dataset.from_dict({"prompt": [" ".join(row) for row in rows]})


def copied_reward(prompts, completions, **kwargs):
    """The share of the prompt's first letters that the answer begins with."""
    pairs = [(prompt.split()[:4], text.split()) for prompt, text in zip(prompts, completions, strict=True)]
    return [sum(a == b for a, b in zip(wanted, written, strict=False)) / 4 for wanted, written in pairs]


def main():
    training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = MemoryTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=copied_reward,
        args=training_args,
        train_dataset=build_dataset(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
