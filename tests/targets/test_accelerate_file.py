"""accelerate's configuration file, as what it asks for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from bisect_cfg.errors import InputError
from bisect_cfg.targets.accelerate_file import launch_settings, meant_by, read_accelerate_file
from bisect_cfg.targets.command import find_command
from bisect_cfg.targets.names import read_good

FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: reduce-overhead}
fsdp_config:
  offload_params: true
  fsdp_version: 2
machine_rank: 0
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""

SETTINGS = {
    "launch.distributed_type": "FSDP",
    "launch.num_processes": 8,
    "launch.mixed_precision": "bf16",
    "launch.fsdp_config.fsdp_offload_params": True,
    "launch.fsdp_config.fsdp_version": 2,
    "launch.dynamo_backend": "INDUCTOR",
    "launch.dynamo_config.dynamo_mode": "reduce-overhead",
}


def file(folder: Path, text: str, name: str = "launch.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_its_settings_go_by_the_names_of_the_launch(tmp_path):
    path = file(tmp_path, FSDP)
    assert launch_settings(read_accelerate_file(path), tmp_path) == SETTINGS
    assert read_good([str(path)]) == SETTINGS
    assert read_good([str(path), "launch.num_processes=2"]) == {**SETTINGS, "launch.num_processes": 2}


def test_the_same_by_hand(tmp_path):
    path = file(tmp_path, "launch:\n  num_processes: 2\nlearning_rate: 1.0e-6\n")
    assert read_good([str(path)]) == {"launch.num_processes": 2, "learning_rate": 1e-6}


def test_the_files_that_trl_brings_along():
    (folder,) = importlib.util.find_spec("trl").submodule_search_locations
    found = {
        path.stem: launch_settings(read_accelerate_file(path), path.parent)
        for path in Path(folder, "accelerate_configs").glob("*.yaml")
    }
    assert {name: one["launch.distributed_type"] for name, one in found.items()} == {
        "single_gpu": "NO",
        "multi_gpu": "NO",
        **dict.fromkeys(("fsdp1", "fsdp2"), "FSDP"),
        **dict.fromkeys(("zero1", "zero2", "zero3"), "DEEPSPEED"),
    }
    assert found["single_gpu"]["launch.num_processes"] == 1 < found["multi_gpu"]["launch.num_processes"]
    assert found["zero3"]["launch.deepspeed_config.zero_stage"] == 3
    assert found["fsdp2"]["launch.fsdp_config.fsdp_version"] == 2


def test_several_gpus_share_nothing_out(tmp_path):
    assert launch_settings({"distributed_type": "MULTI_GPU", "mixed_precision": False}, tmp_path) == {
        "launch.distributed_type": "NO",
        "launch.mixed_precision": "no",
    }


def test_the_deepspeed_file_that_it_names(tmp_path):
    file(tmp_path, json.dumps({"zero_optimization": {"stage": 2}}), "zero.json")
    content = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "zero.json"}}
    assert launch_settings(content, tmp_path) == {
        "launch.distributed_type": "DEEPSPEED",
        "launch.deepspeed.zero_optimization.stage": 2,
    }
    for wrong in ("{", "[1]"):
        file(tmp_path, wrong, "zero.json")
        with pytest.raises(InputError, match=r"DeepSpeed file .*zero\.json"):
            launch_settings(content, tmp_path)


@pytest.mark.parametrize(
    ("text", "says", "advice"),
    [
        ("distributed_type: [FSDP\n", r"not valid YAML \(line 2\)", "accelerate config"),
        ("- a\n- b\n", "does not hold names and values", "accelerate config"),
        ("distributed_type: 'NO'\nnum_proceses: 2\n", "names num_proceses", "Did you mean num_processes"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_ofload_params: true\n", "fsdp_ofload_params in fsdp_config",
         "Did you mean fsdp_offload_params"),
        ("distributed_type: 'NO'\nnum_machines: 2\n", "asks for 2 machines", "on this machine"),
        ("compute_environment: AMAZON_SAGEMAKER\n", "AMAZON_SAGEMAKER", "LOCAL_MACHINE"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_said_before_anything_runs(tmp_path, monkeypatch, text, says, advice):
    monkeypatch.chdir(tmp_path)
    launcher = file(tmp_path, "#!/bin/sh\nexit 9\n", "accelerate")
    launcher.chmod(0o755)
    file(tmp_path, "", "train.py")
    path = file(tmp_path, text)
    with pytest.raises(InputError, match=says) as refused:
        find_command([str(launcher), "launch", "--config_file", str(path), "train.py"])
    assert advice in refused.value.advice and str(path) in refused.value.message


@pytest.mark.parametrize("flags", ["--config_file launch.yaml", "--deepspeed_config_file zero.json"])
def test_a_deepspeed_file_that_cannot_be_read_is_said_before_anything_runs(tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    launcher = file(tmp_path, "#!/bin/sh\nexit 9\n", "accelerate")
    launcher.chmod(0o755)
    file(tmp_path, "", "train.py")
    file(tmp_path, "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: zero.json\n")
    command = [str(launcher), "launch", *flags.split(), "train.py"]
    with pytest.raises(InputError, match=r"zero\.json cannot be read: No such file"):
        find_command(command)
    file(tmp_path, "{", "zero.json")
    with pytest.raises(InputError, match=r"zero\.json is not valid JSON"):
        find_command(command)
    file(tmp_path, "{}", "zero.json")
    assert find_command(command).path == Path("train.py")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_accelerate_file(tmp_path / "gone.yaml")


@pytest.mark.parametrize("key", ["a_key_of_tomorrow", "fsdp_backward_prefetch_policy", "deepspeed_hostfile"])
def test_a_key_that_may_be_of_another_version_is_accelerates_affair(tmp_path, key):
    path = file(tmp_path, f"{key}: 1\nfsdp_config: {{{key}: 1}}\ndeepspeed_config: {{{key}: 1}}\n")
    assert read_accelerate_file(path)[key] == 1


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("MULTIGPU", "Did you mean distributed_type: MULTI_GPU?"),
        ("FDSP", "Did you mean distributed_type: FSDP?"),
        ("deepspeed", "Did you mean distributed_type: DEEPSPEED?"),
        ("ZeRO-3", "distributed_type is one of NO, "),
    ],
)
def test_a_distributed_type_that_accelerate_refuses(value, meant):
    assert meant_by(f"ValueError: '{value}' is not a valid DistributedType").startswith(meant)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("unrecognized arguments: --nm_processes", "Did you mean --num_processes?"),
        ("unrecognized arguments: --multigpu --x", "Did you mean --multi_gpu?"),
        ("unrecognized arguments: --of-tomorrow", ""),
        ("Unknown mixed_precision mode: bf61. Choose between ['no', 'fp8', 'fp16', 'bf16'].", "Did you mean bf16?"),
        ("Unknown dynamo backend: INDUCTR. Choose between ['NO', 'EAGER', 'INDUCTOR'].", "Did you mean INDUCTOR?"),
        ("argument --mixed_precision: invalid choice: 'bf61' (choose from 'no', 'bf16')", "Did you mean bf16?"),
        ("You need to use at least 2 processes", ""),
    ],
)
def test_a_flag_or_a_value_that_accelerate_refuses(said, meant):
    assert meant_by(said) == meant


def test_every_distributed_type_is_known():
    from accelerate import DistributedType

    with pytest.raises(ValueError, match="is not a valid DistributedType") as refused:
        DistributedType("?")
    known = meant_by(str(refused.value)).rstrip(".").split(" is one of ")[1].split(", ")
    assert {kind.value for kind in DistributedType} <= set(known)
