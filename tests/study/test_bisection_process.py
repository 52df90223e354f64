"""The engine among processes: trials that die in every way, killed tools, a second tool on one study."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tools import slow

from bisect_cfg import Bisection, Outcome
from bisect_cfg.common.failures.signature import from_log
from bisect_cfg.configuration import Purpose
from bisect_cfg.runner.function import FunctionRunner, result_of_exception
from bisect_cfg.store.interface import TrialRequest, TrialResult

NAMES = [f"x{i}" for i in range(10)]
GOOD, BAD = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 1)


def one(trial, **options) -> TrialResult:
    return FunctionRunner(trial, **options).run(TrialRequest(0, {"a": 1}, frozenset(), Purpose.SEARCH, ""))


@pytest.mark.training
def test_how_a_child_can_end() -> None:
    def raises(c: dict) -> bool:
        raise ValueError(f"bad tensor at 0x7f3a in /home/me/x/train.py, step {c['a']}")

    assert one(lambda c: True).outcome is Outcome.PASS
    assert one(lambda c: False).outcome is Outcome.FAIL
    assert one(lambda c: None).outcome is Outcome.UNRESOLVED
    with pytest.raises(TypeError, match="must return"):  # no answer is meant by that
        one(lambda c: "what")
    assert one(raises).signature == "ValueError: bad tensor at <hex> in <path>, step <n>"
    assert one(lambda c: os.kill(os.getpid(), signal.SIGFPE)).signature == "SIGFPE"
    assert one(lambda c: os._exit(3)).signature == "exit status 3"
    assert one(lambda c: sys.exit("no")).outcome is Outcome.FAIL
    quiet = one(lambda c: os._exit(0))
    assert quiet.outcome is Outcome.UNRESOLVED and "without an answer" in quiet.message
    assert one(lambda c: time.sleep(30), timeout=0.3).signature == "hang"
    rich = one(lambda c: TrialResult(Outcome.FAIL, "s", "m", 2.0, 7, {"k": [1], "o": object()}))
    assert (rich.signature, rich.seconds, rich.step, rich.attributes["k"]) == ("s", 2.0, 7, [1])


@pytest.mark.training
def test_a_grandchild_dies_with_the_trial(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def trial(c: dict) -> bool:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        note.write_text(str(child.pid))
        return True

    assert one(trial).outcome is Outcome.PASS
    deadline = time.monotonic() + 5
    while alive(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(note.read_text()))


ESCAPES = """
import os, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        code = "import os, time; open({note!r}, 'w').write(str(os.getpid())); time.sleep(60)"
        os.execve(sys.executable, [sys.executable, "-c", code], {{}})
"""
"""A process of its own session, without an environment, whose parents have ended. It writes down its number."""


def daemon(note: Path) -> int:
    """Start what escapes, from wherever this is called."""
    subprocess.run([sys.executable, "-c", ESCAPES.format(note=str(note))], check=True)
    while not note.exists() or not note.read_text():
        time.sleep(0.01)
    return int(note.read_text())


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.training
@pytest.mark.skipif(sys.platform != "linux", reason="child subreapers are Linux's")
@pytest.mark.parametrize("ending", ["answers", "dies", "hangs"])
def test_a_daemon_of_the_trial_ends_with_it(tmp_path: Path, ending: str) -> None:
    def trial(c: dict) -> bool:
        daemon(tmp_path / "pid")
        if ending == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if ending == "hangs":
            time.sleep(60)
        return True

    result = one(trial, timeout=5 if ending == "hangs" else None)
    assert result.signature == {"answers": None, "dies": "SIGSEGV", "hangs": "hang"}[ending]
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.training
@pytest.mark.skipif(sys.platform != "linux", reason="child subreapers are Linux's")
def test_a_daemon_of_the_trial_ends_with_a_killed_tool(tmp_path: Path) -> None:
    tool = os.fork()
    if not tool:
        one(lambda c: [daemon(tmp_path / "pid"), time.sleep(60)])
        os._exit(0)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    os.kill(tool, signal.SIGKILL)
    os.waitpid(tool, 0)
    assert gone(int((tmp_path / "pid").read_text()))


def test_we_adopt_nobody() -> None:
    """A notebook's kernel may have children of its own, whose children are none of our business."""
    import ctypes

    assert one(lambda c: True).outcome is Outcome.PASS
    subreaper = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    assert subreaper.value == 0


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_exceptions_have_the_signatures_that_a_log_would_give() -> None:
    """One normalisation behind both doors."""
    for text in (
        "CUDA error at 0xdeadbeef line 12",
        "loss is nan, lr=1e-06",
        "no file /tmp/a/b.txt, bf16 on cuda:1",
        "x\ny",
    ):
        error = RuntimeError(text)
        log = f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nRuntimeError: {text}\n'
        found = from_log(io.BytesIO(log.encode()))
        assert result_of_exception(error).signature == str(replace(found, where=""))
    memory = result_of_exception(RuntimeError("CUDA out of memory. Tried to allocate 2.50 GiB"))
    assert (
        memory.signature == result_of_exception(RuntimeError("CUDA out of memory. Tried to allocate 7 GiB")).signature
    )


def test_exception_whose_text_cannot_be_had() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    assert "Mute" in result_of_exception(Mute()).signature


SCRIPT = """
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


def script(tmp_path: Path) -> list[str]:
    path = tmp_path / "tool.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return [sys.executable, str(path), str(tmp_path / "log"), f"sqlite:///{tmp_path}/study.db"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_killed_at_random_moments_it_goes_on_where_it_was(tmp_path: Path, jobs: str) -> None:
    command = [*script(tmp_path), jobs]
    rng = random.Random(1)
    for _ in range(5):
        tool = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, start_new_session=True)
        try:
            tool.wait(timeout=1.0 + rng.random())  # the imports alone take about a second
        except subprocess.TimeoutExpired:
            tool.kill()
            tool.wait()
        assert tool.stdout is not None
        tool.stdout.close()
    last = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert "[('x2', 'x7')] True" in last.stdout
    runs = (tmp_path / "log").read_text().split()
    trials = int(last.stdout.split()[-1])
    killed = 5 * int(jobs)  # a run may have ended, and its result not been written, when the tool died
    assert trials <= len(runs) <= trials + killed
    time.sleep(0.2)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]


@pytest.mark.slow
@pytest.mark.training
def test_of_two_tools_on_one_study_the_second_is_told(tmp_path: Path) -> None:
    command = [*script(tmp_path), "1"]
    first = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "log").exists() and first.poll() is None:  # its first trial runs
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)
    second = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    first.send_signal(signal.SIGCONT)
    answer = first.communicate(timeout=60)[0]
    assert "[('x2', 'x7')] True" in answer
    assert second.returncode and f"process {first.pid} on" in second.stderr and not second.stdout
    assert len((tmp_path / "log").read_text().split()) == int(answer.split()[-1])


@pytest.mark.slow
@pytest.mark.training
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [*script(tmp_path), "2"]
    tool = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, start_new_session=True)
    log = tmp_path / "log"
    deadline = time.monotonic() + 20
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    tool.send_signal(signal.SIGINT)
    tool.communicate(timeout=10)
    assert tool.returncode != 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
    last = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert "[('x2', 'x7')] True" in last.stdout


@pytest.mark.training
@pytest.mark.parametrize("nth", [slow(70), 80, slow(85)])
def test_ctrl_c_while_the_database_is_read(tmp_path: Path, nth: int) -> None:
    """The cursor is closed first: else the tool waits for a lock of its own, for as long as the database lets it."""
    command = [*script(tmp_path), "1"]
    interrupted = f"""
        import os, signal, sys
        from sqlalchemy import Engine, event
        statements = []

        @event.listens_for(Engine, "after_cursor_execute")
        def _(connection, cursor, statement, *rest):
            if statement.startswith("SELECT") and sys.argv[0].endswith("tool.py"):
                statements.append(statement)
                if len(statements) == {nth}:
                    print("interrupted", file=sys.stderr, flush=True)
                    os.kill(os.getpid(), signal.SIGINT)
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(interrupted))
    at_random = {**environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"}
    tool = subprocess.run(command, env=at_random, capture_output=True, text=True, timeout=60)
    assert "\ninterrupted\n" in f"\n{tool.stderr}"
    assert "KeyboardInterrupt" in tool.stderr or tool.returncode == -signal.SIGINT, tool.stderr
    assert "database is locked" not in tool.stderr
    last = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert "[('x2', 'x7')] True" in last.stdout


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


@pytest.mark.training
def test_values_optuna_cannot_hold(tmp_path: Path) -> None:
    good = {"a": float("nan"), "b": {"x": 1}, "c": [1], "d": True, "e": 1e-6, "f": 3}
    bad = {"a": 1.0, "b": {"x": 2}, "c": (2,), "d": 1, "e": 1e-3, "f": 3000, "g": None}
    report = Bisection(
        good, bad, lambda c: c["b"] != {"x": 2}, isolation="none", storage=f"sqlite:///{tmp_path}/s.db"
    ).run()
    assert report.causes[0].parameters == ("b",)
    assert report.causes[0].values["b"] == {"good": {"x": 1}, "bad": {"x": 2}}
