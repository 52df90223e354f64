"""GRPO on finding the largest letter. python train.py --max_prompt_length 512 --learning_rate 2e-6"""

import os
import random
import tempfile
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer, TrlParser

LETTERS = "abcdef"
POSITIONS = 512


@dataclass
class ScriptArguments:
    max_prompt_length: int = field(default=128, metadata={"help": "Longer prompts are cut to so many tokens."})


def parse_arguments():
    parser = TrlParser((ScriptArguments, GRPOConfig))
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-largest"),
        learning_rate=2e-6,
        lr_scheduler_type="cosine",
        warmup_steps=3,
        adam_beta2=0.98,
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=4,
        num_generations=4,
        temperature=0.9,
        max_completion_length=32,
        loss_type="grpo",
        logging_steps=1,
        use_cpu=True,
        report_to="none",
    )
    return parser.parse_args_and_config()


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


def build_dataset(longest):
    """Prompts of 5 to 60 letters, but for one in 20, which has 700; none is longer than `longest`."""
    letters = random.Random(0)
    lengths = [700 if row % 20 == 7 else letters.randint(5, 60) for row in range(400)]
    return Dataset.from_dict({"prompt": [" ".join(letters.choices(LETTERS, k=min(n, longest))) for n in lengths]})


def largest_reward(prompts, completions, **kwargs):
    """Whether the answer begins with the prompt's last letter of the alphabet."""
    pairs = zip(prompts, completions, strict=True)
    return [float(text.split()[:1] == [max(prompt.split())]) - 0.01 * len(text.split()) for prompt, text in pairs]


def main():
    script_args, training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=largest_reward,
        args=training_args,
        train_dataset=build_dataset(script_args.max_prompt_length),
    )
    trainer.train()


if __name__ == "__main__":
    main()
