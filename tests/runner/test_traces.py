"""What a run tells while it goes on: lines of its probe, the output of a command, stacks."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from bisect_cfg.common.failures import health
from bisect_cfg.probe.protocol import Raised
from bisect_cfg.runner.traces import SIGNALS, LogRows, Tail, Traces, fatal_signal, stack_frames, tail_of_log, unprinted

RAY = "\x1b[36m(TaskRunner pid=81123)\x1b[0m "


def test_tail_reads_only_complete_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    tail = Tail(path, lambda row: row)
    assert tail.read() is False
    path.write_text('{"a": 1}\n{"a"')
    assert tail.read() is True and tail.rows == [{"a": 1}]
    assert tail.read() is False
    with path.open("a") as stream:
        stream.write(": 2}\n")
    assert tail.read() is True and tail.rows == [{"a": 1}, {"a": 2}]


def test_tail_passes_over_a_broken_line(tmp_path):
    """A full disk cuts a line short; the rest of the trial still counts."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"b": {"a": 2}\n\x00\xff\n{"a": 3}\n')
    tail = Tail(path, lambda row: row)
    tail.read()
    assert tail.rows == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize(
    ("message", "log", "shown"),
    [
        ("boom", "Traceback (most recent call last):\n  ...\nValueError: boom\n", True),
        ("boom", "[rank0]: ValueError: boom\n", True),
        ("invalid syntax (train.py, line 3)", "    x =\n      ^\nValueError: invalid syntax\n", True),
        ("boom", "training begins\nValueError: something else, which was caught\n", False),
        ("boom", "", False),
    ],
)
def test_an_exception_that_the_log_does_not_show_is_told_from_what_the_probe_saw(tmp_path, message, log, shown):
    traces = Traces.of(tmp_path)
    traces.events.rows.append(Raised("ValueError", message, [["train.py", 9, "main"]]))
    told = unprinted(traces, log)
    assert told == [] if shown else told[-1] == f"ValueError: {message}"
    assert unprinted(Traces.of(tmp_path), log) == []


def test_tail_of_log(tmp_path):
    path = tmp_path / "log.txt"
    assert tail_of_log(path) == []
    path.write_bytes(b"first\n\n  0%|   |\r 50%|== |\r100%|===|\n\xff\xfe last \n")
    assert tail_of_log(path, 2) == ["100%|===|", "\ufffd\ufffd last"]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (
            RAY + "step:{step} - global_seqlen/min:12 - actor/entropy:1.9 - actor/pg_loss:np.float64({loss}) - "
            "actor/grad_norm:np.float64({norm}) - critic/score/mean:0.5 - timing_s/step:31.2",
            {"entropy": 1.9, "reward": 0.5, "grad_norm": 0.3},
        ),
        (
            RAY + "2025-06-01 10:00:03 INFO     openrlhf.trainer.ppo_trainer:fit:412 - ✨ Global step {step}: "
            "{{'policy_loss': {loss}, 'actor_lr': 5e-07, 'kl': 0.01, 'reward': 0.5, 'generate_time': '00:00:31'}}",
            {"kl": 0.01, "reward": 0.5},
        ),
        (
            "{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-06, 'epoch': 0.004}}\n"
            "[INFO|2025-06-01 10:00:00] llamafactory.train.callbacks:143 >> "
            "{{'loss': {loss}, 'learning_rate': 1.0000e-06, 'epoch': 0.00, 'throughput': 1234.5}}",
            {"grad_norm": 0.3, "learning_rate": 1e-6},
        ),
        (
            "{{'loss': {loss}, 'grad_norm': {norm}, 'memory(GiB)': 33.1, 'reward': 0.5, 'reward_std': 0.2, "
            "'epoch': 0.0, 'global_step/max_steps': '{step}/400', 'percentage': '1.00%'}}",
            {"grad_norm": 0.3, "reward_std": 0.2},
        ),
        ("Step {step} | loss:{loss} lr:2e-05 grad_norm:{norm} rewards:0.5 ", {"reward": 0.5, "grad_norm": 0.3}),
        ("\r1|{step}|Loss: {loss}:   3%|▎         | {step}/400 [00:10<10:00,  1.5s/it]", {}),
        ('{{"step": {step}, "loss": {loss}, "grad_norm": {norm}, "reward": 0.5}}', {"grad_norm": 0.3, "reward": 0.5}),
        ("{{'loss': '{loss}', 'grad_norm': '{norm}', 'reward_std': '0.2', 'epoch': '0.1'}}", {"reward_std": 0.2}),
    ],
    ids=["verl", "openrlhf", "llama-factory", "ms-swift", "torchtune", "torchtune-bar", "jsonl", "transformers-5"],
)
def test_what_trainers_print(tmp_path, line, values):
    """Whole runs of each: every step is a row, and one whose loss and gradient turn into NaN fails silently."""
    path, every = tmp_path / "log.txt", 1 if "{step}" not in line else 2
    for breaks in (None, 7):
        rows = LogRows(path)
        with path.open("w") as stream:
            stream.write("loading loss: and step 3\n")
            for number in range(1, 31):
                bad = breaks is not None and number > breaks
                told = {"loss": "nan" if bad else 0.25, "norm": "nan" if bad else 0.3}
                stream.write(line.format(step=every * number, **told) + "\n")
                stream.flush()
                rows.read()
        assert [row["step"] for row in rows.rows] == [every * number for number in range(1, 31)]
        assert {name: rows.rows[2].get(name) for name in (*values, "loss")} == {**values, "loss": 0.25}
        assert {symptom.kind for symptom in health.symptoms(rows.rows, ended=False)} == (
            set() if breaks is None else {"non-finite"}
        )


def test_half_a_line_is_a_sign_of_life_once(tmp_path) -> None:
    path = tmp_path / "log.txt"
    rows = LogRows(path)
    path.write_text("loading ...")
    assert rows.read() and not rows.read()
    path.write_text("x")  # the middle of a long log was let go
    assert rows.read()
    with path.open("a") as stream:
        stream.write("\n{'loss': 0.5, 'grad_norm': 1.0, 'step': 3}\n")
    assert rows.read() and rows.rows[0]["step"] == 3


SCRIPT = """
import faulthandler, os, sys, threading, time
faulthandler.enable(all_threads=True)
threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
def inner():
    os.kill(os.getpid(), int(sys.argv[1]))
def outer():
    inner()
outer()
"""


@pytest.mark.parametrize("wanted", SIGNALS.values(), ids=lambda one: one.name)
def test_a_signal_and_where_it_came(wanted: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(int(wanted))], capture_output=True, text=True)
    assert fatal_signal(done.stderr) is wanted
    assert stack_frames(done.stderr) == [
        ("<string>", 6, "inner"),
        ("<string>", 8, "outer"),
        ("<string>", 9, "<module>"),
    ]


def test_nothing_written_says_nothing() -> None:
    assert fatal_signal("") is None and stack_frames("") == []
