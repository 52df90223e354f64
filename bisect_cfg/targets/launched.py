"""What a launcher sets for the processes it starts, as settings of the launch: ``launch.mixed_precision`` and so on.

accelerate hands everything on its command line and in its configuration file to its processes as environment variables
(https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/launch.py), which its library reads when the
trainer is built. So a trial can have other values, whether its processes are started by the launcher or forked. A
setting goes by the name that it has in accelerate's file: ``launch.fsdp_config.fsdp_offload_params``.

A DeepSpeed file (JSON) is named by one of these variables, or by the training arguments. Its keys are settings like
``launch.deepspeed.zero_optimization.stage``, and a trial with other values has a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bisect_cfg.configuration import Value, equal

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

PLAIN = {PRECISION: "no", SHARDING: "NO", COMPILER: "NO"}
"""What the plain launch has."""

_TYPED = {"accelerate": ACCELERATE}
_VARIABLES = {PRECISION: "ACCELERATE_MIXED_PRECISION", COMPILER: "ACCELERATE_DYNAMO_BACKEND"}
_SHARDING = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DEEPSPEED"}

SHARDED = tuple(_SHARDING.values())
"""Values of `SHARDING` that are not the plain one."""

_READ_AT_LOAD = ("OMP_", "KMP_", "MKL_", "LD_", "PYTHON")
"""What variables begin with that are read when a program or a library is loaded: a process that is forked later has
them as they were, so they stay as the launcher sets them."""

_DEVICES = ("VISIBLE_DEVICES", "VISIBLE_MODULES", "AFFINITY_MASK")
"""What variables end with that say which devices there are to be: never a setting."""


@dataclass(frozen=True)
class Section:
    """A part of accelerate's configuration file, and how its keys are handed on.

    Attributes:
        variables: what the names of their variables begin with.
        keys: what accelerate puts in front of a key, if it is not there.
        of: the setting, and its value, without which nobody reads them; "" for always.
        plain: key -> what it is where nobody sets it, as `accelerate launch` has it; None: the variable is not set.
        spelled: key -> the end of its variable, where that is not the key in capitals.
    """

    variables: str
    keys: str
    of: tuple[str, str]
    plain: Mapping[str, Value]
    spelled: Mapping[str, str] = field(default_factory=dict)

    def variable(self, key: str) -> str:
        """The variable of a key."""
        if key in self.spelled:
            return self.spelled[key]
        return self.variables + key.removeprefix(self.keys).upper()


SECTIONS: Mapping[str, Section] = {
    "fsdp_config": Section(
        "FSDP_",
        "fsdp_",
        (SHARDING, "FSDP"),
        {
            "fsdp_version": 1,
            "fsdp_sharding_strategy": "FULL_SHARD",
            "fsdp_reshard_after_forward": True,
            "fsdp_offload_params": False,
            "fsdp_min_num_params": 100_000_000,
            "fsdp_auto_wrap_policy": None,
            "fsdp_transformer_layer_cls_to_wrap": None,
            "fsdp_backward_prefetch": None,
            "fsdp_state_dict_type": None,
            "fsdp_forward_prefetch": False,
            "fsdp_use_orig_params": True,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_sync_module_states": True,
            "fsdp_activation_checkpointing": False,
            "fsdp_activation_checkpointing_offload": False,
            "fsdp_ignored_modules": None,
        },
        {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"},
    ),
    "deepspeed_config": Section(
        "ACCELERATE_DEEPSPEED_",
        "",
        (SHARDING, "DEEPSPEED"),
        {
            "zero_stage": 2,
            "offload_optimizer_device": "none",
            "offload_param_device": "none",
            "zero3_init_flag": None,
            "zero3_save_16bit_model": False,
            "gradient_accumulation_steps": None,
            "gradient_clipping": None,
            "deepspeed_moe_layer_cls_names": None,
        },
        {
            "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
            "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
            "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
        },
    ),
    "dynamo_config": Section(
        "ACCELERATE_DYNAMO_",
        "dynamo_",
        ("", ""),
        {
            "dynamo_mode": "default",
            "dynamo_use_fullgraph": False,
            "dynamo_use_dynamic": False,
            "dynamo_use_regional_compilation": False,
        },
    ),
    "fp8_config": Section(
        "ACCELERATE_FP8_",
        "fp8_",
        (PRECISION, "fp8"),
        {
            "fp8_backend": None,
            "fp8_margin": 0,
            "fp8_interval": 1,
            "fp8_format": "HYBRID",
            "fp8_amax_history_len": 1024,
            "fp8_amax_compute_algo": "most_recent",
            "fp8_opt_level": "O2",
            "fp8_use_autocast_during_eval": False,
            "fp8_enable_fsdp_float8_all_gather": True,
            "fp8_pad_inner_dim": True,
        },
    ),
}
"""By their names in the file. The values are those of accelerate 1.15's own parser
(https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/launch.py)."""

_KEYS = {f"launch.{name}.{key}": (section, key) for name, section in SECTIONS.items() for key in section.plain}

TYPES: Mapping[str, str] = {
    PROCESSES: "int",
    **dict.fromkeys((LAUNCHER, *PLAIN), "str"),
    **{
        name: "str | None" if section.plain[key] is None else type(section.plain[key]).__name__
        for name, (section, key) in _KEYS.items()
    },
}
"""Settings of a launch that have a name of their own, with what they take."""

AUTO = "auto"

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


def plain_value(name: str) -> Value:
    """What a setting of the launch is where nobody asks for it; None where that is not to be there."""
    if name in _KEYS:
        section, key = _KEYS[name]
        return section.plain[key]
    return PLAIN.get(name)


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
    good, bad = ACCELERATE if devices > 1 else PYTHON, _TYPED.get(typed, typed)
    if bad == ACCELERATE and devices > 1:
        bad = f"{ACCELERATE} --num_processes 1"  # for which that process uses several devices
    sharded = any(one.name == SHARDING and one.value in SHARDED and not one.reason for one in asked)
    return None if processes > 1 or sharded or good == bad else (good, bad)


def shares_out(given: Mapping[str, str], changes: Mapping[str, str | None]) -> bool:
    """Whether a model is shared out among processes, be it one alone.

    Args:
        given: what the launcher puts into the environment.
        changes: of a trial; None unsets a variable.
    """
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


def without_launcher(given: Mapping[str, str]) -> dict[str, None]:
    """The variables to unset for a process that is to be as plain Python starts it: what the launcher has added, save
    what is a setting of its own, what is read too early for that, and which devices there are."""
    kept = {*_VARIABLES.values(), *_SHARDING, DEEPSPEED_FILE_VARIABLE}
    kept |= {section.variable(key) for section, key in _KEYS.values()}
    return {
        name: None
        for name in given
        if name not in kept and not name.startswith(_READ_AT_LOAD) and not name.endswith(_DEVICES)
    }


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


def asked_of(given: Mapping[str, str], in_force: Mapping[str, Value]) -> list[Asked]:
    """The settings of a launch.

    Args:
        given: the environment variables that the launcher has added.
        in_force: what the training then had: "distributed_type" and "mixed_precision", as accelerate names them; empty
            if that is not known.
    """
    values = {name: given[variable] for name, variable in _VARIABLES.items() if variable in given}
    for variable, kind in _SHARDING.items():
        if _is_true(given.get(variable)):
            values[SHARDING] = kind
    found = []
    for name, value in values.items():
        has = in_force.get(name.partition(".")[2], value)
        if value.lower() == PLAIN[name].lower():
            value = PLAIN[name]
        elif str(has).lower() != value.lower():
            found.append(Asked(name, value, PLAIN[name], str(has)))
            continue
        found.append(Asked(name, value, PLAIN[name]))
    forced = {one.name: one.value for one in found if not one.reason}
    for name, (section, key) in _KEYS.items():
        variable, plain = section.variable(key), section.plain[key]
        setting, kind = section.of
        read = not setting or str(forced.get(setting, "")).lower() == kind.lower()
        if read and variable in given:
            value = value_of(given[variable])
            found.append(Asked(name, plain if equal(value, plain) else value, plain))
    return found


_NO_MULTI_GPU = "accelerate starts several where there is no GPU only if it is told --multi_gpu"
_ALONE = "On a machine without a GPU processes meet only if use_cpu=True is set"
_OF_A_CPU = ("NO", "MULTI_CPU")
"""What accelerate calls a training on a CPU: of one process, of several."""

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
        sharded = one.name == SHARDING and one.has in _OF_A_CPU
        found.append(f"{one.name}={one.value}: {one.reason}." + (f" {_NO_SHARDING}." if sharded else ""))
    return found


_NAMES = {"DEEPSPEED": "DeepSpeed"}


def unheard(words: Sequence[str], asked: Sequence[Asked]) -> list[str]:
    """Flags that accelerate hands on to nobody, as their section (DeepSpeed, FSDP) is not asked for, as sentences.

    Args:
        words: of the launcher.
        asked: what it was asked for.
    """
    had = {(one.name, str(one.value).lower()) for one in asked}
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    found = []
    for section, key in _KEYS.values():
        setting, kind = section.of
        if setting == SHARDING and key in given and (setting, kind.lower()) not in had:
            found.append(f"--{key} has no effect here: accelerate hands it on to {_NAMES.get(kind, kind)} alone.")
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


def variables_of(name: str, value: Value) -> dict[str, str | None]:
    """The environment variables that give a setting of the launch a value; None unsets one. None for a setting that is
    no variable: who starts how many, and what stands in a file."""
    if name == SHARDING:
        return {variable: "true" if kind == value else None for variable, kind in _SHARDING.items()}
    if name in _VARIABLES:
        return {_VARIABLES[name]: str(value)}
    if name in _KEYS:
        section, key = _KEYS[name]
        return {section.variable(key): None if value is None else text_of(value)}
    return {}


def variable_levels(name: str, good: Value) -> tuple[str | None, str | None]:
    """The good and the bad level of ``env.NAME``: its value, None where it is not set.

    Args:
        name: of the setting.
        good: as --good has it; nothing, or an empty text, for a variable that is not set.
    """
    return (None if good is None else str(good) or None), os.environ.get(name.removeprefix(VARIABLE))


# ---------------------------------------------------------------------------------------------------- DeepSpeed's file


def asked_in_file(content: Mapping[str, Value]) -> list[Asked]:
    """The settings of a DeepSpeed file, save those that are left to the training arguments ("auto").

    Args:
        content: of the file.
    """
    return [
        Asked(DEEPSPEED_FILE + name, value, _PLAIN_IN_FILE.get(name))
        for name, value in leaves(content)
        if value != AUTO
    ]


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
    """A file's content with other settings.

    Args:
        content: of the file.
        changes: dotted name -> value; None takes the setting away.
    """
    result = dict(content)
    for name, value in changes.items():
        key, dot, rest = name.partition(".")
        if dot:
            result[key] = with_leaves(result.get(key) or {}, {rest: value})
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result
