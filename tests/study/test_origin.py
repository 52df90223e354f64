"""Trials that begin at a checkpoint of the user's run."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import toys
from tools import slow

from bisect_cfg.common.configuration import Outcome
from bisect_cfg.errors import InputError
from bisect_cfg.options import Options
from bisect_cfg.probe.protocol import Origin, OriginRefused
from bisect_cfg.report.events import Listener
from bisect_cfg.runner.checkpoints import in_words, read_checkpoint, saved_in_parts
from bisect_cfg.runner.observe import observe
from bisect_cfg.runner.plan import Plan
from bisect_cfg.runner.runs import Run
from bisect_cfg.runner.traces import Traces
from bisect_cfg.runner.trials import Trials
from bisect_cfg.runner.verdict import Failure, Standard, judge
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
    path = toys.write(real_tool.folder, SCRIPT)
    (real_tool.folder / "failed.log").write_text(" 22%|##  | 90/400 [00:10<00:20, 30.00it/s]\nRuntimeError: planted\n")
    options = ("--no-where", "--no-recommend", "--prove", "from-checkpoint", *TWO, path.name)
    said = real_tool("bisect", "--study", "s", "--log", "failed.log", *options, seconds=600)
    assert said.status == 0, said.all
    result = json.loads((real_tool.folder / "s/result.json").read_text())
    (cause,) = result["causes"]
    assert sorted(cause["parameters"]) == ["temperature", "weight_decay"] and result["failure"]["step"] == 91
    begun = result["origin"]["step"]
    assert 91 - 16 <= begun <= 91 - 4
    told = " ".join(said.out.split())
    assert "and show the same metrics there" in told
    assert "of step 91 it does not fail (2 runs): the training before contributes to it" in told
    checkpoint = Path(result["origin"]["checkpoint"])
    assert checkpoint.is_dir()  # `recommend` is still to come
    real_tool.assert_nothing_left()
    if not theirs:
        return

    said = real_tool("bisect", "--study", "theirs", "--from-checkpoint", checkpoint, *options, seconds=600)
    assert said.status == 0, said.all
    result = json.loads((real_tool.folder / "theirs/result.json").read_text())
    (cause,) = result["causes"]
    assert sorted(cause["parameters"]) == ["temperature", "weight_decay"] and result["failure"]["step"] == 91
    assert result["origin"]["step"] == begun and f"from step {begun} of your run on" in " ".join(said.out.split())
    for run in (real_tool.folder / "theirs/trials").iterdir():  # none of them has trained the steps before
        assert all(json.loads(line)["step"] > begun for line in (run / "metrics.jsonl").read_text().splitlines())
    assert checkpoint.is_dir()
    real_tool.assert_nothing_left()


MARKED = f"""
    import time, toy
    from transformers import TrainerCallback
    from trl import GRPOConfig

    args = GRPOConfig(output_dir="out", learning_rate=1e-5, max_steps=400, logging_steps=1, temperature=1.2,
                      weight_decay=0.1, max_grad_norm=0.5, {toys.settings()})

    {SLOW_AT_FIRST.replace("FAST_FROM", "75")}

    class Plant(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            weight = model.model.norm.weight.data
            if state.global_step == 65 and args.weight_decay > 0.05:
                weight[0] = 5.0
            if state.global_step >= 90 and args.temperature > 1.1 and weight[0] > 4:
                raise RuntimeError("planted")

    toy.trainer(args, callbacks=[Slow(), Plant()]).train()
"""
"""The weights of every checkpoint after step 65 have what one of the two settings does to them."""


@pytest.mark.slow
@pytest.mark.training
def test_what_step_0_contradicts_is_searched_for_again_from_earlier(real_tool):
    """Also in a study that is resumed: nothing is run again."""
    path = toys.write(real_tool.folder, MARKED)
    (real_tool.folder / "failed.log").write_text(" 22%|##  | 90/400 [00:10<00:20, 30.00it/s]\nRuntimeError: planted\n")
    options = ("--study", "s", "--log", "failed.log", "--no-where", "--no-recommend", "--prove", "from-start", *TWO)
    made = []
    for _ in range(2):
        said = real_tool("bisect", *options, path.name, seconds=600)
        assert said.status == 0, said.all
        result = json.loads((real_tool.folder / "s/result.json").read_text())
        (cause,) = result["causes"]
        assert sorted(cause["parameters"]) == ["temperature", "weight_decay"] and result["complete"]
        assert (result["origin"] or {"step": 0})["step"] < 65
        told = " ".join(said.out.split())
        assert "is not so from step 0: searched for from earlier" in told
        made.append(sorted((real_tool.folder / "s/trials").iterdir()))
    assert made[0] == made[1]


ROW = f"""
    import time, toy
    from transformers import TrainerCallback
    from trl import GRPOConfig

    args = GRPOConfig(output_dir="out", max_steps=400, temperature=1.2, weight_decay=0.1, gradient_accumulation_steps=2,
                      **dict({toys.settings()}))

    {SLOW_AT_FIRST.replace("FAST_FROM", "50")}

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
    """Its place in TRL's order is that of its sampler."""
    from trl.trainer.utils import RepeatSampler

    order = list(RepeatSampler(range(400), mini_repeat_count=4, batch_size=1, seed=42))[::4]
    row, step = order[2 * 59], 60
    path = toys.write(real_tool.folder, ROW.replace("BAD", str(row)))
    options = ("--study", "s", "--isolate-data", "--no-where", "--prove", "from-checkpoint", *TWO)
    said = real_tool("bisect", *options, "--no-recommend", path.name, seconds=600)
    assert said.status == 0, said.all
    result = json.loads((real_tool.folder / "s/result.json").read_text())
    (cause,) = result["causes"]
    assert list(cause["parameters"]) == ["temperature"] and result["failure"]["step"] == step
    assert result["origin"]["kind"] == "data" and result["rows"]["guilty"] == [[row]]
    assert f"row {row}" in said.out and "so the data of that step does it" in " ".join(said.out.split())
    for run in (real_tool.folder / "s/trials").iterdir():
        taken = (run / "metrics.jsonl").read_text().splitlines() if run.name != "0" else ()
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
        said = real_tool("bisect", str(study), "--study", name, "--isolate-data", "--no-recommend", *log, seconds=1200)
        assert said.status == 0, said.all
        folder = real_tool.folder / name
        result = json.loads((folder / "result.json").read_text())
        assert [sorted(cause["parameters"]) for cause in result["causes"]] == expected["causes"]
        assert result["rows"]["guilty"] == expected["rows"] and result["complete"] is expected["complete"]
        for part in ("failure", "origin"):
            assert {key: result[part][key] for key in expected[part]} == expected[part]
        assert len((folder / "trials/0/metrics.jsonl").read_text().splitlines()) == (3 if log else 299)


def a_checkpoint(folder: Path) -> Path:
    path = folder / "out" / "checkpoint-20"
    path.mkdir(parents=True)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0000")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 20, "log_history": []}))
    return path


def test_what_it_lacks_is_known(tmp_path):
    found = read_checkpoint(a_checkpoint(tmp_path))
    assert found.step == 20 and found.lacks == ("the optimizer's state", "the random numbers' state")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: shutil.rmtree(path), "does not exist"),
        (lambda path: (shutil.rmtree(path), path.touch()), "is not a folder"),
        (lambda path: (path / "trainer_state.json").unlink(), "is not a checkpoint"),
        (lambda path: (path / "trainer_state.json").write_text('{"global'), "damaged"),
        (lambda path: (path / "trainer_state.json").write_text("{}"), "damaged"),
        (lambda path: (path / "trainer_state.json").write_text("[" * 100_000), "damaged"),
        (lambda path: (path / "model.safetensors").unlink(), "holds no weights"),
        (lambda path: (path / "model.safetensors").write_bytes(b"12"), "cut short"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 9), "cut short"),
        (lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1]), "cut"),
        (lambda path: (path / "optimizer.pt").write_bytes(b"PK\3\4 and so on"), "cut short"),
    ],
)
def test_what_is_none_is_refused(tmp_path, change, said):
    path = a_checkpoint(tmp_path)
    change(path)
    with pytest.raises(InputError, match=said) as error:
        read_checkpoint(path)
    assert error.value.advice


def in_parts(folder: Path, form: str) -> Path:
    """As FSDP with its default `SHARDED_STATE_DICT` (accelerate 1.15, `save_fsdp_model`) or DeepSpeed's
    `save_checkpoint` leave one."""
    path = a_checkpoint(folder)
    (path / "model.safetensors").unlink()
    files = {
        "FSDP": (
            "pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/.metadata",
            "optimizer_0/__0_0.distcp",
        ),
        "DeepSpeed": (
            "global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step20/mp_rank_00_model_states.pt",
        ),
    }  # fmt: skip
    for name in files[form]:
        (path / name).parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("data", "0")
    if form == "DeepSpeed":
        (path / "latest").write_text("global_step20")
    for name in ("scheduler.pt", "rng_state_0.pth"):
        shutil.copy(path / files[form][-1], path / name)
    return path


@pytest.mark.parametrize(
    ("form", "lost"),
    [
        ("FSDP", "pytorch_model_fsdp_0/.metadata"),
        ("DeepSpeed", "latest"),
        ("DeepSpeed", "global_step20"),
        ("DeepSpeed", "global_step20/mp_rank_00_model_states.pt"),
    ],
)
def test_what_was_saved_in_parts_is_taken_if_it_is_whole(tmp_path, form, lost):
    path = in_parts(tmp_path, form)
    assert read_checkpoint(path).lacks == () and saved_in_parts(path) == form
    if lost.endswith(".pt"):
        (path / lost).write_bytes((path / lost).read_bytes()[:-9])
    else:
        (path / lost).rename(path / "lost")
    with pytest.raises(InputError, match=f"{lost}" if lost != "global_step20" else "holds no weights|global_step20"):
        read_checkpoint(path)


@pytest.mark.parametrize("form", ["FSDP", "DeepSpeed"])
def test_what_was_saved_in_parts_is_refused_without_what_saved_it(tmp_path, form):
    told = {"what": "weights", "type": "ValueError", "message": "Can't find a valid checkpoint at ..."}
    path = in_parts(tmp_path / "saved", form)
    for name, in_force, said in (
        ("without", "MULTI_GPU", f"checkpoint-20 was saved in parts, by a training under {form}; yours runs without"),
        ("under", form.upper(), "The weights in .* cannot be loaded .*: ValueError: Can't find a valid"),
    ):
        begun = {"event": "train_begin", "time": 0.0, "in_force": {"distributed_type": in_force}}
        run = first_run(tmp_path / name, 1, [begun, {"event": "origin_refused", "time": 0.0, **told}])
        with pytest.raises(InputError, match=said):
            check_loaded(run, path)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "Error(s) in loading state_dict for Qwen2ForCausalLM:\n\tsize mismatch for lm_head.weight: copying a param "
            "with shape torch.Size([60, 16]) from checkpoint, the shape in current model is torch.Size([60, 32]).",
            "lm_head.weight has the shape [60, 16] there, and [60, 32] in this training",
        ),
        ('Missing key(s) in state_dict: "a.b", "c".', "a.b of this training is not in it"),
        ('Unexpected key(s) in state_dict: "a.b".', "a.b is in it, and not in this training"),
        (
            "loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            "it is of another number of weights",
        ),
        ("loaded state dict has a different number of parameter groups", "its weights are in other groups"),
        ("something\nelse", "RuntimeError: something else"),
    ],
)
def test_why_it_cannot_be_loaded_is_said_in_words(message, words):
    assert in_words(OriginRefused("weights", "RuntimeError", message)) == words


def test_of_what_cannot_be_loaded_is_said_what_it_is(tmp_path):
    """transformers looks for an index of shards where the weights are none of a model's."""
    path = a_checkpoint(tmp_path)
    told = {"what": "weights", "type": "ValueError", "message": "Can't find a checkpoint index in ..."}
    run = first_run(tmp_path, 1, [{"event": "origin_refused", "time": 0.0, **told}])
    with pytest.raises(InputError, match="^The weights in .*checkpoint-20 cannot be loaded.*checkpoint index"):
        check_loaded(run, path)
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    assert read_checkpoint(path).step == 20
    with pytest.raises(
        InputError, match=r"^The adapter \(LoRA or .*; no other weights .*checkpoint-20 cannot be loaded"
    ):
        check_loaded(run, path)


@pytest.mark.parametrize("step", [0, 99999])
def test_a_checkpoint_of_the_end_shows_nothing(tmp_path, step):
    run = first_run(tmp_path, 1, [{"event": "train_end", "time": 0.0, "steps": step}], exit_code=0)
    with pytest.raises(InputError, match="trains no step") as error:
        check_loaded(run, a_checkpoint(tmp_path))
    assert "earlier checkpoint" in error.value.advice


def test_weights_that_broke_earlier_are_broken_since_then(tmp_path):
    """A script may go on for some steps with weights that are NaN; from a checkpoint, too."""
    for before in (0, 20):
        told = {"event": "non_finite_parameters", "time": 0.0, "step": before + 5, "parameter": "l.weight"}
        run = first_run(tmp_path / str(before), before + 9, [told], exit_code=0, before=before)
        assert run.seen.steps == 8 and run.shown.step == 5 and run.shown.step_of_training == before + 5


def test_a_folder_of_several_names_the_last(tmp_path):
    path = a_checkpoint(tmp_path)
    shutil.copytree(path, path.with_name("checkpoint-100"))
    with pytest.raises(InputError, match="checkpoint-20, checkpoint-100") as error:
        read_checkpoint(path.parent)
    assert error.value.advice.endswith("checkpoint-100")


# ------------------------------------------------------------------------------------------------ which checkpoint


COSTS = Costs(trials=10, pace=1.0, start=6.0)


def origins(run: Run, costs: Costs = COSTS, base: Origin | None = None, **more: object) -> Origins:
    """Where trials could begin after this first run; `more` of its study."""
    told = {"note": lambda text: None, "options": Options(), "listener": Listener(), **more}
    trials = more.get("trials") or SimpleNamespace(origin=base)
    return Origins(SimpleNamespace(**{**told, "trials": trials}), run, costs)


def steps_of(found: Iterable[Origin | None]) -> list[int]:
    return [0 if one is None else one.step for one in found]


def saved(step: int, *kept: int) -> dict:
    return {
        "event": "checkpoint", "time": 1.0, "step": step, "path": f"/s/checkpoint-{step}", "seconds": 0.1,
        "kept": list(kept), "intake": {"prompts": 1, "batches": 1, "accumulated": 1},
    }  # fmt: skip


@pytest.fixture
def begun_at(tmp_path):
    """The steps at which trials could begin, for a first run that failed at a step and saved these checkpoints."""

    def found(failing: int, kept: tuple[int, ...], pace: float = 1.0, start: float = 6.0) -> list[int]:
        run = first_run(tmp_path, failing, [saved(step, *[one for one in kept if one <= step]) for step in kept], pace)
        return steps_of(origins(run, Costs(10, pace, start)).saved())

    return found


def first_run(
    tmp_path: Path, failing: int, events: list[dict], pace: float = 1.0, exit_code: int = 1, before: int = 0
) -> Run:
    folder = tmp_path / "trials" / "0"
    folder.mkdir(parents=True)
    if not any(event["event"] == "train_begin" for event in events):
        events = [{"event": "train_begin", "time": 0.0}, *events]
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events))
    rows = ({"step": step, "time": step * pace, "loss": 0.1} for step in range(before + 1, failing))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    traces = Traces.of(folder)
    traces.read()
    return Run(observe(traces, folder, Ending(exit_code, None, failing * pace)), traces, folder)


@pytest.mark.parametrize(
    ("failing", "kept", "steps"),
    [
        (1500, (2, 8, 64, 512, 1024, 1400, 1450, 1484), [1484, 1450, 1400, 1024, 512, 0]),
        (1500, (1485, 1490, 1499), [0]),  # by then the weights may be beyond help
        (1500, (1000, 1480, 1483, 1484, 1496), [1484, 1000, 0]),
        (1500, (), [0]),
    ],
)
def test_the_latest_is_tried_first_then_twice_as_far_back(begun_at, failing, kept, steps):
    assert begun_at(failing, kept) == steps


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
    intake = dict(zip(("prompts", "batches", "accumulated"), intake, strict=True))
    planned = {"event": "schedule", "time": 0.0, "max_steps": 1000, "intake": intake}
    found = list(origins(first_run(tmp_path, failing, [planned], pace=5.0), Costs(10, 5.0, 6.0)).by_data())
    assert [(one.checkpoint, one.step, one.draw) for one in found] == [(None, step, 0), (None, step, 1)] * bool(step)


@pytest.mark.parametrize(
    ("good", "who", "so"),
    [
        (Outcome.PASS, "It fails", "Trials begin at the data of step 296."),
        (
            Outcome.FAIL,
            "Your configuration and the good one both fail",
            "No setting that differs between them does it.",
        ),
    ],
)
def test_what_does_it_is_said_of_both_configurations(tmp_path, good, who, so):
    run, notes = first_run(tmp_path, 300, []), []
    outcomes = {run.folder: Outcome.FAIL, "good": good}
    outcome_of = lambda one: outcomes[one.folder]  # noqa: E731
    study = SimpleNamespace(
        note=notes.append, options=Options(), outcome_of=outcome_of, outcome_of_good=outcome_of, trials=None
    )
    _say_what_does_it(study, Origin(None, 296), run, [run], SimpleNamespace(folder="good"))
    does = "it is the data of that step, or what else comes with it, not the training before."
    assert notes == [f"{who} with the weights of step 0 and the data of step 300; so {does} {so}"]


def test_an_origin_that_step_0_contradicts_is_given_up(tmp_path):
    """So that trials begin earlier from now on; where the first run began there is nothing earlier."""
    events = [saved(step, *[one for one in (512, 1400, 1484) if one <= step]) for step in (512, 1400, 1484)]
    theirs = {"event": "resumed", "time": 0.0, "step": 40, "checkpoint": "/run/checkpoint-40"}
    for name, first, base in (("from 0", [], None), ("theirs", [theirs], "/run/checkpoint-40")):
        run = first_run(tmp_path / name, 1500, [*first, *events], before=40 if first else 0)
        runner = Runner(
            tmp_path / name, SimpleNamespace(varied=()), lambda question, run=run: run, Origin("/s/1484", 1484)
        )
        study = study_of(tmp_path / name, runner)
        study.made(Plan("proof-1", {}, 8))
        assert give_up_origin(study, run)
        begun = runner.origin
        assert (begun and begun.checkpoint) == base
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


def test_of_what_ends_no_run_the_data_alone_is_not_asked(tmp_path):
    planned = {"event": "schedule", "time": 0.0, "intake": {"prompts": 1, "batches": 1, "accumulated": 1}}
    ended = {"event": "train_end", "time": 1500.0, "steps": 299, "stopped": "horizon"}
    assert not list(origins(first_run(tmp_path, 300, [planned, ended], exit_code=0)).by_data())


def test_after_a_checkpoint_of_the_user_later_ones_are_tried(tmp_path):
    """With the data alone first; the user's own is the last."""
    theirs = Origin("/run/checkpoint-1000", 1000)
    intake = {"prompts": 1, "batches": 1, "accumulated": 1}
    events = [
        {"event": "resumed", "time": 0.0, "step": 1000, "checkpoint": theirs.checkpoint, "intake": intake},
        {"event": "schedule", "time": 0.0, "intake": intake},
        saved(1400, 1400),
        saved(1484, 1400, 1484),
    ]
    run = first_run(tmp_path, 1500, events, before=1000)
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
    events = [saved(step, *[one for one in kept if one <= step]) for step in kept]
    run = first_run(tmp_path, 1500, events)
    again = None if nearer is None else first_run(tmp_path / "again", 1500, [saved(step, *nearer) for step in nearer])
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
    origins(first_run(tmp_path, failed, []), trials=trials, baselines=baselines).begin_at(Origin("c", step))
    assert told == [horizon]


@pytest.mark.parametrize(
    ("failing", "kept", "pace", "start", "steps"),
    [
        (206, (2, 177), 0.028, 6.0, [177, 2, 0]),  # late_collapse on an idle machine
        (40, (20, 24), 0.01, 6.0, [0]),  # a whole prefix takes a second
        (100, (50, 80), 0.01, 6.0, [80, 0]),  # to make nearer ones than 50 would take too long
        (100, (50, 80), 0.01, 0.5, [80, 50, 0]),
        (100, (50, 80), 1.0, 1200.0, [0]),  # a large model, and to look in vain would take twenty minutes
        (100, (2,), 0.05, 6.0, [2, 0]),  # where nearer ones are made
        (17, (1,), 10.0, 60.0, [0]),
    ],
)
def test_trials_begin_at_a_checkpoint_where_that_spares_time(begun_at, failing, kept, pace, start, steps):
    assert begun_at(failing, kept, pace, start) == steps


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
    planned = {"event": "schedule", "time": 0.0, "intake": {"prompts": 1, "batches": 1, "accumulated": 1}}
    run = first_run(tmp_path, failing, [planned], pace)
    assert len(list(origins(run, Costs(trials, pace, start)).by_data())) == runs


def test_what_takes_long_to_load_is_not_loaded_for_a_few_steps():
    costs = Costs(trials=10, pace=1.0, start=60.0)
    assert costs.spared(earlier=112, later=12) == 700.0 and costs.spared(112, 12, loading=100.0) == 0.0


def test_a_training_that_ends_before_the_failing_step_says_nothing(tmp_path):
    rows = [
        {"event": "train_begin", "time": 0.0},
        {"event": "too_short", "time": 1.0, "step": 361, "wanted": 401, "settings": {"max_steps": -1}},
        {"event": "train_end", "time": 1.0, "steps": 361},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    traces = Traces.of(tmp_path)
    traces.read()
    seen = observe(traces, tmp_path, Ending(0, None, 1.0))
    assert judge(seen, traces.as_metrics, Standard(Failure(seen.died, asked="any"))).outcome is Outcome.UNRESOLVED
    assert "step 361 of at least 401 (max_steps=-1)" in seen.message


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
