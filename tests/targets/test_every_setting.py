"""Every field of the installed config classes, set by a user: a factor, pinned with a reason, or named as not varied.

Real TRL and PEFT. One process builds an object for each field with that field alone set to something else than its
default (values.yaml, or a value that follows from the type); from what the probe saw of each the factors are made. Then
the objects are built anew with the factors at their good, and at their bad level: they must come out as the library's
defaults, and as the user's own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toys
import yaml
from installed_classes import config_classes
from tools import slow

from bisect_cfg.common.configuration import equal
from bisect_cfg.common.parameters import parameter
from bisect_cfg.probe.protocol import ConfigResolved, Event
from bisect_cfg.rewrite.safe_config import safe_yaml
from bisect_cfg.targets.captured import entries, read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.factors import Factors

VALUES = yaml.safe_load(Path(__file__).with_name("values.yaml").read_text())

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


def arguments_for(name: str, default: object) -> str:
    """``name=value`` with a value that is not the default, and what it needs beside it."""
    value, beside = VALUES.get(name, ""), ""
    if isinstance(value, list):
        value, beside = value
    if not value:
        if isinstance(default, bool):
            value = repr(not default)
        elif isinstance(default, (int, float)):
            value = repr(default + 1 if isinstance(default, int) else default * 2 or 0.1)
        else:
            pytest.fail(f"{name} has no value here yet; its default is {default!r}. Add one to values.yaml.")
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
    names, known = config_classes()[cls], config_classes()["GRPOConfig"]
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
    names = config_classes()[cls]
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
