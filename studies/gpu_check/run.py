"""Run every GPU check and print a table: ``python studies/gpu_check/run.py`` on a machine with a CUDA device.

1. the tests marked ``gpu``;
2. a 10-step trial of a model of the shape of Qwen2.5-0.5B in bf16 with random weights: cold against warm, and what the
   tool adds to a trial.

With ``--tiny`` the second part runs on a CPU with a toy, to check this program itself.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def measure_module():
    """`studies/start_cost/measure.py`, whose clockwork serves here as well."""
    path = HERE.parent / "start_cost" / "measure.py"
    spec = importlib.util.spec_from_file_location("start_cost_measure", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def card() -> str:
    """The GPU's name and driver, as nvidia-smi has them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "no GPU"


def main() -> int:
    """Tests, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a toy on the CPU, without the tests")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    status = 0
    if not arguments.tiny:
        status = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(HERE.parents[1] / "tests" / "gpu")]
        ).returncode
    measure = measure_module()
    script = measure.find_script(str(HERE / "train.py"), ["--tiny"] if arguments.tiny else [])
    with tempfile.TemporaryDirectory() as temporary:
        seconds = measure.per_trial(script, Path(temporary) / "starts", arguments.repeats, 10, {})
    medians = {start: statistics.median(values) for start, values in seconds.items()}
    print(f"\n{datetime.date.today()}, {card()}")
    print("one 10-step trial, a model of the shape of " + ("a toy" if arguments.tiny else "Qwen2.5-0.5B in bf16"))
    for start in ("cold", "imports", "config"):
        print(f"  {start:<8} {medians[start]:7.2f} s   {medians['cold'] / medians[start]:5.1f}x")
    return status


if __name__ == "__main__":
    sys.exit(main())
