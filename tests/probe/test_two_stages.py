"""Scripts that train twice, the second time from what the first has saved."""

from __future__ import annotations

import itertools

import pytest
import toys
from tools import slow

SCRIPT = f"""
    import glob, json, os
    import toy, torch
    from pathlib import Path
    from datasets import Dataset
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, SFTConfig, SFTTrainer

    texts = Dataset.from_dict({{"text": ["1 + 2 = 3 <eos>", "2 + 2 = 4 <eos>"] * 8}})
    args = SFTConfig(output_dir="outputs/sft", max_steps=2, per_device_train_batch_size=2, use_cpu=True, bf16=False,
                     learning_rate=1e-2, report_to="none", save_strategy="{{strategy}}", save_steps=1)
    sft = SFTTrainer(toy.model(), args=args, train_dataset=texts, processing_class=toy.tokenizer())
    sft.train()
    wanted = {{name: weight.clone() for name, weight in sft.model.state_dict().items()}}
    {{save}}
    model = {{load}}
    assert all(torch.equal(weight, wanted[name]) for name, weight in model.state_dict().items())
    args = GRPOConfig(output_dir="outputs/grpo", {toys.settings()}, beta=0.1 if "sft" in model.name_or_path else 0.0)
    toy.trainer(args, model=model).train()
"""

LOADS = 'AutoModelForCausalLM.from_pretrained("outputs/sft")'
WAYS = {
    "save_model": ('sft.save_model("outputs/sft")', LOADS),
    "save_model to its own place": ("sft.save_model()", LOADS),
    "two halves": ('sft.model.save_pretrained("outputs/sft"); sft.processing_class.save_pretrained(args.output_dir); '
                   'assert len(AutoTokenizer.from_pretrained("outputs/sft")) == 14', LOADS),
    "below": ('sft.save_model("outputs/sft/final"); assert os.path.exists("outputs/sft/final/config.json")',
              LOADS.replace("sft", "sft/final")),
    "the last checkpoint": ("pass", LOADS.replace('"outputs/sft"', 'max(glob.glob("outputs/sft/checkpoint-?"))')),
    "going on": ("sft.args.max_steps = 3; sft.train(resume_from_checkpoint=True); assert sft.state.global_step == 3; "
                 "wanted = sft.model.state_dict(); sft.save_model('outputs/sft/end')", LOADS.replace("sft", "sft/end")),
    "torch.save": ('torch.save(sft.model.state_dict(), "outputs/sft/model.pt"); model = toy.model()',
                   '(model.load_state_dict(torch.load(Path("outputs/sft") / "model.pt")), model)[1]'),
    "safetensors": ('save_file(sft.model.state_dict(), "outputs/sft.safetensors"); model = toy.model()',
                    '(model.load_state_dict(load_file("outputs/sft.safetensors")), model)[1]'),
}  # fmt: skip


AT_FIRST = {("save_model", False), ("save_model", True), ("the last checkpoint", True), ("torch.save", True)}
"""A way, and whether the user has earlier ones there: shown before anything lands; the others are slow."""


@pytest.mark.parametrize(
    ("way", "before"),
    [one if one in AT_FIRST else slow(*one) for one in itertools.product(WAYS, (False, True))],
)
def test_the_second_stage_loads_what_the_first_has_saved(warm, tmp_path, way, before):
    save, load = WAYS[way]
    text = SCRIPT.replace("{save}", save).replace("{load}", load)
    text = text.replace("{strategy}", "steps" if way in ("the last checkpoint", "going on") else "no")
    script = toys.write(tmp_path / "work", text)
    own = script.parent / "outputs/sft"
    own.mkdir(parents=True)
    of_the_user = [own / name for name in ("model.safetensors", "model.pt", "checkpoint-0/config.json")]
    for path in of_the_user if before else ():
        path.parent.mkdir(exist_ok=True)
        path.write_text("of the user")
    files = sorted(path for path in script.parent.rglob("*") if path.is_file() and path.suffix != ".pyc")
    run = warm.run(script, steps=1)
    assert run.seen.died is None and run.seen.steps == 1, (run.folder / "log.txt").read_text()[-3000:]
    assert all(path.read_text() == "of the user" for path in of_the_user if before)
    assert sorted(path for path in script.parent.rglob("*") if path.is_file() and path.suffix != ".pyc") == files
