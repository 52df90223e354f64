"""Whatever hands settings to the code is offered here: a configuration object, a parser, a file, the environment.

It is recorded (`protocol.ConfigBuilt`), a waiting server forks there if this is the point, and the trial's values for
it are returned. Which source of a kind is meant, when a script has several, is said by its index in order of creation;
the first, cold run finds out which one the trainer was given (`training`).
"""

from . import protocol, record, values, wrap
from .standard_library import _getframe, os

DEFAULT = {"$default": True}
"""An ordered value that leaves the setting at its default, or out where it has none."""

# CPython keeps one object for each of these numbers, so that the same object says nothing of where it came from.
_SHARED_NUMBERS = range(-5, 257)


class _State:
    """What the hooks need to know; one per process."""

    overrides: dict = {}  # full name of a setting -> encoded value
    targets = protocol.Targets()
    counts: dict = {}  # kind -> how many sources of it there were
    objects: list = []  # (kind, index, object), which also keeps the object, and so its id
    own: list = []  # (name, value) of the script's own settings, which also keeps the values
    before = None  # called with (kind, index) before a source is used: the server's fork point
    after = None  # called with (kind, object) once a configuration object is resolved


state = _State()


def set_orders(request):
    """Take over what `protocol.TrialOrders` says of the settings of this trial."""
    state.overrides = request.overrides
    if request.targets is not None:
        state.targets = request.targets
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
    record.event(
        protocol.ConfigBuilt(
            kind=kind,
            index=index,
            raw={name: values.encode(value, name) for name, value in raw.items()},
            defaults={name: values.encode(value, name) for name, value in defaults.items()},
            types=types,
            place=place,
            **details,
        )
    )
    return index, _wanted(kind, index)


def _wanted(kind, index):
    prefix = protocol.NAMESPACE[kind] + "."
    if getattr(state.targets, kind) not in (None, index):
        return {}
    # model.* is served by ModelConfig and by from_pretrained; `via` says which one owns the name.
    return {
        name[len(prefix) :]: value
        for name, value in state.overrides.items()
        if name.startswith(prefix) and state.targets.via.get(name) in (None, kind)
    }


def object_index(kind, thing):
    """Return the index under which an object was recorded, or None."""
    return next((index for known, index, other in state.objects if known == kind and other is thing), None)


def users_line():
    """Return the innermost frame of code that is neither the probe's nor a library's, or None."""
    return wrap.outward(_getframe(1), wrap.PROBE, wrap.GENERATED, wrap.LIBRARY, wrap.PARSER)


def handed_on(raw):
    """Return field -> name of the own setting whose very value it holds, of the fields of a configuration object."""
    own = {id(value): name for name, value in state.own if not is_shared(value)}
    return {field: own[id(value)] for field, value in raw.items() if id(value) in own and not is_shared(value)}


def is_shared(value):
    """Whether Python has one object for all values like this one."""
    short = isinstance(value, (str, bytes)) and len(value) < 2
    return value is None or isinstance(value, bool) or short or (isinstance(value, int) and value in _SHARED_NUMBERS)
