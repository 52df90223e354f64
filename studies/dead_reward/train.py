"""GRPO on sorting letters. Every option of GRPOConfig is a flag: python train.py --learning_rate 2e-6"""

import os
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdef"


def parse_arguments():
    parser = HfArgumentParser(GRPOConfig)
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-sorting"),
        learning_rate=3e-5,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        adam_beta2=0.95,
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        num_generations=4,
        temperature=0.9,
        max_completion_length=24,
        loss_type="grpo",
        num_train_epochs=1,
        logging_steps=1,
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
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), tokenizer


def build_dataset():
    letters = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(letters.sample(LETTERS, 4)) for _ in range(400)]})


def sorted_reward(prompts, completions, **kwargs):
    """The share of neighbouring letters of an answer that are in order."""
    ordered = torch.zeros(len(completions))
    for number, text in enumerate(completions):
        letters = text.split()
        pairs = list(zip(letters, letters[1:], strict=False))
        ordered[number] = sum(a <= b for a, b in pairs) / max(len(pairs), 1)
    return ordered.mean().expand(len(completions)).tolist()


def main():
    training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=sorted_reward,
        args=training_args,
        train_dataset=build_dataset(),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
