"""The factors of a target: what differs between the good and the bad side, and what is the same in all its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bisect_cfg.common.configuration import Configuration, Name, Value, equal
from bisect_cfg.common.parameters import every
from bisect_cfg.probe.protocol import BuildAnswer, BuildRequest, Encoded, Targets
from bisect_cfg.targets.captured import NOTHING_SEEN, OWN, Capture, Row, Source, has_tag, look_up
from bisect_cfg.targets.computed import Computed
from bisect_cfg.targets.launch_settings import ACCELERATE, LAUNCHER, PROCESSES, PYTHON

DEFAULT = {"$default": True}
"""The override that resets a setting to the library's default (understood by the probe)."""

Build = Callable[[BuildRequest], BuildAnswer]
"""Asks the library what a configuration resolves to."""


@dataclass(frozen=True)
class Factor:
    """A setting on which the good and the bad configuration differ, with what the probe needs to set it.

    Attributes:
        name: as users and reports see it.
        kind: of its source (see `Source`); "launch" and "packages" have none. What a command of any kind is given
            is its own ("script").
        good: resolved value of the good side.
        bad: resolved value of the bad side.
        reset: the encoded raw value that gives the good side.
        own: the script's own setting that it is made of, with its good value: the script may read it elsewhere too.
    """

    name: str
    kind: str
    good: Value
    bad: Value
    reset: Encoded
    own: tuple[str, Encoded] | None = None


@dataclass(frozen=True)
class Factors:
    """What varies between the trials of a target, and how a configuration becomes orders for one.

    Attributes:
        capture: what a probe has seen set; `NOTHING_SEEN` of a command: nobody knows what its settings mean.
        varied: in the order in which the user's config class lists them, or the bad side of a command.
        pins: name -> value, encoded, the same in every trial.
        pinned: names the user set that are not varied, with the reason.
        same: names the user set to what the good configuration has anyway.
        note: what the good side keeps of the user's to be valid; "" if nothing.
        follows: names of fields that the script computes of its own settings that vary, and how: they vary with those.
    """

    capture: Capture
    varied: tuple[Factor, ...]
    pins: Row = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    same: tuple[str, ...] = ()
    note: str = ""
    follows: tuple[tuple[str, Computed], ...] = ()

    @property
    def seen(self) -> bool:
        """Whether a probe has seen them set."""
        return self.capture != NOTHING_SEEN  # not `is`: it may have come from another process

    @property
    def resolved(self) -> Row:
        """The training config as the library has resolved it, by bare name; of a command what is set besides."""
        return self.capture.args.resolved if self.seen else self.pins

    @property
    def not_varied(self) -> dict[str, str]:
        """What the user set and no trial changes, with the reason."""
        return {**self.pinned, **dict.fromkeys(self.same, "it has the same effect as the good configuration's value")}

    @property
    def good(self) -> Row:
        """Factor name -> good value, of a command `UNSET` where it is not set."""
        return {factor.name: factor.good for factor in self.varied}

    @property
    def bad(self) -> Row:
        """Factor name -> bad value, likewise."""
        return {factor.name: factor.bad for factor in self.varied}

    @property
    def targets(self) -> Targets:
        """Which objects the probe is to change, and which of them owns a shared name."""
        beside = {kind: other.index for kind, other in self.capture.others.items() if kind not in OWN}
        training, via = self.capture.training, {Name.of(factor.name).full: factor.kind for factor in self.varied}
        own = self.capture.others.get("script")
        objects = {"args": self.capture.args.index, "words": -1 if own is None else own.words, **beside}
        return Targets(training.number, training.trainer or None, objects, via)

    def overrides(self, configuration: Configuration) -> Row:
        """What is to be changed in the user's own run for this configuration, by full name.

        A factor at its bad value is left as the script has it. A value of neither side is set as it is, and so is a
        setting that is no factor.
        """
        known = {factor.name for factor in self.varied}
        changes = self.pins | {name: value for name, value in configuration.items() if name not in known}
        sides = [(factor, configuration.get(factor.name, factor.bad)) for factor in self.varied]
        for factor, value in sides:
            if not equal(value, factor.bad):
                is_good = equal(value, factor.good)
                changes[factor.name] = factor.reset if is_good else value
                if factor.own is not None:
                    name, default = factor.own
                    changes[name] = default if is_good else value
        # What the script makes of another value of its own is no part of a trial: the libraries' settings stay.
        if any(Name.of(name).space in OWN for name in changes):
            for factor, value in sides:
                if equal(value, factor.bad) and not has_tag(raw := self._raw(factor)):
                    changes[factor.name] = raw
        return {Name.of(name).full: value for name, value in changes.items()}

    def _raw(self, factor: Factor) -> Encoded:
        """The value of a factor as the script passes it; what has a tag cannot be made again, or is not to be set."""
        source = self.capture.args if factor.kind == "args" else self.capture.others.get(factor.kind)
        if source is None or factor.kind in OWN:
            return DEFAULT
        return look_up(source.raw, Name.of(factor.name).key)

    def build_request(self, configuration: Configuration) -> BuildRequest:
        """Asks for this configuration's training config, without training."""
        changes = self.overrides(configuration)
        own = self.capture.own | {name: value for name, value in changes.items() if Name.of(name).space in OWN}
        follow = {Name.of(name).full: value for name, how in self.follows for value in how.value(own)}
        return build_request(self.capture.args, follow | changes)

    def work(self, configuration: Configuration) -> float:
        """How much work a step of this configuration is, in arbitrary units; of a command nobody knows."""
        result = 1.0
        for name in (name for name, known in every().items() if known.work and self.seen):
            value = configuration.get(name, self.resolved.get(name))
            result *= float(value) if isinstance(value, (int, float)) and value else 1.0
        return result

    def work_of_each(self) -> dict[str, float]:
        """Factor name -> what its bad value multiplies the work of a step by, as far as that is known: only those that
        do."""
        work = self.work(self.good)
        each = {name: self.work({**self.good, name: value}) / work for name, value in self.bad.items()}
        return {name: ratio for name, ratio in each.items() if ratio != 1.0}

    def without(self, names: Iterable[str], reason: str = "") -> Factors:
        """The same with these factors left as the script has them: no longer varied, for a reason if one is given."""
        gone = set(names)
        pinned = {**self.pinned, **(dict.fromkeys(sorted(gone), reason) if reason else {})}
        return replace(self, varied=tuple(factor for factor in self.varied if factor.name not in gone), pinned=pinned)

    def with_again(self, factors: Iterable[tuple[int, Factor]]) -> Factors:
        """The same with these factors, each given with its place among the others, varied again."""
        varied = list(self.varied)
        for place, factor in factors:
            if factor.name not in self.good:
                varied.insert(place, factor)
        names = {factor.name for factor in varied}
        pinned = {name: reason for name, reason in self.pinned.items() if name not in names}
        return replace(self, varied=tuple(varied), pinned=pinned)


def build_request(args: Source, overrides: Row) -> BuildRequest:
    """A request for the training config with these overrides, by full name."""
    changes = {name.key: value for full, value in overrides.items() if (name := Name.of(full)).space == "args"}
    return BuildRequest(args.module, args.cls, args.raw, changes, processes_in(args, overrides) or args.world_size)


def processes_in(args: Source, overrides: Row) -> int | None:
    """How many processes are to train together; None: as many as the user's command starts."""
    processes = overrides.get(PROCESSES)
    by_launcher = {PYTHON: 1, ACCELERATE: args.devices}.get(str(overrides.get(LAUNCHER)))
    return by_launcher or (int(processes) if isinstance(processes, (int, float)) else None)
