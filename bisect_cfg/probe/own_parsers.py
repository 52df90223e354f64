"""Parsers of the command line: what each made of it for the user's own code is offered, with the parser's defaults.

A parser that fills a namespace (argparse, click, absl) has the trial's values put in there. What one builds or calls
(tyro, fire) is given them as fields or arguments, where a name with dots reaches into what is nested.
"""

import contextlib
import inspect
import sys

from .library_objects import field_defaults
from .own_classes import fields_of, has_fields, put
from .own_words import are_settings, offer_keywords, taken
from .sources import asked_by, offer_own, parsing
from .standard_library import _getframe, dataclasses, functools

# ------------------------------------------------------------------------------------------------------------ argparse


def set_defaults(original, self, **given):
    """A script may set what a file says as defaults: those of its flags stay what they were written as."""
    written = vars(self).setdefault("_written_defaults", {})
    for action in self._actions:
        if action.dest in given:
            written.setdefault(action.dest, action.default)
    return original(self, **given)


def parse_known_args(original, self, *args, **kwargs):
    """Answer ``ArgumentParser.parse_known_args``, which all its other ways to parse come to."""
    user = asked_by(_getframe(2))
    if user is None:
        return original(self, *args, **kwargs)
    with parsing():
        namespace, rest = original(self, *args, **kwargs)
    parsed, module = vars(namespace), sys.modules["argparse"]
    actions = [one for one in _actions_of(self, parsed, module) if one.dest in parsed]
    lists = {one.dest: parsed[one.dest] for one in actions if not one.default and are_settings(parsed[one.dest])}
    actions = [one for one in actions if one.dest not in lists]
    found = {one.dest: parsed[one.dest] for one in actions}
    types = {one.dest: getattr(one.type, "__name__", "") or _type_of(parsed[one.dest]) for one in actions}
    flags = {one.dest: list(one.option_strings) for one in actions}
    offer_own(found, _argparse_defaults(self, actions, module), user, parsed.__setitem__, flags, types)
    taken(user, rest, *lists.values())
    return namespace, rest


def _type_of(value):
    return "" if value is None else type(value).__name__


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
        for field in fields:
            defaults.pop(field.name, None)
        defaults.update(field_defaults(fields))
    return defaults


# ------------------------------------------------------------------------------------------------------ click and absl


def parse_args_of_click(original, self, ctx, *args, **kwargs):
    """Answer click's ``Command.parse_args``."""
    rest = original(self, ctx, *args, **kwargs)
    user = None if ctx.resilient_parsing else asked_by(_getframe(2))
    if user is not None:
        params = [one for one in self.params if one.name in ctx.params]
        found = {one.name: ctx.params[one.name] for one in params}
        flags = {one.name: [*one.opts, *one.secondary_opts] for one in params if one.param_type_name == "option"}
        offer_own(found, _click_defaults(params, ctx), user, ctx.params.__setitem__, flags)
        taken(user, rest)  # which a command within takes, or the user's own code as `ctx.args`
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


def parse_flags(original, self, *args, **kwargs):
    """Answer absl's ``FLAGS(argv)``."""
    rest = original(self, *args, **kwargs)
    user = asked_by(_getframe(2), ("absl",))
    if user is not None:
        modules = self.flags_by_module_dict().items()
        flags = {one.name: one for name, group in modules if not name.startswith("absl.") for one in group}
        found = {name: flag.value for name, flag in flags.items()}
        defaults = {name: flag.default for name, flag in flags.items()}
        spelled = {name: [f"--{name}", *([f"--no{name}"] if flag.boolean else [])] for name, flag in flags.items()}
        offer_own(found, defaults, user, lambda name, value: setattr(flags[name], "value", value), spelled)
        taken(user)
    return rest


# ------------------------------------------------------------------------------------- tyro and fire: objects and calls


def tyro_cli(original, target, *args, **kwargs):
    """Answer ``tyro.cli``, of a class or a function."""
    user = asked_by(_getframe(2), ("tyro",))
    if user is None:
        return original(target, *args, **kwargs)
    if inspect.isfunction(target):

        @functools.wraps(target)
        def called(*args, **kwargs):
            args, kwargs = _offer_call(target, args, kwargs, user)
            return target(*args, **kwargs)

        return original(called, *args, **kwargs)
    with parsing():
        found = original(target, *args, **kwargs)
    made, *rest = found if kwargs.get("return_unknown_args") else (found,)
    made = _offer_tree({"": made}, {"": kwargs.get("default")}, user)[""]
    return (made, *rest) if rest else made


def make_parse_function(original, function, *args, **kwargs):
    """Answer fire's function that makes another one, which parses what `function` is called with."""
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
    for name in several & bound.arguments.keys():
        if isinstance(bound.arguments[name], dict):
            offer_keywords(bound.arguments[name], user)
    return bound.args, bound.kwargs


def _offer_tree(found, defaults, user):
    """Offer values by name, those within objects by names with dots, and return them with the trial's put in. The
    fields of an object under the name "" go by their own names."""
    leaves = {".".join(filter(None, path)): (path, *leaf) for path, leaf in _leaves(found, defaults).items()}
    leaves.pop("", None)  # no object
    shown = {name: value for name, (_, value, _) in leaves.items()}
    known = {name: default[0] for name, (*_, default) in leaves.items() if default}
    flags = {name: ["--" + name.replace("_", "-"), "--" + name] for name in shown}
    found = dict(found)
    if shown:
        offer_own(shown, known, user, lambda name, value: put(found, leaves[name][0], value), flags)
    taken(user)
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
