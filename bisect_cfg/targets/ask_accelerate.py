"""Prints, as JSON, what accelerate makes of its flags and its file; a script for the user's Python, 3.9 or later.

accelerate's own parser and functions answer, so that no table of ours restates them: each flag of a section of its file
(`section_of`) in turn is given a mark, and the environment variable that then holds the mark is the one that hands the
flag to the processes. Flags outside of the sections say where and how processes start; `launch_settings` names those
that are settings.

Arguments are the flags of ``accelerate launch``. The answer:

- ``settings``: ``SECTION.FLAG`` as in accelerate's file (``fsdp_config.fsdp_version``) -> its variable, and the text
  that the variable has by default, null where it is not set then;
- ``typed``: the names of the flags that were given;
- ``processes``: how many processes the flags and the file ask for, null where that is left to accelerate.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator

MARK = "bisect-cfg"

PLAIN = ["--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
         "--main_process_port", "0", "train.py"]  # fmt: skip
"""A launch that leaves nothing to this machine."""

NO_SETTINGS = ("dynamo_backend", "deepspeed_config_file", "offload_optimizer_nvme_path", "offload_param_nvme_path")
"""Flags in the sections that are no settings of theirs: one that stands outside in the file, and paths."""


def section_of(flag: str, group: str) -> str | None:
    """The section of accelerate's file in which a flag is written; None if it is in none of ours."""
    prefix = next((one for one in ("fsdp", "dynamo", "fp8") if flag.startswith(one + "_")), None)
    if flag in NO_SETTINGS or not (prefix or group.startswith("DeepSpeed")):
        return None
    return (prefix or "deepspeed") + "_config"


def environments(args: Namespace) -> Iterator[dict[str, str]]:
    """What accelerate puts into the environment of processes: with FSDP, with DeepSpeed, of a training in fp8."""
    from accelerate.utils import launch

    ways: tuple[Callable[[], dict[str, str]], ...] = (
        lambda: launch.prepare_multi_gpu_env(copy.copy(args)),
        lambda: launch.prepare_deepspeed_cmd_env(copy.copy(args))[1],
        lambda: launch.setup_fp8_env(args, {}),
    )
    for way in ways:
        try:
            yield way()
        except Exception:  # a version that has no such function, or a value that it refuses
            yield {}


def settings(parser: ArgumentParser) -> dict[str, list[str | None]]:
    """`SECTION.FLAG` -> variable and default text, of each flag that one variable hands on."""
    args = parser.parse_args(PLAIN)
    vars(args).update(use_fsdp=True, use_cpu=False, debug=False, deepspeed_fields_from_accelerate_config="")
    actions = [(action, group.title or "") for group in parser._action_groups for action in group._group_actions]
    for action, _ in actions:
        if getattr(action.type, "__name__", "") == "str_to_bool":  # which makes numbers of them
            setattr(args, action.dest, bool(getattr(args, action.dest)))
    before: list[dict[str, str]] = list(environments(args))
    found: dict[str, list[str | None]] = {}
    for action, group in actions:
        section, marked = section_of(action.dest, group), copy.copy(args)
        setattr(marked, action.dest, MARK)
        for way, now in enumerate(environments(marked) if section else ()):
            held = [name for name, text in now.items() if text == MARK]
            if section and len(held) == 1:
                found[section + "." + action.dest] = [held[0], before[way].get(held[0])]
    return found


def answer(flags: list[str]) -> dict[str, object]:
    """The whole answer; see the module."""
    from accelerate.commands import launch

    os.environ.clear()  # so that nothing else is in what accelerate prepares
    parser = launch.launch_command_parser()
    args, _ = parser.parse_known_args([*flags, "train.py"])
    plain = vars(parser.parse_args(["train.py"]))
    processes = args.num_processes
    if args.config_file and processes is None:
        processes = launch.load_config_from_file(args.config_file).num_processes
    typed = [name for name, value in vars(args).items() if plain.get(name) != value]
    return {"settings": settings(parser), "typed": typed, "processes": processes if processes != -1 else None}


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1:])))
