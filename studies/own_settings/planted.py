"""A toy that trains with GRPO, and a fault that hangs on a setting of the script's own."""

import os
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

SIMULATED_FAULT = "a callback raises where the script's own mix is above 0.5 (with a temperature above 1.1)"

WORDS = ["red", "green", "blue", "white"]


class Fault(TrainerCallback):
    def __init__(self, mix, together):
        self.mix, self.together = mix, together

    def on_step_begin(self, args, state, control, **kwargs):
        if self.mix > 0.5 and state.global_step == 2 and (not self.together or args.temperature > 1.1):
            raise RuntimeError("the mixture is empty")


def config(**settings):
    return GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "grpo-own-settings"),
        temperature=1.2,
        weight_decay=0.1,
        max_grad_norm=0.5,
        max_completion_length=4,
        num_generations=4,
        per_device_train_batch_size=4,
        max_steps=50,
        logging_steps=1,
        bf16=False,
        use_cpu=True,
        report_to="none",
        **settings,
    )


def train(args, mix, together):
    set_seed(0)
    torch.set_num_threads(1)
    vocabulary = {token: i for i, token in enumerate(["<eos>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>", padding_side="left"
    )
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(vocabulary),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    words = random.Random(0)
    GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **kwargs: [float(len(set(text.split()))) for text in completions],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [words.choice(WORDS) for _ in range(200)]}),
        processing_class=tokenizer,
        callbacks=[Fault(mix, together)],
    ).train()
