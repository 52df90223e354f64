"""Model, tokenizer, data and reward, all built in code."""

import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

torch.set_num_threads(1)
WORDS = ["<eos>", *"0123456789+="]


def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<eos>",
        eos_token="<eos>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],  # TRL 0.14 hands all that it gets to generate
    )


def config():
    return Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=None,
    )


def model():
    set_seed(0)
    return Qwen2ForCausalLM(config())


def saved_model(folder):
    """A folder that `from_pretrained` loads."""
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def data(rows=64):
    numbers = random.Random(0)
    return Dataset.from_dict({"prompt": [f"{numbers.randint(0, 9)} + {numbers.randint(0, 9)} =" for _ in range(rows)]})


def reward(completions, **kwargs):
    return [sum(word in "02468" for word in text.split()) / 8 for text in completions]


def trainer(args, **changes):
    from trl import GRPOTrainer

    parts = {
        "model": None,
        "processing_class": tokenizer(),
        "reward_funcs": reward,
        "args": args,
        "train_dataset": None,
    }
    parts.update(changes)
    parts["model"] = parts["model"] if parts["model"] is not None else model()
    parts["train_dataset"] = parts["train_dataset"] if parts["train_dataset"] is not None else data()
    return GRPOTrainer(**parts)


SETTINGS = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 8,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
}
