"""Functions as trials, in processes: how one can end, what it leaves, killed and interrupted tools."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tools import slow

from bisect_cfg import Bisection, Outcome
from bisect_cfg.common.configuration import Configuration, Purpose
from bisect_cfg.common.failures.signature import from_log
from bisect_cfg.runner.function import FunctionRunner, result_of_exception
from bisect_cfg.runner.processes import alive
from bisect_cfg.store.causes import RETURNED_FALSE
from bisect_cfg.store.interface import TrialRequest, TrialResult

NAMES = [f"x{i}" for i in range(10)]
GOOD, BAD = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 1)
PASS, FAIL, UNRESOLVED = Outcome.PASS, Outcome.FAIL, Outcome.UNRESOLVED


def request(configuration: Configuration) -> TrialRequest:
    return TrialRequest(0, configuration, frozenset(), Purpose.SEARCH, "")


def run(trial: Callable[[dict], object], **options: object) -> TrialResult:
    return FunctionRunner(trial, **options).run(request({"a": 1}))


def raises(configuration: dict) -> bool:
    raise ValueError(f"bad tensor at 0x7f3a in /home/me/x/train.py, step {configuration['a']}")


@pytest.mark.training
@pytest.mark.parametrize(("trial", "outcome", "signature"), [
    (lambda c: True, PASS, None),
    (lambda c: False, FAIL, RETURNED_FALSE),
    (lambda c: None, UNRESOLVED, "unresolved"),
    (raises, FAIL, "ValueError: bad tensor at <hex> in <path>, step <n>"),
    (lambda c: os.kill(os.getpid(), signal.SIGFPE), FAIL, "SIGFPE"),
    (lambda c: os.kill(os.getpid(), 40), FAIL, "signal 40"),  # it has no name
    (lambda c: os._exit(3), FAIL, "exit status 3"),
    (lambda c: sys.exit("no"), FAIL, "exit status 1"),
    (lambda c: os._exit(0), UNRESOLVED, "no answer"),
    (lambda c: time.sleep(30), FAIL, "hang"),
])  # fmt: skip
def test_how_a_trial_can_end(trial, outcome, signature) -> None:
    result = run(trial, timeout=0.3 if signature == "hang" else None)
    assert (result.outcome, result.signature) == (outcome, signature)


@pytest.mark.training
def test_what_a_trial_can_return() -> None:
    rich = run(lambda c: TrialResult(FAIL, "s", "m", 2.0, 7, {"k": [1], "o": object()}, {3: 0.5}))
    assert (rich.signature, rich.message, rich.seconds, rich.step) == ("s", "m", 2.0, 7)
    assert rich.attributes["k"] == [1] and "object object" in rich.attributes["o"] and rich.intermediate == {3: 0.5}
    with pytest.raises(TypeError, match="must return"):
        run(lambda c: "what")


@pytest.mark.training
def test_values_that_cannot_be_pickled() -> None:
    """The supervisor holds what is in the two configurations."""
    double = lambda number: 2 * number  # noqa: E731
    kept: list[object] = []
    kept.append(kept)
    good = {"function": double, "handle": sys.stdout, "list": [1, 2], "text": "ü"}
    runner = FunctionRunner(lambda c: c["function"](21) == 42 and c["handle"] is sys.stdout and c["list"] == [1, 2])
    with runner.standing(good, {"list": kept}):
        assert runner.run(request(good)).outcome is PASS
        assert runner.run(request({**good, "list": kept})).outcome is FAIL
        assert runner.run(request({**good, "list": [1, 1 + 1]})).outcome is PASS, "neither side's"


DAEMON = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        code = "import os, time; open({note!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(60)"
        os.execve(sys.executable, [sys.executable, "-c", code], {{}})
"""
"""A process in its own session, without an environment, whose parents have ended. It writes down its number."""


@pytest.mark.training
@pytest.mark.parametrize(("ending", "signature"), [("answers", None), ("dies", "SIGSEGV"), ("hangs", "hang")])
def test_a_daemon_of_a_trial_ends_with_it(tmp_path: Path, ending: str, signature: str | None) -> None:
    note = tmp_path / "pid"

    def trial(c: dict) -> bool:
        subprocess.run([sys.executable, "-c", DAEMON.format(note=str(note))], check=True)
        while not note.exists() or not note.read_text().endswith("."):
            time.sleep(0.01)
        if ending == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if ending == "hangs":
            time.sleep(60)
        return True

    runner = FunctionRunner(trial, timeout=5 if ending == "hangs" else None)
    with runner.standing({"a": 1}):
        assert runner.run(request({"a": 1})).signature == signature
        assert not alive(int(note.read_text()[:-1]))


def test_exceptions_have_the_signatures_that_a_log_would_give() -> None:
    """One normalisation behind both doors."""
    for text in ("CUDA error at 0xdeadbeef line 12", "loss is nan, lr=1e-06", "no file /tmp/a/b.txt on cuda:1", "x\ny"):
        log = f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nRuntimeError: {text}\n'
        found = from_log(io.BytesIO(log.encode()))
        assert result_of_exception(RuntimeError(text)).signature == str(replace(found, where=""))
    memory = [RuntimeError(f"CUDA out of memory. Tried to allocate {size} GiB") for size in ("2.50", "7")]
    assert len({result_of_exception(error).signature for error in memory}) == 1


def test_exception_whose_text_cannot_be_had() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    assert "Mute" in result_of_exception(Mute()).signature


# ------------------------------------------------------------------------------------------------ a whole bisection

TOOL = """
    import os, sys, time
    from bisect_cfg import Bisection
    log, url, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names = [f"x{i}" for i in range(10)]
    good, bad = dict.fromkeys(names, 0), dict.fromkeys(names, 1)

    def trial(c):
        time.sleep(0.03)
        with open(log, "a") as file:
            file.write("".join(str(c[n]) for n in names) + "\\n")
        return not (c["x2"] and c["x7"])

    report = Bisection(good, bad, trial, storage=url, jobs=jobs, prior="flat").run()
    print([cause.parameters for cause in report.causes], report.complete, len(report.rows))
"""


class Bisecting:
    """A program that bisects, and can be started again and again."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "tool.py").write_text(textwrap.dedent(TOOL))
        self.command = [sys.executable, "tool.py", str(self.log), f"sqlite:///{folder}/study.db", str(jobs)]
        path = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[2])])
        self.options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": path}, "text": True}

    def start(self) -> subprocess.Popen[str]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        return subprocess.Popen(self.command, **self.options, **quiet)

    def finish(self) -> int:
        """Run it to its end; how many trials it has in all."""
        last = subprocess.run(self.command, **self.options, capture_output=True, timeout=60, check=True)
        assert "[('x2', 'x7')] True" in last.stdout
        return int(last.stdout.split()[-1])

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + 5
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left

    def left(self) -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if str(self.log) in (one.info["cmdline"] or ())]


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("jobs", [1, 3])
def test_killed_or_interrupted_at_random_moments_it_goes_on_where_it_was(tmp_path, jobs, number) -> None:
    tool, dice = Bisecting(tmp_path, jobs), random.Random(1)
    for _ in range(5):
        process = tool.start()
        try:
            process.wait(timeout=1.0 + dice.random())  # the imports alone take about a second
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            assert process.wait(timeout=20) != 0
        tool.assert_nothing_left()
    trials, runs = tool.finish(), len(tool.log.read_text().split())
    assert trials <= runs <= trials + 5 * jobs, "a run may have ended, and its result not been written"
    tool.assert_nothing_left()


INTERRUPTS = """
import os, signal, sys
from sqlalchemy import Engine, event
statements = []

@event.listens_for(Engine, "after_cursor_execute")
def _(connection, cursor, statement, *rest):
    if statement.startswith("SELECT") and sys.argv[0].endswith("tool.py"):
        statements.append(statement)
        if len(statements) == NUMBER:
            print("interrupted", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.training
@pytest.mark.parametrize("number", [slow(70), 80, slow(85)])
def test_ctrl_c_while_the_database_is_read(tmp_path, number) -> None:
    """The cursor is closed first: else the tool waits for a lock of its own, for as long as the database lets it."""
    tool, interrupts = Bisecting(tmp_path, 1), tmp_path / "sitecustomize.py"
    interrupts.write_text(INTERRUPTS.replace("NUMBER", str(number)))
    done = subprocess.run(tool.command, **tool.options, capture_output=True, timeout=60)
    assert "\ninterrupted\n" in f"\n{done.stderr}"
    assert "KeyboardInterrupt" in done.stderr or done.returncode == -signal.SIGINT, done.stderr
    assert "database is locked" not in done.stderr
    interrupts.unlink()
    tool.finish()


@pytest.mark.training
def test_jobs_run_at_once(tmp_path: Path) -> None:
    met = tmp_path / "met"

    def trial(c: dict) -> bool:
        here = tmp_path / str(os.getpid())
        here.mkdir()
        deadline = time.monotonic() + 2  # where nobody else comes; without parallel trials nobody ever does
        while not met.exists() and time.monotonic() < deadline:
            if len(list(tmp_path.iterdir())) > 1:
                met.touch()
            time.sleep(0.01)
        here.rmdir()
        return not (c["x1"] and c["x4"])

    report = Bisection(GOOD, BAD, trial, jobs=4, prior="flat").run()
    assert report.causes[0].parameters == ("x1", "x4")
    assert met.exists(), "no two trials ran at the same time"


def test_values_optuna_cannot_hold(tmp_path: Path) -> None:
    good = {"a": float("nan"), "b": {"x": 1}, "c": [1], "d": True, "e": 1e-6, "f": 3}
    bad = {"a": 1.0, "b": {"x": 2}, "c": (2,), "d": 1, "e": 1e-3, "f": 3000, "g": None}
    storage = f"sqlite:///{tmp_path}/s.db"
    report = Bisection(good, bad, lambda c: c["b"] != {"x": 2}, isolation="none", storage=storage).run()
    assert report.causes[0].parameters == ("b",)
    assert report.causes[0].values["b"] == {"good": {"x": 1}, "bad": {"x": 2}}
