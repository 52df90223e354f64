"""The process that trials descend from: it passes on how they end, adopts what they leave, and outlives the tool."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import assert_clear, slow
from toys import script

from bisect_cfg.errors import InputError
from bisect_cfg.runner import logs, supervisor_process
from bisect_cfg.runner.logs import LOG_HEAD, LOG_SLACK, LOG_TAIL, Log, shorten
from bisect_cfg.runner.processes import alive, descendants
from bisect_cfg.runner.supervisor import Run, Supervisor


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.close()
    assert not psutil.pid_exists(made.pid)


def start(supervisor: Supervisor, folder: Path, *command: str, **environment: str) -> Run:
    return supervisor.start(command, {**os.environ, **environment}, folder)


def process_of(supervisor: Supervisor) -> int:
    """Process id of the supervisor itself, the one child of its keeper."""
    keeper = psutil.Process(supervisor.pid)
    until(keeper.children)
    return keeper.children()[0].pid


def until(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("text", ["exit 0", "exit 7", "exit 136", "kill -8 $$", "kill -9 $$", "kill -40 $$"])
def test_how_a_run_ends(supervisor, tmp_path, text):
    plain = subprocess.run(["sh", "-c", text]).returncode
    child = start(supervisor, tmp_path, "sh", "-c", text)
    assert child.wait() == plain == child.poll()


def test_what_a_run_is_given(supervisor, tmp_path, monkeypatch):
    """As if the tool had started it: environment to the byte, working directory, signals, descriptors."""
    look = (
        "import json,os,signal,sys; print(json.dumps([sorted((k.hex(), v.hex()) for k, v in os.environb.items() "
        "if k != b'BISECT_CFG_STUDY'), os.getcwd(), [str(signal.getsignal(n)) for n in range(1, 32)], "
        "sorted(os.listdir('/proc/self/fd')), sys.argv, os.getsid(0) == os.getpid(), "
        "str(signal.pthread_sigmask(0, []))]))"
    )
    folder = tmp_path / "Übung\udcff"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ODD", "Grüße \udcfe\n=")
    command = [sys.executable, "-c", look, "Wörter\udcff", ""]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "start_new_session": True}
    plain = subprocess.run(command, **quiet, env=os.environ)  # not what readline has put behind Python's back (COLUMNS)
    assert start(supervisor, tmp_path, *command).wait() == 0
    assert (tmp_path / "log.txt").read_text() == plain.stdout


def test_program_that_does_not_exist(supervisor, tmp_path):
    with pytest.raises(FileNotFoundError):
        start(supervisor, tmp_path, "no-such-program")
    with pytest.raises(PermissionError):
        start(supervisor, tmp_path, str(tmp_path))
    assert start(supervisor, tmp_path, "true").wait() == 0


def test_ignored_interrupts_stay_ignored(tmp_path):
    """A shell without job control starts background commands so."""
    look = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    text = f"""
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
from bisect_cfg.runner.supervisor import Supervisor
supervisor = Supervisor()
supervisor.start([sys.executable, "-c", {look!r}], dict(os.environ), Path({str(tmp_path)!r})).wait()
supervisor.close()
"""
    subprocess.run([sys.executable, "-c", text], check=True)
    assert (tmp_path / "log.txt").read_text() == "True\n"


ESCAPES = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
"""


def sleepers(seconds: str) -> list[int]:
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", seconds]
    ]


def test_adopts_what_gives_itself_a_session_and_an_empty_environment(supervisor, tmp_path):
    assert start(supervisor, tmp_path, sys.executable, "-c", ESCAPES, "10001").wait() == 0
    until(lambda: len(sleepers("10001")) == 1)
    assert descendants(process_of(supervisor)) == sleepers("10001")
    supervisor.close()
    assert not sleepers("10001")


def test_the_tool_is_no_subsupervisor(supervisor, tmp_path):
    assert start(supervisor, tmp_path, "true").wait() == 0
    value = ctypes.c_int(-1)
    pr_get_child_subsupervisor = 37
    assert ctypes.CDLL(None).prctl(pr_get_child_subsupervisor, ctypes.byref(value), 0, 0, 0) == 0
    assert value.value == 0


def test_helper_without_environment_is_ended_when_the_tool_is_killed(fresh_tool):
    """Double fork, a session of its own, no environment; then kill -9."""
    script(
        fresh_tool.folder,
        f"""
    import subprocess, time
    subprocess.run([sys.executable, "-c", {ESCAPES!r}, "10002"], check=True)
    args = GRPOConfig(output_dir="out", bf16=True)
    GRPOTrainer(args, lambda number: time.sleep(0.5)).train()
    """,
    )
    process = fresh_tool.start("bisect", "train.py", "--study", "s")
    until(lambda: sleepers("10002") and list(fresh_tool.folder.glob("s/trials/0/metrics.jsonl")), 60)
    process.kill()
    process.communicate()
    until(lambda: not sleepers("10002"))
    fresh_tool.assert_nothing_left()


@pytest.mark.parametrize("which", ["supervisor", "keeper"])
def test_supervisor_that_is_killed_is_said(tmp_path, which):
    supervisor = Supervisor()
    run = start(supervisor, tmp_path, "sleep", "10003")
    os.kill(process_of(supervisor) if which == "supervisor" else supervisor.pid, signal.SIGKILL)
    with pytest.raises(InputError, match="ended from outside"):
        run.wait()
    with pytest.raises(InputError, match="ended from outside"):
        start(supervisor, tmp_path, "true")
    run.end()
    until(lambda: not sleepers("10003"))
    supervisor.close()


# ------------------------------------------------------------------------------------------------------- the guard


@pytest.fixture(scope="session")
def torch_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with the name of one of torch's."""
    folder = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    small = min(folder.glob("*.so"), key=lambda path: path.stat().st_size)
    return Path(shutil.copy(small, tmp_path_factory.mktemp("torch") / "libtorch_cpu.so"))


UNWATCHED = """
    import ctypes, subprocess, time
    from pathlib import Path
    if "inner" not in sys.argv:
        me = [os.path.abspath(__file__), "inner", *sys.argv[1:]]
        way = sys.argv[1]
        keep = ["PYTHONPATH=" + os.environ["PYTHONPATH"]]
        command = {
            "env -i": ["env", "-i", *keep, sys.executable, *me],
            "isolated": [sys.executable, "-I", *me],
            "without site": [sys.executable, "-S", *me],
        }
        if way == "replaced":
            os.execv("/usr/bin/env", ["env", "-i", *keep, sys.executable, *me])
        if way == "daemon":
            subprocess.Popen(["setsid", "-f", *command["env -i"]])
            time.sleep(60)
        subprocess.call(command[way])
        sys.exit()
    ctypes.CDLL(sys.argv[3])
    sys.path.insert(0, sys.argv[4])
    Path("pids").open("a").write(f"{os.getpid()}\\n")
    time.sleep(60)  # the rest of the imports
    Path("out").mkdir(exist_ok=True)
    Path("out/checkpoint").write_text("overwritten")
"""


@pytest.mark.parametrize("way", ["env -i", slow("isolated"), slow("without site"), slow("replaced"), "daemon"])
def test_training_that_nothing_watches_is_ended_and_said(fresh_tool, torch_library, library, way):
    (fresh_tool.folder / "train.py").write_text("import os, sys\n" + textwrap.dedent(UNWATCHED))
    (fresh_tool.folder / "out").mkdir()
    (fresh_tool.folder / "out/checkpoint").write_text("the user's own")
    said = fresh_tool("bisect", "train.py", "--study", "s", "--", way, torch_library, library, seconds=50)
    assert_clear(said, "cannot watch", "train.py inner", "Name the script that trains")
    assert (fresh_tool.folder / "out/checkpoint").read_text() == "the user's own"
    pids = [int(pid) for pid in (fresh_tool.folder / "pids").read_text().split()]
    assert pids and not any(alive(pid) for pid in pids)
    fresh_tool.assert_nothing_left()


def test_a_command_that_no_probe_is_in_may_load_torch(fresh_tool, torch_library):
    """Nor may what it starts: Ray's workers have no probe either."""
    (fresh_tool.folder / "t.py").write_text(
        "import ctypes, subprocess, sys, time\nif len(sys.argv) == 3:\n"
        "    sys.exit(subprocess.run(['env', '-i', sys.executable, '-S', *sys.argv, 'worker']).returncode)\n"
        "ctypes.CDLL(sys.argv[1])\n"
        f"time.sleep({supervisor_process.HELLO_SECONDS + 2 * supervisor_process.LOOK_SECONDS})\nsys.exit(sys.argv[2])\n"
    )
    words = (sys.executable, "-S", "t.py", torch_library, "{code}")
    said = fresh_tool("bisect", "--no-recommend", "--good", "code=0", "--bad", "code=error: 7", "--", *words)
    assert said.status == 1 and "error: 7" in said.out and "SIGKILL" not in said.all, said.all
    fresh_tool.assert_nothing_left()


def test_doctor_ends_and_says_it_too(fresh_tool, torch_library, library):
    (fresh_tool.folder / "train.py").write_text("import os, sys\n" + textwrap.dedent(UNWATCHED))
    said = fresh_tool("doctor", "train.py", "env -i", torch_library, library, seconds=50)
    assert_clear(said, "cannot watch", "train.py inner")
    assert not (fresh_tool.folder / "out").exists()
    fresh_tool.assert_nothing_left()


LEFT_ALONE = """
    import ctypes, mmap, subprocess, time
    library = sys.argv[1]
    wait = f"import ctypes, torch, time; ctypes.CDLL({library!r}); time.sleep(3); open('done', 'a').write('watched ')"
    reads = f"import mmap, time; file = open({library!r}, 'rb'); " \\
        "kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); time.sleep(3); open('done', 'a').write('reads ')"
    if not os.path.exists(os.environ["DONE"] + "/done"):
        here = os.getcwd()
        os.chdir(os.environ["DONE"])
        commands = [sys.executable, "-c", wait], ["env", "-i", sys.executable, "-c", reads]
        jobs = [subprocess.Popen(command) for command in commands]
        ctypes.CDLL(library)
        assert [job.wait() for job in jobs] == [0, 0]
        os.chdir(here)
    args = GRPOConfig(output_dir="out", bf16=True)
    GRPOTrainer(args, lambda number: 1 / 0 if args.bf16 else None).train()
"""


def test_watched_helpers_and_other_programs_are_left_alone(fresh_tool, torch_library, tmp_path):
    (tmp_path / "done").mkdir()
    fresh_tool.environment["DONE"] = str(tmp_path / "done")
    script(fresh_tool.folder, LEFT_ALONE)
    said = fresh_tool(
        "bisect", "train.py", "--study", "s", "--steps", "1", "--no-recommend", "--no-where", "--", torch_library
    )
    assert said.status == 0, said.all
    words = (tmp_path / "done/done").read_text().split()
    assert words.count("watched") == words.count("reads") > 0


# ------------------------------------------------------------------------------------------------------- logs


@pytest.mark.parametrize("holes", [True, False])
def test_log_that_grows(tmp_path, monkeypatch, holes):
    if not holes:
        monkeypatch.setattr(logs, "_punch", lambda *where: False)
    path = tmp_path / "log.txt"
    with path.open("ab", buffering=0) as stream:
        log = Log(str(path))
        assert not log.bound()
        block = b"".join(b"%07d\n" % number for number in range(1 << 17))  # 1 MiB
        stream.write(b"head\n")
        for _ in range(60):
            stream.write(block)
            log.bound()
            used = path.stat().st_blocks * 512
            assert used <= LOG_HEAD + LOG_TAIL + LOG_SLACK + len(block) + (1 << 16)
        stream.write(b"tail\n")
    shorten(path)
    text = path.read_bytes()
    assert text.startswith(b"head\n0000000\n") and text.endswith(b"0131071\ntail\n") and b"\0" not in text
    assert LOG_TAIL < len(text) <= LOG_HEAD + LOG_TAIL + LOG_SLACK + len(block)
    assert b"bytes left out here" in text


def test_short_log_stays_as_it_is(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"x" * (LOG_HEAD + LOG_TAIL))
    shorten(path)
    assert path.read_bytes() == b"x" * (LOG_HEAD + LOG_TAIL)
    shorten(tmp_path / "no log")
