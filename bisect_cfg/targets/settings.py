"""From what the probe saw to the factors: what the user set, what it is by default, what may vary.

"What the user set" is what differs from the default of the library's field: a parser passes every field, so
what was passed says nothing. Values are compared after the library has resolved them (``bf16=None`` means True
in TRL 1.16 unless fp16 is set), and shown that way; what a trial changes is the raw value. Where the resolved values do
not tell the two levels apart (the library moves a key to another name, or into an object), the whole configuration is
resolved with and without the setting: only what then makes no difference at all is called the same.

Names: a setting of the training config goes by its bare name, others by ``model.*`` and ``peft.*``. A setting that
holds a dictionary is split into its keys (``model_init_kwargs.dtype``), each a factor of its own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from bisect_cfg.configuration import Configuration, Value, equal
from bisect_cfg.errors import InputError
from bisect_cfg.parameters import canonical, every, parameter
from bisect_cfg.parameters.comparing import plain as as_written
from bisect_cfg.probe.protocol import NAMESPACE, BuildAnswer, BuildRequest, Encoded, Targets
from bisect_cfg.probe.redact import is_secret_name
from bisect_cfg.targets.captured import (
    OWN,
    Built,
    Capture,
    Row,
    fields_of,
    has_tag,
    plain,
    set_by_user,
    takes_dict,
)
from bisect_cfg.targets.launch_settings import (
    ACCELERATE,
    DEEPSPEED_FILE,
    LAUNCHER,
    PROCESSES,
    PYTHON,
    VARIABLE,
    Asked,
    launcher_levels,
    variable_levels,
)
from bisect_cfg.targets.names import check_name, convert, left_out, naming_nothing
from bisect_cfg.targets.own import HANDED_ON, MASKED, SECRET, reasons
from bisect_cfg.targets.packages import PACKAGE, Installed, checked_level, named, shown_levels

DEFAULT = {"$default": True}
"""The override that resets a setting to the library's default (understood by the probe)."""

NOT_LOADING = "of the arguments to from_pretrained, only dtype and attn_implementation can be varied"

UNUSED = "no model was given this LoraConfig, your run trains without it"
"""Why its settings are not varied: scripts keep one whose line at the trainer is commented out."""

NAMED = ("args.", "model.", "peft.", "script.", "launch.", VARIABLE, PACKAGE)
"""Names that say themselves which object they belong to."""


@dataclass(frozen=True)
class Setting:
    """One factor of a script, with what the probe needs to set it.

    Attributes:
        name: as users and reports see it.
        full: as the probe knows it, ``args.learning_rate``.
        kind: which object it belongs to: "args", "modelcfg", "peft", "load" or "script"; "launch", "env" and
            "packages": none, but the launcher, the environment and what is installed.
        good: resolved value of the good level.
        bad: resolved value of the bad level.
        reset: the encoded raw value that gives the good level.
    """

    name: str
    full: str
    kind: str
    good: Value
    bad: Value
    reset: Encoded


@dataclass(frozen=True)
class Settings:
    """The factors of a script, and how a configuration becomes orders for the probe.

    Attributes:
        capture: where they come from.
        factors: in the order in which the user's config class lists them.
        pins: encoded overrides for every trial, the user's own included.
        pinned: names the user set that are not varied, with the reason.
        same: names the user set to what the good configuration has anyway.
        notes: remarks on the input, for the user.
    """

    capture: Capture
    factors: tuple[Setting, ...]
    pins: Row
    pinned: Mapping[str, str] = field(default_factory=dict)
    same: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def resolved(self) -> Row:
        """The training config as the library has resolved it, by bare name."""
        return self.capture.args.resolved

    @property
    def not_varied(self) -> dict[str, str]:
        """What the user set and no trial changes, with the reason."""
        return {**self.pinned, **dict.fromkeys(self.same, "it has the same effect as the good configuration's value")}

    @property
    def good(self) -> Row:
        """Factor name -> good value."""
        return {factor.name: factor.good for factor in self.factors}

    @property
    def bad(self) -> Row:
        """Factor name -> bad value."""
        return {factor.name: factor.bad for factor in self.factors}

    @property
    def targets(self) -> Targets:
        """Which objects the probe is to change, and which of them owns a shared name."""
        indices = {kind: other.index for kind, other in self.capture.others.items() if kind not in OWN}
        training = self.capture.training
        return Targets(
            training.number,
            training.trainer or None,
            self.capture.args.index,
            **indices,
            via={factor.full: factor.kind for factor in self.factors},
        )

    def overrides(self, configuration: Configuration) -> Row:
        """What the probe has to change in the script for this configuration.

        A factor at its bad level is left as the script has it. A value that is neither level is set as it is, and
        so is a setting that is no factor.
        """
        changes = dict(self.pins)
        known = {factor.name for factor in self.factors}
        for name, value in configuration.items():
            if name not in known:
                changes[name if name.startswith(NAMED) else f"args.{name}"] = value
        levels = [(factor, configuration.get(factor.name, factor.bad)) for factor in self.factors]
        # What the script makes of another value of its own is no part of a trial: the library's settings stay.
        stay = any(factor.kind in OWN and not equal(value, factor.bad) for factor, value in levels)
        for factor, value in levels:
            if not equal(value, factor.bad):
                changes[factor.full] = factor.reset if equal(value, factor.good) else value
            elif stay and factor.kind == "args" and not has_tag(raw := _look_up(self.capture.args.raw, factor.name)):
                changes[factor.full] = raw
        return changes

    def args_item(self, configuration: Configuration) -> BuildRequest:
        """The request that builds this configuration's training config without training (probe's `build`)."""
        return build_item(self.capture.args, self.overrides(configuration))

    def work(self, configuration: Configuration) -> float:
        """How much work a step of this configuration is, in arbitrary units."""
        result = 1.0
        for name in (name for name, known in every().items() if known.work):
            value = configuration.get(name, self.capture.args.resolved.get(name))
            result *= float(value) if isinstance(value, (int, float)) and value else 1.0
        return result

    def work_of_each(self) -> dict[str, float]:
        """Factor name -> what its bad level multiplies the work of a step by, as far as that is known: only those that
        do."""
        work = self.work(self.good)
        each = {name: self.work({**self.good, name: value}) / work for name, value in self.bad.items()}
        return {name: ratio for name, ratio in each.items() if ratio != 1.0}

    def without(self, names: Iterable[str], reason: str = "") -> Settings:
        """The same with these factors left as the script has them: no longer factors, for a reason if one is given."""
        gone = set(names)
        pinned = {**self.pinned, **(dict.fromkeys(sorted(gone), reason) if reason else {})}
        return replace(self, factors=tuple(factor for factor in self.factors if factor.name not in gone), pinned=pinned)


def build_item(args: Built, overrides: Row) -> BuildRequest:
    """A request to the probe's `build`."""
    changes = {name[len("args.") :]: value for name, value in overrides.items() if name.startswith("args.")}
    return BuildRequest(args.module, args.cls, args.raw, changes, processes_in(args, overrides) or args.world_size)


def processes_in(args: Built, overrides: Row) -> int | None:
    """How many processes are to train together; None: as many as the user's command starts."""
    launcher = overrides.get(LAUNCHER)
    return {PYTHON: 1, ACCELERATE: args.devices}.get(launcher) or overrides.get(PROCESSES)


Build = Callable[[BuildRequest], BuildAnswer]
"""Asks the library what a configuration resolves to."""


def build_settings(
    capture: Capture,
    resolve: Build,
    *,
    good: Configuration | None = None,
    pins: Configuration | None = None,
    only: Sequence[str] = (),
    excluded: Sequence[str] = (),
    installed: Installed | None = None,
    launcher: str = "python",
    relaunched: bool = True,
) -> Settings:
    """Find the factors.

    Args:
        capture: what the first run showed.
        resolve: builds a training config (in the user's environment) and says what it resolves to.
        good: name -> value, moves the good configuration away from the library's defaults.
        pins: name -> value, fixed in every trial.
        only: if given, the only names that may be factors.
        excluded: names that may not.
        installed: what the user has, where the good configuration names packages.
        launcher: the kind of launcher in the user's command.
        relaunched: whether trials start the processes; if not, the script does, as many as it says.

    Raises:
        InputError: an unknown name, a value of the wrong type, an invalid good configuration.
    """
    args = capture.args
    notes: list[str] = []
    moved = _checked(good or {}, capture, "good", notes)
    pinned_values = _checked(pins or {}, capture, "pin", notes)
    pins_encoded = dict(pinned_values)

    chosen: Row = {}  # full name -> encoded raw value of the good level
    never: dict[str, str] = {}
    user_set = set_by_user(args)
    for name in dict.fromkeys((*user_set, *_names_in(moved, "args"))):
        reason = parameter(name).pinned
        if name in args.raw and name not in args.defaults:
            reason = "it has no default"
        if reason:
            never[name] = reason
            continue
        for leaf in _leaves(name, args, moved):
            if f"args.{leaf}" not in moved and _is_handed_on(leaf, capture):
                continue
            if f"args.{leaf}" in pins_encoded or f"args.{name}" in pins_encoded:
                never[leaf] = "you pinned it"
            elif _is_secret(leaf, _look_up(args.raw, leaf)):
                never[leaf] = SECRET
            else:
                chosen[f"args.{leaf}"] = _with_secrets(moved.get(f"args.{leaf}", DEFAULT), _look_up(args.raw, leaf))

    answer = resolve(build_item(args, {**pins_encoded, **chosen}))
    if answer.error is not None:
        # The machine cannot do what is the library's default (bf16 without a GPU that has it), or the defaults around
        # what is pinned do not fit it (a batch size and the number of generations).
        kept = _kept_to_be_valid(args, pins_encoded, chosen, moved, answer.error, resolve)
        if kept:
            names = [full[len("args.") :] for full in kept]
            shown = ", ".join(f"{name}={_look_up(args.resolved, name)}" for name in names)
            notes.append(
                f"The library refuses its own defaults here ({answer.error.rstrip('.')}), so the good configuration "
                f"keeps your {shown}."
            )
            never.update(dict.fromkeys(names, "the good configuration is not valid without it"))
            chosen = {full: reset for full, reset in chosen.items() if full not in kept}
            answer = resolve(build_item(args, {**pins_encoded, **chosen}))
    if answer.error is not None:
        raise InputError(
            f"The good configuration is not valid for this version of {args.module.split('.')[0]}: {answer.error}",
            "Move it with --good name=value or a good.yaml until it can be built.",
        )
    # The class that is built there is the library's: fields that the user's own class adds are not in the answer.
    own = {name: value for name, value in args.defaults.items() if name not in answer.values}
    own.update({name: moved[f"args.{name}"] for name in own if f"args.{name}" in moved})
    good_values, bad_values = {**own, **answer.values}, {**args.resolved}

    factors: list[Setting] = []
    same: list[str] = []
    for full, reset in chosen.items():
        name = full[len("args.") :]
        low, high = _look_up(good_values, name), _look_up(bad_values, name)
        if equal(low, high):
            if _is_field_of_object(name, args):
                continue  # the object has all its fields, whether the user set them or not
            if not _differs(full, args, pins_encoded, chosen, resolve):
                same.append(name)
                continue
            low = _look_up(args.defaults, name) if reset == DEFAULT else reset
            high = _look_up(args.raw, name)
            if equal(low, high):  # a key that is None and one that is not there
                same.append(name)
                continue
        factors.append(Setting(name, full, "args", low, high, reset))
    for name in args.changed:
        if not parameter(name).pinned:
            never[name] = "it was changed in place after the configuration was built"
    factors.extend(_other_factors(capture, moved, pins_encoded, launcher, relaunched))
    factors.extend(_package_factors(moved, installed))

    known = [factor.name for factor in factors]
    for option, name in naming_nothing(known, only, excluded):
        if name not in capture.accelerate.types:  # those are of another launch of the same script
            check_name(name, dict.fromkeys([*known, *args.types], ""), option, known)
    never.update(left_out(known, only, excluded))
    factors = [factor for factor in factors if factor.name not in never or factor.name in args.changed]
    if known and not factors and (only or excluded):
        options = " and ".join(option for option, names in (("--only", only), ("--except", excluded)) if names)
        raise InputError(
            f"{options} leave{'' if only and excluded else 's'} nothing to vary: {', '.join(known)} "
            f"{'differs' if len(known) == 1 else 'differ'} from the good configuration.",
            "At least one of them must be free to vary.",
        )
    never.update(_pinned_elsewhere(capture, pins_encoded))
    if args.world_size > 1 and not relaunched:
        never[PROCESSES] = "the script starts its processes itself"
    return Settings(capture, tuple(factors), pins_encoded, never, tuple(same), tuple(notes))


def _kept_to_be_valid(args: Built, pins: Row, chosen: Row, moved: Row, error: str, resolve: Build) -> tuple[str, ...]:
    """The fewest of the user's settings that make the good configuration valid when it keeps them: one or two.

    Args:
        args: the user's training config.
        pins: encoded overrides of every trial.
        chosen: full name -> encoded good level of all settings.
        moved: those whose good level the user has given; they are not touched.
        error: the library's words; settings that these name come first.
        resolve: see `Build`.

    Returns:
        Full names; none if no two are enough.
    """
    free = [full for full in chosen if full not in moved]
    words = set(re.findall(r"\w+", error))
    free.sort(key=lambda full: full[len("args.") :].partition(".")[0] not in words)
    for kept in (*((full,) for full in free), *combinations(free, 2)):
        levels = {full: reset for full, reset in chosen.items() if full not in kept}
        if resolve(build_item(args, {**pins, **levels})).error is None:
            return kept
    return ()


def _is_secret(name: str, value: Encoded) -> bool:
    """Whether a setting holds a token or a password: every trial has the script's own, and none is written down.

    An address with a password in it is told by its value alone; it may vary, its mask is what is shown.
    """
    return value == MASKED or (is_secret_name(name) and isinstance(value, str))


def _with_secrets(good: Encoded, bad: Encoded) -> Encoded:
    """A good level that was given as a whole dictionary, with the secrets that the script has there."""
    if not (_is_dict(good) and _is_dict(bad)):
        return good
    return {**{key: value for key, value in bad.items() if _is_secret(key, value)}, **good}


def _is_dict(value: Encoded) -> bool:
    return isinstance(value, dict) and not any(key.startswith("$") for key in value)


def _leaves(name: str, args: Built, moved: Row) -> list[str]:
    """The name itself, or one name per key if the setting holds a dictionary on at least one side."""
    if f"args.{name}" in moved:  # the good level is given as a whole
        return [name]
    raw, default = args.raw.get(name), args.defaults.get(name)
    bad, good = fields_of(raw), fields_of(default)
    if has_tag(plain(raw), "$object") and fields_of(raw) is not None and not takes_dict(args, name):
        bad = None  # an object that only an object of its kind can stand for
    keys = [other.split(".", 2)[2] for other in moved if other.startswith(f"args.{name}.")]
    if (bad is None or (good is None and default is not None)) and not keys:
        return [name]
    bad, good = bad or {}, good or {}
    changed = [key for key in (*bad, *good) if not (key in bad and key in good and equal(bad[key], good[key]))]
    return [f"{name}.{key}" for key in dict.fromkeys([*changed, *keys])] or [name]


def _is_handed_on(name: str, capture: Capture) -> bool:
    """Whether the script has made a key of a dictionary of a setting that the user gives elsewhere, or not at all:
    TRL's own make `model_init_kwargs` of what ModelConfig holds. It is set there."""
    field, _, key = name.partition(".")
    made, config = fields_of(capture.args.raw.get(field)) or {}, capture.others.get("modelcfg")
    if key not in made or key in (fields_of(capture.args.passed.get(field)) or {}) or config is None:
        return False
    held = {**capture.args.raw, **{canonical(f"model.{other}"): value for other, value in config.raw.items()}}
    return any(
        known in held and equal(as_written(held[known]), as_written(made[key]))
        for known in (canonical(name), f"model.model_{key}", key)
    )


def _is_field_of_object(name: str, args: Built) -> bool:
    """Whether a name is a field of an object that the user passed."""
    setting, _, key = name.partition(".")
    raw = plain(args.raw.get(setting))
    return bool(key) and isinstance(raw, dict) and "$object" in raw


def _look_up(values: Row, name: str) -> Encoded:
    setting, _, key = name.partition(".")
    value = plain(values.get(setting))
    return (fields_of(value) or {}).get(key) if key else value


def _differs(full: str, args: Built, pins: Row, good: Row, resolve: Build) -> bool:
    """Whether a setting makes any difference: among the user's settings, or among the good ones.

    Args:
        full: its name.
        args: the user's training config.
        pins: encoded overrides of every trial.
        good: full name -> encoded good level of all settings.
        resolve: see `Build`.
    """
    name = full[len("args.") :].partition(".")[0]
    if has_tag(args.raw.get(name), "$opaque", "$object"):
        return True  # nobody but the script can make it, so it cannot be compared
    without = {**pins, full: good[full]}
    others = {**pins, **{other: value for other, value in good.items() if other != full}}
    pairs = ((pins, without), (others, {**pins, **good}))
    return any(_outcome(args, left, resolve) != _outcome(args, right, resolve) for left, right in pairs)


def _outcome(args: Built, overrides: Row, resolve: Build) -> Row | str:
    """All that a configuration resolves to, save what is never a factor; or why it is invalid."""
    answer = resolve(build_item(args, overrides))
    if answer.error is not None:
        return answer.error
    return {name: value for name, value in answer.values.items() if not parameter(name).pinned}


def _names_in(moved: Row, namespace: str) -> list[str]:
    prefix = namespace + "."
    return [full[len(prefix) :].split(".")[0] for full in moved if full.startswith(prefix)]


def _other_factors(capture: Capture, moved: Row, pins: Row, launcher: str, relaunched: bool) -> list[Setting]:
    """Factors of ModelConfig, LoraConfig, `from_pretrained` and the launch."""
    factors: list[Setting] = []
    config = capture.others.get("modelcfg")
    for kind, namespace in NAMESPACE.items():
        built = capture.others.get(kind)
        if built is None or not built.used:
            continue
        names = [*(built.raw if kind == "load" else set_by_user(built)), *_names_in(moved, namespace)]
        if kind in OWN:
            own = reasons(capture, kind)
            names = [name for name in own if not own[name]]
        for name in dict.fromkeys(names):
            full = f"{namespace}.{name}"
            if parameter(full).pinned or full in pins or any(full == f.full for f in factors):
                continue
            bad = built.raw.get(name)
            if (kind != "load" and name not in built.types) or _is_secret(name, bad):
                continue
            if kind == "load" and config is not None and equal(bad, config.raw.get(name)):
                continue  # the script hands the ModelConfig's value on: it is set there
            reset = moved.get(full, DEFAULT)
            if kind == "env" and reset != DEFAULT:
                reset = variable_levels(full, reset)[0]
            good = built.defaults.get(name) if reset == DEFAULT else reset
            if not equal(good, bad):
                factors.append(Setting(full, full, kind, good, bad, good if kind in OWN else reset))
    factors += _launch_factors(capture, moved, pins, launcher, relaunched)
    for name in (name for name in moved if name.startswith(VARIABLE) and name not in pins):
        good, bad = variable_levels(name, moved[name])
        if good != bad and not any(factor.name == name for factor in factors):
            factors.append(Setting(name, name, "env", good, bad, good))
    return factors


def _launch_factors(capture: Capture, moved: Row, pins: Row, launcher: str, relaunched: bool) -> list[Setting]:
    """Factors of the launch."""
    factors: list[Setting] = []
    levels = launcher_levels(launcher, capture.args.world_size, capture.args.devices, capture.asked)
    if levels is not None and LAUNCHER not in pins and (good := moved.get(LAUNCHER, levels[0])) != levels[1]:
        factors.append(Setting(LAUNCHER, LAUNCHER, "launch", good, levels[1], good))
    processes = moved.get(PROCESSES, 1)
    if processes > 1 and not capture.started:
        raise InputError(
            f"{PROCESSES}={processes} for the good configuration needs a launcher, and the command has none.",
            "Start the script with `accelerate launch` or torchrun after `--`.",
        )
    if PROCESSES in moved and not relaunched and processes != capture.args.world_size:
        raise InputError(
            f"{PROCESSES}={processes} for the good configuration: here the script starts its processes itself, "
            f"{capture.args.world_size} of them.",
            "Change the number in the script, or start the script with `accelerate launch` or torchrun after `--`.",
        )
    if capture.args.world_size != processes and capture.started and relaunched and PROCESSES not in pins:
        factors.append(Setting(PROCESSES, PROCESSES, "launch", processes, capture.args.world_size, processes))
    known = {asked.name: asked for asked in capture.asked}
    named = [name for name in moved if name.startswith("launch.") and name not in (PROCESSES, LAUNCHER)]
    for name in dict.fromkeys((*known, *named)):
        plain_level = capture.accelerate.plain_value(name)
        asked = known.get(name) or Asked(name, plain_level, plain_level)  # no launcher was asked for it
        good = moved.get(name, asked.plain)
        if not asked.reason and not equal(asked.value, good) and name not in pins:
            factors.append(Setting(name, name, "launch", good, asked.value, good))
    return factors


def _package_factors(moved: Row, installed: Installed | None) -> Iterator[Setting]:
    """Factors of what is installed: where it worked, another version was, or none."""
    for name in (name for name in moved if name.startswith(PACKAGE)):
        good, bad = moved[name], installed.levels.get(name.removeprefix(PACKAGE))
        if good != bad:
            yield Setting(name, name, "packages", *shown_levels(good, bad), good)


def _pinned_elsewhere(capture: Capture, pins: Row) -> dict[str, str]:
    """What the user gave to ModelConfig, LoraConfig and `from_pretrained` and no trial varies, with the reason."""
    found: dict[str, str] = {asked.name: asked.reason for asked in capture.asked if asked.reason}
    found |= {name: "you pinned it" for name in pins if name.startswith(("launch.", VARIABLE))}
    for kind in OWN:
        kept = {name: reason for name, reason in reasons(capture, kind).items() if reason not in ("", HANDED_ON)}
        found |= {f"{kind}.{name}": reason for name, reason in kept.items()}
    for kind, built in capture.others.items():
        namespace = NAMESPACE[kind]
        if kind in OWN:
            continue
        for name in built.raw if kind == "load" else set_by_user(built):
            full = f"{namespace}.{name}"
            if reason := "you pinned it" if full in pins else parameter(full).pinned or ("" if built.used else UNUSED):
                found[full] = reason
        for name in built.others:
            found[f"model.{name}"] = NOT_LOADING
    return found


def _checked(values: Configuration, capture: Capture, source: str, notes: list[str]) -> Row:
    """User-given names and values as full names and encoded values.

    Raises:
        InputError: an unknown name or a value of the wrong type.
    """
    known: dict[str, str] = dict(capture.args.types)
    for kind in ("modelcfg", "peft", "script"):
        if kind in capture.others:
            known.update({f"{NAMESPACE[kind]}.{name}": text for name, text in capture.others[kind].types.items()})
    known |= capture.accelerate.types
    known.setdefault("model.dtype", "str | None")
    known.setdefault("model.attn_implementation", "str | None")
    result: Row = {}
    for name, value in values.items():
        name = re.sub(r"^args\.", "", name)
        if name.startswith(VARIABLE):
            result[name] = value
            continue
        if name.startswith(PACKAGE):
            result[named(name)] = checked_level(name, value)
            continue
        if name.startswith(DEEPSPEED_FILE):
            if capture.deepspeed is None:
                raise InputError(
                    f"{name} is a key of a DeepSpeed file, and none is in force in your run.",
                    "Leave it out of the good side.",
                )
            result[name] = value
            continue
        if name.startswith("launch.") and name.count(".") == 2 and name not in known:
            key = name.rpartition(".")[2]
            near = difflib.get_close_matches(key, [other.rpartition(".")[2] for other in known], n=1, cutoff=0.9)
            if not near:  # of accelerate's file, and nothing that a process is told
                notes.append(f"{name} is nothing that accelerate hands to its processes, so no trial varies it.")
                continue
        if name not in known and f"script.{name}" in known:
            name = f"script.{name}"
        whole = name in known or "." not in name or name.startswith("launch.")
        field = name if whole else name.split(".")[0]
        check_name(field, known, f"--{source}" if source == "pin" else "the good configuration")
        value, note = convert(field, value, known[field] if "." not in name or name in known else "")
        if note:
            notes.append(note)
        result[name if name.startswith(NAMED) else f"args.{name}"] = value
    return result
