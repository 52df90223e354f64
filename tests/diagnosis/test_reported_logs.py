"""Logs as launchers, shells and frameworks really print them: each was once explained wrongly."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_cfg.diagnosis.explain import explain, explain_text

HEALTHY = "".join(
    f"{{'loss': '0.0{i}1', 'grad_norm': '0.{40 + i}', 'learning_rate': '1e-06', 'reward': '0.{30 + i}', "
    f"'reward_std': '0.2', 'epoch': '0.0{i}'}}\n"
    for i in range(1, 9)
)
LAUNCHER = """Traceback (most recent call last):
  File "/opt/conda/bin/accelerate", line 8, in <module>
    sys.exit(main())
subprocess.CalledProcessError: Command '['/opt/conda/bin/python3.10', 'grpo_gsm.py']' died with <Signals.SIGFPE: 8>.
"""
NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
FSDP = """Traceback (most recent call last):
  File "/env/torch/distributed/fsdp/fully_sharded_data_parallel.py", line 864, in forward
    output = self._fsdp_wrapped_module(*args, **kwargs)
"""


@pytest.mark.parametrize(
    "log, entry",
    [
        (LAUNCHER, "integer-division"),
        ("s4.sh: line 2: 25963 Floating point exceptionpython3 fpe.py\n", "integer-division"),
        (
            "run.sh: line 3: 4411 Floating point exception(core dumped) CUDA_VISIBLE_DEVICES=0 python train.py\n",
            "integer-division",
        ),
        ("zsh: floating point exception (core dumped)  python train.py\n", "integer-division"),
        ("(pid=412) *** SIGFPE received at time=1739948402 on cpu 12 ***\n", "integer-division"),
        ("[launch.py:325] Process 4411 exits with return code = -8\n", "integer-division"),
        ("\ufeff浮点数例外（吐核）\n", "integer-division"),
        ("GPU 0: NVIDIA H20\n" + LAUNCHER, "h20-cublas-sigfpe"),
        ("torch 2.5.1+cu121\n" + LAUNCHER, "h20-cublas-sigfpe"),
        (FSDP + NAN, "sampling-non-finite-weights"),
        (FSDP + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", "gpu-out-of-memory"),
        ("GRPOConfig(max_grad_norm=0.1, bf16=True)\n" + NAN, "sampling-non-finite-weights"),
        ("GRPOConfig(max_grad_norm=0.0, bf16=True)\n" + NAN, "unclipped-reward"),
        (
            "".join(
                f"step:{i} - actor/grad_norm:np.float64(nan) - critic/score/mean:np.float64(0.2)\n" for i in range(9)
            ),
            "non-finite-gradient",
        ),
        (
            "".join(
                f"{{'loss': '0', 'grad_norm': '0', 'reward': '0.4', 'reward_std': '0.2', 'step': '{i}'}}\n"
                for i in range(6)
            ),
            "no-gradient",
        ),
        (
            "Some specified arguments are not used by the HfArgumentParser: ['--max_prompt_length', '512']\n",
            "removed-argument",
        ),
        (
            "*** JOB 881231 ON n CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT ***\n"
            "srun: error: n: task 1: Killed\n",
            "slurm-limit",
        ),
    ],
)
def test_explained_by(log: str, entry: str) -> None:
    matches = explain_text(log).matches
    assert matches and matches[0].entry.id == entry


@pytest.mark.parametrize(
    "log",
    [
        HEALTHY,
        "/env/torch/distributed/fsdp/fully_sharded_data_parallel.py:690: FutureWarning: FSDP.state_dict_type()\n"
        + HEALTHY,
        "GRPOConfig(use_liger_kernel=True, beta=0.0, use_vllm=True)\n" + HEALTHY,
        "bash: line 1: 4411 Killed                  timeout 5 python3 sol.py\n" + HEALTHY,
        "TypeError: '>' not supported between instances of 'float' and 'str'\n",
    ],
)
def test_explained_by_nothing(log: str) -> None:
    assert explain_text(log).matches == ()


def test_a_diverged_kl_is_not_blamed_for_what_the_gradient_did_first() -> None:
    rows = [("0.4", "0.01")] * 9 + [("nan", "0.01")] + [("nan", "nan")] * 9
    log = "".join(f"{{'loss': '0.1', 'grad_norm': '{norm}', 'kl': '{kl}', 'reward': '0.4'}}\n" for norm, kl in rows)
    assert explain_text(log).matches[0].entry.id == "non-finite-gradient"


@pytest.mark.parametrize("name, hit", [("NVIDIA H20", True), ("NVIDIA H20-3e", True), ("NVIDIA H200", False)])
def test_an_h200_is_no_h20(name: str, hit: bool) -> None:
    environment = {"packages": {}, "gpus": [{"name": name}], "cublas": {"version": "12.1.3.1"}}
    found = explain(io.BytesIO(LAUNCHER.encode()), environment=environment).matches
    assert ("h20-cublas-sigfpe" in [match.entry.id for match in found]) == hit


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_logs_from_powershell(tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "train.log"
    log.write_text("启动\r\n" + LAUNCHER, encoding=encoding)
    command = [sys.executable, "-m", "bisect_cfg", "explain", str(log)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0 and "divided an integer by zero" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "recorded",
    [
        '{"packages": "x"}',
        '{"packages": [1]}',
        '{"packages": {}, "gpus": "H20"}',
        '{"packages": {}, "gpus": [{"name": null}]}',
        '{"packages": {}, "gpus": [], "cublas": "12.1.3.1"}',
        '{"packages": {}, "local_ranks": "8"}',
        "[" * 100_000,
    ],
)
def test_a_recorded_environment_of_another_shape_is_an_input_error(tmp_path: Path, recorded: str) -> None:
    from bisect_cfg.doctor import read_recorded
    from bisect_cfg.errors import InputError

    path = tmp_path / "node.json"
    path.write_text(recorded)
    with pytest.raises(InputError, match=r"node\.json"):
        read_recorded(str(path))


def test_what_slurm_cancels_after_a_task_has_failed_is_not_the_failure() -> None:
    failed = (
        'Traceback (most recent call last):\n  File "grpo.py", line 5, in <module>\n'
        "RuntimeError: 'weight' must be 2-D\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "slurmstepd: error: *** STEP 71140.0 ON g09 CANCELLED AT 2025-11-04T09:20:41 ***\n"
    )
    assert explain_text(failed).matches[0].entry.id == "zero3-empty-weight"
    silent = "srun: error: g13: task 0: Exited with exit code 1\n" + failed.splitlines()[-1] + "\n"
    assert not [match for match in explain_text(silent).matches if match.entry.id.startswith("slurm")]
