"""Settings of the script's own: which of what its parsers were given may vary, and why the others may not.

A flag that a script reads itself (``--mix 0.3``) is a factor like a field of the training config: its good level is the
parser's default. So is an environment variable that the script reads: its good level is unset. Not varied is what says
which model, data, place or device is used, what has no default, and what the script hands on to a library: that is
varied there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from bisect_cfg.configuration import equal
from bisect_cfg.parameters import parameter
from bisect_cfg.probe.protocol import NAMESPACE, Encoded, ForkPoint
from bisect_cfg.probe.redact import HIDDEN, is_secret_name
from bisect_cfg.targets.captured import OWN, Built, Capture, fields_of, has_tag, set_by_user

MASKED = {"$secret": HIDDEN}
"""What the probe sends in place of a secret that it knows by its name."""

SECRET = "it is a secret; every trial uses yours"

PLACES = re.compile(
    r"(?:^|_)(?:configs?|models?|tokenizers?|data|datasets?|rows?|samples?|examples?|splits?|subsets?|paths?|dirs?"
    r"|folders?|files?|names?|outputs?|projects?|ids?|urls?|hosts?|ports?|tokens?|keys?|users?|entity|seeds?|ranks?"
    r"|devices?|gpus?|cuda|world_size|resume|checkpoints?|ckpts?|wandb|tensorboard|hub|logs?|logging|verbose|debug"
    r"|quiet|nodes?)(?:_|$)"
)
"""In the name of a setting that says what is trained on what, where and with whom: without it there is nothing to run,
or nothing changes."""

NAMES_A_PLACE = "it says which model, data, place or device is used"
HAS_NO_DEFAULT = "it has no default; --good NAME=VALUE gives it one"
HANDED_ON = "the script hands it on, and it is varied there"


def reasons(capture: Capture, kind: str) -> Mapping[str, str]:
    """Name of an own setting of a kind that the user set -> why it is not varied; "" where it is."""
    own = capture.others.get(kind)
    return {} if own is None else {name: _reason(name, own, capture) for name in set_by_user(own)}


def fork_point(capture: Capture) -> ForkPoint:
    """The first object that a trial may have to change: the deepest point at which a fork is of use."""
    for kind, index in capture.order:
        owner = capture.args if kind == "args" else capture.others.get(kind)
        if owner is None or owner.index != index or not owner.used:
            continue
        if kind in OWN:
            ours = any(not reason for reason in reasons(capture, kind).values())
        else:
            ours = bool(kind == "args" or (owner.raw if kind == "load" else set_by_user(owner)))
        if ours:
            return ForkPoint(kind, index)
    return ForkPoint("args", capture.args.index)


def _reason(name: str, own: Built, capture: Capture) -> str:
    alone = reason_alone(name, own, capture.named)
    handed_on = any(_is_handed_on(name, own.raw[name], built) for built in _library_objects(capture))
    return HANDED_ON if handed_on and alone != SECRET else alone


def reason_alone(name: str, own: Built, named: Collection[str]) -> str:
    """Why a setting is not varied, whatever a library makes of it; "" where it is. `named`: by the good side."""
    value = own.raw[name]
    if value == MASKED or (isinstance(value, str) and is_secret_name(name, value)):
        return SECRET
    if {name, f"{NAMESPACE[own.kind]}.{name}"} & set(named):
        return ""
    if name not in own.defaults:
        return HAS_NO_DEFAULT
    if PLACES.search(name.lower().rpartition(".")[2]) or (isinstance(value, str) and "/" in value):
        return NAMES_A_PLACE
    if has_tag(value) or has_tag(own.defaults[name]):
        return "only the script can make its value"
    return parameter(f"{NAMESPACE[own.kind]}.{name}").pinned


def _library_objects(capture: Capture) -> Iterator[Built]:
    yield capture.args
    yield from (built for kind, built in capture.others.items() if kind not in OWN)


def _is_handed_on(name: str, value: Encoded, built: Built) -> bool:
    """Whether a field of a configuration object holds a setting of the script's own: the very value, one of the same
    name, or a number that no other field has that the user set."""
    before, _, last = name.rpartition(".")
    if name in built.handed.values() or (last in built.raw and equal(built.raw[last], value)):
        return True
    within = fields_of(built.raw.get(before.rpartition(".")[2])) or {}
    if last in within and equal(within[last], value):
        return True
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) < 2:
        return False
    return sum(equal(built.raw[field], value) for field in set_by_user(built)) == 1
