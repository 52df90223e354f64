"""Findings and answers made by hand: one script with two settings, of which bf16 is at fault."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bisect_cfg.common.configuration import Outcome, Purpose, Status
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import Event, TrainBegin
from bisect_cfg.report.answer import Answer, write_answer
from bisect_cfg.report.answer_of import answer_of
from bisect_cfg.report.findings import Findings
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Observation
from bisect_cfg.store.causes import Cause, Claim, Correction, Evidence, Levels, Report, Reproduction, Trial
from bisect_cfg.store.state import State
from bisect_cfg.targets.captured import Capture, Source
from bisect_cfg.targets.factors import Factor, Factors
from bisect_cfg.targets.script import Script

DEFAULTS = {"bf16": False, "learning_rate": 1e-6, "beta": 0.0}
RAW = {"bf16": True, "learning_rate": 1e-3, "beta": 0.0}
SCRIPT = "from trl import GRPOConfig, GRPOTrainer\n\nargs = GRPOConfig(\n    bf16=True,\n    learning_rate=1e-3,\n)\n"

HEALTHY = Observation(None, 10, 2.0, at_horizon=True, training_seconds=1.0)
DIED = dataclasses.replace(
    HEALTHY, died=Signature("signal", "SIGFPE"), steps=2, message="SIGFPE", place="step (train.py:9)"
)

IDENTITY = {"script": "train.py", "arguments": [], "python": "", "folder": "/", "script_hash": "", "files": {}}
STATE = State({**IDENTITY, "good_file_hash": None}, {})


def row(number: int, outcome: Outcome, purpose: Purpose, bf16: bool = True, rate: float = 1e-3) -> Trial:
    failed = outcome is Outcome.FAIL
    values = {"bf16": bf16, "learning_rate": rate}
    signature, step = "SIGFPE" if failed else None, 3 if failed else 10
    return Trial(number, outcome.value, purpose.value, signature, 1.0, step, values=values)


ROWS = (
    row(0, Outcome.FAIL, Purpose.BAD_BASELINE),
    row(1, Outcome.PASS, Purpose.GOOD_BASELINE, False, 1e-6),
    row(2, Outcome.FAIL, Purpose.CAUSE_FAILS, True, 1e-6),
    row(3, Outcome.PASS, Purpose.CORRECTION, False),
)
EVIDENCE = Evidence(Claim(("bf16",), 1, 1, (2,)), {"bf16": Claim((), 1, 1, (1,))})
CAUSE = Cause({"bf16": Levels(False, True)}, EVIDENCE, signature="SIGFPE")
REPORT = Report(
    "isolated",
    (CAUSE,),
    (Correction(("bf16",), Claim(("learning_rate",), 1, 1, (3,))),),
    True,
    {"bf16": False, "learning_rate": 1e-3},
    "SIGFPE",
    reproduction=Reproduction(1.0, (0.3, 1.0)),
    rows=ROWS,
)


def run(study: Path, seen: Observation, *events: Event, number: int = 0) -> Run:
    """A run of a study's folder, with a log that is empty."""
    folder = study / "trials" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").touch()
    traces = Traces(folder)
    traces.events.rows += events
    traces.begun = next((event for event in events if isinstance(event, TrainBegin)), None)
    return Run(seen, traces, folder)


def findings(folder: Path, **changes: Any) -> Findings:
    """An isolated study in a folder that has the script; see `Findings` for what may be changed."""
    (folder / "train.py").write_text(SCRIPT)
    args = Source("args", 0, "GRPOConfig", "trl", RAW, DEFAULTS, dict.fromkeys(DEFAULTS, "float"), RAW)
    factors = tuple(
        Factor(name, "args", DEFAULTS[name], RAW[name], {"$default": True}) for name in ("bf16", "learning_rate")
    )
    settings = Factors(Capture(args, {}, (("args", 0),), (), {}), factors, {})
    made = Findings(
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


def answer(folder: Path, **changes: Any) -> Answer:
    """The answer of such a study."""
    return answer_of(findings(folder, **changes), {"packages": {"trl": "1.0"}})


def study(folder: Path, metrics: Sequence[str] = ("loss", "grad_norm"), **changes: Any) -> Path:
    """A study folder with such an answer.

    Args:
        folder: made here.
        metrics: names of what each run traced.
        **changes: of the findings.
    """
    folder.mkdir(exist_ok=True)
    write_answer(answer(folder, **changes), folder)
    for number, steps in enumerate((3, 10, 3, 10)):
        trial = folder / "trials" / str(number)
        trial.mkdir(parents=True, exist_ok=True)
        lines = [{"step": step, "time": 0.1, **dict.fromkeys(metrics, step / 7)} for step in range(1, steps + 1)]
        (trial / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def begun(folder: Path) -> Path:
    """A study that has just been begun."""
    folder.mkdir(exist_ok=True)
    STATE.save(folder)
    return folder
