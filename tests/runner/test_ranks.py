"""Several processes that train together, started by a launcher: one outcome from all of them, and nothing left.

The launcher is a stand-in for torchrun, the library a stand-in for TRL: what is looked at are real processes,
which meet at a port as gloo's do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tools import assert_clear, slow

from bisect_cfg.capture.launched import given_to_each
from bisect_cfg.probe import world
from bisect_cfg.probe.protocol import NON_FINITE, NonFiniteParameters, Over, RankBegin, TrainBegin, TrainEnd, event_row
from bisect_cfg.runner import ranks as ranks_module
from bisect_cfg.runner.fork_server import imports_ahead
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.ports import free_port
from bisect_cfg.runner.ranks import FirstLaunch, Ranks
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.watch import Ending

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
if world > 1 and rank == 0:
    listening = socket.create_server(place)
    other = listening.accept()[0]
elif world > 1:
    for attempt in range(500):
        try:
            other = socket.create_connection(place)
            break
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
    os.environ["MASTER_PORT"] = sys.argv[2]
    time.sleep(0.3)
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=train, args=(number,)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
"""

FAILURES = {
    "exception": "def fail(): raise ValueError('planted')",
    "signal": "def fail(): os.kill(os.getpid(), signal.SIGFPE)",
    "killed": "def fail(): os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "def fail(): os._exit(7)",
}


@pytest.fixture
def tool(tool):
    """The command line, a launcher on its PATH, and a script that two processes run."""
    launcher = tool.folder / "bin" / "torchrun"
    launcher.parent.mkdir()
    launcher.write_text(TORCHRUN.format(python=sys.executable))
    launcher.chmod(0o755)
    tool.environment["PATH"] = f"{launcher.parent}:/usr/bin:/bin"
    return tool


def bisected(tool, failing: str, *options: object, status: int = 0, flags: tuple[str, ...] = ()) -> dict:
    (tool.folder / "train.py").write_text(SCRIPT + textwrap.dedent(failing) + "\nGRPOTrainer(args, step).train()\n")
    words = ("torchrun", "--nproc_per_node", 2, *flags, "train.py")
    said = tool("bisect", "--study", "s", "--no-recommend", "--no-where", *options, *words)
    assert said.status == status, said.all
    tool.assert_nothing_left()
    names = (tool.folder / "shared.txt").read_text().split()
    assert names and not any(map(os.path.exists, names))
    return json.loads((tool.folder / "s" / "result.json").read_text())


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("exception", "exception", "rank 1: ValueError: planted"),
        ("signal", "signal", "rank 1: SIGFPE"),
        slow("killed", "signal", "rank 1: SIGKILL"),
        slow("exit", "exit", "rank 1: "),
    ],
)
def test_the_failure_is_that_of_the_process_that_failed_first(tool, name, kind, says):
    result = bisected(tool, FAILURES[name], "--max-trials", 1, status=3)
    assert result["failure"]["kind"] == kind
    assert says in result["failure"]["message"]


@pytest.mark.parametrize(
    ("way", "options", "status"), [("fork", ("--jobs", 2), 0), slow("spawn", ("--max-trials", 3), 3)]
)
def test_a_script_that_starts_its_processes_itself(tool, way, options, status):
    """As accelerate's `notebook_launcher` and `torch.multiprocessing` do: they are numbered once they run.

    Those that it forks have what it has imported, so it is forked itself after the imports.
    """
    failing = "def fail(): raise ValueError('planted')"
    (tool.folder / "inner.py").write_text(f"{SCRIPT}\n{failing}\nGRPOTrainer(args, step).train()\n")
    (tool.folder / "train.py").write_text(STARTS_ITS_OWN)
    words = ("--only", "beta", "--only", "bf16", "--no-recommend", *options, "python", "train.py", way, free_port())
    said = tool("bisect", "--study", "s", *words)
    assert said.status == status, said.all
    tool.assert_nothing_left()
    result = json.loads((tool.folder / "s" / "result.json").read_text())
    causes = [sorted(cause["parameters"]) for cause in result["causes"]]
    assert causes == ([["beta", "bf16"]] if way == "fork" else [])
    assert [trial["outcome"] for trial in result["trials"][:3]] == ["fail", "fail", "pass"]
    assert "rank 1: ValueError: planted" in result["failure"]["message"]
    assert result["not_varied"]["launch.num_processes"] == "the script starts its processes itself"
    ports = []  # several trials run at once, and the script names one
    for trial in result["trials"]:
        events = {row["event"]: row for row in rows(tool.folder / "s" / trial["folder"] / "ranks/1/events.jsonl")}
        assert "config" in events
        ports.append(events["rank"]["port"])
        # Since the run began: it says how long others may take to begin their training.
        assert events["train_begin"]["time"] > (0.3 if way == "fork" else 0)
    warm = {trial["start"] for trial in result["trials"][1:]}
    assert warm == {"imports" if way == "fork" else "cold"}
    assert len(set(ports)) == len(ports)


def test_what_a_launcher_within_a_script_must_not_find_imported():
    """accelerate's `notebook_launcher` looks for bitsandbytes, which peft and so TRL's trainers import."""
    modules = ("torch", "transformers", "peft", "bitsandbytes", "trl.trainer.grpo_trainer")
    capture = SimpleNamespace(prepares=False, forked=True, modules=modules)
    assert imports_ahead(capture) == ("torch", "transformers")
    for other in ({"forked": False}, {"modules": modules[:3]}):
        one = SimpleNamespace(**{**vars(capture), **other})
        assert imports_ahead(one) == one.modules
    assert imports_ahead(SimpleNamespace(**{**vars(capture), "prepares": True})) == ()


def test_a_process_has_the_number_that_it_has_in_the_group_that_the_script_has_opened(monkeypatch):
    """accelerate's `debug_launcher` sets WORLD_SIZE, and no RANK."""
    for name in (*world.RANK, *world.WORLD):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert world.told() == (1, 2) and world.numbered()
    monkeypatch.setattr(group, "is_initialized", lambda: False)
    assert world.told() == (None, 2)
    monkeypatch.setenv("RANK", "0")
    assert world.told() == (0, 2)


def test_all_processes_are_watched_each_at_a_port_of_its_own(tool):
    result = bisected(tool, FAILURES["signal"])
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["beta", "bf16", "launch.num_processes"]]
    assert any(note.startswith("Trials are not forked from your script at") for note in result["notes"])
    assert result["causes"][0]["parameters"]["launch.num_processes"] == {"good": 1, "bad": 2}
    assert result["status"] == "isolated" and result["complete"]
    starts = [one["start"] for one in result["trials"]]
    assert starts[0] == "cold" and set(starts[1:]) == {"imports"}
    ports, passed = [], 0
    trials = [path for path in (tool.folder / "s" / "trials").iterdir() if (path / "result.json").exists()]
    for trial in trials:
        alone = json.loads((trial / "configuration.json").read_text()).get("launch.num_processes") == 1
        assert (trial / "ranks").exists() != alone
        if alone:
            continue
        mine, other = rows(trial / "events.jsonl"), rows(trial / "ranks" / "1" / "events.jsonl")
        told = [next(row for row in events if row["event"] == "rank") for events in (mine, other)]
        assert [(row["rank"], row["world_size"]) for row in told] == [(0, 2), (1, 2)]
        assert told[0]["port"] == told[1]["port"]
        ports.append(told[0]["port"])
        if json.loads((trial / "result.json").read_text())["outcome"] == "pass":
            lost = [rows(folder / "metrics.jsonl")[-1]["loss"] for folder in (trial, trial / "ranks" / "1")]
            assert lost[0] == lost[1]
            passed += 1
    assert passed >= 2, "without beta, and without bf16"
    assert len(set(ports)) == len(ports) >= 4


@pytest.mark.slow
def test_a_tool_that_is_killed_leaves_nothing_and_goes_on(tool):
    """Killed while two processes train, cold and forked."""
    (tool.folder / "train.py").write_text(SCRIPT + FAILURES["signal"] + "\nGRPOTrainer(args, step).train()\n")
    words = ("bisect", "--study", "s", "--no-recommend", "--no-where", "torchrun", "--nproc_per_node", 2, "train.py")
    for count in (1, 5):
        process = tool.start(*words)
        begun: list[Path] = []
        deadline = time.monotonic() + 60
        while len(begun) < count and process.poll() is None and time.monotonic() < deadline:
            begun = list(tool.folder.glob("s/trials/*/ranks/1/metrics.jsonl"))
            time.sleep(0.002)
        assert len(begun) >= count, process.communicate()
        process.kill()
        process.communicate()
        tool.assert_nothing_left()
    result = bisected(tool, FAILURES["signal"])
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["beta", "bf16", "launch.num_processes"]]


@pytest.mark.parametrize("start", ["imports", slow("cold")])
def test_what_the_launcher_sets_is_a_factor(tool, start):
    failing = """
        asked = os.environ.get("ACCELERATE_MIXED_PRECISION") == "bf16"
        def fail():
            if asked:
                raise ValueError("planted")
    """
    options = (
        "--good",
        "launch.num_processes=2",
        "--only",
        "launch.mixed_precision",
        "--only",
        "bf16",
        "--start",
        start,
    )
    result = bisected(tool, failing, *options, flags=("--mixed_precision", "bf16"))
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["bf16", "launch.mixed_precision"]]
    assert result["causes"][0]["parameters"]["launch.mixed_precision"] == {"good": "no", "bad": "bf16"}


REFUSES = """\
#!{python}
import sys
from trl import GRPOConfig
GRPOConfig(output_dir="out", beta=0.04)
sys.exit("usage: x\\ntorchrun: error: unrecognized arguments: --nosuch")
"""


def test_a_launcher_that_refuses_a_flag_once_it_has_built_the_config(tool):  # TRL's own command does
    (tool.folder / "bin" / "torchrun").write_text(REFUSES.format(python=sys.executable))
    (tool.folder / "train.py").touch()
    said = tool("bisect", "--study", "s", "torchrun", "--nproc_per_node", 2, "train.py")
    assert_clear(said, "torchrun refuses the command, and starts nothing: unrecognized arguments: --nosuch")


def test_repeated_by_hand(tool):
    bisected(tool, FAILURES["exception"], "--max-trials", 1, status=3)
    trial = tool.folder / "s" / "trials" / "0"
    done = subprocess.run(
        ["sh", str(trial / "command.sh")], capture_output=True, text=True, timeout=60, env=tool.environment
    )
    assert done.returncode == 1 and "ValueError: planted" in done.stderr
    again = [rows(trial / "by-hand" / place / "events.jsonl") for place in ("", "ranks/1")]
    assert [next(row["rank"] for row in events if row["event"] == "rank") for events in again] == [0, 1]
    tool.assert_nothing_left()


@pytest.mark.slow
def test_how_many_processes_is_no_setting_where_it_is_left_as_it_is(tool):
    result = bisected(tool, FAILURES["signal"], "--good", "launch.num_processes=2", "--start", "cold", "--first")
    assert [sorted(cause["parameters"]) for cause in result["causes"]] == [["beta", "bf16"]]
    assert {one["start"] for one in result["trials"]} == {"cold"}


def test_a_hang_is_the_one_that_does_not_come(tool):
    result = bisected(tool, "def fail():\n    time.sleep(3600)", "--trial-timeout", 1, "--max-trials", 1, status=3)
    assert result["failure"]["kind"] == "hang"
    assert "rank 1: no optimizer step" in result["failure"]["message"]
    assert "in fail (train.py:" in result["failure"]["message"]
    assert "; rank 0 waits for it in collective" in result["failure"]["message"]
    first = tool.folder / "s" / "trials" / "0"
    assert all("train.py" in (first / path).read_text() for path in ("stacks.txt", "ranks/1/stacks.txt"))


@pytest.mark.parametrize(("both", "rank"), [(False, 1), (True, None)])  # an all-reduce hands it on to all
def test_weights_of_one_process_that_are_not_finite_are_no_hang_of_the_others(tmp_path, monkeypatch, both, rank):
    """The process that has them is stopped; the others would wait for it in their next collective."""
    (tmp_path / "log.txt").touch()
    broken = [NonFiniteParameters(2, "lm_head.weight"), TrainEnd(2, NON_FINITE), Over(0, os.getpid())]
    first = [RankBegin(os.getpid(), 0, 2), TrainBegin(), *(broken if both else [])]
    second = [RankBegin(os.getpid(), 1, 2), TrainBegin(), *broken]
    for place, events in ((tmp_path, first), (tmp_path / "ranks" / "1", second)):
        place.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(event_row(event, 1.0)) + "\n" for event in events]
        (place / "events.jsonl").write_text("".join(lines))
    traces = Traces.of(tmp_path)
    traces.read()
    ranks = Ranks(traces)
    ranks.read()
    assert both or ranks.code() is None  # the others may still say something of their own
    monkeypatch.setattr(ranks_module, "OTHERS_SECONDS", 0.0)
    assert ranks.code() == 0
    seen = observe(traces, tmp_path, Ending(None, None, 1.0))
    assert (seen.died.kind, seen.rank) == ("non-finite", rank)


def given(count: int, **more: str) -> tuple[dict[str, str], ...]:
    """What a launcher gives to each of so many processes."""
    return tuple({**one, "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", **more} for one in given_to_each(count))


@pytest.mark.parametrize("wanted", [2, 3, 4, 8])
def test_another_number_of_processes_is_told_to_each(tmp_path, wanted):
    found = FirstLaunch((), given(4, ACCELERATE_MIXED_PRECISION="bf16"), 4).environments(7, tmp_path, wanted)
    assert [one["RANK"] for one in found] == [one["LOCAL_RANK"] for one in found] == [str(k) for k in range(wanted)]
    for one in found:
        assert one["WORLD_SIZE"] == one["LOCAL_WORLD_SIZE"] == str(wanted)
        assert one["MASTER_PORT"] == "7" and one["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert one["ACCELERATE_MIXED_PRECISION"] == "bf16"


def test_several_processes_in_place_of_one_that_was_told_of_none(tmp_path):
    found = FirstLaunch((), ({"ACCELERATE_MIXED_PRECISION": "bf16"},), 1).environments(7, tmp_path, 2)
    assert [(one["RANK"], one["WORLD_SIZE"], one["MASTER_PORT"]) for one in found] == [("0", "2", "7"), ("1", "2", "7")]


def test_one_process_alone_is_told_of_no_others_unless_the_model_is_shared_out(tmp_path):
    launched = FirstLaunch((), given(2, ACCELERATE_USE_FSDP="true"), 2)
    (plain,) = launched.environments(7, tmp_path, 1, {"ACCELERATE_USE_FSDP": None})
    assert "RANK" not in plain and "MASTER_PORT" not in plain
    (sharded,) = launched.environments(7, tmp_path, 1, {})
    assert (sharded["RANK"], sharded["WORLD_SIZE"], sharded["MASTER_PORT"]) == ("0", "1", "7")


def test_only_how_many_processes_where_there_is_one(tool):
    """A line that is used for both is no mistake; alone it leaves nothing to vary."""
    (tool.folder / "train.py").write_text(SCRIPT + "GRPOTrainer(args, lambda number: 1 / 0).train()\n")
    command = ("bisect", "train.py", "--study", "s", "--no-recommend", "--no-where")
    said = tool(*command, "--only", "launch.num_processes")
    assert said.status == 2 and "leaves nothing to vary" in said.err and "does not know" not in said.err
    said = tool(*command, "--restart", "--only", "launch.num_processes", "--only", "bf16")
    assert "does not know" not in said.all and said.status == 1  # the good configuration fails as well


def test_several_processes_need_a_launcher(tool):
    (tool.folder / "train.py").write_text(SCRIPT + "GRPOTrainer(args, lambda number: 1 / 0).train()\n")
    said = tool("bisect", "train.py", "--study", "s", "--good", "launch.num_processes=2")
    assert said.status == 2 and "needs a launcher" in said.err
