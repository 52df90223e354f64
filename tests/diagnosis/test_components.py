"""What an answer says of an engine, a trainer or a kind of training needs it in sight of the log."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis._components import RL, Absent, absent_in, fits, fitting_steps
from bisect_cfg.diagnosis.advice.reading import Frame, phase_of
from bisect_cfg.diagnosis.explain import Explanation, explain_text

SITE = "/opt/env/lib/python3.11/site-packages"
FRAMES = tuple(Frame(f"/home/me/{name}.py", 3, "main", "run()", "") for name in "ab")


def log(error: str, *frames: str, before: str = "") -> str:
    lines = "".join(
        f'  File "{where}", line 7, in {function}\n    {source}\n'
        for where, function, source in (frame.split(" ", 2) for frame in frames)
    )
    return f"{before}Traceback (most recent call last):\n{lines}{error}\n"


def led(text: str) -> tuple[Explanation, str]:
    found = explain_text(text)
    match = found.matches[0]
    assert not match.doubt
    return found, " ".join((match.title, match.meaning, *match.steps))


def test_a_rival_or_a_traceback_rules_a_component_out_and_an_excerpt_does_not() -> None:
    assert "vLLM" in absent_in("sglang/srt/managers/scheduler.py", (), "").replaced
    assert "TRL" in absent_in("axolotl.cli.train", (), "").replaced
    assert RL in absent_in("train_sft.py", (), "supervised").replaced
    shown = absent_in("nothing of them", FRAMES, "")
    assert {"vLLM", "FSDP", RL} <= shown.unseen and "vLLM" not in shown.replaced
    assert absent_in("nothing of them", (), "") == Absent()


def test_steps_of_what_is_replaced_go_and_of_what_is_unseen_come_last() -> None:
    steps = ("vLLM: enforce_eager=True", "num_generations down", "a smaller batch", "torch for it (vLLM, too)")
    other = Absent(frozenset({RL}), frozenset({RL, "vLLM"}))
    assert fitting_steps(steps, other) == steps[2:]
    assert fitting_steps(steps[:3], other) == (steps[2], steps[0])
    assert fitting_steps(steps[:2], Absent(frozenset({RL, "vLLM"}))) == steps[:2]  # it knows nothing else
    longer = "shorter: max_length, or max_completion_length"
    assert fitting_steps((longer, "b"), other) == ("shorter: max_length", "b")
    assert not fits("vLLM: the settings of TRL", frozenset({"vLLM"}))
    assert fits("a disk with room for TMPDIR, RAY_TMPDIR and WANDB_DIR", frozenset({"Ray", "Weights & Biases"}))


MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.80 GiB."
IMAGES = "ValueError: Image features and image tokens do not match: tokens: 9888, features 9887"
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
NO_GRADIENT = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
TRAINER = f"{SITE}/transformers/trainer.py train return inner_training_loop("


@pytest.mark.parametrize(
    ("text", "says", "nothing_of"),
    [
        (
            log(MEMORY, "/w/sglang/srt/managers/scheduler.py run_scheduler_process loop()", before="verl GRPO\n"),
            "mem_fraction_static",
            ("per_device_train_batch_size", "vLLM:"),
        ),
        (
            log(MEMORY, TRAINER, f"{SITE}/transformers/models/llama/modeling_llama.py forward head()", before="sft\n"),
            "per_device_train_batch_size",
            ("num_generations", "vllm"),
        ),
        (
            log(MEMORY, "/home/me/embed.py main encode()", f"{SITE}/sentence_transformers/model.py encode run()"),
            "a smaller batch",
            ("per_device_train_batch_size", "num_generations", "checkpointing"),
        ),
        (log(IMAGES, "/w/train_sft.py main go()", TRAINER, before="SFTTrainer\n"), "row", ("policy", "bad_words")),
        (log(NAN, "/home/me/chat.py main go()", f"{SITE}/transformers/generation/utils.py _sample x()"),
         "float16", ("step before", "learning rate")),
        (log(NO_GRADIENT, "/home/me/loop.py main loss.backward()", f"{SITE}/torch/_tensor.py backward b()"),
         "requires_grad", ("PEFT", "checkpointing")),
    ],
    ids=["engine", "supervised", "no training", "a row", "inference", "own loop"],
)  # fmt: skip
def test_the_same_error_elsewhere_is_answered_for_where_it_is(
    text: str, says: str, nothing_of: tuple[str, ...]
) -> None:
    _, answer = led(text)
    assert says in answer and not [word for word in nothing_of if word in answer]


def test_an_environment_called_grpo_makes_no_run_with_rewards() -> None:
    found, _ = led(log(IMAGES, "/data/envs/grpo/lib/python3.10/site-packages/a/b.py go x()", before="SFTTrainer\n"))
    assert found.environment["task"] == "supervised"


def test_the_part_of_a_run_is_that_of_the_engine_and_no_check_of_arguments_is_an_evaluation() -> None:
    engine = Frame(f"{SITE}/vllm/model_executor/models/qwen2.py", 3, "forward", "self.model(x)", "vllm")
    checked = Frame(f"{SITE}/accelerate/commands/launch.py", 3, "_validate_launch_command", "raise", "accelerate")
    assert phase_of((*FRAMES, engine)) == "generation"
    assert phase_of((*FRAMES, checked)) == ""


def test_an_exception_of_ones_own_module_is_no_library() -> None:
    own = log("rewards.JudgeRefused: no answer", "/home/me/rewards.py judge raise JudgeRefused('no answer')")
    found = explain_text(own)
    assert found.advice is not None and found.advice.kind == "own-code"
    assert not any("documentation" in step for step in found.steps)
