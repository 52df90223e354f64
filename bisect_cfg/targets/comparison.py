"""From what the probe saw to the factors: what the user set, what it is by default, what may vary.

Values are compared after the library has resolved them (``bf16=None`` means True in TRL 1.16 unless fp16 is set), and
shown that way; what a trial changes is the raw value. Where the resolved values do not tell the two sides apart (the
library moves a key to another name, or into an object), the whole configuration is resolved with and without the
setting: only what then makes no difference at all is called the same.

A setting that holds a dictionary is split into its keys (``model_init_kwargs.dtype``), each a factor of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

from bisect_cfg.common.configuration import Configuration, Name, equal, present
from bisect_cfg.common.parameters import parameter
from bisect_cfg.errors import InputError
from bisect_cfg.probe.protocol import NAMESPACE, BuildAnswer, Encoded
from bisect_cfg.targets.captured import OWN, Capture, Row, Source, entries, has_tag, is_object, look_up, plain
from bisect_cfg.targets.computed import Computed
from bisect_cfg.targets.factors import DEFAULT, Build, Factor, Factors, build_request
from bisect_cfg.targets.good import typed_values, value_in
from bisect_cfg.targets.launch_settings import LAUNCHER, PROCESSES, PYTHON, launcher_levels, variable_levels
from bisect_cfg.targets.packages import Installed, shown_levels
from bisect_cfg.targets.pinned import HANDED_ON, PINNED, handed_on, is_secret, why_pinned
from bisect_cfg.targets.suggestions import check_name, left_out, naming_nothing

NOT_LOADING = "of the arguments to from_pretrained, only dtype and attn_implementation can be varied"


@dataclass(frozen=True)
class Comparison:
    """The user's settings held against the good ones: `factors` is the answer.

    Attributes:
        capture: what the first run showed.
        build: asks the library in the user's environment.
        good: name -> value, moves the good configuration away from the library's defaults.
        pins: name -> value, fixed in every trial.
        only: if given, the only names that may be factors.
        excluded: names that may not.
        order_kept: why nothing that shuffles the data is varied; "" where it is.
        installed: what the user has, where the good configuration names packages.
        launcher: the kind of launcher in the user's command.
        relaunched: whether trials start the processes; if not, the script does, as many as it says.
    """

    capture: Capture
    build: Build
    good: Configuration = field(default_factory=dict)
    pins: Configuration = field(default_factory=dict)
    only: Sequence[str] = ()
    excluded: Sequence[str] = ()
    order_kept: str = ""
    installed: Installed | None = None
    launcher: str = PYTHON
    relaunched: bool = True

    def factors(self) -> Factors:
        """Find the factors.

        Raises:
            InputError: an unknown name, a value of the wrong type, an invalid good configuration.
        """
        good, unheard = typed_values(self.good, self.capture, "the good configuration")
        pins, also_unheard = typed_values(self.pins, self.capture, "--pin")
        capture = replace(self.capture, named={**self.capture.named, **good})
        typed = replace(self, good=good, pins=pins, capture=capture)
        chosen, pinned = typed._of_training_config()
        resolved, kept, note = typed._valid_good(chosen)
        factors, same = typed._differing({name: reset for name, reset in chosen.items() if name not in kept}, resolved)
        pinned |= dict.fromkeys(kept, "the good configuration is not valid without it")
        changed = (name for name in self.capture.args.changed if not parameter(name).pinned)
        pinned |= dict.fromkeys(changed, "it was changed in place after the configuration was built")
        for kind in NAMESPACE:
            if kind in self.capture.others:
                more, reasons = typed._of_source(self.capture.others[kind])
                factors += (factor for factor in more if all(factor.name != other.name for other in factors))
                pinned |= reasons
        factors += (*typed._of_environment(factors), *typed._of_launch(), *typed._of_packages())
        pinned |= {asked.name: asked.reason for asked in self.capture.asked if asked.reason}
        pinned |= {name: PINNED for name in pins if Name.of(name).space in ("launch", "env")} | unheard | also_unheard
        if self.order_kept:
            pinned |= {factor.name: self.order_kept for factor in factors if "shuffle" in factor.name}
        if self.capture.args.world_size > 1 and not self.relaunched:
            pinned[PROCESSES] = "the script starts its processes itself"
        factors = [replace(factor, own=typed._own_side(factor.name)) for factor in factors]
        left = self._left_out([factor.name for factor in factors])
        varied = tuple(factor for factor in factors if factor.name not in {*left, *pinned})
        return Factors(capture, varied, pins, pinned | left, same, note, tuple(typed._follows.items()))

    @cached_property
    def _made_of(self) -> dict[str, tuple[str, Encoded]]:
        """Name -> the script's own setting that the user gave it by, with its good value; where there is one."""
        found: dict[str, tuple[str, Encoded]] = {}
        for one in handed_on(self.capture):
            name, own = str(one.source.name(one.field)), str(one.own.name(one.key))
            if one.field.partition(".")[0] not in (*one.source.set_by_user, Name.of(own).key.rpartition(".")[2]):
                continue  # the same text by chance: nobody has set the field
            said = next((one for one in (name, own) if one in self.good), None)
            good = self.good[said] if said else one.own.defaults.get(one.key)
            if one.own.kind == "env" and said != name:  # what the code puts in its place, where it is not set
                unset = next(iter(one.own.code.default_of_variable(one.key)), None)
                good = value_in(unset if good is None else good)
            if not said and good is None and one.key not in one.own.flags:  # of a file: the good side is the library's
                good = look_up(one.source.defaults, one.field)
                if good is None or has_tag(good) or Name.of(own).key.rpartition(".")[2] not in one.own.code.read:
                    continue
            if found.get(name, (own, None))[1] is None:  # a flag that only stands in for a key of a file has none
                found[name] = own, good
        return found

    def _own_side(self, name: str) -> tuple[str, Encoded] | None:
        """The script's own setting of which a factor is made, with what it is where that is good. A variable is not
        set, if the code has a default for it."""
        own, good = self._made_of.get(name, (name, None))
        space, key = Name.of(own)
        if space != "env" or name not in self._made_of:
            return self._made_of.get(name)
        unset = None if self.capture.others["env"].code.default_of_variable(key) else good
        return own, variable_levels(own, self.good.get(own, self.good.get(name, unset)))[0]

    @cached_property
    def _own_good(self) -> Row:
        """Name -> value of the script's own settings in the good configuration: good where it varies, alone or with the
        field that it is handed on to."""
        own, good = self.capture.own, self.capture.own_good
        places = [(str(one.own.name(one.key)), one.source, one.field) for one in handed_on(self.capture)]
        places = [(name, source, field) for name, source, field in places if str(source.name(field)) in self._made_of]
        places += [(name, self.capture.others[Name.of(name).space], Name.of(name).key) for name in own]
        varies = {name for name, source, key in places if self._varies(source, key)}
        return {name: good[name] if name in varies else value for name, value in own.items()}

    def _varies(self, source: Source, key: str) -> bool:
        name = str(source.name(key))
        fixed = name in self.pins or left_out([name], self.only, self.excluded)
        return not fixed and not why_pinned(self.capture, source, key)

    @cached_property
    def _follows(self) -> dict[str, Computed]:
        """Name -> how the script computes it, of the fields that change with what varies of its own settings: none of
        them varies by itself."""
        differing = {name for name, value in self.capture.own.items() if not equal(value, self._own_good[name])}
        named = {*self._made_of, *self.good, *self.pins}
        return {name: one for name, one in self.capture.computed.items() if one.of & differing and name not in named}

    @cached_property
    def _overridden(self) -> Row:
        """Key of the script's own file -> value there, of those whose place a flag has taken that has no default."""
        own = self.capture.others.get("script")
        open_flags = {Name.of(name).field for name, (_, good) in self._made_of.items() if good is None}
        of_file = {} if own is None else {key: raw for key, raw in own.raw.items() if key not in own.flags}
        of_file = {key: raw for key, raw in of_file.items() if "." in key and key.rpartition(".")[2] in open_flags}
        return {key: raw for key, raw in of_file.items() if not has_tag(raw)}

    def _in_file(self, field: str) -> Encoded:
        """The value of a field in the script's own file, where a flag has taken its place; None if there is none, or
        more than one key of that name."""
        found = [value for key, value in self._overridden.items() if key.rpartition(".")[2] == field]
        return found[0] if len(found) == 1 else None

    def _of_own_default(self, source: Source, field: str) -> Encoded:
        """What the script's own default makes of a field that the user did not set: that of a flag, or of a key that
        the user's file leaves to the dictionary over which it is laid. None if there is none."""
        own = self.capture.others.get("script")
        if own is None:
            return None
        unsaid = {key: own.defaults[key] for key in own.flags if key in own.defaults and key not in own.set_by_user}
        if not own.raw.keys().isdisjoint(own.code.merged):
            unsaid |= {name: value for name, value in own.code.merged.items() if name not in own.raw}
        keys = own.code.made_of(field)
        found = [value for name, value in unsaid.items() if name.rpartition(".")[2] in keys]
        if len(found) != 1:
            return None
        taken = str(source.name(field)) in self._made_of  # by a flag that stands in for the key
        return found[0] if taken or equal(found[0], look_up(source.raw, field)) else None

    def _reset(self, source: Source, key: str) -> Encoded:
        """The raw value of the good side: as the user says; else what the script hands on where nobody gives it that;
        else the library's default."""
        name = str(source.name(key))
        if name in self.good:
            return self.good[name]
        how = self.capture.computed.get(name) if name in self._made_of else None
        good = next(iter(how.value(self._own_good)), None) if how is not None else None
        good = self._made_of.get(name, ("", None))[1] if good is None else good
        good = self._in_file(key) if good is None else good
        good = self._of_own_default(source, key) if good is None else good
        same = good is None or equal(good, look_up(source.defaults, key))
        return DEFAULT if same or source.kind in OWN or has_tag(good) else good

    def _left_out(self, known: Sequence[str]) -> dict[str, str]:
        """What --only and --exclude leave out, with the reason."""
        for option, name in naming_nothing(known, self.only, self.excluded):
            if name not in self.capture.accelerate.types:  # those are of another launch of the same script
                check_name(name, [*known, *self.capture.args.types], option, known)
        left = left_out(known, self.only, self.excluded)
        if known and len(left) == len(known):
            given = [option for option, names in (("--only", self.only), ("--exclude", self.excluded)) if names]
            raise InputError(
                f"{' and '.join(given)} leave{'s' if len(given) == 1 else ''} nothing to vary: {', '.join(known)} "
                f"{'differs' if len(known) == 1 else 'differ'} from the good configuration.",
                "At least one of them must be free to vary.",
            )
        return left

    # ------------------------------------------------------------------------------------------ the training config

    def _of_training_config(self) -> tuple[Row, dict[str, str]]:
        """Name -> encoded raw value of the good side, of what the user set; and what of it is pinned."""
        args, chosen, pinned = self.capture.args, {}, {}
        moved = [name.field for name in map(Name.of, self.good) if name.space == "args"]
        handed = [name.field for name in map(Name.of, self._made_of) if name.space == "args"]
        for setting in dict.fromkeys((*args.set_by_user, *moved, *handed)):
            if setting in self._follows:
                continue
            reason = why_pinned(self.capture, args, setting)
            for leaf in [setting] if reason else self._leaves(setting):
                raw = look_up(args.raw, leaf)
                reason = why_pinned(self.capture, args, leaf)
                if leaf in self.pins or (setting in self.pins and not reason):
                    pinned[leaf] = PINNED
                elif reason not in ("", HANDED_ON):
                    pinned[leaf] = reason
                elif not reason or leaf in self.good:
                    chosen[leaf] = _with_secrets(self._reset(args, leaf), raw)
        return chosen, pinned

    def _leaves(self, setting: str) -> list[str]:
        """The setting itself, or a name for each key if it holds a dictionary on at least one side."""
        args = self.capture.args
        raw, default = args.raw.get(setting), args.defaults.get(setting)
        bad, good = entries(raw), entries(default)
        if is_object(plain(raw)) and "dict" not in args.types.get(setting, "").lower():
            bad = None  # an object that only an object of its kind can stand for
        named = [name for name in self.good if name.startswith(f"{setting}.")]
        whole = (bad is None or (good is None and default is not None)) and not named
        if setting in self.good or whole:
            return [setting]
        bad, good = bad or {}, good or {}
        changed = [key for key in (*bad, *good) if not (key in bad and key in good and equal(bad[key], good[key]))]
        return list(dict.fromkeys([*(f"{setting}.{key}" for key in changed), *named])) or [setting]

    def _resolve(self, resets: Row) -> BuildAnswer:
        """What the training config comes to with these settings at their good side, by name."""
        if not self.capture.args.built:
            return BuildAnswer({})
        follow = {name: value for name, how in self._follows.items() for value in how.value(self._own_good)}
        changes = {Name.of(name).full: value for name, value in {**follow, **self.pins, **resets}.items()}
        return self.build(build_request(self.capture.args, changes))

    def _valid_good(self, chosen: Row) -> tuple[Row, tuple[str, ...], str]:
        """What the good configuration resolves to, the names that it keeps as the user has them, and a note on them.

        The machine may not do what is the library's default (bf16 without a GPU that has it), or the defaults around
        what is pinned do not fit it (a batch size and the number of generations). Then it keeps the fewest settings
        that make it valid: one or two; those first that the library's words name. What the user has moved is not
        touched.

        Raises:
            InputError: no two are enough.
        """
        args, answer = self.capture.args, self._resolve(chosen)
        if answer.values is not None:
            return answer.values, (), ""
        error = answer.error or ""
        words = set(re.findall(r"\w+", error))
        free = sorted((one for one in chosen if one not in self.good), key=lambda one: one.split(".")[0] not in words)
        for kept in (*((name,) for name in free), *combinations(free, 2)):
            tried = self._resolve({name: reset for name, reset in chosen.items() if name not in kept})
            if tried.values is not None:
                shown = ", ".join(f"{name}={look_up(args.resolved, name)}" for name in kept)
                note = f"The library refuses its own defaults here ({error.rstrip('.')}), so the good "
                return tried.values, kept, f"{note}configuration keeps your {shown}."
        raise InputError(
            f"The good configuration is not valid for this version of {args.module.split('.')[0]}: {error}",
            "Move it with --good name=value or a good.yaml until it can be built.",
        )

    def _differing(self, chosen: Row, resolved: Row) -> tuple[list[Factor], tuple[str, ...]]:
        """The factors among the settings of the training config, and what is the same on both sides.

        Args:
            chosen: name -> encoded raw value of the good side.
            resolved: what the good configuration comes to.
        """
        args, factors, same = self.capture.args, [], []
        # The class that is built there is the library's: fields that the user's own class adds are not in the answer.
        own = {name: self.good.get(name, value) for name, value in args.defaults.items() if name not in resolved}
        for name, reset in chosen.items():
            good, bad = look_up({**own, **resolved}, name), look_up(args.resolved, name)
            if equal(good, bad):
                setting, _, key = name.partition(".")
                if key and is_object(plain(args.raw.get(setting))):
                    continue  # the object has all its fields, whether the user set them or not
                good, bad = look_up(args.defaults, name) if reset == DEFAULT else reset, look_up(args.raw, name)
                # A key that is None and one that is not there are the same.
                if equal(good, bad) or not self._makes_a_difference(name, chosen):
                    same.append(name)
                    continue
            factors.append(Factor(name, "args", good, bad, reset))
        return factors, tuple(same)

    def _makes_a_difference(self, name: str, chosen: Row) -> bool:
        """Whether resetting one setting makes a difference: among the user's settings, or among the good ones."""
        if has_tag(self.capture.args.raw.get(name.partition(".")[0]), "$opaque", "$object"):
            return True  # nobody but the script can make it, so it cannot be compared
        others = {other: reset for other, reset in chosen.items() if other != name}
        pairs = ((dict[str, Encoded](), {name: chosen[name]}), (others, chosen))
        return any(self._comes_to(left) != self._comes_to(right) for left, right in pairs)

    def _comes_to(self, resets: Row) -> Row | str:
        """All that a configuration resolves to, save what is never a factor; or why it is invalid."""
        answer = self._resolve(resets)
        if answer.values is None:
            return answer.error or ""
        return {name: value for name, value in answer.values.items() if not parameter(name).pinned}

    # ----------------------------------------------------------------------------------------------- everything else

    def _of_source(self, source: Source) -> tuple[list[Factor], dict[str, str]]:
        """The factors of another source, and what of it is pinned."""
        factors, pinned = [], {f"model.{key}": NOT_LOADING for key in source.others}
        given = (*self.good, *(() if source.kind in OWN else self._made_of))
        moved = [name.key for name in map(Name.of, given) if name.space == NAMESPACE[source.kind]]
        set_by_user = list(source.raw) if source.kind == "load" else source.set_by_user
        known = source.raw if source.kind in OWN else source.types
        for key in dict.fromkeys((*set_by_user, *moved)):
            name, bad = str(source.name(key)), source.raw.get(key)
            reason = PINNED if name in self.pins else why_pinned(self.capture, source, key)
            if (source.kind != "load" and key not in known) or name in self._follows:
                continue
            if any(key.startswith(f"{whole}.") for whole in moved if isinstance(source.raw.get(whole), list)):
                continue  # the good side has another list
            if source.kind == "script" and key in self._overridden and name not in self.good:
                continue  # the flag is varied
            if reason:
                pinned |= {name: reason} if reason != HANDED_ON else {}
                continue
            reset = self._reset(source, key)
            if source.kind == "env" and reset != DEFAULT:
                reset = variable_levels(name, reset)[0]
            good = source.defaults.get(key) if reset == DEFAULT else reset
            if not equal(good, bad):
                factors.append(Factor(name, source.kind, good, bad, good if source.kind in OWN else reset))
        return factors, pinned

    def _of_environment(self, factors: Sequence[Factor]) -> Iterator[Factor]:
        """Variables that the good side names, and the script was not seen to read."""
        known = {*self.pins, *(factor.name for factor in factors)}
        for name in self.good:
            if Name.of(name).space == "env" and name not in known:
                good, bad = variable_levels(name, self.good[name])
                if good != bad:
                    yield Factor(name, "env", good, bad, good)

    def _of_launch(self) -> Iterator[Factor]:
        """Factors of the launch.

        Raises:
            InputError: the good side asks for processes that nothing here starts.
        """
        args, capture = self.capture.args, self.capture
        by_launcher = launcher_levels(self.launcher, args.world_size, args.devices, capture.asked)
        sides: dict[str, tuple[Encoded, Encoded] | None] = {LAUNCHER: by_launcher}
        processes = self.good.get(PROCESSES, 1)
        change = "start the script with `accelerate launch` or torchrun after `--`."
        if isinstance(processes, int) and processes > 1 and not capture.started:
            raise InputError(
                f"{PROCESSES}={processes} for the good configuration needs a launcher, and the command has none.",
                change.capitalize(),
            )
        if PROCESSES in self.good and not self.relaunched and processes != args.world_size:
            raise InputError(
                f"{PROCESSES}={processes} for the good configuration: here the script starts its processes itself, "
                f"{args.world_size} of them.",
                f"Change the number in the script, or {change}",
            )
        if capture.started and self.relaunched:
            sides[PROCESSES] = 1, args.world_size
        sides |= {one.name: None if one.reason else (one.plain, one.value) for one in capture.asked}
        for name in self.good:
            if Name.of(name).space == "launch" and name != PROCESSES:  # no launcher was asked for it
                sides.setdefault(name, (capture.accelerate.plain_value(name),) * 2)
        for name, both in sides.items():
            if both is not None and name not in self.pins and not equal(good := self.good.get(name, both[0]), both[1]):
                yield Factor(name, "launch", good, both[1], good)

    def _of_packages(self) -> Iterator[Factor]:
        """Factors of what is installed: where it worked, another version was, or none."""
        for name in self.good:
            space, package = Name.of(name)
            if space == "packages" and self.good[name] != (bad := present(self.installed).levels.get(package)):
                yield Factor(name, "packages", *shown_levels(self.good[name], bad), self.good[name])


def _with_secrets(good: Encoded, bad: Encoded) -> Encoded:
    """A good value that was given as a whole dictionary, with the secrets that the script has there."""
    if not (
        isinstance(good, dict) and isinstance(bad, dict) and entries(good) is not None and entries(bad) is not None
    ):
        return good
    return {**{key: value for key, value in bad.items() if is_secret(key, value)}, **good}
