"""Several processes that train together, started by a launcher: one outcome from all of them, and nothing left.

The launcher is a stand-in for torchrun, the library a stand-in for TRL: what is looked at are real processes,
which meet at a port as gloo's do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tools import QUICK, Studied, traces_of
from toys import script

from bisect_cfg.probe.protocol import (
    NON_FINITE,
    NonFiniteParameters,
    Over,
    Raised,
    RankBegin,
    TrainBegin,
    TrainEnd,
)
from bisect_cfg.runner import ranks as ranks_module
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.ranks import FirstLaunch, Ranks, free_port
from bisect_cfg.runner.watch import Ending
from bisect_cfg.targets.launch_settings import given_to_each

TORCHRUN = """\
#!{python}
import multiprocessing, os, subprocess, sys, time
words, flags = sys.argv[1:], {{}}
while words[0].startswith("-"):
    flag, value, *words = words
    flags[flag] = value
count = int(flags["--nproc_per_node"])
event = multiprocessing.get_context("spawn").Event()  # torchrun's agent has some of these
with open("shared.txt", "a") as stream:
    print("/dev/shm/sem." + event._cond._lock._semlock.name[1:], file=stream)
if "--mixed_precision" in flags:
    os.environ["ACCELERATE_MIXED_PRECISION"] = flags["--mixed_precision"]
told = {{"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": flags.get("--master_port", "29500")}}
ranks = [
    subprocess.Popen([sys.executable, *words], env={{**os.environ, **told, "RANK": str(i), "LOCAL_RANK": str(i)}},
                     start_new_session=True)
    for i in range(count)
]
while any(one.poll() is None for one in ranks):
    if any(one.poll() for one in ranks):
        for one in ranks:
            one.terminate()
    time.sleep(0.1)
raise SystemExit(int(any(one.wait() for one in ranks)))
"""

SCRIPT = """
import os, signal, socket, sys, time
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True, beta=0.04, temperature=0.9)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
place = ("127.0.0.1", int(os.environ.get("MASTER_PORT", 1)))
print("meets at", place[1], flush=True)
other = None
if world > 1 and rank == 0:
    listening = socket.create_server(place)
    other = listening.accept()[0]
elif world > 1:
    while other is None:
        try:
            other = socket.create_connection(place)
        except OSError:
            time.sleep(0.01)

COLLECTIVE = '''
def collective():
    if world > 1:
        other.sendall(b".")
        if not other.recv(1):
            raise RuntimeError("Connection closed by peer [127.0.0.1]")
'''
exec(compile(COLLECTIVE, "site-packages/torch/distributed/distributed_c10d.py", "exec"))

def step(number):
    time.sleep(0.005)
    if rank == 1 and args.bf16 and args.beta and number == 3:
        fail()
    collective()
    return {"loss": 0.5 + number}

"""

STARTS_ITS_OWN = """
import multiprocessing, os, signal, sys, time

def train(number):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")  # as torch's and accelerate's do
    exec(compile(open("inner.py").read(), "inner.py", "exec"), globals())

if __name__ == "__main__":
    os.environ["MASTER_PORT"] = sys.argv[1]
    time.sleep(0.3)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train, args=(number,)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
"""


@pytest.fixture
def tool(tool):
    """The command line, a launcher on its PATH, and a script that two processes run."""
    launcher = tool.folder / "bin" / "torchrun"
    launcher.parent.mkdir()
    launcher.write_text(TORCHRUN.format(python=sys.executable))
    launcher.chmod(0o755)
    tool.environment["PATH"] = f"{launcher.parent}:/usr/bin:/bin"
    return tool


def written(tool, failing: str) -> None:
    (tool.folder / "train.py").write_text(SCRIPT + textwrap.dedent(failing) + "\nGRPOTrainer(args, step).train()\n")


def bisected(tool, failing: str, *options: object, status: int = 0, flags: tuple[str, ...] = ()) -> Studied:
    written(tool, failing)
    study = tool.bisect(*QUICK, *options, "torchrun", "--nproc_per_node", 2, *flags, "train.py", status=status)
    names = (tool.folder / "shared.txt").read_text().split()
    assert names and not any(map(os.path.exists, names))
    return study


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def port_of(trial: Path) -> str:
    """Where the processes of a run met."""
    (port,) = set(re.findall(r"meets at (\d+)", (trial / "log.txt").read_text()))
    return port


def begun(folder: Path) -> list[dict]:
    """What the two processes of a run have reported of themselves."""
    events = [rows(folder / place / "events.jsonl") for place in ("", "ranks/1")]
    return [next(row for row in told if row["event"] == "rank") for told in events]


def test_a_script_that_starts_its_processes_itself(tool):
    """As accelerate's `notebook_launcher` and `torch.multiprocessing` do: they are numbered once they run. Those
    that it forks have what it has imported, so it is forked itself after the imports."""
    written(tool, "def fail(): raise ValueError('planted')")
    (tool.folder / "train.py").rename(tool.folder / "inner.py")
    (tool.folder / "train.py").write_text(STARTS_ITS_OWN)
    words = ("--only", "beta", "--only", "bf16", "--no-recommend", "--jobs", 2, "python", "train.py", free_port())
    study = tool.bisect(*words)
    result = study.result
    assert study.causes == [["beta", "bf16"]]
    assert "rank 1: ValueError: planted" in result["failure"]["message"]
    assert result["not_varied"]["launch.num_processes"] == "the script starts its processes itself"
    ports = []  # several trials run at once, and the script names one
    for trial in result["trials"]:
        events = {row["event"]: row for row in rows(study.folder / trial["folder"] / "ranks/1/events.jsonl")}
        assert "config" in events
        ports.append(port_of(study.folder / trial["folder"]))
        # Since the run began: it says how long others may take to begin their training.
        assert events["train_begin"]["time"] > 0.3
    assert {trial["start"] for trial in result["trials"][1:]} == {"imports"}
    assert len(set(ports)) == len(ports)


def test_all_processes_are_watched_each_at_a_port_of_its_own(tool):
    study = bisected(tool, "def fail(): os.kill(os.getpid(), signal.SIGFPE)")
    result = study.result
    assert result["failure"]["kind"] == "signal" and "rank 1: SIGFPE" in result["failure"]["message"]
    assert study.causes == [["beta", "bf16", "launch.num_processes"]] and result["complete"]
    assert any(note.startswith("Trials are not forked from your script at") for note in result["notes"])
    assert result["causes"][0]["parameters"]["launch.num_processes"] == {"good": 1, "bad": 2}
    starts = [one["start"] for one in result["trials"]]
    assert starts[0] == "cold" and set(starts[1:]) == {"imports"}
    ports, passed = [], 0
    outcomes = {trial["folder"]: trial["outcome"] for trial in result["trials"]}
    for trial in [path.parent for path in study.folder.glob("trials/*/ending.json")]:
        alone = json.loads((trial / "configuration.json").read_text()).get("launch.num_processes") == 1
        assert (trial / "ranks").exists() != alone
        if alone:
            continue
        mine, other = begun(trial)
        assert [(row["rank"], row["world_size"]) for row in (mine, other)] == [(0, 2), (1, 2)]
        ports.append(port_of(trial))
        if outcomes.get(f"trials/{trial.name}") == "pass":
            lost = [rows(trial / place / "metrics.jsonl")[-1]["loss"] for place in ("", "ranks/1")]
            assert lost[0] == lost[1]
            passed += 1
    assert passed >= 2, "without beta, and without bf16"
    assert len(set(ports)) == len(ports) >= 4


def test_of_several_trainings_the_first_that_fails_is_studied(tool):
    failing = """
        def fail(): raise ValueError("planted")
        GRPOTrainer.steps = 4
        GRPOTrainer(GRPOConfig(output_dir="first"), lambda number: collective()).train()
        GRPOTrainer.steps = 1000
    """
    study = bisected(tool, failing, "--max-trials", 3, status=3)
    assert study.result["target"]["training"] == 2 and study.result["failure"]["step"] == 3
    assert [one["outcome"] for one in study.result["trials"]] == ["fail", "fail", "pass"]


def test_what_the_launcher_sets_is_a_factor(tool):
    failing = """
        asked = os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16"
        def fail():
            if asked:
                raise ValueError("planted")
    """
    options = ("--good", "launch.num_processes=2", "--only", "launch.mixed_precision", "--only", "bf16")
    study = bisected(tool, failing, *options, flags=("--mixed_precision", "bf16"))
    assert study.causes == [["bf16", "launch.mixed_precision"]]
    assert study.result["causes"][0]["parameters"]["launch.mixed_precision"] == {"good": "no", "bad": "bf16"}


def test_the_failure_is_that_of_the_process_that_failed_first(tool):
    study = bisected(tool, "def fail(): raise ValueError('planted')", "--max-trials", 1, status=3)
    assert "rank 1: ValueError: planted" in study.result["failure"]["message"]
    trial, options = study.folder / "trials" / "0", {"capture_output": True, "text": True, "timeout": 60}
    by_hand = subprocess.run(["sh", str(trial / "command.sh")], **options, env=tool.environment)
    assert by_hand.returncode == 1 and "ValueError: planted" in by_hand.stderr
    assert [row["rank"] for row in begun(trial / "by-hand")] == [0, 1]
    tool.assert_nothing_left()


def test_a_hang_is_the_one_that_does_not_come(tool):
    study = bisected(tool, "def fail():\n    time.sleep(3600)", "--trial-timeout", 5, "--max-trials", 1, status=3)
    failure = study.result["failure"]
    assert failure["kind"] == "hang"
    for said in ("rank 1: no optimizer step", "in fail (train.py:", "; rank 0 waits for it in collective"):
        assert said in failure["message"]
    first = study.folder / "trials" / "0"
    assert all("train.py" in (first / path).read_text() for path in ("stacks.txt", "ranks/1/stacks.txt"))


BROKEN = (NonFiniteParameters(2, "lm_head.weight"), TrainEnd(2, NON_FINITE))
LOST = Raised("RuntimeError", "Connection closed by peer [127.0.0.1]", [], final=True)
PLANTED = Raised("ValueError", "planted", [("train.py", 3, "fail")], final=True)


@pytest.mark.parametrize(
    ("first", "second", "at_once", "later", "died"),
    [
        ((None,), (None,), None, None, None),
        ((TrainEnd(5), 0), (None,), None, None, None),
        ((TrainEnd(5), 0), (TrainEnd(5), 0), 0, 0, None),
        ((None,), (-8,), -8, -8, ("SIGFPE", 1)),
        ((PLANTED, 7), (None,), 7, 7, ("ValueError", 0)),
        ((LOST, 1), (None,), None, 1, ("RuntimeError", 0)),  # the failure of the other one may follow
        ((LOST, 1), (-8,), -8, -8, ("SIGFPE", 1)),
        ((LOST, 1), (PLANTED, 7), 7, 7, ("ValueError", 1)),
        ((-15,), (PLANTED, 7), 7, 7, ("ValueError", 1)),  # the launcher ends the others
        # Whose weights are not finite is stopped; the others would wait for it in their next collective.
        ((None,), (*BROKEN, 0), None, 0, ("parameters", 1)),
        ((*BROKEN, 0), (*BROKEN, 0), 0, 0, ("parameters", None)),  # an all-reduce hands it on to all
    ],
)
def test_when_a_run_is_over_and_whose_failure_it_was(tmp_path, monkeypatch, first, second, at_once, later, died):
    """By what its two processes have told: events, and the exit code if it has ended."""
    pids = os.getpid(), os.getppid()  # both run
    for number, (*told, code) in reversed([*enumerate((first, second))]):
        told = [RankBegin(pids[number], number, 2), TrainBegin(), *told]
        told += [] if code is None else [Over(code, pids[number])]
        traces = traces_of(tmp_path / "ranks" / "1" if number else tmp_path, *told)
    # The log is of both: what one says that has noticed is not what the other died of.
    (tmp_path / "log.txt").write_text("RuntimeError: Connection closed by peer\n" if LOST in (*first, *second) else "")
    ranks = Ranks(traces)
    ranks.read()
    assert ranks.code() == at_once
    monkeypatch.setattr(ranks_module, "OTHERS_SECONDS", 0.0)
    assert ranks.code() == later
    seen = observe(traces, Ending(None, None, 1.0))
    assert (seen.died and (seen.died.name, seen.rank)) == died


def test_a_run_is_not_over_before_all_of_its_processes_have_come(tmp_path):
    ranks = Ranks(traces_of(tmp_path, RankBegin(os.getpid(), 0, 2), TrainBegin(), TrainEnd(5), Over(0, os.getpid())))
    ranks.read()
    assert ranks.code() is None


TORCHELASTIC = {"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("given", "wanted", "changes", "numbers"),
    [
        *((4, wanted, {}, wanted) for wanted in (2, 3, 4, 8)),
        (1, 2, {}, 2),
        (1, 1, {}, 1),
        (2, 1, {}, 1),  # the model is sharded
        (2, 1, {"ACCELERATE_USE_FSDP": None}, 0),  # one alone is told of no others
        (0, 2, {}, 2),  # in place of one that was told of none
        (0, 1, {}, 0),
    ],
)
def test_each_process_is_told_its_number_and_the_port(tmp_path, given, wanted, changes, numbers):
    """Whatever number of processes the launcher has started. `given` = 0: one, without numbers."""
    more = {"ACCELERATE_USE_FSDP": "true", **(TORCHELASTIC if given else {})}
    started = tuple({**one, **more} for one in (given_to_each(given) if given else [{}]))
    found = FirstLaunch((), started, len(started)).environments(7, tmp_path, wanted, changes)
    assert all(one["ACCELERATE_USE_FSDP"] == "true" for one in found) and len(found) == wanted
    assert [one.get("RANK") for one in found] == ([str(k) for k in range(numbers)] or [None])
    assert {one.get("MASTER_PORT") for one in found} == {"7" if numbers else None}
    assert {one.get("WORLD_SIZE") for one in found} == {str(wanted) if numbers else None}
    assert not given or not numbers or {one["TORCHELASTIC_USE_AGENT_STORE"] for one in found} == {"False"}


ALONE = """
    import socket, time
    import trl.trainer.grpo_config as config
    original = config.GRPOConfig.__post_init__
    def post_init(self):  # with RANK set, building a training config opens a process group
        original(self)
        if "RANK" in os.environ:
            type(self).group = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    config.GRPOConfig.__post_init__ = post_init
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True, beta=0.04, temperature=0.9, weight_decay=0.1)
    def step(number):
        time.sleep(0.2)  # so that trials overlap
        if args.bf16 and number == 2:
            os.kill(os.getpid(), signal.SIGFPE)
    GRPOTrainer(args, step).train()
"""


def test_in_a_shell_inside_of_torchrun_no_trial_meets_another(tool):
    """There every training config opens a process group at MASTER_PORT, which no process of ours may hold."""
    alone = dict.fromkeys(("RANK", "LOCAL_RANK"), "0") | {"WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    tool.environment.update(alone, MASTER_PORT=str(free_port()))
    script(tool.folder, ALONE)
    study = tool.bisect("train.py", *QUICK, "--jobs", 3, "--start", "cold")
    assert study.causes == [["bf16"]]
    logs = [path.read_text(errors="replace") for path in study.folder.glob("trials/*/log.txt")]
    assert logs and not any("Address already in use" in log for log in logs)
