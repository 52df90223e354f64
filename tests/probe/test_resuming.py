"""Scripts that resume by themselves: trials begin fresh, at the rate of their own configuration, or say nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import toys
from tools import slow

from bisect_cfg.probe.protocol import ResumeSkipped
from bisect_cfg.runner.verdict import INVALID

SCRIPT = f"""
    import json, os, sys
    import toy, torch
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
    from trl import GRPOConfig, GRPOTrainer

    told = json.loads(sys.argv[1])

    class Save(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == told.get("saved")

    class Trainer(GRPOTrainer):
        def create_scheduler(self, *args, **kwargs):
            schedule = super().create_scheduler(*args, **kwargs)
            if told.get("way") == "by hand":
                schedule.load_state_dict(torch.load("outputs/grpo/checkpoint-4/scheduler.pt"))
            return schedule

    args = GRPOConfig(output_dir="outputs/grpo", learning_rate=told["rate"], max_steps=8, {toys.settings()})
    found = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    if found is None and os.path.isdir(args.output_dir) and os.listdir(args.output_dir):
        raise ValueError("the output folder is not empty")
    named = get_last_checkpoint("outputs/grpo") if os.path.isdir("outputs/grpo") else None
    ways = {{"found": found, "named": named, "true": True, "path": "outputs/grpo/checkpoint-4"}}
    trainer = Trainer(model=toy.model(), args=args, reward_funcs=toy.reward, train_dataset=toy.data(),
                      processing_class=toy.tokenizer(), callbacks=[Save()])
    trainer.train(resume_from_checkpoint=ways.get(told.get("way")))
"""


@pytest.fixture(scope="module")
def resuming(warm, tmp_path_factory) -> Path:
    """A script, with a checkpoint of an earlier run of the user's at another rate."""
    script = toys.write(tmp_path_factory.mktemp("resuming"), SCRIPT)
    run = warm.run(script, json.dumps({"rate": 5e-3, "saved": 4}), steps=5)
    assert run.seen.died is None, (run.folder / "log.txt").read_text()[-3000:]
    (saved,) = run.folder.rglob("checkpoint-4")
    shutil.copytree(saved, script.parent / "outputs/grpo/checkpoint-4")
    return script


def rates(run) -> list[float]:
    return [row["learning_rate"] for row in run.traces.metrics.rows]


@pytest.mark.parametrize("way", ["found", slow("named"), "true", slow("path")])
def test_a_trial_begins_fresh_at_its_own_rate(warm, resuming, way):
    run, fresh = (warm.run(resuming, json.dumps({"rate": 1e-3, "way": one}), steps=3) for one in (way, None))
    assert run.seen.died is None and run.seen.before == 0, (run.folder / "log.txt").read_text()[-3000:]
    assert rates(run) == rates(fresh) and run.traces.metrics.rows[0]["step"] == 1
    own = str(resuming.parent / "outputs/grpo/checkpoint-4")
    assert [event.path for event in run.traces.all(ResumeSkipped)] == [own]


def test_a_trial_at_another_rate_is_void(warm, resuming):
    run = warm.run(resuming, json.dumps({"rate": 1e-3, "way": "by hand"}), steps=3)
    assert run.seen.died.kind == INVALID and not run.traces.metrics.rows
    assert "0.005 at step 4" in run.seen.message and "0.001 at step 0" in run.seen.message


THAT_RESUMES = """
    from transformers.trainer_utils import get_last_checkpoint
    args = GRPOConfig(output_dir="out", learning_rate=0.3, weight_decay=0.1)
    last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    trainer = GRPOTrainer(args, lambda number: 1 / 0 if trainer.rate > 0.1 and number == 3 else None)
    trainer.train(resume_from_checkpoint=last)
"""


def test_the_answer_is_about_the_settings_and_says_from_where_the_script_resumes(tool):
    toys.script(tool.folder, THAT_RESUMES)
    own = tool.folder / "out/checkpoint-7"
    own.mkdir(parents=True)
    (own / "rate").write_text("0.3")
    said = tool("bisect", "train.py", "--study", "s", "--no-recommend")
    assert said.status == 0 and "CAUSE   learning_rate" in said.out, said.all
    assert f"resumes from {own}" in " ".join(said.all.split()), said.all


def test_a_script_that_does_not_fail_from_step_0_is_run_from_where_it_resumes(tool):
    toys.script(tool.folder, THAT_RESUMES.replace("learning_rate=0.3", "learning_rate=0.05"))
    own = tool.folder / "out/checkpoint-7"
    own.mkdir(parents=True)
    (own / "rate").write_text("0.05")
    said = tool("bisect", "train.py", "--study", "s")
    printed = " ".join(said.all.split())
    assert f"From step 0 your command does not fail. It resumes from {own}, so it is run from there." in printed
    assert said.status == 2 and f"{own} has no trainer_state.json" in printed, said.all
