"""What of the user's settings no trial varies, and why: secrets, places, what the script hands on to a library.

A flag that a script reads itself (``--mix 0.3``) is a factor like a field of the training config, and so is a variable
that it reads. Not varied is what says which model, data, place or device is used, what has no default, and what is the
setting of another source: it is varied there.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from bisect_cfg.configuration import equal
from bisect_cfg.parameters import canonical, parameter
from bisect_cfg.parameters.comparing import plain as as_written
from bisect_cfg.probe.protocol import Encoded, ForkPoint
from bisect_cfg.probe.redact import HIDDEN, is_secret_name
from bisect_cfg.targets.captured import OWN, Capture, Source, entries, has_tag, look_up

MASKED = {"$secret": HIDDEN}
"""What the probe sends in place of a secret that it knows by its name."""

PINNED = "you pinned it"
SECRET = "it is a secret; every trial uses yours"
NO_DEFAULT = "it has no default"
NAMES_A_PLACE = "it says which model, data, place or device is used"
UNUSED = "no model was given this LoraConfig, your run trains without it"
HANDED_ON = "the script hands it on, and it is varied there"

PLACES = re.compile(
    r"(?:^|_)(?:configs?|models?|tokenizers?|data|datasets?|rows?|samples?|examples?|splits?|subsets?|paths?|dirs?"
    r"|folders?|files?|names?|outputs?|projects?|ids?|urls?|hosts?|ports?|tokens?|keys?|users?|entity|seeds?|ranks?"
    r"|devices?|gpus?|cuda|world_size|resume|checkpoints?|ckpts?|wandb|tensorboard|hub|logs?|logging|verbose|debug"
    r"|quiet|nodes?)(?:_|$)"
)
"""In the name of a setting that says what is trained on what, where and with whom: without it there is nothing to run,
or nothing changes."""


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
        objects = (capture.args, *(other for other in capture.others.values() if other.kind not in OWN))
        return HANDED_ON if alone != SECRET and any(_holds(one, key, source.raw.get(key)) for one in objects) else alone
    if source.kind == "args":
        of_setting = parameter(key.partition(".")[0]).pinned
        if of_setting or (key in source.raw and key not in source.defaults):
            return of_setting or NO_DEFAULT
    elif reason := parameter(name).pinned or ("" if source.used else UNUSED):
        return reason
    if is_secret(key, look_up(source.raw, key)):
        return SECRET
    return HANDED_ON if _is_of_model_config(capture, source, key) else ""


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
    if key not in own.defaults:
        return f"{NO_DEFAULT}; --good NAME=VALUE gives it one"
    if PLACES.search(key.lower().rpartition(".")[2]) or (isinstance(value, str) and "/" in value):
        return NAMES_A_PLACE
    if has_tag(value) or has_tag(own.defaults[key]):
        return "only the script can make its value"
    return parameter(name).pinned


def _holds(source: Source, key: str, value: Encoded) -> bool:
    """Whether a configuration object holds a setting of the script's own: the very value, one of the same name, or a
    number that no other field has that the user set."""
    before, _, last = key.rpartition(".")
    if key in source.handed.values() or (last in source.raw and equal(source.raw[last], value)):
        return True
    within = entries(source.raw.get(before.rpartition(".")[2])) or {}
    if last in within and equal(within[last], value):
        return True
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) < 2:
        return False
    return sum(equal(source.raw[field], value) for field in source.set_by_user) == 1


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
    return [] if read is None else [name for name in read.set_by_user if not why_pinned(capture, read, name)]


def fork_point(capture: Capture) -> ForkPoint:
    """The first source that a trial may have to change: the deepest point at which a fork is of use."""
    for kind, index in capture.order:
        source = capture.args if kind == "args" else capture.others.get(kind)
        if source is None or source.index != index or not source.used:
            continue
        if kind in OWN:
            ours = any(not why_pinned(capture, source, key) for key in source.set_by_user)
        else:
            ours = bool(kind == "args" or (source.raw if kind == "load" else source.set_by_user))
        if ours:
            return ForkPoint(kind, index)
    return ForkPoint("args", capture.args.index)
