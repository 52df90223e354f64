"""The same factors from the same configuration, in whatever style the script is written. Real TRL, a toy model."""

from __future__ import annotations

import json

import pytest
import toys
from tools import slow

from bisect_cfg.rewrite.safe_config import safe_yaml

WANTED = {"learning_rate": 3e-4, "weight_decay": 0.1, "warmup_steps": 0.1, "temperature": 0.9, "scale_rewards": "none"}
EVERYTHING = {"output_dir": "out", **WANTED, **toys.SETTINGS}


def factors(settings) -> dict[str, tuple]:
    return {factor.name: (factor.good, factor.bad) for factor in settings.varied}


EXPECTED = {
    "learning_rate": (1e-6, 3e-4),
    "weight_decay": (0.0, 0.1),
    "warmup_steps": (0, 0.1),
    "temperature": (1.0, 0.9),
    "scale_rewards": ("group", "none"),
    "per_device_train_batch_size": (8, 4),
    "num_generations": (8, 4),
    "max_completion_length": (512, 8),
    "bf16": (True, False),
}

CALL = ", ".join(f"{name}={value!r}" for name, value in EVERYTHING.items())

STYLES = {
    "main": f"""
        import toy, trl

        def main():
            training_args = trl.GRPOConfig({CALL})
            toy.trainer(training_args).train()

        if __name__ == "__main__":
            main()
    """,
    "own subclass": f"""
        from dataclasses import dataclass
        import toy
        from trl import GRPOConfig

        @dataclass
        class MyConfig(GRPOConfig):
            learning_rate: float = 3e-4
            weight_decay: float = 0.1
            def __post_init__(self):
                self.temperature = 0.9
                super().__post_init__()
        toy.trainer(MyConfig({
        ", ".join(
            f"{n}={v!r}" for n, v in EVERYTHING.items() if n not in ("learning_rate", "weight_decay", "temperature")
        )
    })).train()
    """,
    "a stage of SFT before": f"""
        import toy
        from datasets import Dataset
        from transformers import AutoModelForCausalLM
        from trl import GRPOConfig, SFTConfig, SFTTrainer
        sft = SFTConfig(output_dir="sft", learning_rate=0.01, weight_decay=0.3, max_steps=1, use_cpu=True, bf16=False,
                        adam_beta2=0.5, per_device_train_batch_size=1, report_to="none", save_steps=1)
        trainer = SFTTrainer(toy.model(), args=sft, processing_class=toy.tokenizer(),
                             train_dataset=Dataset.from_dict({{"text": ["1 + 1 = 2"] * 4}}))
        trainer.train()
        trainer.save_model()
        AutoModelForCausalLM.from_pretrained("sft")
        model = AutoModelForCausalLM.from_pretrained("sft/checkpoint-1")
        toy.trainer(GRPOConfig({CALL}), model=model).train()
    """,
    "flags": """
        import toy
        from transformers import HfArgumentParser
        from trl import GRPOConfig
        args, = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses()
        toy.trainer(args).train()
    """,
    "TrlParser": """
        from dataclasses import dataclass, field
        import toy
        from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser
        parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
        script_args, training_args, model_args = parser.parse_args_and_config()
        toy.trainer(training_args).train()
    """,
    "as TRL's own script": """
        import toy
        from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser
        parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
        script_args, training_args, model_args = parser.parse_args_and_config(fail_with_unknown_args=False)
        training_args.model_init_kwargs = dict(
            revision=model_args.model_revision, trust_remote_code=training_args.trust_remote_code,
            attn_implementation=model_args.attn_implementation, dtype=model_args.dtype,
        )
        toy.trainer(training_args, model=toy.saved_model("model")).train()
    """,
}

AT_FIRST = {"main", "a stage of SFT before", "TrlParser"}
"""Shown before anything lands; the other styles are slow."""

FLAGS = [text for name, value in EVERYTHING.items() for text in (f"--{name}", str(value))]


def yaml_of(values) -> str:
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())


@pytest.mark.parametrize("style", [one if one in AT_FIRST else slow(one) for one in STYLES])
def test_same_factors(warm, tmp_path, style):
    path = toys.write(tmp_path, STYLES[style])
    argv = []
    if style == "flags":
        argv = FLAGS
    if "TrlParser" in STYLES[style]:
        (tmp_path / "grpo.yaml").write_text(yaml_of(EVERYTHING) + "dataset_name: x\nmodel_name_or_path: toy\n")
        argv = ["--config", "grpo.yaml"]
    settings = warm.settings(path, *argv)
    assert factors(settings) == EXPECTED
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "sft").exists()
    of_the_place = {"output_dir", "report_to", "use_cpu", "model.model_name_or_path", "script.dataset_name"}
    assert set(settings.not_varied) <= of_the_place
    # Every factor can be set: all at good, the run gets what the defaults resolve to.
    good = warm.capture(path, *argv, settings=settings.without(["bf16", "max_completion_length"]),
                        configuration=settings.good)  # fmt: skip
    for name in ("learning_rate", "weight_decay", "warmup_steps", "temperature", "scale_rewards", "num_generations"):
        assert good.args.resolved[name] == EXPECTED[name][0], name


def test_yaml_and_flags_together(warm, tmp_path):
    path = toys.write(tmp_path, STYLES["TrlParser"])
    some = {name: value for name, value in EVERYTHING.items() if name != "learning_rate"}
    (tmp_path / "grpo.yaml").write_text(yaml_of(some) + "dataset_name: x\nlearning_rate: 1.0\n")
    settings = warm.settings(path, "--config", "grpo.yaml", "--learning_rate", "3e-4")
    assert factors(settings) == EXPECTED


def test_places_reporters_and_seeds_are_no_factors(warm, tmp_path):
    path = toys.write(
        tmp_path,
        f"""
        import toy
        from trl import GRPOConfig
        args = GRPOConfig({CALL}, seed=7, data_seed=8, run_name="x", logging_steps=3, save_steps=2,
                          save_strategy="steps", hub_model_id="a/b", save_total_limit=3)
        toy.trainer(args).train()
        """,
    )
    found = factors(warm.settings(path))
    assert found.pop("logging_steps", None) in (None, (10, 3), (500, 3))
    assert found == EXPECTED


# ------------------------------------------------------------------------------------------------ dictionaries


DICTIONARY = {"num_items_in_batch": True}

KWARGS = {
    "python": f"""
        import toy
        from trl import GRPOConfig
        folder = toy.saved_model("saved")
        args = GRPOConfig({CALL}, model_init_kwargs={{"dtype": "float32", "attn_implementation": "eager"}})
        toy.trainer(args, model=folder).train()
    """,
    "TrlParser": """
        import toy
        from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser
        folder = toy.saved_model("saved")
        script_args, args, model_args = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
        toy.trainer(args, model=folder).train()
    """,
}


@pytest.mark.parametrize("style", [slow("python"), "yaml"])
def test_settings_that_hold_a_dictionary(warm, tmp_path, style):
    path = toys.write(tmp_path, KWARGS["python" if style == "python" else "TrlParser"])
    argv = []
    if style == "yaml":
        text = (
            yaml_of(EVERYTHING)
            + "dataset_name: x\nmodel_init_kwargs:\n  dtype: float32\n  attn_implementation: eager\n"
        )
        (tmp_path / "grpo.yaml").write_text(text)
        argv = ["--config", "grpo.yaml"]
    settings = warm.settings(path, *argv)
    split = {"model_init_kwargs.dtype": (None, "float32"), "model_init_kwargs.attn_implementation": (None, "eager")}
    assert factors(settings) == {**EXPECTED, **split}
    # One key can be reset while the other stays.
    configuration = {**settings.bad, "model_init_kwargs.attn_implementation": None}
    run = warm.capture(path, *argv, settings=settings, configuration=configuration)
    left = run.args.resolved["model_init_kwargs"]
    assert (json.loads(left) if isinstance(left, str) else left) == {"dtype": "float32"}


# ------------------------------------------------------------------------------------------------ model and adapter


LOADS = ["dtype=torch.float16", slow('dtype="float16"'), slow("torch_dtype=torch.float16"), 'torch_dtype="float16"']


@pytest.mark.parametrize("spelled", LOADS)
def test_dtype_of_from_pretrained(warm, tmp_path, spelled):
    path = toys.write(
        tmp_path,
        f"""
        import torch, toy
        from transformers import AutoModelForCausalLM
        from trl import GRPOConfig
        model = AutoModelForCausalLM.from_pretrained(toy.saved_model("saved"), {spelled}, attn_implementation="eager")
        print("DTYPE", model.dtype, model.config._attn_implementation)
        toy.trainer(GRPOConfig({CALL}), model=model).train()
        """,
    )
    settings = warm.settings(path)
    found = factors(settings)
    assert found == {**EXPECTED, "model.dtype": (None, "float16"), "model.attn_implementation": (None, "eager")}
    run = warm.run(path, settings=settings, configuration={**settings.bad, "model.dtype": None})
    assert "DTYPE torch.float32 eager" in (run.folder / "log.txt").read_text()
    run = warm.run(path, settings=settings, configuration=settings.bad)
    assert "DTYPE torch.float16 eager" in (run.folder / "log.txt").read_text()
    run = warm.run(path, settings=settings, configuration={**settings.bad, "model.dtype": "bfloat16"})
    assert "DTYPE torch.bfloat16 eager" in (run.folder / "log.txt").read_text()


def test_only_the_trained_models_load_counts(warm, tmp_path):
    path = toys.write(
        tmp_path,
        f"""
        import torch, toy
        from transformers import AutoModelForCausalLM
        from trl import GRPOConfig
        folder = toy.saved_model("saved")
        other = AutoModelForCausalLM.from_pretrained(folder, dtype="float16")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
        print("DTYPES", other.dtype, model.dtype)
        toy.trainer(GRPOConfig({CALL}), model=model).train()
        """,
    )
    settings = warm.settings(path)
    assert factors(settings)["model.dtype"] == (None, "bfloat16")
    run = warm.run(path, settings=settings, configuration={**settings.bad, "model.dtype": None})
    assert "DTYPES torch.float16 torch.float32" in (run.folder / "log.txt").read_text()


def test_lora_config(warm, tmp_path):
    path = toys.write(
        tmp_path,
        f"""
        import toy
        from peft import LoraConfig
        from trl import GRPOConfig
        lora = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], lora_dropout=0.2,
                          task_type="CAUSAL_LM")
        trainer = toy.trainer(GRPOConfig({CALL}), peft_config=lora)
        print("LORA", lora.r, lora.lora_alpha, lora.lora_dropout)
        trainer.train()
        """,
    )
    settings = warm.settings(path)
    found = {name: levels for name, levels in factors(settings).items() if name.startswith("peft.")}
    assert {name: levels for name, levels in found.items() if name != "peft.target_modules"} == {
        "peft.r": (8, 4), "peft.lora_alpha": (8, 64), "peft.lora_dropout": (0.0, 0.2),
    }  # fmt: skip
    configuration = {**settings.bad, "peft.r": 8, "peft.lora_dropout": 0.0}
    run = warm.run(path, settings=settings, configuration=configuration)
    assert run.shown.signature is None and "LORA 8 64 0.0" in (run.folder / "log.txt").read_text()


def test_a_lora_config_that_no_model_was_given(warm, tmp_path):
    """Scripts keep one while the line that hands it to the trainer is commented out."""
    path = toys.write(
        tmp_path,
        f"""
        import toy
        from peft import LoraConfig
        from trl import GRPOConfig
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        toy.trainer(GRPOConfig({CALL})).train()
        """,
    )
    settings = warm.settings(path)
    assert not [name for name in factors(settings) if name.startswith("peft.")]
    assert "trains without it" in settings.pinned["peft.r"]


def test_a_lora_config_whose_adapter_was_merged(warm, tmp_path):
    path = toys.write(
        tmp_path,
        f"""
        import toy
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM
        from trl import GRPOConfig
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = AutoModelForCausalLM.from_pretrained(toy.saved_model("saved"))
        toy.trainer(GRPOConfig({CALL}), model=get_peft_model(model, lora).merge_and_unload()).train()
        """,
    )
    assert factors(warm.settings(path))["peft.r"] == (8, 4)


def test_model_config(warm, tmp_path):
    path = toys.write(
        tmp_path,
        """
        import toy
        from transformers import AutoModelForCausalLM
        from trl import GRPOConfig, ModelConfig, ScriptArguments, TrlParser, get_peft_config
        script_args, args, model_args = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
        model = AutoModelForCausalLM.from_pretrained(toy.saved_model("saved"), dtype=model_args.dtype)
        print("MODEL", model.dtype, model_args.lora_r)
        toy.trainer(args, model=model, peft_config=get_peft_config(model_args)).train()
        """,
    )
    argv = [*FLAGS, "--dataset_name", "x", "--use_peft", "--lora_r", "4", "--dtype", "bfloat16"]
    settings = warm.settings(path, *argv)
    found = {name: levels for name, levels in factors(settings).items() if name not in EXPECTED}
    assert found == {"model.use_peft": (False, True), "model.lora_r": (16, 4), "model.dtype": ("float32", "bfloat16")}
    run = warm.run(
        path, *argv, settings=settings, configuration={**settings.bad, **{"model.lora_r": 16, "model.dtype": "float32"}}
    )
    assert "MODEL torch.float32 16" in (run.folder / "log.txt").read_text()


# ------------------------------------------------------------------------------------------------ fields of the user's
# own


def test_own_fields_of_a_subclass(warm, tmp_path):
    path = toys.write(
        tmp_path,
        f"""
        from dataclasses import dataclass
        import toy
        from trl import GRPOConfig

        @dataclass
        class MyConfig(GRPOConfig):
            bonus: float = 1.0
            note: str = "as it is"
        args = MyConfig({CALL}, bonus=5.0)
        print("BONUS", args.bonus)
        toy.trainer(args).train()
        """,
    )
    settings = warm.settings(path)
    assert factors(settings) == {**EXPECTED, "bonus": (1.0, 5.0)}
    run = warm.run(path, settings=settings, configuration={**settings.bad, "bonus": 1.0})
    assert "BONUS 1.0" in (run.folder / "log.txt").read_text()


# ------------------------------------------------------------------------------------------------ safe_config.yaml


def test_safe_config_is_loaded_by_trl_parser(warm, tmp_path):
    path = toys.write(
        tmp_path,
        f"""
        import toy
        from trl import GRPOConfig
        args = GRPOConfig({CALL}, lr_scheduler_kwargs={{"num_cycles": 2}}, lr_scheduler_type="cosine",
                          model_init_kwargs={{"dtype": "float32"}})
        toy.trainer(args).train()
        """,
    )
    settings = warm.settings(path)
    safe = {**settings.bad, "learning_rate": 1e-6, "warmup_steps": 0}
    loader = toys.write(
        tmp_path / "loader",
        """
        import toy
        from trl import GRPOConfig, TrlParser
        args, = TrlParser((GRPOConfig,)).parse_args_and_config()
        toy.trainer(args).train()
        """,
    )
    (tmp_path / "loader/safe_config.yaml").write_text(safe_yaml(settings, safe))
    loaded = warm.capture(loader, "--config", "safe_config.yaml").args.resolved
    wanted = {**settings.capture.args.resolved, "learning_rate": 1e-6, "warmup_steps": 0}

    def plain(values: dict) -> dict:
        shown = {name: value for name, value in values.items() if name not in {"output_dir", "logging_dir"}}
        return {n: json.loads(v) if isinstance(v, str) and v.startswith("{") else v for n, v in shown.items()}

    assert plain(loaded) == plain(wanted)
