"""Trials at sites that are processes of their own, here without a cluster: a real bisection through the lines."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path

import psutil
import pytest
from tools import QUICK, ForkedTool, Studied, until
from toys import script

from bisect_cfg.common.configuration import UNSET, Purpose
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.engines.lines import KIND, decode, encode, line_of, message_in
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.verdict import Failure, Standard
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
@pytest.mark.parametrize("whose", ["site", "supervisor"])
def test_a_trial_whose_site_is_killed_runs_again_elsewhere(tool: ForkedTool, held: None, whose: str) -> None:
    script(tool.folder, SLOW)
    process = tool.start("bisect", "train.py", *QUICK, "--on", "ray", "--slots", 2, "--study", "s", "--plain")
    trials = tool.folder / "s/trials"
    until(lambda: any(trial.name.isdigit() and int(trial.name) >= 3 for trial in trials.glob("*")))
    one_of(tool, whose).kill()
    out, err = process.communicate(timeout=120)
    assert process.poll() == 0, out + err
    tool.assert_nothing_left()
    study = Studied(tool.folder / "s")
    assert answer(study.result) == ("isolated", True, [["bf16"]])
    assert {row["outcome"] for row in study.result["trials"]} <= {"pass", "fail"}


def one_of(tool: ForkedTool, whose: str) -> psutil.Process:
    """A site, or the supervisor of one."""
    named = {
        "site": lambda one: "bisect_cfg.engines.site_process" in one.cmdline(),
        "supervisor": lambda one: "-SIc" in one.cmdline(),
    }
    return next(one for one in tool.left() if named[whose](one))


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
