"""Every field of the installed config classes, set by a user: a factor, pinned with a reason, or named as not varied.

Real TRL and PEFT. One process builds an object for each field with that field alone set to something else than its
default (`VALUES`, or a value that follows from the type); from what the probe saw of each the factors are made. Then
the objects are built anew with the factors at their good, and at their bad level: they must come out as the library's
defaults, and as the user's own.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import pytest
import toys
import yaml
from tools import slow

from bisect_cfg.common.configuration import equal
from bisect_cfg.common.parameters import parameter
from bisect_cfg.probe.protocol import ConfigResolved, Event
from bisect_cfg.rewrite.safe_config import safe_yaml
from bisect_cfg.targets.captured import entries, read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.factors import Factors

VALUES: dict[str, str | tuple[str, str]] = {
    "output_dir": '"elsewhere"',
    "num_train_epochs": "1.0",
    "max_steps": "7",
    "lr_scheduler_type": '"cosine"',
    "lr_scheduler_kwargs": ('{"num_cycles": 2}', 'lr_scheduler_type="cosine"'),
    "optim": '"adamw_torch"',
    "optim_args": '"foreach=True"',
    "optim_target_modules": '["q_proj"]',
    "per_device_train_batch_size": "16",
    "adam_beta1": "0.8",
    "adam_beta2": "0.9",
    "bf16": "True",
    "tf32": "False",
    "fp16": ("True", "bf16=False"),
    "fp16_full_eval": "True",
    "activation_checkpointing": "False",
    "activation_checkpointing_kwargs": '{"use_reentrant": True}',
    "gradient_checkpointing_kwargs": '{"use_reentrant": True}',
    "torch_compile_backend": '"eager"',
    "torch_compile_mode": '"reduce-overhead"',
    "liger_kernel_config": ('{"rope": False}', "use_liger_kernel=True"),
    "neftune_noise_alpha": "5.0",
    "torch_empty_cache_steps": "3",
    "auto_find_batch_size": "True",
    "logging_strategy": '"epoch"',
    "logging_steps": "3",
    "include_num_input_tokens_seen": '"all"',
    "log_level": '"info"',
    "log_level_replica": '"info"',
    "disable_tqdm": "True",
    "report_to": '["tensorboard"]',
    "run_name": '"mine"',
    "project": '"mine"',
    "trackio_space_id": '"me/space"',
    "trackio_bucket_id": '"me/bucket"',
    "trackio_static_space_id": '"me/static"',
    "eval_strategy": '"steps"',
    "eval_steps": ("4", 'eval_strategy="steps"'),
    "eval_delay": "2",
    "eval_accumulation_steps": "2",
    "include_for_metrics": '["inputs"]',
    "save_strategy": '"epoch"',
    "save_steps": "50",
    "save_total_limit": "2",
    "hub_token": '"hf_abcdefgh"',
    "hub_private_repo": "True",
    "hub_model_id": '"me/model"',
    "hub_strategy": '"end"',
    "hub_revision": '"main"',
    "load_best_model_at_end": ("True", 'eval_strategy="steps", eval_steps=500'),
    "metric_for_best_model": '"reward"',
    "greater_is_better": "True",
    "data_seed": "1",
    "use_cpu": "True",
    "accelerator_config": '{"split_batches": True, "even_batches": False}',
    "parallelism_config": '__import__("accelerate").ParallelismConfig(dp_replicate_size=1, tp_size=1)',
    "dataloader_prefetch_factor": ("2", "dataloader_num_workers=2"),
    "dataloader_persistent_workers": ("True", "dataloader_num_workers=2"),
    "dataloader_multiprocessing_context": '"spawn"',
    "label_names": '["labels"]',
    "train_sampling_strategy": '"sequential"',
    "length_column_name": '"size"',
    "ddp_find_unused_parameters": "True",
    "ddp_bucket_cap_mb": "50",
    "ddp_broadcast_buffers": "True",
    "ddp_static_graph": "True",
    "ddp_backend": '"gloo"',
    "fsdp": '"full_shard"',
    "fsdp_config": '{"fsdp_min_num_params": 100, "xla": False}',
    "deepspeed": '{"zero_optimization": {"stage": 2}}',
    "debug": '"underflow_overflow"',
    "do_eval": "True",
    "resume_from_checkpoint": '"nowhere"',
    "local_rank": "0",
    "model_init_kwargs": '{"dtype": "float16", "attn_implementation": "eager"}',
    "router_aux_loss_coef": "0.01",
    "num_generations_eval": "4",
    "num_generations": "4",
    "generation_batch_size": "16",
    "steps_per_generation": "2",
    "gradient_accumulation_steps": "2",
    "per_device_eval_batch_size": "16",
    "pad_to_multiple_of": "8",
    "top_k": "50",
    "top_p": "0.9",
    "temperature": "0.9",
    "min_p": "0.1",
    "max_completion_length": "256",
    "generation_kwargs": '{"length_penalty": 1.5, "suppress_tokens": [3]}',
    "chat_template_kwargs": '{"enable_thinking": False}',
    "cache_implementation": '"static"',
    "vllm_mode": '"server"',
    "vllm_model_impl": '"transformers"',
    "vllm_structured_outputs_regex": '"a+"',
    "vllm_server_base_url": '"http://localhost:8000"',
    "vllm_server_host": '"127.0.0.1"',
    "vllm_max_model_length": "1024",
    "vllm_gpu_memory_utilization": "0.5",
    "delta": "2.0",
    "epsilon_high": "0.28",
    "importance_sampling_level": '"sequence"',
    "reward_weights": "[0.7, 0.3]",
    "multi_objective_aggregation": '"normalize_then_sum"',
    "scale_rewards": '"none"',
    "loss_type": '"dr_grpo"',
    "max_tool_calling_iterations": "3",
    "vllm_importance_sampling_mode": '"token_mask"',
    "vllm_importance_sampling_clip_max": "2.0",
    "vllm_importance_sampling_clip_min": "0.1",
    "vllm_importance_sampling_cap": "2.0",
    "off_policy_mask_threshold": "0.5",
    "num_completions_to_print": "3",
    "log_completions_hub_repo": ('"me/completions"', "log_completions=True"),
    "transformers_continuous_batching_config": '{"max_batch_tokens": 512}',
    "top_entropy_quantile": "0.8",
    # SFTConfig, DPOConfig
    "chat_template_path": '"template.jinja"',
    "dataset_text_field": '"content"',
    "dataset_kwargs": '{"skip_prepare_dataset": True}',
    "dataset_num_proc": "2",
    "eos_token": '"</s>"',
    "pad_token": '"<pad>"',
    "truncation_mode": '"keep_end"',
    "packing_strategy": '"wrapped"',
    "eval_packing": "True",
    "completion_only_loss": "True",
    "precompute_ref_batch_size": "4",
    "loss_weights": ("[1.0, 0.5]", 'loss_type=["sigmoid", "bco_pair"]'),
    "ld_alpha": "0.5",
    "f_divergence_type": '"js_divergence"',
    # ModelConfig, LoraConfig
    "model_name_or_path": '"me/model"',
    "model_revision": '"v2"',
    "dtype": '"bfloat16"',
    "attn_implementation": '"eager"',
    "lora_target_modules": '["q_proj"]',
    "lora_target_parameters": '["mlp.experts"]',
    "lora_modules_to_save": '["lm_head"]',
    "lora_task_type": '"SEQ_CLS"',
    "bnb_4bit_quant_type": '"fp4"',
    "bnb_4bit_quant_storage": '"bfloat16"',
    "task_type": '"CAUSAL_LM"',
    "peft_type": '"LORA"',
    "auto_mapping": '{"base_model_class": "Mine"}',
    "peft_version": '"0.1"',
    "base_model_name_or_path": '"me/model"',
    "revision": '"v2"',
    "target_modules": '["q_proj"]',
    "exclude_modules": '["k_proj"]',
    "bias": '"all"',
    "modules_to_save": '["lm_head"]',
    "init_lora_weights": '"gaussian"',
    "layers_to_transform": ("[0]", 'target_modules=["q_proj"]'),
    "layers_pattern": ('"layers"', 'target_modules=["q_proj"], layers_to_transform=[0]'),
    "rank_pattern": '{"q_proj": 4}',
    "alpha_pattern": '{"q_proj": 4}',
    "megatron_config": '{"tp": 1}',
    "megatron_core": '"mine.core"',
    "trainable_token_indices": "[1, 2]",
    "loftq_config": ('{"loftq_bits": 8}', 'init_lora_weights="loftq"'),
    "eva_config": ('__import__("peft").EvaConfig(rho=3.0)', 'init_lora_weights="eva"'),
    "corda_config": (
        '__import__("peft.tuners.lora.config", fromlist=["x"]).CordaConfig()',
        'init_lora_weights="corda"',
    ),
    "lora_ga_config": '__import__("peft.tuners.lora.config", fromlist=["x"]).LoraGAConfig()',
    "velora_config": '__import__("peft.tuners.lora.config", fromlist=["x"]).VeloraConfig()',
    "monteclora_config": '__import__("peft.tuners.lora.config", fromlist=["x"]).MontecloraConfig()',
    "kasa_config": '__import__("peft.tuners.lora.config", fromlist=["x"]).KasaConfig()',
    "arrow_config": '__import__("peft.tuners.lora.config", fromlist=["x"]).ArrowConfig()',
    "use_bdlora": '__import__("peft.tuners.lora.config", fromlist=["x"]).BdLoraConfig()',
    "runtime_config": '__import__("peft").LoraRuntimeConfig(ephemeral_gpu_offload=True)',
    "alora_invocation_tokens": "[1, 2]",
    "layer_replication": "[(0, 1), (0, 1)]",
    "target_parameters": '["mlp.experts"]',
    "lora_dropout": "0.2",
}
"""Source text of a valid value that is not the default; with a second text, what it needs beside it. What is not here
is a bool, an int or a float, for which there is an obvious other value."""

CLASSES = {"GRPOConfig": "trl", "SFTConfig": "trl", "DPOConfig": "trl", "ModelConfig": "trl", "LoraConfig": "peft"}

BUILD = """
import json, sys, warnings
warnings.simplefilter("ignore")
cases = json.loads(open(sys.argv[1]).read())
state = sys.modules["_bisect_cfg_probe.sources"].state
objects = []
for case in cases:
    state.overrides = case["overrides"]
    try:
        space = {}
        exec("from %s import %s" % (case["module"], case["cls"]), space)
        objects.append(eval("%s(%s)" % (case["cls"], case["arguments"]), space))
    except Exception as error:
        print("REFUSED", case["name"], error)
"""


def fields(cls: str) -> dict[str, object]:
    """Name -> default of all fields that can be passed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(__import__(CLASSES[cls]), cls)
    found = {}
    for field in dataclasses.fields(made):
        if field.init:
            factory = field.default_factory
            found[field.name] = field.default if factory is dataclasses.MISSING else factory()
    return found


def arguments_for(name: str, default: object) -> str:
    """``name=value`` with a value that is not the default, and what it needs beside it."""
    value, beside = VALUES.get(name, ""), ""
    if isinstance(value, tuple):
        value, beside = value
    if not value:
        if isinstance(default, bool):
            value = repr(not default)
        elif isinstance(default, (int, float)):
            value = repr(default + 1 if isinstance(default, int) else default * 2 or 0.1)
        else:
            pytest.fail(f"{name} has no value here yet; its default is {default!r}. Add one to VALUES.")
    return ", ".join(filter(None, [f"{name}={value}", beside]))


def built(warm, folder: Path, cases: list[dict]) -> tuple[list[Event], list[str]]:
    """Build objects in a process of its own.

    Returns:
        What the probe recorded, and the names of the cases that the library refused.
    """
    folder.mkdir(exist_ok=True)
    script, listed = folder / "build.py", folder / "cases.json"
    script.write_text(BUILD)
    listed.write_text(json.dumps(cases))
    run = warm.run(script, str(listed), patience=300)
    log = (run.folder / "log.txt").read_text().splitlines()
    return run.traces.events.rows, [line.split()[1] for line in log if line.startswith("REFUSED ")]


def of_object(rows: list[Event], kind: str, index: int) -> list[Event]:
    """What was recorded of one object."""
    return [row for row in rows if (getattr(row, "kind", ""), getattr(row, "index", None)) == (kind, index)]


def resolution(rows: list[Event], kind: str, index: int) -> dict:
    """What one object came to."""
    return next(row.values for row in of_object(rows, kind, index) if isinstance(row, ConfigResolved))


def resolved(rows: list[Event], kind: str, index: int) -> dict:
    """What one object came to, without what is the same in every trial."""
    values = resolution(rows, kind, index)
    return {name: value for name, value in values.items() if not parameter(name).pinned}


def case(cls: str, arguments: str, name: str = "", overrides: dict | None = None) -> dict:
    return {"cls": cls, "module": CLASSES[cls], "arguments": arguments, "name": name, "overrides": overrides or {}}


def seen_of(warm, rows: list[Event], index: int, **options: object) -> Factors:
    """The factors, as if this object were the only one."""
    capture = read_capture(of_object(rows, "args", index))
    return Comparison(capture, warm.server.resolve, **options).factors()


def is_accounted_for(name: str, settings: Factors) -> bool:
    known = [*(factor.name for factor in settings.varied), *settings.pinned, *settings.same]
    return any(other.split(".")[0] == name for other in known)


REFUSED = {"auto_find_batch_size", "ddp_backend", "deepspeed"}
"""What cannot be set here: GRPO refuses it, there is no process group, deepspeed is not installed."""

OBJECTS = {
    "accelerator_config",
    "model_init_kwargs",
    "lr_scheduler_kwargs",
    "fsdp_config",
    "parallelism_config",
    "optim_args",
}

SAME = {"bf16", "dataloader_pin_memory"}
"""What comes to the same as the default here: bf16=None is bf16 unless fp16 is set, use_cpu switches pinning off."""


@pytest.mark.parametrize("cls", ["GRPOConfig", slow("SFTConfig"), slow("DPOConfig")])
def test_every_field_of_a_training_config(warm, tmp_path, cls):
    names, known = fields(cls), fields("GRPOConfig")
    if cls != "GRPOConfig":  # what it has in common with GRPOConfig, it inherits from the same class
        names = {name: default for name, default in names.items() if known.get(name, "") != default or name in OBJECTS}
    users = [
        case(
            cls,
            ", ".join(filter(None, ["" if name == "use_cpu" else "use_cpu=True", arguments_for(name, default)])),
            name,
        )
        for name, default in names.items()
    ]
    rows, refused = built(warm, tmp_path / "users", [*users, case(cls, "use_cpu=True")])
    assert set(refused) <= REFUSED
    default = resolved(rows, "args", len(users))
    found = {
        index: seen_of(warm, rows, index)
        for index, user in enumerate(users) if user["name"] not in refused
    }  # fmt: skip

    forgotten = [
        users[index]["name"]
        for index, settings in found.items()
        if not is_accounted_for(users[index]["name"], settings)
    ]
    assert forgotten == []
    silent = {users[index]["name"] for index, settings in found.items() if not settings.varied}
    assert {name for name in silent if not parameter(name).pinned} <= SAME
    assert all(reason for settings in found.values() for reason in settings.pinned.values())

    # Trials: everything at its good level, everything at its bad level, and each key of a dictionary alone at good.
    trials = []
    for index, settings in found.items():
        keys = [factor.name for factor in settings.varied if "." in factor.name]
        levels = [settings.good, settings.bad, *({**settings.bad, key: settings.good[key]} for key in keys)]
        trials += [(index, level, {**users[index], "overrides": settings.overrides(level)}) for level in levels]
    again, _ = built(warm, tmp_path / "trials", [trial for _, _, trial in trials])
    for position, (index, level, trial) in enumerate(trials):
        settings, theirs = found[index], resolved(rows, "args", index)
        ours = resolved(again, "args", position)
        if level == settings.good:
            assert ours == default, trial
        elif level == settings.bad:
            assert ours == theirs, trial
        else:
            field, _, key = next(name for name in level if not equal(level[name], settings.bad[name])).partition(".")
            ours, theirs, usual = (entries(values[field]) or {} for values in (ours, theirs, default))
            if key in theirs:  # transformers takes the "fsdp_" off some
                assert ours == {
                    **{k: v for k, v in theirs.items() if k != key},
                    **({key: usual[key]} if key in usual else {}),
                }


@pytest.mark.parametrize(
    "cls, kind, namespace", [("ModelConfig", "modelcfg", "model"), slow("LoraConfig", "peft", "peft")]
)
def test_every_field_of_the_model_and_of_lora(warm, tmp_path, cls, kind, namespace):
    names = fields(cls)
    users = [case(cls, arguments_for(name, default), name) for name, default in names.items()]
    rows, refused = built(warm, tmp_path / "users", [*users, case("GRPOConfig", "use_cpu=True")])
    args = [row for row in rows if getattr(row, "kind", "") == "args"]
    found = {}
    for index, user in enumerate(users):
        if user["name"] in refused:
            continue
        mine = [*of_object(rows, kind, index), *args]
        settings = Comparison(read_capture(mine), warm.server.resolve).factors()
        full = f"{namespace}.{user['name']}"
        assert full in settings.good or full in settings.pinned, user
        found[index] = settings
    assert len(found) >= len(users) - 3

    trials = [(index, level) for index, settings in found.items() for level in (settings.good, settings.bad)]
    cases = [{**users[index], "overrides": found[index].overrides(level)} for index, level in trials]
    again, _ = built(warm, tmp_path / "trials", [*cases, case(cls, "")])
    default = resolution(again, kind, len(cases))
    for position, (index, level) in enumerate(trials):
        settings, values = found[index], resolution(again, kind, position)
        wanted = default if level == settings.good else resolution(rows, kind, index)
        assert all(values[name] == wanted[name] for name in values if f"{namespace}.{name}" not in settings.pinned), (
            cases[position]
        )


# ------------------------------------------------------------------------------------ ways in which a setting is passed

IMPORTS = """
import json, sys
import toy, torch
from _bisect_cfg_probe import values
from accelerate.utils import ParallelismConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.trainer_pt_utils import AcceleratorConfig
from trl import GRPOConfig
"""

SPLIT = {"accelerator_config.split_batches": (False, True)}

WAYS = {
    "an object": ("args = GRPOConfig({}, accelerator_config=AcceleratorConfig(split_batches=True))", SPLIT),
    "a dictionary": ("args = GRPOConfig({}, accelerator_config=dict(split_batches=True, even_batches=True))", SPLIT),
    "JSON text": ('args = GRPOConfig({}, accelerator_config=\'{{"split_batches": "true"}}\')', SPLIT),
    "an object in a dictionary": (
        "args = GRPOConfig({}, model_init_kwargs=dict(dtype='float16', quantization_config=BitsAndBytesConfig(True)))",
        {"model_init_kwargs.dtype": (None, "float16"), "model_init_kwargs.quantization_config": (None, ...)},
    ),
    "a key that the library renames": (
        "args = GRPOConfig({}, fsdp_config=dict(fsdp_min_num_params=7))",
        {"fsdp_config.fsdp_min_num_params": (None, 7)},
    ),
    "a method of the library": (
        "args = GRPOConfig({})\nargs.set_optimizer(name='sgd', weight_decay=0.1, learning_rate=2e-3)",
        {"optim": ("adamw_torch_fused", "sgd"), "weight_decay": (0.0, 0.1), "learning_rate": (1e-6, 2e-3)},
    ),
    "a copy": (
        "import copy\nargs = copy.deepcopy(GRPOConfig({}, delta=2.0))\nargs.epsilon = 0.3",
        {"delta": (None, 2.0), "epsilon": (0.2, 0.3)},
    ),
    "a replaced copy": (
        "import dataclasses\nargs = dataclasses.replace(GRPOConfig({}, delta=2.0), epsilon=0.3, "
        "generation_batch_size=None)",
        {"delta": (None, 2.0), "epsilon": (0.2, 0.3)},
    ),
}
"""What a script does, and the factors that come of it: name -> (good, bad)."""

AT_FIRST = {"a dictionary", "an object in a dictionary", "a method of the library"}
"""Shown before anything lands; the other ways are slow."""


@pytest.mark.parametrize("way", [way if way in AT_FIRST else slow(way) for way in WAYS])
def test_however_it_is_passed(warm, tmp_path, way):
    text, wanted = WAYS[way]
    told = (
        "print('NOW', json.dumps({name: values.encode(getattr(args, name)) for name in vars(args) if name[0] != '_'}))"
    )
    script = toys.write(tmp_path, "\n".join([IMPORTS, text.format(toys.settings()), told, "toy.trainer(args).train()"]))
    settings = warm.settings(script)
    usual = {"per_device_train_batch_size", "num_generations", "max_completion_length", "bf16"}
    found = {factor.name: (factor.good, factor.bad) for factor in settings.varied if factor.name not in usual}
    assert found.keys() == wanted.keys()
    for name, (good, bad) in wanted.items():
        assert found[name][0] == good and bad in (..., found[name][1]), name
    yaml.safe_load(safe_yaml(settings, {**settings.bad, **{name: settings.good[name] for name in wanted}}))
    # A trial in which these are good comes to what the library has by itself; one in which they are bad, to the user's.
    rest = {name: settings.bad[name] for name in settings.bad if name in usual}
    for level in ("good", "bad"):
        run = warm.run(script, settings=settings, configuration={**getattr(settings, level), **rest})
        assert run.seen.died is None
        log = (run.folder / "log.txt").read_text().splitlines()
        values = next(json.loads(line.partition(" ")[2]) for line in log if line.startswith("NOW "))
        for name in wanted:
            assert lookup(values, name) == lookup(settings.capture.args.resolved, name) or level == "good"
            assert level == "bad" or lookup(values, name) == settings.good[name]


def lookup(values: dict, name: str) -> object:
    field, _, key = name.partition(".")
    return (entries(values[field]) or {}).get(key) if key else values[field]


def test_what_no_trial_can_follow_is_named(warm, tmp_path):
    script = toys.write(
        tmp_path,
        IMPORTS
        + f"""
from dataclasses import dataclass, field

@dataclass(kw_only=True)
class Mine(GRPOConfig):
    needed: int

model = AutoModelForCausalLM.from_pretrained(toy.saved_model("model"), dtype="float32", low_cpu_mem_usage=True)
args = Mine({toys.settings()}, needed=3, run_name="mine", bf16_full_eval=False, model_init_kwargs=dict(dtype="float16"),
            lr_scheduler_kwargs={{}}, reward_weights=[1.0])
args.model_init_kwargs["attn_implementation"] = "eager"
args.reward_weights.append(2.0)
args.reward_weights.pop()
vars(args)["temperature"] = 0.7
args.reward_weights[0] = 3.0
toy.trainer(args, model=model).train()
""",
    )
    settings = warm.settings(script)
    why = settings.pinned
    assert "no default" in why["needed"]
    assert (
        "in place" in why["model_init_kwargs"]
        and "in place" in why["temperature"]
        and "in place" in why["reward_weights"]
    )
    assert "place" in why["run_name"] and "device" in why["use_cpu"]
    assert "from_pretrained" in why["model.low_cpu_mem_usage"]
    assert "model_init_kwargs.dtype" in settings.good and "needed" not in settings.good
    assert "lr_scheduler_kwargs" in settings.same or "lr_scheduler_kwargs" in settings.good
