"""When silence is a hang: simulated runs without a process, then real processes that are slow in every way."""

from __future__ import annotations

import json
import os
import random
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import toys

from bisect_cfg.probe.protocol import Cold, TrialOrders, to_json
from bisect_cfg.runner.fork_server import probe_environment
from bisect_cfg.runner.hang import (
    HANG_SECONDS,
    HANG_TIMES,
    LOOK_SECONDS,
    PHASE_SECONDS,
    STEP_TIMES,
    STEPS_SEEN,
    Patience,
    Pulse,
    Silence,
)
from bisect_cfg.runner.supervisor import Supervisor
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.watch import Ending, watch
from bisect_cfg.trials.runner import REPRODUCTION_PATIENCE
from bisect_cfg.trials.runs import Pauses
from bisect_cfg.trials.training import Training

LOOK = 0.02


class Simulated:
    """A run and the tool that looks at it, in simulated time."""

    def __init__(self, patience: Patience = REPRODUCTION_PATIENCE) -> None:
        self.silence, self.now = Silence(patience), 0.0
        self.events = self.steps = self.beats = 0
        self.training, self.phase = False, ""

    def wait(self, seconds: float, look: float = LOOK) -> str | None:
        """Nothing happens for so long; why that is a hang, None if it is not."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + look, end)
            written = (self.events, self.steps)
            hang = self.silence.look(self.now, written, (self.beats, self.phase), self.training, self.steps)
            if hang is not None:
                return hang
        return None

    def begin(self) -> Simulated:
        self.events, self.training = self.events + 1, True
        return self

    def beat(self, seconds: float) -> str | None:
        self.beats += 1
        return self.wait(seconds)

    def step(self, seconds: float, beats: int = 10) -> str | None:
        hangs = [self.beat(seconds / beats) for _ in range(beats)]
        self.steps += 1
        return next((hang for hang in hangs if hang), None)

    def announced(self, phase: str, seconds: float) -> str | None:
        self.phase, self.beats = phase, self.beats + 1
        hang = self.wait(seconds)
        self.phase, self.beats = "", self.beats + 1
        return hang or self.wait(LOOK)


def test_a_hang_after_steps_is_found_within_30_seconds():
    run = Simulated().begin()
    assert not any(run.step(1.0) for _ in range(3))
    at = run.now
    assert "no heartbeat for 20 s" in run.wait(1000)
    assert HANG_SECONDS < run.now - at < 30


def test_a_step_thirty_times_slower_is_no_hang():
    run = Simulated().begin()
    assert not any(run.step(2.0, beats=20) for _ in range(3))
    assert run.step(60.0, beats=20) is None  # its pauses, too, are thirty times as long


@pytest.mark.parametrize("phase", ["reward call", "load", "import", "saving", "compile", "engine start"])
def test_slow_phases_have_a_limit_of_their_own(phase):
    run = Simulated().begin()
    assert not any(run.step(0.5) for _ in range(3))
    assert run.announced(phase, 60.0) is None
    assert run.announced(phase, 119.0) is None
    assert run.announced(phase, 700.0) is None, "it has been seen to take 119 s"
    assert run.silence.longest < 1, "such silences say nothing of the others"
    at = run.now
    assert "no heartbeat" in run.wait(1000) and run.now - at < 30


def test_a_hang_in_a_slow_phase_is_found():
    run = Simulated().begin()
    run.step(1.0)
    at = run.now
    assert "reward call" in run.announced("reward call", 10000.0)
    assert PHASE_SECONDS < run.now - at < PHASE_SECONDS + 1


def test_only_the_first_hang_of_a_study_is_waited_for_in_full():
    pauses = Pauses()
    pauses.note(Ending(1, None, 9.0), STEPS_SEEN - 1)
    assert not pauses.steady
    pauses.note(Ending(None, "no sign of life", 150.0), 0)
    assert pauses.steady
    pauses = Pauses()
    pauses.note(Ending(1, None, 9.0), STEPS_SEEN)
    assert pauses.steady


def test_what_comes_in_every_step_is_judged_by_the_steps_so_far():
    patience = replace(REPRODUCTION_PATIENCE, steady=True)
    run = Simulated(patience).begin()
    assert run.announced("reward call", 100.0) is None, "of this run no step has been seen"
    run = Simulated(patience).begin()
    assert not any(run.step(1.0) for _ in range(2))
    assert run.announced("saving", 100.0) is None, "a checkpoint does not come in every step"
    at = run.now
    assert "reward call" in run.announced("reward call", 10000.0)
    assert STEP_TIMES * 1.0 < run.now - at < STEP_TIMES * 1.1 + 1
    run = Simulated(patience).begin()
    run.step(0.1)
    assert run.announced("reward call", 4.0) is None
    at = run.now
    assert "reward call" in run.announced("reward call", 10000.0)
    assert HANG_TIMES * 4.0 < run.now - at < HANG_TIMES * 4.0 + 1, "ten times what it took before"
    run = Simulated(patience).begin()
    run.step(10.0)
    at = run.now
    assert run.announced("reward call", 10000.0) and PHASE_SECONDS < run.now - at < PHASE_SECONDS + 1, "never longer"


def test_what_earlier_runs_have_seen_counts():
    run = Simulated(replace(REPRODUCTION_PATIENCE, seen={"reward call": 100.0})).begin()
    run.step(1.0)
    assert run.announced("reward call", 900.0) is None


def test_the_first_step_has_time_while_nothing_is_known():
    assert Simulated().begin().wait(119) is None
    assert Simulated().begin().wait(121)
    assert Simulated().wait(1700) is None, "before training half an hour"
    assert Simulated().wait(1801)


def test_the_first_collective_has_time():
    run = Simulated(Patience(120, 20, 20, times=HANG_TIMES)).begin()
    assert run.announced("first collective", 110.0) is None


@pytest.mark.parametrize("seed", range(40))
def test_no_run_is_a_hang_whose_pauses_grow_less_than_tenfold(seed):
    chance = random.Random(seed)
    run = Simulated().begin()
    longest = 0.0
    for _ in range(10):
        limit = max(HANG_SECONDS, HANG_TIMES * longest) if run.steps else 120.0
        pause = chance.choice([0.1, 1.0, chance.uniform(0, 0.95) * min(limit, 300.0)])
        assert run.wait(pause, look=chance.choice([0.1, 0.3])) is None
        run.beats += 1
        run.steps += chance.random() < 0.5
        longest = max(longest, pause)
    at, run.steps = run.now, max(run.steps, 1)
    assert run.wait(10_000, look=0.5)
    assert run.now - at < max(HANG_SECONDS, HANG_TIMES * longest) + 6


def test_time_in_which_nobody_looked_is_no_silence():
    run = Simulated().begin()
    run.step(1.0)
    for _ in range(int(HANG_SECONDS / LOOK_SECONDS) - 5):
        run.now += 1000.0  # a laptop that slept, a tool that was stopped
        assert run.wait(LOOK) is None


def test_a_fixed_limit_counts_steps_alone():
    run = Simulated(Patience(60, 20, 5)).begin()
    assert run.step(1.0) is None
    hangs = [run.beat(1.0) for _ in range(8)]
    assert any(hang and "no optimizer step for 5 s" in hang for hang in hangs)


# ------------------------------------------------------------------------------------------------ real processes

SLOW = """
    import sys, time
    import transformers.trainer
    from trl import GRPOConfig, GRPOTrainer
    from transformers.modeling_utils import PreTrainedModel
    import torch.nn.modules.module as module

    args = GRPOConfig(output_dir="out", learning_rate=3e-4)
    what, unit = sys.argv[1], float(sys.argv[2])

    class Slow(GRPOTrainer):
        def _calculate_rewards(self, seconds):
            time.sleep(seconds)

    class SlowModel(PreTrainedModel):
        pass

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
        if what == "reward":
            trainer._calculate_rewards(3 * unit)
        if what == "load":
            SlowModel.from_pretrained(3 * unit)
        if what == "slow step":
            work(30 * unit / 10, parts=120)
        if what == "import":
            import peft
        if what == "request":
            from trl.extras.vllm_client import VLLMClient
            VLLMClient().generate(3 * unit)

    if what == "load first":
        SlowModel.from_pretrained(3 * unit)
    trainer = Slow(args, step)
    trainer.train()
"""

STAND_INS = {
    "torch/nn/__init__.py": "",
    "torch/nn/modules/__init__.py": "",
    "torch/nn/modules/module.py": """
        hooks = {}
        class Handle:
            def remove(self):
                hooks.clear()
        def register_module_forward_pre_hook(hook):
            hooks[0] = hook
            return Handle()
        def forward():
            for hook in hooks.values():
                hook(None, ())
    """,
    "transformers/modeling_utils.py": """
        import time
        class PreTrainedModel:
            @classmethod
            def from_pretrained(cls, seconds):
                time.sleep(seconds)
    """,
    "trl/extras/__init__.py": "",
    "trl/extras/vllm_client.py": """
        import time
        class VLLMClient:
            def generate(self, seconds):
                time.sleep(seconds)
    """,
    "peft/__init__.py": """
        import sys, time
        time.sleep(3 * float(sys.argv[2]))
    """,
}


PACE = 4
"""The clock of the real processes runs so many times faster: they are slow by a quarter of a minute, not by a minute,
and the limits of a user's first run are as much shorter. What those limits are is tested above, in simulated time."""

UNIT = HANG_SECONDS / PACE
QUICK_PATIENCE = replace(REPRODUCTION_PATIENCE, step=HANG_SECONDS / PACE, phase=PHASE_SECONDS / PACE)


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

    def __call__(self, what: str, unit: float) -> tuple[Ending, Traces, str]:
        folder = self.folder / f"{what}-{unit}"
        folder.mkdir()
        orders = folder / "orders.json"
        environment, restore = probe_environment({"PYTHONPATH": str(self.library)}, orders)
        orders.write_text(json.dumps(to_json(Cold(restore, TrialOrders(str(folder), steps=5)))))
        supervisor = Supervisor()
        traces = Traces.of(folder)
        try:
            command = [sys.executable, str(self.folder / "train.py"), what, str(unit)]
            child = supervisor.start(command, environment, folder)
            ending = watch(Training(child, traces), traces, QUICK_PATIENCE)
        finally:
            supervisor.close()
        return ending, traces, (folder / "log.txt").read_text()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("slow"))


SLOW_KINDS = {
    "reward": "reward call",
    "load": "load",
    "load first": "load",
    "import": "import",
    "request": "vLLM request",
    "slow step": None,
}
"""What a run does, and the phase in which it is silent for that."""


def test_slow_is_no_hang_and_a_hang_is_found(bench):
    """Steps that become 30 times as slow, a reward call, a load, an import and a request that take three times as long
    as any other silence may, and a hang; at the same time, each with the limits that a user's first run has."""
    found = {}

    def run(what: str) -> None:
        found[what] = bench(what, UNIT)

    threads = [threading.Thread(target=run, args=(what,)) for what in (*SLOW_KINDS, "hang")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hang, traces, log = found.pop("hang")
    assert "no heartbeat" in hang.hang and len(traces.metrics.rows) == 2, log
    for what, (ending, traces, log) in found.items():
        assert (ending.hang, ending.exit_code) == (None, 0), (what, log)
        assert len(traces.metrics.rows) == 5
        phase = SLOW_KINDS[what]
        assert phase is None or ending.phases[phase] >= 0.95 * 3 * UNIT


# ------------------------------------------------------------------------------------------ what a script can do to it

WRITES = """
    import os, sys
    from trl import GRPOConfig, GRPOTrainer
    args = GRPOConfig(output_dir="out")

    def step(number):
        for descriptor in range(3, 512):
            try:
                os.write(descriptor, b"\\xff" * 4096)
            except OSError:
                pass

    GRPOTrainer(args, step).train()
"""


def test_a_script_that_writes_to_all_descriptors_does_not_spoil_the_count(bench):
    (bench.folder / "writes.py").write_text(textwrap.dedent(WRITES))
    (bench.folder / "train.py").rename(bench.folder / "kept.py")
    (bench.folder / "writes.py").rename(bench.folder / "train.py")
    try:
        ending, traces, log = bench("writes", UNIT)
    finally:
        (bench.folder / "kept.py").rename(bench.folder / "train.py")
    assert ending.exit_code == 0 and len(traces.metrics.rows) == 5, log
    pulse = Pulse(bench.folder / f"writes-{UNIT}")
    assert pulse.read()[0] < 1000 and pulse.read()[1] == ""
    pulse.close()


def test_a_file_that_is_no_count_is_none(tmp_path):
    pulse = Pulse(tmp_path)
    assert pulse.read() == (0, "")
    (tmp_path / "heartbeat").write_bytes(b"\xff" * 20)
    assert isinstance(pulse.read()[0], int)
    assert pulse.read()[1] == ""
    pulse.close()
    (tmp_path / "heartbeat").unlink()
    os.mkfifo(tmp_path / "heartbeat")
    assert Pulse(tmp_path).read() == (0, "")


def test_pauses_are_read_back_from_the_study(tmp_path):
    from bisect_cfg.jsonfile import write_json

    ending = {"exit_code": 0, "hang": None, "seconds": 1.0}
    for number, more in enumerate(
        (
            {},
            {"longest_silence": 3.0, "steps": 4, "phases": {"load": 50.0}},
            {"longest_silence": 90.0, "steps": 0, "phases": {"load": 20.0}},
            {"longest_silence": 1.0, "steps": 5},
            {"phases": 7},
            {"longest_silence": 95.0, "exit_code": 1},
        )
    ):
        (tmp_path / f"trials/{number}").mkdir(parents=True)
        write_json(tmp_path / f"trials/{number}/ending.json", {**ending, **more})
    (tmp_path / "trials/9").mkdir()
    (tmp_path / "trials/9/ending.json").write_text("[]")
    pauses = Pauses.of(tmp_path)
    assert (pauses.silence, pauses.phases, pauses.steps) == (3.0, {"load": 50.0}, 9)
    assert pauses.passing == 90.0, "with or without steps: of a command nobody may know any"
