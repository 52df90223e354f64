"""Where the settings of a run are written: its command, its scripts, and the files that configured it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bisect_cfg.common.cells import SUFFIX, script_of
from bisect_cfg.common.configuration import Value
from bisect_cfg.common.files import read_text
from bisect_cfg.probe.protocol import NAMESPACE, Assigned, Opened
from bisect_cfg.rewrite import data
from bisect_cfg.targets.command import CommandTarget
from bisect_cfg.targets.factors import Factors
from bisect_cfg.targets.script import Script
from bisect_cfg.targets.target import Target

YAML = (".yaml", ".yml")
DATA = (*YAML, ".json", ".toml")
"""How names of files that configure a run end."""

PYTHON = (".py", SUFFIX)

SAVED = "transformers_version"
"""A key of what is saved with a model (generation_config.json), which has names of a training config too."""


@dataclass(frozen=True)
class Places:
    """Where the settings of a run are written."""

    words: Sequence[str] = ()  # of the whole command
    arguments: int = 0  # how many of them, at the end, are the script's own
    launcher: int = 0  # how many of them, from the beginning, the launcher takes settings from
    # path -> text, the script first, then what else of the user's it imports
    python: Mapping[Path, str] = field(default_factory=dict)
    # path -> text of the YAML, JSON and TOML files that configured the run
    files: Mapping[Path, str] = field(default_factory=dict)
    config: str = "GRPOConfig"  # the class of the training config
    fields: Collection[str] = ()  # of the training config
    assigned: Collection[str] = ()  # those that the run was seen to set as attributes of the finished config
    # namespace of settings -> the line (absolute path, number) that was seen to build what has them
    built: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    # own setting of the script -> what its parser calls it
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: Factors | None = None  # the factors; None where all changes are of what stands in a file
    command: CommandTarget | None = None  # the target, if it is a command of any kind


def places_of(target: Target, settings: Factors, bad_run: Any) -> Places:
    """Where the settings of a target are written; the run of the user's own command tells what it opened."""
    if isinstance(target, CommandTarget):
        return Places(command=target, settings=settings)
    args, traces = settings.capture.args, bad_run.traces
    script = target.path.absolute()
    imported = dict.fromkeys(Path(row.path) for row in traces.all(Opened) if row.mode == "m")
    own = [path for path in imported if path not in (script, target.runs) and path.is_relative_to(script.parent)]
    made = {} if target.notebook is None else {target.path: target.notebook.text}
    built = {}
    for one in (*settings.capture.others.values(), args):
        if one.place is not None:
            path, line = one.place
            within = target.notebook is not None and Path(path).name == script_of(target.path, Path()).name
            built[NAMESPACE.get(one.kind, one.kind)] = (str(script) if within else path, line)
    words, arguments = target.command, len(target.arguments)
    trl = target.launch is not None and target.launch.kind == "trl"
    return Places(
        words,
        arguments,
        len(words) if trl else 0 if target.launch is None else len(target.launch.before),
        {**made, **_texts([*(() if made else (target.path,)), *own])},
        _texts(_configured_by(target, settings, traces)),
        args.cls,
        args.types,
        {row.name for row in traces.all(Assigned) if row.index == args.index},
        built,
        passed.flags if (passed := settings.capture.others.get("script")) is not None else {},
        settings,
    )


def _configured_by(script: Script, settings: Factors, traces: Any) -> list[Path]:
    """The files that configured the run: those that the command names, and YAML that the script opened (of Hydra a
    folder). JSON and TOML are opened for many other reasons: of them, what holds a training config, or the script's own
    settings."""
    named = [Path(name) for name in script.argument_files() if name.endswith(DATA)]
    opened = [Path(row.path) for row in traces.all(Opened) if row.mode == "r" and row.path.endswith(DATA)]
    deepspeed = settings.capture.deepspeed
    if deepspeed is not None and Path(deepspeed.path).resolve() not in [path.resolve() for path in named]:
        named.append(Path(deepspeed.path))
    own = settings.capture.others.get("script")
    fields = {*settings.capture.args.types, *(name.rpartition(".")[2] for name in (own.raw if own is not None else ()))}
    known = {path.resolve() for path in (*named, *([script.good_file] if script.good_file else ()))}
    return named + [
        path
        for path in opened
        if path.is_file() and path.resolve() not in known and (path.suffix in YAML or configures(path, fields))
    ]


def configures(path: Path, fields: Collection[str]) -> bool:
    """Whether a file holds settings: a mapping of which at least half are of these names."""

    def holds(value: Value) -> bool:
        if isinstance(value, list):
            return any(map(holds, value))
        if not isinstance(value, dict):
            return False
        own = sum(key in fields for key in value)
        return (0 < len(value) <= 2 * own and SAVED not in value) or any(map(holds, value.values()))

    return holds(data.read(path, _texts([path]).get(path, "")))


def _texts(paths: Iterable[Path]) -> dict[Path, str]:
    """The texts of those files that are text, with the line ends that they have."""
    found: dict[Path, str] = {}
    for path in paths:
        try:
            found.setdefault(path, read_text(path))
        except (OSError, ValueError):
            continue
    return found
