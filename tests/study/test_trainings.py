"""Scripts that train several times: what becomes of the others. Which one is meant: `tests/cmd/trainings.yaml`."""

from __future__ import annotations

import sys

import toys

from bisect_cfg.probe import library_objects

LOOP = """
    def train(number, **settings):
        args = GRPOConfig(output_dir=f"out-{number}", weight_decay=0.1, learning_rate=1e-4, **settings)
        def step(step):
            if step == 3 and args.beta and args.temperature < 1:
                raise RuntimeError("boom")
        trainer = GRPOTrainer(args, step)
        trainer.steps = trainer.state.max_steps = 12
        trainer.train()
        with open("ran", "a") as ran:
            ran.write(f"{number}\\n")

    for number, beta in enumerate((0.0, 0.2, 0.3, 0.0)):
        train(number, beta=beta, temperature=0.9)
    open("done", "w").write("what comes after the last training")
"""


def test_those_before_it_run_as_they_are_and_what_they_leave_is_kept(tool):
    toys.script(tool.folder, LOOP)
    study = tool.bisect("train.py", "--no-recommend")
    result, ended = study.result, study.ended
    assert study.causes == [["beta", "temperature"]]
    assert result["complete"] and result["where"]["same_failure"] and result["start"] == "config"
    # It trained in the first run, and in the process that trials are forked from; not in each of them.
    assert (tool.folder / "ran").read_text().split() == ["0", "0"]
    assert not (tool.folder / "done").exists()
    assert tool.bisect("train.py", "--no-recommend").ended == ended


def test_what_prepares_a_training_that_samples_is_told_by_its_config(monkeypatch):
    """... also one of RLOO: `from trl import RLOOConfig` imports no GRPO."""
    for module in library_objects._SAMPLING:
        monkeypatch.delitem(sys.modules, module, raising=False)
    of_reward, of_rloo = type("RewardConfig", (), {}), type("RLOOConfig", (), {})
    assert not library_objects.only_prepares(of_reward), "it is all that the script trains, as far as can be told"
    monkeypatch.setitem(sys.modules, "trl.trainer.rloo_config", sys)
    assert library_objects.only_prepares(of_reward)
    assert not library_objects.only_prepares(type("Own", (of_rloo,), {}))
