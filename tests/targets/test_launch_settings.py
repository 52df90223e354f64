"""What a launcher was asked for: the settings of a launch, and whether the training has them."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import BuildAnswer, ConfigBuilt, ConfigResolved, RankBegin
from bisect_cfg.targets.captured import Capture, Source, read_capture
from bisect_cfg.targets.comparison import Comparison
from bisect_cfg.targets.factors import Factors, processes_in
from bisect_cfg.targets.good import read_good
from bisect_cfg.targets.launch_settings import (
    AUTO,
    DEEPSPEED_FILE,
    Accelerate,
    Asked,
    ask_accelerate,
    asked_in_file,
    asked_of,
    findings,
    given_to_each,
    launch_settings,
    launcher_levels,
    leaves,
    text_of,
    unheard,
    value_of,
    with_leaves,
    without_launcher,
)

HANDED_ON = {
    "launch.fsdp_config.fsdp_version": ("FSDP_VERSION", 1),
    "launch.fsdp_config.fsdp_offload_params": ("FSDP_OFFLOAD_PARAMS", False),
    "launch.fsdp_config.fsdp_transformer_layer_cls_to_wrap": ("FSDP_TRANSFORMER_CLS_TO_WRAP", None),
    "launch.deepspeed_config.zero_stage": ("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2),
    "launch.deepspeed_config.offload_param_device": ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"),
    "launch.deepspeed_config.gradient_accumulation_steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", None),
    "launch.deepspeed_config.gradient_clipping": ("ACCELERATE_GRADIENT_CLIPPING", None),
}
KNOWN = Accelerate({name: one[0] for name, one in HANDED_ON.items()}, {name: one[1] for name, one in HANDED_ON.items()})
"""Some of what accelerate answers."""

ASKED = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_FSDP": "true"}

FSDP = {
    **ASKED,
    "FSDP_VERSION": "2",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Qwen2DecoderLayer",
}

ZERO = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": 4,
    "wall_clock_breakdown": False,
}


def differing(found: list[Asked]) -> dict[str, object]:
    return {one.name: one.value for one in found if one.value != one.plain}


def test_what_is_not_as_in_the_plain_launch():
    found = asked_of(ASKED, {"distributed_type": "FSDP", "mixed_precision": "bf16"})
    assert differing(found) == {"launch.mixed_precision": "bf16", "launch.distributed_type": "FSDP"}
    plain = asked_of({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_FSDP": "false", "RANK": "0"}, {})
    assert differing(plain) == {}


def test_what_was_asked_for_and_is_not_in_force():
    """accelerate 1.15 trains with DDP where FSDP is asked for on a CPU."""
    found = asked_of(FSDP, {"distributed_type": "MULTI_CPU", "mixed_precision": "no"}, KNOWN)
    assert {one.name: one.reason for one in found if one.value != one.plain} == {
        "launch.mixed_precision": "it was asked for and is not in force: the training has no",
        "launch.distributed_type": "it was asked for and is not in force: the training has MULTI_CPU",
    }  # and no key of FSDP's


@pytest.mark.parametrize(
    ("kind", "wanted", "started", "together", "says"),
    [
        ("accelerate", 2, 1, 1, ["You asked for 2 processes, and one process trained", "--multi_gpu"]),
        ("torchrun", 2, 2, 1, ["2 processes were started, and each trains by itself", "use_cpu=True"]),
        ("deepspeed", 4, 2, 2, ["You asked for 4 processes, and 2 processes trained together"]),
        ("accelerate", 2, 2, 2, []),
        ("accelerate", None, 2, 2, []),
    ],
)
def test_fewer_processes_than_were_asked_for(kind, wanted, started, together, says):
    found = " ".join(findings(kind, wanted, started, together, []))
    assert all(word in found for word in says) and bool(found) is bool(says)


def test_sharding_that_is_not_in_force_is_a_finding():
    (text,) = findings(
        "accelerate", 2, 2, 2, asked_of({"ACCELERATE_USE_FSDP": "true"}, {"distributed_type": "MULTI_CPU"})
    )
    assert text.startswith(
        "launch.distributed_type=FSDP: it was asked for and is not in force: the training has MULTI_CPU."
    )
    assert "shards nothing on a CPU" in text
    assert (
        findings("accelerate", 2, 2, 2, asked_of({"ACCELERATE_USE_FSDP": "true"}, {"distributed_type": "FSDP"})) == []
    )


def test_the_keys_of_a_section_are_settings_where_it_is_in_force():
    found = differing(asked_of(FSDP, {"distributed_type": "FSDP", "mixed_precision": "bf16"}, KNOWN))
    assert {name: value for name, value in found.items() if "fsdp_config" in name} == {
        "launch.fsdp_config.fsdp_version": 2,
        "launch.fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Qwen2DecoderLayer",
    }
    zero = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
        "ACCELERATE_GRADIENT_CLIPPING": "0.5",
    }
    assert differing(asked_of(zero, {}, KNOWN)) == {
        "launch.distributed_type": "DEEPSPEED",
        "launch.deepspeed_config.zero_stage": 3,
        "launch.deepspeed_config.gradient_clipping": 0.5,
    }


def test_a_level_is_environment_variables():
    of = KNOWN.variables_of
    assert of("launch.mixed_precision", "no") == {"ACCELERATE_MIXED_PRECISION": "no"}
    assert of("launch.distributed_type", "NO") == {"ACCELERATE_USE_FSDP": None, "ACCELERATE_USE_DEEPSPEED": None}
    assert of("launch.fsdp_config.fsdp_transformer_layer_cls_to_wrap", None) == {"FSDP_TRANSFORMER_CLS_TO_WRAP": None}
    assert of("launch.fsdp_config.fsdp_offload_params", True) == {"FSDP_OFFLOAD_PARAMS": "true"}
    assert of("launch.num_processes", 1) == of("launch.launcher", "python") == {}


VALUES = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.from_regex(r"[A-Z_]+", fullmatch=True),
)


@pytest.mark.training
@given(VALUES)
def test_a_value_comes_back_from_its_variable(value: object) -> None:
    again = value_of(text_of(value))
    if isinstance(value, str) and value.lower() in ("true", "false"):
        assert again is (value.lower() == "true")
    else:
        assert again == value and type(again) is type(value)


# ---------------------------------------------------------------------------------------------------- DeepSpeed's file


def test_the_keys_of_a_deepspeed_file():
    found = {one.name.removeprefix(DEEPSPEED_FILE): (one.value, one.plain) for one in asked_in_file(ZERO)}
    assert found == {
        "zero_optimization.stage": (3, 0),
        "zero_optimization.offload_optimizer.device": ("cpu", None),
        "zero_optimization.offload_optimizer.pin_memory": (True, None),
        "optimizer": (ZERO["optimizer"], None),  # its parameters mean nothing without its type
        "train_micro_batch_size_per_gpu": (4, AUTO),
        "wall_clock_breakdown": (False, None),
    }


KEYS = st.from_regex(r"[a-z_]{1,5}", fullmatch=True)
CONTENT = st.dictionaries(
    KEYS,
    st.recursive(
        st.one_of(st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2)),
        lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@pytest.mark.training
@given(CONTENT, st.data())
def test_a_file_varied_key_by_key_and_back_is_the_same(content: dict[str, object], data: st.DataObject) -> None:
    own = dict(leaves(content))
    before = json.dumps(content, sort_keys=True)
    chosen = data.draw(st.lists(st.sampled_from(sorted(own)), unique=True)) if own else []
    now = content
    for name in chosen:
        level = data.draw(st.sampled_from([None, 0, AUTO]))
        now = with_leaves(now, {name: level})
        rest = {other: value for other, value in leaves(now) if other in own and other != name}
        assert all(dict(leaves(now)).get(other) == value for other, value in rest.items())
        assert dict(leaves(now)).get(name) == level
    now = with_leaves(now, {name: own[name] for name in chosen})
    assert json.dumps(now, sort_keys=True) == before == json.dumps(content, sort_keys=True)


# -------------------------------------------------------------------------------------------------- who starts them


@pytest.mark.parametrize(
    ("typed", "processes", "devices", "levels"),
    [
        ("python", 1, 1, None),
        ("python", 1, 2, ("accelerate launch", "python")),
        ("torchrun", 1, 1, ("python", "torchrun")),
        ("accelerate", 1, 1, ("python", "accelerate launch")),
        ("accelerate", 1, 4, ("accelerate launch", "accelerate launch --num_processes 1")),
        ("torchrun", 2, 1, None),
    ],
)
def test_the_launcher_is_a_setting_where_one_process_trains(typed, processes, devices, levels):
    assert launcher_levels(typed, processes, devices) == levels


def test_the_launcher_is_no_setting_where_a_model_is_shared_out():
    asked = asked_of({"ACCELERATE_USE_FSDP": "true"}, {"distributed_type": "FSDP"})
    assert launcher_levels("accelerate", 1, 1, asked) is None
    asked = asked_of({"ACCELERATE_USE_FSDP": "true"}, {"distributed_type": "MULTI_CPU"})
    assert launcher_levels("accelerate", 1, 1, asked) == ("python", "accelerate launch")


def test_plain_python_has_what_is_a_setting_and_nothing_else_of_the_launcher():
    kept = {**FSDP, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1"}
    gone = without_launcher({**kept, **given_to_each(1)[0], "ACCELERATE_USE_CPU": "True"}, KNOWN)
    assert {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "ACCELERATE_USE_CPU"} <= set(gone)
    assert not set(kept) & set(gone)


def test_processes_of_a_launcher_count_as_such_when_configurations_are_checked():
    args = Source(
        "args", 0, "GRPOConfig", "trl", {"bf16": True}, {"bf16": False}, {"bf16": "bool"}, {"bf16": True}, devices=3
    )
    seen: list[int] = []

    def resolve(request):
        seen.append(request.world_size)
        return BuildAnswer({**request.raw, **{name: False for name in request.overrides}})

    settings = Comparison(Capture(args, {}, (("args", 0),), (), {}), resolve).factors()
    assert settings.good == {"bf16": False, "launch.launcher": "accelerate launch"}
    assert (
        settings.build_request(settings.good).world_size == 3 and settings.build_request(settings.bad).world_size == 1
    )
    assert processes_in(args, settings.overrides(settings.good)) == 3


# ------------------------------------------------------------------------------------------------ what a run has shown


def capture_of(
    given: dict[str, str], raw: dict[str, object], words: tuple[str, ...] = ("python", "train.py")
) -> Capture:
    """Of a run of one process that died before it trained."""
    fields = {name: None for name in raw}
    return read_capture(
        [
            RankBegin(1, 0, 1, list(words), given),
            ConfigBuilt("args", 0, "GRPOConfig", "trl", raw, fields, dict.fromkeys(fields, "str | None")),
            ConfigResolved("args", 0, raw),
        ]
    )


def test_a_run_that_dies_before_it_trains_shows_who_has_started_it():
    assert capture_of({}, {}).started and not capture_of({}, {}, ()).started


def settings_of(given: dict[str, str], good: dict[str, object]) -> Factors:
    found = capture_of(given, {}).with_accelerate(KNOWN)
    return Comparison(found, lambda request: BuildAnswer(dict(request.raw)), good=good, launcher="torchrun").factors()


def test_a_good_side_that_the_launch_says_nothing_of():
    good = {"launch.mixed_precision": "bf16", "launch.distributed_type": "NO", "launch.fsdp_config.fsdp_version": 2}
    settings = settings_of({}, good)
    assert settings.good == {
        "launch.launcher": "python",
        "launch.mixed_precision": "bf16",
        "launch.fsdp_config.fsdp_version": 2,
    }
    assert settings.bad == {
        "launch.launcher": "torchrun",
        "launch.mixed_precision": "no",
        "launch.fsdp_config.fsdp_version": 1,
    }
    assert settings.overrides(settings.good)["launch.fsdp_config.fsdp_version"] == 2
    with pytest.raises(InputError, match="no DeepSpeed file is in force"):
        settings_of({}, {"launch.deepspeed.zero_optimization.stage": 2})
    for typed, meant in (("num_procesess", "num_processes"), ("fsdp_config.fsdp_verison", "fsdp_config.fsdp_version")):
        with pytest.raises(InputError) as refused:
            settings_of({}, {f"launch.{typed}": 2})
        assert refused.value.advice == f"Did you mean launch.{meant}?"
    unheard = "launch.deepspeed_config.deepspeed_hostfile"
    assert "nothing that accelerate hands" in settings_of({}, {unheard: "x"}).pinned[unheard]


def test_how_many_processes_a_script_starts_is_its_own_affair():
    found = replace(capture_of({}, {}), started=True)
    found = replace(found, args=replace(found.args, world_size=2))

    def settings(**options):
        return Comparison(found, lambda request: BuildAnswer(dict(request.raw)), **options).factors()

    assert settings(launcher="torchrun").bad == {"launch.num_processes": 2}
    alone = settings(relaunched=False)
    assert not alone.bad and alone.pinned["launch.num_processes"] == "the script starts its processes itself"
    assert not settings(relaunched=False, good={"launch.num_processes": 2}).bad
    with pytest.raises(InputError, match="starts its processes itself, 2 of them"):
        settings(relaunched=False, good={"launch.num_processes": 4})


def test_a_good_side_that_leaves_the_launch_as_it_is():
    given = {"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true"}
    good = {"launch.distributed_type": "FSDP", "launch.fsdp_config.fsdp_offload_params": True}
    assert settings_of(given, good).good == {}
    assert set(settings_of(given, {}).good) == set(good)


@pytest.mark.parametrize("of_launcher", [True, False])
def test_a_deepspeed_file_is_found_where_it_is_named(tmp_path: Path, of_launcher: bool):
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(ZERO))
    launcher = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(path)}
    found = capture_of(launcher if of_launcher else {}, {} if of_launcher else {"deepspeed": str(path)})
    assert found.deepspeed.content == ZERO and found.deepspeed.of_launcher is of_launcher
    settings = Comparison(
        found, lambda request: BuildAnswer({**request.raw, **dict.fromkeys(request.overrides)})
    ).factors()
    assert settings.bad["launch.deepspeed.zero_optimization.stage"] == 3
    assert settings.good["launch.deepspeed.zero_optimization.stage"] == 0
    assert ("deepspeed" in settings.bad) is not of_launcher
    path.write_text("{")
    assert capture_of(launcher, {}).deepspeed is None


# ------------------------------------------------------------------------------------------------- accelerate is asked


@pytest.mark.training
def test_accelerate_says_how_it_hands_on_its_settings(tmp_path):
    """The one that is installed, in the interpreter that trains."""
    path = tmp_path / "launch.yaml"
    path.write_text("distributed_type: FSDP\nnum_processes: 8\n")
    told = ask_accelerate(sys.executable, ("--config_file", str(path), "--fsdp_offload_params", "true"))
    assert KNOWN.variables.items() <= told.variables.items() and KNOWN.plain.items() <= told.plain.items()
    assert told.variables["launch.dynamo_config.dynamo_mode"] == "ACCELERATE_DYNAMO_MODE"
    assert told.plain["launch.fp8_config.fp8_pad_inner_dim"] is True
    assert len({*told.variables.values()}) == len(told.variables) > 30
    assert told.processes == 8 and "fsdp_offload_params" in told.typed and "fsdp_version" not in told.typed
    assert told.types["launch.fsdp_config.fsdp_offload_params"] == "bool"


def test_where_accelerate_cannot_be_asked_its_sections_are_not_known():
    assert ask_accelerate("/no/such/python") == Accelerate()


@pytest.mark.parametrize(
    ("typed", "given", "said"),
    [
        ("gradient_accumulation_steps", {}, ["--gradient_accumulation_steps"]),
        ("zero_stage", {"ACCELERATE_USE_DEEPSPEED": "true"}, []),
        ("fsdp_offload_params", {}, ["--fsdp_offload_params"]),
        ("fsdp_offload_params", {"ACCELERATE_USE_FSDP": "true"}, []),
    ],
)
def test_flags_that_nobody_is_told_of(typed, given, said):
    accelerate = replace(KNOWN, typed=(typed,))
    assert [text.split()[0] for text in unheard(accelerate, asked_of(given, {}, accelerate))] == said


# ---------------------------------------------------------------------------------------------------- accelerate's file


def test_the_settings_in_accelerates_file_go_by_the_names_of_the_launch(tmp_path):
    path = tmp_path / "launch.yaml"
    path.write_text("""\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: reduce-overhead}
fsdp_config:
  offload_params: true
  fsdp_version: 2
mixed_precision: bf16
num_machines: 1
num_processes: 8
""")
    settings = {
        "launch.distributed_type": "FSDP",
        "launch.num_processes": 8,
        "launch.mixed_precision": "bf16",
        "launch.fsdp_config.fsdp_offload_params": True,
        "launch.fsdp_config.fsdp_version": 2,
        "launch.dynamo_backend": "INDUCTOR",
        "launch.dynamo_config.dynamo_mode": "reduce-overhead",
    }
    assert read_good([str(path), "launch.num_processes=2"]) == {**settings, "launch.num_processes": 2}
    path.write_text("launch:\n  num_processes: 2\nlearning_rate: 1.0e-6\n")
    assert read_good([str(path)]) == {"launch.num_processes": 2, "learning_rate": 1e-6}


def test_the_files_that_trl_brings_along():
    (folder,) = importlib.util.find_spec("trl").submodule_search_locations
    found = {path.stem: read_good([str(path)]) for path in Path(folder, "accelerate_configs").glob("*.yaml")}
    assert {name: one["launch.distributed_type"] for name, one in found.items()} == {
        "single_gpu": "NO",
        "multi_gpu": "NO",
        **dict.fromkeys(("fsdp1", "fsdp2"), "FSDP"),
        **dict.fromkeys(("zero1", "zero2", "zero3"), "DEEPSPEED"),
    }
    assert found["single_gpu"]["launch.num_processes"] == 1 < found["multi_gpu"]["launch.num_processes"]
    assert found["zero3"]["launch.deepspeed_config.zero_stage"] == 3
    assert found["fsdp2"]["launch.fsdp_config.fsdp_version"] == 2


def test_the_deepspeed_file_that_accelerates_file_names(tmp_path):
    path = tmp_path / "zero.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    content = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "zero.json"}}
    assert launch_settings(content, tmp_path) == {
        "launch.distributed_type": "DEEPSPEED",
        "launch.deepspeed.zero_optimization.stage": 2,
    }
    for wrong in ("{", "[1]"):
        path.write_text(wrong)
        with pytest.raises(InputError, match=r"DeepSpeed file .*zero\.json"):
            launch_settings(content, tmp_path)
