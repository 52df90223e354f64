"""The probe tells where the models of a training are; and TRL trains in a notebook that was made a script."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import toys

from bisect_cfg.common.cells import code_cells
from bisect_cfg.probe import model_placement
from bisect_cfg.probe.protocol import InstrumentOrders, Placed, PlacedModel, Raised, Weights
from bisect_cfg.targets.notebook import as_script


@pytest.mark.training
def test_models_are_told_by_device_and_dtype() -> None:
    import torch

    policy = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, bias=False, dtype=torch.bfloat16))
    reward = torch.nn.Linear(4, 1, bias=False, device="meta")
    state = torch.random.get_rng_state()
    trainer = SimpleNamespace(
        model=policy, model_wrapped=torch.nn.DataParallel(policy), ref_model=None, reward_funcs=[len, reward]
    )
    weights = [Weights("cpu", "float32", 9), Weights("cpu", "bfloat16", 3)]
    assert model_placement.models(trainer) == [
        PlacedModel("policy", "Sequential", "DataParallel", weights),
        PlacedModel("reward", "Linear", "", [Weights("meta", "float32", 4)]),
    ]
    assert torch.equal(state, torch.random.get_rng_state())
    trainer.model_wrapped, trainer.ref_model = policy, torch.nn.Linear(1, 1)
    assert [(one.role, one.wrapper) for one in model_placement.models(trainer)] == [
        ("policy", ""), ("reference", ""), ("reward", "")
    ]  # fmt: skip


def test_trl_trains_in_a_notebook_and_its_models_are_told(warm, tmp_path: Path) -> None:
    toys.write(tmp_path, "")
    notebook = toys.notebook(
        tmp_path,
        "#@title Install\n%%capture\n!pip install -q trl",
        "import os\nos.environ['WANDB_PROJECT'] = 'grpo'\nimport toy\nfrom trl import GRPOConfig",
        "dataset = toy.data()\nlen(dataset)",
        f"args = GRPOConfig(\n    output_dir='out', beta=0.1,\n    {toys.settings()},\n)",
        "calls = 0\ndef reward(completions, **kwargs):\n    global calls\n    calls += 1\n    if calls == 3:\n"
        "        raise ValueError('the third')\n    return toy.reward(completions)",
        f"trainer = toy.trainer(args, model=toy.saved_model({str(tmp_path / 'model')!r}), train_dataset=dataset,\n"
        "                      reward_funcs=reward)\n%time trainer.train()",
        "trainer.push_to_hub()",
    )
    script = tmp_path / "train.ipynb.py"
    script.write_text(as_script(notebook, code_cells(notebook.read_text()), "python", lambda names: []).text)
    run = warm.run(script, steps=9, instruments=InstrumentOrders("exception", 2))
    assert run.seen.message == "ValueError: the third" and run.shown.step == 3, (run.folder / "log.txt").read_text()
    assert run.traces.event(Raised).computing == "", "a reward function belongs to no module"
    told = run.traces.event(Placed)
    assert [(one.role, one.name, one.wrapper) for one in told.models] == [
        ("policy", "Qwen2ForCausalLM", ""), ("reference", "Qwen2ForCausalLM", "")
    ]  # fmt: skip
    ((policy,), (reference,)) = (one.weights for one in told.models)
    assert policy == reference and (policy.device, policy.dtype) == ("cpu", "float32") and policy.count > 1000
