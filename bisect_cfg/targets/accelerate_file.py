"""accelerate's configuration file (``accelerate launch --config_file``): what it asks for, as settings of the launch.

accelerate refuses a key at the top that it does not know, after some seconds, and passes over one in a section. Both
are said before anything runs, where a name is meant that is spelled nearly so.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from bisect_cfg.configuration import Value
from bisect_cfg.errors import InputError
from bisect_cfg.targets.launched import (
    COMPILER,
    DEEPSPEED_FILE,
    PRECISION,
    PROCESSES,
    SECTIONS,
    SHARDED,
    SHARDING,
    leaves,
)

MARKS = ("distributed_type", "compute_environment")
"""A file that has one of these is accelerate's, and no list of settings."""

_TOP = (
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes", "machine_rank",
    "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network",
    "main_training_function", "enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config",
    "parallelism_config", "megatron_lm_config", "mpirun_config", "downcast_bf16", "tpu_name", "tpu_zone",
    "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env", "dynamo_config",
    "dynamo_backend", "fp16", "ipex_config",
)  # fmt: skip
"""Fields of its ClusterConfig
(https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/config/config_args.py), and those of
older versions."""

_KINDS = (
    "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU",
    "MULTI_NEURON", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM",
)  # fmt: skip
"""What its distributed_type may be
(https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py, DistributedType)."""

_NO_KIND = re.compile(r"'(?P<value>.*)' is not a valid DistributedType")
_NO_FLAG = re.compile(r"unrecognized arguments: --(?P<value>[\w-]+)")
_NO_CHOICE = re.compile(r": '?(?P<value>[^\s']+?)'?\.? \(?choose (?:between|from) (?P<choices>.*)", re.IGNORECASE)
"""How accelerate refuses another, a flag, and a value with those that it takes."""

_FLAGS = (
    "multi_gpu",
    "cpu",
    "tpu",
    "use_fsdp",
    "use_deepspeed",
    "use_megatron_lm",
    "config_file",
    "module",
    "no_python",
)
"""Flags of ``accelerate launch`` that its file has no key for."""

_ALSO = {
    "fsdp_config": ("fsdp_backward_prefetch_policy", "fsdp_num_machines"),
    "deepspeed_config": (
        "deepspeed_config_file", "deepspeed_hostfile", "deepspeed_multinode_launcher", "deepspeed_inclusion_filter",
        "deepspeed_exclusion_filter", "offload_optimizer_nvme_path", "offload_param_nvme_path",
    ),
    "dynamo_config": ("dynamo_backend",),
    "fp8_config": ("fp8_override_linear_precision",),
}  # fmt: skip
"""Keys of the sections that are no settings of ours."""

NEAR = 0.8
"""So alike (`difflib`'s ratio) an unknown key is to the one that is meant; others may be of a newer version."""


def read_accelerate_file(path: Path) -> dict[str, Value]:
    """Read the file that a launcher is given.

    Raises:
        InputError: it cannot be read, is no mapping, or has a key that is nearly one of accelerate's.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"accelerate's file {path} cannot be read: {getattr(error, 'strerror', error)}.") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        mark, said = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        raise InputError(
            f"accelerate's file {path} is not valid {'JSON' if path.suffix == '.json' else 'YAML'}{where}: {said}.",
            "`accelerate config` writes one.",
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"accelerate's file {path} does not hold names and values.", "`accelerate config` writes one.")
    _check_keys(path, content)
    return content


def _check_keys(path: Path, content: Mapping[str, Value]) -> None:
    for name, known, key in _keys(content):
        near = difflib.get_close_matches(key, known, n=1, cutoff=NEAR)
        if key not in known and near:
            where = f" in {name}" if name else ""
            raise InputError(
                f"accelerate's file {path} names {key}{where}, which accelerate does not know.",
                f"Did you mean {near[0]}?",
            )


def _keys(content: Mapping[str, Value]) -> Iterator[tuple[str, list[str], str]]:
    """Each key: the section it stands in, what is known there, and the key."""
    for key in content:
        yield "", list(_TOP), str(key)
    for name, section in SECTIONS.items():
        known = [*section.plain, *_ALSO[name]]
        for key in content.get(name) or ():
            prefixed = key if key.startswith(section.keys) else section.keys + key
            yield name, known, prefixed


def meant_by(said: str) -> str:
    """What to write in place of a value or of a flag that accelerate refuses; "" if that cannot be told.

    Args:
        said: by accelerate.
    """
    if match := _NO_FLAG.search(said):
        flags = [*_TOP, *_FLAGS, *(key for section in SECTIONS.values() for key in section.plain)]
        near = difflib.get_close_matches(match["value"].replace("-", "_"), flags, n=1, cutoff=NEAR)
        return f"Did you mean --{near[0]}?" if near else ""
    if match := _NO_CHOICE.search(said):
        choices, otherwise = {one.lower(): one for one in re.findall(r"'([^']+)'", match["choices"])}, ""
    elif match := _NO_KIND.search(said):
        choices = {kind.lower(): f"distributed_type: {kind}" for kind in _KINDS}
        otherwise = f"distributed_type is one of {', '.join(_KINDS)}."
    else:
        return ""
    near = difflib.get_close_matches(match["value"].lower(), choices, n=1)
    return f"Did you mean {choices[near[0]]}?" if near else otherwise


def launch_settings(content: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """The settings of a launch that a file of accelerate's asks for: name -> value.

    Args:
        content: of the file.
        folder: where the paths in it begin.

    Raises:
        InputError: the DeepSpeed file that it names cannot be read.
    """
    found: dict[str, Value] = {}
    if "distributed_type" in content:
        kind = str(content["distributed_type"])
        found[SHARDING] = kind if kind in SHARDED else "NO"
    if (processes := processes_in(content)) is not None:
        found[PROCESSES] = processes
    if "mixed_precision" in content:
        found[PRECISION] = "no" if content["mixed_precision"] in (None, False) else str(content["mixed_precision"])
    for name, section in SECTIONS.items():
        for key, value in (content.get(name) or {}).items():
            own = key if key.startswith(section.keys) else section.keys + key
            if own == "dynamo_backend":
                found[COMPILER] = str(value).upper()
            elif own == "deepspeed_config_file":
                inner = read_deepspeed_file(folder / str(value))
                found |= {DEEPSPEED_FILE + key: value for key, value in leaves(inner)}
            elif own in section.plain:
                found[f"launch.{name}.{own}"] = value
    return found


def processes_in(content: Mapping[str, Value]) -> int | None:
    """How many processes a file of accelerate's asks for; None if that is left to it. Of the distributed type NO there
    is one, whatever number stands beside it."""
    if content.get("distributed_type") in ("NO", False):  # False: without quotes
        return 1
    number = content.get("num_processes")
    return number if isinstance(number, int) else None


def read_deepspeed_file(path: Path) -> dict[str, Value]:
    """Read the file that configures DeepSpeed.

    Raises:
        InputError: it cannot be read, or is no mapping.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The DeepSpeed file {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"The DeepSpeed file {path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise InputError(f"The DeepSpeed file {path} does not hold names and values.")
    return content
