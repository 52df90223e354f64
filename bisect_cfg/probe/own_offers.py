"""A setting of the script's own is offered to the tool when the user's own code asks for it; see `own_settings`."""

import contextlib

from . import protocol, record, sources, values, wrap

_PARSERS = ("argparse", "click", "typer", "rich_click", "simple_parsing", "jsonargparse", "configargparse", "tap")
"""Modules of parsers: whoever calls them is the one who asks."""


class _State:
    """One per process."""

    parsing = False  # while a parser is at work: what it asks other parsers is its own business


_state = _State()


def asked_by(frame, between=_PARSERS):
    """Return the frame of the user's own code that asks for settings, directly or through modules of these packages;
    None if it is not the user's code that does, or a parser is at work already."""
    if _state.parsing:
        return None
    while frame is not None and (
        wrap.owner_of(frame) == wrap.PARSER or frame.f_globals.get("__name__", "").split(".")[0] in between
    ):
        frame = frame.f_back
    return frame if frame is not None and wrap.owner_of(frame) == wrap.USER else None


@contextlib.contextmanager
def alone():
    """While a parser is at work."""
    _state.parsing = True
    try:
        yield
    finally:
        _state.parsing = False


def offer(found, defaults, types, user, put, kind="script", **details):
    """Offer what the user's own code asked for, and put in the values of the trial.

    Args:
        found: name -> value.
        defaults: name -> value without the command line; required settings have none.
        types: name -> name of the type, of the settings that are offered.
        user: the frame that asks.
        put: sets a value, by name.
        kind: of setting.
        **details: what `protocol.ConfigBuilt` holds besides.
    """
    offered = {name: value for name, value in found.items() if name in types}
    sources.state.own += offered.items()
    index, wanted = sources.offer(kind, offered, defaults, types, user, cls="", module="", **details)
    wanted = {name: value for name, value in wanted.items() if name in found}
    for name, value in wanted.items():
        if name in defaults and value == values.encode(defaults[name], name):
            put(name, defaults[name])  # the very object: an enum, say, of which JSON has but the name
        elif value != sources.DEFAULT:
            put(name, values.decode(value, found[name]))
    if wanted:
        record.event(protocol.ConfigResolved(kind, index, wanted))


def type_name(function, value):
    """The name of the function that makes a value of its text, else of the value's type."""
    return getattr(function, "__name__", "") or ("" if value is None else type(value).__name__)
