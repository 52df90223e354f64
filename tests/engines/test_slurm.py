"""A study as a job of Slurm: what is decided, without Slurm; and a real one, with two nodes on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import Studied, until

from bisect_cfg.engines.slurm import Job, Queued, job_file, jobs_in, parse
from bisect_cfg.errors import InputError
from tests.engines.test_ray import ADDRESS, Cluster
from tests.engines.test_sites import answer


def test_options_of_sbatch_are_read() -> None:
    assert parse(["partition=gpu,nodes=4", "gpus-per-node=h100:8,time=1-12"]) == {
        "partition": "gpu", "nodes": "4", "gpus-per-node": "h100:8", "time": "1-12",
    }  # fmt: skip
    assert parse(["partition=a,b,nodes=2", "exclusive=", "--nodelist=n[1-2]"]) == {
        "partition": "a,b", "nodes": "2", "exclusive": "", "nodelist": "n[1-2]",
    }  # fmt: skip


@pytest.mark.parametrize("given", ["nodes", "nodes=", "nodes=0", "time=1h", "Nodes=2", "output=x", "nodes=2,exclusive"])
def test_what_cannot_be_right_is_refused(given: str) -> None:
    with pytest.raises(InputError, match="--slurm"):
        parse([given])


def test_no_secret_stands_in_the_job_file(tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz012345"
    command = ["/a b/python", "-m", "bisect_cfg", "--", "train.py", "--token", secret, "it's"]
    text, variables = job_file(command, tmp_path / "a study", {"nodes": "2", "time": "5"})
    assert secret not in text and list(variables.values()) == [secret]
    lines = text.split("\n# Below")[0] + '\nprintf "%s\\n" "$python" "$folder" "${command[@]}"'
    said = subprocess.run(["bash", "-c", lines], env={**os.environ, **variables}, capture_output=True, text=True)
    assert said.stdout.splitlines() == [command[0], str(tmp_path / "a study" / "slurm"), *command]
    assert "#SBATCH --nodes=2\n#SBATCH --time=5\n" in text


def test_what_squeue_says() -> None:
    jobs = jobs_in("5|RUNNING|None|/s/slurm/job.sh\n6|PENDING|Priority|/a|b/job.sh\n7|TIMEOUT|TimeLimit|x\n")
    assert jobs[:2] == [
        Queued("5", "RUNNING", "None", "/s/slurm/job.sh"),
        Queued("6", "PENDING", "Priority", "/a|b/job.sh"),
    ]
    assert [job.over for job in jobs] == [False, False, True]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with what squeue prints; sbatch makes job 7 and refuses a partition `no`; scancel has it cancelled."""
    listed, job = tmp_path / "queue", tmp_path / "slurm" / "job.sh"
    for name, text in {
        "squeue": f"cat {listed}",
        "sbatch": f'grep -q partition=no "$2" && echo "sbatch: error: invalid partition" >&2 && exit 1; echo "7;here"; '
        f'echo "7|RUNNING|None|{job}" > {listed}',
        "scancel": f'echo "7|CANCELLED|None|{job}" > {listed}',
    }.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    listed.touch()
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return listed


def submitted(study: Path, notes: list[str], options: dict[str, str] | None = None) -> Job:
    job = Job(study, notes.append)
    assert not job.find()
    job.submit(*job_file([sys.executable], study, options or {}))
    return job


def test_a_job_ends_as_its_command_did(tmp_path: Path, queue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = submitted(tmp_path, [])
    (tmp_path / "slurm" / "7.out").write_text("CAUSE\n")
    (tmp_path / "slurm" / "7.err").write_text("a warning\n")
    (tmp_path / "slurm" / "7.status").write_text("3\n")
    assert job.watch(lambda: None) == 3 and capsys.readouterr() == ("CAUSE\n", "a warning\n")
    assert not Job(tmp_path, [].append).find()  # Slurm has it yet, but its command has ended


def test_a_job_that_slurm_refuses(tmp_path: Path, queue: Path) -> None:
    with pytest.raises(InputError, match="Slurm refuses the job: invalid partition"):
        submitted(tmp_path, [], {"partition": "no"})


@pytest.mark.parametrize("how", ["7|TIMEOUT|TimeLimit|x\n", "", "told"])
def test_a_job_that_ends_before_the_answer(tmp_path: Path, queue: Path, how: str) -> None:
    job = submitted(tmp_path, [])
    if how == "told":
        (tmp_path / "slurm" / "7.status").write_text("143\n")
    else:
        queue.write_text(how)
    with pytest.raises(InputError, match=r"Job 7 .* before there was an answer") as error:
        job.watch(lambda: None)
    assert error.value.status == 2 and "same command again" in error.value.advice


@pytest.mark.parametrize("wants", [None, True])
def test_at_ctrl_c_a_job_is_cancelled_only_if_that_is_wanted(tmp_path: Path, queue: Path, wants: bool | None) -> None:
    job, asked, notes = submitted(tmp_path, []), [], []

    def interrupted(note: str) -> None:
        if not asked:
            asked.append(note)
            raise KeyboardInterrupt
        notes.append(note)

    job._note = interrupted
    with pytest.raises(KeyboardInterrupt):
        job.watch(lambda: wants)
    assert "Job 7 goes on. `scancel 7` cancels it" in notes[0]
    assert ("CANCELLED" in queue.read_text()) is (wants is True)
    again = Job(tmp_path, notes.append)
    assert again.find() is (wants is None) and again.id == ("7" if wants is None else "")


# ------------------------------------------------------------------------------------------------------- a real one


def missing() -> str:
    """Why there can be no Slurm here; "" if there can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed"
    if not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "unshare", "nsenter", "ip"))):
        return "Slurm (slurmctld, slurmd, slurm-client) or unshare, nsenter and ip are not here"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode
    return "Slurm's daemons and a network of their own want root" if os.getuid() or tried else ""


CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}({address})
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=20
NodeName=n1 NodeHostname={host} NodeAddr={address} Port=17001 CPUs=2 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr={address} Port=17002 CPUs=2 Gres=gpu:2
PartitionName=all Nodes=n1,n2 Default=YES
"""

RENDER = """
import argparse, time

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--fast", action="store_true")
parser.add_argument("--quality", default="low")
given = parser.parse_args()
time.sleep(SECONDS)
if given.fast and given.workers > 2:
    raise RuntimeError("two workers took the same tile")
"""

COMMAND = ("--", sys.executable, "render.py", "--workers", "8", "--fast", "--quality", "high")


class Slurm(Cluster):
    """A controller and two nodes of two made-up GPUs each, without systemd and munge."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self._space = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.environment = {
            **os.environ, "CLUSTER_MARK": self.mark, "SLURM_CONF": str(folder / "slurm.conf"),
            "RAY_TMPDIR": str(folder),
        }  # fmt: skip
        for name in ("state", "n1", "n2"):
            (folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        (folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, address=ADDRESS, folder=folder))
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        self.program(0.2)
        until(lambda: self._inside(["ip", "link", "set", "lo", "up"]).returncode == 0)
        self._inside(["ip", "addr", "add", f"{ADDRESS}/24", "dev", "lo"])
        with open(folder / "daemons.log", "w") as log:
            for daemon in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
                subprocess.Popen(self.command(daemon), env=self.environment, stdout=log, stderr=log)
        until(lambda: self._inside(["sinfo", "-h", "-o", "%T %D"]).stdout == "idle 2\n")
        self._daemons = {one.pid for one in self.processes()}

    def command(self, words: list[str]) -> list[str]:
        return ["nsenter", "--target", str(self._space.pid), "--net", *words]

    def program(self, seconds: float) -> None:
        """Write what is bisected, which takes so long."""
        (self.folder / "render.py").write_text(RENDER.replace("SECONDS", str(seconds)))

    def jobs(self) -> list[Queued]:
        """Those that are not over."""
        said = self._inside(["squeue", "--noheader", "--format=%A|%T|%r|%o"]).stdout
        return [job for job in jobs_in(said) if not job.over]

    def words(self, study: str, slurm: str = "") -> list[str]:
        """What begins a bisection in a job."""
        where = ["--on", "slurm", "--slurm", f"nodes=2,gpus-per-node=2{slurm}"]
        command = [sys.executable, "-P", "-m", "bisect_cfg", "bisect", *where, "--study", study, *COMMAND]
        return self.command(command)

    def tool(self, study: str, slurm: str = "") -> subprocess.Popen[str]:
        """Begin a bisection in a job."""
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(self.words(study, slurm), env=self.environment, cwd=self.folder, **pipe)

    def processes(self, *words: str) -> list[psutil.Process]:
        """All in the network of this Slurm, also what has no mark in its environment."""
        ours, found = os.readlink(f"/proc/{self._space.pid}/ns/net"), []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != self._space.pid and os.readlink(f"/proc/{process.pid}/ns/net") == ours:
                    found.append(process)
        return found

    def assert_nothing_left(self) -> None:
        """No job, and no process but Slurm's daemons."""
        until(lambda: not self.jobs())
        until(lambda: {one.pid for one in self.processes()} <= self._daemons, 40)
        assert not list(self.folder.glob("*/slurm/*.token"))


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    # Ray's sockets have short names.
    with (
        tempfile.TemporaryDirectory(prefix="bc-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        contextlib.closing(Slurm(Path(folder))) as made,
    ):
        yield made


def trial_runs(slurm: Slurm, study: str) -> bool:
    """Whether the search has begun."""
    return any(one.name.isdigit() and int(one.name) >= 2 for one in (slurm.folder / study / "trials").glob("*"))


def over(process: subprocess.Popen[str], status: int = 0) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == status, out + err
    return out + err


def real(test):
    """Marks a test that starts Slurm and Ray."""
    for mark in (pytest.mark.training, pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())):
        test = mark(test)
    return test


@real
def test_the_same_answer_in_a_job_of_two_nodes(slurm: Slurm) -> None:
    here = [sys.executable, "-P", "-m", "bisect_cfg", "bisect", "--study", "here", *COMMAND]
    subprocess.run(here, cwd=slurm.folder, check=True, capture_output=True)
    said = over(slurm.tool("there"))
    there, here = (Studied(slurm.folder / study).result for study in ("there", "here"))
    assert answer(there) == answer(here) == ("isolated", True, [["fast", "workers"]])
    assert there["cluster"]["slots"] == 4 and len(there["cluster"]["nodes"]) == 2
    assert "Submitted job" in said and "CAUSE" in said
    assert "--on slurm --slurm" in (slurm.folder / "there" / "command.json").read_text()
    slurm.assert_nothing_left()
    text = "".join(path.read_text(errors="replace") for path in slurm.folder.glob("there/**/*") if path.is_file())
    assert "RAY_AUTH_TOKEN" not in text.replace((slurm.folder / "there/slurm/job.sh").read_text(), "")


@real
def test_after_scancel_nothing_is_left_and_the_same_command_goes_on(slurm: Slurm) -> None:
    slurm.program(2)
    process = slurm.tool("s")
    until(lambda: trial_runs(slurm, "s"), 120)
    process.send_signal(signal.SIGINT)  # no terminal: nobody to ask
    assert "goes on. `scancel 1` cancels it" in over(process, 130) and len(slurm.jobs()) == 1
    process = slurm.tool("s")
    until(lambda: slurm._inside(["scancel", "1"]).returncode == 0)
    said = over(process, 2)
    assert "Job 1 is there for this study already" in said and "before there was an answer" in said
    slurm.assert_nothing_left()
    over(slurm.tool("s"))
    assert answer(Studied(slurm.folder / "s").result) == ("isolated", True, [["fast", "workers"]])
    slurm.assert_nothing_left()


@real
def test_after_its_time_limit_nothing_is_left_and_the_same_command_goes_on(slurm: Slurm) -> None:
    slurm.program(12)
    said = over(slurm.tool("s", slurm=",time=2"), 2)
    assert "before there was an answer" in said and "same command again" in said
    slurm.assert_nothing_left()
    over(slurm.tool("s"))
    assert answer(Studied(slurm.folder / "s").result) == ("isolated", True, [["fast", "workers"]])
    slurm.assert_nothing_left()


@real
def test_on_a_terminal_ctrl_c_asks(slurm: Slurm) -> None:
    pexpect = pytest.importorskip("pexpect")
    slurm.program(2)
    words = slurm.words("s")
    terminal = pexpect.spawn(
        words[0], words[1:], env=slurm.environment, cwd=slurm.folder, timeout=120, encoding="utf-8"
    )
    for reply in ("n", "y"):
        terminal.expect("RUNNING")
        terminal.sendintr()
        terminal.expect(r"Cancel it\?")
        terminal.sendline(reply)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    slurm.assert_nothing_left()
