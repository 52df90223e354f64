"""GRPO on sorting letters, in half precision to save memory."""

import os
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdefgh"


def build_tokenizer():
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", ">", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def save_pretrained_model(folder, tokenizer):
    """Stands in for a model from the hub, with fp32 weights: toy-sized and untrained."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
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


def build_dataset(rows=800):
    shuffled = random.Random(0)
    return Dataset.from_dict({"prompt": [" ".join(shuffled.sample(LETTERS, 4)) + " >" for _ in range(rows)]})


def sorted_reward(completions, **kwargs):
    """The share of neighbours that are in order."""
    rewards = []
    for completion in completions:
        letters = completion.split()
        pairs = list(zip(letters, letters[1:], strict=False))
        rewards.append(sum(first < second for first, second in pairs) / len(pairs) if pairs else 0.0)
    return rewards


def from_prompt_reward(prompts, completions, **kwargs):
    """The share of the prompt's letters that come back, less what comes too often."""
    rewards = []
    for prompt, completion in zip(prompts, completions, strict=True):
        wanted, got = prompt.split()[:-1], completion.split()
        rewards.append(sum(letter in got for letter in wanted) / len(wanted) - 0.02 * len(got))
    return rewards


def main():
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    tokenizer = build_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained_model(folder, tokenizer)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16)

    training_args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-sort-letters"),
        learning_rate=2e-6,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=5,
        optim="adamw_torch",
        adam_beta2=0.99,
        weight_decay=0.01,
        max_grad_norm=0.5,
        bf16=False,
        gradient_checkpointing=False,
        temperature=0.9,
        max_completion_length=64,
        loss_type="dr_grpo",
        epsilon_high=0.28,
        num_train_epochs=1,
        logging_steps=1,
        use_cpu=True,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[sorted_reward, from_prompt_reward],
        args=training_args,
        train_dataset=build_dataset(),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
