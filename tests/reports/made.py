"""Answers as the phases give them, made by hand: one script with two settings, of which bf16 is at fault."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import Event, TrainBegin
from bisect_cfg.reports.outcome import Answer
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Ended, Observation
from bisect_cfg.store.causes import Cause, Claim, Correction, Evidence, Report, TrialRow
from bisect_cfg.targets.captured import Capture, Source
from bisect_cfg.targets.factors import Factor, Factors
from bisect_cfg.targets.script import Script

DEFAULTS = {"bf16": False, "learning_rate": 1e-6, "beta": 0.0}
RAW = {"bf16": True, "learning_rate": 1e-3, "beta": 0.0}
SCRIPT = "from trl import GRPOConfig, GRPOTrainer\n\nargs = GRPOConfig(\n    bf16=True,\n    learning_rate=1e-3,\n)\n"

HEALTHY = Observation(None, Ended.HORIZON, 10, 2.0, training_seconds=1.0)
DIED = dataclasses.replace(
    HEALTHY, died=Signature("signal", "SIGFPE"), steps=2, message="SIGFPE", place="step (train.py:9)"
)


def row(number: int, outcome: Outcome, purpose: Purpose, bf16: bool = True, rate: float = 1e-3) -> TrialRow:
    failed = outcome is Outcome.FAIL
    values = {"bf16": bf16, "learning_rate": rate}
    return TrialRow(number, outcome, "SIGFPE" if failed else None, 1.0, 3 if failed else 10, purpose, values=values)


ROWS = (
    row(0, Outcome.FAIL, Purpose.BAD_BASELINE),
    row(1, Outcome.PASS, Purpose.GOOD_BASELINE, False, 1e-6),
    row(2, Outcome.FAIL, Purpose.CAUSE_FAILS, True, 1e-6),
    row(3, Outcome.PASS, Purpose.CORRECTION, False),
)
CAUSE = Cause(
    ("bf16",),
    {"bf16": {"good": False, "bad": True}},
    (),
    "SIGFPE",
    Evidence(Claim(("bf16",), 1, 1, (2,)), {"bf16": Claim((), 1, 1, (1,))}),
)
REPORT = Report(
    "isolated",
    (CAUSE,),
    (Correction(("bf16",), Claim(("learning_rate",), 1, 1, (3,))),),
    True,
    {"bf16": False, "learning_rate": 1e-3},
    "SIGFPE",
    reproduction_rate=1.0,
    reproduction_interval=(0.3, 1.0),
    rows=ROWS,
)


def run(study: Path, seen: Observation, *events: Event, number: int = 0) -> Run:
    """A run of a study's folder, with a log that is empty."""
    folder = study / "trials" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").touch()
    traces = Traces.of(folder)
    traces.events.rows += events
    traces.begun = next((event for event in events if isinstance(event, TrainBegin)), None)
    return Run(seen, traces, folder)


def answer(folder: Path, **changes: Any) -> Answer:
    """An isolated study in a folder that has the script; see `Answer` for what may be changed."""
    (folder / "train.py").write_text(SCRIPT)
    args = Source("args", 0, "GRPOConfig", "trl", RAW, DEFAULTS, dict.fromkeys(DEFAULTS, "float"), RAW)
    factors = tuple(
        Factor(name, "args", DEFAULTS[name], RAW[name], {"$default": True}) for name in ("bf16", "learning_rate")
    )
    settings = Factors(Capture(args, {}, (("args", 0),), (), {}), factors, {})
    made = Answer(
        folder,
        Script(folder / "train.py", ()),
        Status.ISOLATED,
        settings,
        run(folder, DIED),
        run(folder, HEALTHY, number=1),
        report=REPORT,
        start="config",
        horizon=10,
        details={number: {"folder": str(number), "level": "config"} for number in range(4)},
        seconds=9.0,
    )
    return dataclasses.replace(made, **changes)
