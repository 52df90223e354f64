"""The runner against real processes that crash, hang, fork, print garbage or end without training.

The script is a stand-in that trains in microseconds; what it does at its third step is said by a setting, so that one
waiting server serves most of these tests.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import until

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.probe.protocol import TrainEnd
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.verdict import Failure, Standard
from tests.runner.started import Started

SCRIPT = """
    import os, resource, signal, subprocess, sys, threading, time
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(output_dir="out", learning_rate=3e-4, loss_type="fine")
    what = args.loss_type

    def lazy_reward():
        time.sleep(1000)

    def raise_error(error=ValueError("the reward of step 3 is wrong")):
        raise error

    def torch_memory():
        raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 MiB.")

    def host_memory():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        hoard = bytearray(1 << 40)

    def ignoring():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        lazy_reward()

    def daemons():
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["sleep", "1000"], {})
            os._exit(0)
        os.wait()

    def thread_that_fails():
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()

    def garbage():
        os.write(1, os.urandom(1 << 16) + b"\\0\\xff\\xfe\\n" * 100)
        raise ValueError("bytes \\udcff\\x00 in the message")

    def gigabytes():
        os.write(1, b"how it began\\n")
        for _ in range(300):
            os.write(1, (b"x" * 1023 + b"\\n") * 1024)
        os.write(2, b"how it ended\\n")
        os.kill(os.getpid(), signal.SIGSEGV)

    def why_at_the_end():
        for _ in range(64):
            os.write(1, b"a progress bar\\r" * (1 << 16))
        print("\\nTraceback (most recent call last):\\n  File \\"a.py\\", line 1, in <module>")
        print("OSError: the reward server is gone", flush=True)
        os._exit(1)

    def raise_and_stay():
        threading.Thread(target=lazy_reward).start()
        raise KeyError("no such column")

    def steps(count):
        GRPOTrainer.steps = count

    AT_STEP_3 = {
        "raise": raise_error, "torch memory": torch_memory, "host memory": host_memory, "_exit": lambda: os._exit(0),
        "hang": lazy_reward, "hang with ignored signals": ignoring, "daemons": daemons,
        "thread that fails": thread_that_fails, "garbage": garbage,
        "gigabytes": gigabytes, "says why at the end": why_at_the_end, "closed output": lambda: os.closerange(1, 3),
    }
    BEFORE = {
        "raise before training": lambda: raise_error(KeyError("no such column")), "and stay": raise_and_stay,
        "exit before training": lambda: sys.exit(0), "hang before training": lazy_reward,
        "few steps": lambda: steps(2), "no steps": lambda: steps(0),
    }

    def step(number):
        if number == 3 and what.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, what))
        if number == 3 and what in AT_STEP_3:
            AT_STEP_3[what]()

    BEFORE.get(what, lambda: None)()
    trainer = GRPOTrainer(args, step)
    try:
        trainer.train()
    except Exception:
        open("caught", "w")
    open("done.txt", "w").write("after training")
"""


class Bench(Started):
    """One study folder with its runner, warm."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SCRIPT)
        self.start_at("config")
        self.supervisor = psutil.Process(self.site._supervisor.pid).children()[0]
        self.waiting = self.processes()  # the server
        self.count = 0

    def __call__(self, what: str, patience: float = 20.0) -> Run:
        self.count += 1
        return self.train(self.count, "config", Patience(patience, patience, patience), loss_type=what)

    def processes(self) -> set[psutil.Process]:
        """Everything that carries the study's mark or descends from its supervisor."""
        found = set()
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("BISECT_CFG_STUDY", "")
                mine = mark.startswith(self.site._supervisor.study)
                mine = mine or self.supervisor in process.parents()
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def assert_nothing_left(self) -> None:
        """Only the waiting server runs, and the user's folder is as it was: no `except` of the script ever ran."""
        assert self.processes() - self.waiting == set()
        assert {path.name for path in self.folder.iterdir()} == {"train.py", "study"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(library))
        made = Bench(folder)
        try:
            yield made
        finally:
            made.site.close()
            left = made.processes()
    assert left == set()


@pytest.mark.parametrize(
    ("what", "died", "step"),
    [
        ("SIGFPE", "SIGFPE", 3),
        ("SIGKILL", "SIGKILL: killed from outside", 3),
        ("raise", "ValueError: the reward of step <n> is wrong [train:raise_error]", 3),
        ("garbage", "ValueError: bytes", 3),
        ("gigabytes", "SIGSEGV", 3),
        ("says why at the end", "OSError: the reward server is gone", 3),
        ("host memory", "out-of-memory (host)", 3),
        ("torch memory", "out-of-memory (GPU)", 3),
        # Status 0 in the middle is no pass.
        ("_exit", "exit (0)", 3),
        # An exception that nothing catches is the end, though another thread lives on, or what runs at exit hangs.
        ("raise before training", "KeyError: 'no such column'", 0),
        ("and stay", "KeyError: 'no such column'", 0),
        ("exit before training", "no-training", 0),
        ("no steps", "no-steps", 1),
    ],
)
def test_what_a_run_dies_of(bench, what, died, step):
    run = bench(what)
    assert str(run.seen.died).startswith(died) and run.shown.step == step, run.seen
    assert run.judged(Standard(Failure(run.seen.died))).outcome is Outcome.FAIL or died.startswith("no-")
    bench.assert_nothing_left()
    log = (run.folder / "log.txt").read_bytes()
    if what == "raise":
        assert b"the reward of step 3 is wrong" in log
    if what == "gigabytes":
        assert log.startswith(b"how it began\n") and log.endswith(b"how it ended\n") and b"\0" not in log
        assert (1 << 20) < len(log) < (5 << 20) and b"bytes left out here" in log


@pytest.mark.parametrize(
    ("what", "steps"),
    [
        ("fine", 5),
        ("few steps", 2),  # fewer than the horizon is a pass
        ("daemons", 5),
        ("thread that fails", 5),
        ("closed output", 5),
    ],
)
def test_what_outlives_or_fails_beside_the_training_is_not_its_failure(bench, what, steps):
    run = bench(what)
    assert run.shown.signature is None and run.seen.steps == steps, run.seen
    assert run.traces.event(TrainEnd).stopped == ("horizon" if steps == 5 else "")
    bench.assert_nothing_left()


@pytest.mark.parametrize(
    ("what", "step", "why"),
    [("hang", 3, "no optimizer step"), ("hang with ignored signals", 3, "no optimizer step"),
     ("hang before training", 0, "start of training")],
)  # fmt: skip
def test_hang(bench, what, step, why):
    run = bench(what, patience=2.0)
    assert (run.seen.died.kind, run.shown.step) == ("hang", step) and why in run.seen.message
    assert run.judged(Standard(Failure(run.seen.died))).outcome is Outcome.FAIL
    stacks = (run.folder / "stacks.txt").read_text()
    assert "in lazy_reward" in stacks and ("in step" in stacks) == (step == 3) and "lazy_reward" in run.seen.place
    bench.assert_nothing_left()


def test_server_that_is_killed_is_started_again(bench):
    for process in bench.waiting:
        with contextlib.suppress(psutil.NoSuchProcess):  # the child that resolves configurations ends with its server
            process.kill()
    assert bench("raise").seen.died.name == "ValueError"
    bench.waiting = bench.processes()
    assert len(bench.waiting) == 1


def test_interrupt_ends_a_running_trial(bench):
    metrics = bench.folder / f"study/trials/{bench.count + 1}/metrics.jsonl"

    def interrupt() -> None:
        until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) == 2)
        bench.site.interrupt()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        bench("hang", patience=60)
    bench.site._interrupted.clear()
    bench.assert_nothing_left()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_that_was_made_anew_meanwhile_writes_nothing_into_the_folder_of_the_new_one(bench, monkeypatch):
    """As where a machine stands still, its site is given up, and it wakes up."""

    def made_anew(name, *told):
        folder = bench.site.folder / "trials" / str(name)
        if not folder.with_name(f"{name}.interrupted-0").exists():
            folder.rename(folder.with_name(f"{name}.interrupted-0"))
            folder.mkdir()

    monkeypatch.setattr(bench.site, "_on_progress", made_anew)
    with pytest.raises(KeyboardInterrupt):
        bench("fine")
    assert list((bench.site.folder / "trials" / str(bench.count)).glob("ending.json")) == []
    bench.assert_nothing_left()
