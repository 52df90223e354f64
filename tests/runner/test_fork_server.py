"""The process that trials are forked from, scripts that get in its way, and what a resumed study begins with."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tools import until

from bisect_cfg.common.configuration import Outcome, Purpose
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import BuildRequest
from bisect_cfg.runner import fork_server
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import load_run
from bisect_cfg.runner.verdict import Failure, Standard
from bisect_cfg.store.interface import TrialRequest, TrialResult
from tests.runner.started import Started

PLAIN = """
    import os, sys, time
    {before}
    import trl.trainer.grpo_config as config
    from trl import GRPOConfig, GRPOTrainer

    original = config.GRPOConfig.__post_init__
    def post_init(self):
        if self.beta == 0.5:
            {build}
        original(self)
    config.GRPOConfig.__post_init__ = post_init

    def forked():
        return open(f"/proc/{{os.getppid()}}/cmdline").read() == open("/proc/self/cmdline").read()

    args = GRPOConfig(output_dir="out", learning_rate=3e-4, loss_type="fine", beta=0.1)
    what = args.loss_type
    def step(number):
        {step}
        time.sleep(0.02)
    GRPOTrainer(args, step).train()
"""


@pytest.fixture
def started(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(library))
    made = []

    def start(start: str | None = "config", **parts: str) -> Started:
        text = textwrap.dedent(PLAIN).format(**{"before": "", "build": "pass", "step": "pass", **parts})
        made.append(case := Started(tmp_path, text))
        case.runner.horizon, case.runner.standard = 5, Standard(Failure(Signature("signal", "SIGFPE")))
        if start is not None:
            case.start_at(start)
        return case

    yield start
    for case in made:
        case.site.close()


def asked_with(case: Started, beta: float) -> BuildRequest:
    settings = case.runner.settings
    item = settings.build_request(settings.bad)
    return replace(item, overrides={**item.overrides, "beta": beta})


def test_a_trial_begins_where_its_start_says(started):
    """Also where the server has to go back, or on."""
    case = started(None, before="print('began', flush=True)")
    for number, start in enumerate(("imports", "config", "imports", "config", "cold", "config"), 1):
        case.start_at(start)
        run = case.train(number)
        assert (run.shown.signature, run.start) == (None, start)
        assert ("began" in (run.folder / "log.txt").read_text()) == (start != "config")


# ------------------------------------------------------------------------------------ descriptors that are not its own

# Far more than a process has open: the tool's own descriptors stand wherever the process around it left room.
TO_ALL = """
for descriptor in range(3, 512):
    try:
        os.write(descriptor, {!r})
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    "before",
    [TO_ALL.format(b"{}\n"), "os.closerange(3, 512)\nfiles = [open(f'mine-{i}.txt', 'w') for i in range(500)]"],
)
def test_a_script_that_uses_descriptors_of_others_is_started_further_back(started, before):
    case = started(None, before=before)
    reason = case.starts.start_at("config")
    assert reason is not None and ("closerange" in before or "descriptors that it did not open" in reason)
    case.start_at("imports")
    run = case.train(1)
    assert (run.shown.signature, run.seen.steps, run.start) == (None, 5, "imports")
    assert {path.read_text() for path in Path().glob("mine-*.txt")} <= {""}, "nothing of ours is in its files"


# ------------------------------------------------------------------------------- building a configuration that hangs


@pytest.mark.parametrize("what", ["time.sleep(100_000)", "os.kill(os.getpid(), 8)"])
def test_building_that_does_not_come_back_is_no_answer(started, monkeypatch, what):
    monkeypatch.setattr(fork_server, "BUILD_SECONDS", 3.0)
    case = started(build=what)
    answer = case.starts.resolve(asked_with(case, 0.5))
    assert answer.unanswered and "building" in answer.error, answer
    assert case.runner.site.checks.error(asked_with(case, 0.5)) is None, "the trial will tell"
    assert case.starts.resolve(asked_with(case, 0.25)).error is None
    assert case.train(1).shown.signature is None, "and the server stands"
    assert not Path("out").exists()


# --------------------------------------------------------------------------------------------- several trials at once


def test_children_of_a_server_that_is_closed_are_asked_again(started):
    """One trial's check falls back to cold and closes the server; what the others died of is not theirs."""
    case = started(
        step="""if what == "slow" and forked():
        open(f"running-{os.getpid()}", "w").close()
        time.sleep(100)  # until the server goes away
    if what == "other" and number == 2 and forked():
        raise ValueError("only where it is forked")"""
    )
    runner, found = case.runner, {}

    def run(number: int, what: str) -> None:
        configuration = {**runner.settings.bad, "loss_type": what}
        found[number] = runner.run(TrialRequest(number, configuration, frozenset(), Purpose.SEARCH, ""))

    threads = [threading.Thread(target=run, args=(number, "slow")) for number in (1, 2)]
    for thread in threads:
        thread.start()
    until(lambda: len(list(Path().glob("running-*"))) == 2)
    run(3, "other")
    for thread in threads:
        thread.join()
    assert case.starts.start == "cold"
    for number, result in found.items():
        assert (result.outcome, result.signature, result.attributes["level"]) == (Outcome.PASS, None, "cold"), number
    assert len(found) == 3 and found[3].attributes["cold_check"] == "other"
    assert (runner.site.folder / "trials/1.interrupted-1").is_dir()


def test_a_trial_that_ends_its_server_every_time_is_started_cold(started):
    kills = "if what == 'parent' and number == 2 and forked():\n            os.kill(os.getppid(), 9); time.sleep(1)"
    case = started(step=kills)
    run = case.train(1, loss_type="parent")
    assert (run.shown.signature, run.seen.steps, run.start) == (None, 5, "cold")
    assert case.train(2).start == "config", "the others start as they did"


def test_a_runner_takes_up_what_earlier_results_have_shown(started):
    runner = started().runner

    def result(outcome: Outcome, step: int, **attributes: object) -> TrialResult:
        return TrialResult(outcome, None, "", 1.0, step, {"horizon": 5, "observation": {"before": 0}, **attributes})

    runner.recall([result(Outcome.PASS, 9), result(Outcome.UNRESOLVED, 9), result(Outcome.FAIL, 4)])
    assert (runner.site.starts.start, runner.horizon) == ("config", 5)
    runner.recall([result(Outcome.FAIL, 9), result(Outcome.UNRESOLVED, 1, cold_check="same")])
    assert (runner.site.starts.start, runner.horizon) == ("config", 18)
    runner.recall([result(Outcome.FAIL, 10), result(Outcome.PASS, 1, cold_check="other")])
    assert (runner.site.starts.start, runner.horizon) == ("cold", 18)
    run = runner.train(Plan(1, runner.settings.bad, runner.horizon))
    assert (run.start, run.horizon, run.seen.steps) == ("cold", 18, 18)
    attributes = runner.judged(load_run(runner.site.folder, 1)).attributes
    assert (attributes["level"], attributes["horizon"], attributes["observation"]["steps"]) == ("cold", 18, 18)
