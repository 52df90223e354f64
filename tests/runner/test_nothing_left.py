"""Whatever is killed, in whatever order, and whatever a run starts: nothing of it is left.

The processes are stand-ins, plain Python: a launcher with two ranks, trials forked from a server, functions; each with
a child of its own. They write into a file that they are there, since some hide everything else. All is drawn from the
seed that a test is named after.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tools import until

from bisect_cfg.probe.protocol import TrialOrders
from bisect_cfg.runner.fork_server import ForkServer
from bisect_cfg.runner.function import FunctionRunner
from bisect_cfg.runner.processes import process
from bisect_cfg.runner.supervisor import Supervisor

SEQUENCES, HOSTILE, LANDING = 60, 40, 6
"""Kill sequences and hostile children in all, and how many of either are played before a landing."""


def seeds(count: int) -> list[object]:
    return [seed if seed < LANDING else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]


class There:
    """The file into which processes write what they are, one line each: role, process id, start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read(self) -> list[tuple[str, psutil.Process]]:
        """Those that run still, and their roles."""
        found = []
        for role, pid, started in map(str.split, self.path.read_text().splitlines()):
            one = process(int(pid))
            if one.runs and str(one.started) == started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append((role, psutil.Process(int(pid))))
        return found

    def of(self, role: str) -> list[psutil.Process]:
        return [found for one, found in self.read() if one == role]

    def wait_for(self, **wanted: int) -> None:
        """Wait until so many of a role have been there."""
        until(lambda: all(self.path.read_text().count(f"{role} ") >= count for role, count in wanted.items()))

    def note(self, role: str, pid: int) -> None:
        with self.path.open("a") as stream:
            stream.write(f"{role} {pid} {process(pid).started}\n")

    def assert_nothing_left(self) -> None:
        with contextlib.suppress(AssertionError):
            until(lambda: not self.read())
        left = self.read()
        for _, one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        assert not left


# ------------------------------------------------------------------------------------------------ what the runs are

STAND_IN = """
    import os, signal, sys, time

    def note(role):
        started = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
        there = os.open(THERE, os.O_WRONLY | os.O_APPEND)
        os.write(there, f"{role} {os.getpid()} {started}\\n".encode())
        os.close(there)

    def start(role, then=lambda: None):
        if not os.fork():
            try:
                note(role)
                then()
                while True:
                    time.sleep(60)
            finally:
                os._exit(1)

    def become_a_sleeper():
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "60"], {})

    def start_daemon():
        if not os.fork():
            start("daemon", become_a_sleeper)
            os._exit(0)
        os.wait()
"""

LAUNCHER = """
    for _ in range(2):
        start("rank", start_daemon)
    note("first")
    time.sleep(60)
"""

FORKED = """
    note("rank")
    start_daemon()
    time.sleep(60)
"""


def source(there: There, text: str) -> str:
    return f"THERE = {str(there.path)!r}\n" + textwrap.dedent(STAND_IN) + textwrap.dedent(text)


def forked(main: Callable[[], object]) -> int:
    """Process id of a tool that is forked from here."""
    pid = os.fork()
    if not pid:
        try:
            main()
        finally:
            os._exit(0)
    return pid


def note_both(there: There, supervisor: Supervisor) -> None:
    keeper = psutil.Process(supervisor.pid)
    until(keeper.children)
    there.note("keeper", keeper.pid)
    there.note("supervisor", keeper.children()[0].pid)


def launching(folder: Path, there: There) -> None:
    """A tool with a supervisor, a launched run, a fork server and a trial of two ranks."""
    supervisor = Supervisor()
    note_both(there, supervisor)
    for name in ("run", "server", "trial"):
        (folder / name).mkdir()
    script = folder / "server" / "script.py"
    script.write_text(source(there, FORKED))
    server = ForkServer([sys.executable, str(script)], os.environ, [], folder / "server", supervisor)
    supervisor.start([sys.executable, "-c", source(there, LAUNCHER)], os.environ, folder / "run")
    assert server.wait_until_ready(60, threading.Event()) is None
    trial = supervisor.open(folder / "trial")
    for number in range(2):
        server.fork(trial, replace(TrialOrders(str(folder / "trial"), {}), env={"N": str(number)}))
    there.note("server", psutil.Process(trial.pid).ppid())
    time.sleep(120)


def calling(there: There) -> None:
    """A tool with two functions that run at once."""

    def trial(configuration: dict[str, object]) -> None:
        exec(source(there, LAUNCHER), {})

    runner = FunctionRunner(trial)
    with runner.standing({}):
        note_both(there, runner._supervisor)
        for _ in range(2):
            threading.Thread(target=runner._in_child, args=({},)).start()
        time.sleep(120)


# ------------------------------------------------------------------------------------------------ kill sequences

FIRST = (("tool", "supervisor"), ("supervisor", "tool"), ("keeper", "tool"))
"""What is killed first, and what perhaps later: never both the supervisor and its keeper, which nothing survives."""


@pytest.mark.training
@pytest.mark.parametrize("seed", seeds(SEQUENCES))
def test_whatever_is_killed_nothing_is_left(tmp_path, seed):
    """One of the tool, its supervisor and its keeper; then others, in an order and after pauses drawn from the seed; at
    last the tool."""
    dice, there = random.Random(seed), There(tmp_path / "there")
    if functions := seed % 2:
        tool = forked(lambda: calling(there))
        there.wait_for(rank=4, daemon=4, first=2)
    else:
        tool = forked(lambda: launching(tmp_path, there))
        there.wait_for(rank=4, daemon=4, first=1, server=1)
    there.note("tool", tool)
    first, second = FIRST[seed // 2 % 3]
    others = [second, "first", "rank", "rank", "daemon"] + ["server"] * (not functions)
    victims = [first, *dice.sample(others, dice.randint(0, 4))]
    for role in victims:
        if living := there.of(role):
            with contextlib.suppress(psutil.NoSuchProcess):  # of what was killed before
                dice.choice(living).kill()
        time.sleep(dice.choice([0, 0, dice.uniform(0, 0.02), dice.uniform(0, 0.3)]))
    os.kill(tool, signal.SIGKILL)
    os.waitpid(tool, 0)
    there.assert_nothing_left()


# ------------------------------------------------------------------------------------------------ hostile children

WAYS = """
    def ignore():
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass

    def become():  # another program, without environment
        text = "import time; time.sleep(60)"
        os.execve(sys.executable, [sys.executable, "-S", "-E", "-c", text], {})

    def double():
        if os.fork():
            os._exit(0)
        note("hostile")

    def hop():  # never be the same process for long
        for _ in range(60):
            double()
            time.sleep(0.005)

    def shut():
        os.closerange(0, 4096)

    def stop():
        start("hostile", lambda: os.kill(os.getpid(), signal.SIGSTOP))

    ways = {"session": os.setsid, "group": lambda: os.setpgid(0, 0), "ignore": ignore, "double": double, "hop": hop,
            "shut": shut, "stop": stop, "become": become}

    def be(names):
        for name in names:
            try:
                ways[name]()
            except PermissionError:  # it leads a session or group already
                pass

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel's, to an orphaned group with a stopped process
    start("hostile", lambda: be(NAMES))
    note("first")
    if STAYS:
        time.sleep(60)
"""

HOW = ("session", "group", "ignore", "double", "hop", "shut", "stop")


def hostile(dice: random.Random, there: There, stays: bool) -> str:
    names = dice.sample(HOW, dice.randint(2, 7)) + ["become"] * dice.choice([0, 1])
    return f"NAMES, STAYS = {names!r}, {stays}\n" + source(there, WAYS)


@pytest.mark.training
@pytest.mark.parametrize("seed", seeds(HOSTILE))
def test_hostile_children_end_with_their_run(tmp_path, seed):
    """Two runs at once, with what the seed draws; one is ended, then the other."""
    dice = random.Random(seed)
    one, other = There(tmp_path / "one"), There(tmp_path / "other")
    texts = [hostile(dice, one, dice.random() < 0.7), hostile(dice, other, True)]
    if dice.random() < 0.3:
        supervisor = Supervisor(call=lambda message, answer: exec(texts[int(message)], {}))
        runs = [supervisor.call(b"0", 2), supervisor.call(b"1", 2)]
    else:
        supervisor = Supervisor()
        runs = [supervisor.start([sys.executable, "-c", text], os.environ, tmp_path) for text in texts]
    try:
        one.wait_for(hostile=1)
        other.wait_for(hostile=1, first=1)
        time.sleep(dice.choice([0, dice.uniform(0, 0.1), dice.uniform(0, 0.8)]))
        runs[0].end()
        # Only what hides everything, and whose parents are gone, may stay until the other run is ended.
        assert not [process for _, process in one.read() if supervisor.study in _environment(process)]
        assert other.of("first"), "the other run goes on"
        runs[1].end()
        left = [process for there in (one, other) for _, process in there.read()]
        assert not left, [process.as_dict(["pid", "ppid", "status", "name", "create_time"]) for process in left]
    finally:
        supervisor.close()
        one.assert_nothing_left()
        other.assert_nothing_left()


def _environment(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return "".join(process.environ().values())
    return ""
