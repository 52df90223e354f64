"""Settings of the script's own: what a parser made of the command line, offered like a configuration object.

What hands settings to the user's own code is offered when that asks for them:

==================================================  ======  ==================================================
what                                                kind    default
==================================================  ======  ==================================================
``ArgumentParser``, also under `HfArgumentParser`,  script  of the parser, of the dataclass
`TrlParser`, simple-parsing, jsonargparse
a click command, also under typer                   script  of the option
Hydra's composed config                             script  composed without the overrides
YAML, JSON, TOML that the script loads              script  none: only the user knows a good value
a variable of the environment                       env     unset
==================================================  ======  ==================================================

It is recorded (`config` event), a waiting server forks there, and the values of a trial are put in before the script
sees any. Values that the script hands on to a configuration object of a library are that object's (see
`objects.handed_on`).
"""

import contextlib
import sys

from . import objects, protocol, record, values
from .held import _getframe, dataclasses, functools, os, re
from .imports import when_imported

# Modules of parsers: whoever calls them is the one who asks.
_PARSERS = ("argparse", "click", "typer", "rich_click", "simple_parsing", "jsonargparse", "tap")

# Functions that read a file of settings, by module. (`json.loads` reads the rows of datasets.)
_LOADERS = {"yaml": ("load", "safe_load", "full_load", "unsafe_load"), "json": ("load",), "tomllib": ("load",)}

# So many files of so many settings are looked at: whatever else a script loads is data.
_MOST_FILES, _MOST_SETTINGS = 8, 300

# click, and the copy of it that typer has.
_CLICK = ("click.core", "typer._click.core")

_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")

# Variables that say where and with what a process runs: scripts read many, and none of them is a setting.
_OF_THE_MACHINE = re.compile(
    r"(?:PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|LANG|TERM|HOSTNAME|DISPLAY|EDITOR|PS1|SHLVL|_|RANK|TZ|VIRTUAL_ENV)$|PYTHON"
    r"|(?:LC|XDG|SSH|LOCAL|GROUP|ROLE|WORLD|MASTER|NODE|SLURM|OMPI|PMI|PMIX|TORCHELASTIC|ACCELERATE|FSDP|BISECT_CFG|CONDA"
    r"|UV|CUDA|NVIDIA|HIP|ROCR|OMP|MKL|OPENBLAS|PYTEST|GITHUB|JPY|KERNEL|WANDB|HF|HUGGINGFACE)_"
)

# Modules whose frames lie between whoever asks and the environment.
_MAPPING = ("os", "collections", "_collections_abc")

_reading = {"left": {}, "all": None}  # name -> value of what nobody has read yet; where all are read at once

_parsing = set()  # not empty while a parser is at work; what it asks other parsers is its own business


def install():
    """Wait for the parsers and wrap them as they come."""
    when_imported("argparse", _wrap_argparse)
    for name in _CLICK:
        when_imported(name, _wrap_click)
    for name in _LOADERS:
        when_imported(name, _wrap_loaders)
    when_imported("omegaconf.omegaconf", _wrap_omegaconf)
    when_imported("hydra._internal.hydra", _wrap_hydra)
    _wrap_environment(type(os.environ))


def _asked_by(frame, between=_PARSERS):
    """The frame of the user's own code that uses a parser, directly or through another one; None if a library does.
    `between`: packages whose frames are passed over."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in objects.PARSERS and name.split(".")[0] not in between:
            path = frame.f_code.co_filename
            installed = path.startswith(_STANDARD) or any(part in path for part in _INSTALLED)
            ours = name.startswith("_bisect_cfg_probe")
            return None if installed or ours or path.startswith("<") or objects.is_library(name) else frame
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
        _offer(found, _argparse_defaults(self, actions, module), types, user, found.__setitem__)
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
            params = [one for one in self.params if one.name in ctx.params]
            types = {one.name: _type_name(None, ctx.params[one.name]) for one in params}
            defaults = {}
            for param in params:
                with contextlib.suppress(Exception):  # of a type of the user's own
                    value = param.get_default(ctx)
                    nothing = value is None or type(value).__name__ == "Sentinel"  # click's own, since 8.2
                    if not (param.required and nothing):
                        cast = getattr(param, "type_cast_value", lambda ctx, value: value)  # typer's has none
                        defaults[param.name] = None if nothing else cast(ctx, value)
            _offer(ctx.params, defaults, types, user, ctx.params.__setitem__)
        return rest

    module.Command.parse_args = parse_args


def _wrap_environment(cls):
    """Have the user's own code read the variables of the trial. One that the script has set itself is no setting."""
    original, iterate = cls.__getitem__, cls.__iter__
    _reading["left"] = {name: text for name, text in os.environ.items() if not _OF_THE_MACHINE.match(name)}

    def __getitem__(self, name):
        value = original(self, name)
        if name not in _reading["left"]:
            return value
        user = _asked_by(_getframe(1), _MAPPING)
        if user is None or (user, user.f_lasti) == _reading["all"]:
            return value
        if _reading["left"].pop(name) == value:

            def put(name, value):
                if value is None:
                    del self[name]
                else:
                    self[name] = value

            _offer({name: value}, {name: None}, {name: "str"}, user, put, "env")
        return original(self, name)

    def __iter__(self):  # `dict(os.environ)` reads all of them for whatever comes after
        user = _asked_by(_getframe(1), _MAPPING)
        _reading["all"] = user and (user, user.f_lasti)
        return iterate(self)

    cls.__getitem__, cls.__iter__ = __getitem__, __iter__


# ---------------------------------------------------------------------------------------------- files of settings

_files = set()  # those that were offered


def _wrap_loaders(module):
    for name in _LOADERS[module.__name__]:
        setattr(module, name, _loading(getattr(module, name)))


def _loading(original):
    @functools.wraps(original)
    def load(*args, **kwargs):
        found = original(*args, **kwargs)
        user = None if _parsing or len(_files) >= _MOST_FILES else _asked_by(_getframe(1), ())
        if user is not None and isinstance(found, dict):
            _files.add(id(found))
            _offer_leaves(found, {}, user, lambda name, value: _put(found, name.split("."), value))
        return found

    return load


def _put(tree, keys, value):
    for key in keys[:-1]:
        tree = tree[key]
    tree[keys[-1]] = value


def _leaves(tree, before=()):
    """Dotted name -> value, of a dictionary of dictionaries whose keys are plain names."""
    found = {}
    for key, value in tree.items():
        if not isinstance(key, str) or "." in key:
            continue
        if isinstance(value, dict):
            found.update(_leaves(value, (*before, key)))
        else:
            found[".".join((*before, key))] = value
    return found


def _offer_leaves(tree, defaults, user, put):
    found = _leaves(tree)
    if len(found) <= _MOST_SETTINGS:
        _offer(found, defaults, {name: _type_name(None, value) for name, value in found.items()}, user, put)


def _plain(module, config):
    """A config of OmegaConf as dictionaries, without what it takes from elsewhere."""
    found = module.OmegaConf.to_container(config)
    return found if isinstance(found, dict) else {}


def _put_into(module, config):
    def put(name, value):
        with module.flag_override(config, ["struct", "readonly"], False):
            module.OmegaConf.update(config, name, value)

    return put


def _wrap_omegaconf(module):
    original = module.OmegaConf.load

    @functools.wraps(original)
    def load(*args, **kwargs):
        with _alone():
            config = original(*args, **kwargs)
        user = _asked_by(_getframe(1), ())
        if user is not None:
            _offer_leaves(_plain(module, config), {}, user, _put_into(module, config))
        return config

    module.OmegaConf.load = staticmethod(load)


def _wrap_hydra(module):
    original = module.Hydra.compose_config

    @functools.wraps(original)
    def compose_config(self, *args, **kwargs):
        config = original(self, *args, **kwargs)
        if _getframe(1).f_code is not module.Hydra.run.__code__:
            return config  # it only looks what mode it is in
        conf, before = sys.modules["omegaconf.omegaconf"], {}
        with contextlib.suppress(Exception):  # one that cannot be composed without them has no defaults
            before = _plain(conf, original(self, **{**kwargs, "overrides": [], "with_log_configuration": False}))
        now = {name: value for name, value in _plain(conf, config).items() if name != "hydra"}
        user = _asked_by(_getframe(1), ("hydra",)) or _getframe(1)
        _offer_leaves(now, _leaves(before), user, _put_into(conf, config))
        return config

    module.Hydra.compose_config = compose_config


def _type_name(function, value):
    return getattr(function, "__name__", "") or ("" if value is None else type(value).__name__)


def _offer(found, defaults, types, user, put, kind="script"):
    """Record what a parser has made, and put in the values of the trial.

    Args:
        found: name -> value.
        defaults: name -> value without the command line; required settings have none.
        types: name -> name of the type.
        user: the frame that asks.
        put: sets a value, by name.
        kind: of setting.
    """
    index = objects.next_index(kind)
    if objects.state.before is not None:
        objects.state.before(kind, index)  # a waiting server forks here; only the child comes back
    found_now = {name: value for name, value in found.items() if name in types}
    objects.state.own += found_now.items()
    record.event(
        protocol.ConfigBuilt(
            kind,
            index,
            cls="",
            module="",
            raw={name: values.encode(value, name) for name, value in found_now.items()},
            defaults={name: values.encode(value, name) for name, value in defaults.items()},
            types=types,
            place=(os.path.abspath(user.f_code.co_filename), user.f_lineno),
        )
    )
    for name, value in objects.wanted(kind, index).items():
        if name not in found:
            continue
        if name in defaults and value == values.encode(defaults[name], name):
            put(name, defaults[name])  # the very object: an enum, say, of which JSON has but the name
        elif value != objects.DEFAULT:
            put(name, values.decode(value, found[name]))
