"""Settings of the script's own: what a parser made of the command line, offered like a configuration object.

An ``ArgumentParser`` (also under `HfArgumentParser`, `TrlParser`, simple-parsing, jsonargparse) and a click command
(also under typer) hand settings to the code. What the user's own code asks them for is recorded beside the parser's
defaults (`config` event of the kind "script"), a waiting server forks there, and the values of a trial are put in
before the script sees any. Values that the script hands on to a configuration object of a library are that object's
(see `objects.handed_on`).
"""

import contextlib

from . import objects, protocol, record, values
from .held import _getframe, dataclasses, functools, os
from .imports import when_imported

# Modules of parsers: whoever calls them is the one who asks.
_PARSERS = ("argparse", "click", "typer", "rich_click", "simple_parsing", "jsonargparse", "tap")

_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")

_parsing = set()  # not empty while a parser is at work; what it asks other parsers is its own business


def install():
    """Wait for the parsers and wrap them as they come."""
    when_imported("argparse", _wrap_argparse)
    when_imported("click.core", _wrap_click)


def _asked_by(frame):
    """The frame of the user's own code that uses a parser, directly or through another one; None if a library does."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in objects.PARSERS and name.split(".")[0] not in _PARSERS:
            path = frame.f_code.co_filename
            installed = path.startswith(_STANDARD) or any(part in path for part in _INSTALLED)
            return None if installed or path.startswith("<") or objects.is_library(name) else frame
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _alone():
    _parsing.add(True)
    try:
        yield
    finally:
        _parsing.clear()


def _wrap_argparse(module):
    original = module.ArgumentParser.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self, *args, **kwargs):
        user = None if _parsing else _asked_by(_getframe(1))
        if user is None:
            return original(self, *args, **kwargs)
        with _alone():
            namespace, rest = original(self, *args, **kwargs)
        found = vars(namespace)
        actions = [one for one in _actions_of(self, found, module) if one.dest in found]
        types = {one.dest: _type_name(getattr(one, "type", None), found[one.dest]) for one in actions}
        _offer(found, _argparse_defaults(self, actions, module), types, user)
        return namespace, rest

    module.ArgumentParser.parse_known_args = parse_known_args


def _actions_of(parser, found, module):
    """The actions of a parser and of the chosen ones of its subparsers."""
    for action in parser._actions:
        yield action
        if isinstance(action, module._SubParsersAction):
            chosen = action.choices.get(found.get(action.dest))
            for inner in [chosen] if chosen is not None else action.choices.values():
                yield from _actions_of(inner, found, module)


def _argparse_defaults(parser, actions, module):
    """Name -> default of what need not be given. A default that is text goes through the type, as in argparse. What a
    dataclass is parsed from (`HfArgumentParser`) has its defaults: a YAML file may have taken the parser's place."""
    defaults = {}
    for action in actions:
        value = action.default
        if isinstance(value, str):
            with contextlib.suppress(Exception):  # of a type of the user's own
                value = parser._get_value(action, value)
        if value is not module.SUPPRESS and not (action.required and value is None):
            defaults[action.dest] = value
    for cls in getattr(parser, "dataclass_types", None) or ():
        for field in dataclasses.fields(cls):
            if field.default is not dataclasses.MISSING:
                defaults[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                defaults[field.name] = field.default_factory()
            else:
                defaults.pop(field.name, None)
    return defaults


def _wrap_click(module):
    original = module.Command.parse_args

    @functools.wraps(original)
    def parse_args(self, ctx, *args, **kwargs):
        rest = original(self, ctx, *args, **kwargs)
        user = None if _parsing or ctx.resilient_parsing else _asked_by(_getframe(1))
        if user is not None:
            defaults, types = {}, {}
            for param in self.params:
                if param.name not in ctx.params:
                    continue
                types[param.name] = _type_name(None, ctx.params[param.name])
                with contextlib.suppress(Exception):  # of a type of the user's own
                    value = param.type_cast_value(ctx, param.get_default(ctx))
                    if not (param.required and value is None):
                        defaults[param.name] = value
            _offer(ctx.params, defaults, types, user)
        return rest

    module.Command.parse_args = parse_args


def _type_name(function, value):
    return getattr(function, "__name__", "") or ("" if value is None else type(value).__name__)


def _offer(found, defaults, types, user):
    """Record what a parser has made, and put in the values of the trial.

    Args:
        found: name -> value; changed in place.
        defaults: name -> value without the command line; required settings have none.
        types: name -> name of the type.
        user: the frame that asks.
    """
    index = objects.next_index("script")
    if objects.state.before is not None:
        objects.state.before("script", index)  # a waiting server forks here; only the child comes back
    found_now = {name: value for name, value in found.items() if name in types}
    objects.state.own += found_now.items()
    record.event(
        protocol.ConfigBuilt(
            "script",
            index,
            cls="",
            module="",
            raw={name: values.encode(value, name) for name, value in found_now.items()},
            defaults={name: values.encode(value, name) for name, value in defaults.items()},
            types=types,
            place=(os.path.abspath(user.f_code.co_filename), user.f_lineno),
        )
    )
    for name, value in objects.wanted("script", index).items():
        if name in found:
            found[name] = defaults.get(name) if value == objects.DEFAULT else values.decode(value, found[name])
