"""Real processes that are slow in every way, that hang, and that write where they should not."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import toys
from tools import traces_of

from bisect_cfg.probe.protocol import STACKS_FILE, Cold, Raised, TrainBegin, TrialOrders, to_json
from bisect_cfg.runner.fork_server import probe_environment
from bisect_cfg.runner.hang import HANG_SECONDS, PHASE_SECONDS, WITHIN, Patience, heartbeat_in
from bisect_cfg.runner.supervisor import Supervisor
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.training import Training
from bisect_cfg.runner.watch import Ending, places_of, watch
from bisect_cfg.study.reproduce import FIRST_PATIENCE

SLOW = """
    import sys, time
    import transformers.trainer
    from trl import GRPOConfig, GRPOTrainer
    import torch.nn.modules.module as module

    args = GRPOConfig(output_dir="out", learning_rate=3e-4)
    what, unit = sys.argv[1], float(sys.argv[2])

    class Slow(GRPOTrainer):
        def _calculate_rewards(self, seconds):
            time.sleep(seconds)

    def work(seconds, parts=30):
        for _ in range(parts):
            module.forward()
            time.sleep(seconds / parts)

    def step(number):
        work(unit / 10)
        if number != 3:
            return
        if what == "hang":
            time.sleep(10_000)
        if what in ("reward", "judge"):
            trainer._calculate_rewards(3 * unit if what == "reward" else 10_000)
        if what == "slow step":
            work(30 * unit / 10, parts=120)
        if what == "import":
            import peft
        if what == "request":
            from trl.extras.vllm_client import VLLMClient
            VLLMClient().generate(3 * unit)

    trainer = Slow(args, step)
    trainer.train()
"""

STAND_INS = {
    "torch/nn/modules/module.py": """
        hooks = {}
        class Handle:
            remove = staticmethod(hooks.clear)
        def register_module_forward_pre_hook(hook):
            hooks[0] = hook
            return Handle()
        def forward():
            for hook in hooks.values():
                hook(None, ())
    """,
    "trl/extras/vllm_client.py": """
        import time
        class VLLMClient:
            def generate(self, seconds):
                time.sleep(seconds)
    """,
    "peft.py": """
        import sys, time
        time.sleep(3 * float(sys.argv[2]))
    """,
}


PACE = 4
"""The clock of the real processes runs so many times faster: they are slow by a quarter of a minute, not by a minute,
and the limits of a user's first run are as much shorter. `test_hang` has those limits, in simulated time."""

UNIT = HANG_SECONDS / PACE
QUICK_PATIENCE = replace(FIRST_PATIENCE, step=HANG_SECONDS / PACE, phase=PHASE_SECONDS / PACE)


class Bench:
    """Starts the slow script, cold, and follows it as a user's first run is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.library = folder, folder / "library"
        toys.write_library(self.library)
        for name, text in STAND_INS.items():
            path = self.library / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())
        (folder / "train.py").write_text(textwrap.dedent(SLOW))

    def __call__(self, what: str, patience: Patience = QUICK_PATIENCE) -> tuple[Ending, Traces, str]:
        folder = self.folder / f"{what}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        orders = folder / "orders.json"
        environment, restore = probe_environment({"PYTHONPATH": str(self.library)}, orders)
        orders.write_text(json.dumps(to_json(Cold(restore, TrialOrders(str(folder), steps=5)))))
        supervisor = Supervisor()
        traces = Traces(folder)
        try:
            command = [sys.executable, str(self.folder / "train.py"), what, str(UNIT)]
            child = supervisor.start(command, environment, folder)
            ending = watch(Training(child, traces), traces, patience)
        finally:
            supervisor.close()
        return ending, traces, (folder / "log.txt").read_text()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("slow"))


SLOW_KINDS = {"reward": "reward call", "import": "import", "request": "vLLM request", "slow step": None}
"""What a run does, and the phase in which it is silent for that."""


def test_slow_is_no_hang_and_a_hang_is_found_at_once_if_it_is_known(bench: Bench) -> None:
    """Steps that become 30 times as slow, a reward call, an import and a request that take three times as long as any
    other silence may, and hangs; at the same time, each with the limits that a user's first run has."""
    kinds = [*SLOW_KINDS, "hang", "judge"]
    with ThreadPoolExecutor(len(kinds)) as pool:
        found = dict(zip(kinds, pool.map(bench, kinds), strict=True))
    hang, traces, log = found.pop("hang")
    assert "no heartbeat" in hang.hang and len(traces.metrics.rows) == 2, log
    judge, traces, log = found.pop("judge")
    assert "reward call" in judge.hang and judge.stood, log
    for what, (ending, traces, log) in found.items():
        assert (ending.hang, ending.exit_code) == (None, 0), (what, log)
        assert len(traces.metrics.rows) == 5
        phase = SLOW_KINDS[what]
        assert phase is None or ending.phases[phase] >= 0.95 * 3 * UNIT
        assert phase is None or (traces.folder / STACKS_FILE).read_text() == "", "nobody has asked"
    assert set(judge.stood) <= set(found["reward"][0].paused), "it is the same line"
    known = replace(FIRST_PATIENCE, hangs={*judge.stood}, seen={"reward call": 0.0})
    again, _, log = bench("judge", known)
    assert "where an earlier run hung" in again.hang and again.stood == judge.stood, log


def test_a_file_that_is_no_count_is_none(tmp_path: Path) -> None:
    beat = tmp_path / "heartbeat"
    assert heartbeat_in(tmp_path) == (0, "")
    beat.write_bytes(b"\xff" * 20)
    assert heartbeat_in(tmp_path)[1] == ""


# ------------------------------------------------------------------------------------------------------- stacks

IDLE = """Thread 0x00007f160cea26c0 (most recent call first):
  File "/lib/threading.py", line 331 in wait
"""
HUNG = """Current thread 0x00007f16ef057b80 (most recent call first):
  File "/home/train.py", line 11 in judge
  File "/home/train.py", line 17 in <module>
"""


LOOP = """Current thread 0x00007f16ef057b80 (most recent call first):
  File "/usr/lib/python3.11/random.py", line 239 in _randbelow
  File "/home/rewards.py", line 41 in references
  File "/home/rewards.py", line 56 in judge
  File "/home/.venv/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py", line 1626 in _calculate_rewards
  File "/home/train.py", line 17 in <module>
"""


def test_a_place_is_where_all_threads_of_all_processes_stand() -> None:
    place = places_of([f"{IDLE}\n{HUNG}"])
    assert len(place) == 1, "no library has called a function of the user's"
    assert place == places_of([f"{IDLE}\n{IDLE}\n{HUNG}".replace("26c0", "26c1")]), "how many are idle says nothing"
    others = [HUNG], [f"{IDLE}\n{HUNG}"] * 2, [f"{IDLE}\n{HUNG}".replace("11", "12")], [IDLE.replace("331", "1") + HUNG]
    assert not any(place & places_of(texts) for texts in others)
    assert places_of([]) == places_of([HUNG, ""]) == set(), "one that says nothing may be anywhere"


def test_a_loop_stays_in_the_users_function_that_a_library_has_called() -> None:
    place, moved = places_of([LOOP]), places_of([LOOP.replace("line 239 in _randbelow", "line 7 in choice")])
    assert {one for one in place & moved if one.startswith(WITHIN)} and len(place & moved) == 1
    assert place & places_of([LOOP.replace("line 41", "line 43")]) == place & moved
    assert not place & places_of([LOOP.replace("line 56", "line 57")]), "another call of it"


class Unprobed:
    """A run of one process, which has no probe."""

    def __init__(self, folder: Path, command: str = "exec sleep 60") -> None:
        self.process, self.folder = subprocess.Popen(command, shell=True), folder
        self.probed = lambda: {folder: self.process.pid, folder / "1": None}  # a rank that has not come yet

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


RAISED = Raised("E", "", [], final=True)


@pytest.mark.training
@pytest.mark.parametrize("why", ["a hang", "enough", "its price", "an exception", "an interrupt"])
def test_a_run_is_ended_for_a_reason_and_nothing_before(tmp_path: Path, why: str) -> None:
    """It is asked for its stacks before it is called a hang, which would be the end of a process without a probe."""
    (tmp_path / "stacks.txt").touch()
    traces_of(tmp_path, RAISED if why == "an exception" else TrainBegin())
    run, interrupted, heard = Unprobed(tmp_path), threading.Event(), []
    patience = Patience(0.5, 0.5, 0.5) if why == "a hang" else Patience(60, 60, 60)
    if why == "an interrupt":
        interrupted.set()
    with pytest.raises(KeyboardInterrupt) if why == "an interrupt" else contextlib.nullcontext():
        ending = watch(
            run, Traces(tmp_path), patience, interrupted=interrupted, progress=heard.append,
            enough=lambda traces: why == "enough", costly=lambda traces, seconds: why == "its price",
        )  # fmt: skip
        assert ending.exit_code is None and ending.costly == (why == "its price")
        assert (ending.hang or "") == ("no optimizer step for 1 s" if why == "a hang" else ""), ending
    assert run.process.returncode == -9 and len(heard) == 1


@pytest.mark.training
def test_what_dies_of_an_exception_may_end_by_itself(tmp_path: Path) -> None:
    traces_of(tmp_path, RAISED)
    run = Unprobed(tmp_path, "sleep 0.3; exit 3")
    assert watch(run, Traces(tmp_path), Patience(60, 60, 60)).exit_code == 3
