"""What a run tells while it goes on: lines of its probe, the output of a command, stacks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools import traces_of

from bisect_cfg.probe.protocol import ConfigBuilt, Raised, Resumed, TrainBegin
from bisect_cfg.runner.traces import (
    FIRST_ROWS,
    LAST_ROWS,
    SIGNALS,
    Traces,
    fatal_signal,
    innermost_frame,
    stack_frames,
    tail_of_log,
    unprinted,
)

RAY = "\x1b[36m(TaskRunner pid=81123)\x1b[0m "


def test_complete_lines_are_read_as_they_come_and_what_is_none_of_ours_is_passed_over(tmp_path) -> None:
    """A full disk cuts a line short; the rest of the trial still counts."""
    path, traces = tmp_path / "metrics.jsonl", Traces(tmp_path)
    assert not traces.read()
    for added, new, steps in (
        ('{"step": 1, "loss": 0.5}\n{"step"', True, [1]),
        ("", False, [1]),
        (": 2}\n", True, [1, 2]),
        ('{"b": {"step": 3}\n\0\xff\n7\n{"step": "4"}\n{"step": 5, "time": "now"}\n', True, [1, 2]),
        ('{"step": 6, "training": []}\n{"step": 7, "time": 2}\n', True, [1, 2, 7]),
    ):
        with path.open("a", encoding="latin-1") as stream:
            stream.write(added)
        assert traces.read() is new and [row["step"] for row in traces.metrics.rows] == steps
    assert traces.changes == 4


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
    told = unprinted(traces_of(tmp_path, Raised("ValueError", message, [("train.py", 9, "main")])), log)
    assert told == [] if shown else told[-1] == f"ValueError: {message}"
    assert unprinted(traces_of(tmp_path), log) == []


def test_tail_of_log(tmp_path):
    path = tmp_path / "log.txt"
    assert tail_of_log(path) == []
    path.write_bytes(b"first\n\n  0%|   |\r 50%|== |\r100%|===|\n\xff\xfe last \n")
    assert tail_of_log(path, 2) == ["100%|===|", "\ufffd\ufffd last"]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (RAY + "step:{step} - global_seqlen/min:12 - actor/entropy:1.9 - actor/pg_loss:np.float64({loss}) - "
         "actor/grad_norm:np.float64({norm}) - critic/score/mean:0.5 - timing_s/step:31.2",
         {"entropy": 1.9, "reward": 0.5, "grad_norm": 0.3}),
        (RAY + "2025-06-01 10:00:03 INFO     openrlhf.trainer.ppo_trainer:fit:412 - ✨ Global step {step}: "
         "{{'policy_loss': {loss}, 'actor_lr': 5e-07, 'kl': 0.01, 'reward': 0.5, 'generate_time': '00:00:31'}}",
         {"kl": 0.01, "reward": 0.5}),
        ("{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-06, 'epoch': 0.004}}\n"
         "[INFO|2025-06-01 10:00:00] llamafactory.train.callbacks:143 >> "
         "{{'loss': {loss}, 'learning_rate': 1.0000e-06, 'epoch': 0.00, 'throughput': 1234.5}}",
         {"grad_norm": 0.3, "learning_rate": 1e-6}),
        ("{{'loss': {loss}, 'grad_norm': {norm}, 'memory(GiB)': 33.1, 'reward': 0.5, 'reward_std': 0.2, "
         "'epoch': 0.0, 'global_step/max_steps': '{step}/400', 'percentage': '1.00%'}}",
         {"grad_norm": 0.3, "reward_std": 0.2}),
        ("Step {step} | loss:{loss} lr:2e-05 grad_norm:{norm} rewards:0.5 ", {"reward": 0.5, "grad_norm": 0.3}),
        ("\r1|{step}|Loss: {loss}:   3%|▎         | {step}/400 [00:10<10:00,  1.5s/it]", {}),
        ('{{"step": {step}, "loss": {loss}, "grad_norm": {norm}, "reward": 0.5}}', {"grad_norm": 0.3, "reward": 0.5}),
        ("{{'loss': '{loss}', 'grad_norm': '{norm}', 'reward_std': '0.2', 'epoch': '0.1'}}", {"reward_std": 0.2}),
    ],
    ids=["verl", "openrlhf", "llama-factory", "ms-swift", "torchtune", "torchtune-bar", "jsonl", "transformers-5"],
)  # fmt: skip
def test_what_trainers_print(tmp_path, line, values):
    """Whole runs of each: every step is a row, and one whose loss and gradient turn into NaN fails silently."""
    path, every = tmp_path / "log.txt", 1 if "{step}" not in line else 2
    for breaks in (None, 7):
        path.unlink(missing_ok=True)
        traces = Traces(tmp_path, printed=True)
        with path.open("w") as stream:
            stream.write("loading loss: and step 3\n")
            for number in range(1, 31):
                bad = breaks is not None and number > breaks
                told = {"loss": "nan" if bad else 0.25, "norm": "nan" if bad else 0.3}
                stream.write((line.format(step=every * number, **told) + "\n") * every)  # each of several ranks does
                stream.flush()
                traces.read()
        rows = traces.metrics.rows
        assert [row["step"] for row in rows] == [every * number for number in range(1, 31)]
        assert {name: rows[2].get(name) for name in (*values, "loss")} == {**values, "loss": 0.25}
        assert {symptom.kind for symptom in traces.symptoms(False)} == (set() if breaks is None else {"non-finite"})


def test_half_a_line_is_a_sign_of_life_once(tmp_path) -> None:
    path, traces = tmp_path / "log.txt", Traces(tmp_path, printed=True)
    path.write_text("a line that is whole, and longer than what comes after it\nloading ...")
    assert traces.read() and not traces.read()
    path.write_text("x")  # the middle of a long log was let go
    assert traces.read()
    with path.open("a") as stream:
        stream.write("\n{'loss': 0.5, 'grad_norm': 1.0, 'step': 3}\n")
    assert traces.read() and traces.metrics.rows[0]["step"] == 3


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
def test_a_signal_and_where_it_came(tmp_path, wanted: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(int(wanted))], capture_output=True, text=True)
    assert fatal_signal(done.stderr) is wanted and fatal_signal("") is None
    frames = [("<string>", 6, "inner"), ("<string>", 8, "outer"), ("<string>", 9, "<module>")]
    assert stack_frames(done.stderr) == frames and stack_frames("") == []
    other, current = "Thread 0x1\n  File 'a'", done.stderr[done.stderr.index("Current") :].partition("\n\n")[0]
    assert stack_frames(f"{current}\n\n{other}\n") == frames, "in any order"
    assert innermost_frame(tmp_path) == ""
    (tmp_path / "stacks.txt").write_text(done.stderr)
    assert innermost_frame(tmp_path) == "inner (<string>:6)"


def test_of_a_collective_the_line_that_called_it_is_told(tmp_path) -> None:
    torch = "/venv/lib/python3.11/site-packages/torch/distributed"
    waiting = [(f"{torch}/distributed_c10d.py", 4181, "all_reduce"), (f"{torch}/c10d_logger.py", 83, "wrapper")]
    frames = [*waiting, ("/a/train.py", 75, "sync"), ("/a/train.py", 122, "main")]
    lines = "".join(f'  File "{path}", line {line} in {function}\n' for path, line, function in frames)
    (tmp_path / "stacks.txt").write_text(f"Current thread 0x1 (most recent call first):\n{lines}")
    assert innermost_frame(tmp_path) == "all_reduce, called by sync (train.py:75)"


@pytest.mark.parametrize("trained", [False, True])
def test_what_a_child_tells_is_taken_over_if_it_has_the_config_and_nobody_has_trained(tmp_path, trained) -> None:
    traces_of(tmp_path / "children", ConfigBuilt("args", 0, "C", "m", {}, {}, {}))
    (tmp_path / "children/events.jsonl").rename(tmp_path / "children/1-events.jsonl")
    traces = traces_of(tmp_path, *([TrainBegin()] if trained else []))
    traces.adopt()
    assert (traces.event(ConfigBuilt) is None) == trained


@given(st.integers(1, 500), st.integers(0, 400))
def test_what_was_logged_before_a_checkpoint_is_read_from_it(tmp_path_factory, step: int, count: int) -> None:
    folder = tmp_path_factory.mktemp("run")
    logged = [{"step": number, "loss": "0.5", "entropy": 1.0} for number in range(1, count + 1)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "eval_loss": 1}, *logged]}))
    traces = traces_of(folder, Resumed(step, str(folder)), rows=[{"step": step + 1, "loss": 0.25}])
    earlier, before = traces.as_metrics.earlier, range(1 - step, 1 - max(step - count, 0))
    assert [row["step"] for row in earlier] == [*before[:FIRST_ROWS], *before[FIRST_ROWS:][-LAST_ROWS:]]
    assert all(row["loss"] == 0.5 for row in earlier)
    assert traces.before == step and [row["step"] for row in traces.metrics.rows] == [1]
