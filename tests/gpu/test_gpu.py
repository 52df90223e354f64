"""What only a CUDA device can show. Skipped without one; `studies/gpu_check/run.py` runs them all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toys

from bisect_cfg.runner.checkpoints import saved_in_parts

TRAIN = Path(__file__).parents[2] / "studies" / "gpu_check" / "train.py"

# A driver frees a dead process's memory within moments; what other processes hold may move a little.
MEMORY_SLACK_MIB = 64


def _cards() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return len(listed.stdout.splitlines()) if listed.returncode == 0 else 0


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_cards() == 0, reason="no CUDA device")]


def memory_used() -> int:
    """MiB in use on the first card."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def bisect(folder: Path, *options: str, script: tuple[str, ...] = ()) -> tuple[int, dict, str]:
    command = [sys.executable, "-m", "bisect_cfg", "bisect", str(TRAIN), "--study", str(folder), *options]
    done = subprocess.run([*command, "--", *script], capture_output=True, text=True, timeout=900)
    path = folder / "result.json"
    return done.returncode, json.loads(path.read_text()) if path.exists() else {}, done.stdout + done.stderr


@pytest.mark.parametrize("fault", ["assert", "access"])
def test_a_cuda_error_in_one_trial_leaves_the_next_one_healthy(tmp_path, fault):
    before = memory_used()
    status, result, output = bisect(tmp_path / "study", "--confirm", "1", script=("--tiny", "--fault", fault))
    assert status == 0, output
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["learning_rate"]]
    outcomes = [row["outcome"] for row in result["trials"]]
    first = outcomes.index("fail")
    assert "pass" in outcomes[first + 1 :]
    assert "unresolved" not in outcomes
    time.sleep(2)
    assert memory_used() <= before + MEMORY_SLACK_MIB


def test_the_waiting_process_never_initialises_cuda(tmp_path):
    status, result, output = bisect(tmp_path / "study", "--confirm", "1", script=("--tiny", "--fault", "assert"))
    assert status == 0, output
    # Start "config" is only taken where the forking process holds no CUDA device.
    assert result["start"] == "config"


def test_a_trial_sees_only_its_device(tmp_path):
    last = str(_cards() - 1)
    status, result, output = bisect(
        tmp_path / "study", "--confirm", "1", "--devices", last, script=("--tiny", "--fault", "assert")
    )
    assert status == 0, output
    for row in result["trials"]:
        orders = json.loads((tmp_path / "study" / row["folder"] / "orders.json").read_text())
        assert orders["request"]["env"]["CUDA_VISIBLE_DEVICES"] == last


IN_PARTS = {
    "FSDP": ("--use_fsdp", "--fsdp_version", "2", "--fsdp_state_dict_type", "SHARDED_STATE_DICT"),
    "DeepSpeed": ("--use_deepspeed", "--zero_stage", "2"),
}

RESUMED = f"""
    import toy
    from transformers import TrainerCallback
    from trl import GRPOConfig

    args = GRPOConfig(output_dir="out", learning_rate=1e-4, max_steps=40, save_steps=10, logging_steps=1,
                      temperature=1.2, max_grad_norm=0.5, {toys.settings(use_cpu=False)})

    class Plant(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step >= 14 and args.temperature > 1.1:
                raise RuntimeError("planted")

    toy.trainer(args, callbacks=[Plant()]).train()
"""


@pytest.mark.parametrize("form", IN_PARTS)
def test_trials_go_on_from_a_checkpoint_that_was_saved_in_parts(tmp_path, form):
    """And the same script without what saved it is told that it cannot."""
    if form == "DeepSpeed":
        pytest.importorskip("deepspeed")
    script = toys.write(tmp_path, RESUMED)
    accelerate = Path(sys.executable).with_name("accelerate")
    launch = [str(accelerate), "launch", "--num_processes", "1", *IN_PARTS[form], script.name]
    failed = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True)
    checkpoint = tmp_path / "out/checkpoint-10"
    assert saved_in_parts(checkpoint) == form, failed.stderr[-2000:]
    options = ["--from-checkpoint", str(checkpoint), "--only", "temperature", "--only", "max_grad_norm"]
    for name, command in (("under", launch), ("without", [script.name])):
        tool = [sys.executable, "-m", "bisect_cfg", "bisect", "--no-recommend", "--study", name, *options, *command]
        done = subprocess.run(tool, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        if name == "under":
            assert done.returncode == 0, done.stdout + done.stderr
            result = json.loads((tmp_path / name / "result.json").read_text())
            assert [list(cause["parameters"]) for cause in result["causes"]] == [["temperature"]]
            assert result["failure"]["step"] == 15 and result["origin"]["step"] == 10
            for rows in (tmp_path / name / "trials").glob("*/metrics.jsonl"):
                assert all(json.loads(line)["step"] > 10 for line in rows.read_text().splitlines())
        elif form == "FSDP":
            assert done.returncode == 2 and "by a training under FSDP; yours runs without" in done.stderr
        else:  # its weights are there as a whole as well
            assert "without DeepSpeed a trial cannot load its optimizer's state" in done.stdout


def test_doctor_computes_on_the_card() -> None:
    from bisect_cfg.common.fingerprint import fingerprint, loaded_cublas
    from bisect_cfg.doctor.examine import probe_gpus

    results = probe_gpus()
    assert [one for one in results if "signal" in one or "error" in one] == []
    assert len(results) >= 4
    loaded, installed = loaded_cublas(), fingerprint()["cublas"]
    assert loaded is not None and loaded["loaded_version"].split(".")[0] == installed["version"].split(".")[0]
