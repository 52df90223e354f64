"""Changes of how a training is launched: flags of the launcher, keys of accelerate's configuration file (YAML) and of a
DeepSpeed file (JSON). And of where it runs: environment variables and packages, which are in no file."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bisect_cfg.common.configuration import UNSET, Value
from bisect_cfg.recommend.edits import _command_line, _yaml
from bisect_cfg.recommend.edits._place import Change
from bisect_cfg.targets.launch_settings import DEEPSPEED_FILE, LAUNCHER, PROCESSES, SHARDING, VARIABLE
from bisect_cfg.targets.packages import NOT_INSTALLED, PACKAGE

LAUNCH = "launch."

OUTSIDE = (LAUNCH, VARIABLE, PACKAGE)
"""What the names of settings begin with that are not the script's, but of the command that starts it and of where it
runs."""

_PROCESSES = ("num_processes", "nproc_per_node", "num_gpus")
_SWITCHES = {"FSDP": "use_fsdp", "DEEPSPEED": "use_deepspeed"}
"""How a command line asks for what accelerate's file calls the distributed type."""

TOGETHER = "MULTI_GPU"
"""The distributed type, in accelerate's file, of several processes that share nothing out."""


def spellings(change: Change, several: bool) -> Iterator[tuple[Change, Collection[str]]]:
    """How launchers and their files spell a setting of the launch: each a change, and what it may be called.

    Args:
        change: of the setting.
        several: whether several processes are started afterwards.
    """
    name, old, new = change.name.removeprefix(LAUNCH), change.old, change.new
    if change.name == PROCESSES:
        yield Change(name, old, new), _PROCESSES
    elif change.name == SHARDING:
        switch = _SWITCHES.get(str(old), "")
        yield Change(switch, True, None), (switch,)
        yield Change(name, old, TOGETHER if new == "NO" and several else new), (name,)
    elif change.name.startswith(DEEPSPEED_FILE):
        inner = ".".join(change.name.removeprefix(DEEPSPEED_FILE).split(".")[-2:])
        own = Change(inner, old, new)
        yield own, (own.key,)
    else:
        own = Change(name, old, new)
        section = own.field.removesuffix("config")
        yield own, {own.key, own.key.removeprefix(section)}
        if own.field:
            yield Change(own.key, old, new), (own.key,)  # the flag has the key's name


def changed(
    change: Change, several: bool, words: Sequence[str], files: dict[Path, str]
) -> tuple[str, str] | tuple[Path, str] | None:
    """Make a change where the launch is written down.

    Args:
        change: of one setting.
        several: see `spellings`.
        words: of the launcher's command line; they win over files.
        files: path -> text, of what configures it.

    Returns:
        Of the command line what stands there and what should, of a file its new text; None if it is in neither.
    """
    ways = list(spellings(change, several))
    for one, names in ways:
        found = _command_line.change_in(words, one, names, tuple(_SWITCHES.values()))
        if found is not None:
            return found
    for one, names in ways:
        for path, text in files.items():
            places = [place for place in _yaml.places(path, text, one, names) if place.matches]
            after = places[0].put(one.new) if len(places) == 1 else None
            if after is not None:
                return path, after
    return None


def place(change: Change) -> str:
    """Where the user has a setting, if it is not known more closely."""
    if change.name.startswith(VARIABLE):
        return "it is set in the environment"
    if change.name.startswith(PACKAGE):
        return "it is what is installed where you train"
    command = "it stands in the command that launches your script"
    return command if change.name == LAUNCHER else f"{command}, or in its file"


def advice(change: Change) -> str:
    """What to do where a change cannot be made."""
    name, new = change.name.removeprefix(LAUNCH), change.new
    if change.name.startswith(VARIABLE):
        name = change.name.removeprefix(VARIABLE)
        return f"unset {name}" if new is None or new is UNSET else f"put {name}={new} in front of the command"
    if change.name.startswith(PACKAGE):
        name, there = change.name.removeprefix(PACKAGE), str(new).removeprefix("@ ")
        if there.startswith("file://"):
            there = shlex.quote(unquote(urlsplit(there).path))
        wanted = there if str(new).startswith(("@", "-e")) else f"{name}=={there}"
        return f"pip uninstall {name}" if new in (None, NOT_INSTALLED) else f"pip install {wanted}"
    if change.name == PROCESSES:
        one = "start one process: python, --num_processes 1, or torchrun's --nproc_per_node 1"
        return one if new == 1 else f"--{name} {new}"
    if change.name == LAUNCHER:
        return f"start it with {new} in place of {change.old}"
    if change.name == SHARDING:
        return "launch it without --use_fsdp and --use_deepspeed"
    key = name.rpartition(".")[2]
    if change.name.startswith(DEEPSPEED_FILE):
        return (
            f"leave {key} out of DeepSpeed's file" if new is None else f"set {key} to {_shown(new)} in DeepSpeed's file"
        )
    return f"launch it without --{key}" if new is None else f"launch it with --{key} {_shown(new)}"


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
