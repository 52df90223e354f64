"""Trials that begin at a checkpoint of the user's run, or at the data of the failing step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import toys
from tools import slow, traces_of

from bisect_cfg.common.configuration import Factor, Outcome
from bisect_cfg.errors import InputError
from bisect_cfg.options import Options
from bisect_cfg.probe.protocol import (
    CheckpointSaved,
    Event,
    Intake,
    NonFiniteParameters,
    Origin,
    OriginRefused,
    PlannedSteps,
    Resumed,
    TooShort,
    TrainBegin,
    TrainEnd,
)
from bisect_cfg.report.events import Listener
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.watch import Ending
from bisect_cfg.store.interface import TrialResult
from bisect_cfg.store.state import Rejected, read_state
from bisect_cfg.study.origin import (
    FAR,
    Costs,
    Origins,
    _say_what_does_it,
    check_loaded,
    give_up_origin,
    is_given_up,
    remove_checkpoints,
)
from tests.runner.test_checkpoints import checkpoint
from tests.study.stand_ins import Runner, study_of

SLOW_AT_FIRST = """class Slow(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            time.sleep(0.09 if state.global_step < FAST_FROM else 0)"""
"""So slow that the steps before the failure are worth leaving out; trials that begin later are fast."""

SCRIPT = f"""
    import time, toy
    from transformers import TrainerCallback
    from trl import GRPOConfig

    args = GRPOConfig(output_dir="out", learning_rate=1e-4, max_steps=400, logging_steps=1, temperature=1.2,
                      weight_decay=0.1, max_grad_norm=0.5, {toys.settings()})

    {SLOW_AT_FIRST.replace("FAST_FROM", "75")}

    class Plant(TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
            kept = next(iter(optimizer.state.values()), {{"step": 0}})  # the data alone does not do it
            if kept["step"] >= 90 and args.temperature > 1.1 and args.weight_decay > 0.05:
                raise RuntimeError("planted")

    toy.trainer(args, callbacks=[Slow(), Plant()]).train()
"""

TWO = ("--only", "temperature", "--only", "weight_decay")


@pytest.mark.training
@pytest.mark.parametrize("theirs", [False, slow(True)])
def test_a_late_failure_is_isolated_from_shortly_before_it(real_tool, theirs):
    """From a checkpoint of our own, which the first run has saved before the step that a log tells of; and then from
    one of the user's, as which that one serves here."""
    toys.write(real_tool.folder, SCRIPT)
    (real_tool.folder / "failed.log").write_text(" 22%|##  | 90/400 [00:10<00:20, 30.00it/s]\nRuntimeError: planted\n")
    options = ("--no-where", "--no-recommend", "--confirm", 1, "--prove", "from-checkpoint", *TWO, "train.py")
    study = real_tool.bisect("--log", "failed.log", *options, seconds=600)
    begun, told = study.result["origin"], " ".join(study.said.out.split())
    assert study.causes == [["temperature", "weight_decay"]] and study.result["failure"]["step"] == 91
    assert 91 - 16 <= begun["step"] <= 91 - 4 and Path(begun["checkpoint"]).is_dir()  # `recommend` is still to come
    assert "and show the same metrics there" in told
    assert "of step 91 it does not fail (2 runs): the training before contributes to it" in told
    if not theirs:
        return
    study = real_tool.bisect("--from-checkpoint", begun["checkpoint"], *options, study="theirs", seconds=600)
    assert study.causes == [["temperature", "weight_decay"]] and study.result["failure"]["step"] == 91
    assert study.result["origin"]["step"] == begun["step"]
    assert f"from step {begun['step']} of your run on" in " ".join(study.said.out.split())
    for path in study.folder.glob("trials/*/metrics.jsonl"):  # none of them has trained the steps before
        assert all(json.loads(line)["step"] > begun["step"] for line in path.read_text().splitlines())
    assert Path(begun["checkpoint"]).is_dir()


ROW = f"""
    import time, toy
    from transformers import TrainerCallback
    from trl import GRPOConfig
    from trl.trainer.utils import RepeatSampler

    BAD = list(RepeatSampler(range(400), mini_repeat_count=4, batch_size=1, seed=42))[8 * 59]
    print("BAD", BAD, flush=True)
    args = GRPOConfig(output_dir="out", max_steps=400, temperature=1.2, weight_decay=0.1, gradient_accumulation_steps=2,
                      **dict({toys.settings()}))

    {SLOW_AT_FIRST.replace("FAST_FROM", "50").replace("0.09", "0.25")}

    data = toy.data(400)
    bad = data[BAD]["prompt"] + " 9 9"
    data = data.map(lambda row, at: {{"prompt": bad if at == BAD else row["prompt"]}}, with_indices=True)

    def reward(prompts, **kwargs):
        if args.temperature > 1.1 and bad in prompts:
            raise RuntimeError("planted")
        return toy.reward(kwargs["completions"])

    toy.trainer(args, train_dataset=data, reward_funcs=reward, callbacks=[Slow()]).train()
"""


@pytest.mark.training
def test_a_row_of_the_data_is_found_without_the_training_before_it(real_tool):
    """Its place in TRL's order is that of its sampler. The script is a notebook."""
    step = 60
    toys.write(real_tool.folder, "").unlink()
    toys.notebook(real_tool.folder, ROW)
    options = ("--isolate-data", "--no-where", "--confirm", 1, "--prove", "from-checkpoint", *TWO, "--no-recommend")
    study = real_tool.bisect(*options, "train.ipynb", seconds=600)
    assert study.causes == [["temperature"]] and study.result["failure"]["step"] == step
    row = int((study.folder / "trials/0/log.txt").read_text().partition("BAD ")[2].split()[0])
    assert study.result["origin"]["kind"] == "data" and study.result["rows"]["guilty"] == [[row]]
    told = " ".join(study.said.out.split())
    assert f"row {row}" in told and "it is that data, or what else comes with that step" in told
    for path in study.folder.glob("trials/*/metrics.jsonl"):
        taken = path.read_text().splitlines() if path.parent.name != "0" else ()
        assert all(json.loads(line)["step"] > step - 8 for line in taken)


@pytest.mark.slow
@pytest.mark.training
def test_bad_row(real_tool):
    """As it is; and with the log of a run that failed, after which no run trains all the way there."""
    study = Path(__file__).parents[2] / "studies" / "bad_row"
    expected = json.loads((study / "expected.json").read_text())
    whole = subprocess.run([sys.executable, study / "train.py"], cwd=real_tool.folder, capture_output=True, text=True)
    (real_tool.folder / "failed.log").write_text(whole.stderr)
    for name, log in (("s", ()), ("with-log", ("--log", "failed.log"))):
        found = real_tool.bisect(study, "--isolate-data", "--no-recommend", *log, study=name, seconds=1200)
        result = found.result
        assert found.causes == expected["causes"]
        assert result["rows"]["guilty"] == expected["rows"] and result["complete"] is expected["complete"]
        for part in ("failure", "origin"):
            assert {key: result[part][key] for key in expected[part]} == expected[part]
        assert len((found.folder / "trials/0/metrics.jsonl").read_text().splitlines()) == (3 if log else 299)


# ------------------------------------------------------------------------------------------ what the first run shows


def first_run(
    folder: Path, failing: int, *events: Event, pace: float = 1.0, code: int = 1, before: int = 0, **begun: object
) -> Run:
    """A run from step `before` that failed at a step and told these events."""
    folder = folder / "trials" / "0"
    rows = [{"step": step, "time": step * pace, "loss": 0.1} for step in range(before + 1, failing)]
    traces = traces_of(folder, TrainBegin(**begun), *events, rows=rows)
    return Run(observe(traces, Ending(code, None, failing * pace)), traces, folder)


@pytest.mark.parametrize("form", ["FSDP", "DeepSpeed"])
def test_what_was_saved_in_parts_is_refused_without_what_saved_it(tmp_path, form):
    refused = OriginRefused("weights", "ValueError", "Can't find a valid checkpoint at ...")
    path = checkpoint(tmp_path / "saved", form)
    for in_force, said in (
        ("MULTI_GPU", f"checkpoint-20 was saved in parts, by a training under {form}; yours runs without"),
        (form.upper(), "The weights in .* cannot be loaded .*: ValueError: Can't find a valid"),
    ):
        run = first_run(tmp_path / in_force, 1, refused, in_force={"distributed_type": in_force})
        with pytest.raises(InputError, match=said):
            check_loaded(run, path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.safetensors", "^The weights in .*checkpoint-20 cannot be loaded.*checkpoint index"),
        ("adapter_model.safetensors", r"^The adapter \(LoRA or .*; no other weights .*checkpoint-20 cannot be loaded"),
    ],
)
def test_of_what_cannot_be_loaded_is_said_what_it_is(tmp_path, name, said):
    """transformers looks for an index of shards where the weights are none of a model's."""
    path = checkpoint(tmp_path)
    (path / "model.safetensors").rename(path / name)
    run = first_run(tmp_path, 1, OriginRefused("weights", "ValueError", "Can't find a checkpoint index in ..."))
    with pytest.raises(InputError, match=said):
        check_loaded(run, path)


@pytest.mark.parametrize("step", [0, 99999])
def test_a_checkpoint_of_the_end_shows_nothing(tmp_path, step):
    with pytest.raises(InputError, match="trains no step") as error:
        check_loaded(first_run(tmp_path, 1, TrainEnd(step), code=0), checkpoint(tmp_path))
    assert "earlier checkpoint" in error.value.advice


@pytest.mark.parametrize("before", [0, 20])
def test_weights_that_broke_earlier_are_broken_since_then(tmp_path, before):
    """A script may go on for some steps with weights that are NaN; from a checkpoint, too."""
    run = first_run(tmp_path, before + 9, NonFiniteParameters(before + 5, "l.weight"), code=0, before=before)
    assert run.seen.steps == 8 and run.shown.step == 5 and run.shown.step_of_training == before + 5


def test_a_training_that_ends_before_the_failing_step_says_nothing(tmp_path):
    run = first_run(tmp_path, 1, TooShort(361, 401, {"max_steps": -1}), TrainEnd(361), code=0)
    assert run.seen.died.kind == "invalid" and "step 361 of at least 401 (max_steps=-1)" in run.seen.message


# ------------------------------------------------------------------------------------------------ which checkpoint


COSTS = Costs(trials=10, pace=1.0, start=6.0)
INTAKE = Intake(1, 1, 1)
PLANNED = PlannedSteps(None, INTAKE)


def origins(run: Run, costs: Costs = COSTS, base: Origin | None = None, **more: object) -> Origins:
    """Where trials could begin after this first run; `more` of its study."""
    told = {"note": lambda text: None, "options": Options(), "listener": Listener(), **more}
    trials = more.get("trials") or SimpleNamespace(origin=base)
    return Origins(SimpleNamespace(**{**told, "trials": trials}), run, costs)


def steps_of(found: Iterable[Origin | None]) -> list[int]:
    return [0 if one is None else one.step for one in found]


def saved(*steps: int) -> list[CheckpointSaved]:
    """Checkpoints of these steps, all of which were kept."""
    return [
        CheckpointSaved(step, f"/s/checkpoint-{step}", 0.1, [one for one in steps if one <= step], INTAKE)
        for step in steps
    ]


@pytest.mark.parametrize(
    ("failing", "kept", "pace", "start", "steps"),
    [
        # The latest is tried first, then twice as far back.
        (1500, (2, 8, 64, 512, 1024, 1400, 1450, 1484), 1.0, 6.0, [1484, 1450, 1400, 1024, 512, 0]),
        (1500, (1485, 1490, 1499), 1.0, 6.0, [0]),  # by then the weights may be beyond help
        (1500, (1000, 1480, 1483, 1484, 1496), 1.0, 6.0, [1484, 1000, 0]),
        (1500, (), 1.0, 6.0, [0]),
        # Where that spares time.
        (206, (2, 177), 0.028, 6.0, [177, 2, 0]),  # late_collapse on an idle machine
        (40, (20, 24), 0.01, 6.0, [0]),  # a whole prefix takes a second
        (100, (50, 80), 0.01, 6.0, [80, 0]),  # to make nearer ones than 50 would take too long
        (100, (50, 80), 0.01, 0.5, [80, 50, 0]),
        (100, (50, 80), 1.0, 1200.0, [0]),  # a large model, and to look in vain would take twenty minutes
        (100, (2,), 0.05, 6.0, [2, 0]),  # where nearer ones are made
        (17, (1,), 10.0, 60.0, [0]),
    ],
)
def test_which_checkpoints_are_tried_in_which_order(tmp_path, failing, kept, pace, start, steps):
    run = first_run(tmp_path, failing, *saved(*kept), pace=pace)
    assert steps_of(origins(run, Costs(10, pace, start)).saved()) == steps


@pytest.mark.parametrize(
    ("failing", "intake", "step"),
    [
        (300, (1, 1, 1), 296),
        (300, (4, 4, 1), 296),
        (302, (4, 8, 2), 296),  # four steps share completions
        (302, (4, 2, 4), 298),
        (4, (1, 1, 1), None),  # its data is that of step 0
    ],
)
def test_the_data_alone_is_that_of_shortly_before(tmp_path, failing, intake, step):
    run = first_run(tmp_path, failing, PlannedSteps(1000, Intake(*intake)), pace=5.0)
    found = list(origins(run, Costs(10, 5.0, 6.0)).by_data())
    assert [(one.checkpoint, one.step, one.draw) for one in found] == [(None, step, 0), (None, step, 1)] * bool(step)


@pytest.mark.parametrize(
    ("failing", "trials", "pace", "start", "runs"),
    [
        (300, 10, 0.03, 6.0, 2),
        (20, 10, 0.03, 6.0, 0),
        (8, 10, 10.0, 60.0, 2),
        (8, 10, 10.0, 600.0, 0),
        (300, 3, 0.03, 6.0, 0),  # as many as prove the answer from step 0
    ],
)
def test_the_data_alone_is_tried_where_that_may_spare_time(tmp_path, failing, trials, pace, start, runs):
    run = first_run(tmp_path, failing, PLANNED, pace=pace)
    assert len(list(origins(run, Costs(trials, pace, start)).by_data())) == runs


def test_of_what_ends_no_run_the_data_alone_is_not_asked(tmp_path):
    run = first_run(tmp_path, 300, PLANNED, TrainEnd(299, "horizon"), code=0)
    assert not list(origins(run).by_data())


@pytest.mark.parametrize(
    ("good", "said"),
    [
        (Outcome.PASS, "It fails with {} Trials begin at the data of step 296."),
        (Outcome.FAIL, "Your configuration and the good one both fail with {} No setting that differs between them "
         "does it."),
    ],
)  # fmt: skip
def test_what_does_it_is_said_of_both_configurations(tmp_path, good, said):
    run, notes = first_run(tmp_path, 300), []
    outcomes = {run.folder: Outcome.FAIL, "good": good}
    study = SimpleNamespace(
        note=notes.append, outcome_of_good=lambda one: outcomes[one.folder],
    )  # fmt: skip
    _say_what_does_it(study, Origin(None, 296), run, SimpleNamespace(folder="good"))
    does = "it is that data, or what else comes with that step, not the training before."
    assert notes == [said.format(f"the weights of step 0 and the data of step 300: {does}")]


@pytest.mark.parametrize("theirs", [False, True])
def test_an_origin_that_step_0_contradicts_is_given_up(tmp_path, theirs):
    """So that trials begin earlier from now on; where the first run began there is nothing earlier."""
    resumed = [Resumed(40, "/run/checkpoint-40")] if theirs else []
    run = first_run(tmp_path, 1500, *resumed, *saved(512, 1400, 1484), before=40 if theirs else 0)
    runner = Runner(tmp_path, SimpleNamespace(varied=()), lambda question: run, Origin("/s/1484", 1484))
    study = study_of(tmp_path, runner)
    study.made(Plan("proof-1", {}, 8))
    study.store.vary([Factor("beta", 0.0, 0.1)])
    study.store.settle({})
    assert give_up_origin(study, run)
    study.store.vary([Factor("beta", 0.0, 0.1), Factor("bf16", False, True)])
    study.store.settle({})  # another good side may train from earlier on
    begun = runner.origin
    assert (begun and begun.checkpoint) == ("/run/checkpoint-40" if theirs else None)
    assert study.state.rejected == [Rejected(1484, False, 1)] and read_state(study.folder) == study.state
    left = [one for one in Origins(study, run, COSTS).saved() if one is begun or not is_given_up(study, one)]
    assert steps_of(left) == [1400, 512, begun.step if begun else 0]
    if begun is not None:
        assert not give_up_origin(study, run) and runner.origin == begun
        assert len(study.state.rejected) == 1


def test_a_horizon_is_counted_from_where_trials_begin():
    """A trial that failed counts steps of its own."""
    runner = Trials(SimpleNamespace(folder=None))
    for step, horizon in ((6, 8), (14, 28)):
        runner.horizon, runner.origin = 8, Origin(None, 296)
        told = {"folder": "7", "observation": {"before": 1184}, "horizon": 100}
        runner.recall([TrialResult(Outcome.FAIL, "died", step=step, attributes=told)])
        assert runner.horizon == horizon


def test_after_a_checkpoint_of_the_user_later_ones_are_tried(tmp_path):
    """With the data alone first; the user's own is the last."""
    theirs = Origin("/run/checkpoint-1000", 1000)
    run = first_run(tmp_path, 1500, Resumed(1000, theirs.checkpoint, INTAKE), PLANNED, *saved(1400, 1484), before=1000)
    assert run.shown.step == 500 and run.shown.step_of_training == 1500
    found = list(origins(run, base=theirs).saved())
    assert steps_of(found) == [1484, 1400, 1000] and found[-1] is theirs
    assert steps_of(origins(run, base=theirs).by_data()) == [1496, 1496]
    assert not list(origins(run).by_data()), "a script that goes on by itself has other first weights"


@pytest.mark.parametrize(
    ("kept", "nearer", "steps"),
    [
        ((512, 1100), (1436, 1468, 1484), [1484, 1468, 1436, 1100, 1484, 1468, 1436, 512, 0]),
        ((1100,), (1484, 1496), [1484, 1100, 0]),  # a failure that comes later would not show from 1496
        ((1480,), (1484,), [1480, 0]),  # near enough
        ((1100,), None, [1100, 0]),  # it does not fail again
    ],
)
def test_a_nearer_one_is_saved_on_the_way_from_one_that_lies_far_before(tmp_path, kept, nearer, steps):
    run = first_run(tmp_path, 1500, *saved(*kept))
    kept_then = [CheckpointSaved(step, "", 0.1, list(nearer), INTAKE) for step in nearer or ()]
    again = None if nearer is None else first_run(tmp_path / "again", 1500, *kept_then)
    begun, orders = [], []
    baselines = SimpleNamespace(begin_at=begun.append, fails_once=lambda told: (orders.append(told), again)[1])
    trials = SimpleNamespace(begin_at=lambda origin, horizon: begun.append(horizon), origin=None)
    found = steps_of(origins(run, baselines=baselines, trials=trials, folder=tmp_path).nearest_first())
    assert found == steps and {told.before for told in orders} <= {1500}
    assert bool(begun) == (kept[-1] < 1500 - FAR)


@pytest.mark.parametrize(("failed", "step", "horizon"), [(1500, 1484, 32), (1500, 1492, 24), (1500, 1400, 200)])
def test_trials_go_on_after_the_failing_step_in_proportion(tmp_path, failed, step, horizon):
    told = []
    trials = SimpleNamespace(begin_at=lambda origin, horizon: told.append(horizon), origin=None)
    baselines = SimpleNamespace(begin_at=lambda origin: None)
    origins(first_run(tmp_path, failed), trials=trials, baselines=baselines).begin_at(Origin("c", step))
    assert told == [horizon]


def test_what_takes_long_to_load_is_not_loaded_for_a_few_steps():
    costs = Costs(trials=10, pace=1.0, start=60.0)
    assert costs.spared(earlier=112, later=12) == 700.0 and costs.spared(112, 12, loading=100.0) == 0.0


def test_they_are_removed_at_the_end_but_for_what_recommend_begins_at(tmp_path):
    first, near = (tmp_path / "trials" / run / "checkpoints" for run in ("0", "bad-config-from-4-1"))
    for path in (first / "checkpoint-4", first / "checkpoint-8", near / "checkpoint-9"):
        path.mkdir(parents=True)
        (path / "model.safetensors").touch()
    (first / "next").touch()
    remove_checkpoints(tmp_path, Origin(str(first / "checkpoint-4"), 4))
    assert [path.name for path in first.iterdir()] == ["checkpoint-4"] and not near.exists()
    remove_checkpoints(tmp_path, None)
    assert not first.exists() and first.parent.exists()
