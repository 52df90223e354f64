"""What a launcher sets for the processes it starts, as settings of the launch: ``launch.mixed_precision`` and so on.

accelerate hands everything on its command line and in its configuration file to its processes as environment variables
(https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/launch.py), which its library reads when the
trainer is built. So a trial can have other values, whether its processes are started by the launcher or forked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from bisect_cfg.configuration import Value

PROCESSES = "launch.num_processes"
"""How many processes train together. The plain launch has one."""

PRECISION, SHARDING, COMPILER = "launch.mixed_precision", "launch.distributed_type", "launch.dynamo_backend"

_VARIABLES = {PRECISION: "ACCELERATE_MIXED_PRECISION", COMPILER: "ACCELERATE_DYNAMO_BACKEND"}
_SHARDING = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DEEPSPEED"}

VARIABLE = "env."
"""What a setting's name begins with that is an environment variable: ``env.NCCL_P2P_DISABLE``. Many are read when a
program or a library is loaded, so a trial with another value is started from nothing."""

PLAIN = {PRECISION: "no", SHARDING: "NO", COMPILER: "NO"}
"""What the plain launch has."""


@dataclass(frozen=True)
class Asked:
    """One setting that a launcher was asked for.

    Attributes:
        name: of the setting.
        value: that was asked for.
        reason: why no trial varies it, "" if they do.
    """

    name: str
    value: str
    reason: str = ""


def asked_of(given: Mapping[str, str], in_force: Mapping[str, Value]) -> list[Asked]:
    """The settings of a launch that are not those of the plain one.

    Args:
        given: the environment variables that the launcher has added.
        in_force: what the training then had: "distributed_type" and "mixed_precision", as accelerate names them; empty
            if that is not known.
    """
    values = {name: given[variable] for name, variable in _VARIABLES.items() if variable in given}
    for variable, kind in _SHARDING.items():
        if given.get(variable, "").lower() in ("true", "1"):
            values[SHARDING] = kind
    found = []
    for name, value in values.items():
        has = in_force.get(name.partition(".")[2], value)
        if value.lower() == PLAIN[name].lower():
            continue
        here = str(has).lower() == value.lower()
        reason = "" if here else f"it was asked for and is not in force: the training has {has}"
        found.append(Asked(name, value, reason))
    return found


def variable_levels(name: str, good: Value) -> tuple[str | None, str | None]:
    """The good and the bad level of ``env.NAME``: its value, None where it is not set.

    Args:
        name: of the setting.
        good: as --good has it; nothing, or an empty text, for a variable that is not set.
    """
    return (None if good is None else str(good) or None), os.environ.get(name.removeprefix(VARIABLE))


def variables_of(name: str, value: Value) -> dict[str, str | None]:
    """The environment variables that give a setting of the launch a value; None unsets one."""
    if name == SHARDING:
        return {variable: "true" if kind == value else None for variable, kind in _SHARDING.items()}
    return {_VARIABLES[name]: str(value)}
