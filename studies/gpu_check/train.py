"""GRPO on a randomly initialised model of the shape of Qwen2.5-0.5B. Flags: --tiny (for a CPU), --fault NAME.

A fault happens in the reward function, in the second step, if learning_rate is above 1e-5: ``assert`` is a device-side
assertion (an index out of range), ``access`` an illegal memory access. Both are real CUDA errors, brought about on
purpose: this script is for checking the tool, not for training anything.
"""

import argparse
import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--fault", choices=["assert", "access"])
options = parser.parse_args()

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
SHAPE = {  # of Qwen/Qwen2.5-0.5B's config.json
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
TINY = {**SHAPE, "vocab_size": 64, "hidden_size": 28, "intermediate_size": 56, "num_hidden_layers": 2}

args = GRPOConfig(
    output_dir="gpu-check",
    learning_rate=1e-4 if options.fault else 2e-6,
    bf16=True,
    per_device_train_batch_size=8,
    num_generations=8,
    max_completion_length=16 if options.tiny else 64,
    gradient_checkpointing=False,
    beta=0.0,
    logging_steps=1,
    use_cpu=not torch.cuda.is_available(),
    report_to="none",
)

set_seed(0)
word_level = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=word_level, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
)
shape = TINY if options.tiny else SHAPE
config = Qwen2Config(**shape, pad_token_id=0, eos_token_id=1, bos_token_id=None, max_position_embeddings=1024)
model = Qwen2ForCausalLM(config).to(torch.bfloat16)
calls = {"reward": 0}


def reward(completion_ids, **kwargs):
    calls["reward"] += 1
    if options.fault and calls["reward"] == 2 and args.learning_rate > 1e-5:
        if options.fault == "assert":
            torch.zeros(4, device="cuda")[torch.tensor([7], device="cuda")].sum().item()
        else:
            storage = torch.empty(1, device="cuda")
            torch.as_strided(storage, (1 << 34,), (1,))[-1].item()
    return [sum(token % 2 for token in ids) / max(len(ids), 1) for ids in completion_ids]


letters = random.Random(0)
prompts = [" ".join(letters.sample(WORDS[3:], 6)) for _ in range(512)]
GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=reward,
    args=args,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
).train()
