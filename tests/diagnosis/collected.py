"""Logs of public failure reports that no entry was written from, and logs without a failure.

Each has its source, the error lines that the thread reports (as facts, with noise of our own around them), the entries
that answer it, and those that are related. `AFTER` were looked up after the entries had been written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

STARTED = (
    "INFO 03-02 10:11:12 [__init__.py:239] Automatically detected platform cuda.\n"
    "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00,  1.20it/s]\n"
    "Map: 100%|##########| 7473/7473 [00:02<00:00, 3121.31 examples/s]\n"
)
FRAMES = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in <module>\n    trainer.train()\n'
ROWS = "".join(
    f"{{'loss': 0.0{i}, 'grad_norm': 0.{30 + i}, 'learning_rate': 9.{9 - i}e-07, 'reward': 0.{20 + i}, 'reward_std': "
    f"0.1{i}, "
    f"'entropy': 0.{60 - i}, 'frac_reward_zero_std': 0.25, 'epoch': 0.0{i}}}\n" for i in range(1, 8)
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """One failure: where it was reported, what it printed, which entries answer it, which ones come near."""

    source: str
    log: str
    right: tuple[str, ...]
    related: tuple[str, ...]


SITE = "/opt/conda/lib/python3.10/site-packages"
LIBRARIES = {
    "TRL": f'File "{SITE}/trl/trainer/grpo_trainer.py", line 912, in _prepare_inputs',
    "HF": f'File "{SITE}/transformers/trainer.py", line 2245, in train',
    "VLLM": f'File "{SITE}/vllm/entrypoints/llm.py", line 230, in __init__',
}
"""Frames of a traceback that collected.yaml has by name."""


def _read(report: dict) -> Report:
    """A report of collected.yaml.

    Args:
        report: `source`; `right` and `related`, names of entries; what the log has, in this order: `rows` of metrics,
            `before`, a traceback with its `frames` and `error`, each line of which begins with `prefix`, and `after`;
            or all of its `log`.
    """
    if "log" in report:
        return Report(report["source"], report["log"], tuple(report["right"]), ())
    log = STARTED + (ROWS if report.get("rows") else "") + report.get("before", "")
    if "error" in report:
        frames = "".join(f"  {LIBRARIES.get(frame, frame)}\n" for frame in report.get("frames", ()))
        lines = (FRAMES + frames + report["error"] + "\n").splitlines()
        log += "".join(f"{report.get('prefix', '')}{line}\n" for line in lines)
    log += report.get("after", "")
    return Report(report["source"], log, tuple(report["right"]), tuple(report.get("related", ())))


_REPORTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
BEFORE = [_read(report) for report in _REPORTS["before the entries"]]
AFTER = [_read(report) for report in _REPORTS["after the entries"]]
SHAPES = [_read(report) for report in _REPORTS["shapes"]]

_SURVIVED = FRAMES + "ValueError: could not convert string to float: 'seven'\n"
HEALTHY = {
    **_REPORTS["quiet"],
    **{f"rows, {name}": STARTED + text for name, text in {
        "plain": ROWS, "twice": ROWS * 2, "with a summary": ROWS
            + "{'train_runtime': 12.3, 'train_loss': 0.0, 'epoch': 1.0}\n",
        "with a survived traceback": ROWS + _SURVIVED + ROWS,
        "with a survived OOM": ROWS + FRAMES + "torch.OutOfMemoryError: CUDA out of memory.\n" + ROWS,
        "with a retried download": "ERROR - huggingface_hub - HTTPSConnectionPool(host='huggingface.co', port=443): "
        "Read timed out. Retrying\n" + ROWS,
        "with a warning of TRL about vLLM": "UserWarning: TRL currently only supports vLLM version `0.10.2`. You have "
        "version 0.11.0 installed.\n" + ROWS,
        "with unused parameters warned of": "UserWarning: find_unused_parameters=True was specified in DDP "
        "constructor, but did not find any unused parameters\n" + ROWS,
        "with a server that came up": "INFO - trl.extras.vllm_client - Server is not up yet. Retrying in 2.0 "
        "seconds...\n" + ROWS,
        "with a completion about CUDA": ROWS
            + "completion: the error 'CUDA out of memory' means that the batch is too large\n" + ROWS,
        "with a completion that quotes": ROWS + "| Traceback (most recent call last): ... KeyError: 'prompt' |\n"
            + ROWS,
        "with a NaN kl at beta 0": ROWS.replace("'epoch'", "'kl': nan, 'epoch'"),
        "strings": ROWS.replace("0.", "'0.").replace(", '", "', '").replace("}", "'}").replace("''", "'"),
        "with a killed sandbox": "bash: line 1: 4411 Killed                  timeout 5 python3 sol.py\n" + ROWS,
        "TensorFlow noise": "2025-03-02 10:11:12.1 E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:8310] "
        "Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been "
        "registered\n" + ROWS,
        "pip conflict": "ERROR: pip's dependency resolver does not currently take into account all the packages that "
        "are installed.\n" + ROWS,
        "deprecations": "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.\n" * 3 + ROWS,
        "a caught import": "Could not import flash_attn, falling back to sdpa\n" + ROWS,
        "process group warning": ROWS
            + "{'train_runtime': 9.1, 'train_loss': 0.0}\n[rank0]:[W302 10:11:12 ProcessGroupNCCL.cpp:1496] Warning: "
            "WARNING: destroy_process_group() was not called before program exit, which can leak resources.\n",
        "leaked semaphores": ROWS
            + "{'train_runtime': 9.1, 'train_loss': 0.0}\nUserWarning: resource_tracker: There appear to be 1 leaked "
            "semaphore objects to clean up at shutdown\n",
    }.items()},
    **{f"verl {i}": STARTED + "".join(f"(TaskRunner pid=7) step:{k} - actor/grad_norm:0.{20 + (k * i) % 7} - "
    f"critic/score/mean:0.{30 + k} - actor/entropy:0.{50 - k}\n" for k in range(1, 12)) for i in range(1, 4)},
    **{f"Megatron {i}": "".join(f" iteration {k:8}/ 100 | consumed samples: {k * 256} | learning rate: 1.0E-06 | lm "
    f"loss: {2.0 - k / 50:.6E} | grad norm: {1 + k % 3 / i:.3f} | number of nan iterations: 0 |\n"
        for k in range(1, 12)) for i in range(1, 3)},
    **{f"JSON lines {i}": "".join(f'{{"step": {k}, "loss": 0.0{k % 9}, "grad_norm": 0.{i}{k % 7}, "reward": '
    f'0.{20 + k}}}\n' for k in range(1, 30)) for i in range(1, 4)},
    "OpenRLHF": "".join(f"Episode [1/1]:  {k}%|##| {k}/100 [00:10<01:00, 1.1s/it, policy_loss=0.01, "
    f"reward=0.{30 + k}, kl=0.00{k}]\n" for k in range(1, 30)),
    "LLaMA-Factory": "".join(f"[INFO|2025-03-02 10:11:{k:02}] llamafactory.train.callbacks:143 >> {{'loss': "
    f"0.{80 - k}, 'learning_rate': 4.9e-05, 'epoch': 0.{k:02}}}\n" for k in range(1, 30)),
    "empty": "", "one line": "Loading model...\n",
    "bars alone": "".join(f"\r {k}%|#| {k}/100 [00:01<00:09]" for k in range(99)),
    "nginx": '127.0.0.1 - - [02/Mar/2025:10:11:12 +0000] "GET /x HTTP/1.1" 200 612\n' * 9,
    "pytest": "===== 41 passed, 9 skipped, 1 xfailed in 768.72s (0:12:48) =====\n",
    "make": "gcc -O2 -c a.c -o a.o\ngcc a.o -o a\n",
    "apt": "Setting up libc6 (2.31) ...\nProcessing triggers for man-db\n",
    "compiler warning": "a.c:3:5: warning: unused variable 'x' [-Wunused-variable]\n",
    "docker build": "Step 3/9 : RUN pip install trl\n ---> Using cache\n", "git": "Already up to date.\n",
    "prose": "The exception proves the rule. An error of judgement, he said, kills nobody; a fault is no failure.\n"
    * 3,
    "poem of errors": "To err is human. Segmentation is a fault of oranges. No bus, no error. The signal was lost in "
    "space.\n",
    "python docs": "The FloatingPointError exception is not currently used. OverflowError is raised when the result "
    "is too large.\n",
    "SQL": "INFO sqlalchemy.engine.Engine SELECT error_code FROM runs\n",
    "rates": "eval: word_error_rate=0.12, error_rate: 0.03, errors=0\n",
    "vLLM server": "INFO:     127.0.0.1:56516 - \"POST /generate/ HTTP/1.1\" 200 OK\n" * 9,
    "gpu table": "|   0  NVIDIA GeForce RTX 4090        On  | 00000000:1E:00.0 Off |                  Off |\n",
    "environment": "- Transformers version: 4.52.4\n- Accelerate version: 1.7.0\n- TRL version: 0.18.0\n"
    "- PyTorch version: 2.7.0\n",
    "help": "usage: train.py [-h] [--lr LR]\n\noptions:\n  -h, --help  show this help message and exit\n",
    "yaml": "learning_rate: 1.0e-6\nnum_generations: 8\nuse_vllm: true\nvllm_mode: colocate\n",
    "slurm header": "Job started on node7 at 10:11\nGPUs: 8\n",
    "ok": "Training completed. Do not forget to share your model on huggingface.co/models =)\n",
    "tests mention OOM": "tests/test_oom.py::test_out_of_memory_is_caught PASSED\n"
    "tests/test_x.py::test_segmentation_fault PASSED\n",
    **{f"healthy run {i}": "".join(
        f"{{'loss': {(-1) ** k * k / 9000}, 'grad_norm': {0.1 + (k * i) % 5 / 10}, 'reward': "
        f"{min(0.1 * i + k / 60, 1)}, 'reward_std': 0.2, "
        f"'entropy': {1.2 - k / 60}, 'frac_reward_zero_std': {(k * i) % 4 / 8}}}\n" for k in range(50))
        for i in range(1, 9)},
    "a data set row": '{"question": "What raises ValueError: invalid literal?", "answer": "int(\'x\')"}\n' * 3,
}  # fmt: skip
