"""safe_config.yaml: the user's training config with the safe values, for TrlParser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from bisect_cfg.factors import equal
from bisect_cfg.probe.secrets import mask
from bisect_cfg.targets.captured import fields_of, has_tag
from bisect_cfg.targets.settings import Settings

LOADED_BY_TRAINER = "args"
"""The kind of setting that safe_config.yaml can hold: what TrlParser reads into the training config."""


TITLE = "Found by bisect-cfg: your configuration with the least change that trained healthily."


def safe_yaml(settings: Settings, safe: Mapping[str, Any], title: str = TITLE) -> str:
    """The user's training config with the safe values, as a YAML file that TrlParser loads.

    What the training config does not hold (`model.*`, `peft.*`) and what YAML cannot hold is in comments.

    Args:
        settings: of the script.
        safe: name -> value, complete.
        title: the first line, a comment.
    """
    args = settings.capture.args
    values: dict[str, Any] = {}
    comments: list[str] = []
    for name, value in args.raw.items():
        if not equal(value, args.defaults.get(name)):
            values[name] = value
    for name, value in settings.pins.items():
        if name.startswith("args."):
            values[name[len("args.") :]] = value
    for factor in settings.factors:
        value = safe[factor.name]
        if factor.kind != LOADED_BY_TRAINER:
            if equal(value, factor.bad):
                continue
            comments.append(f"{factor.name}: {'the default' if value is None else value}  (set it in the script)")
            continue
        field, _, key = factor.name.partition(".")
        if not key:
            values[field] = value
            continue
        current = dict(fields_of(values.get(field)) or {})
        if equal(value, factor.good) and value is None:
            current.pop(key, None)
        else:
            current[key] = value
        values[field] = current
    factors = {factor.name for factor in settings.factors}
    for name, value in safe.items():  # what a known alternative sets besides
        if name in factors:
            continue
        if name.split(".")[0] in args.types:
            values[name] = value
        else:
            comments.append(f"{name}: {value}  (set it in the script)")
    for name in [name for name, value in values.items() if _holds_secret(name, value)]:
        comments.append(f"{name}: as in the script; secrets are left out here")
        values[name] = _without_secrets(values[name])
        if values[name] in (None, {}):
            del values[name]
    for name in [name for name, value in values.items() if has_tag(value)]:
        comments.append(f"{name}: as in the script ({values.pop(name)})")
    head = [f"# {title}"]
    head += [f"# {comment}" for comment in comments]
    return "\n".join(head) + "\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _holds_secret(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return "$secret" in value or any(_holds_secret(str(key), item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(_holds_secret(name, item) for item in value)
    return mask(value, name) != value


def _without_secrets(value: Any) -> Any:
    if not isinstance(value, Mapping) or "$secret" in value:
        return None
    kept = {key: _without_secrets(item) if _holds_secret(str(key), item) else item for key, item in value.items()}
    return {key: item for key, item in kept.items() if item is not None or value[key] is None}
