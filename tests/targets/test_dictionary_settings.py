"""A setting that holds a dictionary or resolves to an object is a factor like any other: whole bisections, stand-in
library."""

from __future__ import annotations

import json

from toys import script

OBJECT = "accelerator_config"


def test_an_object_valued_setting_is_part_of_the_cause(tool):
    script(
        tool.folder,
        """
    from transformers.training_args import AcceleratorConfig
    args = GRPOConfig(beta=0.1, learning_rate=3e-4, accelerator_config=AcceleratorConfig(split_batches=True))
    def step(number):
        if args.beta and args.accelerator_config.split_batches and number == 2:
            raise ValueError("uneven batches")
    GRPOTrainer(args, step).train()
    """,
    )
    said = tool("bisect", "train.py", "--study", "s", "--no-where")
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert [set(cause["parameters"]) for cause in result["causes"]] == [{"beta", f"{OBJECT}.split_batches"}]
    assert result["causes"][0]["parameters"][f"{OBJECT}.split_batches"] == {"good": False, "bad": True}
    assert result["complete"] is True


def test_what_is_not_varied_is_said(tool):
    script(
        tool.folder,
        """
    args = GRPOConfig(output_dir="out", beta=0.1, seed=3, max_grad_norm=0.5)
    vars(args)["temperature"] = 0.5
    def step(number):
        if args.beta and number == 2:
            raise ValueError("no")
    GRPOTrainer(args, step).train()
    """,
    )
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--no-recommend", "--exclude", "max_grad_norm")
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s/result.json").read_text())
    listed = result["not_varied"]
    assert listed.keys() == {"output_dir", "seed", "temperature", "max_grad_norm"}
    assert all(name in said.out and reason in said.out for name, reason in listed.items())
    assert result["unvaried"] == {"seed": {"good": 42, "bad": 3}}, "it goes by its name, and differs from the default"
    assert "Not varied: seed = 3 (default: 42)." in said.out.partition("CAUSE")[2], "said beside the cause, too"


def test_a_dictionary_that_is_assigned_once_the_config_is_built(tool):
    script(
        tool.folder,
        """
    args = GRPOConfig(output_dir="out", beta=0.1, learning_rate=3e-4)
    args.model_init_kwargs = {"use_cache": False, "attn_implementation": "eager"}
    def step(number):
        if args.beta and (args.model_init_kwargs or {}).get("use_cache") is False and number == 2:
            raise ValueError("no")
    GRPOTrainer(args, step).train()
    """,
    )
    said = tool("bisect", "train.py", "--study", "s", "--no-where", "--no-recommend")
    assert said.status == 0, said.all
    result = json.loads((tool.folder / "s/result.json").read_text())
    assert [set(cause["parameters"]) for cause in result["causes"]] == [{"beta", "model_init_kwargs.use_cache"}]
