"""Where the libraries' configuration objects are built: record what the user set, put in what the trial asks for.

A configuration class is wrapped at ``__post_init__`` of the outermost *library* class: at that moment every field
holds what the user passed (in Python, through a parser, or in ``__post_init__`` of a class of the user's own), and
nothing has been resolved yet. The raw values are offered beside the defaults of the library class (`sources.offer`),
the values of the trial are put in, reporters, hub and checkpoints are taken off (`side_effects`), and the library
resolves and checks.

=============  ==========================================  =====================================================
kind           built by                                    names
=============  ==========================================  =====================================================
``args``       ``TrainingArguments`` and subclasses        ``args.learning_rate``
``modelcfg``   ``trl.ModelConfig``                         ``model.lora_r``
``peft``       ``peft.LoraConfig`` (by the user)           ``peft.r``
``load``       ``from_pretrained`` of a model              ``model.dtype``, ``model.attn_implementation``
=============  ==========================================  =====================================================
"""

import contextlib
import sys

from . import protocol, record, redact, side_effects, sources, values, wrap
from .imports import when_imported
from .standard_library import _getframe, dataclasses, re

# Settings of `from_pretrained` that are captured, old name -> today's name.
_LOAD_NAMES = {"dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn_implementation"}

# The first transformers whose `from_pretrained` knows `dtype`; an older one hands it on to the model, which refuses it.
_KNOWS_DTYPE = (4, 56)

# Where the training configs are defined of trainers that learn from what their model samples.
_SAMPLING = {"trl.trainer.grpo_config": "GRPOConfig", "trl.trainer.rloo_config": "RLOOConfig"}

_active: set = set()  # ids of the objects that are being resolved
_settled: dict = {}  # id of a resolved training config -> (index, overrides, defaults)
_values: dict = {}  # index of a training config -> field -> its value, encoded, as far as the hooks know


def install():
    """Wait for the libraries and wrap them as they come."""
    when_imported("transformers.training_args", _wrap_training_arguments)
    when_imported("transformers.trainer", _wrap_trainer)
    when_imported("trl.trainer.model_config", lambda module: _wrap_post_init(module.ModelConfig, "modelcfg"))
    when_imported("peft.tuners.lora.config", lambda module: _wrap_post_init(module.LoraConfig, "peft"))
    wrap.in_module("transformers.modeling_utils", "PreTrainedModel.from_pretrained", _load)
    wrap.in_module("transformers.models.auto.auto_factory", "_BaseAutoModelClass.from_pretrained", _load)


# ------------------------------------------------------------------------------------------ objects that are built


def _wrap_training_arguments(module):
    base = module.TrainingArguments
    _wrap_post_init(base, "args")

    # Subclasses (TRL's configs) bring their own __post_init__, which changes fields before the base class sees them;
    # each is wrapped as it is defined. A class of the user's own is left alone: what it sets is what the user set.
    def __init_subclass__(cls, /, **kwargs):
        super(base, cls).__init_subclass__(**kwargs)
        if "__post_init__" in cls.__dict__ and wrap.is_library(cls.__module__):
            _wrap_post_init(cls, "args")

    base.__init_subclass__ = classmethod(__init_subclass__)
    wrap.around(base, "__setattr__", _assign)


def _wrap_post_init(cls, kind):
    def post_init(original, self, *args, **kwargs):
        if id(self) in _active:  # an outer class of the same object is already being handled
            return original(self, *args, **kwargs)
        with unwatched(self):
            _build(self, kind, lambda: original(self, *args, **kwargs))

    def init(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        _build(self, kind, lambda: None)

    if hasattr(cls, "__post_init__"):
        wrap.around(cls, "__post_init__", post_init)
    else:
        wrap.around(cls, "__init__", init)


@contextlib.contextmanager
def unwatched(thing):
    """Let an object be resolved without our hook."""
    _active.add(id(thing))
    try:
        yield
    finally:
        _active.discard(id(thing))


def _build(thing, kind, resolve):
    if kind == "peft" and not _asked_by_user():
        return resolve()
    cls = type(thing)
    names = [field.name for field in dataclasses.fields(cls) if field.init and hasattr(thing, field.name)]
    raw = {name: getattr(thing, name) for name in names}
    defaults, library = defaults_of(cls), _library_class(cls)
    index, wanted = sources.offer(
        kind,
        raw,
        defaults,
        {field.name: str(field.type) for field in dataclasses.fields(cls) if field.init},
        sources.users_line(),
        cls=library.__name__,
        module=library.__module__,
        grpo=is_grpo(cls),
        handed=sources.handed_on(raw),
    )
    apply(thing, wanted, defaults)
    if kind == "args":
        side_effects.silence(thing, _prepares(cls, index))
    try:
        resolve()
    except BaseException as error:
        record.event(protocol.ConfigInvalid(type(error).__name__, redact.scrub(str(error))))
        raise
    sources.state.objects.append((kind, index, thing))
    found = {name: values.encode(getattr(thing, name, None), name) for name in names}
    if kind == "args":
        _settled[id(thing)] = (index, wanted, defaults)
        _values[index] = dict(found)
    record.event(protocol.ConfigResolved(kind, index, found, max(1, getattr(thing, "_n_gpu", 1))))
    if sources.state.after is not None:
        sources.state.after(kind, thing)


def _asked_by_user():
    """Whether an object comes from the user's code or from a parser, not from inside a library."""
    frame = wrap.outward(_getframe(1), wrap.PROBE, wrap.GENERATED)
    return frame is None or wrap.owner_of(frame) != wrap.LIBRARY


def _prepares(cls, index):
    """Whether a training config is that of a training that comes before the one under study, as far as can be told."""
    if record.folder() is None:  # in a server, which forks before the one that a trial may change
        return True
    target = sources.state.targets.objects.get("args")
    return index != target if target is not None else only_prepares(cls)


def only_prepares(cls):
    """Whether a script that trains on samples of its model only prepares that with a training config of this class."""
    samples = any(base.__name__ in _SAMPLING.values() for base in cls.__mro__)
    return not samples and any(module in sys.modules for module in _SAMPLING)


def is_grpo(cls):
    """Whether a training config is one of GRPO: TRL's variants of it and a user's class inherit from its own."""
    return any(base.__name__ == "GRPOConfig" for base in cls.__mro__)


def _library_class(cls):
    """The nearest class of a library: its defaults are "the defaults", whatever a subclass of the user's says."""
    for candidate in cls.__mro__:
        if dataclasses.is_dataclass(candidate) and wrap.is_library(candidate.__module__):
            return candidate
    return cls


def defaults_of(cls):
    """Return field name -> raw default, for the fields that a caller can pass and that have a default.

    Fields that a class of the user's adds have the user's defaults; those of the library keep the library's.
    """
    of_library = {field.name: field for field in dataclasses.fields(_library_class(cls))}
    all_of_them = {**{field.name: field for field in dataclasses.fields(cls)}, **of_library}
    return field_defaults(field for field in all_of_them.values() if field.init)


def field_defaults(fields):
    """Return name -> default, of the fields of a dataclass that have one."""
    found = {}
    for field in fields:
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def takes_dict(cls, name):
    """Whether a field accepts a dictionary, by its annotation."""
    return any(field.name == name and "dict" in str(field.type).lower() for field in dataclasses.fields(cls))


def apply(thing, wanted, defaults):
    """Set the fields of a configuration object; dotted names reach into fields that hold a dictionary.

    Args:
        thing: the object.
        wanted: name -> encoded value.
        defaults: field -> raw default.
    """
    nested: dict = {}
    for name, value in wanted.items():
        field, _, key = name.partition(".")
        if key:
            nested.setdefault(field, {})[key] = value
        elif value != sources.DEFAULT:
            setattr(thing, field, values.decode(value, getattr(thing, field, None)))
        elif field in defaults:
            setattr(thing, field, defaults[field])
    for field, items in nested.items():
        before = getattr(thing, field, None)
        current, default = values.parsed_dict(before), values.parsed_dict(defaults.get(field))
        for key, value in items.items():
            if value != sources.DEFAULT:
                current[key] = values.decode(value, current.get(key))
            elif key in default:
                current[key] = default[key]
            else:
                current.pop(key, None)
        setattr(thing, field, values.as_passed(current, before) if current else defaults.get(field))


# --------------------------------------------------------------------------------- what becomes of a training config


def _assign(original, self, name, value):
    """``training_args.learning_rate = ...``, of the finished object, is a setting like any other: it is recorded, and
    passed over where the trial asks for another value, or where it would send output elsewhere."""
    index, chosen, defaults = _settled.get(id(self), (None, {}, {}))
    if name not in defaults:
        return original(self, name, value)
    if _is_assigned_by_user(_getframe(2)):
        record.event(protocol.Assigned("args", index, name, values.encode(value, name)))
        if name in chosen or side_effects.redirects(name):
            return None
        original(self, name, value)
        apply(self, {key: item for key, item in chosen.items() if key.startswith(name + ".")}, defaults)
        value = getattr(self, name, None)
    else:
        original(self, name, value)
    _values[index][name] = values.encode(value, name)
    return None


def _is_assigned_by_user(frame):
    """Whether an assignment is made in the user's code, or in a method of the library whose purpose it is
    (``training_args.set_optimizer(...)``) and that they call."""
    while frame.f_code.co_name.startswith("set_") and wrap.is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return wrap.owner_of(frame) != wrap.PROBE and not wrap.is_library(frame.f_globals.get("__name__", ""))


def _wrap_trainer(module):
    """Before a trainer's constructor does anything, look at the training config that it is given.

    ``args.model_init_kwargs["dtype"] = ...`` and ``vars(args).update(...)`` pass all the hooks above: what has changed
    since the object was built is recorded. A trial cannot set it, and the tool says so.
    """
    base = module.Trainer

    def __new__(cls, *args, **kwargs):
        arguments = sys.modules.get("transformers.training_args")
        for given in (*args, *kwargs.values()):
            if arguments is not None and isinstance(given, arguments.TrainingArguments):
                index = sources.object_index("args", given)
                _note_changes(given, index)
                record.event(protocol.TrainerBuilt(index))
        return super(base, cls).__new__(cls)

    base.__new__ = __new__


def _note_changes(thing, index):
    for name, value in _values.get(index, {}).items():
        now = values.encode(getattr(thing, name, None), name)
        if now != value:
            record.event(protocol.Changed("args", index, name, now))
            _values[index][name] = now


# -------------------------------------------------------------------------------------------------- from_pretrained


def _load(original, loaded, *args, **kwargs):
    if "load" in _active or not _asked_by_user():
        return original(loaded, *args, **kwargs)
    _active.add("load")
    try:
        given = {_LOAD_NAMES[name]: _dtype_name(value) for name, value in kwargs.items() if name in _LOAD_NAMES}
        others = sorted(name for name in kwargs if name not in _LOAD_NAMES)
        details = {"cls": loaded.__name__, "module": loaded.__module__, "others": others}
        index, wanted = sources.offer("load", given, {}, {}, sources.users_line(), **details)
        for name, value in wanted.items():
            aliases = [alias for alias, today in _LOAD_NAMES.items() if today == name]
            spelled = next((alias for alias in aliases if alias in kwargs), _spelled(name))
            for alias in aliases:
                kwargs.pop(alias, None)
            if value != sources.DEFAULT:
                kwargs[spelled] = values.decode(value)
        model = original(loaded, *args, **kwargs)
        sources.state.objects.append(("load", index, model))
        return model
    finally:
        _active.discard("load")


def _spelled(name):
    """What a setting of `from_pretrained` is called in the installed transformers."""
    version = getattr(sys.modules.get("transformers"), "__version__", "")
    found = re.match(r"(\d+)\.(\d+)", str(version))
    old = name == "dtype" and found is not None and (int(found[1]), int(found[2])) < _KNOWS_DTYPE
    return "torch_dtype" if old else name


def _dtype_name(value):
    # "float16" and torch.float16 are one setting, however it is spelled.
    return str(value).replace("torch.", "") if type(value).__module__ == "torch" else value
