"""An entry leads only where it explains the error itself; otherwise the error comes first and the entry is a hint."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis._render import KNOWN, NO_FAILURE, UNKNOWN
from bisect_cfg.diagnosis.explain import explain_text

SITE = "/opt/env/lib/python3.11/site-packages"


def traceback(*frames: str, error: str) -> str:
    lines = (f'  File "{frame.split()[0]}", line 7, in {frame.split()[1]}\n    call()\n' for frame in frames)
    return f"Traceback (most recent call last):\n{''.join(lines)}{error}\n"


DOUBTED = {
    "only the family": (
        traceback("/home/me/train.py <module>", f"{SITE}/a/b.py run", error="ZeroDivisionError: division by zero"),
        "division-by-zero",
    ),
    "another trainer": (
        traceback(
            "/home/me/ppo.py <module>", f"{SITE}/trl/trainer/ppo_trainer.py __init__",
            error="AttributeError: 'AutoModelForCausalLMWithValueHead' object has no attribute 'generation_config'",
        ).replace("call()", "PPOTrainer(config, model)"),
        "value-head-in-grpo",
    ),
    "a message that hands on another": (
        traceback(
            "/home/me/load.py main", f"{SITE}/torch/nn/modules/module.py load_state_dict",
            error='RuntimeError: Error(s) in loading state_dict for Model: While copying the parameter named "w", an '
            "exception occurred : ('the moon is in the wrong phase',).",
        ),
        "checkpoint-mismatch",
    ),
    "only the exception's kind": (
        traceback(
            "/home/me/train.py <module>", f"{SITE}/triton/compiler/compiler.py make_ir",
            error="triton.compiler.errors.CompilationError: at 4:31: some kernel of somebody does this and that",
        ),
        "compile-failed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("log", "entry"), DOUBTED.values(), ids=DOUBTED.keys())
def test_an_entry_that_does_not_explain_the_error_is_a_hint(log: str, entry: str) -> None:
    found = explain_text(log)
    assert found.matches[0].entry.id == entry and found.matches[0].doubt
    assert found.status == UNKNOWN
    shown = str(found)
    assert shown.startswith("The log shows a failure that no known issue covers")
    assert found.error is not None and found.error.text[:40] in shown
    assert shown.index("The error" if "The error" in shown else "The failure") < shown.index("may have to do with")
    assert not set(found.steps) & set(found.matches[0].steps)


def test_a_case_that_the_log_decides_for_leads() -> None:
    log = traceback(
        "/home/me/train.py <module>",
        f"{SITE}/trl/trainer/grpo_trainer.py _calculate_rewards",
        "/home/me/train.py my_reward",
        error="TypeError: string indices must be integers",
    )
    asked = "plain text where the reward function expects a list"
    found = explain_text(log.replace("call()", 'text = completion[0]["content"]'))
    assert found.status == KNOWN and not found.matches[0].doubt
    assert asked in found.matches[0].title
    assert asked not in explain_text(log).matches[0].title  # that line need not be about the completion


@pytest.mark.parametrize(
    ("asked", "leads"),
    [
        ("row", True),
        ("self.batch[0]", True),
        ("data[i].non_tensor_batch", True),
        ("kwargs", True),
        ("self.config", False),
        ("os.environ", False),
    ],
)
def test_a_missing_key_is_a_column_only_where_a_row_is_asked(asked: str, leads: bool) -> None:
    log = traceback("/home/me/train.py <module>", "/home/me/own.py step", error="KeyError: 'prompt'")
    found = explain_text(log.replace("call()", f"x = {asked}['prompt']"))
    assert found.matches[0].entry.id == "missing-prompt-column"
    assert bool(found.matches[0].doubt) != leads


@pytest.mark.parametrize(
    "error",
    ["IndexError: index 5 is out of bounds for dimension 0 with size 5",
     "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 1x5)"],
)  # fmt: skip
def test_a_message_that_many_things_end_in_has_no_cause_by_itself(error: str) -> None:
    log = traceback("/home/me/train.py <module>", f"{SITE}/some/thing.py run", error=error)
    assert explain_text(log).status == UNKNOWN


def test_a_service_whose_lines_have_its_name_before_them() -> None:
    died = traceback("/usr/bin/trl <module>", f"{SITE}/vllm/worker.py load_model", error="RuntimeError: no moon today")
    late = "ConnectionError: The vLLM server can't be reached at http://0.0.0.0:8000 after 240.0 seconds."
    log = "".join(f"[server] {line}\n" for line in died.splitlines())
    found = explain_text(log + traceback("/home/me/train.py <module>", f"{SITE}/trl/client.py check", error=late))
    assert found.error is not None and "no moon" in found.error.text and found.status == UNKNOWN


def test_an_error_and_the_one_that_was_raised_from_it_are_one_failure() -> None:
    first = traceback(f"{SITE}/transformers/base.py as_tensor", error="ValueError: too many dimensions 'str'")
    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    outer = "ValueError: Unable to create tensor, you should probably activate truncation and/or padding."
    second = traceback("/home/me/train.py <module>", f"{SITE}/transformers/base.py convert", error=outer)
    found = explain_text(first + cause + second)
    assert found.status == KNOWN and "A column of text reached the collator" in found.matches[0].title
    assert explain_text(first + "saved\n" + second).status != KNOWN


def test_a_reporter_that_tries_again_does_not_explain_a_later_error() -> None:
    log = "wandb: ERROR Error while calling W&B API: late\nwandb: entering retry loop\nshards: 100%|##| 4/4\n"
    log += traceback("/home/me/train.py <module>", f"{SITE}/some/thing.py run", error="ValueError: the moon is full")
    assert all(match.entry.id != "wandb-network" for match in explain_text(log).matches)


def test_an_entry_of_what_is_not_at_work_does_not_lead() -> None:
    refused = "API request to http://127.0.0.1:5000/api/runs failed: Failed to establish a new connection: [Errno 111]"
    log = traceback(
        "/home/me/a.py <module>", f"{SITE}/mlflow/rest.py send", error=f"mlflow.exceptions.MlflowException: {refused}"
    )
    found = explain_text(log).matches[0]
    assert found.entry.id == "vllm-server-lost" and found.doubt == "nothing in the log is of vLLM"


def test_a_warning_outside_of_the_traceback_does_not_explain_it() -> None:
    warning = (
        "Error while downloading from https://cdn-lfs.hf.co/a: HTTPSConnectionPool(host='cdn-lfs.hf.co', port=443)"
    )
    log = f"{warning}: Read timed out.\nTrying to resume download...\n" + "Loading weights\n" * 20
    log += traceback(
        "/home/me/train.py <module>",
        f"{SITE}/transformers/models/some.py forward",
        error="ValueError: the moon is full",
    )
    leads = [match.entry.id for match in explain_text(log).matches if not match.doubt]
    assert "hub-unreachable" not in leads


def test_an_error_of_an_earlier_start_does_not_explain_the_later_one() -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB.\nstarted again with half the batch\n"
    log += traceback("/home/me/train.py <module>", f"{SITE}/some/thing.py run", error="RuntimeError: the moon is full")
    assert all(match.entry.id != "gpu-out-of-memory" for match in explain_text(log).matches)


def test_an_error_that_training_survives_again_and_again_goes_before_a_general_finding() -> None:
    raised = traceback("/home/me/score.py judge", error="ValueError: the judge does not answer the moon")
    rows = "".join(
        f"{raised}{{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.0, 'reward_std': 0.0, 'epoch': 0.{at}}}\n"
        for at in range(1, 9)
    )
    found = explain_text(rows)
    assert found.error is not None and "the judge does not answer" in found.error.text
    assert found.matches[0].doubt and found.status == UNKNOWN


def test_where_it_was_raised_is_told() -> None:
    log = traceback(
        "/home/me/train.py main", f"{SITE}/oddpackage/core.py run", error="oddpackage.core.OddError: the moon is full"
    )
    assert "called from /home/me/train.py:7 in main" in explain_text(log).raised


PAGES = {
    "changes": "## v0.9.2\n- fix: CUDA error: device-side assert triggered when pad token missing\n- feat: KTO\n"
    "- docs: note on `Watchdog caught collective operation timeout`\n\n## v0.9.1\n- fix: KeyError: 'chosen'\n"
    "- bump transformers\n",
    "release notes": "Changelog\n=========\n\n1.4.0 (2025-02-01)\n------------------\n* CUDA out of memory is avoided\n"
    "* Address already in use: a free port is taken\n* faster\n",
    "troubleshooting": "## Troubleshooting\n\nIf you see `torch.OutOfMemoryError: CUDA out of memory`, lower it.\n"
    "\n| Symptom | Try |\n|---|---|\n| `Address already in use` | `--main_process_port 29501` |\n\n## Quick start\n"
    "```bash\naccelerate launch train.py\n```\n",
}


OF_PEOPLE = {
    "a conversation": "".join(
        f"[10:0{at}] {'anna' if at % 2 else 'ben'}: {said}\n"
        for at, said in enumerate(
            ["my run died with RuntimeError: CUDA error: device-side assert triggered", "token ids?", "yes", "resize",
             "works now", "fine", "lunch"]
        )
    ),
    "a history of commands": "".join(
        f"  {at}  {typed}\n"
        for at, typed in enumerate(
            ["python train.py", "nvidia-smi", "kill -9 47",
             "grep -rn 'CUDA out of memory' logs/", "df -h", "sbatch a",
             "history"], 501
        )
    ),
    "a pod that succeeded": "Name: a\nStatus:       Succeeded\n    Last State:  Terminated\n      Exit Code:    1\n"
    "  Warning  FailedScheduling  9h    0/14 nodes are available: 14 Insufficient nvidia.com/gpu.\n",
    "a page with an example": "# Troubleshooting\n\nLook above it.\n\n## Example\n\n```\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5 GiB.\n```\n\nLower `the_batch`.\n",
}  # fmt: skip


@pytest.mark.parametrize("text", [*PAGES.values(), *OF_PEOPLE.values()], ids=[*PAGES, *OF_PEOPLE])
def test_what_people_wrote_is_no_log(text: str) -> None:
    found = explain_text(text)
    assert found.status == NO_FAILURE and not found.matches and found.error is None


def test_a_report_with_a_traceback_in_it_is_read() -> None:
    log = traceback(
        "/home/me/train.py <module>", f"{SITE}/a/b.py run", error="torch.OutOfMemoryError: CUDA out of memory"
    )
    assert explain_text(f"# Bug\n\nIt fails:\n\n```\n{log}```\n\n## Versions\n\ntorch 2.6\n").status == KNOWN


def test_a_warning_before_an_exception_that_it_is_not_about() -> None:
    warned = (
        "WARNING:root: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch"
    )
    raised = 'Traceback (most recent call last):\n  File "/home/u/t.py", line 2, in main\n    raise ValueError("77")\n'
    found = explain_text(f"{warned} installation.\n{raised}ValueError: 77\n")
    assert not found.matches and found.error is not None
    alone = explain_text(
        f"{warned} installation.\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    )
    assert alone.matches[0].entry.id == "no-kernel-image"
