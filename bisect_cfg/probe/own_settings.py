"""Settings of the script's own: what a parser made of the command line, offered like a configuration object.

What hands settings to the user's own code is offered (`sources.offer`) when that asks for them:

==================================================  ======  ==================================================
what                                                kind    default
==================================================  ======  ==================================================
``ArgumentParser``, also under `HfArgumentParser`,  script  of the parser, of the dataclass
`TrlParser`, simple-parsing, jsonargparse
a click command, also under typer                   script  of the option
Hydra's composed config                             script  composed without the overrides
YAML, JSON, TOML that the script loads              script  of the class that it fills (`own_classes`), if any
a variable of the environment                       env     unset
==================================================  ======  ==================================================

The values of a trial are put in before the script sees any. Values that the script hands on to a configuration object
of a library are that object's (see `sources.handed_on`).
"""

import contextlib
import sys

from . import own_classes, protocol, record, sources, values, wrap
from .imports import when_imported
from .library_objects import field_defaults
from .standard_library import _getframe, dataclasses, os, re

# Modules of parsers: whoever calls them is the one who asks.
_PARSERS = ("argparse", "click", "typer", "rich_click", "simple_parsing", "jsonargparse", "tap")

# Functions that read a file of settings, by module. (`json.loads` reads the rows of datasets.)
_LOADERS = {"yaml": ("load", "safe_load", "full_load", "unsafe_load"), "json": ("load",), "tomllib": ("load",)}

# So many files of so many settings are looked at: whatever else a script loads is data.
_MOST_FILES, _MOST_SETTINGS = 8, 300

# click, and the copy of it that typer has.
_CLICK = ("click.core", "typer._click.core")

# Variables that say where and with what a process runs: scripts read many, and none of them is a setting.
_OF_THE_MACHINE = re.compile(
    r"(?:PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|LANG|TERM|HOSTNAME|DISPLAY|EDITOR|PS1|SHLVL|_|RANK|TZ|VIRTUAL_ENV)$|PYTHON"
    r"|(?:LC|XDG|SSH|LOCAL|GROUP|ROLE|WORLD|MASTER|NODE|SLURM|OMPI|PMI|PMIX|TORCHELASTIC|ACCELERATE|FSDP|BISECT_CFG|CONDA"
    r"|UV|CUDA|NVIDIA|HIP|ROCR|OMP|MKL|OPENBLAS|PYTEST|GITHUB|JPY|KERNEL|WANDB|HF|HUGGINGFACE)_"
)

# Modules whose frames lie between whoever asks and the environment.
_MAPPING = ("os", "collections", "_collections_abc")


class _State:
    """One per process."""

    parsing = False  # while a parser is at work: what it asks other parsers is its own business
    unread: dict = {}  # variables that nobody has read yet: name -> value
    reads_all = None  # (frame, instruction) that reads all variables at once, for whatever comes after


_state = _State()


def install():
    """Wait for the parsers and wrap them as they come."""
    when_imported("argparse", lambda module: wrap.around(module.ArgumentParser, "parse_known_args", _parse_known_args))
    for name in _CLICK:
        when_imported(name, lambda module: wrap.around(module.Command, "parse_args", _parse_args))
    for name in _LOADERS:
        when_imported(name, _wrap_loaders)
    when_imported("omegaconf.omegaconf", lambda module: wrap.around(module.OmegaConf, "load", _load_omegaconf))
    when_imported("hydra._internal.hydra", lambda module: wrap.around(module.Hydra, "compose_config", _compose_config))
    when_imported("pydantic_settings.main", lambda module: wrap.around(module.BaseSettings, "__init__", _fill_settings))
    own_classes.install()
    _state.unread = {name: text for name, text in os.environ.items() if not _OF_THE_MACHINE.match(name)}
    wrap.around(type(os.environ), "__getitem__", _read_variable)
    wrap.around(type(os.environ), "__iter__", _read_all_variables)
    wrap.around(type(os.environ), "__setitem__", _set_variable)


def _asked_by(frame, between=_PARSERS):
    """The frame of the user's own code that asks for settings, directly or through modules of these packages; None if
    it is not the user's code that does."""
    while frame is not None and (
        wrap.owner_of(frame) == wrap.PARSER or frame.f_globals.get("__name__", "").split(".")[0] in between
    ):
        frame = frame.f_back
    return frame if frame is not None and wrap.owner_of(frame) == wrap.USER else None


@contextlib.contextmanager
def _alone():
    _state.parsing = True
    try:
        yield
    finally:
        _state.parsing = False


def _offer(found, defaults, types, user, put, kind="script", **details):
    """Offer what a parser has made, and put in the values of the trial.

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


def _type_name(function, value):
    return getattr(function, "__name__", "") or ("" if value is None else type(value).__name__)


# --------------------------------------------------------------------------------------------------- command lines


def _parse_known_args(original, self, *args, **kwargs):
    user = None if _state.parsing else _asked_by(_getframe(2))
    if user is None:
        return original(self, *args, **kwargs)
    with _alone():
        namespace, rest = original(self, *args, **kwargs)
    found, module = vars(namespace), sys.modules["argparse"]
    actions = [one for one in _actions_of(self, found, module) if one.dest in found]
    types = {one.dest: _type_name(getattr(one, "type", None), found[one.dest]) for one in actions}
    flags = {one.dest: list(one.option_strings) for one in actions}
    _offer(found, _argparse_defaults(self, actions, module), types, user, found.__setitem__, flags=flags)
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
        value = action.default
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


def _parse_args(original, self, ctx, *args, **kwargs):
    rest = original(self, ctx, *args, **kwargs)
    user = None if _state.parsing or ctx.resilient_parsing else _asked_by(_getframe(2))
    if user is not None:
        params = [one for one in self.params if one.name in ctx.params]
        types = {one.name: _type_name(None, ctx.params[one.name]) for one in params}
        flags = {one.name: [*one.opts, *one.secondary_opts] for one in params if one.param_type_name == "option"}
        _offer(ctx.params, _click_defaults(params, ctx), types, user, ctx.params.__setitem__, flags=flags)
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


# ------------------------------------------------------------------------------------------- the environment, files


def _read_variable(original, self, name):
    """Have the user's own code read the variables of the trial. One that the script has set itself is no setting."""
    value = original(self, name)
    if name not in _state.unread:
        return value
    user = _asked_by(_getframe(2), _MAPPING)
    if user is None or (user, user.f_lasti) == _state.reads_all:
        return value
    _offer_variable(name, value, user)
    return original(self, name)


def _offer_variable(name, value, user):
    """Offer a variable that is read for the first time, if it is as the user has it."""
    if _state.unread.pop(name) == value:

        def put(name, value):
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

        _offer({name: value}, {name: None}, {name: "str"}, user, put, "env")


def _fill_settings(original, self, *args, **kwargs):
    """A model that fills its fields from variables of the environment."""
    user, config = _asked_by(_getframe(2), ("pydantic_settings",)), type(self).model_config
    if user is not None:
        prefix, inner = config.get("env_prefix") or "", config.get("env_nested_delimiter")
        fields = [name for key, field in type(self).model_fields.items()
                  for name in own_classes.aliases_of(field) or [prefix + key]]  # fmt: skip
        wanted = {name.lower() for name in fields}
        for name in list(_state.unread):
            if name.lower() in wanted or (inner and name.lower().partition(inner.lower())[0] in wanted):
                _offer_variable(name, os.environ.get(name), user)
    return original(self, *args, **kwargs)


def _read_all_variables(original, self):
    user = _asked_by(_getframe(2), _MAPPING)
    _state.reads_all = user and (user, user.f_lasti)
    return original(self)


def _set_variable(original, self, name, value):
    """What a parser puts there for the user (`env` in a YAML file of `TrlParser`) is as if it had been there."""
    original(self, name, value)
    if wrap.owner_of(_getframe(2)) == wrap.PARSER and not _OF_THE_MACHINE.match(name):
        _state.unread[name] = value


def _wrap_loaders(module):
    for name in _LOADERS[module.__name__]:
        wrap.around(module, name, _load)


def _load(original, *args, **kwargs):
    found = original(*args, **kwargs)
    user = None if _state.parsing or len(own_classes.state.files) >= _MOST_FILES else _asked_by(_getframe(2), ())
    if user is not None and isinstance(found, dict):
        own_classes.state.files.append(found)
        _offer_leaves(found, {}, user, lambda name, value: _put(found, name.split("."), value))
    return found


def _put(tree, keys, value):
    for key in keys[:-1]:
        tree = tree[key]
    tree[keys[-1]] = value


def _leaves(tree):
    """Dotted name -> value, of a dictionary of dictionaries whose keys are plain names."""
    nodes = own_classes.nodes_of(tree)
    return {".".join(path): value for path, value in nodes.items() if not isinstance(value, dict)}


def _offer_leaves(tree, defaults, user, put):
    found = _leaves(tree)
    if len(found) <= _MOST_SETTINGS:
        _offer(found, defaults, {name: _type_name(None, value) for name, value in found.items()}, user, put)


# ------------------------------------------------------------------------------------------------------------ Hydra


def _load_omegaconf(original, *args, **kwargs):
    with _alone():
        config = original(*args, **kwargs)
    user = _asked_by(_getframe(2), ())
    if user is not None:
        own_classes.state.files.append(found := _plain(config))
        _offer_leaves(found, {}, user, _putting_into(config))
    return config


def _plain(config):
    """A config of OmegaConf as dictionaries, without what it takes from elsewhere."""
    found = sys.modules["omegaconf.omegaconf"].OmegaConf.to_container(config)
    return found if isinstance(found, dict) else {}


def _putting_into(config):
    module = sys.modules["omegaconf.omegaconf"]

    def put(name, value):
        with module.flag_override(config, ["struct", "readonly"], False):
            module.OmegaConf.update(config, name, value)

    return put


def _compose_config(original, self, *args, **kwargs):
    config = original(self, *args, **kwargs)
    caller, before = _getframe(2), {}
    if caller.f_code is not sys.modules["hydra._internal.hydra"].Hydra.run.__code__:
        return config  # it only looks what mode it is in
    with contextlib.suppress(Exception):  # one that cannot be composed without them has no defaults
        before = _plain(original(self, **{**kwargs, "overrides": [], "with_log_configuration": False}))
    now = {name: value for name, value in _plain(config).items() if name != "hydra"}
    _offer_leaves(now, _leaves(before), _asked_by(caller, ("hydra",)) or caller, _putting_into(config))
    return config
