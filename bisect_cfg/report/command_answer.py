"""What a recommendation means for a command: the arguments to change, the file to write, the whole command."""

from __future__ import annotations

from collections.abc import Collection

from bisect_cfg.common.configuration import configuration_of
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import scrub
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.script import by_hand


def failing_command(target: CommandTarget, subset: Collection[str]) -> JsonObject:
    """The whole command with only these settings bad: "command"; "config", the configuration file that it names, by
    "name" and "text", None if there is none.

    Args:
        target: the command.
        subset: their names.
    """
    configuration = configuration_of(frozenset(subset), target.factors.good, target.factors.bad)
    name, config = f"config.{target.template.config_format}", target.config(configuration)
    env: list[str] = []
    for variable, value in target.variables(configuration).items():
        env += ["-u", variable] if value is None else [f"{variable}={value}"]
    command = by_hand([*(["env", *env] if env else []), *target.words(configuration, name, "FOLDER")])
    return {"command": command, "config": None if config is None else {"name": name, "text": scrub(config)}}
