"""GRPO on long answers. The engine that writes the completions is simulated, and so is its fault: see engine.py.

Every option of GRPOConfig is a flag: python train.py --vllm_enable_sleep_mode false
"""

import os
import random
import tempfile

import torch
from datasets import Dataset
from engine import EngineTrainer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig

LETTERS = "abcdefgh"


def parse_arguments():
    parser = HfArgumentParser(GRPOConfig)
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-long-answers"),
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        adam_beta2=0.98,
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        vllm_enable_sleep_mode=True,
        vllm_gpu_memory_utilization=0.5,
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
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), tokenizer


def build_dataset():
    letters = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(letters.choices(LETTERS, k=5)) for _ in range(400)]})


def long_reward(completions, **kwargs):
    return [min(len(text.split()), 20) / 20 for text in completions]


def main():
    training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = EngineTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=long_reward,
        args=training_args,
        train_dataset=build_dataset(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
