"""Scripts that train several times: which training is meant, and what becomes of the others."""

from __future__ import annotations

import pytest
import toys
from tools import assert_clear

TRAIN = """
    def train(number, **settings):
        args = GRPOConfig(output_dir=f"out-{number}", weight_decay=0.1, learning_rate=1e-4, **settings)
        def step(step):
            if step == 3 and args.beta and args.temperature < 1:
                raise RuntimeError("boom")
            return {"loss": float("nan")} if args.adam_beta2 < 0.9 and args.max_grad_norm > 1 else {}
        trainer = GRPOTrainer(args, step)
        trainer.steps = trainer.state.max_steps = 12
        trainer.train()
        with open("ran", "a") as ran:
            ran.write(f"{number}\\n")
"""
"""A function that trains for twelve steps, of which beta with a lowered temperature does not survive the third."""

LOOP = """
    for number, beta in enumerate((0.0, 0.2, 0.3, 0.0)):
        train(number, beta=beta, temperature=0.9)
    open("done", "w").write("what comes after the last training")
"""

SILENT = """
    train(1, adam_beta2=0.99, max_grad_norm=2.0)
    train(2, adam_beta2=0.5, max_grad_norm=2.0)
    train(3, adam_beta2=0.5, max_grad_norm=2.0)
"""

PREPARED = """
    def boom(step):
        if step == 3 and args.beta and args.temperature < 1:
            raise RuntimeError("boom")
    configs = [GRPOConfig(output_dir="out", learning_rate=1e-4, beta=beta, temperature=0.9) for beta in (0.0, 0.2)]
    for args in configs:
        trainer = GRPOTrainer(args, boom)
        trainer.steps = 12
        trainer.train()
"""

IN_THE_CONSTRUCTOR = """
    class Trainer(GRPOTrainer):
        def __init__(self, args):
            if args.beta and args.temperature < 1:
                raise ValueError("no such pair")
            super().__init__(args)
            self.steps = 12

    for beta in (0.0, 0.2):
        Trainer(GRPOConfig(output_dir="out", learning_rate=1e-4, beta=beta, temperature=0.9)).train()
"""

STAGE = """
    from transformers.training_args import TrainingArguments
    trainer = GRPOTrainer(TrainingArguments(output_dir="out", learning_rate=1e-3))
    trainer.steps = 300  # it is not cut off
    trainer.train()
"""

ANOTHER_KIND = """
    from transformers.training_args import TrainingArguments
    train(1)
    args = TrainingArguments(output_dir="out", learning_rate=1e-3)
    GRPOTrainer(args, lambda step: 1 / (step - 3) and {}).train()
"""


@pytest.mark.parametrize(
    ("text", "step", "config", "options"),
    [
        (LOOP, 3, "GRPOConfig", ["--training", 2]),
        (SILENT, 8, "GRPOConfig", ["--training", 2]),
        (PREPARED, 3, "GRPOConfig", ["--training", 2]),
        (IN_THE_CONSTRUCTOR, 0, "GRPOConfig", ["--training", 2]),
        (STAGE + "    [train(2, beta=0.2, temperature=0.9)]\n", 3, "GRPOConfig", []),  # found by itself
        (ANOTHER_KIND, 3, "TrainingArguments", ["--training", 2]),
    ],
    ids=["loop", "silent", "prepared before", "constructor", "another kind", "another kind fails"],
)
def test_the_training_that_is_studied(tool, text, step, config, options):
    toys.script(tool.folder, TRAIN + text)
    result = tool.bisect("train.py", "--max-trials", 1, *options, status=3).result
    assert result["failure"]["step"] == step
    assert (result["target"]["training"], result["target"]["config"]) == (2, config)
    assert any("training 2 of the script" in note for note in result["notes"])


def test_those_before_it_run_as_they_are_and_what_they_leave_is_kept(tool):
    toys.script(tool.folder, TRAIN + LOOP)
    study = tool.bisect("train.py", "--no-recommend", "--training", 2)
    result, ended = study.result, study.ended
    assert study.causes == [["beta", "temperature"]]
    assert result["complete"] and result["where"]["same_failure"] and result["start"] == "config"
    # It trained in the first run, and in the process that trials are forked from; not in each of them.
    assert (tool.folder / "ran").read_text().split() == ["0", "0"]
    assert not (tool.folder / "done").exists()
    assert tool.bisect("train.py", "--no-recommend", "--training", 2).ended == ended


@pytest.mark.parametrize(
    ("text", "said"), [(SILENT, "after 3 trainings the script ended"), (LOOP, "RuntimeError: boom")]
)
def test_a_number_that_there_is_not(tool, text, said):
    told = tool("bisect", toys.script(tool.folder, TRAIN + text), "--study", "s", "--training", 5)
    assert_clear(told, "There is no training 5", said)


def test_where_the_first_ends_well(tool):
    toys.script(tool.folder, TRAIN + LOOP)
    assert "--training 2" in tool.bisect("train.py", status=1).said.all
    assert not (tool.folder / "ran").exists()  # nothing of the script runs after it


@pytest.mark.parametrize("error", ["GRPOConfig(output_dir='o', gone=1)", "{}['solution']"])
def test_what_dies_after_a_stage_is_no_healthy_run(tool, error):
    told = tool("bisect", toys.script(tool.folder, f"{STAGE}    {error}\n"), "--study", "s")
    assert_clear(told, "The training ended well; after it, in no training, the script dies with")
