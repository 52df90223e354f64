"""A training that begins at a checkpoint: the rows of the uninterrupted one, and the settings of the trial in force.

Real TRL: what is tested is what it does on `resume_from_checkpoint`."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from tools import slow

from bisect_cfg.probe.checkpoints import to_keep
from bisect_cfg.probe.protocol import (
    CheckpointOrders,
    CheckpointSaved,
    InstrumentOrders,
    Intake,
    NoCheckpoints,
    Origin,
    OriginRefused,
    Resumed,
    Update,
)

SCRIPT = f"""
    import json, sys, toy
    from transformers import TrainerCallback
    from trl import GRPOConfig

    told = json.loads(sys.argv[1])
    rows, adapter, path, saved = (told.pop(name, None) for name in ("rows", "adapter", "path", "saved"))
    path = path if told.get("beta") else None
    settings = dict({toys.settings(logging_steps=1, learning_rate=1e-2)})
    args = GRPOConfig(output_dir="out", **{{**settings, **told}})

    class Save(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == saved
            return control

        def on_step_begin(self, args, state, control, **kwargs):
            assert (state.save_steps, state.logging_steps) == (args.save_steps, args.logging_steps)
            group = dict(trainer.optimizer.param_groups[0], params=None)
            print("group", json.dumps(group, default=str), flush=True)

    parts = {{}}
    if adapter:
        from peft import LoraConfig, get_peft_model
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
        if adapter == "existing":
            path = get_peft_model(toy.model(), lora)
        else:
            parts["peft_config"] = lora
    trainer = toy.trainer(args, model=path, train_dataset=toy.data(rows or 64), callbacks=[Save()], **parts)
    trainer.train()
"""

VOLATILE = ("time", "step_time", "num_tokens_per_second", "gpu_peak_bytes")


def log(run) -> str:
    return (run.folder / "log.txt").read_text()


def kept(run):
    """Its rows, by the steps of the training."""
    before, rows = run.traces.before, run.traces.metrics.rows
    return [
        {**{name: value for name, value in row.items() if name not in VOLATILE}, "step": row["step"] + before}
        for row in rows
    ]


def rates(rows):
    return [row["learning_rate"] for row in rows]


class Checkpoint:
    """A whole run, and what it has saved after some step."""

    def __init__(self, warm, script, saved, **settings):
        self.warm, self.script, self.saved, self.settings = warm, script, saved, settings
        self.whole = warm.run(script, json.dumps({**settings, "saved": saved}), steps=None)
        assert self.whole.shown.signature is None, log(self.whole)[-2000:]
        (self.path,) = self.whole.folder.rglob(f"checkpoint-{saved}")
        self.rows = kept(self.whole)[saved:]

    def run(self, steps=None, intake=None, path=None, **changes):
        """From it, or from a changed copy at `path`, with other settings."""
        origin = Origin(str(path or self.path), self.saved, intake)
        return self.warm.run(self.script, json.dumps({**self.settings, **changes}), steps=steps, origin=origin)

    def refused(self, path) -> tuple[str, str]:
        """What of a changed copy could not be loaded, and the error."""
        run = self.run(path=path)
        told = run.traces.event(OriginRefused)
        assert (told is None) == (run.shown.signature is None), log(run)[-2000:]
        return ("", "") if told is None else (told.what, told.message)


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    return toys.write(tmp_path_factory.mktemp("origin"), SCRIPT)


@pytest.fixture(scope="module")
def saved_model(script, tmp_path_factory) -> str:
    """A folder with a model, which TRL loads again as the reference."""
    folder = tmp_path_factory.mktemp("model")
    saving = f"import toy; toy.saved_model({str(folder)!r})"
    subprocess.run([sys.executable, "-c", saving], cwd=script.parent, check=True)
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint_of(warm, script):
    """The checkpoint after a step of a run with these settings, made once."""
    return functools.cache(functools.partial(Checkpoint, warm, script))


@pytest.fixture
def checkpoint(checkpoint_of):
    return checkpoint_of(4, max_steps=8)


@pytest.mark.parametrize(
    ("saved", "settings"),
    [
        (4, {"max_steps": 8}),
        slow(11, {"rows": 4, "max_steps": 15}),
        slow(8, {"rows": 4, "max_steps": 12}),
        slow(4, {"num_iterations": 2, "rows": 3, "max_steps": 14}),
        (14, {"num_iterations": 2, "rows": 3, "max_steps": 18}),
        slow(4, {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_steps": 8}),
        slow(4, {"beta": 0.1, "max_steps": 8}),
        slow(4, {"lr_scheduler_type": "cosine", "warmup_steps": 6, "max_steps": 10}),
        (4, {"adapter": True, "beta": 0.1, "max_steps": 8}),
        slow(4, {"adapter": "existing", "beta": 0.1, "max_steps": 8}),
    ],
)
def test_with_nothing_changed_the_rows_are_those_of_the_whole_run(checkpoint_of, saved_model, saved, settings):
    checkpoint = checkpoint_of(saved, path=saved_model, **settings)
    again = checkpoint.run()
    assert again.shown.signature is None, log(again)[-2000:]
    assert kept(again) == checkpoint.rows


@pytest.mark.parametrize(
    ("changes", "in_force"),
    [
        ({"learning_rate": 3e-3}, {"initial_lr": 3e-3}),
        slow({"weight_decay": 0.3}, {"weight_decay": 0.3}),
        ({"adam_beta2": 0.95}, {"betas": [0.9, 0.95]}),
        slow({"adam_epsilon": 1e-4}, {"eps": 1e-4}),
        ({"lr_scheduler_type": "cosine"}, {}),
        slow({"max_steps": 16}, {}),
        slow({"warmup_steps": 7, "learning_rate": 1e-3}, {"initial_lr": 1e-3}),
    ],
)
def test_a_changed_setting_is_in_force_as_if_it_had_been_from_the_start(checkpoint, warm, script, changes, in_force):
    again = checkpoint.run(steps=4, **changes)
    fresh = warm.run(script, json.dumps({**checkpoint.settings, **changes}), steps=8)
    assert rates(kept(again)) == rates(kept(fresh))[4:] and len(kept(again)) == 4
    assert kept(again) != checkpoint.rows
    groups = list(map(json.loads, re.findall(r"group (\{.*\})", log(again))))  # behind a progress bar
    assert len(groups) >= 4 and all({name: group[name] for name in in_force} == in_force for group in groups)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"gradient_accumulation_steps": 2}, 6),
        slow({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}, 6),
        slow({"num_iterations": 4}, 4),  # where new completions are made
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 1}, 6),
        ({"max_steps": 5}, 3),  # as late as its end allows
    ],
)
def test_it_begins_at_the_step_of_the_checkpoint_whatever_a_step_takes(checkpoint_of, changes, step):
    checkpoint = checkpoint_of(6, max_steps=8)
    again = checkpoint.run(steps=2, intake=Intake(1, 1, 1), **{"max_steps": 30, **changes})
    assert again.traces.event(Resumed).step == step, log(again)[-2000:]
    assert [row["step"] for row in kept(again)] == [step + 1, step + 2]


def test_what_it_does_every_so_many_steps_is_as_the_trial_says(checkpoint):
    again = checkpoint.run(save_steps=3)
    assert kept(again) == checkpoint.rows and again.traces.event(Resumed).intake == Intake(1, 1, 1)


def test_another_seed_begins_at_that_seed(checkpoint, warm, script):
    told, origin = json.dumps(checkpoint.settings), Origin(str(checkpoint.path), 4)
    first, second, third = (
        kept(warm.run(script, told, steps=2, origin=origin, overrides={"args.seed": seed})) for seed in (7, 8, 7)
    )
    assert first == third != second


def test_the_instruments_go_along(checkpoint, warm, script):
    """Both listen to the optimizer's steps."""
    told, kind = json.dumps(checkpoint.settings), InstrumentOrders("non-finite", from_step=1)
    again = warm.run(script, told, steps=2, origin=Origin(str(checkpoint.path), 4), instruments=kind)
    assert again.shown.signature is None, log(again)[-2000:]
    assert [one.step for one in again.traces.all(Update)] == [5, 6]


# ------------------------------------------------------------------------------------- what a checkpoint may hold


def test_without_the_optimizers_state_the_rate_is_that_of_the_step(checkpoint_of, tmp_path):
    """`save_only_model`: a schedule that began anew would begin with its warmup, and hide a failure."""
    checkpoint = checkpoint_of(4, max_steps=8, warmup_steps=3)
    path = shutil.copytree(checkpoint.path, tmp_path / "checkpoint-4")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).unlink()
    found = rates(kept(checkpoint.run(path=path)))
    assert found == rates(checkpoint.rows) and len(set(found)) == 4
    (path / "model.safetensors").unlink()
    for form in ("pytorch_model_fsdp_0", "global_step4"):  # what only FSDP and DeepSpeed load
        (path / form).mkdir()
        assert checkpoint.refused(path)[0] == "weights"
        (path / form).rmdir()


def test_a_state_of_another_version_is_taken_as_far_as_it_is_known(checkpoint, tmp_path):
    path = shutil.copytree(checkpoint.path, tmp_path / "checkpoint-4")
    state = json.loads((path / "trainer_state.json").read_text())
    (path / "trainer_state.json").write_text(json.dumps({**state, "of_tomorrow": 1}))
    assert kept(checkpoint.run(path=path)) == checkpoint.rows


def test_what_belongs_to_another_model_or_optimizer_is_no_failure_of_the_training(checkpoint):
    for changes in ({"adapter": True}, {"optim": "rmsprop"}):  # the second is loaded, and the first step fails
        again = checkpoint.run(**changes)
        told = again.traces.event(OriginRefused)
        assert told is not None and not again.traces.metrics.rows, log(again)[-2000:]
        assert not again.seen.invalid
    assert told.what == "optimizer" and checkpoint.run(optim="adamw_torch").shown.signature is None


def test_what_torch_would_take_without_a_word_is_refused(checkpoint_of, checkpoint, tmp_path):
    """Moments of other weights, weights under other names, and NaN in them: the failure is there already."""
    import torch
    from safetensors.torch import load_file, save_file

    path = shutil.copytree(checkpoint.path, tmp_path / "checkpoint-4")
    whole, model = torch.load(path / "optimizer.pt", weights_only=True), path / "model.safetensors"
    whole["state"][0]["exp_avg"] = whole["state"][0]["exp_avg"].reshape(-1)[:3].clone()
    torch.save(whole, path / "optimizer.pt")
    what, message = checkpoint.refused(path)
    assert what == "optimizer" and "exp_avg of shape [3]" in message
    shutil.copy(checkpoint.path / "optimizer.pt", path)
    weights = load_file(model)
    first = next(iter(weights))
    for changed, words in (
        ({f"transformer.{name}": weight for name, weight in weights.items()}, "are not in it"),
        ({**weights, first: weights[first] * float("nan")}, f"{first} holds NaN"),
        (weights, ""),
    ):
        save_file(changed, model, {"format": "pt"})
        what, message = checkpoint.refused(path)
        assert what == ("weights" if words else "") and words in message

    adapted = checkpoint_of(4, max_steps=8, adapter=True)
    path = shutil.copytree(adapted.path, tmp_path / "adapted")
    weights = load_file(path / "adapter_model.safetensors")
    changed = {f"_orig_mod.{name}": weight for name, weight in weights.items()}
    save_file(changed, path / "adapter_model.safetensors", {"format": "pt"})
    what, message = adapted.refused(path)
    assert what == "weights" and "are not in it" in message


# ----------------------------------------------------------------------------------------------- our own


ROOM = CheckpointOrders(1 << 30)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60, unique=True), st.integers(1, 30))
def test_the_last_ones_are_kept_and_those_shortly_before_the_failure(steps, most):
    steps = sorted(steps)
    shortly = steps[len(steps) // 2 :][:3]
    assert set(shortly[-most:]) <= set(to_keep(steps, most, shortly)) and len(to_keep(steps, most, shortly)) <= most
    found = to_keep(steps, most)
    assert found == sorted(set(found)) and set(found) <= set(steps) and len(found) <= most
    assert set(steps[-min(most, 3) :]) <= set(found)


@pytest.mark.parametrize(("spacing", "saves"), [(1, 37), (1, 3000), (7, 500), (40, 1000)])
def test_however_late_it_is_each_kept_one_is_at_most_twice_as_far_back_as_the_one_after(spacing, saves):
    kept = []
    for step in range(spacing, spacing * saves, spacing):
        kept = to_keep([*kept, step], 30)
        backs = sorted(step - one for one in kept[:-1])
        assert not backs or backs[0] == spacing
        assert all(further <= 2 * back for back, further in zip(backs, backs[1:], strict=False))
    assert len(kept) <= 3 + 2 * saves.bit_length()


@pytest.mark.parametrize(
    "settings",
    [
        slow({"rows": 64}),
        {"rows": 40, "num_iterations": 2, "gradient_accumulation_steps": 2},
        slow({"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 3, "ref_model_mixup_alpha": 0.5}),
        slow({"adapter": True}),
    ],
)
def test_rows_are_the_same_with_and_without_and_from_there(warm, script, saved_model, settings):
    told = json.dumps({**settings, "path": saved_model, "max_steps": 70})
    plain = warm.run(script, told, steps=None)
    assert plain.shown.signature is None, (plain.folder / "log.txt").read_text()[-2000:]
    run = warm.run(script, told, steps=None, checkpoints=ROOM)
    assert kept(run) == kept(plain)
    last = run.traces.all(CheckpointSaved)[-1]
    assert last.step >= 2
    again = warm.run(script, told, steps=None, origin=Origin(last.path, last.step))
    assert kept(again) == kept(run)[last.step :] and last.step < 70


def test_without_room_there_are_none_and_the_run_goes_on(warm, script):
    steps = 200  # longer than a second, before which none is looked for
    run = warm.run(script, json.dumps({"max_steps": steps}), steps=None, checkpoints=CheckpointOrders(10))
    assert "no room" in run.traces.event(NoCheckpoints).why and len(run.traces.metrics.rows) == steps
    assert not run.traces.all(CheckpointSaved)
