"""Runs that stand still: told by what comes after the silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.common.failures.excerpt import LogLine
from bisect_cfg.explain.hang import Standstill, only_ended, silence, standing

STARTED = "2025-03-02 10:11:10 ***** Running training *****\n2025-03-02 10:11:12 step 4/500\n"
WAITS = '^CTraceback (most recent call last):\n  File "/w/c10d.py", line 300, in wait\n    work.wait()\n'
WAITS += "KeyboardInterrupt\n"
SLURM = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2025-03-02T{} DUE TO TIME LIMIT ***\n"


def lines(text: str) -> list[LogLine]:
    """The lines of a log; the texts here have no rank before them, and a time nothing depends on."""
    return [LogLine(at, line, "", "", line) for at, line in enumerate(text.split("\n"), 1) if line]


def found(text: str, rows: int = 0) -> Standstill | None:
    return silence(lines(text), rows)


@pytest.mark.parametrize(
    "end",
    [
        "# 12:40 still nothing\n",
        "# 卡在这里两个小时不动了\n",
        "".join(f"[watch 1{hour}:00] step 4/500, util 100%\n" for hour in (1, 2, 3)),
        "".join(f"2025-03-02 1{hour}:00:00 still waiting for worker {hour}\n" for hour in (1, 2, 3)),
        SLURM.format("14:00:00"),
        WAITS,
        "^C\nKeyboardInterrupt\n[rank0]:[W302 12:40:02.300 CudaIPCTypes.cpp:16] Producer process has been terminated\n",
        "no new output for 3 h\n",
    ],
)
def test_a_silence_is_told_by_what_comes_after_it(end: str) -> None:
    standstill = found(STARTED + end)
    assert standstill is not None and standstill.told.strip() in end


@pytest.mark.parametrize(
    "end",
    [
        "",
        "2025-03-02 12:40:00 step 5/500\n",  # a slow step
        "2025-03-02 12:40:00 checkpoint saved\n",
        "{'train_runtime': 9.1}\n# nothing more to do\n",
        SLURM.format("10:12:00"),
        "[rank0]:[W ProcessGroupNCCL.cpp:1] this can potentially cause a hang\n",
        "INFO:     Application startup complete.\n" + WAITS,
        "".join(f"[1{hour}:00:00] GET /metrics step 4\n" for hour in (1, 2, 3)),
        "2025-13-45 99:99:99 step 4/500\n" * 5,
    ],
)
def test_what_is_no_silence(end: str) -> None:
    assert found(STARTED + end) is None


def test_it_says_how_long_and_after_which_line() -> None:
    standstill = found(STARTED + "# 12:40 still nothing\n")
    assert standstill is not None and (standstill.line, standstill.told_line) == (2, 3)
    assert str(standstill) == "2025-03-02 10:11:12 step 4/500 (and nothing for 2 h 28 min after it)"
    over_night = found("[23:50:00] step 4/500\n# 00:20 nothing more\n")
    assert over_night is not None and str(over_night).endswith("nothing for 30 min after it)")
    worker = found("(Actor pid=1) INFO 04-09 01:52:46 [core.py:151] ready\n^C\nWed Apr  9 04:40:12 UTC 2025\n")
    assert worker is not None and (worker.line, worker.told) == (1, "^C")  # no note


def test_a_wait_that_is_interrupted_after_rows_says_nothing() -> None:
    assert found(STARTED + WAITS, rows=0) is not None and found(STARTED + WAITS, rows=9) is None


@pytest.mark.parametrize(
    ("end", "number"),
    [
        ("GPU9:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying\n", 2),
        ("  0%|          | 0/1868 [00:00<?, ?it/s]`use_cache=True` is incompatible\n97 %, 38121 MiB\n", 2),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2\n^C\n", 2),
        ("Reading the data\n^C\n", 2),
        ("Connection refused, retrying\nConnected\nsaved\n", None),
        ("  0%|   | 0/9 [00:00<?, ?it/s]\n 11%|#  | 1/9 [00:01<00:08, 1.0s/it]\n", None),
        ("Initializing distributed: MEMBER: 1/2\n{'loss': 0.5, 'grad_norm': 0.3}\n", None),
        ("  0%|   | 0/9 [00:00<?, ?it/s]\nTraining completed\n", None),
        ("step 4 saved\n^C\n", None),
    ],
)
def test_a_log_that_ends_before_its_first_step_stands(end: str, number: int | None) -> None:
    line = standing(lines("Loading the model\n" + end))
    assert (line.number if line else None) == number


@pytest.mark.parametrize(("text", "ended"), [
    ("KeyboardInterrupt", True), (SLURM.format("10:12:00"), True), ("State: Terminated", False), ("ValueError", False),
])  # fmt: skip
def test_only_ended(text: str, ended: bool) -> None:
    assert only_ended(text) is ended


PARTS = ["2025-03-02 10:11:12 ", "23:59:59", "step 4", "# still nothing", "^C", "|", "0%| | 0/9 [0", "x"]


@given(st.lists(st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=4)), max_size=4).map("".join), max_size=12))
def test_any_lines_can_be_looked_at(texts: list[str]) -> None:
    given_lines = [LogLine(at, text, "", "", text) for at, text in enumerate(texts, 1)]
    standstill, line = silence(given_lines, 0), standing(given_lines)
    assert line is None or line in given_lines
    assert standstill is None or 0 <= standstill.line < standstill.told_line <= len(texts)
