"""The supervisor: what a run is given, how its end is told, and that a run is ended which nothing watches."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import QUICK, assert_clear, until
from toys import script

from bisect_cfg.errors import InputError
from bisect_cfg.runner import supervisor_process
from bisect_cfg.runner.processes import alive
from bisect_cfg.runner.supervisor import Run, Supervisor


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.close()
    assert not psutil.pid_exists(made.pid)


def start(supervisor: Supervisor, folder: Path, *command: str) -> Run:
    return supervisor.start(command, os.environ, folder)


@pytest.mark.parametrize("text", ["exit 0", "exit 7", "exit 136", "kill -8 $$", "kill -9 $$", "kill -40 $$"])
def test_exit_code(supervisor, tmp_path, text):
    plain = subprocess.run(["sh", "-c", text]).returncode
    run = start(supervisor, tmp_path, "sh", "-c", text)
    assert run.wait() == plain == run.wait(0)


LOOK = (
    "import json,os,sys; print(json.dumps([sorted((k.hex(), v.hex()) for k, v in os.environb.items() "
    "if k != b'BISECT_CFG_STUDY'), os.getcwd(), sorted(os.listdir('/proc/self/fd')), sys.argv, "
    "os.getsid(0) == os.getpid()]))"
)


@pytest.mark.parametrize(
    "command", [[sys.executable, "-c", LOOK, "Wörter\udcff", ""], ["grep", "^Sig[^Q]", "/proc/self/status"]]
)
def test_what_a_run_is_given(supervisor, tmp_path, monkeypatch, command):
    """As if the tool had started it: environment to the byte, working directory, descriptors, signals."""
    folder = tmp_path / "Übung\udcff"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ODD", "Grüße \udcfe\n=")
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "start_new_session": True}
    plain = subprocess.run(command, **quiet, env=os.environ)  # not what readline has put behind Python's back (COLUMNS)
    assert start(supervisor, tmp_path, *command).wait() == 0
    assert (tmp_path / "log.txt").read_text() == plain.stdout != ""


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


def test_program_that_does_not_exist(supervisor, tmp_path):
    assert start(supervisor, tmp_path, "no-such-program").wait() == 127
    assert start(supervisor, tmp_path, str(tmp_path)).wait() == 126
    assert (tmp_path / "log.txt").read_text() == (
        f"no-such-program: No such file or directory\n{tmp_path}: Permission denied\n"
    )


def test_the_tool_is_no_subreaper(supervisor, tmp_path):
    """A notebook's kernel may have children of its own, whose children are none of our business."""
    assert start(supervisor, tmp_path, "true").wait() == 0
    value, pr_get_child_subreaper = ctypes.c_int(-1), 37
    assert ctypes.CDLL(None).prctl(pr_get_child_subreaper, ctypes.byref(value), 0, 0, 0) == 0
    assert value.value == 0


@pytest.mark.parametrize(
    "way",
    [
        "os.setsid(); os.fork() and os._exit(0); sleep(os.environ)",  # told by its mark alone
        "os.fork() and os._exit(0); sleep({})",  # by its process group
        "os.setsid(); sleep({})",  # by its parent
    ],
)
def test_each_process_ends_with_its_own_run(supervisor, tmp_path, way):
    """Two runs, each with a process that was started in the same way; its parent may have ended at once."""
    text = f"""
import os, sys, time
def sleep(environment):
    with open(sys.argv[1], "w") as stream:
        stream.write(f"{{os.getpid()}}.")
    os.execve("/bin/sleep", ["sleep", "60"], environment)
if not os.fork():
    {way}
time.sleep(60)
"""
    notes = [tmp_path / "one", tmp_path / "other"]
    runs = [start(supervisor, tmp_path, sys.executable, "-c", text, str(note)) for note in notes]
    until(lambda: all(note.exists() and note.read_text().endswith(".") for note in notes))
    one, other = (int(note.read_text()[:-1]) for note in notes)
    runs[0].end()
    assert not alive(one) and alive(other) and alive(runs[1].pid)
    runs[1].end()
    assert not alive(other)


@pytest.mark.parametrize("which", ["supervisor", "keeper"])
def test_a_killed_supervisor_is_reported(tmp_path, which):
    supervisor = Supervisor()
    run = start(supervisor, tmp_path, "sleep", "10003")
    keeper = psutil.Process(supervisor.pid)
    (keeper if which == "keeper" else keeper.children()[0]).kill()
    with pytest.raises(InputError, match="ended from outside"):
        run.wait()
    with pytest.raises(InputError, match="ended from outside"):
        start(supervisor, tmp_path, "true")
    run.end()
    until(lambda: not alive(run.pid))
    supervisor.close()


# ----------------------------------------------------------------------------------------- torch without a probe


@pytest.fixture(scope="session")
def torch_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with the name of one of torch's."""
    folder = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    small = min(folder.glob("*.so"), key=lambda path: path.stat().st_size)
    return Path(shutil.copy(small, tmp_path_factory.mktemp("torch") / "libtorch_cpu.so"))


UNWATCHED = """
    import ctypes, os, subprocess, sys, time
    from pathlib import Path
    if "inner" not in sys.argv:
        me = [os.path.abspath(__file__), "inner", *sys.argv[1:]]
        bare = ["env", "-i", "PYTHONPATH=" + os.environ["PYTHONPATH"], sys.executable, *me]
        subprocess.call({
            "env -i": bare,
            "daemon": ["setsid", "-f", *bare],
        }[sys.argv[1]])
        time.sleep(60)
    ctypes.CDLL(sys.argv[3])
    sys.path.insert(0, sys.argv[4])
    Path("pids").open("a").write(f"{os.getpid()}\\n")
    time.sleep(60)  # the rest of the imports
    Path("out").mkdir(exist_ok=True)
    Path("out/checkpoint").write_text("overwritten")
"""


@pytest.mark.parametrize(
    ("command", "way"),
    [("bisect", "env -i"), ("bisect", "daemon"), ("doctor", "env -i")],
)
def test_training_that_nothing_watches_is_ended(tool, torch_library, library, command, way):
    (tool.folder / "train.py").write_text(textwrap.dedent(UNWATCHED))
    (tool.folder / "out").mkdir()
    (tool.folder / "out/checkpoint").write_text("the user's own")
    words = ("train.py", way, torch_library, library) if command == "doctor" else (
        "train.py", "--study", "s", "--", way, torch_library, library)  # fmt: skip
    said = tool(command, *words, seconds=50)
    assert_clear(said, "cannot watch", "train.py inner", "Name the script that trains")
    assert (tool.folder / "out/checkpoint").read_text() == "the user's own"
    pids = [int(pid) for pid in (tool.folder / "pids").read_text().split()]
    assert pids and not any(alive(pid) for pid in pids)
    tool.assert_nothing_left()


def test_a_command_without_a_probe_may_load_torch(tool, torch_library):
    """So may what it starts: Ray's workers have no probe either."""
    (tool.folder / "t.py").write_text(
        "import ctypes, subprocess, sys, time\nif len(sys.argv) == 3:\n"
        "    sys.exit(subprocess.run(['env', '-i', sys.executable, '-S', *sys.argv, 'worker']).returncode)\n"
        "ctypes.CDLL(sys.argv[1])\n"
        f"time.sleep({supervisor_process.PROBE_SECONDS + 2 * supervisor_process.SCAN_SECONDS})\nsys.exit(sys.argv[2])\n"
    )
    words = (sys.executable, "-S", "t.py", torch_library, "{code}")
    said = tool("bisect", "--no-recommend", "--good", "code=0", "--bad", "code=error: 7", "--", *words)
    assert said.status == 1 and "error: 7" in said.out and "SIGKILL" not in said.all, said.all
    tool.assert_nothing_left()


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


def test_helpers_with_a_probe_and_other_programs_are_left_alone(tool, torch_library, tmp_path):
    (tmp_path / "done").mkdir()
    tool.environment["DONE"] = str(tmp_path / "done")
    script(tool.folder, LEFT_ALONE)
    tool.bisect("train.py", "--steps", "1", *QUICK, "--", torch_library)
    words = (tmp_path / "done/done").read_text().split()
    assert words.count("watched") == words.count("reads") > 0
