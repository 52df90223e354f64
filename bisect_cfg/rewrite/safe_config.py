"""safe_config.yaml: the user's own YAML file, where all changes are in it; else the training config as TrlParser loads
it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace

import yaml

from bisect_cfg.common.configuration import Configuration, Name, Value, equal, present
from bisect_cfg.probe.redact import mask, scrub
from bisect_cfg.rewrite import data
from bisect_cfg.rewrite.edits import Changes, Edits
from bisect_cfg.rewrite.places import YAML, Places
from bisect_cfg.targets.captured import entries, has_tag
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.packages import PACKAGE

TITLE = "Found by bisect-cfg: your configuration with the least change that trained healthily."


def safe_config(places: Places, changes: Changes, edits: Edits, title: str = TITLE) -> str:
    """The content of safe_config.yaml."""
    told = [f"Besides, where you train: {one.add}" for one in edits.unplaced if one.setting.startswith(PACKAGE)]
    title = "\n# ".join([title, *told])  # what is installed stands in no configuration
    safe = {**present(places.settings).bad, **{name: change.to for name, change in changes.items()}}
    if places.command is not None:
        everything = replace(places.command.template, parts=(), config_format="yaml")
        return scrub(f"# {title}\n{everything.config(places.command.settings(safe))}")
    own = _own_file(edits)
    return scrub(safe_yaml(present(places.settings), safe, title)) if own is None else f"# {title}\n{own}"


def diff_of_values(settings: Factors, changes: Changes) -> str:
    """The training config as YAML before and after, for changes that no edit of a file shows."""
    safe = {**settings.bad, **{name: change.to for name, change in changes.items()}}
    before, after = (safe_yaml(settings, levels).splitlines(keepends=True)[1:] for levels in (settings.bad, safe))
    return "".join(difflib.unified_diff(before, after, "your configuration", "safe_config.yaml"))


def _own_file(edits: Edits) -> str | None:
    """The text of the YAML file that configured the run, where all changes are in it and no secret is; else None."""
    path = edits.paths[0] if len(edits.spans) == len(edits.paths) == 1 and not edits.unplaced else None
    if path is None or path.suffix not in YAML:
        return None
    text = edits.after(path)
    secret = any(_holds_secret(str(keys[-1]), value) for keys, value in data.items_in(data.read(path, text)))
    return None if secret or scrub(text) != text else text.lstrip("\ufeff")


# ------------------------------------------------------------------------------------------------- the training config


def safe_yaml(settings: Factors, safe: Configuration, title: str = TITLE) -> str:
    """The user's training config with the recommended values, as a YAML file that TrlParser loads.

    What the training config does not hold (`model.*`, `peft.*`) and what YAML cannot hold is in comments."""
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
            current = {**(entries(values.get(setting)) or {}), key: value}
            if value is None and equal(value, factor.good):
                del current[key]
            values[setting] = current
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
    return bool(mask(value, name) != value)


def _without_secrets(value: Value) -> Value:
    if not isinstance(value, Mapping) or "$secret" in value:
        return None
    kept = {key: _without_secrets(item) if _holds_secret(str(key), item) else item for key, item in value.items()}
    return {key: item for key, item in kept.items() if item is not None or value[key] is None}
