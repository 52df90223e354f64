"""Whatever hands settings to the code is offered here: a configuration object, a parser, a file, the environment.

It is recorded (`protocol.ConfigBuilt`), a waiting server forks there if this is the point, and the trial's values for
it are returned. Which source of a kind is meant, when a script has several, is said by its index in order of creation;
the first, cold run finds out which one the trainer was given (`training`).
"""

import contextlib
from collections.abc import Callable

from . import protocol, record, values, wrap
from .standard_library import _getframe, os

DEFAULT = {"$default": True}
"""An ordered value that leaves the setting at its default, or out where it has none."""

# CPython keeps one object for each of these numbers, so that the same object says nothing of where it came from.
_SHARED_NUMBERS = range(-5, 257)

# Modules of parsers: whoever calls them is the one who asks.
_PARSERS = ("argparse", "click", "typer", "rich_click", "simple_parsing", "jsonargparse", "configargparse", "tap")


class _State:
    """What the hooks need to know; one per process."""

    overrides: dict = {}  # full name of a setting -> encoded value
    targets = protocol.Targets()
    counts: dict = {}  # kind -> how many sources of it there were
    objects: list = []  # (kind, index, object), which also keeps the object, and so its id
    own: list = []  # (name, value) of the script's own settings, which also keeps the values
    before: "Callable | None" = None  # called with (kind, index) before a source is used: the server's fork point
    after: "Callable | None" = None  # called with (kind, object) once a configuration object is resolved
    parsing = False  # while a parser is at work: what it asks other parsers is its own business


state = _State()


def set_orders(request):
    """Take over what `protocol.TrialOrders` says of the settings of this trial."""
    state.overrides = request.overrides
    state.targets = request.targets or protocol.Targets()
    state.before = None


def offer(kind, raw, defaults, types, frame, **details):
    """Record a source and return what the trial wants of it.

    Args:
        kind: one of `protocol.NAMESPACE`.
        raw: name -> value, as the user passed it.
        defaults: name -> value without the user.
        types: name -> name of the type.
        frame: of the user's code that asks; None if there is none.
        **details: what `protocol.ConfigBuilt` holds besides.

    Returns:
        The source's index, and the trial's values for it: name -> encoded value.
    """
    index = state.counts.get(kind, 0)
    state.counts[kind] = index + 1
    if state.before is not None:
        state.before(kind, index)  # a waiting server forks here; only the child comes back
    place = frame and (os.path.abspath(frame.f_code.co_filename), frame.f_lineno)
    raw, defaults = ({name: values.encode(value, name) for name, value in row.items()} for row in (raw, defaults))
    details = {"cls": "", "module": "", **details}
    record.event(protocol.ConfigBuilt(kind, index, raw=raw, defaults=defaults, types=types, place=place, **details))
    if state.targets.objects.get("words" if details.get("words") else kind, index) != index:
        return index, {}
    # model.* is served by ModelConfig and by from_pretrained; `via` says which one owns the name.
    prefix, via = protocol.NAMESPACE[kind] + ".", state.targets.via
    return index, {
        name[len(prefix) :]: value
        for name, value in state.overrides.items()
        if name.startswith(prefix) and via.get(name, kind) == kind
    }


def object_index(kind, thing):
    """Return the index under which an object was recorded, or None."""
    return next((index for known, index, other in state.objects if known == kind and other is thing), None)


def users_line():
    """Return the innermost frame of code that is neither the probe's nor a library's, or None."""
    return wrap.outward(_getframe(1), wrap.PROBE, wrap.GENERATED, wrap.LIBRARY, wrap.PARSER)


# --------------------------------------------------------------------------------------- settings of the script's own


def offer_own(found, defaults, user, put, flags=None, types=None, kind="script", words=False):
    """Offer settings that the user's own code asked for, and put in the values of the trial.

    Args:
        found: name -> value.
        defaults: name -> value without the command line; required settings have none.
        user: the frame that asks.
        put: sets a value, by name.
        flags: name -> what the command line calls it.
        types: name -> name of the type; None: as the values are.
        kind: "script", or "env" for variables of the environment.
        words: whether they are words of the command line, which a parser may take later.
    """
    types = types or {name: "" if value is None else type(value).__name__ for name, value in found.items()}
    state.own += found.items()
    index, wanted = offer(kind, found, defaults, types, user, flags=flags or {}, words=words)
    wanted = {name: value for name, value in wanted.items() if name in found}
    for name, value in wanted.items():
        if name in defaults and value == values.encode(defaults[name], name):
            put(name, defaults[name])  # the very object: an enum, say, of which JSON has but the name
        elif value != DEFAULT:
            put(name, values.decode(value, found[name]))
    if wanted:
        record.event(protocol.ConfigResolved(kind, index, wanted))


def asked_by(frame, between=_PARSERS):
    """Return the frame of the user's own code that asks for settings, directly or through modules of these packages;
    None if it is not the user's code that does, or a parser is at work already."""
    if state.parsing:
        return None
    while frame is not None and (
        wrap.owner_of(frame) == wrap.PARSER or frame.f_globals.get("__name__", "").split(".")[0] in between
    ):
        frame = frame.f_back
    return frame if frame is not None and wrap.owner_of(frame) == wrap.USER else None


@contextlib.contextmanager
def parsing():
    """While a parser is at work."""
    state.parsing = True
    try:
        yield
    finally:
        state.parsing = False


def handed_on(raw):
    """Return field -> name of the own setting whose very value it holds, of the fields of a configuration object."""
    own = {id(value): name for name, value in dict(state.own).items() if not is_shared(value)}
    return {field: own[id(value)] for field, value in raw.items() if id(value) in own and not is_shared(value)}


def is_shared(value):
    """Whether Python has one object for all values like this one."""
    short = isinstance(value, (str, bytes)) and len(value) < 2
    return value is None or isinstance(value, bool) or short or (isinstance(value, int) and value in _SHARED_NUMBERS)
