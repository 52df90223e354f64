"""What the probe saw of a script's configuration: what handed settings to its code, and which of it the training had.

What hands settings to code is a `Source`: a configuration object, the arguments of `from_pretrained`, the script's own
parser, the environment. "What the user set" is what differs from the source's default: a parser passes every field, so
what was passed says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

from bisect_cfg.common.configuration import Name, equal
from bisect_cfg.probe.protocol import (
    NAMESPACE,
    Assigned,
    Changed,
    Completed,
    ConfigBuilt,
    ConfigResolved,
    Encoded,
    Event,
    OwnDefaults,
    Prepared,
    RankBegin,
    TrainBegin,
    TrainerBuilt,
)
from bisect_cfg.targets.computed import Computed, computed
from bisect_cfg.targets.launch_settings import (
    DEEPSPEED_FILE_VARIABLE,
    SHARDING,
    Accelerate,
    Asked,
    asked_in_file,
    asked_of,
)
from bisect_cfg.targets.own_code import OwnCode, own_code

Row = dict[str, Encoded]
"""Key, or name, -> encoded value."""

OBJECTS = ("modelcfg", "load", "peft")
"""Kinds of sources beside the training config ("args") of which a training has one each."""

OWN = ("script", "env")
"""Kinds of settings of the script's own: what its parsers made of the command line, variables that it reads. All that
it was offered of a kind is one source."""


@dataclass(frozen=True)
class Source:
    """What hands settings to the code, as the probe saw it.

    Attributes:
        kind: "args", one of `OBJECTS` or one of `OWN`.
        index: among those of its kind, in order of creation.
        cls: name of its (library) class.
        module: where that is defined.
        raw: key -> what the user passed, encoded; with what the script then set on the finished object.
        defaults: key -> the default.
        types: key -> annotation, as text.
        resolved: key -> what the library made of it.
        changed: keys that were changed afterwards in a way that a trial cannot follow.
        others: what the user passed besides and a trial does not vary (arguments of `from_pretrained`).
        world_size: how many processes train together.
        devices: how many GPUs one process uses, where it trains alone.
        place: file and line of the user's that builds it; None if there is none.
        passed: as `raw`, before the script set attributes of the finished object.
        used: whether the training has anything of it.
        handed: key -> the script's own setting whose value it holds.
        grpo: whether it is a training config of GRPO.
        flags: own setting -> what the command line calls it.
        code: what the script's code says of its own settings.
        words: index of the source that is the words of the command line, where the script takes them apart itself; -1
            where it does not.
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
    others: Sequence[str] = ()
    world_size: int = 1
    devices: int = 1
    place: tuple[str, int] | None = None
    passed: Row = field(default_factory=dict)
    used: bool = True
    handed: Mapping[str, str] = field(default_factory=dict)
    grpo: bool = False
    flags: Mapping[str, list[str]] = field(default_factory=dict)
    code: OwnCode = OwnCode()
    words: int = -1

    def name(self, key: str) -> Name:
        """The name of one of its settings."""
        return Name(NAMESPACE[self.kind], key)

    @property
    def built(self) -> bool:
        """Whether the run came to build it: the training config of one that ended before is empty."""
        return bool(self.cls)

    @property
    def set_by_user(self) -> list[str]:
        """Keys whose raw value differs from the default, in the order of the class. Of a list of sections its elements'
        keys, unless the list has a default itself."""
        lists = [key for key, value in self.raw.items() if isinstance(value, list)]
        whole = tuple(f"{key}." for key in lists if key in self.defaults)
        split = {key for key in lists if key not in self.defaults and any(o.startswith(f"{key}.") for o in self.raw)}
        return [
            key
            for key, value in self.raw.items()
            if (key not in self.defaults or not equal(_as_parsed(value), _as_parsed(self.defaults[key])))
            and not (key in split or key.startswith(whole))
        ]


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
        others: kind -> the other sources of the training.
        order: (kind, index) of all sources, in order of creation.
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
        named: settings that the good side gives, with their values there.
    """

    args: Source
    others: dict[str, Source]
    order: tuple[tuple[str, int], ...]
    modules: tuple[str, ...]
    environment: Row
    prepares: bool = False
    started: bool = False
    forked: bool = False
    asked: tuple[Asked, ...] = ()
    deepspeed: DeepSpeedFile | None = None
    training: NumberedTraining = NumberedTraining()
    named: Row = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    in_force: Mapping[str, Encoded] = field(default_factory=dict)
    accelerate: Accelerate = Accelerate()

    def with_accelerate(self, accelerate: Accelerate) -> Capture:
        """The same, with the settings that accelerate hands on."""
        asked = asked_of(self.given, self.in_force, accelerate)
        in_file = () if self.deepspeed is None else asked_in_file(self.deepspeed.content)
        return replace(self, asked=(*asked, *in_file), accelerate=accelerate)

    @cached_property
    def own(self) -> Row:
        """Name -> value of each setting of the script's own, and of each that its files leave to its defaults."""
        raw = [(source, source.code.merged if source.kind == "script" else {}) for source in self._own_sources]
        return {str(own.name(key)): value for own, left in raw for key, value in {**left, **own.raw}.items()}

    @cached_property
    def own_good(self) -> Row:
        """The same where they are good, if that is known; of a variable what the code has where it is not set."""
        found: Row = {}
        for own in self._own_sources:
            found |= {str(own.name(key)): value for key, value in own.defaults.items()}
            unset = {key: value for key in own.raw if own.kind == "env" for value in own.code.default_of_variable(key)}
            found |= {name: value for key, value in unset.items() if found.get(name := str(own.name(key))) is None}
        return {name: {**found, **self.named}.get(name, value) for name, value in self.own.items()}

    @cached_property
    def computed(self) -> dict[str, Computed]:
        """Name -> how the script computes it, of the fields of configuration objects that it makes of its own."""
        found: dict[str, Computed] = {}
        for own in self._own_sources[:1]:  # they all have the same code
            for source in (one for one in (self.args, *self.others.values()) if one.kind not in OWN):
                made = ((key, computed(key, raw, own.code, self.own, self.own_good)) for key, raw in source.raw.items())
                found |= {str(source.name(key)): one for key, one in made if one is not None}
        return found

    @property
    def _own_sources(self) -> list[Source]:
        return [source for kind, source in self.others.items() if kind in OWN]


NOTHING_SEEN = Capture(Source("args", 0, "", "", {}, {}, {}, {}), {}, (), (), {})
"""Of a command that no probe is in."""


@dataclass
class _Seen:
    """What the events tell so far.

    Attributes:
        sources: (kind, index) -> the source as it is by now.
        begun: the training that runs.
        completed: those that have ended.
        prepared: index of the config that a trainer was built with which has not begun to train.
        rank: which of several processes this is.
    """

    sources: dict[tuple[str, int], Source] = field(default_factory=dict)
    begun: TrainBegin | None = None
    completed: list[Completed | TrainBegin] = field(default_factory=list)
    prepared: int | None = None
    rank: RankBegin = RankBegin(0, 0, 1)

    def add(self, event: Event) -> None:
        """Take in the next event."""
        key = getattr(event, "kind", ""), getattr(event, "index", 0)
        known, begun = self.sources.get(key), self.begun
        match event:
            case ConfigBuilt():
                told = {one.name: getattr(event, one.name) for one in fields(event)}
                self.sources[key] = Source(**told, resolved={}, passed=event.raw)
            case ConfigResolved() if known:
                self.sources[key] = replace(known, resolved=event.values, devices=event.devices)
            case Assigned() if known and begun is None:
                # training_args.learning_rate = ... after the object was built: what the user set, like the rest.
                now = {event.name: event.value}
                self.sources[key] = replace(known, raw={**known.raw, **now}, resolved={**known.resolved, **now})
            case Changed() if known and begun is None and event.name not in known.changed:
                self.sources[key] = replace(known, changed=(*known.changed, event.name))
            case TrainerBuilt() if begun is None and event.args is not None:
                self.prepared = event.args
            case RankBegin():
                self.rank = event
            case TrainBegin():
                self.begun, self.prepared = event, None
            case Completed():
                self.completed.append(begun or event)
                self.begun = None


def read_capture(events: Sequence[Event], configured: bool = True) -> Capture | None:
    """Read the probe's events; None if no training config was built.

    Args:
        events: of a run.
        configured: False also reads a run that ended before it built one: it has the settings of the script's own, if
            any, and the config is empty.
    """
    seen = _Seen()
    for event in events:
        seen.add(event)
    begun, completed, rank = seen.begun, seen.completed, seen.rank
    done = {event.args for event in completed}
    configs = {index: source for (kind, index), source in seen.sources.items() if kind == "args"}
    left = [index for index in configs if index not in done]
    own = own_settings(events)
    if not configs and not configured and own:
        configs = {0: Source("args", 0, "", "", {}, {}, {}, {})}
    if not configs:
        return None
    if begun is None and completed and not left:  # all went well
        begun = completed[-1] if isinstance(completed[-1], TrainBegin) else None
    told = begun or TrainBegin(len(completed) + 1, world_size=rank.world_size)
    # The one the trainer got; if training never began, the last one built, one of GRPO before others.
    grpo = [index for index in left or configs if configs[index].grpo]
    last = (grpo or left or list(configs))[-1]
    args = configs[next((index for index in (told.args, seen.prepared) if index in configs), last)]
    asked = asked_of(rank.given, told.in_force)
    deepspeed = _deepspeed_file(rank.given, asked, args.raw)
    return Capture(
        replace(args, world_size=told.world_size),
        _beside(seen.sources, begun) | own,
        tuple(seen.sources),
        tuple(told.modules),
        told.environment,
        any(isinstance(event, Prepared) for event in events),
        bool(rank.words) if begun is None else not begun.first,
        told.forked,
        (*asked, *(asked_in_file(deepspeed.content) if deepspeed is not None else ())),
        deepspeed,
        NumberedTraining(told.number, told.trainer, max(told.number, len(completed))),
        given=rank.given,
        in_force=told.in_force,
    )


def _beside(sources: Mapping[tuple[str, int], Source], begun: TrainBegin | None) -> dict[str, Source]:
    """The sources of a training beside its config: those that it got, of one that never began the last of each kind."""
    found: dict[str, Source] = {}
    for kind in OBJECTS:
        known = [source for (other, _), source in sources.items() if other == kind]
        last = known[-1] if known else None
        chosen = last if begun is None else sources.get((kind, getattr(begun, kind)))
        if chosen is not None:
            found[kind] = replace(chosen, used=kind != "peft" or begun is None or begun.adapted)
    return found


def own_settings(events: Sequence[Event]) -> dict[str, Source]:
    """The settings of the script's own that the probe saw, by kind; of several parsers the last one has its say."""
    found: dict[str, Source] = {}
    built = [row for row in events if isinstance(row, ConfigBuilt)]
    words = [row for row in built if row.words][-1:]
    others = [row for row in events if not (isinstance(row, ConfigBuilt) and row.words)]
    for row in (*others, *words):  # words have their say over files
        if isinstance(row, ConfigBuilt) and row.kind in OWN and row.raw:
            own = found.setdefault(row.kind, Source(row.kind, row.index, "", "", {}, {}, {}, {}, place=row.place))
            parts = {part: getattr(own, part) | getattr(row, part) for part in ("raw", "defaults", "types", "flags")}
            if row.words:  # without them it has what its files say, unless these have it from them (`from_dotlist`)
                over = {key: own.raw[key] for key in row.defaults if key in own.raw}
                taken = {key: own.defaults.get(key) for key, value in over.items() if equal(value, row.raw[key])}
                parts["defaults"] |= over | taken
            words_at = row.index if row.words else -1
            found[row.kind] = replace(own, index=min(own.index, row.index), words=words_at, **parts)
        elif isinstance(row, OwnDefaults) and row.kind in found:
            found[row.kind] = replace(found[row.kind], defaults={**found[row.kind].defaults, **row.defaults})
    handed_to = {key for row in built if row.kind not in OWN for key in (*row.raw, *row.types)}
    code = own_code(sorted({str(row.place[0]) for row in built if row.place}), sorted(handed_to))
    for kind, own in found.items():
        keys = [key for key in own.raw if kind == "script" and key not in own.flags]
        defaults = {key: value for key in keys for value in code.default_of(key)}
        left_out = [key for row in words for key in row.defaults if own.defaults.get(key, "") is None]
        of_words = {key: value for key in left_out for value in code.default_of_word(key)}
        found[kind] = replace(own, defaults=_of_elements(own.raw, defaults | own.defaults | of_words), code=code)
    return found


def _of_elements(raw: Row, defaults: Row) -> Row:
    """Defaults by key, those of a list of sections by the keys of its elements: where it is as long as the user's, and
    says the same of each wherever that is a text (``name: length``)."""
    found = dict(defaults)
    for key, default in defaults.items():
        lists = [one for one in (raw.get(key), default) if isinstance(one, list) and one]
        if len(lists) < 2 or len(lists[0]) != len(lists[1]) or not all(isinstance(one, dict) for one in sum(lists, [])):
            continue
        texts = ((other, name, text) for one, other in zip(*lists, strict=True) for name, text in one.items())
        if all(other.get(name, text) == text for other, name, text in texts if isinstance(text, str)):
            del found[key]
            for number, other in enumerate(lists[1]):
                found |= {f"{key}.{number}.{name}": value for name, value in other.items()}
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


# ------------------------------------------------------------------------------------------------------------- values


def look_up(values: Row, key: str) -> Encoded:
    """The value of a setting, or of a key (``model_init_kwargs.dtype``) of the dictionary that it holds."""
    setting, _, inner = key.partition(".")
    value = plain(values.get(setting))
    return (entries(value) or {}).get(inner) if inner else value


def plain(value: Encoded) -> Encoded:
    """A raw value without the accidents of how it was passed: JSON text of a dict is that dict."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _as_parsed(value: Encoded) -> Encoded:
    """... and texts that stand for nothing: argparse and YAML pass them for what nobody has written."""
    value = plain(value)
    return {"": None, "no": False}.get(value, value) if isinstance(value, str) else value


def entries(value: Encoded) -> Row | None:
    """The entries of a setting that holds a dictionary, as such, as JSON text or as an object with named fields; None
    if it holds none."""
    value = plain(value)
    if is_object(value) and isinstance(value.get("fields"), dict):
        value = value["fields"]
    return value if isinstance(value, dict) and not any(key.startswith("$") for key in value) else None


def is_object(value: Encoded) -> TypeGuard[dict[str, Encoded]]:
    """Whether a setting holds an object, which the probe shows by its fields."""
    return isinstance(value, dict) and "$object" in value


def has_tag(value: Encoded, *tags: str) -> bool:
    """Whether an encoded value holds one of these kinds ("$opaque", ...), at any depth; without tags, any kind."""
    if isinstance(value, dict):
        own = any(key in tags if tags else key.startswith("$") for key in map(str, value))
        return own or any(has_tag(item, *tags) for item in value.values())
    return isinstance(value, (list, tuple)) and any(has_tag(item, *tags) for item in value)
