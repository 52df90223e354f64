# ruff: noqa: E501  (a line of a log is one line)
"""Logs whose cause stands in a few words of theirs: what leads, and what must not where the words are another's."""

from __future__ import annotations

import pytest

from tests.diagnosis.leading import headline, led
from tests.diagnosis.test_claims_audit_a import GRPO, ME, REWARDS, SITE, TRAINER, tb

SWIFT = "/w/ms-swift/swift/trainers/rlhf_trainer/grpo_trainer.py _score_completions | rewards = reward_func(completions, **reward_kwargs)"
ROPE = f"{SITE}/transformers/models/qwen2_vl/modeling_qwen2_vl.py get_rope_index | position_ids[..., i, attention_mask[i] == 1] = llm_positions"
EVALUATE = (f"{SITE}/transformers/trainer.py _maybe_log_save_evaluate | metrics = self.evaluate(ignore_keys=ignore)", f"{SITE}/torch/utils/data/_utils/fetch.py fetch | return self.collate_fn(data)")  # fmt: skip
UNMARKED = "UserWarning: Could not find response key `### Reply: ` in the following instance: What is 2 + 2? ### Reply: 4 This instance will be ignored in loss calculation. Note, if this happens often, consider increasing the `max_seq_length`.\n"
NAN = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': 0.1}\n" * 6
FINITE = "{'loss': 1.3, 'grad_norm': 0.8, 'learning_rate': 2e-05, 'epoch': 0.1}\n" * 6
SYNCED = "(RolloutManager pid=5) update_weights_from_distributed: 310 tensors, 9.0s\n(SGLangEngine pid=6) POST /update_weights_from_distributed 200 OK\n"
ASSERTION = "(SGLangEngine pid=6) ../aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
VIDEO = "Corrupted video found: /data/clips/a_7.mp4, Error: [10:00:01] /github/workspace/src/video/video_reader.cc:444: [BytesIO]Unable to handle EOF because it takes too long to retrieve last few frames\n"
CLIENT = tb("/w/client.py <module> | client.init_communicator()", f"{SITE}/trl/extras/vllm_client.py init_communicator | pg = StatelessProcessGroup.create(host=self.host)", error="torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/3 clients joined.")  # fmt: skip
NO_NCCL = "(VllmWorker rank=1 pid=7) ERROR 08-20 09:48:31 [pynccl_wrapper.py:229] Failed to load NCCL library from /opt/nccl/libnccl.so.2. It is expected if you are not running on NVIDIA/AMD GPUs.\n"


def diverging() -> str:
    """Rows in which the answers reach their limit, the reward goes and KL grows."""
    kls = [0.01, 0.02, 0.05, 0.1, 0.2, 0.7, 1.2, 2.4, 4.1, 5.8, 8.8, 12.5, 16.0, 21.0, 24.0, 29.0, 33.0]
    return "".join(
        f"{{'loss': 0.01, 'grad_norm': 0.4, 'reward': {0.64 - 0.027 * at:.3f}, 'completion_length': {min(400 + 150 * at, 1024)}, 'kl': {kl}}}\n"
        for at, kl in enumerate(kls)
    )


TOLD = {
    "a reward that is a class": (
        "The reward LengthORM wants arguments",
        tb(TRAINER, SWIFT, error="TypeError: LengthORM.__call__() missing 1 required positional argument: 'limit'"),
    ),
    "all splits": (
        "All splits (a DatasetDict)",
        tb(ME, f"{SITE}/trl/trainer/sft_trainer.py _prepare_dataset", f"{SITE}/datasets/dataset_dict.py map", error="ValueError: Column to remove ['train', 'test'] not in the dataset. Current columns in the dataset: ['text']"),
    ),
    "a tool call without a name": (
        "wrote a tool call that lacks a field",
        tb(ME, TRAINER, f"{SITE}/trl/trainer/grpo_trainer.py _tool_call_loop", f"{SITE}/jinja2/filters.py do_tojson", error="TypeError: Object of type Undefined is not JSON serializable"),
    ),
    "tools without parameters": (
        "A chat template (or another of jinja)",
        tb(ME, f"{SITE}/transformers/tokenization_utils_base.py apply_chat_template", f"{SITE}/jinja2/filters.py do_tojson", error="TypeError: Object of type Undefined is not JSON serializable"),
    ),
    "answers that are all cut off": ("answers are cut off before their end", diverging()),
    "a prompt that was cut": (
        "1. fewer tokens than features",
        tb("/w/train_grpo.py <module>", TRAINER, GRPO, error="ValueError: Image features and image tokens do not match: tokens: 128, features 512"),
    ),
    "a reward function as a model": (
        "PPO was given a function as a model",
        tb(ME, f"{SITE}/trl/trainer/ppo_trainer.py __init__", f"{SITE}/trl/trainer/utils.py disable_dropout_in_model | for module in model.modules():", error="AttributeError: 'function' object has no attribute 'modules'"),
    ),
    "a row of images that was cut": (
        "A row with images has other positions than tokens (2600 against 2048",
        tb(TRAINER, ROPE, error="RuntimeError: shape mismatch: value tensor of shape [3, 2600] cannot be broadcast to indexing result of shape [3, 2048]"),
    ),
    "two vocabularies": (
        "Student and teacher give logits over vocabularies of different size",
        tb(ME, TRAINER, "/w/distill.py kd_loss | loss = F.kl_div(student_logp, teacher_logp)", error="RuntimeError: The size of tensor a (128256) must match the size of tensor b (151936) at non-singleton dimension 2"),
    ),
    "no room for a prompt": (
        "leaves no room for it",
        tb(ME, TRAINER, f"{SITE}/trl/trainer/online_dpo_trainer.py _forward", error="RuntimeError: The size of tensor a (0) must match the size of tensor b (512) at non-singleton dimension 1"),
    ),
    "classes of a value model": (
        "The value model gives 2 numbers for each token",
        tb(ME, f"{SITE}/trl/trainer/ppo_trainer.py train | values = torch.masked_fill(values, padding_mask_p1, 0)", error="RuntimeError: The size of tensor a (70) must match the size of tensor b (2) at non-singleton dimension 2"),
    ),
    "a strategy that was not loaded": (
        "Axolotl could not load the strategy user_defined.mine",
        "[2026-01-02 08:12:08,144] [ERROR] [axolotl.prompt_strategies.base] unable to load strategy user_defined.mine\n"
        + tb("/w/axolotl/utils/data/rl.py load_split", f"{SITE}/datasets/arrow_dataset.py _map_single", error="TypeError: None is not a callable object"),
    ),
    "no label left": ("does not find the mark of the answer", UNMARKED * 4 + NAN),
    "a mark that old TRL did not find": (
        "at which this (old) TRL stops",
        tb(ME, TRAINER, f"{SITE}/trl/trainer/utils.py torch_call | raise RuntimeError(", error="RuntimeError: Could not find response key [835, 13291] in token IDs tensor([    1,  1128,  1784])"),
    ),
    "no place with a label": (
        "The loss of a process reward model (PRM) is NaN",
        "".join(f"Train step of epoch 0:   0%|  | {at}/700 [00:0{at}<1:11, 3.2s/it, prm_loss=nan, acc=nan, loss_mean=nan, lr={at}.00e-08]\n" for at in range(1, 9)),
    ),
    "no token for the end": (
        "A row holds None in place of a token id",
        tb(TRAINER, f"{SITE}/trl/trainer/utils.py collate | to_pad = [torch.LongTensor(ex[k]) for ex in batch]", error="TypeError: 'NoneType' object cannot be interpreted as an integer"),
    ),
    "NCCL that does not load": ("A worker of vLLM could not load NCCL", NO_NCCL + CLIENT),
    "comparisons for answers": (
        "is used in supervised training",
        tb("/w/llamafactory/train/sft/workflow.py run_sft", "/w/llamafactory/data/loader.py load_single_dataset", error="ValueError: The dataset is not applicable in the current training stage."),
    ),
    "answers for comparisons": (
        "needs comparisons, and the data set is not marked",
        tb("/w/llamafactory/train/dpo/workflow.py run_dpo", "/w/llamafactory/data/loader.py load_single_dataset", error="ValueError: The dataset is not applicable in the current training stage."),
    ),
    "an answer that was aborted": (
        "An answer of SGLang lacks weight_version",
        "(SGLangEngine pid=9) " + tb("/sgl/sglang/srt/entrypoints/openai/serving_chat.py _build_chat_response", error="KeyError: 'weight_version'"),
    ),
    "an engine with new weights": ("after it had got weights from the trainer", SYNCED + ASSERTION),
    "pairs that are not tokenized": (
        "rows that are not tokenized as pairs",
        tb(ME, TRAINER, f"{SITE}/trl/trainer/utils.py __call__", error="ValueError: The features should include `input_ids_chosen`, `attention_mask_chosen`, `input_ids_rejected` and `attention_mask_rejected`"),
    ),
    "an evaluation of rows as they were read": (
        "The rows of the evaluation data have no input_ids_chosen",
        tb(ME, *EVALUATE, "/w/rm.py __call__", error="KeyError: 'input_ids_chosen'"),
    ),
    "KTO without a label": (
        "KTO finds no label in a row of the data",
        tb(ME, f"{SITE}/trl/trainer/kto_trainer.py _process_tokens", error="KeyError: 'label'"),
    ),
    "scores of tokens": (
        "PPOTrainer.step got 388 scores for a batch of 8",
        tb(ME, f"{SITE}/trl/trainer/ppo_trainer.py _step_safety_checker", error="ValueError: Batch size (8) does not match number of examples - but got 388 for: scores"),
    ),
    "a broken video before a launcher's words": (
        "/data/clips/a_7.mp4 cannot be opened or decoded",
        VIDEO + "[2025-02-24 19:55:33,402] [ERROR] [launch.py:325:sigkill_handler] ['/opt/conda/bin/python', '-u', 'train.py', '--local_rank=3'] exits with return code = 1\n",
    ),
}  # fmt: skip

OTHER = {
    "a class within a reward": (
        "The reward Scorer wants",
        tb(TRAINER, REWARDS, "/w/rewards.py __call__ | return self.scorer(text)", error="TypeError: Scorer.__call__() missing 1 required positional argument: 'limit'"),
    ),
    "a collator that is called wrongly": (
        "The reward",
        tb(ME, TRAINER, f"{SITE}/torch/utils/data/_utils/fetch.py fetch", error="TypeError: PadCollator.__call__() missing 1 required positional argument: 'tokenizer'"),
    ),
    "a column that is really meant": ("All splits", "ValueError: Column to remove ['train_id'] not in the dataset. Current columns in the dataset: ['text']\n"),
    "a number of numpy": ("template", tb(ME, TRAINER, error="TypeError: Object of type float32 is not JSON serializable")),
    "a function of a web server": ("a torch module", tb("/w/app.py <module>", error="AttributeError: 'function' object has no attribute 'children'")),
    "points in space": ("with images", tb("/w/cloud.py merge | out[:, mask] = points", error="RuntimeError: shape mismatch: value tensor of shape [3, 900] cannot be broadcast to indexing result of shape [3, 800]")),
    "two long rows": ("Student and teacher", tb(ME, TRAINER, error="RuntimeError: The size of tensor a (32768) must match the size of tensor b (40960) at non-singleton dimension 1")),
    "an empty tensor elsewhere": ("max_length leaves no room", tb(ME, TRAINER, GRPO, error="RuntimeError: The size of tensor a (0) must match the size of tensor b (512) at non-singleton dimension 1")),
    "a broadcast by two": ("num_labels", tb(ME, TRAINER, GRPO, error="RuntimeError: The size of tensor a (70) must match the size of tensor b (2) at non-singleton dimension 2")),
    "a few rows without the mark": ("does not find the mark of the answer in the rows (all", FINITE + UNMARKED + FINITE + NAN),
    "a length that is None": ("token id", tb(ME, "/w/data.py __getitem__ | for i in range(row['n']):", error="TypeError: 'NoneType' object cannot be interpreted as an integer")),
    "a group without a word of NCCL": ("could not load NCCL, so", CLIENT),
    "weights that went NaN in training": ("after it had got weights", "{'loss': 0.1, 'grad_norm': 3.0, 'reward': 0.4, 'kl': 0.1}\n" * 5 + SYNCED + ASSERTION),
    "a key in training": ("evaluation data", tb(ME, TRAINER, "/w/rm.py __call__", error="KeyError: 'input_ids_chosen'")),
    "a label of a classifier": ("KTO", tb(ME, TRAINER, error="KeyError: 'label'")),
    "a broken video that was left out": (
        "cannot be opened or decoded",
        VIDEO + "{'loss': 1.2, 'grad_norm': 0.4, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 4 + tb(ME, TRAINER, error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.39 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.12 GiB is free."),
    ),
    "a broken video before an error that nobody knows": (
        "cannot be opened or decoded",
        VIDEO + FINITE + tb(ME, TRAINER, "/w/loss.py compute | raise ValueError", error="ValueError: margin was negative for pair 3"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "log"), TOLD.values(), ids=TOLD.keys())
def test_what_leads(words: str, log: str) -> None:
    assert words in led(log)


@pytest.mark.parametrize(("words", "log"), OTHER.values(), ids=OTHER.keys())
def test_what_does_not_lead(words: str, log: str) -> None:
    assert words not in headline(log)
