"""GRPO on variety, with the weights in half precision to save memory. Every option is a flag."""

import os
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

COLOURS = ["red", "green", "blue", "white", "black", "grey", "pink", "brown"]


def parse_arguments():
    parser = HfArgumentParser(GRPOConfig)
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-variety-fp16"),
        learning_rate=2e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=4000,
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        max_completion_length=8,
        loss_type="bnpo",
        epsilon_high=0.28,
        num_train_epochs=1,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
    )
    (training_args,) = parser.parse_args_into_dataclasses()
    return training_args


def build_tokenizer():
    vocabulary = {token: i for i, token in enumerate(["<eos>", *COLOURS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )


def save_pretrained_model(folder, tokenizer):
    """Stands in for a model from the hub, with fp32 weights: toy-sized and untrained."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
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
    Qwen2ForCausalLM(config).save_pretrained(folder)


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
    training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    tokenizer = build_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained_model(folder, tokenizer)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=variety_reward,
        args=training_args,
        train_dataset=build_dataset(5000),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
