"""Claims that were shown from a checkpoint, run from step 0: what is run, what it says, and where the budget ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bisect_cfg.configuration import Outcome
from bisect_cfg.probe.protocol import Origin
from bisect_cfg.reports.listener import Listener
from bisect_cfg.study.options import Options
from bisect_cfg.study.prove import prove
from bisect_cfg.study.study import Context
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.runs import Run
from tests.reports.made import HEALTHY, REPORT, run

ORIGIN = Origin("checkpoint-90", 90)


class Runner:
    """Runs nothing; notes what it is asked for, and from where."""

    horizon = 10

    def __init__(self, folder: Path) -> None:
        good = {name: value["good"] for name, value in REPORT.causes[0].values.items()}
        bad = {name: value["bad"] for name, value in REPORT.causes[0].values.items()}
        self.settings = SimpleNamespace(good=good, bad=bad)
        self.known = SimpleNamespace(origin=ORIGIN)
        self.ran: list[tuple[str, int, Origin | None]] = []
        self._folder = folder

    def begin_at(self, origin: Origin | None, horizon: int | None = None) -> None:
        self.known.origin = origin

    def train(self, plan: Plan) -> Run:
        self.ran.append((plan.name, plan.steps, self.known.origin))
        ending = self._folder / "trials" / plan.name / "ending.json"
        ending.parent.mkdir(parents=True)
        ending.touch()
        return run(self._folder, HEALTHY)


def proven(
    folder: Path, shown: dict[str, Outcome], prove_it: str | None = "from-start", **options: object
) -> tuple[bool | None, list[str], Runner]:
    """What the phase says, its notes, and the runner."""
    runner = Runner(folder)
    context = Context(None, Options(prove=prove_it, **options), Listener(), folder, {}, runner)
    expected = {"proof-1": Outcome.FAIL, **{f"proof-1-without-{name}": Outcome.PASS for name in runner.settings.bad}}
    outcomes = {**expected, **shown}
    context.verdict_of = lambda made: SimpleNamespace(outcome=outcomes[runner.ran[-1][0]], signature="it")
    details = {row.number: {"observation": {"before": 90, "steps": 6}} for row in REPORT.rows}
    return prove(context, REPORT, details), context.notes, runner


def test_every_claim_is_run_from_step_0_and_trials_begin_at_the_checkpoint_again(tmp_path) -> None:
    same, (note,), runner = proven(tmp_path, {})
    assert same is True and note.startswith("From step 0 it is the same: fails with only")
    assert note.count(f", at step {HEALTHY.steps}") == 1  # of the run that fails
    claims = 1 + len(REPORT.causes[0].parameters)
    assert len(runner.ran) == claims and runner.known.origin is ORIGIN
    assert all(steps >= 96 and origin is None for _, steps, origin in runner.ran)


@pytest.mark.parametrize(("name", "came"), [("proof-1", Outcome.PASS), ("without", Outcome.FAIL)])
def test_a_claim_that_is_another_from_step_0_is_said(tmp_path, name: str, came: Outcome) -> None:
    if name == "without":
        name = f"proof-1-without-{REPORT.causes[0].parameters[0]}"
    same, (note,), _ = proven(tmp_path, {name: came})
    assert same is False and ("contributes to it" in note) is (came is Outcome.PASS)


def test_where_the_budget_ends_the_answer_stands(tmp_path) -> None:
    same, (note,), runner = proven(tmp_path, {}, max_trials=1)
    assert same is None and len(runner.ran) == 1 and runner.known.origin is ORIGIN
    assert note.startswith("Stopped after 1 trial") and "shown from step 90 of your run on" in note


@pytest.mark.parametrize("options", [{"prove_it": "from-checkpoint"}, {"prove_it": None, "from_checkpoint": Path("c")}])
def test_it_is_left_out(tmp_path, options: dict) -> None:
    same, notes, runner = proven(tmp_path, {}, **options)
    assert same is None and not runner.ran
    assert len(notes) == ("from_checkpoint" in options) and all("--prove from-start" in note for note in notes)


def test_without_a_checkpoint_there_is_nothing_to_run(tmp_path) -> None:
    runner = Runner(tmp_path)
    runner.known.origin = None
    context = Context(None, Options(), Listener(), tmp_path, {}, runner)
    assert prove(context, REPORT, {}) is None and prove(context, replace(REPORT, causes=()), {}) is None
