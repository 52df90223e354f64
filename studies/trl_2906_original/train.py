"""GRPO with the recipe of huggingface/trl#2906 as it was reported, for the TRL that it was reported with."""

import os
import random
import tempfile

import h20_simulation  # noqa: F401  SIMULATION: makes this machine's bf16 matrix products fail as an H20's did
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

output_dir = os.path.join(tempfile.gettempdir(), "Qwen2.5-0.5B-GRPO")

training_args = GRPOConfig(
    output_dir=output_dir,
    learning_rate=5e-6,
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,
    warmup_ratio=0.1,
    lr_scheduler_type="cosine",
    logging_steps=1,
    bf16=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
    num_generations=16,
    max_prompt_length=256,
    max_completion_length=200,
    num_train_epochs=1,
    save_steps=100,
    max_grad_norm=0.1,
    log_on_each_node=False,
    use_vllm=False,
    report_to="tensorboard",
)

# A toy in place of Qwen2.5-0.5B-Instruct, so that nothing is downloaded.
set_seed(0)
torch.set_num_threads(1)  # more only get in each other's way with a model this small
words = ["<pad>", "<eos>", "<unk>", "+", "=", *"0123456789"]
word_level = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
word_level.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=word_level,
    pad_token="<pad>",
    eos_token="<eos>",
    unk_token="<unk>",
    padding_side="left",
    model_input_names=["input_ids", "attention_mask"],  # this TRL hands all that it gets to generate
)
model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
)

numbers = random.Random(0)
pairs = [(numbers.randint(0, 9), numbers.randint(0, 9)) for _ in range(512)]
dataset = Dataset.from_dict({"prompt": [f"{a} + {b} =" for a, b in pairs], "answer": [str(a + b) for a, b in pairs]})


def correctness_reward(completions, answer, **kwargs):
    return [2.0 if text.replace(" ", "") == answer[place] else 0.0 for place, text in enumerate(completions)]


def digits_reward(completions, **kwargs):
    parts = [completion.split() for completion in completions]
    return [sum(word.isdigit() for word in part) / max(len(part), 1) for part in parts]


trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[correctness_reward, digits_reward],
    args=training_args,
    train_dataset=dataset,
)
trainer.train()
trainer.save_model(training_args.output_dir)
