"""Edits of a command line: flags as argparse and its kin read them, Hydra's ``training.learning_rate=0.02``, and the
settings of the launch, which stand there, in accelerate's file (YAML) or in a DeepSpeed file (JSON)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from urllib.parse import unquote, urlsplit

from bisect_cfg.common.configuration import UNSET, Configuration, Value, equal
from bisect_cfg.rewrite.spans import Change, Piece, parsed, plain, same
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
_FLAG = re.compile(r"(?P<flag>-{1,2}[A-Za-z][\w.-]*|[+~]{0,2}[A-Za-z_][\w.@/]*(?==))(?P<value>=.*)?", re.DOTALL)


def piece_of(
    words: Sequence[str],
    within: range,
    change: Change,
    names: Collection[str],
    switches: Collection[str],
    flags: Collection[str] = (),
) -> Piece | None:
    """The piece of ``shlex.join(words)`` that changes a setting; None if the words do not give it.

    Args:
        words: of the whole command.
        within: the indices of those that are looked at.
        change: what to change.
        names: what it may be called.
        switches: flags that take no value: they are there or not.
        flags: all that the parser knows of the setting.
    """
    opposite = _opposites(flags)
    for position in reversed(within):  # of two the last one counts
        if words[position] in opposite and isinstance(change.new, bool):
            start = len(shlex.join(words[:position])) + bool(position)
            return start, start + len(shlex.quote(words[position])), shlex.quote(opposite[words[position]])
        match = _FLAG.fullmatch(words[position])
        if match is None:
            continue
        name = match["flag"].lstrip("-+~").replace("-", "_").rpartition(".")[2]
        if name not in names and not (change.field and name == change.field):
            continue
        given = _values(words[position + 1 : within.stop], name in switches)
        found = _new(change, name in names, [match["value"][1:]] if match["value"] else given)
        if found is None:
            continue
        value, count = found
        start = len(shlex.join(words[:position])) + bool(position)
        old = shlex.join(words[position : position + 1 + (0 if match["value"] else count)])
        if value == "" or (name in switches and plain(change.new) in (False, None)):
            return start - bool(position), start + len(old), ""
        return start, start + len(old), f"{shlex.quote(match['flag'])}{'=' if match['value'] else ' '}{value}"
    return None


def _opposites(flags: Collection[str]) -> dict[str, str]:
    """``--flag`` -> ``--no-flag`` and the other way round, where a parser has both."""
    pairs = [(flag, f"--no{between}{flag[2:]}") for flag in flags for between in "-_"]
    both = [pair for pair in pairs if pair[1] in flags]
    return {one: other for pair in both for one, other in (pair, pair[::-1])}


def added(text: str, values: Configuration) -> Piece:
    """The piece that appends flags to a command line."""
    return len(text), len(text), "".join(f" --{name} {_text(value)}" for name, value in values.items())


def names_in(words: Sequence[str]) -> set[str]:
    """The settings that are given as flags."""
    found = (_FLAG.fullmatch(word) for word in words if word.startswith("--"))
    return {match["flag"].lstrip("-").replace("-", "_") for match in found if match}


def _values(rest: Sequence[str], switch: bool) -> list[str]:
    """What follows a flag, up to the next one; a negative number is none."""
    end = next((k for k, word in enumerate(rest) if _FLAG.fullmatch(word) and word.startswith("-")), len(rest))
    return [] if switch else list(rest[:end])


def _new(change: Change, named: bool, words: list[str]) -> tuple[str, int] | None:
    """(the new value, how many words the old one has); None if the value there is not the run's."""
    gone = change.new is None
    if not named:  # a dictionary as JSON
        whole = _json(words[0]) if words else None
        if not isinstance(whole, dict) or not same(whole.get(change.key), change.old):
            return None
        kept = {**whole, change.key: plain(change.new)}
        return _text({key: value for key, value in kept.items() if not gone or key != change.key}), 1
    if not words:  # --bf16 alone
        return ("" if gone else _text(change.new), 0) if equal(change.old, True) else None
    if isinstance(change.old, (list, tuple)) and len(words) == len(change.old) and all(map(same, words, change.old)):
        return "" if gone else _text(change.new), len(words)
    if same(words[0], change.old) or equal(_json(words[0]), change.old):
        return "" if gone else _text(change.new), 1
    return None


def _json(text: str) -> Value:
    try:
        return json.loads(text)
    except ValueError:
        return parsed(text)


def _text(value: Value) -> str:
    value = plain(value)
    if isinstance(value, (list, tuple)):
        return shlex.join(map(str, value))
    return shlex.quote(json.dumps(value) if isinstance(value, dict) else str(value))


# ------------------------------------------------------------------------------------------------------ the launch


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


def where(change: Change) -> str:
    """Where the user has a setting of the launch, if it is not known more closely."""
    if change.name.startswith(VARIABLE):
        return "it is set in the environment"
    if change.name.startswith(PACKAGE):
        return "it is what is installed where you train"
    command = "it stands in the command that launches your script"
    return command if change.name == LAUNCHER else f"{command}, or in its file"


def advice(change: Change) -> str:
    """What to do where a setting of the launch cannot be edited."""
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
    key, shown = name.rpartition(".")[2], str(new).lower() if isinstance(new, bool) else str(new)
    if change.name.startswith(DEEPSPEED_FILE):
        return f"leave {key} out of DeepSpeed's file" if new is None else f"set {key} to {shown} in DeepSpeed's file"
    return f"launch it without --{key}" if new is None else f"launch it with --{key} {shown}"
