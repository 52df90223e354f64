"""Parsers of the command line: what each made of it for the user's own code is offered, with the parser's defaults.

A parser that fills a namespace (argparse, click, absl) has the trial's values put in there. What one builds or calls
(tyro, fire) is given them as fields or arguments, where a name with dots reaches into what is nested.
"""

import contextlib
import inspect
import sys

from .imports import when_imported
from .library_objects import field_defaults
from .own_classes import fields_of, has_fields, replaced
from .own_offers import alone, asked_by, offer, type_name
from .standard_library import _getframe, dataclasses, functools
from .wrap import around

# click, and the copy of it that typer has.
_CLICK = ("click.core", "typer._click.core")


def install():
    """Wait for the parsers and wrap them as they come."""
    when_imported("argparse", _wrap_argparse)
    for name in _CLICK:
        when_imported(name, lambda module: around(module.Command, "parse_args", _parse_args))
    when_imported("tyro._cli", lambda module: around(module, "cli", _tyro_cli))
    when_imported("fire.core", lambda module: around(module, "_MakeParseFn", _make_parse_function))
    when_imported("absl.flags._flagvalues", lambda module: around(module.FlagValues, "__call__", _parse_flags))


# ------------------------------------------------------------------------------------------------------------ argparse


def _wrap_argparse(module):
    around(module.ArgumentParser, "parse_known_args", _parse_known_args)
    around(module.ArgumentParser, "set_defaults", _set_defaults)


def _set_defaults(original, self, **given):
    """A script may set what a file says as defaults: those of its flags stay what they were written as."""
    written = vars(self).setdefault("_written_defaults", {})
    for action in self._actions:
        if action.dest in given:
            written.setdefault(action.dest, action.default)
    return original(self, **given)


def _parse_known_args(original, self, *args, **kwargs):
    user = asked_by(_getframe(2))
    if user is None:
        return original(self, *args, **kwargs)
    with alone():
        namespace, rest = original(self, *args, **kwargs)
    found, module = vars(namespace), sys.modules["argparse"]
    actions = [one for one in _actions_of(self, found, module) if one.dest in found]
    types = {one.dest: type_name(getattr(one, "type", None), found[one.dest]) for one in actions}
    flags = {one.dest: list(one.option_strings) for one in actions}
    offer(found, _argparse_defaults(self, actions, module), types, user, found.__setitem__, flags=flags)
    return namespace, rest


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
        value = getattr(parser, "_written_defaults", {}).get(action.dest, action.default)
        if isinstance(value, str):
            with contextlib.suppress(Exception):  # of a type of the user's own
                value = parser._get_value(action, value)
        if value is not module.SUPPRESS and not (action.required and value is None):
            defaults[action.dest] = value
    for cls in getattr(parser, "dataclass_types", None) or ():
        fields = dataclasses.fields(cls)
        defaults = {name: value for name, value in defaults.items() if name not in {field.name for field in fields}}
        defaults.update(field_defaults(fields))
    return defaults


# --------------------------------------------------------------------------------------------------------------- click


def _parse_args(original, self, ctx, *args, **kwargs):
    rest = original(self, ctx, *args, **kwargs)
    user = None if ctx.resilient_parsing else asked_by(_getframe(2))
    if user is not None:
        params = [one for one in self.params if one.name in ctx.params]
        types = {one.name: type_name(None, ctx.params[one.name]) for one in params}
        flags = {one.name: [*one.opts, *one.secondary_opts] for one in params if one.param_type_name == "option"}
        offer(ctx.params, _click_defaults(params, ctx), types, user, ctx.params.__setitem__, flags=flags)
    return rest


def _click_defaults(params, ctx):
    """Name -> default of what need not be given."""
    defaults = {}
    for param in params:
        with contextlib.suppress(Exception):  # of a type of the user's own
            value = param.get_default(ctx)
            nothing = value is None or type(value).__name__ == "Sentinel"  # click's own, since 8.2
            if not (param.required and nothing):
                cast = getattr(param, "type_cast_value", lambda ctx, value: value)  # typer's has none
                defaults[param.name] = None if nothing else cast(ctx, value)
    return defaults


# ---------------------------------------------------------------------------------------------------------------- absl


def _parse_flags(original, self, *args, **kwargs):
    rest = original(self, *args, **kwargs)
    user = asked_by(_getframe(2), ("absl",))
    if user is not None:
        modules = self.flags_by_module_dict().items()
        flags = {one.name: one for name, group in modules if not name.startswith("absl.") for one in group}
        found = {name: flag.value for name, flag in flags.items()}
        defaults = {name: flag.default for name, flag in flags.items()}

        def put(name, value):
            flags[name].value = value

        spelled = {
            name: [f"--{name}", f"--no{name}"] if flag.boolean else [f"--{name}"] for name, flag in flags.items()
        }
        offer(
            found, defaults, {name: type_name(None, value) for name, value in found.items()}, user, put, flags=spelled
        )
    return rest


# ------------------------------------------------------------------------------------- tyro and fire: objects and calls


def _tyro_cli(original, target, *args, **kwargs):
    user = asked_by(_getframe(2), ("tyro",))
    if user is None:
        return original(target, *args, **kwargs)
    if inspect.isfunction(target):

        @functools.wraps(target)
        def called(*args, **kwargs):
            args, kwargs = _offer_call(target, args, kwargs, user)
            return target(*args, **kwargs)

        return original(called, *args, **kwargs)
    with alone():
        found = original(target, *args, **kwargs)
    made, *rest = found if kwargs.get("return_unknown_args") else (found,)
    made = _offer_object(made, kwargs.get("default"), user)
    return (made, *rest) if rest else made


def _make_parse_function(original, function, *args, **kwargs):
    parse, user = original(function, *args, **kwargs), asked_by(_getframe(2), ("fire",))

    def parse_and_offer(*args):
        (positional, keywords), *rest = parse(*args)
        return _offer_call(function, positional, keywords, user), *rest

    return parse if user is None else parse_and_offer


def _offer_call(function, args, kwargs, user):
    """Offer the arguments of a call, and return those of the trial."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    parameters = bound.signature.parameters.values()
    several = {one.name for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    found = {name: value for name, value in bound.arguments.items() if name not in several}
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    bound.arguments.update(_offer_tree(found, defaults, user))
    return bound.args, bound.kwargs


def _offer_object(made, default, user):
    """Offer the fields of an object, and return one that has the trial's values."""
    if not has_fields(type(made)):
        return made
    keys = fields_of(type(made))
    found = {key: getattr(made, key) for key in keys}
    defaults = {key: value for key, (known, value, _) in keys.items() if known}
    if type(default) is type(made):
        defaults = {key: getattr(default, key) for key in keys}
    now = _offer_tree(found, defaults, user)
    return replaced(made, {key: value for key, value in now.items() if value is not found[key]})


def _offer_tree(found, defaults, user):
    """Offer values by name, those of nested objects by names with dots, and return them with the trial's put in."""
    leaves, known = _leaves(found, defaults), {}
    for path, (_, default) in leaves.items():
        if default:
            known[".".join(path)] = default[0]
    shown = {".".join(path): value for path, (value, _) in leaves.items()}
    types = {name: type_name(None, value) for name, value in shown.items()}
    flags = {name: ["--" + name.replace("_", "-"), "--" + name] for name in shown}

    def put(name, value):
        _put(found, name.split("."), value)

    found = dict(found)
    offer(shown, known, types, user, put, flags=flags)
    return found


def _leaves(found, defaults, before=()):
    """Path -> value and, if there is one, its default in a tuple."""
    leaves = {}
    for key, value in found.items():
        if has_fields(type(value)):
            fields, whole = fields_of(type(value)), defaults.get(key)
            inner = {name: default for name, (known, default, _) in fields.items() if known}
            if type(whole) is type(value):
                inner = {name: getattr(whole, name) for name in fields}
            leaves.update(_leaves({name: getattr(value, name) for name in fields}, inner, (*before, key)))
        else:
            leaves[(*before, key)] = value, (defaults[key],) if key in defaults else ()
    return leaves


def _put(found, keys, value):
    """Put a value into a dictionary of objects, which are built anew for it."""
    if len(keys) == 1:
        found[keys[0]] = value
    else:
        thing, fields = found[keys[0]], {}
        fields[keys[1]] = getattr(thing, keys[1])
        _put(fields, keys[1:], value)
        found[keys[0]] = replaced(thing, fields)
