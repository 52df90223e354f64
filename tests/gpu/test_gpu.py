"""What only a CUDA device can show. Skipped without one; `studies/gpu_check/run.py` runs them all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    assert result["start_level"] == "config"


def test_a_trial_sees_only_its_device(tmp_path):
    last = str(_cards() - 1)
    status, result, output = bisect(
        tmp_path / "study", "--confirm", "1", "--devices", last, script=("--tiny", "--fault", "assert")
    )
    assert status == 0, output
    for row in result["trials"]:
        orders = json.loads((tmp_path / "study" / row["folder"] / "orders.json").read_text())
        assert orders["request"]["env"]["CUDA_VISIBLE_DEVICES"] == last


def test_doctor_computes_on_the_card() -> None:
    from bisect_cfg.diagnosis.fingerprint import fingerprint, loaded_cublas
    from bisect_cfg.diagnosis.gpu import probe

    results = probe()
    assert [one for one in results if "signal" in one or "error" in one] == []
    assert len(results) >= 4
    loaded, installed = loaded_cublas(), fingerprint()["cublas"]
    assert loaded is not None and loaded["version"].split(".")[0] == installed["version"].split(".")[0]
