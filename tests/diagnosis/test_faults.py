"""The last error of a log is always found, whatever its shape; what ended nothing is none."""

from __future__ import annotations

import pytest

from bisect_cfg.diagnosis._render import KNOWN, NO_FAILURE, UNKNOWN
from bisect_cfg.diagnosis.explain import explain_text

ROWS = "".join(
    f"{{'loss': 0.0, 'grad_norm': 0.3, 'learning_rate': 1e-06, 'reward': 0.4, 'reward_std': 0.2, 'epoch': 0.{i:02}}}\n"
    for i in range(10)
)
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    f()\n'

SHAPES = {
    "name without Error": ("oddpackage.errors.OutOfFunds: not enough of it\n", 1, "OutOfFunds"),
    "logger": ("2025-04-03 10:11:12,123 - __main__ - ERROR - Training failed: foo is bad\n", 1, "foo is bad"),
    "engine core": ("(EngineCore pid=1) ERROR 08-12 10:11:12 [core.py:586] ValueError: strange\n"
    "RuntimeError: Engine core initialization failed.\n", 1, "strange"),
    "glog": ("[E socket.cpp:957] [c10d] The client socket did something odd.\n", 1, "odd"),
    "argparse": ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo 3\n", 2, "--foo 3"),
    "srun": ("srun: error: node12: task 3: Exited with exit code 1\n", 1, "exit code 1"),
    "slurmstepd": ("slurmstepd: error: execve(): python: No such file or directory\n", 1, "execve"),
    "next line": (TRACEBACK + "RuntimeError: \n        Something failed despite GPU being available\n", 4,
        "despite GPU"),
    "wrapper": (
        TRACEBACK + "KeyError: 'x'\n\nThe above exception was the direct cause of the following exception:\n\n"
        + TRACEBACK + "ray.exceptions.RayTaskError(KeyError): ray::main_task() (pid=1, ip=1.1.1.1)\n", 4,
        "KeyError: 'x'",
    ),
    "child failed": (
        "[rank1]: " + TRACEBACK.replace("\n", "\n[rank1]: ") + "KeyError: 'x'\n"
        + TRACEBACK + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", 4, "KeyError: 'x'",
    ),
    "shell": ("train.sh: line 3: pyton: command not found\n", 1, "command not found"),
    "hydra": ("Error executing job with overrides: ['a=1']\n", 1, "overrides"),
    "C++": ("terminate called after throwing an instance of 'std::runtime_error'\n", 1, "terminate called"),
    "Ray's own": (
        "[2025-10-31 11:59:10,101 W 7 7] metric_exporter.cc:105: Failed to export metrics\n"
        "[2025-10-31 11:59:10,379 E 7 7] core_worker.cc:513: Failed to do something odd\n", 2, "something odd",
    ),
    "Kubernetes": (
        "2025-05-23T16:49:12.290129429Z ERROR:trainer:Encountered error during training!\n"
        + "".join(f"2025-05-23T16:49:12.290129429Z {line}\n"
            for line in (TRACEBACK + "OddError: of a pod").splitlines()), 5, "of a pod",
    ),
    "rank and pid": (
        "".join(f"(VllmWorker rank=1 pid=85) ERROR 03-13 07:26:06 [executor.py:375] {line}\n"
            for line in (TRACEBACK + "OddError: of a worker").splitlines()),
        4, "of a worker",
    ),
    "loguru": ("2025-06-15 17:26:13.128 | ERROR    | train:main:12 - OddError: of loguru\n", 1, "OddError: of loguru"),
    "wrapped by Ray": (
        TRACEBACK + "ray.exceptions.RayTaskError(RuntimeError): ray::A.b() (pid=1, ip=1.1.1.1)\n"
        "  File \"b.py\", line 4, in b\n    ray.get(refs)\n"
        "ray.exceptions.RayTaskError(RuntimeError): ray::C.d() (pid=2, ip=1.1.1.1)\n"
        "RuntimeError: Worker failed with error 'odd', please check\n", 8, "odd",
    ),
    "cut off": ("ERROR 08-12 10:11:12 [core.py:586] Traceback (most recent call last):\n", 1, "Traceback"),
}  # fmt: skip


@pytest.mark.parametrize("log, line, part", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("before", ["", ROWS], ids=["alone", "after rows"])
def test_the_error_is_shown_with_its_line(log: str, line: int, part: str, before: str) -> None:
    found = explain_text(before + log)
    assert found.error is not None and part in found.error.text
    assert found.error.number == line + before.count("\n")
    assert found.status in (KNOWN, UNKNOWN) and f"line {found.error.number}: " in str(found)


@pytest.mark.parametrize(
    "log, entry",
    [
        ("  State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137\n", "host-out-of-memory"),
        ("Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)\n", "segmentation-fault"),
        ("Process finished with exit code -1073741819 (0xC0000005)\n", "segmentation-fault"),
        ("Exited with exit code 137.\n", "host-out-of-memory"),
        (
            "E0303 10:11:12.1 4711 api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 4) of binary: python\n",
            "host-out-of-memory",
        ),
        ("  exitcode  : -11 (pid: 4711)\n", "segmentation-fault"),
        (ROWS + "^CFloating point exception (core dumped)\n", "integer-division"),
        ("Getötet\n", "host-out-of-memory"),
    ],
)
def test_exit_statuses_alone(log: str, entry: str) -> None:
    found = explain_text(log)
    assert found.status == KNOWN and found.matches[0].entry.id == entry


LOGGING = (
    "--- Logging error ---\n" + TRACEBACK + "TypeError: not all arguments converted during string formatting\n"
    "Call stack:\n  File \"a.py\", line 3, in <module>\nMessage: 'x'\nArguments: (1,)\n"
)  # fmt: skip
RETRIED = "ERROR: wandb: Network error (ConnectionError), entering retry loop.\n"
NO_FAILURES = {
    "a logger's own error": ROWS + LOGGING,
    "survived": ROWS + TRACEBACK + "ValueError: invalid literal for int()\n" + ROWS,
    "survived and known": ROWS + TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory\n" + ROWS,
    "quoted in a completion": ROWS + 'completion: "Traceback (most recent call last): ValueError: CUDA out of memory"\n'
        + ROWS,
    "at an object's end": ROWS + "Exception ignored in: <function A.__del__ at 0x1>\n" + TRACEBACK
        + "AttributeError: 'A' object has no attribute 'x'\n",
    "TensorFlow": "2025-03-02 10:11:12.1 E external/xla/cuda_fft.cc:477] Unable to register cuFFT factory: already "
    "registered\n" + ROWS,
    "pip": "ERROR: pip's dependency resolver does not currently take into account all the packages that are "
    "installed.\n" + ROWS,
    "a row of another rank": ROWS,
    "resolved, says the end": RETRIED + "Training completed.\n",
    "optional": "flash_attn ... not installed: ModuleNotFoundError: No module named 'flash_attn'\nAll checks passed.\n",
    "completions": "prompt: Why?\ncompletion: RuntimeError: CUDA out of memory may follow.\nreward: 0.7\n",
}  # fmt: skip


@pytest.mark.parametrize("log", NO_FAILURES.values(), ids=NO_FAILURES.keys())
def test_what_ends_nothing_is_no_failure(log: str) -> None:
    found = explain_text(log)
    assert found.status == NO_FAILURE, (found.error, found.matches)


@pytest.mark.parametrize("echoed", ["Training done.\n", "", "srun: job 7 completed successfully\n"])
def test_what_a_script_echoes_after_it_survives_no_traceback(echoed: str) -> None:
    found = explain_text(TRACEBACK + "RuntimeError: 'weight' must be 2-D\n" + echoed)
    assert found.matches[0].entry.id == "zero3-empty-weight"


def test_an_error_after_the_training_counts() -> None:
    found = explain_text(ROWS + "Training completed.\nOSError: [Errno 28] No space left on device\n")
    assert found.matches and found.error.number == ROWS.count("\n") + 2


def test_a_message_that_a_box_wraps_is_read_as_one() -> None:
    box = (
        "╭──────────── Traceback (most recent call last) ───────────╮\n"
        "│ /home/a/train.py:12 in <module>                          │\n"
        "╰──────────────────────────────────────────────────────────╯\n"
        "RuntimeError: probability tensor contains either `inf`,\n`nan` or element < 0\n"
    )  # fmt: skip
    inside = (
        "│ RuntimeError: probability tensor contains either `inf`,  │\n"
        "│ `nan` or element < 0                                    │\n"
    )
    hard = "RuntimeError: probability tensor contains ei\nther `inf`, `nan` or element < 0\n"
    for log in (box, inside, hard):
        assert explain_text(log).matches[0].entry.id == "sampling-non-finite-weights"


def test_what_a_launcher_prints_next_is_no_part_of_an_error() -> None:
    for after in (
        "[2024-05-08 15:02:11,290] [ERROR] [launch.py:325:sigkill_handler] exits with return code = 1",
        "E0611 09:14:52.204000 9080 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
        "local_rank: 6 (pid: 9120)",
        "Exception ignored in: <function A.__del__ at 0x7f2>",
    ):
        found = explain_text(TRACEBACK + "AssertionError\n" + after + "\n")
        assert found.error is not None and found.error.text == "AssertionError"
        assert not found.matches and found.status == UNKNOWN, after


def test_the_first_line_counts_and_not_what_follows_from_it() -> None:
    found = explain_text(
        ROWS + "CUDA Error: out of memory at /w/cumem_allocator.cpp:56\nFatal Python error: Segmentation fault\n"
    )
    assert found.error is not None and "out of memory" in found.error.text


def test_words_of_a_launcher_alone_are_a_failure_that_is_not_known() -> None:
    found = explain_text("train.py FAILED\nRoot Cause (first observed failure):\n  exitcode  : 1 (pid: 9120)\n")
    assert found.matches[0].entry.aftermath and found.status == UNKNOWN


def test_a_later_error_of_the_same_process_counts() -> None:
    """A process dies once: what it printed before was caught."""
    log = (
        TRACEBACK
        + "ImportError: no flash attention\n"
        + "falling back\n"
        + TRACEBACK
        + "ZeroDivisionError: division by zero\n"
    )
    found = explain_text(log)
    assert found.error is not None and "ZeroDivisionError" in found.error.text
    ranks = "".join(
        f"[rank{rank}]: {line}\n" for line in (TRACEBACK + "KeyError: 'first'").splitlines() for rank in (1,)
    )
    later = "".join(
        f"[rank0]: {line}\n"
        for line in (TRACEBACK + "torch.distributed.DistBackendError: NCCL error, remote process exited").splitlines()
    )
    found = explain_text(ranks + later)
    assert (
        found.error is not None and "first" in found.error.text and found.last is not None and "NCCL" in found.last.text
    )


def test_lines_with_numbers_of_cat_are_read_as_without():
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: batch 7 is odd\n+ exit=1\n'
    )
    numbered = "".join(f"{number:6}\t{line}\n" for number, line in enumerate(log.splitlines(), 1))
    plain, told = explain_text(log), explain_text(numbered)
    assert plain.error is not None
    assert told.error == plain.error and told.status == plain.status
    assert plain.error.text == "ValueError: batch 7 is odd"


@pytest.mark.parametrize(
    "prefix",
    [
        "trainer-1    | ",
        "train    | ",
        "(worker1, rank=1, pid=19, ip=10.2.1.7) ",
        "GPUCA6E: ",
        "     7\tvllm-1      | ",
    ],
)
def test_who_printed_a_traceback_is_no_part_of_it(prefix):
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: batch 7 is odd\n'
    error = explain_text("".join(prefix + line + "\n" for line in log.splitlines())).error
    assert error is not None and error.text == "ValueError: batch 7 is odd"


@pytest.mark.parametrize(
    "noise",
    [
        "tee: standard output: Broken pipe",
        "+ exit_code=1",
        "++ date",
        "rsync: connection closed",
        "vllm-1 exited with code 1",
    ],
)
def test_what_a_shell_prints_next_is_no_part_of_a_message(noise):
    shown = str(explain_text(f"ValueError: Two were given. Please pass `ref_model=None`.\n{noise}\n"))
    assert "Please pass `ref_model=None`.”" in " ".join(shown.split())
