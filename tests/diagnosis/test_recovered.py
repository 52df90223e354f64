"""A trouble that the log says was got over is no failure; one that ended the run is, whatever was got over before."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis.explain import NO_FAILURE, explain_text

OUT_OF_MEMORY = """Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/accelerate/utils/memory.py", line 170, in decorator
    return function(batch_size)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
TOTALS = "{'train_runtime': 812.1, 'train_loss': 0.61, 'epoch': 1.0}\n"
RESUMED = """model.safetensors:  34%|███       | 1.7G/4.98G [01:00<02:00]
HTTPSConnectionPool(host='cdn-lfs.hf.co', port=443): Read timed out.
Trying to resume download...
"""
CAUGHT = """Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/site-packages/datasets/load.py", line 200, in dataset_module_factory
    raise ConnectionError(f"Couldn't reach '{path}' on the Hub")
ConnectionError: Couldn't reach 'x/y' on the Hub (LocalEntryNotFoundError)
Using the latest cached version of the dataset since x/y couldn't be found on the Hugging Face Hub
"""
REFUSED = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    trainer = GRPOTrainer()
ConnectionError: The vLLM server can't be reached at http://0.0.0.0:8000 after 240.0 seconds.
"""
NETWORK = "wandb: ERROR Error while calling W&B API: context deadline exceeded, retrying\n"


@pytest.mark.parametrize(
    "log",
    [
        "  error: subprocess-exited-with-error (optional extension, built without it)\nSuccessfully installed a-1.2\n",
        "Warning FailedScheduling pod/a 0/6 nodes are available\nNormal Scheduled Successfully assigned ml/a to n4\n",
        "Warning Failed Error: ErrImagePull\nNormal Pulled Successfully pulled image\nNormal Started container a\n",
        "a-0 0/1 OOMKilled 1 3m\na-0 1/1 Running 1 3m\na-0 0/1 Completed 1 9m\n",
        "INFO fetching\n"
        + CAUGHT.replace("Using the latest cached version", "INFO retrying in 2s, not the")
        + "fetched 15.2 GB (attempt 2)\nINFO model loaded\nINFO gsm8k done: acc=0.8\nINFO results uploaded, exit 0\n",
        "WARNING [x:158] Failed to get model SHA. Error: Repo id must be in the form 'a' or 'a/b'\n"
        "Running loglikelihood requests: 100%|####| 8/8 [11:02<00:00]\nRunning until: 100%|####| 6/6 [08:41<00:00]\n",
        TOTALS + "=== epilogue ===\nFailed to initialize NVML: Driver/library version mismatch\n",
        RESUMED + "model.safetensors: 100%|██████████| 4.98G/4.98G [03:00<00:00]\n",
        NETWORK + "100%|██████████| 100/100 [20:00<00:00, 12s/it]\n",
        "CUDA out of memory; decreasing batch size to 4\n100%|██████████| 500/500 [20:00<00:00,  2.4s/it]\n",
        "worker died: exit code -9; actor A will be restarted\n 20/20 steps done\n",
        OUT_OF_MEMORY + "Retrying with batch size 4\n" + TOTALS,
        "ERROR:mail: refused\n{'loss': 0.6, 'grad_norm': 0.4}\n" + TOTALS + "ERROR:mail: refused\n",
    ],
    ids=[
        "optional",
        "scheduled",
        "pulled",
        "restarted",
        "fetched",
        "evaluated",
        "epilogue",
        "resumed",
        "reporter",
        "smaller",
        "actor",
        "caught",
        "mail",
    ],
)
def test_what_was_got_over_is_no_failure(log: str) -> None:
    assert explain_text(log).status == NO_FAILURE


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (OUT_OF_MEMORY + "echo training completed\n", "gpu-out-of-memory"),
        (RESUMED + "Retrying, attempt 5 of 5\ngiving up\n", "hub-unreachable"),
        (RESUMED, "hub-unreachable"),
        ("Successfully installed a-1.2\n" + OUT_OF_MEMORY, "gpu-out-of-memory"),
        (OUT_OF_MEMORY.splitlines()[-1] + "\n$ pip install a\nSuccessfully installed a-1\n", "gpu-out-of-memory"),
        ("a 0/1 CrashLoopBackOff 4 5m\nNormal Started container a\n", "pod-restarts"),
        (TOTALS + OUT_OF_MEMORY, "gpu-out-of-memory"),
        (NETWORK + "100%|██████████| 4/4 [00:08<00:00]\n" + OUT_OF_MEMORY, "gpu-out-of-memory"),
        (CAUGHT + OUT_OF_MEMORY.splitlines()[-1] + "\n" + OUT_OF_MEMORY, "gpu-out-of-memory"),
        (CAUGHT + REFUSED, "vllm-server-not-up"),
        (OUT_OF_MEMORY + "Exception ignored in: <function A.__del__ at 0x7f>\n" + REFUSED, "gpu-out-of-memory"),
        (OUT_OF_MEMORY + "Retrying in 2.0 seconds...\n" + REFUSED, "gpu-out-of-memory"),
    ],
    ids=[
        "echo",
        "gave up",
        "still at it",
        "before it",
        "of another command",
        "a loop",
        "after it",
        "another",
        "caught",
        "caught before a consequence",
        "ignored at the end",
        "tried again by another",
    ],
)
def test_what_ended_the_run_leads(log: str, entry: str) -> None:
    assert explain_text(log).matches[0].entry.id == entry


TOO_LONG = (
    "ValueError: This model's maximum context length is 32768 tokens. However, your request has 33102 input tokens.\n"
)
REFUSED_REQUEST = (
    f"ERROR [serving_chat.py:200] Error in preprocessing prompt inputs\n{TOO_LONG}"
    'INFO: "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
)
ANSWERED = 'INFO: 10.0.3.7:40608 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
SAMPLE = "09:12 sandbox[17] ERROR sample 3130: exit code 137 (memory limit 512 MB) -> reward 0\n"
UPLOAD = "ERROR upload: 1/9 files failed: model-00002.safetensors (ConnectionError), will be tried again\n"


@pytest.mark.parametrize(
    ("trouble", "work"),
    [(REFUSED_REQUEST, ANSWERED), (SAMPLE, "trainer finished 24 steps, saved\n"), (UPLOAD, "upload: 9/9 files ok\n")],
    ids=["a request", "a sample", "an upload"],
)
def test_what_is_coped_with_in_words_needs_work_after_it(trouble: str, work: str) -> None:
    assert explain_text(trouble + 3 * work).status == NO_FAILURE
    assert explain_text(3 * work + trouble).status != NO_FAILURE


def test_a_refused_request_whose_reason_is_printed_after_it() -> None:
    refused, *reason = reversed(REFUSED_REQUEST.splitlines(keepends=True))
    assert explain_text(3 * ANSWERED + refused + "".join(reversed(reason)) + 3 * ANSWERED).status == NO_FAILURE
