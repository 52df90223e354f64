"""What an error says by itself: which setting, value, package, shape or line, and what would be allowed."""

from __future__ import annotations

import pytest

from bisect_cfg.explain.advice import Advice, advise, said_cure
from bisect_cfg.explain.events import RAISED, Event

TRL, OWN = "/opt/python3.11/site-packages/trl/trainer/grpo_trainer.py", "/home/me/train.py"


def advice_of(text: str, *files: str) -> Advice | None:
    frames = tuple((file, 7 + at, "step") for at, file in enumerate(files))
    return advise(Event("exception", 9, text.split("\n")[0], "", RAISED, text, frames))


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            "error: argument --loss: invalid choice: 'grop' (choose from 'grpo', 'dapo')",
            "value",
            ["--loss", "'grpo', 'dapo'"],
        ),
        (
            "ValueError: 'warm' is not a valid SchedulerType, please select one of ['linear', 'cosine']",
            "value",
            ["cosine"],
        ),
        (
            "pydantic_core.ValidationError: 1 validation error for VllmConfig\ndtype\n  Input should be 'auto' "
            "or 'half' [type=literal_error, input_value='fp8', input_type=str]",
            "value",
            ["dtype", "'auto' or 'half'"],
        ),
        (
            "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'vllm_device'",
            "setting",
            ["vllm_device"],
        ),
        (
            "hydra.errors.ConfigCompositionException: Could not override 'actor.lr_rate'",
            "setting",
            ["actor.lr_rate"],
        ),
        (
            "ImportError: cannot import name 'PPOTrainer' from 'trl' (/x/trl/__init__.py)",
            "versions",
            ["PPOTrainer", "trl"],
        ),
        ("ModuleNotFoundError: No module named 'flash_attn'", "module", ["pip install flash_attn"]),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x896 and 1024x64)",
            "shapes",
            ["8x896", "1024x64"],
        ),
        (
            "RuntimeError: Error(s) in loading state_dict:\n\tsize mismatch for lm_head.weight: copying a param",
            "weights",
            ["lm_head.weight"],
        ),
        (
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cud"
            "a:0 and cpu!",
            "devices",
            ["cuda:0", "cpu"],
        ),
        (
            "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16",
            "dtypes",
            ["float"],
        ),
        (
            "ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries",
            "network",
            ["huggingface.co"],
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/gsm8k.json'",
            "file",
            ["data/gsm8k.json"],
        ),
    ],
)
def test_what_the_message_names_is_in_the_advice(text: str, kind: str, words: list[str]) -> None:
    found = advice_of(text, OWN, TRL)
    assert found is not None and found.kind == kind and found.steps
    said = " ".join((found.says, *found.steps))
    assert all(word in said for word in words) and "{" not in said, said


def test_a_line_of_ones_own_comes_first() -> None:
    found = advice_of("IndexError: list index out of range", TRL, OWN)
    assert found is not None and found.kind == "own-code" and f"{OWN}:8" in found.steps[0]


def test_what_the_message_says_to_do_is_quoted() -> None:
    text = "ValueError: The batch is empty. Please set dataloader_drop_last=False; then it works."
    found = advice_of(text, TRL)
    assert said_cure(text) in found.steps[0] and "dataloader_drop_last=False" in found.steps[0]


def test_nothing_is_said_where_the_message_says_all() -> None:
    assert advice_of("RuntimeError: flux", OWN, TRL) is None and advise(None) is None
