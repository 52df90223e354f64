"""What of the user's settings no trial varies, and why: secrets, places, what the script hands on to a library.

A flag that a script reads itself (``--mix 0.3``) is a factor like a field of the training config, and so is a variable
that it reads. Not varied is what says which model, data, place or device is used, what has no default, and what is the
setting of another source: it is varied there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from bisect_cfg.common.configuration import equal
from bisect_cfg.common.parameters import canonical, parameter
from bisect_cfg.common.parameters.comparing import plain as as_written
from bisect_cfg.probe.protocol import Encoded, ForkPoint
from bisect_cfg.probe.redact import HIDDEN, is_secret_name
from bisect_cfg.targets.captured import OWN, Capture, Source, entries, has_tag, look_up
from bisect_cfg.targets.good import value_in
from bisect_cfg.targets.own_code import names_in

MASKED = {"$secret": HIDDEN}
"""What the probe sends in place of a secret that it knows by its name."""

PINNED = "you pinned it"
SECRET = "it is a secret; every trial uses yours"
NO_DEFAULT = "it has no default"
NAMES_A_PLACE = "it says which model, data, place or device is used"
UNUSED = "no model was given this LoraConfig, your run trains without it"
HANDED_ON = "the script hands it on, and it is varied there"

BY_NAME = (NAMES_A_PLACE, parameter("seed").pinned)
"""Reasons that a setting's name alone has given: of data, places, devices and seeds."""

PLACES = re.compile(
    r"(?:^|_)(?:configs?|models?|tokenizers?|data|datasets?|splits?|subsets?|paths?|dirs?|folders?|files?|names?|outputs?"
    r"|projects?|ids?|urls?|hosts?|tokens?|keys?|users?|entity|checkpoints?|ckpts?)(?:_|$)"
)
"""In the name of a text that says what is trained on what, where and with whom: without it there is nothing to run. A
number under such a name (`model_max_length`, `max_new_tokens`) is a setting."""

_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?$", re.IGNORECASE)
"""A number as the text of a variable."""

SURROUNDINGS = re.compile(
    r"(?:^|_)(?:(?:row|sample|example)_(?:size|limit|count)|seeds?|devices?|gpus?|cuda|world_size|ports?|resume|wandb"
    r"|tensorboard|hub|push|overwrite|saves?|logging|verbose|debug|quiet|nodes?)(?:_|$)|(?:^|_)(?:rows|samples|examples)$"
    r"|^(?:local_|global_|node_|machine_)?rank$|(?:^|_)logs?$|^log_(?:steps?|every|interval|level|freq|dir|file|to|with)"
)
"""In the name of a setting, whatever its value, that says how much of the data is taken, where it runs and what is told
of it."""


def why_pinned(capture: Capture, source: Source, key: str) -> str:
    """Why a setting is not varied, "" where it is.

    Args:
        capture: of the first run.
        source: of the setting.
        key: of the setting within it.
    """
    name = str(source.name(key))
    if source.kind in OWN:
        alone = why_own(source, key, capture.named)
        if alone != SECRET and any(one.own is source and one.key == key for one in handed_on(capture)):
            return HANDED_ON
        return alone
    if source.kind == "args":
        of_setting = parameter(key.partition(".")[0]).pinned
        if of_setting or (key in source.raw and key not in source.defaults):
            return of_setting or NO_DEFAULT
    elif reason := parameter(name).pinned or ("" if source.used else UNUSED):
        return reason
    if is_secret(key, look_up(source.raw, key)):
        return SECRET
    return HANDED_ON if _is_of_model_config(capture, source, key) else ""


def without_good_value(not_varied: Mapping[str, str]) -> list[str]:
    """The names among settings that are not varied (name -> reason) that have no value to be compared with."""
    return [name for name, reason in not_varied.items() if reason.startswith(NO_DEFAULT)]


def pinned_by_name(capture: Capture, not_varied: Mapping[str, str]) -> dict[str, tuple[Encoded, Encoded]]:
    """Of the settings that are not varied (name -> reason) those that go by their name alone, and of which the user's
    value is another than the default: name -> (default, the user's)."""
    found = {}
    for source in (capture.args, *capture.others.values()):
        for key in source.set_by_user:
            name = str(source.name(key))
            if not_varied.get(name) in BY_NAME and key in source.defaults:
                found[name] = source.defaults[key], source.raw[key]
    return found


def is_secret(key: str, value: Encoded) -> bool:
    """Whether a setting holds a token or a password: every trial has the script's own, and none is written down.

    An address with a password in it is told by its value alone; it may vary, its mask is what is shown.
    """
    return value == MASKED or (isinstance(value, str) and is_secret_name(key, value))


def why_own(own: Source, key: str, named: Collection[str]) -> str:
    """Why a setting of the script's own is not varied, whatever a library makes of it; "" where it is.

    Args:
        own: all of its kind.
        key: of the setting.
        named: settings that the good side gives.
    """
    value, name = own.raw.get(key), str(own.name(key))
    if is_secret(key, value):
        return SECRET
    if {key, name} & set(named):
        return ""
    word = key.lower().rpartition(".")[2]
    is_number = isinstance(value, (int, float)) or (isinstance(value, str) and bool(_NUMBER.match(value)))
    if (
        SURROUNDINGS.search(word)
        or (not is_number and (PLACES.search(word) or key.startswith("argv.")))
        or (isinstance(value, str) and "/" in value)
    ):
        return NAMES_A_PLACE
    if key not in own.defaults:
        return f"{NO_DEFAULT}; --good NAME=VALUE gives it one"
    if has_tag(value) or has_tag(own.defaults[key]):
        return "only the script can make its value"
    return parameter(name).pinned


class HandedOn(NamedTuple):
    """A field of a configuration object that the script makes of a setting of its own (`learning_rate` of ``--lr``)."""

    source: Source
    field: str
    own: Source
    key: str


def handed_on(capture: Capture) -> list[HandedOn]:
    """Return what the script hands on of those of its own settings that the user set."""
    sources = (capture.args, *capture.others.values())
    return [
        HandedOn(source, field, own, key)
        for own in sources
        if own.kind in OWN
        for key in own.set_by_user
        for source in sources
        if source.kind not in OWN
        for field in _fields_made_of(capture, source, own, key)
    ]


def _fields_made_of(capture: Capture, source: Source, own: Source, key: str) -> list[str]:
    """The fields of a configuration object that hold a setting of the script's own: those that hold the very value, one
    of the same name, and those that the code makes of it. A variable is text, whatever is made of it."""
    value = own.raw[key] if own.kind != "env" else value_in(own.raw[key])
    before, _, last = key.rpartition(".")
    found = [field for field, own in source.handed.items() if own == key]
    parent = before.rpartition(".")[2]
    within = entries(source.raw.get(parent)) or {}
    found += [last] if last in source.raw and equal(source.raw[last], value) else []
    found += [f"{parent}.{last}"] if last in within and equal(within[last], value) else []
    alike = (field for field in source.set_by_user if equal(source.raw[field], value))
    found += [field for field in alike if last in own.code.made_of(field)]
    return [field for field in found if _stands_for(capture, str(source.name(field)), str(own.name(key)))]


def _stands_for(capture: Capture, name: str, own: str) -> bool:
    """Whether a field that holds a setting of the script's own is one with it: it changes with that alone, and is it
    at the good value too; or there the code has a value for it (``args.lr or 1e-5``), and makes nothing else of it."""
    how, last, good = capture.computed.get(name), own.rpartition(".")[2], capture.own_good
    if how is None or how.of != {own}:
        return how is None
    if how.value(good) in ((good[own],), (value_in(good[own]),), ()):
        return True
    read = {other.rpartition(".")[2] for other in good} & names_in(how.expression)
    return read == {last} and [other for other, made in capture.computed.items() if own in made.of] == [name]


def _is_of_model_config(capture: Capture, source: Source, key: str) -> bool:
    """Whether a script has made a setting of what ModelConfig holds: an argument of `from_pretrained`, or a key of a
    dictionary that it set on the finished training config, as TRL's own do (`model_init_kwargs`)."""
    config = capture.others.get("modelcfg")
    if source.kind == "load":
        return config is not None and equal(source.raw.get(key), config.raw.get(key))
    field, _, inner = key.partition(".")
    made = entries(source.raw.get(field)) or {}
    if source.kind != "args" or config is None or inner not in made:
        return False
    if inner in (entries(source.passed.get(field)) or {}):
        return False
    held = {**source.raw, **{canonical(f"model.{other}"): value for other, value in config.raw.items()}}
    return any(
        known in held and equal(as_written(held[known]), as_written(made[inner]))
        for known in (canonical(key), f"model.model_{inner}", inner)
    )


def varied_variables(capture: Capture | None) -> list[str]:
    """The environment variables that the script was seen to read and that may vary."""
    read = None if capture is None else capture.others.get("env")
    return (
        []
        if capture is None or read is None
        else [name for name in read.set_by_user if not why_pinned(capture, read, name)]
    )


def fork_point(capture: Capture) -> ForkPoint:
    """The first source that a trial may have to change: the deepest point at which a fork is of use."""
    for kind, index in capture.order:
        source = capture.args if kind == "args" else capture.others.get(kind)
        if source is None or source.index != index or not source.used:
            continue
        if kind in OWN:
            named = {key for key in source.raw if {key, str(source.name(key))} & capture.named.keys()}
            ours = any(not why_pinned(capture, source, key) for key in {*source.set_by_user, *named}) or any(
                one.own is source
                and (one.key in source.defaults or one.key.rpartition(".")[2] in source.code.read)
                and not why_pinned(capture, one.source, one.field)
                for one in handed_on(capture)
            )
        else:
            ours = bool(kind == "args" or (source.raw if kind == "load" else source.set_by_user))
        if ours:
            return ForkPoint(kind, index)
    return ForkPoint("args", capture.args.index)
