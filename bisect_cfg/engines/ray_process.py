"""The engine process of a Ray cluster: an actor for each slot, which starts a site and passes its lines on.

It is a process of its own, as Ray ends its driver without a word when the head of the cluster is gone. It imports
nothing of this package: what it needs is Ray. See `bisect_cfg.engines.sites` for what it reads and says.

An actor has the GPUs of one trial. Ray starts it again, elsewhere if its node is gone. It starts the site, which leaves
it at once: Ray ends the children of a worker that exits, before they have cleaned up. The actor itself never forks: it
has some twenty threads. A method of an actor that runs cannot be cancelled, so that a site is told to end by its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import Any, TextIO

PAUSE_SECONDS = 1.0
"""Before an actor that is unavailable, or whose site has ended, is asked again."""

SETTLE_SECONDS = 20.0
"""After the first site is up, so long the others may take before it is said that no more are expected."""

FREE_SECONDS = 60.0
"""So long it may take until the first site is up: Ray has room by then, or others use it."""

NODES = "BISECT_CFG_RAY_NODES"
"""Variable with the number of nodes of a cluster that has just been started (`slurm_job.sh`)."""

END_SECONDS = 15.0
"""So long a site may take to end what it has started."""


class Slot:
    """The actor: a site, its input and its output."""

    def __init__(self, python: str) -> None:
        self._python, self._rest = python, b""
        self._site: Any = None
        self._ended = threading.Event()

    def start(self, with_gpus: bool) -> tuple[str, list[str]]:
        """Start a site; the id of the node, the GPUs that the slot has."""
        import ray

        self._ended.clear()
        self._rest = b""
        self._site = subprocess.Popen(
            [self._python, "-P", "-m", "bisect_cfg.engines.site_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._site.wait()  # it has left by now
        devices = [os.environ["CUDA_VISIBLE_DEVICES"]] if with_gpus else []
        return ray.get_runtime_context().get_node_id(), devices

    def read(self) -> list[str] | None:
        """Wait for lines of the site; None when it has ended."""
        while True:
            said = os.read(self._site.stdout.fileno(), 1 << 20)
            if not said:
                self._ended.set()
                return None
            *lines, self._rest = (self._rest + said).split(b"\n")
            if lines:
                return [line.decode() for line in lines]

    def write(self, line: str) -> None:
        """Pass a line on to the site; if it is gone, `read` says so."""
        with contextlib.suppress(OSError, ValueError):
            self._site.stdin.write(line.encode())
            self._site.stdin.flush()

    def close(self) -> None:
        """Let the site end, and wait for it."""
        with contextlib.suppress(OSError, AttributeError):
            self._site.stdin.close()
            self._ended.wait(END_SECONDS)


class Holder:
    """Holds the actors, and passes lines on."""

    def __init__(self, ray: Any, about: dict[str, Any], told: TextIO) -> None:
        self._ray, self._about, self._told, self._lock = ray, about, told, threading.Lock()
        self._queues: dict[int, queue.SimpleQueue[str]] = {}
        self._actors: dict[int, Any] = {}
        self._up, self._closing = set[int](), threading.Event()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._gpus = about["gpus"]
        if self._gpus is None:
            self._gpus = 1 if any(node["Resources"].get("GPU") for node in nodes) else 0
        kind, each = ("GPU", self._gpus) if self._gpus else ("CPU", 1)
        self._room = {node["NodeID"]: int(node["Resources"].get(kind, 0) // each) for node in nodes}
        self.slots = min(about["slots"], sum(self._room.values()))

    def say(self, **message: object) -> None:
        """Say something to the tool."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._told.write(json.dumps(message) + "\n")
            self._told.flush()

    def fail(self, message: str, advice: str) -> None:
        """Say that there will be no site, and what to do."""
        self.say(op="failed", message=message, advice=advice)

    def serve(self, asked: TextIO) -> None:
        """Hold all slots until nobody asks any more."""
        if not self.slots:
            self.fail("No node of the cluster has the GPUs of a trial.", "--gpus-per-trial says how many it takes.")
        for number in range(self.slots):
            self._queues[number] = queue.SimpleQueue()
            for work in (self._hold, self._pass_on):
                threading.Thread(target=work, args=(number,), daemon=True).start()
        threading.Thread(target=self._settle, daemon=True).start()
        for line in asked:
            message = json.loads(line)
            self._queues[message["slot"]].put(message["line"])
        self._closing.set()
        ended = []
        for actor in list(self._actors.values()):
            with contextlib.suppress(Exception):
                ended.append(actor.close.remote())
        with contextlib.suppress(Exception):
            self._ray.wait(ended, num_returns=len(ended), timeout=END_SECONDS)

    def _settle(self) -> None:
        deadline = time.monotonic() + FREE_SECONDS
        while not self._up and time.monotonic() < deadline:
            time.sleep(0.05)
        if not self._up:
            self.fail(
                f"Ray has no room for a trial: within {FREE_SECONDS:.0f} s no slot came up.",
                "`ray status` shows who uses its GPUs.",
            )
        deadline = time.monotonic() + SETTLE_SECONDS
        while len(self._up) < self.slots and time.monotonic() < deadline:
            time.sleep(0.05)
        self.say(op="all_up")

    def _name(self, node: str) -> str:
        """What people call a node; where several are on one machine, with a part of its id."""
        hosts = {one["NodeID"]: one["NodeManagerHostname"] for one in self._ray.nodes() if one["Alive"]}
        host = hosts.get(node, "a new node")
        return host if list(hosts.values()).count(host) < 2 else f"{host}/{node[:6]}"

    def _new(self) -> Any:
        needs = {"num_gpus": self._gpus, "num_cpus": 0} if self._gpus else {"num_cpus": 1}
        actor = self._ray.remote(Slot).options(
            max_restarts=-1, max_task_retries=0, max_concurrency=3, scheduling_strategy="SPREAD", **needs
        )
        return actor.remote(self._about["python"])

    def _hold(self, number: int) -> None:
        """Keep a site up in a slot, and say what it says."""
        errors = self._ray.exceptions
        actor = self._actors[number] = self._new()
        while not self._closing.is_set():
            try:
                node, devices = self._ray.get(actor.start.remote(bool(self._gpus)))
                self._up.add(number)
                jobs = min(self.slots, self._room.get(node, 1))
                self.say(op="up", slot=number, node=self._name(node), devices=devices, jobs=jobs)
                while (lines := self._ray.get(actor.read.remote())) is not None:
                    for line in lines:
                        self.say(op="line", slot=number, line=line)
                why = "its site has ended"
            except errors.RayActorError as error:  # a dead node shows as unavailable at first
                why = "its node or its process is gone"
                if isinstance(error, errors.ActorDiedError):
                    actor = self._actors[number] = self._new()
            self.say(op="down", slot=number, why=why)
            time.sleep(PAUSE_SECONDS)

    def _pass_on(self, number: int) -> None:
        """Pass lines on to the site of a slot, in their order: an actor with several threads keeps none."""
        while True:
            line = self._queues[number].get()
            with contextlib.suppress(self._ray.exceptions.RayError, KeyError):  # who reads it, says so
                self._ray.get(self._actors[number].write.remote(line))


def _wait_for_nodes(ray: Any, number: int) -> None:
    """Wait until the cluster has so many nodes, but not for ever: it goes with fewer."""
    deadline = time.monotonic() + FREE_SECONDS
    while sum(node["Alive"] for node in ray.nodes()) < number and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> None:
    """Connect to the cluster, and serve."""
    about = json.loads(sys.argv[1])
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints goes to the log
    import ray

    try:
        ray.init(address=about["address"], log_to_driver=True, include_dashboard=False)
        _wait_for_nodes(ray, int(os.environ.get(NODES, 0)))
    except Exception as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = (
            "`ray start --head` starts one; RAY_ADDRESS or --on HOST:PORT names another. Ray and Python must be those "
            "of the cluster."
        )
        said = {"message": f"There is no way to the Ray cluster {about['address']!r}: {words}", "advice": advice}
        print(json.dumps({"op": "failed", **said}), file=told, flush=True)
        return
    Holder(ray, about, told).serve(sys.stdin)
    ray.shutdown()
    os._exit(0)  # what Ray does at the interpreter's own exit takes 1.5 s, and the user has pressed Ctrl-C


if __name__ == "__main__":
    main()
