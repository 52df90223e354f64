"""After the isolation: the minimal failing configuration once more, with the instruments on, to say where it fails; and
what only the failing runs of the proof say.

It changes nothing of what was proven. If this run does not show the same failure (the instruments slow it down, and a
failure can be random), it says so; if it cannot be run at all, there is no place to tell, and that is all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from msgspec import structs

from bisect_cfg.common.configuration import Outcome, Purpose, configuration_of, present
from bisect_cfg.common.failures.health import REWARD, broken_rewards, step_of
from bisect_cfg.common.failures.signature import Signature, is_sampling_error
from bisect_cfg.errors import InputError, InputsChanged
from bisect_cfg.probe.protocol import (
    NATIVE_FILE,
    PLACE_FILE,
    STACKS_FILE,
    InstrumentOrders,
    LastOperation,
    Overflow,
    Raised,
    from_json,
)
from bisect_cfg.report.contrast import Contrast, Told, contrast, one_apart
from bisect_cfg.runner.hang import Patience
from bisect_cfg.runner.plan import Plan, StopRule
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import fatal_signal, log_lines, stacks_in
from bisect_cfg.runner.where import RERUN, SENT_FROM_OUTSIDE, Where
from bisect_cfg.runner.where import locate as place_in
from bisect_cfg.study.study import Study

QUESTION = "where"
"""Of the run; nothing rests on it."""

STEPS_AHEAD = 1
"""The instruments come on so many steps before the failing one: a random failure can come early, and every step with
them costs several times its usual time."""

PATIENCE = Patience(before_training=1800.0, first_step=900.0, step=900.0)
"""A step under instruments is many times slower, and gdb reads the symbols of all of torch."""

_ANOMALY = "returned nan values in its"
"""What `torch.autograd.detect_anomaly` says when it stops at a NaN, before the run would have died of it."""


def locate(study: Study) -> None:
    """Say where the failure under study happens, and what only failing runs say, if that is wanted and there is a
    cause."""
    if study.options.where and present(study.answer.report).causes:
        study.find(contrast=_compared(study))
        _find_place(study)


def _find_place(study: Study) -> None:
    bad_run = present(study.answer.bad_run)
    failure = bad_run.shown.signature
    if not study.target.probed or failure is None:
        return
    if functions := _functions_at_fault(bad_run):
        operation = f"the reward function{'s' * (len(functions) > 1)} {', '.join(functions)}"
        found = Where(step=bad_run.shown.step_of_training, operation=operation, text="the reward is not finite")
        study.find(place=structs.replace(found, folder=bad_run.folder.name))
        return
    kind = "non-finite" if is_sampling_error(failure) else failure.kind
    if kind not in RERUN or (failure.kind == "signal" and failure.name in SENT_FROM_OUTSIDE):
        where = _read(bad_run, kind)
        study.find(place=structs.replace(where, folder=bad_run.folder.name) if where else None)
        return
    run = study.before(QUESTION)
    if run is None:
        study.listener.phase("where", "looking for the place where it fails, with the instruments on")
        try:
            run = study.train(_plan(study, kind), limited=False)
        except InputsChanged:
            raise
        except (InputError, OSError):  # nothing that was proven depends on it
            return
    same = _same(study, run, failure)
    where = _read(run, kind) if same else Where()
    note = "" if same else _otherwise(run)
    if where or note:
        seconds = round(run.seen.seconds, 2)
        seen = structs.replace(where, same_failure=same, folder=run.folder.name, seconds=seconds, note=note)
        study.find(place=seen)


def _functions_at_fault(run: Run) -> list[str]:
    """The reward functions of a run that failed by a reward which is not finite, whose own rewards are not: the first
    operation on such a number is only a consequence. None where metrics do not tell."""
    failure, step = run.shown.signature, run.shown.step
    if failure is None or failure.kind != "non-finite" or not failure.name.startswith(REWARD):
        return []
    return next((broken_rewards(row) for row in run.traces.metrics.rows if step_of(row) == step), [])


def _compared(study: Study) -> Contrast | None:
    """What only failing runs say, by what they and the passing runs of the first cause's proof have left."""
    report = present(study.answer.report)
    passing = {number for claim in report.causes[0].evidence.without.values() for number in claim.trials}
    failing, others = (
        [_told(run) for number in numbers if (run := study.site.load(number)) is not None]
        for numbers in one_apart(report.rows, passing)
    )
    return contrast(failing, others)


def _told(run: Run) -> Told:
    rows = [{**row, "step": step_of(row) + run.seen.before} for row in run.traces.metrics.rows]
    return Told(rows, log_lines(run.folder / "log.txt"))


def _plan(study: Study, kind: str) -> Plan:
    """The failing configuration once more, with instruments for this kind of failure."""
    report, bad_run = present(study.answer.report), present(study.answer.bad_run)
    proof = report.causes[0].evidence.fails
    steps = [row.step for row in report.rows if row.number in proof.trials and row.step]
    subset, whole = proof.subset, study.settings.bad
    silent = bad_run.shown.silent
    late = study.trials.origin is not None  # then it makes few steps anyway
    return Plan(
        QUESTION,
        whole if subset is None else configuration_of(subset, study.settings.good, whole),
        study.trials.horizon,
        purpose=Purpose.CHECK,
        patience=PATIENCE,
        stop=StopRule.FAILURE if silent else StopRule.DEATH,
        instruments=InstrumentOrders(
            kind,
            from_step=1 if silent or late else max(1, min(steps, default=bad_run.shown.step or 0) - STEPS_AHEAD),
            gdb=shutil.which("gdb"),
        ),
    )


def _same(study: Study, run: Run, failure: Signature) -> bool:
    """Whether the instrumented run failed as the failure under study does."""
    if study.outcome_of(run) is Outcome.FAIL:
        return True
    if failure.kind == "signal":
        died_of = fatal_signal(stacks_in(run.failing[0]))
        return died_of is not None and died_of.name == failure.name
    exception = run.failing[1].event(Raised)
    said = exception.message if exception is not None else ""
    of_numbers = failure.kind == "non-finite" or is_sampling_error(failure)
    return of_numbers and (_ANOMALY in said or run.failing[1].event(Overflow) is not None)


def _otherwise(run: Run) -> str:
    shown = run.shown.signature
    ended = "passes" if shown is None else f"ends with {shown}"
    return f"With the instruments on, the run {ended}, so it cannot show where the failure happens."


def _read(run: Run, kind: str) -> Where:
    folder, traces = run.failing
    try:
        place = from_json(LastOperation, json.loads(_text(folder / PLACE_FILE)))
    except (ValueError, TypeError):  # there is none, or it is cut short: the process died while it was written
        place = LastOperation()
    return place_in(
        kind,
        traces.events.rows,
        _text(folder / STACKS_FILE),
        _text(folder / NATIVE_FILE),
        place,
        max(map(step_of, traces.metrics.rows), default=0) + traces.before,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").rstrip("\0")
    except OSError:
        return ""
