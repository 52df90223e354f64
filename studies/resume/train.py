"""GRPO on counting letters, from the last checkpoint if there is one.

python train.py --optim adamw_torch --max_steps 6 --save_steps 6     # leaves a checkpoint
python train.py                                                       # goes on from it
"""

import os
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcd"


def parse_arguments():
    parser = HfArgumentParser(GRPOConfig)
    parser.set_defaults(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-counting"),
        learning_rate=1e-5,
        lr_scheduler_type="cosine",
        warmup_steps=3,
        optim="adafactor",
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        num_generations=4,
        temperature=0.9,
        max_completion_length=24,
        loss_type="grpo",
        save_steps=50,
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
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config), tokenizer


def build_dataset():
    letters = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(letters.choices(LETTERS, k=6)) for _ in range(400)]})


def counted_reward(prompts, completions, **kwargs):
    """Minus how far the number of letters in the answer is from those of the first kind in the prompt."""
    pairs = zip(prompts, completions, strict=True)
    return [-float(abs(len(text.split()) - prompt.split().count("a"))) for prompt, text in pairs]


def main():
    training_args = parse_arguments()
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=counted_reward,
        args=training_args,
        train_dataset=build_dataset(),
    )
    last = get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
