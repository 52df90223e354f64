"""What a recommendation means for a command: the arguments to change, the file to write, the whole command."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection
from dataclasses import replace

from bisect_cfg.common.configuration import UNSET, Configuration, configuration_of
from bisect_cfg.common.json_files import JsonObject
from bisect_cfg.probe.redact import scrub
from bisect_cfg.recommend.edits._launch import OUTSIDE, advice, place
from bisect_cfg.recommend.edits._place import Change
from bisect_cfg.reports.text import show
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.script import by_hand
from bisect_cfg.targets.template import CONFIG, FOLDER, Typed


def changed_command(target: CommandTarget, safe: Configuration) -> JsonObject:
    """The keys of a recommendation that say what to change in a command.

    Args:
        target: the command.
        safe: the factors of the recommended configuration.
    """
    bad, spelling = target.sides.bad, target.template.spelling
    edits, located = [], set()
    for part in target.template.parts:
        if isinstance(part, Typed) and part.name in bad:
            old, new = list(part.words), part.put(safe.get(part.name, UNSET), spelling)
            located.add(part.name)
            if old != new:
                words = {"old": scrub(shlex.join(old)), "new": scrub(shlex.join(new))}
                edits.append({"file": None, "line": None, **words, "settings": [part.name]})
    other = [name for name in {**bad, **safe} if safe.get(name, UNSET) != bad.get(name, UNSET)]
    changed = [name for name in other if name not in located]
    before, after = (_texts(target, levels) for levels in (bad, safe))
    config = "CONFIG" if target.config(safe) is None else "safe_config.yaml"
    return {
        "edits": edits,
        "diff": "".join(map(scrub, difflib.unified_diff(before, after, "your configuration", "safe"))),
        "not_located": changed,
        "unplaced": [_unplaced(target, name, safe) for name in changed],
        "command": by_hand(target.words(safe, config, "FOLDER")),
    }


def failing_command(target: CommandTarget, subset: Collection[str]) -> JsonObject:
    """The whole command with only these settings bad: "command"; "config", the configuration file that it names, by
    "name" and "text", None if there is none.

    Args:
        target: the command.
        subset: their names.
    """
    configuration = configuration_of(frozenset(subset), target.sides.good, target.sides.bad)
    name, config = f"config.{target.template.config_format}", target.config(configuration)
    env: list[str] = []
    for variable, value in target.variables(configuration).items():
        env += ["-u", variable] if value is None else [f"{variable}={value}"]
    command = by_hand([*(["env", *env] if env else []), *target.words(configuration, name, "FOLDER")])
    return {"command": command, "config": None if config is None else {"name": name, "text": scrub(config)}}


def _unplaced(target: CommandTarget, name: str, safe: Configuration) -> JsonObject:
    """What to do about a setting that does not stand in the command."""
    if name.startswith(OUTSIDE):
        change = Change(name, target.sides.bad.get(name), target.sides.overrides(safe).get(name, safe.get(name)))
        return {"setting": name, "why": place(change), "add": advice(change)}
    add = f"write {name}: {show(safe.get(name, UNSET))} there"
    return {"setting": name, "why": "the bad side gives it", "add": add}


def _texts(target: CommandTarget, configuration: Configuration) -> list[str]:
    """What the program is given, one line for each argument, or for each line of its configuration file."""
    config = target.config(configuration)
    if config is not None:
        return config.splitlines(keepends=True)
    return [f"{shlex.quote(word)}\n" for word in target.words(configuration, f"{{{CONFIG}}}", f"{{{FOLDER}}}")]


def safe_settings(target: CommandTarget, safe: Configuration, title: str) -> str:
    """All settings of the recommended configuration, as YAML.

    Args:
        target: the command.
        safe: the factors.
        title: the first line, a comment.
    """
    everything = replace(target.template, parts=(), config_format="yaml")
    return f"# {title}\n{everything.config(target.settings(safe))}"
