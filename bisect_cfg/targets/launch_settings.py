"""What a launcher sets for the processes it starts, as settings of the launch: ``launch.mixed_precision`` and so on.

accelerate hands everything on its command line and in its configuration file to its processes as environment variables,
which its library reads when the trainer is built. So a trial can have other values, whether its processes are started
by the launcher or forked. A setting goes by its name in accelerate's file: ``launch.fsdp_config.fsdp_offload_params``.
By which variable it is handed on, and what it is by default, accelerate itself is asked (`ask_accelerate`).

A DeepSpeed file (JSON) is named by one of these variables, or by the training arguments. Its keys are settings like
``launch.deepspeed.zero_optimization.stage``, and a trial with other values has a file of its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bisect_cfg.common.configuration import Value, equal
from bisect_cfg.common.files import load_json, read_text
from bisect_cfg.errors import InputError
from bisect_cfg.targets.interpreters import said_by
from bisect_cfg.targets.launchers import PROGRAM

PROCESSES = "launch.num_processes"
"""How many processes train together. The plain launch has one."""

PRECISION, SHARDING, COMPILER = "launch.mixed_precision", "launch.distributed_type", "launch.dynamo_backend"

LAUNCHER = "launch.launcher"
"""What starts the processes: a launcher's name, or one of these two."""

PYTHON, ACCELERATE = "python", "accelerate launch"

VARIABLE = "env."
"""What a setting's name begins with that is an environment variable: ``env.NCCL_P2P_DISABLE``. Many are read when a
program or a library is loaded, so a trial with another value is started from nothing."""

DEEPSPEED_FILE = "launch.deepspeed."
"""What the names of settings in a DeepSpeed file begin with."""

DEEPSPEED_FILE_VARIABLE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"

AUTO = "auto"
"""What stands in a DeepSpeed file for a value that the training arguments give."""

MARKS = ("distributed_type", "compute_environment")
"""A file that has one of these is accelerate's, and no list of settings."""

PLAIN = {PRECISION: "no", SHARDING: "NO", COMPILER: "NO"}
"""What the plain launch has."""

_VARIABLES = {PRECISION: "ACCELERATE_MIXED_PRECISION", COMPILER: "ACCELERATE_DYNAMO_BACKEND"}
_SHARDING = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DEEPSPEED"}

SHARDED = tuple(_SHARDING.values())
"""Values of `SHARDING` that are not the plain one."""

_READ_WITH = {
    "fsdp_config": (SHARDING, "FSDP"),
    "deepspeed_config": (SHARDING, "DEEPSPEED"),
    "fp8_config": (PRECISION, "fp8"),
}
"""Section of accelerate's file -> the setting, and its value, without which nobody reads the keys of the section."""

_UNSAID: Mapping[str, Value] = {
    "launch.deepspeed_config.zero_stage": 2,
    "launch.deepspeed_config.offload_optimizer_device": "none",
    "launch.deepspeed_config.offload_param_device": "none",
    "launch.deepspeed_config.zero3_save_16bit_model": False,
}
"""What accelerate's library takes where its launcher hands nothing on (`DeepSpeedPlugin.__post_init__`)."""

_SECONDS = 120.0
"""For accelerate to answer: it imports torch, maybe from a cold disk."""

_READ_AT_LOAD = ("OMP_", "KMP_", "MKL_", "LD_", "PYTHON")
"""What variables begin with that are read when a program or a library is loaded: a process that is forked later has
them as they were, so they stay as the launcher sets them."""

_DEVICES = ("VISIBLE_DEVICES", "VISIBLE_MODULES", "AFFINITY_MASK")
"""What variables end with that say which devices there are to be: never a setting."""

_PLAIN_IN_FILE = {
    "zero_optimization.stage": 0,
    **dict.fromkeys((
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
        "bf16.enabled", "bfloat16.enabled", "fp16.enabled", "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage3_param_persistence_threshold",
    ), AUTO),
}  # fmt: skip
"""Keys of a DeepSpeed file that have another good level than not to be there: no sharding, and "auto" for what
transformers fills in (https://huggingface.co/docs/transformers/deepspeed#deepspeed-configuration-file)."""


# ------------------------------------------------------------------------------------------------- accelerate is asked


@dataclass(frozen=True)
class Accelerate:
    """What accelerate says of its flags; empty where it was not asked or is not installed.

    Attributes:
        variables: setting in a section of its file -> the environment variable that hands it on.
        plain: the same settings -> what they are where nobody sets them; None: the variable is not set.
        typed: the names of the flags that a command gives.
        processes: how many processes the command and its file ask for; None if that is left to accelerate.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, Value] = field(default_factory=dict)
    typed: tuple[str, ...] = ()
    processes: int | None = None

    @property
    def types(self) -> dict[str, str]:
        """Settings of a launch that have a name of their own, with what they take, as annotations."""
        kinds = {name: "str | None" if value is None else type(value).__name__ for name, value in self.plain.items()}
        return {PROCESSES: "int", **dict.fromkeys((LAUNCHER, *PLAIN), "str"), **kinds}

    def plain_value(self, name: str) -> Value:
        """What a setting of the launch is where nobody asks for it; None where that is not to be there."""
        return PLAIN.get(name, self.plain.get(name))

    def variables_of(self, name: str, value: Value) -> dict[str, str | None]:
        """The environment variables that give a setting of the launch a value; None unsets one. None for a setting that
        is no variable: who starts how many, and what stands in a file."""
        if name == SHARDING:
            return {variable: "true" if kind == value else None for variable, kind in _SHARDING.items()}
        if name in _VARIABLES:
            return {_VARIABLES[name]: str(value)}
        return {self.variables[name]: None if value is None else text_of(value)} if name in self.variables else {}


@functools.cache  # it imports torch: once a run of ours
def ask_accelerate(python: str, flags: tuple[str, ...] = ()) -> Accelerate:
    """Ask the accelerate of an interpreter, also about the flags that a command gives to ``accelerate launch``."""
    source = Path(__file__).with_name("ask_accelerate.py").read_text(encoding="utf-8")
    said = said_by([python, "-c", source, *flags], _SECONDS)
    if said is None:
        return Accelerate()
    variables = {f"launch.{name}": variable for name, (variable, _) in said["settings"].items()}
    plain = {f"launch.{name}": None if text is None else value_of(text) for name, (_, text) in said["settings"].items()}
    unsaid = {name: value for name, value in _UNSAID.items() if name in plain}
    return Accelerate(variables, {**plain, **unsaid}, tuple(said["typed"]), said["processes"])


def launch_settings(content: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """The settings of a launch that the content of accelerate's file asks for, whose paths begin in a folder.

    Raises:
        InputError: the DeepSpeed file that it names cannot be read.
    """
    found: dict[str, Value] = {}
    kind, number = str(content.get("distributed_type", "")), content.get("num_processes")
    if "distributed_type" in content:
        found[SHARDING] = kind if kind in SHARDED else "NO"
    if kind in ("NO", "False"):  # one, whatever number stands there; without quotes YAML reads NO as false
        found[PROCESSES] = 1
    elif isinstance(number, int):
        found[PROCESSES] = number
    if "mixed_precision" in content:
        found[PRECISION] = "no" if content["mixed_precision"] in (None, False) else str(content["mixed_precision"])
    for section in ("fsdp_config", "deepspeed_config", "dynamo_config", "fp8_config"):
        prefix = "" if section == "deepspeed_config" else section.removesuffix("config")
        given = content.get(section)
        for key, value in given.items() if isinstance(given, dict) else ():
            key = key if key.startswith(prefix) else prefix + key
            if key == "dynamo_backend":
                found[COMPILER] = str(value).upper()
            elif key == "deepspeed_config_file":
                inner = _read_deepspeed_file(folder / str(value))
                found |= {DEEPSPEED_FILE + name: leaf for name, leaf in leaves(inner)}
            else:
                found[f"launch.{section}.{key}"] = value
    return found


def _read_deepspeed_file(path: Path) -> dict[str, Value]:
    try:
        content = load_json(read_text(path))
    except (OSError, ValueError) as error:
        raise InputError(f"The DeepSpeed file {path} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise InputError(f"The DeepSpeed file {path} does not hold names and values.")
    return content


# -------------------------------------------------------------------------------------------------- who starts them


def launcher_levels(typed: str, processes: int, devices: int, asked: Sequence[Asked] = ()) -> tuple[str, str] | None:
    """The good and the bad level of `LAUNCHER`; None where the launcher is no setting.

    Several processes are no work for plain Python, and sharing a model out is none; both are settings of their own.

    Args:
        typed: the kind of launcher in the user's command, "python" if there is none.
        processes: how many the command starts.
        devices: how many GPUs that one process uses.
        asked: what the launcher was asked for.
    """
    good, bad = ACCELERATE if devices > 1 else PYTHON, ACCELERATE if typed == "accelerate" else typed
    if typed == PROGRAM:
        return None
    if bad == ACCELERATE and devices > 1:
        bad = f"{ACCELERATE} --num_processes 1"  # for which that process uses several devices
    sharded = any(one.name == SHARDING and one.value in SHARDED and not one.reason for one in asked)
    return None if processes > 1 or sharded or good == bad else (good, bad)


def shares_out(given: Mapping[str, str], changes: Mapping[str, str | None]) -> bool:
    """Whether a model is shared out among processes, be it one alone, with what the launcher puts into the environment
    and the changes of a trial to that."""
    return any(_is_true({**given, **changes}.get(variable)) for variable in _SHARDING)


def given_to_each(processes: int) -> tuple[dict[str, str], ...]:
    """What a launcher puts into the environment of each of its processes on this machine, save where they meet
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)."""
    count = str(processes)
    every = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    every |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ""}
    return tuple({**every, "RANK": str(number), "LOCAL_RANK": str(number)} for number in range(processes))


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in ("true", "1")


def without_launcher(given: Mapping[str, str], accelerate: Accelerate) -> dict[str, None]:
    """The variables to unset for a process that is to be as plain Python starts it: what the launcher has added, save
    what is a setting of its own, what is read too early for that, and which devices there are."""
    kept = {*_VARIABLES.values(), *_SHARDING, DEEPSPEED_FILE_VARIABLE, *accelerate.variables.values()}
    added = (name for name in given if name not in kept and not name.endswith(_DEVICES))
    return {name: None for name in added if not name.startswith(_READ_AT_LOAD)}


# ------------------------------------------------------------------------------------------------ what they are given


@dataclass(frozen=True)
class Asked:
    """One setting of a launch.

    Attributes:
        name: of the setting.
        value: that the launcher was asked for.
        plain: what the plain launch has.
        has: what the training has instead; None: it is in force.
    """

    name: str
    value: Value
    plain: Value
    has: str | None = None

    @property
    def reason(self) -> str:
        """Why no trial varies it, "" if they do."""
        return "" if self.has is None else f"it was asked for and is not in force: the training has {self.has}"


def asked_of(
    given: Mapping[str, str], in_force: Mapping[str, Value], accelerate: Accelerate = Accelerate()
) -> list[Asked]:
    """The settings of a launch.

    Args:
        given: the environment variables that the launcher has added.
        in_force: what the training then had: "distributed_type" and "mixed_precision", as accelerate names them; empty
            if that is not known.
        accelerate: as it was asked; without it the settings in the sections of its file are not known.
    """
    values = {name: given[variable] for name, variable in _VARIABLES.items() if variable in given}
    if shared := [kind for variable, kind in _SHARDING.items() if _is_true(given.get(variable))]:
        values[SHARDING] = shared[-1]
    found = []
    for name, value in values.items():
        has = str(in_force.get(name.partition(".")[2], value))
        if value.lower() == PLAIN[name].lower():
            found.append(Asked(name, PLAIN[name], PLAIN[name]))
        else:
            found.append(Asked(name, value, PLAIN[name], None if has.lower() == value.lower() else has))
    forced = {(one.name, str(one.value).lower()) for one in found if not one.reason}
    for name, variable in accelerate.variables.items():
        setting, kind = _READ_WITH.get(name.split(".")[1], ("", ""))
        if variable in given and (not setting or (setting, kind.lower()) in forced):
            now, plain = value_of(given[variable]), accelerate.plain[name]
            found.append(Asked(name, plain if equal(now, plain) else now, plain))
    return found


_NO_MULTI_GPU = "accelerate starts several where there is no GPU only if it is told --multi_gpu"
_ALONE = "On a machine without a GPU processes meet only if use_cpu=True is set"
_NO_SHARDING = "accelerate shards nothing on a CPU, and says nothing of it"


def findings(kind: str, wanted: Value, started: int, together: int, asked: Sequence[Asked]) -> list[str]:
    """What a launcher was asked for and the training does not have, as sentences.

    Args:
        kind: of launcher.
        wanted: how many processes it was asked for; None if that was left to it.
        started: how many it has started.
        together: how many of them train together.
        asked: what it was asked for besides.
    """
    found = []
    trained = "one process trained" if together == 1 else f"{together} processes trained together"
    if started > together:
        found.append(f"{started} processes were started, and each trains by itself. {_ALONE}.")
    elif isinstance(wanted, int) and wanted != together:
        hint = f" {_NO_MULTI_GPU}." if kind in ("accelerate", "trl") and wanted > together else ""
        found.append(f"You asked for {wanted} processes, and {trained}.{hint}")
    for one in (one for one in asked if one.reason):
        sharded = one.name == SHARDING and one.has in ("NO", "MULTI_CPU")  # of one process on a CPU, of several
        found.append(f"{one.name}={one.value}: {one.reason}." + (f" {_NO_SHARDING}." if sharded else ""))
    return found


def unheard(accelerate: Accelerate, asked: Sequence[Asked]) -> list[str]:
    """Flags that accelerate hands on to nobody, as their section (DeepSpeed, FSDP) is not asked for, as sentences."""
    had, found = {one.value for one in asked if one.name == SHARDING}, []
    for name in accelerate.variables:
        section, key = name.split(".")[1:]
        setting, kind = _READ_WITH.get(section, ("", ""))
        if setting == SHARDING and key in accelerate.typed and kind not in had:
            kind = "DeepSpeed" if kind == "DEEPSPEED" else kind
            found.append(f"--{key} has no effect here: accelerate hands it on to {kind} alone.")
    return found


def value_of(text: str) -> Value:
    """What a launcher means by the text of a variable."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if text_of(value) == text:  # not "1_000", which is a text to everybody else
            return value
    return text


def text_of(value: Value) -> str:
    """How a launcher writes a value into a variable."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def variable_levels(name: str, good: Value) -> tuple[str | None, str | None]:
    """The good and the bad level of ``env.NAME``, None where it is not set. A good level that was given as nothing, as
    an empty text or as "none" is that, too."""
    unset = good is None or str(good).lower() in ("", "none")
    return None if unset else str(good), os.environ.get(name.removeprefix(VARIABLE))


# ---------------------------------------------------------------------------------------------------- DeepSpeed's file


def asked_in_file(content: Mapping[str, Value]) -> list[Asked]:
    """The settings of a DeepSpeed file, save those that are left to the training arguments ("auto")."""
    return [Asked(DEEPSPEED_FILE + name, now, _PLAIN_IN_FILE.get(name)) for name, now in leaves(content) if now != AUTO]


def leaves(content: Mapping[str, Value], above: str = "") -> Iterator[tuple[str, Value]]:
    """The settings of a file of nested mappings, each with its dotted name. A mapping that has a "type" is one setting
    (an optimizer's parameters mean nothing without it), and so is one whose keys have dots."""
    for key, value in content.items():
        if "." in key:
            continue  # of no name that could be told from a nested one
        if isinstance(value, Mapping) and value and "type" not in value and not any("." in inner for inner in value):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def with_leaves(content: Mapping[str, Value], changes: Mapping[str, Value]) -> dict[str, Value]:
    """A file's content with other settings: dotted name -> value, None to take a setting away."""
    result = dict(content)
    for name, value in changes.items():
        key, dot, rest = name.partition(".")
        if dot:
            below = result.get(key)
            result[key] = with_leaves(below if isinstance(below, dict) else {}, {rest: value})
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result
