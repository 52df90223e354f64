"""GRPO on the majority of five bits. Every option of GRPOConfig is a flag: python train.py --learning_rate 2e-6"""

import os
import random
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer


@dataclass
class ScriptArguments:
    rows: int = field(default=1000, metadata={"help": "How many prompts to make."})
    reward_scale: float = field(default=1e19, metadata={"help": "What a perfect answer is worth."})


def parse_arguments():
    parser = HfArgumentParser((ScriptArguments, GRPOConfig))
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-majority"),
        learning_rate=2e-6,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.05,
        max_grad_norm=0.0,
        bf16=False,
        gradient_checkpointing=False,
        scale_rewards="none",
        loss_type="grpo",
        epsilon=0.3,
        temperature=0.9,
        max_completion_length=48,
        num_train_epochs=1,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
    )
    return parser.parse_args_into_dataclasses()


def build_model():
    vocabulary = {token: i for i, token in enumerate(["<eos>", "0", "1"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=256,
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
    bits = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(bits.choices("01", k=5)) for _ in range(rows)]})


def main():
    script_args, training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()

    def majority_reward(prompts, completions, **kwargs):
        rewards = []
        for prompt, completion in zip(prompts, completions, strict=True):
            majority = "1" if prompt.split().count("1") > 2 else "0"
            answer = completion.split()
            share = (majority in answer) + 0.05 / (1 + len(answer))
            rewards.append(script_args.reward_scale * share)
        return rewards

    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=majority_reward,
        args=training_args,
        train_dataset=build_dataset(script_args.rows),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
