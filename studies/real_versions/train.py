"""GRPO on small sums, with a callback that was written for transformers 4."""

import os
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

WORDS = [*map(str, range(19)), "+", "="]


def build_model():
    vocabulary = {token: i for i, token in enumerate(["<eos>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
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


def build_dataset(rows=1000):
    numbers = random.Random(0)
    pairs = [(numbers.randint(0, 9), numbers.randint(0, 9)) for _ in range(rows)]
    return Dataset.from_dict({"prompt": [f"{a} + {b} =" for a, b in pairs], "answer": [str(a + b) for a, b in pairs]})


def correct_reward(completions, answer, **kwargs):
    """Whether the sum is among the words, the more the fewer there are."""
    words = [completion.split() for completion in completions]
    return [float(right in said) / max(1, len(said)) for said, right in zip(words, answer, strict=True)]


class ShowVocabulary(TrainerCallback):
    """Prints now and then what the model writes with, as a recipe of 2025 does."""

    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 2 == 0:
            tokenizer = self.trainer.tokenizer
            print(tokenizer.decode(range(5)))


def main():
    set_seed(0)
    torch.set_num_threads(1)  # more only get in each other's way with a model this small
    model, tokenizer = build_model()
    training_args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-sums"),
        learning_rate=1e-4,
        weight_decay=0.01,
        max_grad_norm=0.2,
        bf16=False,
        temperature=0.9,
        num_generations=4,
        max_completion_length=8,
        logging_steps=1,
        max_steps=200,
        use_cpu=True,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=correct_reward,
        args=training_args,
        train_dataset=build_dataset(),
        callbacks=[shown := ShowVocabulary()],
    )
    shown.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
