"""From what the instruments saw to a place: the first operation that breaks the numbers, the frame under the fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.probe.protocol import LastOperation, Operation, Overflow, Raised, Update
from bisect_cfg.runner.where import Where, locate, short, without_templates

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


FRAMES = [("/a/train.py", 3, "main"), (f"{SITE}torch/optim/adam.py", 547, "adam")]
FORWARD = [f'  File "{SITE}trl/trainer/grpo_trainer.py", line 2670, in _compute_loss', "    ratio = torch.exp(x)"]
RAISED = [("/a/train.py", 9, "main"), (f"{SITE}trl/x.py", 4, "_generate"), (f"{SITE}torch/_ops.py", 1, "call")]
EXCEPTION = Raised("RuntimeError", "", RAISED, computing="model.layers.0 (Layer)")


def operation(name: str, what: str, step: int = 1, **more: Any) -> Operation:
    return Operation(step, f"aten.{name}.default", what, frames=FRAMES, **more)


def update(step: int = 1, broken: tuple[str, ...] = (), **more: Any) -> Update:
    return Update(step, "AdamW", broken="".join(broken[:1]), broken_count=len(broken), **more)


ADAM = "torch/optim/adam.py:547 in adam"
OPERATIONS = [
    operation("_foreach_norm", "inf"),
    operation("mul", "nan"),
    operation("addcdiv_", "nan", module="AdamW.step"),
    update(broken=("model.embed.weight", "model.head.weight")),
    operation("mm", "nan", step=2),
]
UPDATES = [update(1, parameter="a.weight", relative=0.2), update(3, parameter="a.weight", relative=0.1)]
FURTHEST = update(2, parameter="b.weight", relative=3.1)


@pytest.mark.parametrize(
    ("kind", "events", "step", "module", "what", "line", "text"),
    [
        # The first NaN, and the weights that it breaks.
        ("non-finite", OPERATIONS, 1, "model.embed", "mul", ADAM, "breaks model.embed.weight and 1 other weights"),
        ("non-finite", OPERATIONS[2:], 1, "model.embed", "AdamW.step: addcdiv_", ADAM, "the first NaN"),
        # An infinity counts where no NaN follows.
        ("non-finite", [operation("exp", "inf", module="lm_head (L)")], 1, "lm_head (L)", "exp", ADAM, "infinity"),
        # What happens after the weights broke is a consequence.
        ("non-finite", [update(broken=("a.b.weight",)), OPERATIONS[4]], 1, "a.b", "AdamW.step", "", "it breaks a.b"),
        # The backward pass is led back to the line of the forward pass.
        ("non-finite", [operation("mul", "nan", backward="ExpBackward0", forward=FORWARD)], 1, "", "ExpBackward0: mul",
         "trl/trainer/grpo_trainer.py:2670 in _compute_loss", "in the backward pass"),
        # A module whose output overflows.
        ("non-finite", [Overflow(3, "norm (Norm)")], 3, "norm (Norm)", "forward", "", "output is not finite"),
        ("exception", [update(step=2), EXCEPTION], 3, "model.layers.0 (Layer)", "_generate",
         "trl/x.py:4 in _generate", ""),
        ("exception", [update(step=3), EXCEPTION], 3, "model.layers.0 (Layer)", "_generate",
         "trl/x.py:4 in _generate", ""),  # after its update, before its end
        ("exception", [update(step=2), replace(EXCEPTION, beyond="index 699, where the last is 511")], 3,
         "model.layers.0 (Layer)", "_generate", "trl/x.py:4 in _generate", "index 699, where the last is 511"),
        # The update that moves furthest.
        ("collapse", [*UPDATES, FURTHEST], 2, "b", "AdamW.step", "", "310%"),
        ("collapse", UPDATES, 1, "a", "AdamW.step", "", "20%"),
    ],
)  # fmt: skip
def test_where_a_failure_happens(kind, events, step, module, what, line, text) -> None:
    found = locate(kind, events, done=2)
    assert (found.step, found.module, found.operation, found.line) == (step, module, what, line)
    assert text in found.text and bool(text) == bool(found.text)


def test_a_signal_with_everything_known() -> None:
    place = LastOperation("model.q_proj (Linear)", "aten.div.Tensor_mode", 1)
    found = locate("signal", [], STACKS, GDB, place)
    assert (found.step, found.module, found.operation) == (1, "model.q_proj (Linear)", "div")
    assert found.line == "reward.py:31 in score"
    assert found.frames == ("trl/trainer/grpo_trainer.py:912 in _compute_loss", "reward.py:31 in score")
    assert found.native == "at::native::(anonymous namespace)::div_trunc_kernel (libtorch_cpu.so)"
    assert found.native_frames[0] == "c10::function_ref (libtorch_cpu.so)" and len(found.native_frames) == 3
    assert locate("signal", [], "", CUBLAS).native == "cublasLtMatmulAlgoCheck (libcublasLt.so.12)"
    assert not locate("signal", [], "", "ptrace: Operation not permitted.")
    steps = [locate("signal", [], STACKS, "", LastOperation(step=3), done).step for done in (0, 2, 3)]
    assert steps == [3, 3, 4], "it may die before the instruments saw the next step begin"


@pytest.mark.parametrize("kind", ["signal", "non-finite", "exception", "collapse", "hang", "cuda-assert"])
def test_nothing_seen_is_nowhere(kind: str) -> None:
    assert not locate(kind, []) and locate(kind, []) == Where(text=locate(kind, []).text)


@given(st.text(max_size=300), st.text(alphabet="abc:<>()& ,*", max_size=60))
def test_any_text_of_gdb_or_faulthandler_is_read_and_names_keep_no_arguments(text: str, name: str) -> None:
    assert isinstance(locate("signal", [], text, text), Where)
    plain = without_templates(name)
    assert "<" not in plain and plain == " ".join(plain.split())


def test_a_file_of_a_library_is_named_with_its_folder_and_one_of_the_users_without() -> None:
    assert short("/usr/lib/python3.11/random.py") == "python3.11/random.py"
    assert short("/opt/lib64/python3.13/json/decoder.py") == "python3.13/json/decoder.py"
    assert short(f"{SITE}numpy/core.py") == "numpy/core.py" and short("/home/me/lib/train.py") == "train.py"
