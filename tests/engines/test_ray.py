"""Trials on a real Ray cluster of three nodes, in a network namespace of its own, as Ray binds to every address."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import QUICK, Studied, recorded, until
from toys import script

from tests.engines.test_sites import SLOW, answer


def namespace() -> list[str]:
    """What starts a program in a network of its own."""
    return ["unshare", "--map-root-user", "--net"]


def missing() -> str:
    """Why there can be no cluster here; "" if there can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed"
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return "unshare, nsenter and ip are not all here"
    tried = subprocess.run([*namespace(), "true"], capture_output=True).returncode
    return "this machine lets nobody make a network namespace" if tried else ""


pytestmark = [pytest.mark.training, pytest.mark.skipif(bool(missing()), reason=missing())]

ADDRESS = "10.77.0.1"

TIMEOUTS = {
    "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "8",
}  # fmt: skip
"""Ray's own, shortened: with the real ones a dead head is known after a minute."""


class Cluster:
    """Nodes in one namespace: a head without places, and others with two made-up GPUs each."""

    def __init__(self, folder: Path, library: Path, nodes: int) -> None:
        self.folder, self.mark, self._nodes = folder, uuid.uuid4().hex, nodes
        self._space = subprocess.Popen([*namespace(), "sleep", "infinity"])
        (folder / "r").mkdir()
        self.environment = {
            **os.environ, **TIMEOUTS, "RAY_TMPDIR": str(folder / "r"), "RAY_USAGE_STATS_ENABLED": "0",
            "CLUSTER_MARK": self.mark, "RAY_ADDRESS": f"{ADDRESS}:6379", "PYTHONPATH": str(library),
        }  # fmt: skip
        until(lambda: self._inside(["ip", "link", "set", "lo", "up"]).returncode == 0)
        self._inside(["ip", "addr", "add", f"{ADDRESS}/24", "dev", "lo"])
        self.start()

    def start(self) -> None:
        """Bring the nodes up."""
        about = [f"--node-ip-address={ADDRESS}", "--object-store-memory=80000000", "--disable-usage-stats"]
        head = ["--head", "--port=6379", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false"]
        for node in range(self._nodes + 1):
            more = head if node == 0 else [f"--address={ADDRESS}:6379", "--num-cpus=2", "--num-gpus=2"]
            started = self._inside([str(Path(sys.executable).with_name("ray")), "start", *more, *about])
            assert started.returncode == 0, started.stdout

    def command(self, words: list[str]) -> list[str]:
        """A command in the namespace."""
        space = ["nsenter", "--target", str(self._space.pid), "--user", "--net", "--preserve-credentials"]
        return [*space, *words]

    def _inside(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run(self.command(words), env=self.environment, cwd=self.folder, **pipe)

    def bisect(self, study: str, on: str = "ray") -> subprocess.Popen[str]:
        """Begin a bisection on the cluster, with all its slots."""
        options = [*QUICK, "--study", study, "--plain", "--on", on, "train.py"]
        command = self.command([sys.executable, "-P", "-m", "bisect_cfg", "bisect", *options])
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, **pipe)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Those of the cluster and of the bisections on it whose command line has all of these words."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("CLUSTER_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE
                if mine and all(word in " ".join(process.cmdline()) for word in words):
                    found.append(process)
        return found

    def of_studies(self) -> list[psutil.Process]:
        """What bisections have started."""
        return [*self.processes("site_process"), *self.processes("-SIc"), *self.processes("train.py")]

    def close(self) -> None:
        """End everything."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._space.kill()
        self._space.wait()


@pytest.fixture
def cluster(library: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    # Ray's sockets have short names.
    with (
        tempfile.TemporaryDirectory(prefix="bc-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        contextlib.closing(Cluster(Path(folder), library, request.param)) as made,
    ):
        yield made


def running(cluster: Cluster, study: str) -> bool:
    """Whether the search has begun and a trial of it runs."""
    trials = cluster.folder / study / "trials"
    return any(one.name.isdigit() and int(one.name) >= 3 and not (one / "ending.json").exists()
               for one in trials.glob("*"))  # fmt: skip


def over(cluster: Cluster, process: subprocess.Popen[str], status: int = 0) -> str:
    """What a bisection has said when it was over; nothing of it is left."""
    out, _ = process.communicate(timeout=240)
    assert process.returncode == status, out
    deadline = time.monotonic() + 10
    while cluster.of_studies() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [one.cmdline() for one in cluster.of_studies()] == [], out
    return out


def assert_answered(cluster: Cluster, study: str) -> None:
    """It is bf16, and each trial counts once."""
    result = Studied(cluster.folder / study).result
    assert answer(result) == ("isolated", True, [["bf16"]])
    numbers = [row["number"] for row in result["trials"]]
    assert len(numbers) == len(set(numbers)) and {row["outcome"] for row in result["trials"]} <= {"pass", "fail"}


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_a_bisection_on_one_node(cluster: Cluster) -> None:
    script(cluster.folder)
    over(cluster, cluster.bisect("s"))
    assert_answered(cluster, "s")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_whatever_is_killed_the_answer_is_the_same(cluster: Cluster) -> None:
    script(cluster.folder, SLOW)
    victims = {
        "site": ("site_process",), "supervisor": ("-SIc",), "actor": ("ray::Slot",),
        "node": ("raylet/raylet",),
    }  # fmt: skip
    for whose, words in victims.items():
        process = cluster.bisect(whose, f"{ADDRESS}:6379")
        until(lambda whose=whose: running(cluster, whose), 200)
        for one in cluster.processes(*words)[-1:] if whose == "node" else cluster.processes(*words):
            one.kill()
        out = over(cluster, process)
        assert_answered(cluster, whose)
        assert whose == "node" or "it is run again" in out, out  # the node may have had no trial just then
    process = cluster.bisect("tool")  # on the node that is left
    until(lambda: running(cluster, "tool"), 200)
    for one in cluster.processes("-m bisect_cfg bisect"):
        one.kill()
    process.communicate(timeout=60)
    over(cluster, cluster.bisect("tool"))
    assert_answered(cluster, "tool")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_without_its_head_a_bisection_ends_and_goes_on_later(cluster: Cluster) -> None:
    script(cluster.folder, SLOW)
    process = cluster.bisect("s")
    until(lambda: running(cluster, "s"), 200)
    process.send_signal(signal.SIGINT)
    assert "Run the same command again" in over(cluster, process, 130)
    trials = next(iter(recorded(f"sqlite:///{cluster.folder / 's/study.db'}").values()))
    assert all(trial.state.is_finished() for trial in trials)
    assert "interrupted" in {trial.user_attrs.get("outcome") for trial in trials}
    process = cluster.bisect("s")
    until(lambda: running(cluster, "s"), 200)
    cluster.processes("gcs_server")[0].kill()
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 2 and "run the same command to go on" in out, out
    until(lambda: not cluster.of_studies(), 30)
    until(lambda: not cluster.processes("raylet/raylet"), 60)
    cluster.start()
    over(cluster, cluster.bisect("s"))
    assert_answered(cluster, "s")
