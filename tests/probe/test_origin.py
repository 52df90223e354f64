"""A training that begins at a checkpoint: the rows of the uninterrupted one, and the settings of the trial in force.

Real TRL: what is tested is what it does on `resume_from_checkpoint`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from tools import slow

from bisect_cfg.probe import origin
from bisect_cfg.probe.checkpoints import to_keep
from bisect_cfg.probe.protocol import (
    CheckpointOrders,
    CheckpointSaved,
    InstrumentOrders,
    Intake,
    NoCheckpoints,
    OptimizerSettings,
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


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    return toys.write(tmp_path_factory.mktemp("origin"), SCRIPT)


@pytest.fixture(scope="module")
def saved_model(warm, script, tmp_path_factory) -> str:
    """A folder with a model, which TRL loads again as the reference."""
    folder = tmp_path_factory.mktemp("model")
    saving = script.with_name("save.py")
    saving.write_text(f"import toy; toy.saved_model({str(folder)!r})")
    warm.run(saving)
    return str(folder)


def kept(run):
    """Its rows, by the steps of the training."""
    before, rows = run.traces.before, run.traces.metrics.rows
    return [
        {**{name: value for name, value in row.items() if name not in VOLATILE}, "step": row["step"] + before}
        for row in rows
    ]


class Checkpoint:
    """A whole run, and what it has saved after some step."""

    def __init__(self, warm, script, saved, **settings):
        self.warm, self.script, self.saved, self.settings = warm, script, saved, settings
        self.whole = warm.run(script, json.dumps({**settings, "saved": saved}), steps=None)
        assert self.whole.shown.signature is None, (self.whole.folder / "log.txt").read_text()[-2000:]
        (self.path,) = self.whole.folder.rglob(f"checkpoint-{saved}")
        self.intake = None

    def run(self, steps=None, **changes):
        """From it, with other settings."""
        origin = Origin(str(self.path), self.saved, self.intake)
        return self.warm.run(self.script, json.dumps({**self.settings, **changes}), steps=steps, origin=origin)

    @property
    def rows(self):
        return kept(self.whole)[self.saved :]


@pytest.mark.parametrize(
    ("saved", "settings"),
    [
        (4, {"max_steps": 8}),
        slow(11, {"rows": 4, "max_steps": 15}),
        slow(8, {"rows": 4, "max_steps": 12}),
        slow(4, {"num_iterations": 2, "max_steps": 8}),
        slow(4, {"num_iterations": 2, "rows": 3, "max_steps": 14}),
        (14, {"num_iterations": 2, "rows": 3, "max_steps": 18}),
        slow(4, {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_steps": 8}),
        slow(4, {"beta": 0.1, "max_steps": 8}),
        (4, {"lr_scheduler_type": "cosine", "warmup_steps": 6, "max_steps": 10}),
        slow(4, {"lr_scheduler_type": "cosine_with_restarts", "max_steps": 10}),
        slow(4, {"adapter": True, "max_steps": 8}),
        (4, {"adapter": True, "beta": 0.1, "max_steps": 8}),
        slow(4, {"adapter": "existing", "max_steps": 8}),
        slow(4, {"adapter": "existing", "beta": 0.1, "max_steps": 8}),
    ],
)
def test_with_nothing_changed_the_rows_are_those_of_the_whole_run(warm, script, saved_model, saved, settings):
    checkpoint = Checkpoint(warm, script, saved, path=saved_model, **settings)
    again = checkpoint.run()
    assert again.shown.signature is None, (again.folder / "log.txt").read_text()[-2000:]
    assert kept(again) == checkpoint.rows


@pytest.mark.parametrize(
    ("name", "value", "of_group"),
    [
        ("learning_rate", 3e-3, "initial_lr"),
        slow("weight_decay", 0.3, "weight_decay"),
        slow("adam_beta1", 0.7, ("betas", 0)),
        ("adam_beta2", 0.95, ("betas", 1)),
        slow("adam_epsilon", 1e-4, "eps"),
    ],
)
def test_a_setting_of_the_optimizer_is_in_force(warm, script, name, value, of_group):
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    again = checkpoint.run(**{name: value})
    (told,) = again.traces.all(OptimizerSettings)  # and it is so in every step
    first, *_ = told.groups
    found = first[of_group] if isinstance(of_group, str) else first[of_group[0]][of_group[1]]
    assert (told.step, found) == (5, value)
    fresh = warm.run(script, json.dumps({"max_steps": 8, name: value}), steps=None)
    rates = [[row["learning_rate"] for row in run.traces.metrics.rows] for run in (again, fresh)]
    assert rates[0] == rates[1][4:]  # as if it had been so from the start
    assert kept(again) != checkpoint.rows


@pytest.mark.parametrize(
    "changes",
    [
        {"lr_scheduler_type": "cosine"},
        slow({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 6}),
        slow({"max_steps": 16}),
        {"warmup_steps": 7, "learning_rate": 1e-3},
    ],
)
def test_a_schedule_is_where_it_would_be(warm, script, changes):
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    again = checkpoint.run(steps=4, **changes)
    fresh = warm.run(script, json.dumps({"max_steps": 8, **changes}), steps=8)
    rates = [[row["learning_rate"] for row in run.traces.metrics.rows] for run in (again, fresh)]
    assert rates[0] == rates[1][4:] and len(rates[0]) == 4


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"gradient_accumulation_steps": 2}, 3),
        slow({"gradient_accumulation_steps": 4}, 1),
        slow({"num_generations": 2}, 3),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}, 1),
        slow({"num_iterations": 2}, 12),
        slow({"num_iterations": 3}, 18),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 1}, 6),
    ],
)
def test_the_place_in_the_data_is_counted_in_prompts(warm, script, changes, step):
    checkpoint = Checkpoint(warm, script, 6, max_steps=8)
    checkpoint.intake = checkpoint.run().traces.event(Resumed).intake
    assert checkpoint.intake == Intake(1, 1, 1)
    again = checkpoint.run(steps=1, **{**changes, "max_steps": 30})
    assert again.traces.event(Resumed).step == step, (again.folder / "log.txt").read_text()[-2000:]
    assert kept(again)[0]["step"] == step + 1


def test_what_it_does_every_so_many_steps_is_as_the_trial_says(warm, script):
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    assert kept(checkpoint.run(save_steps=3)) == checkpoint.rows


def test_without_the_optimizers_state_the_rate_is_that_of_the_step(warm, script):
    """`save_only_model`: a schedule that began anew would begin with its warmup, and hide a failure."""
    checkpoint = Checkpoint(warm, script, 4, max_steps=8, warmup_steps=3)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint.path / name).unlink()
    rates = [[row["learning_rate"] for row in rows] for rows in (kept(checkpoint.run()), checkpoint.rows)]
    assert rates[0] == rates[1] and len(set(rates[0])) == 4
    for form in ("pytorch_model_fsdp_0", "global_step4"):  # what only FSDP and DeepSpeed load
        (checkpoint.path / form).mkdir()
        (checkpoint.path / "model.safetensors").unlink(missing_ok=True)
        assert checkpoint.run().traces.event(OriginRefused).what == "weights"
        (checkpoint.path / form).rmdir()


def test_deepspeed_loads_by_a_function_of_its_own(monkeypatch):
    """That it cannot is no failure of the training."""
    told = []

    def load(*args):
        told.append(origin.state.loading)

    module = SimpleNamespace(deepspeed_load_checkpoint=load)
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    origin._watch_loading(SimpleNamespace(model=None))
    module.deepspeed_load_checkpoint("engine", "path")
    assert told == ["weights"] and origin.state.loading == ""


def test_another_seed_begins_at_that_seed(warm, script):
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    runs = [
        warm.run(
            script, json.dumps(checkpoint.settings), steps=2, origin=Origin(str(checkpoint.path), 4),
            overrides={"args.seed": seed},
        )
        for seed in (7, 8, 7)
    ]  # fmt: skip
    first, second, third = (kept(run) for run in runs)
    assert first == third != second


def test_what_cannot_be_loaded_is_said(warm, script):
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    again = checkpoint.run(adapter=True)
    told = again.traces.event(OriginRefused)
    assert told is not None and not again.traces.metrics.rows, (again.folder / "log.txt").read_text()[-2000:]


def test_another_optimizers_state_is_no_failure_of_the_training(warm, script):
    """It is loaded without a word, and the first step ends with an error."""
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    again = checkpoint.run(optim="rmsprop")
    told = again.traces.event(OriginRefused)
    assert told is not None and told.what == "optimizer", (again.folder / "log.txt").read_text()[-2000:]
    assert not again.seen.invalid and not again.traces.metrics.rows
    assert checkpoint.run(optim="adamw_torch").shown.signature is None


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


def test_a_state_of_another_version_is_taken_as_far_as_it_is_known(warm, script):
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    path = checkpoint.path / "trainer_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "of_tomorrow": 1}))
    assert kept(checkpoint.run()) == checkpoint.rows


def test_what_torch_would_take_without_a_word_is_refused(warm, script):
    """Moments of other weights, weights under other names, and NaN in either: the failure is there already."""
    import torch
    from safetensors.torch import load_file, save_file

    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    optimizer, model = checkpoint.path / "optimizer.pt", checkpoint.path / "model.safetensors"

    def refused() -> tuple[str, str]:
        told = checkpoint.run().traces.event(OriginRefused)
        return ("", "") if told is None else (told.what, told.message)

    def changed(change):
        told = torch.load(whole, weights_only=True)
        told["state"][0]["exp_avg"] = change(told["state"][0]["exp_avg"])
        torch.save(told, optimizer)

    whole = optimizer.rename(optimizer.with_suffix(".whole"))
    changed(lambda moment: moment.reshape(-1)[:3].clone())
    what, message = refused()
    assert what == "optimizer" and "exp_avg of shape [3]" in message
    changed(lambda moment: moment * float("nan"))
    what, message = refused()
    assert what == "optimizer" and "holds NaN" in message
    changed(lambda moment: moment)
    assert refused() == ("", "")

    weights = load_file(model)
    save_file({f"transformer.{name}": weight for name, weight in weights.items()}, model, {"format": "pt"})
    what, message = refused()
    assert what == "weights" and "are not in it" in message
    first = next(iter(weights))
    save_file({**weights, first: weights[first] * float("nan")}, model, {"format": "pt"})
    what, message = refused()
    assert what == "weights" and message.startswith(f"{first} holds NaN")

    checkpoint = Checkpoint(warm, script, 4, max_steps=8, adapter=True)
    adapter = checkpoint.path / "adapter_model.safetensors"
    weights = load_file(adapter)
    save_file({f"_orig_mod.{name}": weight for name, weight in weights.items()}, adapter, {"format": "pt"})
    what, message = refused()
    assert what == "weights" and "are not in it" in message


def test_the_instruments_go_along(warm, script):
    """Both listen to the optimizer's steps."""
    checkpoint = Checkpoint(warm, script, 4, max_steps=8)
    origin = Origin(str(checkpoint.path), 4)
    told, kind = json.dumps(checkpoint.settings), InstrumentOrders("non-finite", from_step=1)
    again = warm.run(script, told, steps=2, origin=origin, instruments=kind)
    assert again.shown.signature is None, (again.folder / "log.txt").read_text()[-2000:]
    assert [one.step for one in again.traces.all(Update)] == [5, 6]
