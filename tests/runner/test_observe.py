"""From traces to what was seen of a run and to what it means, without a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.configuration import Outcome
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.verdict import Ended, Failure, Standard
from bisect_cfg.runner.watch import Ending

BEGUN = {"event": "train_begin", "time": 1.0}
ENDED = {"event": "train_end", "time": 3.0, "steps": 5, "stopped": "horizon"}
SAMPLING = "probability tensor contains either `inf`, `nan` or element < 0"


def row(step, **values):
    return {
        "time": 1.0 + step / 10,
        "step": step,
        "loss": 0.1,
        "grad_norm": 1.0,
        "entropy": 2.0,
        "reward_std": 0.2,
        **values,
    }


def exception(kind="RuntimeError", message="boom", where="step"):
    return {
        "event": "exception",
        "phase": "training",
        "type": kind,
        "message": message,
        "frames": [["/x/train.py", 3, where]],
    }


@pytest.fixture
def seen(tmp_path: Path):
    def observed(events, rows=(), code=0, hang=None, log=""):
        (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        (tmp_path / "log.txt").write_text(log)
        traces = Traces.of(tmp_path)
        traces.read()
        return Run(observe(traces, tmp_path, Ending(code, hang, 4.0)), traces, tmp_path)

    return observed


CRASH = Signature("signal", "SIGFPE")


def outcome(run: Run, studied: Signature = CRASH, usual: frozenset[str] = frozenset()) -> Outcome:
    return run.judged(Standard(Failure(studied), usual)).outcome


FIVE = [row(step) for step in range(1, 6)]


def test_pass(seen):
    run = seen([BEGUN, ENDED], FIVE)
    assert run.shown.signature is None and run.seen.steps == run.shown.step == 5
    assert run.seen.pace == pytest.approx(0.1) and run.seen.ended is Ended.HORIZON
    assert outcome(run) is Outcome.PASS


def test_nan_weights_go_before_the_sampling_error_they_cause(seen):
    weights = {"event": "non_finite_parameters", "step": 2, "parameter": "lm_head.weight"}
    run = seen([BEGUN, weights, exception(message=SAMPLING)], FIVE[:2], code=1)
    assert run.seen.died == Signature("non-finite", "parameters", where="optimizer step") and run.shown.step == 2
    rows = [FIVE[0], {**FIVE[1], "grad_norm": float("inf")}]
    backward = seen([BEGUN, weights, exception(message=SAMPLING)], rows, code=1)
    assert backward.seen.died == Signature("non-finite", "parameters", where="gradient")
    assert backward.seen.died.same(run.seen.died)
    assert "lm_head.weight" in run.seen.message and "probability tensor" in run.seen.after
    early = seen([BEGUN, weights, ENDED], FIVE[:2])  # a trial stops at the weights; it is the same failure
    assert early.seen.died.same(run.seen.died)


@pytest.mark.parametrize("before", [0, 80])
def test_weights_are_not_finite_from_the_step_on_that_showed_it(seen, before):
    """A first run goes on for a while, and one that began at a checkpoint counts its own steps."""
    weights = {"event": "non_finite_parameters", "step": before + 2, "parameter": "lm_head.weight"}
    nan = [row(before + 1), *(row(before + step, loss=float("nan"), grad_norm=float("nan")) for step in range(2, 6))]
    run = seen([BEGUN, weights, ENDED], nan)
    assert (run.shown.step, run.seen.steps, run.shown.step_of_training) == (2, 5, before + 2)
    assert run.seen.died.where == "gradient"


def test_nan_metrics_with_finite_weights_are_a_remark(seen):
    run = seen([BEGUN, ENDED], [row(step, grad_norm=float("inf") if step == 2 else 1.0) for step in range(1, 6)])
    (remark,) = run.shown.remarks
    assert run.shown.signature is None and remark.text == "grad_norm is inf at 1 of 5 steps (first at step 2)"


@pytest.mark.parametrize("code", [-8, 136])
def test_signal_as_python_and_as_a_shell_report_it(seen, code):
    assert seen([BEGUN], FIVE[:1], code=code).seen.died == Signature("signal", "SIGFPE")


def test_signal_named_by_a_launcher(seen):
    log = "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGFPE: 8>.\n"
    assert seen([], code=1, log=log).seen.died == Signature("signal", "SIGFPE")


def test_another_failure_is_unresolved(seen):
    for run in (
        seen([BEGUN], FIVE[:1], code=-11),
        seen([BEGUN, exception()], FIVE[:1], code=1),
        seen([BEGUN], FIVE[:1], code=None, hang="no optimizer step for 20 s"),
        seen([], code=0),
        seen([BEGUN, {**ENDED, "steps": 0}]),
        seen([BEGUN], FIVE[:1], code=0),
    ):
        assert run.seen.died is not None and run.seen.ended is Ended.FAILURE
        assert outcome(run) is Outcome.UNRESOLVED


def test_same_exception_elsewhere_is_another_failure(seen):
    here = seen([BEGUN, exception(where="step")], FIVE[:1], code=1).seen.died
    there = seen([BEGUN, exception(where="load")], FIVE[:1], code=1)
    assert outcome(there, here) is Outcome.UNRESOLVED


def test_exceptions_that_differ_in_numbers_are_the_same(seen):
    one = seen([BEGUN, exception(message="index 17 out of bounds at 0x7f3a91")], code=1).seen.died
    two = seen([BEGUN, exception(message="index 4711 out of bounds at 0x55d0")], code=1)
    assert outcome(two, one) is Outcome.FAIL


COLLAPSED = [row(s, entropy=5.0 if s < 3 else 0.001, frac_reward_zero_std=0.0 if s < 3 else 1.0) for s in range(1, 9)]


def test_collapse_is_a_failure_of_its_own(seen):
    run = seen([BEGUN, ENDED], COLLAPSED)
    assert run.shown.signature == Signature("collapse") and run.seen.died is None and run.shown.step == 5
    assert outcome(run, Signature("collapse")) is Outcome.FAIL


def test_collapsed_run_says_nothing_about_another_failure(seen):
    run = seen([BEGUN, ENDED], COLLAPSED)
    assert outcome(run) is Outcome.UNRESOLVED
    assert outcome(run, usual=frozenset({"collapse"})) is Outcome.PASS


def test_dead_reward_of_the_script_is_no_obstacle(seen):
    run = seen([BEGUN, ENDED], [row(step, frac_reward_zero_std=1.0, grad_norm=0.0) for step in range(1, 8)])
    assert run.shown.signature == Signature("dead-reward")
    assert outcome(run, usual=frozenset({"dead-reward"})) is Outcome.PASS


def test_invalid_configuration(seen):
    invalid = {"event": "invalid", "kind": "args", "type": "ValueError", "message": "not divisible"}
    run = seen([invalid, {**exception("ValueError", "not divisible"), "phase": "before training"}], code=1)
    assert run.seen.died == Signature("invalid", "", "ValueError: not divisible") and not run.seen.trained
    assert run.judged(Standard(Failure(run.seen.died, asked="any"))).outcome is Outcome.UNRESOLVED


# ----------------------------------------------------------------------------------------------------- --failure

SIGFPE, SIGSEGV = Signature("signal", "SIGFPE"), Signature("signal", "SIGSEGV")
NAN = Signature("non-finite", "parameters")
SAMPLED = Signature("exception", "RuntimeError", SAMPLING)
OTHER = Signature("exception", "ValueError", "no such column")


@pytest.mark.parametrize(
    ("kind", "counts", "does_not"),
    [
        ("any", [SIGFPE, SIGSEGV, NAN, OTHER], []),
        ("signal", [SIGFPE, SIGSEGV], [NAN, OTHER]),
        ("non-finite", [NAN, SAMPLED, Signature("non-finite", "loss")], [SIGFPE, OTHER]),
        ("sig(fpe|segv)", [SIGFPE, SIGSEGV], [NAN, OTHER]),
        ("column", [OTHER], [SIGFPE, NAN]),
    ],
)
def test_widened(kind, counts, does_not):
    failure = Failure(OTHER, asked=kind)
    assert all(failure.includes(signature) for signature in counts)
    assert not any(failure.includes(signature) for signature in does_not)


def test_widened_by_nonsense():
    with pytest.raises(ValueError, match="regular expression"):
        Failure(OTHER, asked="([").includes(OTHER)


ASSERTION = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectLargeIndex: block: [7,0,0], "
    "thread: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
)


@pytest.mark.parametrize("where", ["head", "tail", "both"])
def test_both_ends_of_a_long_log_are_read(seen, where):
    noise = "step 1 of 1000: nothing to see here\n" * 300_000  # 10 MB
    log = (ASSERTION if where != "tail" else "") + noise + (ASSERTION if where != "head" else "")
    run = seen([BEGUN, exception(message="CUDA error: device-side assert triggered")], FIVE[:2], code=1, log=log)
    assert (run.seen.died.kind, run.seen.died.name) == ("cuda-assert", "indexSelectLargeIndex")
