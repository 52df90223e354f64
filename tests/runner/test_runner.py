"""The runner against real processes that crash, hang, fork, print garbage or end without training.

The script is a stand-in that trains in microseconds; what it does at its third step is said by a setting, so that one
waiting server serves most of these tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import slow

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.probe.protocol import TrainEnd
from bisect_cfg.runner.fork_server import FirstRun
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.script_site import ScriptSite
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import Failure, Standard
from bisect_cfg.targets.captured import read_capture
from bisect_cfg.targets.factors import Comparison
from bisect_cfg.targets.script import Script

SCRIPT = """
    import atexit, multiprocessing, os, signal, subprocess, sys, threading, time
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(output_dir="out", learning_rate=3e-4, loss_type="fine")
    what = args.loss_type

    def lazy_reward():
        time.sleep(1000)

    def step(number):
        if number != 3:
            return
        if what.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, what))
        if what == "raise":
            raise ValueError("the reward of step 3 is wrong")
        if what == "memory":
            raise MemoryError
        if what == "torch memory":
            raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 MiB.")
        if what == "host memory":
            import resource
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            hoard = bytearray(1 << 40)
        if what == "_exit":
            os._exit(0)
        if what == "exit in training":
            sys.exit(0)
        if what == "hang":
            lazy_reward()
        if what == "hang with ignored signals":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            lazy_reward()
        if what == "children":
            subprocess.Popen(["sleep", "1000"])
            if os.fork() == 0:
                time.sleep(1000)
        if what == "daemons":
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(1000)
                os._exit(0)
        if what == "daemons without environment":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execve("/bin/sleep", ["sleep", "1000"], {})
                os._exit(0)
            os.wait()
        if what == "child that fails":
            if os.fork() == 0:
                raise RuntimeError("only the child's trouble")
            os.wait()
        if what == "thread that fails":
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        if what == "garbage":
            os.write(1, os.urandom(1 << 16) + b"\\0\\xff\\xfe\\n" * 100)
            raise ValueError("bytes \\udcff\\x00 in the message")
        if what == "gigabytes":
            os.write(1, b"how it began\\n")
            for _ in range(2000):
                os.write(1, (b"x" * 1023 + b"\\n") * 1024)
            os.write(2, b"how it ended\\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "says why at the end":
            for _ in range(64):
                os.write(1, b"a progress bar\\r" * (1 << 16))
            print("\\nTraceback (most recent call last):\\n  File \\"a.py\\", line 1, in <module>")
            print("OSError: the reward server is gone", flush=True)
            os._exit(1)
        if what == "closed output":
            os.close(1)
            os.close(2)
        if what == "raise without output, and stay":
            threading.Thread(target=lazy_reward).start()
            os.closerange(0, 100)
            raise ValueError("the reward of step 3 is wrong")

    if what == "raise before training":
        raise KeyError("no such column")
    if what == "raise before training, and stay":
        threading.Thread(target=lazy_reward).start()
        raise KeyError("no such column")
    if what == "raise before training, and hang at exit":
        atexit.register(lazy_reward)
        raise KeyError("no such column")
    if what == "show an exception, and go on":
        try:
            raise KeyError("no such column")
        except KeyError:
            sys.excepthook(*sys.exc_info())
        thread = threading.Thread(target=lambda: sys.excepthook(KeyError, KeyError("no such column"), None))
        thread.start()
        thread.join()
        time.sleep(3)
    if what == "other modules":
        import json, types
        json.dumps = json.loads = time.time = os.write = os.open = threading.main_thread = None
        sys.modules["json"] = types.ModuleType("json")
    if what == "exit before training":
        sys.exit(0)
    if what == "status before training":
        sys.exit(7)
    if what == "hang before training":
        lazy_reward()
    if what == "few steps":
        GRPOTrainer.steps = 2
    if what == "no steps":
        GRPOTrainer.steps = 0
    trainer = GRPOTrainer(args, step)
    try:
        trainer.train()
    except Exception:
        open("caught", "w")
    open("done.txt", "w").write("after training")
"""

FOLDER_FILES = {"train.py", "study"}


class Bench:
    """One study folder with its runner, warm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
        (folder / "study/trials").mkdir(parents=True)
        self.runner = Trials(ScriptSite(Script(folder / "train.py"), folder / "study"))
        run = self.runner.train(Plan(0, {}, 5, start="cold", patience=Patience(60, 20, 20), overrides={}))
        assert run.shown.signature is None
        capture = read_capture(run.traces.events.rows)
        self.runner.site.starts.learn(FirstRun(capture))
        assert self.runner.site.starts.start_at("config") is None
        self.runner.settings = Comparison(capture, self.runner.site.starts.resolve).factors()
        self.supervisor = psutil.Process(self.runner.site._supervisor.pid).children()[0]
        self.waiting = self.processes()  # the server
        self.count = 0

    def __call__(self, what: str, start: str = "config", patience: float = 20.0, steps: int | None = 5) -> Run:
        self.count += 1
        return self.runner.train(
            Plan(
                self.count,
                self.runner.settings.bad,
                steps,
                start=start,
                patience=Patience(patience, patience, patience),
                overrides={"args.loss_type": what},
            )
        )

    def processes(self) -> set[psutil.Process]:
        """Everything that carries the study's mark or descends from its supervisor."""
        found = set()
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("BISECT_CFG_STUDY", "")
                mine = mark.startswith(self.runner.site._supervisor.study)
                mine = mine or self.supervisor in process.parents()
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def assert_nothing_left(self) -> None:
        """Only the waiting server runs, and the user's folder is as it was."""
        assert self.processes() - self.waiting == set()
        assert {path.name for path in self.folder.iterdir()} == FOLDER_FILES


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    before = os.getcwd(), os.environ.get("PYTHONPATH")
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(library)
    made = Bench(folder)
    try:
        yield made
    finally:
        made.runner.site.close()
        left = made.processes()
        os.chdir(before[0])
        os.environ.pop("PYTHONPATH") if before[1] is None else os.environ.update(PYTHONPATH=before[1])
    assert left == set()


@pytest.fixture(params=["config", slow("cold")])
def start(request: pytest.FixtureRequest) -> str:
    return request.param


SIGNALS = ["SIGFPE", "SIGKILL", *map(slow, ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGTERM", "SIGTRAP", "SIGXCPU"))]


@pytest.mark.parametrize("name", SIGNALS)
def test_signals(bench, name, start):
    run = bench(name, start)
    assert (run.seen.died.kind, run.seen.died.name, run.shown.step) == ("signal", name, 3)
    assert run.judged(Standard(Failure(run.seen.died))).outcome is Outcome.FAIL
    bench.assert_nothing_left()


def test_exception_in_training(bench, start):
    run = bench("raise", start)
    assert (run.seen.died.kind, run.seen.died.name, run.shown.step) == ("exception", "ValueError", 3)
    assert run.seen.message == "ValueError: the reward of step 3 is wrong"
    assert run.seen.died.where == "train:step"
    assert "the reward of step 3 is wrong" in (run.folder / "log.txt").read_text()
    bench.assert_nothing_left()  # the script's own `except` never ran


def test_exception_before_training(bench, start):
    run = bench("raise before training", start)
    assert (run.seen.died.kind, run.seen.died.name) == ("exception", "KeyError")
    assert not run.seen.trained
    bench.assert_nothing_left()


@pytest.mark.parametrize("how", ["stay", "hang at exit"])
def test_an_exception_that_nothing_catches_is_the_end(bench, how, start):
    """... though another thread lives on, or what runs at exit does not return."""
    run = bench(f"raise before training, and {how}", start)
    assert (run.seen.died.kind, run.seen.died.name) == ("exception", "KeyError")
    assert "KeyError: 'no such column'" in (run.folder / "log.txt").read_text()
    bench.assert_nothing_left()


def test_an_exception_in_training_is_the_end_where_nothing_can_be_printed(bench, start):
    run = bench("raise without output, and stay", start)
    assert (run.seen.died.kind, run.seen.died.name, run.shown.step) == ("exception", "ValueError", 3)
    bench.assert_nothing_left()


def test_an_exception_that_the_script_only_shows_is_not_the_end(bench, start):
    run = bench("show an exception, and go on", start)
    assert run.seen.trained and run.seen.steps == 5
    bench.assert_nothing_left()


def test_nothing_that_a_script_rebinds_is_needed_to_watch_it(bench, start):
    run = bench("other modules", start)
    assert run.shown.signature is None and run.seen.steps == 5, run.seen
    assert run.traces.event(TrainEnd).stopped == "horizon"
    bench.assert_nothing_left()


@pytest.mark.parametrize(("what", "name"), [("memory", "host"), ("torch memory", "GPU"), ("host memory", "host")])
def test_out_of_memory(bench, what, name, start):
    run = bench(what, start)
    assert (run.seen.died.kind, run.seen.died.name) == ("out-of-memory", name)
    bench.assert_nothing_left()


@pytest.mark.parametrize("what", ["_exit", "exit in training"])
def test_status_0_in_the_middle_is_no_pass(bench, what, start):
    run = bench(what, start)
    assert str(run.seen.died) == "exit (0)"
    assert run.judged(Standard(Failure(run.seen.died))).outcome is Outcome.FAIL
    bench.assert_nothing_left()


def test_status_0_before_training_is_no_pass(bench, start):
    run = bench("exit before training", start)
    assert run.seen.died.kind == "no-training"
    bench.assert_nothing_left()


def test_status_before_training(bench, start):
    run = bench("status before training", start)
    assert str(run.seen.died) == "exit (7)"
    bench.assert_nothing_left()


def test_zero_steps(bench, start):
    run = bench("no steps", start)
    assert run.seen.died.kind == "no-steps"
    bench.assert_nothing_left()


def test_fewer_steps_than_the_horizon_is_a_pass(bench):
    run = bench("few steps")
    assert run.shown.signature is None and run.seen.steps == 2
    bench.assert_nothing_left()


def test_healthy_run_stops_at_the_horizon(bench, start):
    run = bench("fine", start, steps=7)
    assert run.shown.signature is None and run.seen.steps == 7
    bench.assert_nothing_left()


@pytest.mark.parametrize("what", ["hang", "hang with ignored signals"])
def test_hang(bench, what, start):
    run = bench(what, start, patience=3.0)
    assert (run.seen.died.kind, run.shown.step) == ("hang", 3)
    assert run.judged(Standard(Failure(run.seen.died))).outcome is Outcome.FAIL
    stacks = (run.folder / "stacks.txt").read_text()
    assert "in lazy_reward" in stacks and "in step" in stacks
    assert "lazy_reward" in run.seen.place
    bench.assert_nothing_left()


def test_hang_before_training(bench):
    run = bench("hang before training", patience=2.0)
    assert run.seen.died.kind == "hang" and "start of training" in run.seen.message
    assert "in lazy_reward" in (run.folder / "stacks.txt").read_text()
    bench.assert_nothing_left()


@pytest.mark.parametrize(
    "what",
    ["children", "daemons", "daemons without environment", "child that fails", "thread that fails", "closed output"],
)
def test_what_outlives_or_fails_beside_the_training_is_not_its_failure(bench, what, start):
    run = bench(what, start)
    assert run.shown.signature is None and run.seen.steps == 5
    bench.assert_nothing_left()


def test_binary_garbage(bench, start):
    run = bench("garbage", start)
    assert (run.seen.died.kind, run.seen.died.name, run.shown.step) == ("exception", "ValueError", 3)
    bench.assert_nothing_left()


def test_gigabytes_of_output(bench, start):
    run = bench("gigabytes", start, patience=120.0)
    log = (run.folder / "log.txt").read_bytes()
    assert run.seen.died.name == "SIGSEGV"
    assert log.startswith(b"how it began\n") and log.endswith(b"how it ended\n")
    assert (1 << 20) < len(log) < (5 << 20) and b"bytes left out here" in log
    assert b"\0" not in log
    bench.assert_nothing_left()


def test_reason_at_the_end_of_a_long_log(bench, start):
    run = bench("says why at the end", start)
    assert (run.seen.died.kind, run.seen.died.name) == ("exception", "OSError"), run.seen
    bench.assert_nothing_left()


def test_trial_after_all_that_is_healthy(bench, start):
    assert bench("fine", start).shown.signature is None


def test_server_that_is_killed_is_started_again(bench):
    for process in bench.waiting:
        with contextlib.suppress(psutil.NoSuchProcess):  # the child that resolves configurations ends with its server
            process.kill()
    run = bench("raise")
    assert run.seen.died.name == "ValueError"
    bench.waiting = bench.processes()
    assert len(bench.waiting) == 1


def test_interrupt_ends_a_running_trial(bench):
    import threading

    threading.Timer(1.0, bench.runner.site.interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        bench("hang", patience=60)
    bench.runner.site._interrupted.clear()
    bench.assert_nothing_left()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
