"""Settings that the good configuration took over because their defaults are costly: does the cause need them?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bisect_cfg.configuration import Factor, Outcome
from bisect_cfg.phases.context import Context
from bisect_cfg.phases.isolate import DEFAULTS, FRAMES_READ, _said_of, with_defaults_of_the_moved
from bisect_cfg.phases.options import Options
from bisect_cfg.probe.protocol import Raised
from bisect_cfg.reports.listener import Listener
from bisect_cfg.study.causes import Report
from bisect_cfg.trials.plan import Plan
from bisect_cfg.trials.runs import Run
from tests.reports.made import DIED, HEALTHY, REPORT, run

LENGTH = SimpleNamespace(name="max_completion_length", good=256, bad=12, reset=256)
BF16 = Factor("bf16", False, True)
GOOD = {"bf16": False, "max_completion_length": 12}
BAD = {"bf16": True, "max_completion_length": 12}


class Runner:
    """Runs nothing: the outcome is known."""

    horizon = 10

    def __init__(self, came: Run) -> None:
        self.settings = SimpleNamespace(good=GOOD, bad=BAD)
        self.planned: list[Plan] = []
        self._came = came

    def train(self, plan: Plan) -> Run:
        self.planned.append(plan)
        return self._came


def settled(folder: Path, outcome: Outcome, costly: bool = False, moved=(LENGTH.name,), report: Report = REPORT):
    """What the phase makes of such a run: the report, what was said, what was run."""
    runner = Runner(replace(run(folder, DIED if outcome is Outcome.FAIL else HEALTHY), costly=costly))
    context = Context(None, Options(), Listener(), folder, {}, runner)
    baselines = SimpleNamespace(moved=list(moved), outcome_of=lambda run: outcome)
    return with_defaults_of_the_moved(context, baselines, (BF16, LENGTH), report), context.notes, runner.planned


@pytest.mark.parametrize(
    ("outcome", "costly", "complete", "said"),
    [
        (Outcome.FAIL, False, True, "it fails too, so your values are not part of the cause"),
        (Outcome.PASS, False, False, "it passes (10 steps), so the failure needs your value as well"),
        (Outcome.PASS, True, False, "was not settled"),
        (Outcome.UNRESOLVED, False, False, "was not settled"),
    ],
)
def test_the_cause_is_run_with_the_defaults(tmp_path, outcome, costly, complete, said) -> None:
    report, notes, (plan,) = settled(tmp_path, outcome, costly)
    assert report == replace(REPORT, complete=complete)
    assert len(notes) == 1 and said in notes[0] and LENGTH.name in notes[0]
    assert (plan.name, plan.steps) == (DEFAULTS, Runner.horizon)
    assert plan.configuration == {"bf16": True, "max_completion_length": 256}
    assert not plan.costly(None, 1.0) and plan.costly(None, 1e4)


def test_where_nothing_was_taken_over_nothing_is_run(tmp_path) -> None:
    assert settled(tmp_path, Outcome.PASS, moved=()) == (REPORT, [], [])
    nothing = replace(REPORT, causes=())
    assert settled(tmp_path, Outcome.PASS, report=nothing) == (nothing, [], [])


def test_lines_of_the_innermost_frames_are_read(tmp_path) -> None:
    path = tmp_path / "train.py"
    path.write_text("".join(f"use(setting_{number})\n" for number in range(1, 10)))
    frames = [(str(path), number, "f") for number in range(1, 10)]
    said = _said_of(run(tmp_path, replace(DIED, message="it died"), Raised("ValueError", "no good", frames)))
    assert said.startswith("it died\nno good")
    assert [f"setting_{number}" in said for number in range(1, 10)] == [False] * (9 - FRAMES_READ) + [
        True
    ] * FRAMES_READ
    assert _said_of(run(tmp_path, DIED)).strip() == "SIGFPE"
