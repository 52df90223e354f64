"""Settings of the launch, of the environment and of what is installed: how launchers and their files (accelerate's is
YAML, DeepSpeed's JSON) spell them, and what to do where no edit changes them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from urllib.parse import unquote, urlsplit

from bisect_cfg.common.configuration import UNSET
from bisect_cfg.rewrite.recommended import Unplaced
from bisect_cfg.rewrite.spans import Change
from bisect_cfg.targets.launch_settings import DEEPSPEED_FILE, LAUNCHER, PROCESSES, SHARDING, VARIABLE
from bisect_cfg.targets.packages import NOT_INSTALLED, PACKAGE

LAUNCH = "launch."

OUTSIDE = (LAUNCH, VARIABLE, PACKAGE)
"""Namespaces of settings that are not the script's: of the command that starts it, and of where it runs."""

SWITCHES = {"FSDP": "use_fsdp", "DEEPSPEED": "use_deepspeed"}
"""How a command line asks for what accelerate's file calls the distributed type."""

TOGETHER = "MULTI_GPU"
"""The distributed type, in accelerate's file, of several processes that shard nothing."""

_PROCESSES = ("num_processes", "nproc_per_node", "num_gpus")


def spellings(change: Change, several: bool) -> Iterator[tuple[Change, Collection[str]]]:
    """How launchers and their files spell a setting of the launch (after which several processes start, or one): each a
    change, and what it may be called."""
    name, old, new = change.name.removeprefix(LAUNCH), change.old, change.new
    if change.name == PROCESSES:
        yield Change(name, old, new), _PROCESSES
    elif change.name == SHARDING:
        switch = SWITCHES.get(str(old), "")
        yield Change(switch, True, None), (switch,)
        yield Change(name, old, TOGETHER if new == "NO" and several else new), (name,)
    elif change.name.startswith(DEEPSPEED_FILE):
        own = Change(".".join(change.name.removeprefix(DEEPSPEED_FILE).split(".")[-2:]), old, new)
        yield own, (own.key,)
    else:
        own = Change(name, old, new)
        yield own, {own.key, own.key.removeprefix(own.field.removesuffix("config"))}
        if own.field:
            yield Change(own.key, old, new), (own.key,)  # the flag has the key's name


def by_hand(change: Change) -> Unplaced:
    """Where the user has such a setting, and what to do, where it cannot be edited."""
    full, new = change.name, change.new
    if full.startswith(VARIABLE):
        name = full.removeprefix(VARIABLE)
        do = f"unset {name}" if new is None or new is UNSET else f"put {name}={new} in front of the command"
        return Unplaced(full, "it is set in the environment", do)
    if full.startswith(PACKAGE):
        return Unplaced(full, "it is what is installed where you train", _installed(full.removeprefix(PACKAGE), new))
    where = "it stands in the command that launches your script"
    if full == LAUNCHER:
        return Unplaced(full, where, f"start it with {new} in place of {change.old}")
    name = full.removeprefix(LAUNCH)
    key, shown = name.rpartition(".")[2], str(new).lower() if isinstance(new, bool) else str(new)
    if full == PROCESSES:
        one = "start one process: python, --num_processes 1, or torchrun's --nproc_per_node 1"
        do = one if new == 1 else f"--{name} {new}"
    elif full == SHARDING:
        do = "launch it without --use_fsdp and --use_deepspeed"
    elif full.startswith(DEEPSPEED_FILE):
        do = f"leave {key} out of DeepSpeed's file" if new is None else f"set {key} to {shown} in DeepSpeed's file"
    else:
        do = f"launch it without --{key}" if new is None else f"launch it with --{key} {shown}"
    return Unplaced(full, f"{where}, or in its file", do)


def _installed(name: str, version: object) -> str:
    """What installs a package in that version, or from there."""
    if version in (None, NOT_INSTALLED):
        return f"pip uninstall {name}"
    there = str(version).removeprefix("@ ")
    if there.startswith("file://"):
        there = shlex.quote(unquote(urlsplit(there).path))
    return f"pip install {there if str(version).startswith(('@', '-e')) else f'{name}=={there}'}"
