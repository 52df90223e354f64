"""safe_config.yaml: the user's own YAML file with the recommended values; of a run that no such file configured, the
training config as TrlParser loads it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.files import load_yaml
from bisect_cfg.common.name import Name
from bisect_cfg.probe.redact import mask, scrub
from bisect_cfg.rewrite import data
from bisect_cfg.rewrite.edits import Changes, Edits, edits_of, wanted
from bisect_cfg.rewrite.places import YAML, Places
from bisect_cfg.targets.captured import entries, has_tag
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import PACKAGE

TITLE = "Found by bisect-cfg: your configuration with the least change that trained healthily."


def safe_config(places: Places, changes: Changes, edits: Edits, title: str = TITLE) -> str:
    """The content of safe_config.yaml.

    Args:
        places: where the settings of the run are written.
        changes: of them.
        edits: that make the changes.
        title: the first line, a comment.
    """
    told = [f"Besides, where you train: {one.add}" for one in edits.unplaced if one.setting.startswith(PACKAGE)]
    title = "\n# ".join([title, *told])  # what is installed stands in no configuration
    safe = {**places.settings.bad, **{name: change.to for name, change in changes.items()}}
    if places.command is not None:
        return scrub(_of_command(places.command, safe, title))
    return scrub(_own_config(places, changes, edits, title) or safe_yaml(places.settings, safe, title))


def diff_of_values(settings: Factors, changes: Changes) -> str:
    """The training config as YAML before and after, for changes that no edit of a file shows."""
    safe = {**settings.bad, **{name: change.to for name, change in changes.items()}}
    before, after = (safe_yaml(settings, levels).splitlines(keepends=True)[1:] for levels in (settings.bad, safe))
    return "".join(difflib.unified_diff(before, after, "your configuration", "safe_config.yaml"))


def _of_command(target: CommandTarget, safe: Configuration, title: str) -> str:
    """All settings of the recommended configuration of a command."""
    everything = replace(target.template, parts=(), config_format="yaml")
    return f"# {title}\n{everything.config(target.settings(safe))}"


# ------------------------------------------------------------------------------------------------- the user's own file


def _own_config(places: Places, changes: Changes, edits: Edits, title: str) -> str | None:
    """The YAML file that configured the run, with the changes and nothing else, so that the same command loads it.

    What the command line gave is written into it; what is to be changed elsewhere is in comments; secrets are left out.
    None if no YAML file configured the run.
    """
    path = _configuring(places, edits)
    if path is None:
        return None
    here = {name for edit in edits.edits if edit.path in (None, path) for name in edit.settings}
    text, left = places.files[path], list[str]()
    for change in wanted(places.settings, changes):
        made = Edits()
        for one in (change, replace(change, added=True)) if change.name in here else ():
            made = made if made.edits else edits_of(Places(files={path: text}, fields=places.fields), [one])
        text = made.after(path) if made.edits else text
        left += [] if made.edits else [f"{change.name}: {_value_of(change.new)} (set it in the script)"]
    secret = list(dict.fromkeys(name for name, value in _items(load_yaml(text)) if _holds_secret(name, value)))
    for name in secret:
        shorter = data.without(path, text, name)
        if shorter is None:
            return None
        text = shorter
    flags = [edits.texts[None][edit.start : edit.end].strip() for edit in edits.edits if edit.path is None]
    comments = [f"{flag} (leave it out of the command)" for flag in flags if flag] + left
    comments += [f"left out, for it is secret: {', '.join(secret)} (as in {path.name})"] if secret else []
    head = [f"# {title}", *(f"# {' '.join(comment.split())}" for comment in comments)]
    return "\n".join([*head, text.lstrip("\ufeff")])


def _configuring(places: Places, edits: Edits) -> Path | None:
    """Of the YAML files the one that changes, or the one that holds most of the training config."""
    held: dict[Path, int] = {}
    for path, text in places.files.items():
        content = data.read(path, text) if path.suffix in YAML else None
        if content is not None:
            held[path] = sum(name in places.fields for name, _ in _items(content)) if isinstance(content, dict) else 0
    changed = [path for path in held if path in edits.paths]
    most = [path for path, count in held.items() if count == max(held.values()) > 0]
    return next((found[0] for found in (changed, most) if len(found) == 1), None)


def _items(value: Value) -> Iterator[tuple[str, Value]]:
    """Every key of the mappings in a value, at any depth, with what it holds, if that is no mapping itself."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _items(item) if isinstance(item, Mapping) else [(str(key), item)]
    for item in value if isinstance(value, list) else ():
        yield from _items(item)


# ------------------------------------------------------------------------------------------------- the training config


def safe_yaml(settings: Factors, safe: Configuration, title: str = TITLE) -> str:
    """The user's training config with the recommended values, as a YAML file that TrlParser loads.

    What the training config does not hold (`model.*`, `peft.*`) and what YAML cannot hold is in comments.

    Args:
        settings: of the script.
        safe: name -> value, complete.
        title: the first line, a comment.
    """
    args, comments = settings.capture.args, list[str]()
    values = {name: value for name, value in args.raw.items() if not equal(value, args.defaults.get(name))}
    values |= {name: value for name, value in settings.pins.items() if Name.of(name).space == "args"}
    factors = {factor.name: factor for factor in settings.varied}
    for name, value in {**{name: safe[name] for name in factors}, **safe}.items():
        factor, (setting, _, key) = factors.get(name), name.partition(".")
        if (factor.kind != "args") if factor else (setting not in args.types):
            if factor is None or not equal(value, factor.bad):
                comments.append(f"{name}: {_value_of(value)}  (set it in the script)")
        elif key and factor:
            current = dict(entries(values.get(setting)) or {})
            values[setting] = {**current, key: value}
            if value is None and equal(value, factor.good):
                del values[setting][key]
        else:
            values[name] = value
    for name in [name for name, value in values.items() if _holds_secret(name, value)]:
        comments.append(f"{name}: as in the script; secrets are left out here")
        values[name] = _without_secrets(values[name])
        if values[name] in (None, {}):
            del values[name]
    for name in [name for name, value in values.items() if has_tag(value)]:
        comments.append(f"{name}: as in the script ({values.pop(name)})")
    head = [f"# {title}", *(f"# {comment}" for comment in comments)]
    return "\n".join(head) + "\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _value_of(value: Value) -> Value:
    return "the default" if value is None else value


def _holds_secret(name: str, value: Value) -> bool:
    if isinstance(value, Mapping):
        return "$secret" in value or any(_holds_secret(str(key), item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(_holds_secret(name, item) for item in value)
    return mask(value, name) != value


def _without_secrets(value: Value) -> Value:
    if not isinstance(value, Mapping) or "$secret" in value:
        return None
    kept = {key: _without_secrets(item) if _holds_secret(str(key), item) else item for key, item in value.items()}
    return {key: item for key, item in kept.items() if item is not None or value[key] is None}
