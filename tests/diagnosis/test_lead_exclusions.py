# ruff: noqa: E501  (a line of a log is one line)
"""Logs in which two settings exclude each other, or one rank, cache or library is behind another: what must lead."""

from __future__ import annotations

import pytest

from tests.diagnosis.leading import headline, led
from tests.diagnosis.test_claims_audit_a import ME, SITE, TRAINER, tb

KL = f"{SITE}/trl/trainer/ppo_trainer.py:1200: UserWarning: KL divergence is starting to become negative: -3.10 - this might be a precursor for failed training.\n  warnings.warn(\n"
RATIO = f"{SITE}/trl/trainer/ppo_trainer.py:1301: UserWarning: The average ratio of batch (13.80) exceeds threshold 10.00. Skipping batch.\n  warnings.warn(\n  2%|▏         | 9/400 [04:39<3:22:01, 31.00s/it]\n"
NO_INPUT = f"{SITE}/torch/utils/checkpoint.py:90: UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n"
STILL = "{'loss': 0.70, 'grad_norm': 0.0, 'learning_rate': 4e-06, 'rewards/margins': 0.0, 'epoch': 0.1}\n" * 6
EQUAL = "{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 1e-06, 'reward': 1.0, 'reward_std': 0.0, 'completion_length': 300.0, 'kl': 0.0}\n"
NAN = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-06, 'reward': 0.7, 'reward_std': 0.4, 'kl': 0.0}\n" * 6
WOKE = "(LLMRayActor pid=71) INFO 03-01 11:04:29 executor_base.py:219] It took 0.2 seconds to wake up.\n"
ILLEGAL = tb(
    "/w/openrlhf/trainer/ray/vllm_engine.py add_requests",
    f"{SITE}/vllm/engine/llm_engine.py step",
    error="RuntimeError: CUDA error: an illegal memory access was encountered",
)
MIXED = "RuntimeError: aten.embedding.default: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before calling distributed operators!"
NO_PROMPT = tb(
    f"{SITE}/datasets/arrow_dataset.py apply_function",
    f'{SITE}/trl/trainer/dpo_trainer.py _tokenize | prompt = features["prompt"]',
    error="KeyError: 'prompt'",
)
ZIP = "ValueError: zip() argument 2 is longer than argument 1"
INSIDE = (
    "[2025-08-04 09:00:41,010] [INFO] [config.py:735:__init__] Config mesh_device None world_size = 2\n"
    "^CW0804 09:41:02.551000 44 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGINT death signal, shutting down workers\n"
)  # fmt: skip


def watchdog(rank: int, number: int) -> str:
    """A rank whose collective ran out of time."""
    head = f"[rank{rank}]:[E819 14:52:1{rank}.102211 ProcessGroupNCCL.cpp:683] [Rank {rank}]"
    return f"{head} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=_ALLGATHER_BASE, NumelIn=64, NumelOut=256, Timeout(ms)=1800000) ran for 1800041 milliseconds before timing out.\n"


APART = watchdog(1, 14) + watchdog(2, 14) + watchdog(0, 3)
SYNC = "INFO:trl.async_grpo: Weight sync: starting (step 0)\n"

TOLD = {
    "a function beside the loss on answers": (
        "SFTTrainer got a formatting function together with completion_only_loss=True",
        "Trainable parameters: 90112\nError in Job: A formatting function was provided while `completion_only_loss=True`, which is incompatible. Using a formatter converts the dataset to a language modeling type.\n",
    ),
    "all weights and an engine": (
        "full_finetuning=False: an adapter is trained",
        tb(ME, f"{SITE}/unsloth/models/loader.py from_pretrained", error="NotImplementedError: Unsloth: `fast_inference = True` does not yet support `full_finetuning = True`"),
    ),
    "environments": (
        "the last, smaller batch",
        tb(ME, f"{SITE}/trl/trainer/grpo_trainer.py _generate | for prompt, environment in zip(prompts, self.environments, inputs, strict=True):", error=ZIP),
    ),
    "no value model": (
        "PPO got None in place of a model",
        tb(ME, f"{SITE}/trl/trainer/ppo_trainer.py __init__", f"{SITE}/trl/trainer/utils.py disable_dropout_in_model | for module in model.modules():", error="AttributeError: 'NoneType' object has no attribute 'modules'"),
    ),
    "an image that the engine lacks": (
        "1. without this cache: mm_processor_cache_gb=0",
        tb(f"{SITE}/vllm/v1/engine/core.py preprocess_add_request", f"{SITE}/vllm/multimodal/cache.py get_and_update_item", error="AssertionError: Expected a cached item for mm_hash='77ab'") + "slurmstepd: error: *** JOB 81 ON g1 CANCELLED AT 2026-08-28T12:00:11 DUE TO TIME LIMIT ***\n",
    ),
    "a count in bfloat16": (
        "mixed precision of FSDP with a transformers of 4.46",
        tb(ME, TRAINER, f"{SITE}/transformers/models/llama/modeling_llama.py forward | cache_position = torch.arange(", error="RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16"),
    ),
    "generate on shards": (
        "1. a newer transformers",
        tb(ME, TRAINER, f"{SITE}/trl/trainer/grpo_trainer.py _generate_single_turn", f"{SITE}/peft/peft_model.py generate", f"{SITE}/torch/nn/functional.py embedding", error=MIXED),
    ),
    "a load that only one rank does": (
        "load the model outside of the block",
        INSIDE + tb("/w/t.py <module> | with accelerator.main_process_first():", f"{SITE}/accelerate/state.py main_process_first", error="KeyboardInterrupt"),
    ),
    "labels of an older trainer": (
        "DPO code reads chosen_labels",
        tb("/w/dpo.py <module>", TRAINER, "/w/dpo.py concatenated_forward | n = batch[\"chosen_labels\"].shape[0]", error="KeyError: 'chosen_labels'"),
    ),
    "ms-swift and a newer TRL": ("which ms-swift 2.3.0 does not hand to it", "[INFO:swift] swift.__version__: 2.3.0\n" + NO_PROMPT),
    "a woken engine": ("after it had woken up from its sleep", WOKE + ILLEGAL),
    "weights of the text part": (
        "vLLM runs Qwen3_5ForConditionalGeneration for text and images",
        tb(ME, TRAINER, f"{SITE}/trl/generation/vllm_generation.py _load | llm_model.load_weights([(name, param)])", error="ValueError: There is no module or parameter named 'model' in Qwen3_5ForConditionalGeneration. The available parameters are: {'visual.a', 'language_model.lm_head.weight'}"),
    ),
    "rank 0 sends": ("Rank 0, which sends the weights to the engine, was behind", SYNC + APART),
    "a reward that is missing": ("scales each reward for itself (gdpo)", "[INFO:swift] args.scale_rewards: gdpo\n" + NAN),
    "nothing through the checkpoints": ("says that no gradient comes through it", NO_INPUT + STILL),
    "solutions that cannot be read": ("the reward cannot read the solutions", ("Failed to parse gold solution:  180\n" + EQUAL) * 6),
    "skipped batches": ("the policy has gone too far", (KL + RATIO) * 3),
    "a driver that ran twice": (
        "A worker had died before, and Ray ran the driver a second time",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n" + tb("/w/verl/trainer/main_ppo.py main_task", error="ValueError: Failed to create placement group: global_poolverl_group_2:0 already exists"),
    ),
    "an early trainer": (
        "0.8 or older: it may not have the setting at all: pip install -U trl",
        tb(ME, error="TypeError: DPOTrainer.__init__() got an unexpected keyword argument 'loss_type'"),
    ),
}  # fmt: skip

OTHER = {
    "two lists of one's own": ("environments", tb(ME, TRAINER, "/w/data.py pair | for a, b in zip(left, right, strict=True):", error=ZIP)),
    "None outside of PPO": ("PPO got None", tb(ME, "/w/net.py count | for m in net.modules():", error="AttributeError: 'NoneType' object has no attribute 'modules'")),
    "shards in the forward pass": ("when generate asked", tb(ME, TRAINER, f"{SITE}/torch/nn/functional.py embedding", error=MIXED)),
    "a range of one's own": ("4.46", tb("/w/model.py forward | torch.arange(n)", error="RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16")),
    "an engine that never slept": ("woken up", ILLEGAL),
    "another ms-swift": ("ms-swift", "[INFO:swift] swift.__version__: 3.1.0\n" + NO_PROMPT),
    "another rank is behind": ("Rank 0, which sends", SYNC + watchdog(0, 14) + watchdog(2, 14) + watchdog(1, 3)),
    "no weights are sent": ("which sends the weights", APART),
    "gradients that are there": ("no gradient comes through", NO_INPUT + STILL.replace("'grad_norm': 0.0", "'grad_norm': 0.4")),
    "KL alone": ("skips batches", KL * 3),
    "a load that the engine does by itself": (
        "got the weights of a text model",
        tb(f"{SITE}/vllm/model_executor/models/utils.py _load_module", error="ValueError: There is no module or parameter named 'lm_head' in Gemma3ForConditionalGeneration"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    assert words in led(log)


@pytest.mark.parametrize(("words", "log"), OTHER.values(), ids=OTHER.keys())
def test_what_does_not_lead(words: str, log: str) -> None:
    assert words not in headline(log)
