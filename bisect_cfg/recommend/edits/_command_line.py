"""Changes of the command line: flags as argparse and its kin read them, and Hydra's
``training.learning_rate=0.02``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Sequence

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.recommend.edits._place import Change, parsed, plain, same

_FLAG = re.compile(r"(?P<flag>-{1,2}[A-Za-z][\w.-]*|[+~]{0,2}[A-Za-z_][\w.@/]*(?==))(?P<value>=.*)?", re.DOTALL)


def change_in(
    arguments: Sequence[str], change: Change, names: Collection[str], switches: Collection[str]
) -> tuple[str, str] | None:
    """How a setting is given on a command line, and how it should be; None if it is not given there.

    Args:
        arguments: of the script.
        change: what to change.
        names: what it may be called.
        switches: flags that take no value: they are there or not.

    Returns:
        (old, new), the latter "" if it is to be left out.
    """
    for position in range(len(arguments) - 1, -1, -1):  # of two the last one counts
        match = _FLAG.fullmatch(arguments[position])
        if match is None:
            continue
        name = match["flag"].lstrip("-+~").replace("-", "_").rpartition(".")[2]
        if name not in names and not (change.field and name == change.field):
            continue
        words = [match["value"][1:]] if match["value"] else _values(arguments[position + 1 :], name in switches)
        new = _new(change, name in names, words)
        if new is not None:
            value, count = new
            between = "=" if match["value"] else " "
            old = shlex.join(arguments[position : position + 1 + (0 if match["value"] else count)])
            if value == "" or (name in switches and plain(change.new) in (False, None)):
                return old, ""
            return old, f"{shlex.quote(match['flag'])}{between}{value}"
    return None


def added(values: Configuration) -> str:
    """Flags for settings that the command line does not have yet."""
    return " ".join(f"--{name} {_text(value)}" for name, value in values.items())


def names_in(arguments: Sequence[str]) -> set[str]:
    """The settings that are given as flags."""
    found = (_FLAG.fullmatch(argument) for argument in arguments if argument.startswith("--"))
    return {match["flag"].lstrip("-").replace("-", "_") for match in found if match}


def _values(rest: Sequence[str], switch: bool) -> list[str]:
    """What follows a flag, up to the next one; a negative number is none."""
    end = next((k for k, word in enumerate(rest) if _FLAG.fullmatch(word) and word.startswith("-")), len(rest))
    return [] if switch else list(rest[:end])


def _new(change: Change, named: bool, words: list[str]) -> tuple[str, int] | None:
    """(the new value, how many words the old one has); None if the value there is not the user's."""
    gone = change.new is None
    if not named:  # a dictionary as JSON
        whole = _json(words[0]) if words else None
        if not isinstance(whole, dict) or not same(whole.get(change.key), change.old):
            return None
        kept = {**whole, change.key: plain(change.new)}
        return _text({key: value for key, value in kept.items() if not gone or key != change.key}), 1
    if not words:  # --bf16 alone
        return (("" if gone else _text(change.new)), 0) if equal(change.old, True) else None
    if isinstance(change.old, (list, tuple)) and len(words) == len(change.old):
        if all(map(same, words, change.old)):
            return ("" if gone else _text(change.new)), len(words)
    if same(words[0], change.old) or equal(_json(words[0]), change.old):
        return ("" if gone else _text(change.new)), 1
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
