"""What a training saves or uploads: nothing of the user's is overwritten, and the training goes on as it would."""

from __future__ import annotations

import os
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import slow

from bisect_cfg.probe import children, saves, side_effects
from bisect_cfg.probe.protocol import Skipped

PATHS = st.sampled_from(["a", "b", "x/a", "x/b", "x/y/a"])


@settings(deadline=None)  # it writes files
@given(st.sets(PATHS), st.lists(st.tuples(st.integers(0, 1), PATHS)))
def test_what_is_saved_is_read_above_what_lies_there(users, saved):
    """As if it had been saved at the user's own place, where nothing changes. The first trial is forked from."""
    with tempfile.TemporaryDirectory() as name, mock.patch.object(saves, "state", saves._State()):
        root, wanted = Path(os.path.realpath(name)), dict.fromkeys(users, "the user's own")
        saves.state.folders = []
        for path in ("x/y/made", *users):
            (root / "own" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "own" / path).write_text("the user's own")
        wanted["x/y/made"] = "the user's own"
        for number, (trial, path) in enumerate(sorted(saved)):
            with mock.patch.object(children.state, "folder", str(root / f"trial-{trial}")):
                Path(saves.saved(root / "own" / path)).write_text(str(number))
                wanted[path] = str(number)
        assert {path: Path(saves.found(str(root / "own" / path))).read_text() for path in wanted} == wanted
        view = Path(saves.whole(str(root / "own")))
        links = (Path(folder, name) for folder, _, names in os.walk(view, followlinks=True) for name in names)
        assert {str(path.relative_to(view)): path.read_text() for path in links} == wanted
        own = root / "own"
        assert {path.read_text() for path in own.rglob("*") if path.is_file()} == {"the user's own"}


def test_the_output_folders_of_trainings_are_places_of_the_same_table(tmp_path, monkeypatch):
    monkeypatch.setattr(saves.state, "folders", [])
    monkeypatch.setattr(children.state, "folder", str(tmp_path / "trial"))
    monkeypatch.chdir(tmp_path)
    first = SimpleNamespace(output_dir="sft", save_strategy="steps", report_to="wandb")
    side_effects.silence(first, prepares=True)
    assert (first.save_strategy, first.report_to) == ("steps", "none")  # a later stage may load what it saves
    second = SimpleNamespace(output_dir="grpo", save_strategy="steps")
    side_effects.silence(second)
    assert second.save_strategy == "no" and second.output_dir != first.output_dir
    assert saves.own_place(first.output_dir) == str(tmp_path / "sft") and not saves.is_own("sft")
    Path(first.output_dir, "checkpoint-3").mkdir(parents=True)
    assert saves.found("sft/checkpoint-3") == str(Path(first.output_dir, "checkpoint-3")) and saves.is_own("sft")
    assert saves.found("Qwen/Qwen3") == "Qwen/Qwen3"


KEEPS_THE_BEST = f"""
    import os, shutil, tempfile
    import torch, toy
    from pathlib import Path
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, TrainerState
    from trl import GRPOConfig

    own = Path(os.path.abspath(__file__)).parent
    first = toy.saved_model(own / "start")  # there for whoever looks
    assert (own / "start/config.json").exists()

    class Best(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            step = state.global_step
            trainer.save_model(str(own / "best"))
            trainer.model.save_pretrained(own / "model")
            trainer.processing_class.save_pretrained("model")
            trainer.accelerator.save_state(str(own / "accelerator"))
            trainer.accelerator.load_state(str(own / "accelerator"))
            state.save_to_json(str(own / "state.json"))
            assert TrainerState.load_from_json("state.json").global_step == step
            torch.save({{"step": step}}, own / "step.pt.new")
            os.replace(own / "step.pt.new", own / "step.pt")
            assert torch.load("step.pt")["step"] == step
            save_file({{"step": torch.tensor([step])}}, own / "step.safetensors")
            assert int(load_file(own / "step.safetensors")["step"]) == step
            for folder in ("best", own / "model"):
                again = AutoModelForCausalLM.from_pretrained(folder)
                wanted = dict(trainer.model.named_parameters())
                for name, weight in again.named_parameters():
                    assert torch.equal(weight, wanted[name]), name
                assert len(AutoTokenizer.from_pretrained(folder)) == len(trainer.processing_class)
            shutil.rmtree("best")  # only the newest is kept
            with tempfile.TemporaryDirectory() as folder:
                torch.save(step, os.path.join(folder, "step"))
                assert os.path.getsize(os.path.join(folder, "step"))
            try:
                torch.save(step, own / "no such folder" / "step.pt")
            except (RuntimeError, OSError):
                pass
            else:
                raise AssertionError("it has to fail as it does at the user's")
            info = trainer.push_to_hub()
            assert info.oid and info.repo_url.repo_id, info
            assert trainer.push_to_hub(blocking=False).result().oid
            trainer.model.push_to_hub("me/best")
            trainer.processing_class.push_to_hub("best")
            Path("plain.txt").write_text(str(step))

    args = GRPOConfig(output_dir="out", beta=0.1, learning_rate=1e-3, {toys.settings()})
    trainer = toy.trainer(args, model=first, processing_class=None)
    trainer.add_callback(Best())
    trainer.train()
"""

OF_THE_USER = ("best/model.safetensors", "model/config.json", "accelerator/optimizer.bin", "state.json", "step.pt",
               "step.safetensors")  # fmt: skip


def test_what_callbacks_save_lands_in_the_trial(warm, tmp_path):
    script = toys.write(tmp_path / "work", KEEPS_THE_BEST)
    for name in OF_THE_USER:
        path = script.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("the user's own")
    run = warm.run(script, steps=2)
    log = (run.folder / "log.txt").read_text()
    assert run.seen.died is None and run.seen.steps == 2, log[-3000:]
    assert {name: (script.parent / name).read_text() for name in OF_THE_USER} == dict.fromkeys(
        OF_THE_USER, "the user's own"
    )
    kept = run.folder / "output" / script.parent.resolve().relative_to("/")
    assert {path.name for path in kept.iterdir()} >= {"model", "accelerator", "state.json", "step.pt"}
    assert not (kept / "best").exists()
    assert (script.parent / "plain.txt").read_text() == "2"  # a plain open is the script's own affair
    skipped = {row.call for row in run.traces.all(Skipped)}
    assert skipped >= {"create_repo", "upload_folder"}


LIBRARY_THAT_SAVES = """
    import os

    def save(obj, f):
        with open(f, "w") as stream:
            stream.write(obj)

    def load(f):
        with open(f) as stream:
            return stream.read()
"""

IN_ANOTHER_PROCESS = """
    import os, subprocess, sys
    if "child" in sys.argv:
        import torch
        assert torch.load("best.pt") == sys.argv[2] and torch.load("before.pt") == "before the training"
        torch.save("of the child", "best.pt")
        torch.save("new", "new.pt")
        sys.exit()
    import torch
    from trl import GRPOConfig, GRPOTrainer
    torch.save("before the training", "before.pt")
    assert not os.path.exists("best.pt") or open("best.pt").read() == "the user's own"
    assert os.path.exists("before.pt")
    args = GRPOConfig(output_dir="out", learning_rate=3e-4, bf16=True)

    def step(number):
        assert torch.load("before.pt") == "before the training"
        torch.save(str(number), "best.pt")
        subprocess.run([sys.executable, os.path.abspath(__file__), "child", str(number)], check=True)
        assert torch.load("best.pt") == "of the child" and torch.load("new.pt") == "new"
        os.remove("new.pt")
        if number == 3 and args.bf16:
            raise RuntimeError("bf16")

    GRPOTrainer(args, step).train()
"""


@pytest.mark.parametrize("start", ["config", slow("cold")])
def test_processes_of_a_training_share_what_it_saved(tool, library, tmp_path_factory, start):
    own = tmp_path_factory.mktemp("library")
    toys.write_library(own)
    with (own / "torch/__init__.py").open("a") as stream:
        stream.write(textwrap.dedent(LIBRARY_THAT_SAVES))
    tool.environment["PYTHONPATH"] = str(own)
    (tool.folder / "train.py").write_text(textwrap.dedent(IN_ANOTHER_PROCESS))
    (tool.folder / "best.pt").write_text("the user's own")
    said = tool("bisect", "train.py", "--study", "s", "--start", start, "--no-recommend")
    assert said.status == 0 and "CAUSE   bf16" in said.out, said.all
    assert (tool.folder / "best.pt").read_text() == "the user's own"
    assert {path.name for path in tool.folder.iterdir()} == {"train.py", "best.pt", "s"}
