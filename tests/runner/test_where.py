"""From what the instruments saw to a place: the first operation that breaks the numbers, the frame under the fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.probe.protocol import LastOperation, Operation, Overflow, Raised, Update
from bisect_cfg.runner.where import Where, innermost, locate, native_frames, short, without_templates

SITE = "/venv/lib/python3.11/site-packages/"

GDB = Path(__file__).with_name("gdb.txt").read_text()

CUBLAS = """\
#0  0x1 in __libc_pause () at pause.c:29
#1  <signal handler called>
#2  0x00007f0000000001 in ?? () from /opt/nvidia/cublas/lib/libcublasLt.so.12
#3  0x00007f0000000002 in cublasLtMatmulAlgoCheck () from /opt/nvidia/cublas/lib/libcublasLt.so.12
#4  0x00007f0000000003 in cublasGemmEx () from /opt/nvidia/cublas/lib/libcublas.so.12
"""

STACKS = f"""Fatal Python error: Floating point exception

Thread 0x00007f26b7efd6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f2791290b80 (most recent call first):
  File "{SITE}torch/_ops.py", line 916 in __call__
  File "/x/bisect_cfg/probe/instruments.py", line 296 in __torch_dispatch__
  File "/home/me/reward.py", line 31 in score
  File "{SITE}torch/nn/modules/module.py", line 1830 in inner
  File "{SITE}trl/trainer/grpo_trainer.py", line 912 in _compute_loss

Extension modules: numpy
"""


def operation(name: str, what: str, step: int = 1, **more: Any) -> Operation:
    frames = [("/a/train.py", 3, "main"), (f"{SITE}torch/optim/adam.py", 547, "adam")]
    return Operation(step, f"aten.{name}.default", what, frames=frames, **more)


def update(step: int = 1, broken: tuple[str, ...] = (), **more: Any) -> Update:
    return Update(step, "AdamW", broken=list(broken[:1]), broken_count=len(broken), **more)


def test_the_first_nan_and_the_weights_it_breaks() -> None:
    events = [
        operation("_foreach_norm", "inf"),
        operation("mul", "nan"),
        operation("addcdiv_", "nan", module="AdamW.step"),
        update(broken=("model.embed.weight", "model.head.weight")),
        operation("mm", "nan", step=2),
    ]
    found = locate("non-finite", events)
    assert (found.step, found.operation, found.module) == (1, "mul", "model.embed")
    assert found.line == "torch/optim/adam.py:547 in adam"
    assert "an infinity before it, _foreach_norm" in found.text
    assert "breaks model.embed.weight and 1 other weights" in found.text
    later = locate("non-finite", [*events[2:]])
    assert later.operation == "AdamW.step: addcdiv_" and later.module == "model.embed"


def test_an_infinity_counts_where_no_nan_follows() -> None:
    found = locate("non-finite", [operation("exp", "inf", module="lm_head (Linear)")])
    assert (found.operation, found.module) == ("exp", "lm_head (Linear)") and "infinity" in found.text


def test_what_happens_after_the_weights_broke_is_a_consequence() -> None:
    found = locate("non-finite", [update(broken=("a.b.weight",)), operation("mm", "nan", step=2)])
    assert (found.operation, found.module, found.line) == ("AdamW.step", "a.b", "")


def test_the_backward_pass_is_led_back_to_its_forward_line() -> None:
    forward = [
        f'  File "{SITE}trl/trainer/grpo_trainer.py", line 2670, in _compute_loss',
        "    ratio = torch.exp(x)",
    ]
    found = locate("non-finite", [operation("mul", "nan", backward="ExpBackward0", forward=forward)])
    assert found.operation == "ExpBackward0: mul" and found.line == "trl/trainer/grpo_trainer.py:2670 in _compute_loss"


def test_a_module_whose_output_overflows() -> None:
    variables = ["  model.norm Norm", "1.0e+00 2.0e+00 weight", "     nan      nan output"]
    found = locate("non-finite", [Overflow(3, "model.norm (Norm)", variables)])
    assert (found.step, found.module, found.text) == (3, "model.norm (Norm)", "output is not finite")


def test_an_exception_and_the_module_it_was_raised_in() -> None:
    frames = [
        ("/a/train.py", 9, "main"),
        (f"{SITE}trl/x.py", 4, "_generate"),
        (f"{SITE}torch/_ops.py", 1, "call"),
    ]
    row = Raised("RuntimeError", "", frames, computing="model.layers.0 (Layer)")
    found = locate("exception", [update(step=2), row], done=2)
    assert (found.step, found.line, found.module) == (3, "trl/x.py:4 in _generate", "model.layers.0 (Layer)")
    assert locate("exception", [update(step=2), row], done=1).step == 2, "after its update, before its end"


def test_a_signal_with_everything_known() -> None:
    place = LastOperation("model.q_proj (Linear)", "aten.div.Tensor_mode", 1)
    found = locate("signal", [], STACKS, GDB, place)
    assert (found.step, found.module, found.operation) == (1, "model.q_proj (Linear)", "div")
    assert found.line == "reward.py:31 in score"
    assert found.frames == ("trl/trainer/grpo_trainer.py:912 in _compute_loss", "reward.py:31 in score")
    assert found.native == "at::native::(anonymous namespace)::div_trunc_kernel (libtorch_cpu.so)"


def test_a_signal_before_the_instruments_saw_the_next_step_begin() -> None:
    place = LastOperation("", "", 3)
    assert [locate("signal", [], STACKS, "", place, done).step for done in (0, 2, 3)] == [3, 3, 4]
    assert locate("signal", [], STACKS, "", LastOperation(), 3).step is None


def test_native_frames_begin_under_the_fault() -> None:
    names = native_frames(GDB)
    assert names[0].startswith("c10::function_ref::callback_fn") and len(names) == 3
    assert innermost(native_frames(CUBLAS)) == "cublasLtMatmulAlgoCheck (libcublasLt.so.12)"
    assert native_frames("ptrace: Operation not permitted.") == () and innermost(()) == ""


def test_the_update_that_moves_most() -> None:
    rows = [update(1, parameter="a.weight", relative=0.2), update(2, parameter="b.weight", relative=3.1)]
    found = locate("collapse", [*rows, update(3, parameter="a.weight", relative=0.1)])
    assert (found.step, found.module, found.operation) == (2, "b", "AdamW.step") and "310%" in found.text


def test_the_line_of_the_update_that_moves_most() -> None:
    frames = [["/a/train.py", 9, "main"], [f"{SITE}torch/optim/adam.py", 547, "_single_tensor_adam"]]
    row = update(2, parameter="b.weight", relative=3.1, operation="aten.addcdiv_.default", frames=frames)
    found = locate("collapse", [update(1, parameter="a.weight", relative=0.2), row])
    assert found.operation == "AdamW.step: addcdiv_"
    assert found.line == "torch/optim/adam.py:547 in _single_tensor_adam" and found.frames[0] == "train.py:9 in main"


@pytest.mark.parametrize("kind", ["signal", "non-finite", "exception", "collapse", "hang", "cuda-assert"])
def test_nothing_seen_is_nowhere(kind: str) -> None:
    assert not locate(kind, []) and locate(kind, []) == Where(text=locate(kind, []).text)


@given(st.text(alphabet="abc:<>()& ,*", max_size=60))
def test_names_keep_no_arguments(name: str) -> None:
    plain = without_templates(name)
    assert "<" not in plain and plain == " ".join(plain.split())


@given(st.text(max_size=300))
def test_any_text_of_gdb_or_faulthandler_is_read(text: str) -> None:
    assert isinstance(locate("signal", [], text, text), Where)


def test_paths_as_people_name_them() -> None:
    assert short(SITE + "trl/trainer/grpo_trainer.py") == "trl/trainer/grpo_trainer.py"
    assert short("/home/me/train.py") == "train.py"
