# ruff: noqa: E501  (a line of a log is one line)
"""Logs that say in a line of theirs why: what leads, and what must not where that line is another's."""

from __future__ import annotations

import pytest

from tests.diagnosis.leading import headline, led
from tests.diagnosis.test_claims_audit_a import ME, SITE, TRAINER, tb

WATCHDOG = "".join(
    f"[rank{rank}]:[E ProcessGroupNCCL.cpp:563] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800092 milliseconds before timing out.\n"
    for rank, number, kind in ((1, 190, "ALLREDUCE"), (2, 190, "ALLREDUCE"))
)
APART = WATCHDOG.replace("SeqNum=190, OpType=ALLREDUCE", "SeqNum=190, OpType=_ALLGATHER_BASE", 1).replace(
    "SeqNum=190, OpType=ALLREDUCE", "SeqNum=198, OpType=_REDUCE_SCATTER_BASE"
)
SHARDED = "[2026-01-03 12:10:02,118] [INFO] [partition_parameters.py:345:__exit__] finished initializing model - num_params = 459, num_elems = 14.32B\n"
LOOKUP = (
    "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [204,0,0], thread: [118,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    + tb(ME, f"{SITE}/torch/nn/functional.py embedding", error="RuntimeError: CUDA error: device-side assert triggered")
)
NAN_PAIRS = (
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-07, 'rewards/chosen': nan, 'rewards/accuracies': 0.0, 'logps/rejected': nan, 'logps/chosen': nan, 'epoch': 0.1}\n"
    * 6
)
PAIRS = (
    "{'loss': 0.6, 'grad_norm': 2.1, 'learning_rate': 2e-07, 'rewards/chosen': 0.1, 'rewards/accuracies': 0.6, 'logps/rejected': -80.0, 'logps/chosen': -70.0, 'epoch': 0.1}\n"
    * 6
)
ZEROS = "{'loss': 0.0, 'learning_rate': 1e-05, 'epoch': 0.02}\n" * 8
UNMARKED = "UserWarning: Could not find response key `<|end|>Bot:` in the following instance: User: hi<|end|>Bot: hello This instance will be ignored in loss calculation. Note, if this happens often, consider increasing the `max_seq_length`.\n"
SURE = "".join(
    f'{{"current_steps": {at}, "total_steps": 300, "loss": 0.0, "accuracy": 1.0, "lr": 2e-06, "epoch": 0.{at}}}\n'
    for at in range(10, 90, 5)
)
UNBALANCED = "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes."
PRODUCT = "AssertionError: world size (8) is not divisible by total_model_size (total_model_size=16)"
ERRORED = "10:01:43 WARNING [verifiers] Rollout 3 errored: ToolError('404')\n10:02:40 SUCCESS Step 0 | Time: 28.11s | Reward: 0.0000 | Errored: {}/64 | Throughput: 0.0 tokens/s\n"
EMPTY = tb(
    "/w/prime_rl/trainer/rl/train.py main",
    "/w/prime_rl/trainer/rl/packer.py pack",
    error="ValueError: max() arg is an empty sequence",
)
LOOKS = "2026-01-02T00:02:00    INFO [trainer] Waiting for training batch to arrive (looking in /mnt/o/run_*/rollouts/step_0)\n"
WROTE = "2026-01-02T00:02:05    INFO [orchestrator] Wrote rollouts to /mnt/o/{}rollouts/step_0\n"
ENDED = "slurmstepd: error: *** JOB 44 ON gn07 CANCELLED AT 2026-01-02T15:05:00 DUE TO TIME LIMIT ***\n"
GROUP = "2026-01-02 11:05:14,551\tINFO worker.py:1843 -- Started a local Ray instance.\nINFO 01-02 11:05:16 [ray_utils.py:335] No current placement group found. Creating a new placement group.\n"
ROLLOUTS = "".join(
    f"2026-01-02 10:0{at}:00 - INFO - trl.experimental.async_grpo - step {at} rollout buffer 64/64\n" for at in range(5)
)
SLEPT = "".join(
    f"(VllmGenerationWorker pid=7110) INFO 05-29 02:1{at}:11 [gpu_worker.py:144] Sleep mode freed 43.82 GiB memory, {left} GiB memory is still in use.\n"
    for at, left in enumerate(("4.11", "{}", "{}"))
)
FULL = "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Worker.get_logprobs()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.47 GiB. GPU 3 has a total capacity of 79.11 GiB of which 6.02 GiB is free.\n"
FLAT = tb(
    ME,
    f"{SITE}/torch/nn/functional.py embedding | return torch.embedding(weight, input)",
    error="RuntimeError: 'weight' must be 2-D",
)
FOUND = "[2026-01-04 02:10:11,118] [INFO] [comm.py:616:mpi_discovery] Discovered MPI settings of world_rank=0, local_rank=0, world_size={}, master_addr=10.0.0.3, master_port=29500\n"
UNSCALE = tb(
    "/w/train.py <module>",
    TRAINER,
    f"{SITE}/torch/amp/grad_scaler.py _unscale_grads_",
    error="ValueError: Attempting to unscale FP16 gradients.",
)
CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
SUMS = "INFO worker.py:266] the current vLLM instance can use total_gpu_memory (23.69GiB) x gpu_memory_utilization (0.40) = 9.48GiB; model weights take 7.12GiB; the rest of the memory reserved for KV Cache is {}GiB.\n"
TOKENS = "tokenizer.pad_token = '</s>'  tokenizer.eos_token = '{}'\n"
SILENT = (
    "[INFO:swift] vllm_mode: colocate\n"
    + "{'loss': 0.01, 'grad_norm': 0.2, 'reward': 0.5, 'reward_std': 0.3, 'kl': 0.001, 'global_step/max_steps': '7/900'}\n"
    * 6
    + "Train:   1%|1         | 7/900 [07:05<13:30:24, 62.10s/it]\n"
)

TOLD = {
    "a rank without batches": ("A rank says that its epoch is over", "[rank0] step 16 loss 2.8\n[rank0] epoch 0 done, 16 batches\n[rank1] step 17 loss 2.2\n" + WATCHDOG),
    "other modules under ZeRO-3": ("set_z3_leaf_modules", SHARDED + APART),
    "other collectives without ZeRO-3": ("they did not do the same", APART),
    "an embedding that was enlarged": ("though the embedding was enlarged", "INFO - Resized token embeddings from 128256 to 129282.\n" + LOOKUP),
    "pairs that are NaN from the start": ("1. from the very first row on: max_prompt_length well below max_length", NAN_PAIRS),
    "pairs that went NaN": ("enable_cudnn_sdp(False)", PAIRS + NAN_PAIRS),
    "a mark that begins with the pad token": ("begins with the pad token", UNMARKED * 3 + ZEROS),
    "pairs that are far apart": ("merge it into the base first", SURE),
    "workers of one trainer": ("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", tb(ME, error=f"ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.actor_rollout_init_model() (pid=5, ip=10.0.0.1)\n{UNBALANCED}")),
    "a converter": ("A converter of checkpoints has", tb("/w/slime/tools/convert_hf_to_torch_dist.py main", "/w/Megatron-LM/megatron/training/arguments.py validate_args", error=PRODUCT)),
    "sizes of a training": ("The GPUs are no multiple of", tb("/w/pretrain_gpt.py <module>", "/w/Megatron-LM/megatron/training/arguments.py validate_args", error=PRODUCT)),
    "rollouts that all failed": ("training batch is empty", ERRORED.format(64) + EMPTY),
    "no sandbox": ("no sandbox could be made", ERRORED.format(64).replace("ToolError('404')", "SandboxError('quota')") + EMPTY),
    "two folders": ("looks for batches in folders run_*", LOOKS * 3 + WROTE.format("") + LOOKS * 2),
    "a placement group": ("asks Ray for its GPUs", GROUP + ENDED),
    "weights on their way to a server": ("the log of the server at that time", ROLLOUTS + "2026-01-02 10:05:11 - INFO - trl.experimental.async_grpo - syncing weights to http://localhost:8000\n" + ENDED),
    "memory that sleep leaves": ("the engine slept", SLEPT.format("11.57", "25.02") + FULL),
    "no launcher": ("started with plain python, most likely", FOUND.format(1) + FLAT),
    "an adapter in fp16": ("met adapter weights", "trainable params: 3,407,872 || all params: 7,245,148,160 || trainable%: 0.0470\n" + UNSCALE),
    "a share that is too small": ("weights and trial run take more than its share", SUMS.format("-1.98") + CACHE),
    "an end that was masked": ("The answers do not end", "{'loss': 1.2, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 6 + "generated 256 tokens (max_new_tokens reached)\n" + TOKENS.format("</s>")),
    "a batch of an older trainer": ("DPO code reads chosen_labels", tb("/w/dpo_train.py <module>", f"{SITE}/transformers/trainer.py train", f"{SITE}/transformers/trainer.py training_step", "/w/dpo_train.py concatenated_forward", error="KeyError: 'chosen_labels'")),
    "nothing since": ("stands still", SILENT + "last log 03:11:20, nvidia-smi: all 8 GPUs 100% util, power 110W; no new line since 9h\n"),
}  # fmt: skip

OTHER = {
    "an epoch long ago": ("epoch is over", "[rank0] epoch 0 done, 16 batches\n" + "[rank1] step 17 loss 2.2\n" * 90 + WATCHDOG),
    "ZeRO-3 with ranks at one place": ("did not run the same modules", SHARDED + WATCHDOG),
    "an embedding as it was": ("was enlarged", LOOKUP),
    "pairs that were finite": ("from the first row on", PAIRS + NAN_PAIRS),
    "zeros without a warning": ("mark of the answer", ZEROS),
    "zeros without pairs": ("preference run", ZEROS),
    "a server of one's own": ("trainer's own workers", tb(f"{SITE}/sglang/launch_server.py <module>", error=UNBALANCED)),
    "some rollouts that failed": ("training batch is empty", ERRORED.format(3) + EMPTY),
    "one folder": ("looks for batches", LOOKS * 3 + WROTE.format("run_default/")),
    "an engine that loaded": ("placement group", GROUP + "INFO 01-02 11:06:16 [gpu_model_runner.py:10] Starting to load model /m\n" + ENDED),
    "sleep that leaves little": ("the engine slept", SLEPT.format("4.12", "4.11") + FULL),
    "ranks that were found": ("plain python", FOUND.format(8) + FLAT),
    "all weights in fp16": ("adapter weights", UNSCALE),
    "a cache that is small": ("more than its share", SUMS.format("0.01") + CACHE),
    "an end of its own": ("do not end", "generated 256 tokens (max_new_tokens reached)\n" + TOKENS.format("<|im_end|>")),
    "a run that goes on": ("stands still", SILENT),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    assert words in led(log)


@pytest.mark.parametrize(("words", "log"), OTHER.values(), ids=OTHER.keys())
def test_what_does_not_lead(words: str, log: str) -> None:
    assert words not in headline(log)
