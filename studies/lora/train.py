"""GRPO of an adapter on repeating the first letter. Every option of GRPOConfig is a flag."""

import os
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdef"


def parse_arguments():
    parser = HfArgumentParser(GRPOConfig)
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-adapter"),
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        adam_beta2=0.98,
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
        n_positions=512,
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
    return Dataset.from_dict({"prompt": [" ".join(letters.choices(LETTERS, k=5)) for _ in range(400)]})


def repeated_reward(prompts, completions, **kwargs):
    """The share of the answer that is the prompt's first letter."""
    pairs = [(prompt.split()[0], text.split()) for prompt, text in zip(prompts, completions, strict=True)]
    return [written.count(first) / max(len(written), 1) for first, written in pairs]


def main():
    training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=repeated_reward,
        args=training_args,
        train_dataset=build_dataset(),
        peft_config=LoraConfig(
            r=16,
            lora_alpha=32,
            lora_dropout=0.05,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
            use_rslora=True,
            task_type="CAUSAL_LM",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
