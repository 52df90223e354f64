"""The run with the instruments on: what it tells, and that nothing else depends on it."""

from __future__ import annotations

import shutil

import pytest
from tools import Studied, asked, slow
from toys import script

SCRIPT = """
    import time
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True)
    def step(number):
        if args.bf16 and number == 3: {}
    GRPOTrainer(args, step).train()
"""

SIGNAL = "os.kill(os.getpid(), signal.SIGFPE)"
RAISES = "raise RuntimeError(f'step {number} met something odd')"
SHY = "'CUDA_LAUNCH_BLOCKING' not in os.environ and 1 / 0"
HANGS = "time.sleep(60)"


def bisected(tool, fails: str, *options: object) -> Studied:
    script(tool.folder, SCRIPT.format(fails))
    return tool.bisect("train.py", "--confirm", "1", *options)


@pytest.mark.parametrize("gdb", [True, False])
def test_a_fatal_signal(tool, gdb):
    if not gdb:
        tool.environment["PATH"] = str(tool.folder)
    study = bisected(tool, SIGNAL)
    place = study.result["where"]
    assert place["same_failure"] and (place["line"], place["step"]) == ("train.py:8 in step", 3)
    assert "Where   step 3: train.py:8 in step" in study.said.out
    if gdb and shutil.which("gdb"):
        assert any("os_kill" in name or "python" in name for name in place["native_frames"]), place
    assert gdb or place["native"] == ""


@pytest.mark.parametrize("start", ["config", slow("imports"), "cold"])
def test_an_exception_from_every_start(tool, start):
    place = bisected(tool, RAISES, "--start", start).result["where"]
    assert place["same_failure"] and (place["line"], place["text"]) == ("train.py:8 in step", "RuntimeError")


def test_a_failure_that_hides_from_the_instruments(tool):
    study = bisected(tool, SHY)
    place = study.result["where"]
    assert study.causes == [["bf16"]] and not place["same_failure"] and place["line"] == ""
    assert "With the instruments on, the run passes" in study.said.out


def test_a_hang_is_not_waited_for_again(tool):
    study = bisected(tool, HANGS, "--trial-timeout", "1")
    place = study.result["where"]
    assert (place["folder"], place["line"]) == ("0", "train.py:8 in step")
    assert "where" not in asked(study.folder)


def test_it_can_be_left_out_and_run_later_once(tool):
    study = bisected(tool, RAISES, "--no-where")
    assert "Where" not in study.said.out and study.result["where"] is None
    trials, ended = study.result["trials"], study.ended
    again = bisected(tool, RAISES)
    assert "Where" in again.said.out and again.result["trials"] == trials
    assert again.ended.keys() - ended.keys() == {asked(study.folder)["where"].name}
    assert bisected(tool, RAISES).ended == again.ended
