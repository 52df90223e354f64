"""From the traces of a run, of one training or of several, to what was seen of it, without a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools import traces_of

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.probe.protocol import (
    Completed,
    ConfigBuilt,
    ConfigInvalid,
    ConfigResolved,
    Event,
    NonFiniteParameters,
    Raised,
    TrainBegin,
    TrainEnd,
    TrainerBuilt,
    Unwatched,
    event_row,
)
from bisect_cfg.runner import clean
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Failure, Standard
from bisect_cfg.runner.watch import Ending

BEGUN, ENDED = TrainBegin(), TrainEnd(5, "horizon")
SAMPLING = "probability tensor contains either `inf`, `nan` or element < 0"
SIGFPE = Signature("signal", "SIGFPE")
ASSERTION = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectLargeIndex: block: [7,0,0], "
    "thread: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
)
NOISE = "step 1 of 1000: nothing to see here\n" * 300_000  # 10 MB


def row(step: int, **values: float) -> dict[str, float]:
    made = {"time": 1.0 + step / 10, "step": step, "loss": 0.1, "grad_norm": 1.0, "entropy": 2.0, "reward_std": 0.2}
    return made | values


FIVE = [row(step) for step in range(1, 6)]
COLLAPSED = [row(s, entropy=5.0 if s < 3 else 0.001, frac_reward_zero_std=0.0 if s < 3 else 1.0) for s in range(1, 9)]
DEAD = [row(step, frac_reward_zero_std=1.0, grad_norm=0.0) for step in range(1, 8)]


def raised(message: str = "boom", kind: str = "RuntimeError", where: str = "step") -> Raised:
    return Raised(kind, message, [("/x/train.py", 3, where)])


Seen = Callable[..., Run]


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    def observed(*events: Event, rows=(), code: int | None = 0, hang: str | None = None, log: str = "") -> Run:
        traces = traces_of(tmp_path, *events, rows=rows)
        (tmp_path / "log.txt").write_text(log)
        return Run(observe(traces, Ending(code, hang, 4.0)), traces, tmp_path)

    return observed


def outcome(run: Run, studied: Signature, *usual: str) -> Outcome:
    return run.judged(Standard(Failure(studied), frozenset(usual))).outcome


def test_pass(seen: Seen) -> None:
    run = seen(BEGUN, ENDED, rows=FIVE)
    assert run.shown.signature is None and run.seen.steps == run.shown.step == 5
    assert run.seen.pace == pytest.approx(0.1) and run.seen.at_horizon
    assert outcome(run, SIGFPE) is Outcome.PASS


@pytest.mark.parametrize(
    ("events", "ending", "died"),
    [
        ([BEGUN], {"code": -8}, "SIGFPE"),
        ([BEGUN], {"code": 136}, "SIGFPE"),  # as a shell reports it
        ([], {"code": 1, "log": "Command '['python', 'train.py']' died with <Signals.SIGFPE: 8>.\n"}, "SIGFPE"),
        ([BEGUN], {"code": -11}, "SIGSEGV"),
        ([BEGUN, raised()], {"code": 1}, "RuntimeError: boom [train:step]"),
        ([BEGUN], {"code": None, "hang": "no optimizer step for 20 s"}, "hang"),
        ([BEGUN, raised()], {"code": None, "hang": "no heartbeat for 20 s"}, "hang"),
        ([], {}, "no-training"),
        ([BEGUN, TrainEnd(0)], {}, "no-steps"),
        ([BEGUN], {"rows": FIVE[:1]}, "exit (0)"),
        ([Unwatched("python -I train.py"), BEGUN, raised()], {"code": 1}, "unwatched"),
        ([ConfigInvalid("ValueError", "no"), raised("no")], {"code": 1}, "invalid: ValueError: no"),
        ([ConfigInvalid("ValueError", "no"), BEGUN], {"code": -8}, "SIGFPE"),  # it was caught, and another was built
        ([BEGUN], {"rows": FIVE, "code": None}, "None"),  # ended by us
        (
            [BEGUN, Completed(1, "T", 0)],
            {"rows": FIVE, "code": None, "hang": "silent"},
            "None",
        ),  # it serves a demo, say
        ([Raised("E", "", [], final=False), BEGUN, ENDED], {"rows": FIVE}, "None"),  # one that it only showed
    ],
)
def test_what_a_run_died_of(seen: Seen, events, ending, died) -> None:
    run = seen(*events, **ending)
    assert str(run.seen.died) == died
    other = outcome(run, Signature("exception", "KeyError", "x"))
    assert other is (Outcome.PASS if died == "None" else Outcome.UNRESOLVED), "it is not what is studied"


@pytest.mark.parametrize(("handed", "expected"), [({"mix": 0.1}, Outcome.PASS), (None, Outcome.UNRESOLVED)])
def test_a_run_whose_script_was_not_handed_its_own_setting_says_nothing(seen: Seen, tmp_path, handed, expected) -> None:
    (tmp_path / "orders.json").write_text('{"request": {"overrides": {"script.mix": 0.1, "args.beta": 0.5}}}')
    parsed = ConfigBuilt("script", 0, "", "", {"mix": 0.9}, {"mix": 0.1}, {"mix": "float"})
    told = [ConfigResolved("script", 0, handed)] if handed else []
    run = seen(parsed, *told, BEGUN, ENDED, rows=FIVE)
    assert outcome(run, SIGFPE) is expected
    assert run.shown.signature is None or "without being handed script.mix as" in run.seen.message


def test_what_is_invalid_is_no_failure_whatever_counts_as_one(seen: Seen) -> None:
    run = seen(ConfigInvalid("ValueError", "not divisible"), raised("not divisible", "ValueError"), code=1)
    assert run.seen.invalid and not run.seen.trained
    assert run.judged(Standard(Failure(run.seen.died, asked="any"))).outcome is Outcome.UNRESOLVED


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (raised("index 17 out of bounds at 0x7f3a91"), raised("index 4711 out of bounds at 0x55d0"), True),
        (raised(where="step"), raised(where="load"), False),
    ],
)
def test_when_two_exceptions_are_the_same_failure(seen: Seen, one, other, same) -> None:
    first, second = (seen(BEGUN, event, code=1) for event in (one, other))
    assert outcome(second, first.seen.died) is (Outcome.FAIL if same else Outcome.UNRESOLVED)


@pytest.mark.parametrize("before", [0, 80])
def test_nan_weights_go_before_the_sampling_error_they_cause(seen: Seen, before: int) -> None:
    """A first run goes on for a while after them, and one that began at a checkpoint counts its own steps."""
    weights = NonFiniteParameters(before + 2, "lm_head.weight")
    nan = {"loss": float("nan"), "grad_norm": float("nan")}
    finite = [row(before + step) for step in (1, 2)]
    optimizer = seen(BEGUN, weights, raised(SAMPLING), rows=finite, code=1)
    assert optimizer.seen.died == Signature("non-finite", "parameters", where="optimizer step")
    assert "lm_head.weight" in optimizer.seen.message and "probability tensor" in optimizer.seen.after
    stopped = seen(BEGUN, weights, ENDED, rows=finite)  # as a trial is
    backward = seen(BEGUN, weights, rows=[finite[0], *(row(before + step, **nan) for step in range(2, 6))])
    assert backward.seen.died.where == "gradient" and backward.seen.steps == 5
    for run in (optimizer, stopped, backward):
        assert (run.shown.step, run.shown.step_of_training) == (2, before + 2)
        assert run.seen.died.same(optimizer.seen.died)


def test_nan_metrics_with_finite_weights_are_a_remark(seen: Seen) -> None:
    run = seen(BEGUN, ENDED, rows=[row(step, grad_norm=float("inf") if step == 2 else 1.0) for step in range(1, 6)])
    (remark,) = run.shown.remarks
    assert run.shown.signature is None and remark.text == "grad_norm is inf at 1 of 5 steps (first at step 2)"


@pytest.mark.parametrize(("rows", "kind", "hinders"), [(COLLAPSED, "collapse", True), (DEAD, "dead-reward", False)])
def test_a_silent_failure_is_one_of_its_own_and_a_collapse_keeps_others_from_showing(seen, rows, kind, hinders) -> None:
    run = seen(BEGUN, ENDED, rows=rows)
    assert run.shown.signature == Signature(kind) and run.seen.died is None and run.shown.step == 5
    assert outcome(run, Signature(kind)) is Outcome.FAIL
    assert outcome(run, SIGFPE) is (Outcome.UNRESOLVED if hinders else Outcome.PASS)
    assert outcome(run, SIGFPE, kind) is Outcome.PASS, "the good run shows it as well"


@pytest.mark.parametrize("log", [ASSERTION + NOISE, NOISE + ASSERTION, NOISE + ASSERTION + NOISE])
def test_the_line_that_names_an_assertion_of_cuda_is_found_wherever_it_stands(seen: Seen, log: str) -> None:
    run = seen(BEGUN, raised("CUDA error: device-side assert triggered"), rows=FIVE[:2], code=1, log=log)
    assert (run.seen.died.kind, run.seen.died.name) == ("cuda-assert", "indexSelectLargeIndex")


# ------------------------------------------------------------------------------------------------ several trainings

FIRST = [ConfigBuilt("args", 0, "GRPOConfig", "trl", {}, {}, {}), TrainBegin(1, args=0), Completed(1, "GRPOTrainer", 0)]
CONFIG = ConfigBuilt("args", 1, "GRPOConfig", "trl", {}, {}, {})
SECOND = [*FIRST, CONFIG, TrainBegin(2, args=1)]
BOOM = Raised("ValueError", "boom", [("train.py", 3, "step")], final=True)


def made(first: int, second: int = 0, **metrics: float) -> list[dict[str, float]]:
    """Metric rows of two trainings."""
    one = [row(step, reward=0.3, **metrics) for step in range(1, first + 1)]
    return one + [row(step, reward=0.3, training=2) for step in range(1, second + 1)]


@pytest.mark.parametrize(
    ("events", "metrics", "code", "died", "step"),
    [
        (FIRST, made(5), 0, None, 5),
        ([*FIRST, BOOM], made(5), 1, None, 5),  # what comes after the last training is no failure of it
        ([*FIRST, CONFIG, BOOM], made(5), 1, "ValueError", 0),
        ([*FIRST, TrainerBuilt(1), BOOM], made(5), 1, "ValueError", 0),
        ([*SECOND, BOOM], made(5, 2), 1, "ValueError", 3),
        (SECOND, made(5, 2), -8, "SIGFPE", 3),
        ([*SECOND, TrainEnd(3, "horizon")], made(5, 3), 0, None, 3),
        (FIRST, made(9, grad_norm=0.0), None, "no-gradient", 5),  # it was silent for good: the run was ended there
        ([*SECOND, TrainEnd(6)], made(9, 6, grad_norm=0.0), 0, None, 6),
    ],
)
def test_the_run_is_about_the_last_training_that_began(seen: Seen, events, metrics, code, died, step) -> None:
    found = seen(*events, rows=metrics, code=code).shown
    assert found.step == step and (found.signature is None) == (died is None)
    assert died is None or died in str(found.signature)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10)), max_size=6))
def test_whenever_the_files_are_read_the_rows_are_those_of_the_last_training(tmp_path_factory, moments) -> None:
    """The events are read first, and a training may begin, and make steps, before the metrics are."""
    folder = tmp_path_factory.mktemp("run")
    events = [*FIRST, TrainBegin(2, args=0), Completed(2, "GRPOTrainer", 0), TrainBegin(3, args=0), TrainEnd(3)]
    last = [row(step, training=3) for step in (1, 2, 3)]
    written = [json.dumps(event_row(event, 0.0)) for event in events]
    metrics = [json.dumps(one) for one in (*made(4, 3), *last)]
    traces, told, logged = Traces(folder), 0, 0
    for more_events, more_rows in [*moments, (len(written), len(metrics))]:
        told, logged = max(told, more_events), max(logged, more_rows)
        for name, lines in (("events", written[:told]), ("metrics", metrics[:logged])):
            (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
        traces.read()
        assert len({one.get("training", 1) for one in traces.metrics.rows}) <= 1
    assert traces.metrics.rows == last


@pytest.mark.parametrize(("allowed", "kept"), [(1 << 20, True), (1, False)])
def test_models_that_a_stage_has_saved_do_not_fill_the_disk(tmp_path, monkeypatch, allowed, kept) -> None:
    model = tmp_path / "0/output/config-2/checkpoint-3/model.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"xx")
    monkeypatch.setattr(clean, "KEPT_BYTES", allowed)
    clean.clean_folder(tmp_path / "0")
    assert model.exists() == kept
