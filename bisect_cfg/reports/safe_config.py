"""safe_config.yaml: the user's own YAML file with the safe values; of a run that no such file configured, the training
config for TrlParser."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from bisect_cfg.common.configuration import Configuration, Value, equal
from bisect_cfg.common.files import load_yaml, read_text
from bisect_cfg.common.name import Name
from bisect_cfg.probe.redact import mask, scrub
from bisect_cfg.recommend.edits import Change, Edits, own_yaml
from bisect_cfg.targets.captured import entries, has_tag
from bisect_cfg.targets.factors import Factors

LOADED_BY_TRAINER = "args"
"""The kind of setting that safe_config.yaml can hold: what TrlParser reads into the training config."""


YAML = (".yaml", ".yml")
"""How names of YAML files end."""

TITLE = "Found by bisect-cfg: your configuration with the least change that trained healthily."


def own_config(
    files: Sequence[Path], changes: Sequence[Change], edits: Edits, fields: Collection[str], title: str
) -> str | None:
    """The YAML file that configured the run, with the changes and nothing else, so that the same command loads it.

    What it says of models, data and rewards stays in it. What was given on the command line instead is written into it;
    what is to be changed elsewhere is in comments.

    Args:
        files: that configured the run.
        changes: to make.
        edits: where.
        fields: of the training config.
        title: the first line, a comment.

    Returns:
        None if no YAML file configured the run.
    """
    path = _configuring(files, edits, fields)
    if path is None:
        return None
    data = load_yaml(read_text(path))
    secret = list(dict.fromkeys(name for name, value in _items(data) if _holds_secret(name, value)))
    here = {name for edit in edits.edits if edit.path in (None, path) for name in edit.names}
    made = own_yaml(path, [change for change in changes if change.name in here], fields, secret)
    if made is None:
        return None
    text, left = made
    comments = [f"{edit.old} (leave it out of the command)" for edit in edits.edits if edit.path is None and edit.old]
    comments += [
        f"{change.name}: {'the default' if change.new is None else change.new} (set it in the script)"
        for change in changes
        if change.name in left or change.name not in here
    ]
    comments += [f"left out, for it is secret: {', '.join(secret)} (as in {path.name})"] if secret else []
    head = [f"# {title}", *(f"# {' '.join(comment.split())}" for comment in comments)]
    return "\n".join(map(scrub, [*head, *text.lstrip("\ufeff").split("\n")]))


def _configuring(files: Sequence[Path], edits: Edits, fields: Collection[str]) -> Path | None:
    """Of the files the one that holds the training config: the one that changes, or the one with most of it."""
    held: dict[Path, int] = {}
    for path in files:
        if path.suffix not in YAML:
            continue
        try:
            data = load_yaml(read_text(path))
        except (OSError, ValueError):
            continue
        held[path] = sum(name in fields for name, _ in _items(data)) if isinstance(data, dict) else 0
    changed = [path for path in held if path in edits.after]
    most = [path for path, count in held.items() if count == max(held.values()) > 0]
    return next((found[0] for found in (changed, most) if len(found) == 1), None)


def _items(value: Value) -> Iterator[tuple[str, Value]]:
    """Every key of the mappings in a value, at any depth, with what it holds, if that is no mapping itself."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, Mapping):
                yield from _items(item)
            else:
                yield str(key), item
    for item in value if isinstance(value, list) else ():
        yield from _items(item)


def safe_yaml(settings: Factors, safe: Configuration, title: str = TITLE) -> str:
    """The user's training config with the safe values, as a YAML file that TrlParser loads.

    What the training config does not hold (`model.*`, `peft.*`) and what YAML cannot hold is in comments.

    Args:
        settings: of the script.
        safe: name -> value, complete.
        title: the first line, a comment.
    """
    args = settings.capture.args
    values: dict[str, Value] = {}
    comments: list[str] = []
    for name, value in args.raw.items():
        if not equal(value, args.defaults.get(name)):
            values[name] = value
    values |= {name: value for name, value in settings.pins.items() if Name.of(name).space == "args"}
    for factor in settings.varied:
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
        current = dict(entries(values.get(field)) or {})
        if equal(value, factor.good) and value is None:
            current.pop(key, None)
        else:
            current[key] = value
        values[field] = current
    factors = {factor.name for factor in settings.varied}
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
