"""What a run of several trainings came to, from the files that it left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.probe.protocol import (
    Completed,
    ConfigBuilt,
    Event,
    Raised,
    TrainBegin,
    TrainEnd,
    TrainerBuilt,
    event_row,
)
from bisect_cfg.runner import clean
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.watch import Ending

BOOM = Raised("ValueError", "boom", [("train.py", 3, "step")], final=True)
FIRST = [ConfigBuilt("args", 0, "GRPOConfig", "trl", {}, {}, {}), TrainBegin(1, args=0)]
COMPLETED = [*FIRST, Completed(1, "GRPOTrainer", 0)]
CONFIG = ConfigBuilt("args", 1, "GRPOConfig", "trl", {}, {}, {})


def rows(count: int, training: int = 1, **metrics: float) -> list[dict[str, float]]:
    own = {} if training == 1 else {"training": training}
    made = {"loss": 0.1, "grad_norm": 1.0, "reward": 0.3, "reward_std": 0.2, "time": 0.0, **metrics}
    return [{"step": step + 1, **made, **own} for step in range(count)]


def seen(folder: Path, events: list[Event], metrics: list[dict[str, float]], exit_code: int | None) -> Run:
    for name, lines in (("events", [event_row(event, 0.0) for event in events]), ("metrics", metrics)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    traces = Traces.of(folder)
    traces.read()
    return Run(observe(traces, folder, Ending(exit_code, None, 1.0)), traces, folder)


@pytest.mark.parametrize(
    ("events", "metrics", "exit_code", "failure", "step"),
    [
        (COMPLETED, rows(5), 0, None, 5),
        ([*COMPLETED, BOOM], rows(5), 1, None, 5),  # what comes after the last training is no failure of it
        ([*COMPLETED, CONFIG, BOOM], rows(5), 1, "ValueError", 0),
        ([*COMPLETED, TrainerBuilt(1), BOOM], rows(5), 1, "ValueError", 0),
        ([*COMPLETED, CONFIG, TrainBegin(2, args=1), BOOM], [*rows(5), *rows(2, 2)], 1, "ValueError", 3),
        ([*COMPLETED, CONFIG, TrainBegin(2, args=1)], [*rows(5), *rows(2, 2)], -8, "SIGFPE", 3),
        ([*COMPLETED, CONFIG, TrainBegin(2, args=1), TrainEnd(3, "horizon")], [*rows(5), *rows(3, 2)], 0, None, 3),
        # The first was silent for good: the run was ended there.
        (COMPLETED, rows(9, grad_norm=0.0), None, "no-gradient", 5),
        ([*COMPLETED, CONFIG, TrainBegin(2, args=1), TrainEnd(6)], [*rows(9, grad_norm=0.0), *rows(6, 2)], 0, None, 6),
    ],
)
def test_the_run_is_about_the_last_training_that_began(tmp_path, events, metrics, exit_code, failure, step):
    found = seen(tmp_path, events, metrics, exit_code).shown
    assert found.step == step
    assert (found.signature is None) == (failure is None)
    assert failure is None or failure in str(found.signature)


@pytest.mark.parametrize(("allowed", "kept"), [(2, True), (1, False)])
def test_models_that_a_stage_has_saved_do_not_fill_the_disk(tmp_path, monkeypatch, allowed, kept):
    model = tmp_path / "0/output/config-2/checkpoint-3/model.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"xx")
    monkeypatch.setattr(clean, "KEPT_BYTES", allowed)
    clean.clean_folder(tmp_path / "0")
    assert model.exists() == kept


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10)), max_size=6))
def test_whenever_the_files_are_read_the_rows_are_those_of_the_last_training(tmp_path_factory, moments) -> None:
    """The events are read first, and a training may begin, and make steps, before the metrics are."""
    folder = tmp_path_factory.mktemp("run")
    events = [*COMPLETED, TrainBegin(2, args=0), Completed(2, "GRPOTrainer", 0), TrainBegin(3, args=0), TrainEnd(3)]
    written = [json.dumps(event_row(event, 0.0)) for event in events]
    metrics = [json.dumps(row) for row in (*rows(4), *rows(3, 2), *rows(3, 3))]
    traces, told, logged = Traces.of(folder), 0, 0
    for more_events, more_rows in [*moments, (len(written), len(metrics))]:
        told, logged = max(told, more_events), max(logged, more_rows)
        for name, lines in (("events", written[:told]), ("metrics", metrics[:logged])):
            (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
        traces.read()
        assert len({row.get("training", 1) for row in traces.metrics.rows}) <= 1
    assert traces.metrics.rows == rows(3, 3)
