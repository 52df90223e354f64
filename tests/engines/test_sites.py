"""Trials at sites that are processes of their own, here without a cluster: a real bisection through the lines."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import QUICK, ForkedTool, Studied, until
from toys import script

from bisect_cfg.common.configuration import UNSET, Outcome, Purpose
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.engines.lines import KIND, decode, encode, line_of, message_in
from bisect_cfg.engines.sites import SiteEngine
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.trials import Lost, Trials
from bisect_cfg.runner.verdict import Failure, Standard
from bisect_cfg.store.interface import run_alone
from bisect_cfg.targets.script import Script

HOLDER = Path(__file__).with_name("holder.py")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--on ray` holds sites of this machine."""
    monkeypatch.setattr(
        "bisect_cfg.study.begin.ray_command", lambda on, slots, gpus: [sys.executable, str(HOLDER), str(slots)]
    )


def answer(result: dict) -> tuple:
    """What must not depend on where the trials ran."""
    return result["status"], result["complete"], [sorted(cause["parameters"]) for cause in result["causes"]]


@pytest.mark.training
@pytest.mark.parametrize("sites", [1, 2])
def test_the_same_answer_through_site_processes(tool: ForkedTool, held: None, sites: int) -> None:
    script(tool.folder)
    here = tool.bisect("train.py", "--no-where", study="here")
    there = tool.bisect("train.py", "--no-where", "--on", "ray", "--slots", sites, study="there")
    assert answer(there.result) == answer(here.result) and there.result["recommendation"]["verified"] is True
    numbers = [row["number"] for row in there.result["trials"]]
    assert len(numbers) == len(set(numbers)) and (sites > 1 or len(numbers) == len(here.result["trials"]))
    assert {row["outcome"] for row in there.result["trials"]} <= {"pass", "fail"}


SLOW = """
    import time
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True, temperature=0.9)
    def step(number):
        time.sleep(0.4)
        if args.bf16 and number == 2:
            raise ValueError("bf16 does it")

    GRPOTrainer.steps = 4
    GRPOTrainer(args, step).train()
"""


@pytest.mark.training
@pytest.mark.parametrize("whose", ["site", "supervisor", "job"])
def test_trials_whose_sites_are_killed_run_again(tool: ForkedTool, held: None, whose: str) -> None:
    script(tool.folder, SLOW)
    process = tool.start("bisect", "train.py", *QUICK, "--on", "ray", "--slots", 2, "--study", "s", "--plain")
    trials = tool.folder / "s/trials"
    until(lambda: any(trial.name.isdigit() and int(trial.name) >= 3 for trial in trials.glob("*")))
    for process_of_site in all_of(tool, whose):
        process_of_site.send_signal(signal.SIGTERM if whose == "job" else signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.poll() == 0 and "it is run again" in out + err, out + err
    tool.assert_nothing_left()
    study = Studied(tool.folder / "s")
    assert answer(study.result) == ("isolated", True, [["bf16"]])
    assert {row["outcome"] for row in study.result["trials"]} <= {"pass", "fail"}


ON_ONE_NODE_IT_PASSES = """
    import os
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, weight_decay=0.1, bf16=True, temperature=0.9)
    def step(number):
        if args.bf16 and number == 2 and os.environ["CUDA_VISIBLE_DEVICES"] != "0":
            raise ValueError("bf16 does it")

    GRPOTrainer.steps = 4
    GRPOTrainer(args, step).train()
"""


@pytest.mark.training
def test_where_the_first_node_passes_everything_it_is_named_and_the_answer_is_right(
    tool: ForkedTool, held: None
) -> None:
    script(tool.folder, ON_ONE_NODE_IT_PASSES)
    options = ("--no-where", "--no-recommend", "--on", "ray", "--slots", 2)
    study = tool.bisect("train.py", *options, study="s")
    assert answer(study.result) == ("isolated", True, [["bf16"]])
    said = "The bad configuration passes on node-0 and fails on node-1: no more runs are made on node-0."
    assert said in study.result["notes"] and {row["node"] for row in study.result["trials"]} == {"node-1"}


@pytest.mark.training
def test_doctor_compares_all_nodes_and_runs_no_trial(tool: ForkedTool, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, str(Path(__file__).with_name("pretend.py")), "differs"]
    monkeypatch.setattr("bisect_cfg.engines.cluster.ray_command", lambda on, slots, gpus: command)
    said = tool("doctor", "--on", "ray")
    assert said.status == 1 and "Not all processes have the same torch" in said.all, said.all
    assert "2.10.0 on node-0; 2.9.1 on node-1" in said.all
    tool.assert_nothing_left()


def all_of(tool: ForkedTool, whose: str) -> list[psutil.Process]:
    """The sites; their supervisors; or all that they have started, the trials first."""
    sites = [one for one in tool.left() if "bisect_cfg.engines.site_process" in one.cmdline()]
    if whose == "job":
        return [one for site in sites for one in reversed([site, *site.children(recursive=True)])]
    return sites if whose == "site" else [site.children()[0].children()[0] for site in sites]


def test_what_crosses_the_line_comes_out_equal(tmp_path: Path) -> None:
    standard = Standard(Failure(Signature("signal", "SIGFPE")), frozenset({"dead"}), [{"step": 1, "loss": math.inf}])
    plan = Plan(
        3, {"a": UNSET, "b": (1, 2.5), "c": {"$kind": "x", "d": [None]}}, 5, purpose=Purpose.CHECK, standard=standard,
        origin=Origin("/checkpoint", 4), exchanged={1: 2}, patience=Patience(1.0, math.inf, 3.0), stop=StopRule.DEATH,
    )  # fmt: skip
    assert message_in(line_of({"op": "run", "plan": plan}))["plan"] == plan
    target = Script(tmp_path / "train.py", ("--a", "\udcff"), launch=None)
    assert message_in(line_of({"target": target}))["target"] == target
    assert math.isnan(message_in(line_of({"value": math.nan}))["value"])


@pytest.mark.parametrize("kind", ["os:system", "bisect_cfg.api:bisect", "bisect_cfg.errors:InputError"])
def test_no_line_has_other_code_run(kind: str) -> None:
    with pytest.raises(ValueError, match="is not known here"):
        decode({KIND: kind, "items": ["true"]})
    with pytest.raises(TypeError):
        encode(threading.Lock())


@contextlib.contextmanager
def pretended(folder: Path, mode: str) -> Iterator[tuple[SiteEngine, list[str]]]:
    """An engine whose sites are made up, and what it says to the user."""
    notes: list[str] = []
    command, target = [sys.executable, str(Path(__file__).with_name("pretend.py")), mode], Script(folder / "train.py")
    packages = {"packages": {"torch": "2.10.0"}}
    engine = SiteEngine(command, target, folder, slots=2, environment=packages, note=notes.append)
    with contextlib.closing(engine):
        yield engine, notes


def test_what_loses_its_place_three_times_is_not_run_again(tmp_path: Path) -> None:
    with pretended(tmp_path, "falls") as (engine, notes):
        result = engine.submit(Plan(7, {}, None)).result(30)
        assert result.name == 7 and sorted(set(result.lost)) == ["node-0", "node-1"] and len(result.lost) == 3
        assert engine.cluster["lost"] == 3 and len(notes) == 2 and "it is run again" in notes[0]
        trials = Trials(engine)
        assert (told := trials.told(result)).outcome is Outcome.UNRESOLVED and "lost each of 3 times" in told.message
        with pytest.raises(Lost, match="lost each of 3 times"):
            trials.train(Plan(8, {}, None))


def test_what_an_earlier_attempt_still_says_is_dropped(tmp_path: Path) -> None:
    with pretended(tmp_path, "late") as (engine, _):
        assert engine.submit(Plan(7, {}, None)).result(30).name == 7 and engine.cluster["lost"] == 1


def test_a_node_with_another_version_takes_no_trial_and_is_named(tmp_path: Path) -> None:
    with pretended(tmp_path, "differs") as (engine, notes):
        assert engine.slots == 1 and engine.cluster["nodes"] == ["node-0"]
        assert notes == ["1 of 2 nodes has torch 2.9.1, not 2.10.0: not used (node-1)."]
        assert engine.submit(Plan(7, {}, None)).result(30).name == 7


def test_when_the_engine_process_ends_whoever_waits_is_told(tmp_path: Path) -> None:
    with pretended(tmp_path, "differs") as (engine, _):
        engine._process.kill()
        with pytest.raises(InputError, match="The cluster is gone"):
            run_alone(engine, Plan(7, {}, None))
