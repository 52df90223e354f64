"""The run with the instruments on: what it tells, and that nothing else depends on it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tools import asked, slow
from toys import script

SIGFPE = """
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True)
    def step(number):
        if args.bf16 and number == 3:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""

RAISES = """
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True)
    def step(number):
        if args.bf16 and number == 2:
            raise RuntimeError(f"step {number} met something odd")
    GRPOTrainer(args, step).train()
"""

SHY = RAISES.replace("if args.bf16", "if 'CUDA_LAUNCH_BLOCKING' not in os.environ and args.bf16")

HANGS = """
    import time
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True)
    def step(number):
        if args.bf16 and number == 2:
            time.sleep(60)
    GRPOTrainer(args, step).train()
"""


def result(folder: Path) -> dict:
    return json.loads((folder / "s/result.json").read_text())


def test_a_fatal_signal(tool):
    path = script(tool.folder, SIGFPE)
    said = tool("bisect", "train.py", "--study", "s", "--confirm", "1")
    assert said.status == 0, said.all
    place = result(tool.folder)["where"]
    line = next(number for number, text in enumerate(path.read_text().split("\n"), 1) if "os.kill" in text)
    assert place["same_failure"] and place["line"] == f"train.py:{line} in step" and place["step"] == 3
    assert f"Where   step 3: train.py:{line} in step" in said.out
    if shutil.which("gdb"):
        assert any("os_kill" in name or "python" in name for name in place["native_frames"]), place
    tool.assert_nothing_left()


def test_without_gdb_the_python_line_is_left(tool, monkeypatch):
    script(tool.folder, SIGFPE)
    tool.environment["PATH"] = str(tool.folder)
    said = tool("bisect", "train.py", "--study", "s", "--confirm", "1")
    place = result(tool.folder)["where"]
    assert said.status == 0 and place["line"].endswith("in step") and place["native"] == ""


def test_an_exception(tool):
    script(tool.folder, RAISES)
    said = tool("bisect", "train.py", "--study", "s", "--confirm", "1")
    place = result(tool.folder)["where"]
    assert said.status == 0 and place["same_failure"]
    assert place["line"].startswith("train.py:") and place["text"] == "RuntimeError"


def test_a_failure_that_hides_from_the_instruments(tool):
    script(tool.folder, SHY)
    said = tool("bisect", "train.py", "--study", "s", "--confirm", "1")
    assert said.status == 0 and "CAUSE   bf16 = True" in said.out
    place = result(tool.folder)["where"]
    assert not place["same_failure"] and place["line"] == ""
    assert "With the instruments on, the run passes" in said.out


def test_a_hang_is_not_waited_for_again(tool):
    script(tool.folder, HANGS)
    said = tool("bisect", "train.py", "--study", "s", "--confirm", "1", "--trial-timeout", "1")
    assert said.status == 0, said.all
    place = result(tool.folder)["where"]
    assert place["folder"] == "0" and place["line"].startswith("train.py:") and place["line"].endswith("in step")
    assert "where" not in asked(tool.folder / "s")


@pytest.mark.parametrize("start", [slow("imports"), "cold"])
def test_every_start(tool, start):
    script(tool.folder, RAISES)
    assert tool("bisect", "train.py", "--study", "s", "--confirm", "1", "--start", start).status == 0
    assert result(tool.folder)["where"]["same_failure"]


def test_it_can_be_left_out_and_run_later(tool):
    script(tool.folder, RAISES)
    said = tool("bisect", "train.py", "--study", "s", "--confirm", "1", "--no-where")
    assert said.status == 0 and "Where" not in said.out and result(tool.folder)["where"] is None
    trials = result(tool.folder)["trials"]
    again = tool("bisect", "train.py", "--study", "s", "--confirm", "1")
    assert again.status == 0 and "Where" in again.out and result(tool.folder)["trials"] == trials
    ending = asked(tool.folder / "s")["where"] / "ending.json"
    before = ending.stat().st_mtime_ns
    assert tool("bisect", "train.py", "--study", "s", "--confirm", "1").status == 0
    assert ending.stat().st_mtime_ns == before  # what was found is kept
