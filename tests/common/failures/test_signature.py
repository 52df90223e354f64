"""Signatures: reruns of one failure share theirs, different failures never do."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from bisect_cfg.common.failures.signature import (
    Signature,
    from_exception,
    from_exit,
    from_log,
    is_sampling_error,
    normalise,
)
from bisect_cfg.common.failures.tracebacks import source_of

PROBABILITY = (
    "../aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], "
    "thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
)
INDEX = (
    "../aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [{b},0,0], "
    "thread: [{t},0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
)
DEVICE_ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously"


def traceback(error: str, prefix: str = "", library: str = "/opt/lib/python3.11/site-packages") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/a/train.py", line 31, in <module>',
        "    trainer.train()",
        f'  File "{library}/trl/trainer/grpo_trainer.py", line 912, in _prepare_inputs',
        "    return self._generate(inputs)",
        "           ^^^^^^^^^^^^^^^^^^^^^^",
        f'  File "{library}/torch/nn/modules/module.py", line 1751, in _call_impl',
        "    return forward_call(*args, **kwargs)",
        error,
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("batch_size (4) must be divisible by 3", "batch_size (16) must be divisible by 5"),
        ("found cuda:1 and cuda:0!", "[rank3]: found cuda:0 and cuda:7!"),
        ("no file /home/a/b.safetensors", "no file /mnt/x y/b.safetensors".replace(" y", "")),
        ("Target modules {'q_proj', 'k_proj', 'v'} not found", "Target modules {'v', 'q_proj', 'k_proj'} not found"),
        ("<Foo object at 0x7f01ab>", "\x1b[31m<Foo object at 0x55ff>\x1b[0m"),
        ("loss is 1e-06", "  2025-03-02 10:11:12,131 loss is  -3.5e+10"),
        ("Tried to allocate 2.50 GiB", "Tried to allocate 20.00 GiB"),
        ("\r 10%|#   | 1/10\rbad step", "bad step"),
        ("(WorkerDict pid=77, ip=10.0.0.1) bad step", "(EngineCore_0 pid=1) bad step"),
    ],
)
def test_normal_form_leaves_out_what_changes(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("got Float and BFloat16", "got Float and Half"),
        ("unexpected keyword argument 'warmup_ratio'", "unexpected keyword argument 'max_prompt_length'"),
        ("cuda:1 and cuda:0", "cuda:0 and cpu"),
        ("{'q_proj', 'v_proj'} not found", "{'q_proj', 'k_proj'} not found"),
    ],
)
def test_normal_form_keeps_what_matters(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


@pytest.mark.parametrize(
    ("returncode", "log"),
    [
        (-8, ""),
        (136, "浮点数例外（吐核）\n"),
        (136, "train.sh: line 3: 77 Floating point exception(core dumped) python train.py\n"),
        (1, "subprocess.CalledProcessError: Command '['python', 'a.py']' died with <Signals.SIGFPE: 8>.\n"),
        (1, "  exitcode  : -8 (pid: 4711)\n  traceback : Signal 8 (SIGFPE) received by PID 4711\n"),
        (1, b"[host:1] Caught signal 8 (Floating point exception: integer divide by zero)\n"),
        (1, "Gleitkomma-Ausnahme (Speicherabzug geschrieben)\n"),
        (-8, traceback("ValueError: caught long ago")),
    ],
)
def test_one_crash_told_in_many_ways(returncode: int, log: str | bytes) -> None:
    signature = from_exit(returncode, log)
    assert signature is not None and signature.same(Signature("signal", "SIGFPE"))


def test_exit_status_alone() -> None:
    assert from_exit(0, traceback("ValueError: x")) is None
    assert str(from_exit(3)) == "exit (3)"
    killed = from_exit(-9)
    assert killed is not None and killed.name == "SIGKILL" and "memory" in killed.message
    started = signature_of("mpirun noticed that process rank 3 with PID 88 on node n2 exited on signal 9 (Killed).\n")
    assert started is not None and started.name == "SIGKILL"
    assert from_exit(137, "oom_kill event in StepId=1\n") == Signature("out-of-memory", "host")
    assert from_exit(1, Path("no/such/log")) == Signature("exit", "1")


def test_signals_of_the_launcher_give_way_to_the_explanation() -> None:
    log = traceback("RuntimeError: weight is 2-D", "[rank1]: ")
    for returncode in (1, -6, -15):
        signature = from_exit(returncode, log)
        assert signature is not None and signature.name == "RuntimeError"


def test_ranks_interleave_and_the_first_counts() -> None:
    ours = traceback("ValueError: first", "[rank1]: ").splitlines(keepends=True)
    theirs = traceback("RuntimeError: NCCL peer is gone", "[rank0]: ").splitlines(keepends=True)
    mixed = "".join(a + b for a, b in zip(ours, theirs, strict=True))
    signature = from_log(io.BytesIO(mixed.encode()))
    place = "trl.trainer.grpo_trainer:_prepare_inputs"
    assert signature == Signature("exception", "ValueError", "first", place)


def test_a_traceback_that_training_survived_killed_nothing() -> None:
    metrics = "{'loss': '0', 'grad_norm': '0.3'}\n"
    log = traceback("OSError: no network") + metrics + traceback("ValueError: real")
    signature = from_log(io.BytesIO(log.encode()))
    assert signature is not None and signature.message == "real"


def test_of_chained_exceptions_the_last_is_the_one_that_was_raised() -> None:
    links = (
        "\n\nThe above exception was the direct cause of the following exception:\n\n",
        "\n\nDuring handling of the above exception, another exception occurred:\n\n",
    )
    for link in links:
        log = traceback("KeyError: 'a'") + link + traceback("ValueError: wrong")
        signature = from_exit(1, log)
        assert signature is not None and signature.name == "ValueError"


def test_launcher_errors_count_only_alone() -> None:
    launcher = traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED")
    both = from_log(io.BytesIO((launcher + traceback("ValueError: real")).encode()))
    alone = from_log(io.BytesIO(launcher.encode()))
    assert both is not None and both.message == "real"
    assert alone is not None and alone.name == "ChildFailedError"


def test_first_specific_assertion_wins_wherever_the_error_surfaces() -> None:
    flood = "".join(INDEX.format(b=block, t=thread) for block in range(3) for thread in range(50))
    one = from_exception("RuntimeError", DEVICE_ASSERT, [("/a/train.py", "main")], flood + PROBABILITY)
    other = from_exception("torch.AcceleratorError", DEVICE_ASSERT, [("/b/run.py", "step")], flood)
    third = from_exit(1, PROBABILITY + flood + traceback("RuntimeError: " + DEVICE_ASSERT))
    assert one.same(other) and one.name == "indexSelectLargeIndex"
    assert third is not None and not third.same(one) and is_sampling_error(third)
    assert not is_sampling_error(one)


def test_out_of_memory() -> None:
    gpu = from_exception("torch.cuda.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", [])
    later = from_exception("OutOfMemoryError", "CUDA out of memory. Tried to allocate 3 GiB", [("a.py", "f")])
    host = from_exception("RuntimeError", "[enforce] DefaultCPUAllocator: can't allocate memory: you", [])
    assert gpu.same(later) and gpu.kind == host.kind == "out-of-memory" and not gpu.same(host)


def test_place_counts_only_where_both_know_it() -> None:
    here = Signature("exception", "ValueError", "x", "trl.a:f")
    assert here.same(Signature("exception", "ValueError", "x"))
    assert not here.same(Signature("exception", "ValueError", "x", "trl.b:f"))


def test_in_process_and_from_the_log_agree() -> None:
    message = "The size of tensor a (61) must match the size of tensor b (62) at non-singleton dimension 2"
    frames = [
        ("/srv/checkout/train.py", "<module>"),
        ("/venv/lib/python3.12/site-packages/trl/trainer/grpo_trainer.py", "_prepare_inputs"),
        ("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", "_call_impl"),
    ]
    inside = from_exception("builtins.RuntimeError", message, frames)
    outside = from_exit(1, traceback(f"RuntimeError: {message.replace('61', '8').replace('62', '9')}"))
    assert inside == outside


def test_json_round_trip() -> None:
    signature = Signature("exception", "ValueError", "x", "a:b")
    assert Signature.from_json({**signature.to_json(), "later": 1}) == signature


SAMPLES = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "corpus/samples").glob("*.log")}
SHARED = [
    {"h20-cublas-sigfpe", "integer-division"},  # both end the process by SIGFPE; the environment tells them apart
    # one CUDA error
    {
        "openrlhf-wake-up-race",
        "illegal-memory-access",
        "top-p-kernel",
        "triton-illegal-access",
        "vllm-slept-while-busy",
    },
    {"device-map-hooks", "vllm-device-mismatch"},  # two devices
    {  # two lengths
        *("tensor-shapes", "rotary-off-by-one", "swift-loss-tensors", "unsloth-masked-mean"),
        *("distillation-vocabularies", "online-dpo-no-prompt-left", "value-model-labels"),
    },
    {
        "gpu-out-of-memory",
        "swift-zero3-gather-memory",
        "gpu-taken-by-another",
        "library-without-memory",
    },  # the same memory, filled by others
    {"segmentation-fault", "wake-up-out-of-memory"},  # how the process ended, and why
    {"global-batch-divisible", "no-valid-generations"},  # one check, with and without a way out
    {"mixed-dtensor", "dtensor-weight-sync"},  # anywhere, and on the way to the engine
    {"host-out-of-memory", "ray-host-memory"},  # the machine's memory, noticed by the kernel or by Ray
    {"process-aborted", "llvm-error", "rocm-memory-fault"},  # how the process ended, and why
    {"library-attribute", "remote-code-behind"},  # what a newer library lacks, asked for by whichever code
    {"trainer-gradient-accumulation", "evaluation-before-training"},  # an older transformers, or the order of things
    {"fp16-adam-epsilon", "unclipped-reward", "one-generation-std"},  # NaN weights, met by the next sampling
    {"prompts-above-engine-limit", "reward-raised"},  # an index out of range: of whose list, the lines before say
    {"signal-in-thread", "rewards-lost-to-an-alarm"},  # where it ends the run, and where that goes on
    {
        "checkpoint-incomplete",
        "verl-checkpoint-of-other-ranks",
    },  # a part of a checkpoint that is not there, by whom it was looked for
]
"""Entries whose logs show the same failure, of different origin."""


def signature_of(log: str) -> Signature | None:
    return from_log(io.BytesIO(log.encode()))


def test_different_known_failures_never_share_a_signature() -> None:
    shown = [(name, signature) for name, log in SAMPLES.items() if (signature := signature_of(log))]
    assert len(shown) >= 50
    for index, (one, first) in enumerate(shown):
        for other, second in shown[:index]:
            assert not first.same(second) or any({one, other} <= group for group in SHARED), (one, other)


@pytest.mark.parametrize("name", SAMPLES)
def test_reruns_share_theirs(name: str) -> None:
    log = SAMPLES[name]
    again = [
        log.replace("\n", "\r\n"),
        "".join(f"\x1b[31m{line}\x1b[0m\n" for line in log.splitlines()),
        "".join(f"[rank{3}]:{line}\n" for line in log.splitlines() if line.strip()) if "[rank" not in log else log,
        "Loading checkpoint shards: 100%|###| 2/2\n" * 200 + log,
        re.sub(r"(/[\w.-]+){2,}(?=/site-packages)", "/elsewhere/lib/python3.12", log),
        re.sub(r"line \d+", "line 77", log),
        log + "\n" + log,
    ]
    assert [signature_of(one) for one in again] == [signature_of(log)] * len(again)


def test_junk_is_no_failure_and_no_crash() -> None:
    junk = bytes(range(256)) * 4096 + b"\xe6\xb5" + b"\n" + b"x" * 300_000
    assert from_log(io.BytesIO(junk)) is None


@pytest.mark.parametrize(("file", "owner", "module"), [
    ("/v/lib/python3.11/site-packages/trl/trainer/grpo.py", "trl", "trl.trainer.grpo"),
    ("/v/lib/python3.11/site-packages/six.py", "six", "six"),
    ("C:\\v\\site-packages\\peft\\__init__.py", "peft", "peft"),
    ("/usr/lib/python3.12/asyncio/runners.py", "python", "asyncio.runners"), ("/src/vllm/vllm/engine.py", "vllm",
     "vllm.engine"), ("<frozen runpy>", "python", ""), ("aten/x.pyx", "python", "x.pyx"),
    ("/home/me/train.py", "", "train"), ("<ipython-input-3-9e>", "", "__main__"),
])  # fmt: skip
def test_whose_a_file_of_a_stack_is(file, owner, module):
    assert source_of(file) == (owner, module)
