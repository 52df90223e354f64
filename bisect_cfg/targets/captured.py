"""What the probe saw of a script's configuration: the objects that were built, and which of them train.

"What the user set" is what differs from the default of the library's field: a parser passes every field, so what was
passed says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisect_cfg.configuration import equal
from bisect_cfg.probe.protocol import (
    Assigned,
    Changed,
    Completed,
    ConfigBuilt,
    ConfigResolved,
    Encoded,
    Event,
    Prepared,
    RankBegin,
    TrainBegin,
    TrainerBuilt,
)
from bisect_cfg.targets.launch_settings import (
    DEEPSPEED_FILE_VARIABLE,
    SHARDING,
    Accelerate,
    Asked,
    asked_in_file,
    asked_of,
)

Row = dict[str, Encoded]
"""Field, or full name, -> encoded value."""

Key = tuple[str, int]
"""Kind and index of an object."""


OWN = ("script", "env")
"""Kinds of settings of the script's own: what its parsers made of the command line, variables that it reads. All that
it was offered of a kind is one object."""

OWN_PARTS = ("raw", "defaults", "types", "flags")


@dataclass(frozen=True)
class Built:
    """One configuration object as the probe saw it being built.

    Attributes:
        kind: "args", "modelcfg", "peft" or "load"; see `OWN`.
        index: among those of its kind, in order of creation.
        cls: name of its (library) class.
        module: where that is defined.
        raw: field -> what the user passed, encoded.
        defaults: field -> the library's default.
        types: field -> annotation, as text.
        resolved: field -> what the library made of it.
        changed: fields that were changed afterwards in a way that a trial cannot follow.
        others: what the user passed besides and a trial does not vary (arguments of `from_pretrained`).
        world_size: how many processes train together.
        devices: how many GPUs one process uses, where it trains alone.
        place: file and line of the user's that builds it; None if there is none.
        passed: as `raw`, before the script set attributes of the finished object.
        used: whether the training has anything of it.
        handed: field -> the script's own setting whose value it holds.
        flags: own setting -> what the command line calls it.
    """

    kind: str
    index: int
    cls: str
    module: str
    raw: Row
    defaults: Row
    types: dict[str, str]
    resolved: Row
    changed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    world_size: int = 1
    devices: int = 1
    place: tuple[str, int] | None = None
    passed: Row = field(default_factory=dict)
    used: bool = True
    handed: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class DeepSpeedFile:
    """The file that configures DeepSpeed.

    Attributes:
        path: as it was given.
        content: what it holds.
        of_launcher: whether the launcher names it, or the training arguments do.
    """

    path: str
    content: Row
    of_launcher: bool


@dataclass(frozen=True)
class NumberedTraining:
    """Which training of a script a run is about.

    Attributes:
        number: counted from 1, in the process that trains.
        trainer: name of its class, "" where it never began.
        of: how many the run has seen, this one included.
    """

    number: int = 1
    trainer: str = ""
    of: int = 1


@dataclass(frozen=True)
class Capture:
    """Everything the first run showed about the script's configuration.

    Attributes:
        args: the training config that the trainer got.
        others: by kind, the ModelConfig, LoraConfig and `from_pretrained` call that belong to the training, and the
            settings of the script's own.
        order: (kind, index) of all objects, in order of creation.
        modules: heavy modules the script had imported when training began.
        environment: versions as the process had them.
        prepares: whether the script changes the environment or the path before it imports the libraries.
        started: whether the training runs in a process that the script has started, not in the script's own.
        forked: whether that process is a fork of the script's own.
        asked: what the launcher was asked for.
        given: the environment variables that the launcher has added.
        in_force: what the training had of that, by accelerate's names.
        accelerate: what it says of its settings, once it was asked (`with_accelerate`).
        deepspeed: the file that configures DeepSpeed, None if there is none.
        training: which one of the script's this is.
        named: settings that the good side gives.
    """

    args: Built
    others: dict[str, Built]
    order: tuple[tuple[str, int], ...]
    modules: tuple[str, ...]
    environment: Row
    prepares: bool = False
    started: bool = False
    forked: bool = False
    asked: tuple[Asked, ...] = ()
    deepspeed: DeepSpeedFile | None = None
    training: NumberedTraining = NumberedTraining()
    named: frozenset[str] = frozenset()
    given: Mapping[str, str] = field(default_factory=dict)
    in_force: Mapping[str, Encoded] = field(default_factory=dict)
    accelerate: Accelerate = Accelerate()

    def with_accelerate(self, accelerate: Accelerate) -> Capture:
        """The same, with the settings that accelerate hands on."""
        asked = asked_of(self.given, self.in_force, accelerate)
        in_file = () if self.deepspeed is None else asked_in_file(self.deepspeed.content)
        return replace(self, asked=(*asked, *in_file), accelerate=accelerate)


def read_capture(events: Sequence[Event]) -> Capture | None:
    """Read the probe's events; None if no training config was built."""
    built: dict[Key, ConfigBuilt] = {}
    passed: dict[Key, Row] = {}
    resolved: dict[Key, Row] = {}
    devices: dict[Key, int] = {}
    changed: dict[Key, list[str]] = {}
    begun: TrainBegin | None = None
    completed: list[Completed | TrainBegin] = []
    prepared: Key | None = None
    given: dict[str, str] = {}
    world_size, launched = 1, False
    for event in events:
        match event:
            case Completed():
                completed.append(begun or event)
                begun = None
            case TrainerBuilt() if begun is None and event.args is not None:
                prepared = ("args", event.args)
            case ConfigBuilt(kind=kind, index=index):
                built[kind, index] = event
                passed[kind, index] = event.raw
            case ConfigResolved(kind=kind, index=index):
                resolved[kind, index], devices[kind, index] = event.values, event.devices
            case Assigned(kind=kind, index=index) if begun is None and (kind, index) in built:
                # training_args.learning_rate = ... after the object was built: what the user set, like the rest.
                known = built[kind, index]
                built[kind, index] = replace(known, raw={**known.raw, event.name: event.value})
                resolved[kind, index] = {**resolved.get((kind, index), {}), event.name: event.value}
            case Changed(kind=kind, index=index) if begun is None:
                changed.setdefault((kind, index), []).append(event.name)
            case RankBegin():
                given, world_size, launched = event.given, event.world_size, bool(event.words)
            case TrainBegin():
                begun, prepared = event, None
    candidates = [key for key in built if key[0] == "args"]
    if not candidates:
        return None
    done = {("args", event.args) for event in completed}
    left = [key for key in candidates if key not in done]
    if begun is None and completed and not left:  # all went well
        begun = completed[-1] if isinstance(completed[-1], TrainBegin) else None
    told = begun or TrainBegin(len(completed) + 1)
    grpo = [key for key in left or candidates if built[key].grpo]
    # The one the trainer got; if training never began, the last one built, one of GRPO before others.
    chosen = next((key for key in (("args", told.args), prepared) if key in built), (grpo or left or candidates)[-1])

    def made(key: Key) -> Built:
        row = built[key]
        return Built(
            row.kind, row.index, row.cls, row.module, row.raw, row.defaults, row.types, resolved.get(key, {}),
            tuple(dict.fromkeys(changed.get(key, ()))), tuple(row.others),
            begun.world_size if begun is not None else world_size, devices.get(key, 1),
            row.place and (row.place[0], row.place[1]), passed[key], row.kind != "peft" or told.adapted, row.handed,
        )  # fmt: skip

    others = {}
    for kind in ("modelcfg", "peft", "load"):
        known = [key for key in built if key[0] == kind]
        wanted = (kind, getattr(told, kind))
        if wanted in built:
            others[kind] = made(wanted)
        elif known and begun is None:
            others[kind] = made(known[-1])
    others |= own_settings(events)
    asked = asked_of(given, told.in_force)
    deepspeed = _deepspeed_file(given, asked, built[chosen].raw)
    return Capture(
        made(chosen),
        others,
        tuple(built),
        tuple(told.modules),
        told.environment,
        any(isinstance(event, Prepared) for event in events),
        launched if begun is None else not begun.first,
        told.forked,
        (*asked, *(asked_in_file(deepspeed.content) if deepspeed is not None else ())),
        deepspeed,
        NumberedTraining(told.number, told.trainer, max(told.number, len(completed))),
        given=given,
        in_force=told.in_force,
    )


def own_settings(events: Sequence[Event]) -> dict[str, Built]:
    """The settings of the script's own that the probe saw, by kind; of several parsers the last one has its say."""
    found: dict[str, Built] = {}
    for row in events:
        if isinstance(row, ConfigBuilt) and row.kind in OWN:
            own = found.setdefault(
                row.kind, Built(row.kind, row.index, "", "", {}, {}, {}, {}, place=row.place and tuple(row.place))
            )
            merged = {part: {**getattr(own, part), **getattr(row, part)} for part in OWN_PARTS}
            found[row.kind] = replace(own, **merged)
    return found


def _deepspeed_file(given: Mapping[str, str], asked: Sequence[Asked], raw: Row) -> DeepSpeedFile | None:
    """The file that configures DeepSpeed; None if there is none, it is not in force or holds nothing to be read.

    Args:
        given: what the launcher has put into the environment.
        asked: what it was asked for.
        raw: field -> value of the training config.
    """
    launched = any(one.name == SHARDING and one.value == "DEEPSPEED" and not one.reason for one in asked)
    path = given.get(DEEPSPEED_FILE_VARIABLE) if launched else None
    named = path or raw.get("deepspeed")
    if not isinstance(named, str):
        return None
    try:
        content = json.loads(Path(named).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return DeepSpeedFile(named, content, bool(path)) if isinstance(content, dict) else None


def set_by_user(built: Built) -> list[str]:
    """Fields whose raw value differs from the default, in the order of the class."""
    return [
        name
        for name, value in built.raw.items()
        if name not in built.defaults or not equal(_as_parsed(value), _as_parsed(built.defaults[name]))
    ]


def _as_parsed(value: Encoded) -> Encoded:
    value = plain(value)
    return _AS_PARSED.get(value, value) if isinstance(value, str) else value


def takes_dict(built: Built, name: str) -> bool:
    """Whether a field accepts a dictionary, by its annotation."""
    return "dict" in built.types.get(name, "").lower()


def fields_of(value: Encoded) -> Row | None:
    """The entries of a setting that holds a dictionary, as such, as JSON text or as an object with named fields; None
    if it holds none."""
    value = plain(value)
    if isinstance(value, dict) and isinstance(value.get("fields"), dict) and "$object" in value:
        value = value["fields"]
    return value if isinstance(value, dict) and not any(key.startswith("$") for key in value) else None


def has_tag(value: Encoded, *tags: str) -> bool:
    """Whether an encoded value holds one of these kinds ("$opaque", ...), at any depth; without tags, any kind."""
    if isinstance(value, dict):
        own = any(key in tags if tags else key.startswith("$") for key in map(str, value))
        return own or any(has_tag(item, *tags) for item in value.values())
    return isinstance(value, (list, tuple)) and any(has_tag(item, *tags) for item in value)


_AS_PARSED = {"": None, "no": False}
"""What argparse and YAML make of texts that stand for nothing: a parser passes them for what nobody has written."""


def plain(value: Encoded) -> Encoded:
    """A raw value without the accidents of how it was passed: JSON text of a dict is that dict."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
