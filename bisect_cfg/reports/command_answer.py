"""What a recommendation means for a command: the arguments to change, the file to write, the whole command."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import replace

from bisect_cfg.capture.script import by_hand
from bisect_cfg.capture.target import CommandTarget
from bisect_cfg.capture.template import CONFIG, FOLDER, Typed
from bisect_cfg.configuration import UNSET, Configuration
from bisect_cfg.jsonfile import JsonObject
from bisect_cfg.probe.secrets import scrub
from bisect_cfg.reports.text import show


def changed_command(target: CommandTarget, safe: Configuration) -> JsonObject:
    """The keys of a recommendation that say what to change in a command.

    Args:
        target: the command.
        safe: the factors of the recommended configuration.
    """
    bad, spelling, style = target.sides.bad, target.template.spelling, target.template.style
    edits, located = [], set()
    for part in target.template.parts:
        if isinstance(part, Typed) and part.name in bad:
            old, new = list(part.words), part.put(safe.get(part.name, UNSET), spelling, style)
            located.add(part.name)
            if old != new:
                words = {"old": scrub(shlex.join(old)), "new": scrub(shlex.join(new))}
                edits.append({"file": None, "line": None, **words, "settings": [part.name]})
    changed = [name for name in bad if name not in located and safe.get(name, UNSET) != bad[name]]
    before, after = (_texts(target, levels) for levels in (bad, safe))
    config = "CONFIG" if target.config(safe) is None else "safe_config.yaml"
    return {
        "edits": edits,
        "diff": "".join(map(scrub, difflib.unified_diff(before, after, "your configuration", "safe"))),
        "not_located": changed,
        "unplaced": [
            {
                "setting": name,
                "why": "the bad side gives it",
                "add": f"write {name}: {show(safe.get(name, UNSET))} there",
            }
            for name in changed
        ],
        "command": by_hand(target.words(safe, config, "FOLDER")),
    }


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
    return f"# {title}\n{everything.config(target.complete(safe))}"
