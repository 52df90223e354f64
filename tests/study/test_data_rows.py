"""Failures that are owed to a row: the settings that bring it about are isolated as if the data were no question, and
the row is named beside them. What only moves rows to other steps is neither cause nor cure. Real TRL, planted rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import toys
from tools import slow, traces_of

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.common.failures.signature import Signature
from bisect_cfg.options import Options
from bisect_cfg.probe.protocol import FailingData, Intake, Origin, PlannedSteps, StepRows
from bisect_cfg.report.data_rows import RowsOfStep
from bisect_cfg.report.events import Listener
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import Observation
from bisect_cfg.store.interface import TrialResult
from bisect_cfg.study.bisection import Bisection
from bisect_cfg.study.data_rows import _at_fault, _ExchangedRows, _may_be_a_row, rows_of
from bisect_cfg.study.reproduce import _sooner

SCRIPT = """
    import sys, toy
    from trl import GRPOConfig

    KIND, AT = sys.argv[1], int(sys.argv[2])
    told = dict(output_dir="out", max_steps=400, shuffle_dataset=False, top_k=8, repetition_penalty=1.1,
                per_device_train_batch_size=16 if KIND == "two" else 4, num_generations=4, max_completion_length=8,
                use_cpu=True, report_to="none", save_strategy="no")
    if KIND == "evaluation":
        told |= dict(eval_strategy="steps", eval_steps=AT, per_device_eval_batch_size=4)
    args = GRPOConfig(**told)
    BAD = {AT: "9 9 9", AT + 1: "8 8 8"} if KIND == "two" else {5 if KIND == "evaluation" else AT: "9 9 9"}


    def with_bad(data):
        return data.map(lambda row, at: {"prompt": BAD.get(at, row["prompt"])}, with_indices=True)


    def reward(prompts, completions, **kwargs):
        if args.top_k == 8 and args.repetition_penalty > 1 and {*prompts} & {*BAD.values()}:
            raise RuntimeError("planted")
        return toy.reward(completions)


    data, few = toy.data(400), toy.data(16)
    data, few = (data, with_bad(few)) if KIND == "evaluation" else (with_bad(data), None)
    data = data.to_iterable_dataset() if KIND == "stream" else data
    toy.trainer(args, train_dataset=data, eval_dataset=few, reward_funcs=reward).train()
"""

MOVES = ("shuffle_dataset", "per_device_train_batch_size", "num_generations", "eval_steps")


@pytest.mark.training
@pytest.mark.parametrize(
    ("kind", "place", "step", "guilty", "said"),
    [
        ("one", 20, 21, [[20]], "row 20 (5 characters) of the dataset does it"),
        slow("one", 120, 121, [[120]], "row 120 (5 characters) of the dataset does it"),
        # The trials of the cause take them one at a time.
        slow("two", 60, 16, [[60], [61]], "Step 16 takes 4 rows of 5 to"),
        slow("evaluation", 20, 21, [[5]], "row 5 (5 characters) of the evaluation set does it"),
        slow("stream", 20, 21, None, "A row of the dataset may take part, which cannot be named"),
    ],
)
def test_a_row_is_named_beside_two_settings(real_tool, kind, place, step, guilty, said):
    toys.write(real_tool.folder, SCRIPT)
    names = ("top_k", "repetition_penalty", *MOVES[: None if kind == "evaluation" else -1])
    only = [word for name in names for word in ("--only", name)]
    options = ("--until-failure", "--no-where", "--prove", "from-checkpoint", "--verify-seeds", 1)
    study = real_tool.bisect(*options, *only, "train.py", "--", kind, place, seconds=900)
    result, told = study.result, " ".join(study.said.out.split())
    assert study.causes == [["repetition_penalty", "top_k"]] and result["complete"]
    assert result["failure"]["step"] == step and (result["rows"] or {}).get("guilty") == guilty and said in told
    assert ("would only move the failure" in told) == (kind != "evaluation")
    assert not {*result["recommendation"]["changes"]} & {*MOVES}


# --------------------------------------------------------------------------------------------- what a failing run took

INTAKE = Intake(2, 1, 1)


def failing_run(folder, *events, steps=4, before=0, kind="exception") -> Run:
    rows = [{"step": step, "time": step, "loss": 0.1} for step in range(1, steps + 1)]
    seen = Observation(Signature(kind, "RuntimeError"), steps=steps, before=before)
    return Run(seen, traces_of(folder, PlannedSteps(400, INTAKE), *events, rows=rows), folder)


def taken(step: int, *rows: int, evaluated: bool = False) -> StepRows:
    return StepRows(step, list(rows), [len(str(row)) for row in rows], 400, evaluated)


def test_what_it_took_from_where_trials_begin(tmp_path):
    run = failing_run(tmp_path, *(taken(step, 2 * step, 2 * step + 1) for step in range(1, 7)))
    assert run.data_after(2) == FailingData([6, 7, 8, 9, 10, 11], 3, INTAKE)
    assert run.data_after(0).rows == list(range(2, 12)), "what was drawn ahead of the failing step is not"
    assert failing_run(tmp_path / "later", before=90).data_after(0) is None, "nobody knows what came before"
    assert (rows_of(run).step, rows_of(run).rows, rows_of(run).healthy) == (5, (10, 11), tuple(range(2, 10)))


def test_a_run_that_died_in_an_evaluation(tmp_path):
    """Between two steps, at the batch that was evaluated last; not once the evaluation was over."""
    batches = (taken(4, 7, 8, evaluated=True), taken(4, 9, 3, evaluated=True))
    run = failing_run(tmp_path / "within", taken(4, 1), *batches, taken(5, 2))
    of = rows_of(run)
    assert run.data_after(0).evaluates == 4 and of.place == "the evaluation after step 4"
    assert of.rows == (9, 3) and of.healthy == (7, 8) and of.evaluated
    unnamed = failing_run(tmp_path / "unnamed", taken(4, 1), StepRows(4, [], [], evaluated=True, named=False))
    assert unnamed.data_after(0).evaluates == 4 and rows_of(unnamed) is None
    over = failing_run(tmp_path / "over", taken(4, 1), *batches, taken(4, evaluated=True), taken(5, 2))
    assert over.data_after(0).evaluates is None and rows_of(over).rows == (2,)


def test_where_the_data_alone_does_not_do_it_no_trial_is_longer_for_it(tmp_path):
    trials = Trials(SimpleNamespace(folder=tmp_path))
    assert trials._failing_data() is None
    trials.failed = failing_run(tmp_path, *(taken(step, step) for step in range(1, 6)))
    assert trials._failing_data() == FailingData([1, 2, 3, 4, 5], 5, INTAKE)
    trials.needs_training = True
    assert trials._failing_data() == FailingData([1, 2, 3, 4, 5], None, INTAKE)
    trials.origin = Origin("checkpoint-2", 2)
    assert trials._failing_data() == FailingData([3, 4, 5], 3, INTAKE)


def test_what_fails_after_all_rows_that_may_be_at_fault_fails_of_others(tmp_path):
    """Every run dies at step 5, whatever rows it takes; with row 4 in its place already at step 4."""
    runs = {}

    def train(plan):
        steps = 4 if 4 in plan.exchanged else 3
        events = (taken(step, step) for step in range(1, steps + 3))
        runs[plan.name] = failing_run(tmp_path / plan.name, *events, steps=steps)
        return runs[plan.name]

    def judged(run):
        return TrialResult(Outcome.FAIL, "died", step=run.seen.steps + 1, attributes={"folder": run.folder.name})

    trials = SimpleNamespace(
        judged=judged, classify=lambda result: Outcome.FAIL, horizon=8, train=train, site=SimpleNamespace(load=runs.get)
    )
    rows = _ExchangedRows(trials, {})
    rows.of = RowsOfStep(4, (3, 4), (None, None))
    report = Bisection({"row 3": 1, "row 4": 2}, {"row 3": 3, "row 4": 4}, rows).search()
    assert [cause.parameters for cause in report.causes] == [("row 4",)] and report.complete and rows.elsewhere
    assert rows.lengths[4] == 1 and rows.trained == {1, 2, 3}, "never row 4, and come through"


def test_all_rows_of_the_users_step_may_be_at_fault(tmp_path):
    """A trial that takes fewer at a time fails at the first that does it, and has come through those before."""
    one = rows_of(failing_run(tmp_path / "one", *(taken(step, step) for step in range(1, 7))))
    many = rows_of(failing_run(tmp_path / "many", taken(1, 1, 2), taken(2, 3, 4, 5, 6), steps=1))
    both = _at_fault(one, many)
    assert (both.step, both.rows, both.characters) == (2, (3, 4, 5, 6), (None, None, 1, None))
    assert both.others() == [1, 2, 1, 2]
    odds = both.odds()
    assert odds["row 5"] > odds["row 3"] == odds["row 6"]
    assert _at_fault(many, one) is many and _at_fault(one, None) is one and _at_fault(None, many) is None


@pytest.mark.parametrize(
    ("kind", "steps", "again", "sooner"),
    [
        ("out-of-memory", 20, ("out-of-memory", 0), True),
        ("out-of-memory", 20, ("out-of-memory", 20), False),
        ("out-of-memory", 20, ("exception", 0), False),
        ("out-of-memory", 2, None, False),
        ("exception", 20, None, False),
    ],
)
def test_where_memory_runs_out_late_the_longest_rows_come_first_if_that_is_sooner(tmp_path, kind, steps, again, sooner):
    run = failing_run(tmp_path / "first", taken(1, 1), steps=steps, kind=kind)
    other = again and failing_run(tmp_path / "again", taken(1, 7), steps=again[1], kind=again[0])
    orders, notes, trials = [], [], Trials(SimpleNamespace(folder=tmp_path))

    def made(plan):
        orders.append(trials._failing_data())
        return other

    study = SimpleNamespace(
        trials=trials, made=made, listener=Listener(), note=notes.append, options=Options(), failing_step=None,
        target=SimpleNamespace(probed=True), settings=None, pins={}, folder=tmp_path,
    )  # fmt: skip
    assert _sooner(study, run) is (other if sooner else run)
    assert trials.longest_first is sooner and bool(notes) is sooner
    assert orders == ([FailingData([], longest=True)] if again else [])
    trials.failed = other if sooner else run
    assert not trials._failing_data().longest, "its rows are known"
    assert trials._failing_data().rows[:1] == ([7] if sooner else [1])


@pytest.mark.parametrize(
    ("steps", "kind", "origin", "needs_training", "expected"),
    [
        (1, "out-of-memory", "longest first", False, True),
        (20, "exception", None, False, True),
        (20, "exception", None, True, False),  # the data alone was tried
        (2, "exception", None, False, False),  # as most settings do
        (20, "non-finite", None, False, False),
        (20, "non-finite", Origin(None, 17), False, True),
        (20, "exception", Origin("checkpoint-4", 4), False, False),
    ],
)
def test_what_may_be_a_row(tmp_path, steps, kind, origin, needs_training, expected):
    run = failing_run(tmp_path, taken(1, 1), steps=steps, kind=kind)
    longest = origin == "longest first"
    trials = SimpleNamespace(origin=None if longest else origin, needs_training=needs_training, longest_first=longest)
    assert _may_be_a_row(SimpleNamespace(trials=trials, answer=SimpleNamespace(bad_run=run))) is expected
