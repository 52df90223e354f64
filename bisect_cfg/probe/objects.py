"""Where configuration objects are built: record what the user set, put in what the trial asks for.

A configuration class is wrapped at ``__post_init__`` of the outermost *library* class: at that moment every
field holds what the user passed (in Python, through a parser, or in ``__post_init__`` of a class of the user's
own), and nothing has been resolved yet. The hook

1. records the raw values beside the defaults of the library class (`config` event),
2. puts in the values the trial asks for, and takes reporters, hub and checkpoints off (`quiet`),
3. lets the library resolve and check, and records the resolved values.

Which object of a kind is meant, when a script builds several, is said by its index in order of creation; the
first, cold run finds out which one the trainer was given (`watch`).

Kinds and the names of their settings:

=============  ==========================================  =========================
kind           built by                                    names
=============  ==========================================  =========================
``args``       ``TrainingArguments`` and subclasses        ``args.learning_rate``
``modelcfg``   ``trl.ModelConfig``                         ``model.lora_r``
``peft``       ``peft.LoraConfig`` (by the user)           ``peft.r``
``load``       ``from_pretrained`` of a model              ``model.dtype``, ``model.attn_implementation``
=============  ==========================================  =========================
"""

import contextlib
import sys

from . import protocol, quiet, record, redact, values
from .held import _getframe, dataclasses, functools, os, re
from .imports import when_imported

# Settings of `from_pretrained` that are captured, old name -> today's name.
_LOAD_NAMES = {"dtype": "dtype", "torch_dtype": "dtype", "attn_implementation": "attn_implementation"}

# The first transformers whose `from_pretrained` knows `dtype`; an older one hands it on to the model, which refuses it.
_KNOWS_DTYPE = (4, 56)

# Objects built by these packages themselves are theirs, not the user's ...
_LIBRARIES = ("trl", "transformers", "peft", "accelerate")
# ... except where a parser builds them on the user's behalf.
PARSERS = ("transformers.hf_argparser", "trl.scripts.utils", "trl.scripts._utils", "trl.scripts._hf_argparser")

DEFAULT = {"$default": True}

# CPython keeps one object for each of these numbers, so that the same object says nothing of where it came from.
_SHARED_NUMBERS = range(-5, 257)


class _State:
    """What the hooks need to know; one per process."""

    overrides: dict = {}
    targets = protocol.Targets()
    counts: dict = {}
    objects: list = []
    own: list = []  # (name, value) of the script's own settings, which also keeps the values, and so their ids
    before = None  # called with (kind, index) before an object is touched: the server's fork point
    after = None  # called with (kind, object) once it is resolved


state = _State()
_active = set()
_settled = {}  # id of a resolved training config -> (index, overrides, defaults)
_values = {}  # index of a training config -> field -> its value, encoded, as far as the hooks know


def set_orders(request):
    """What `protocol.TrialOrders` says of the settings of this trial."""
    state.overrides = request.overrides
    if request.targets is not None:
        state.targets = request.targets
    state.before = None


def install():
    """Wait for the libraries and wrap them as they come."""
    when_imported("transformers.training_args", _wrap_training_arguments)
    when_imported("transformers.trainer", _wrap_trainer)
    when_imported("trl.trainer.model_config", lambda module: _wrap_class(module.ModelConfig, "modelcfg"))
    when_imported("peft.tuners.lora.config", lambda module: _wrap_class(module.LoraConfig, "peft"))
    when_imported("transformers.modeling_utils", lambda module: _wrap_loader(module.PreTrainedModel))
    when_imported("transformers.models.auto.auto_factory", lambda module: _wrap_loader(module._BaseAutoModelClass))


def object_index(kind, thing):
    """The index under which `thing` was recorded, or None."""
    for known_kind, index, known in state.objects:
        if known_kind == kind and known is thing:
            return index
    return None


# ---------------------------------------------------------------------------------------------- wrapping


def _wrap_training_arguments(module):
    base = module.TrainingArguments
    _wrap_post_init(base, "args")

    # Subclasses (TRL's configs) bring their own __post_init__, which changes fields before the base class
    # sees them; wrap each as it is defined. A class of the user's own is left alone: what it sets in its
    # __post_init__ is what the user set.
    original = base.__dict__.get("__init_subclass__")

    def __init_subclass__(cls, **kwargs):
        if original is not None:
            original.__func__(cls, **kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        if "__post_init__" in cls.__dict__ and is_library(cls.__module__):
            _wrap_post_init(cls, "args")

    base.__init_subclass__ = classmethod(__init_subclass__)
    _watch_assignments(base)


def _watch_assignments(base):
    """Scripts also set attributes of the finished object (``training_args.learning_rate = ...``).

    Such an assignment of the user's is a setting like any other: it is recorded, and where the trial asks for
    another value it is passed over, as are those that would send output elsewhere.
    """
    original = base.__setattr__

    def __setattr__(self, name, value):
        settled = _settled.get(id(self))
        if settled is None and id(self) not in _active and _original_of(self) is not None:
            settled = _settled[id(self)]
        if settled is None or not _set_by_user(_getframe(1)):
            if settled is not None and name in settled[2]:
                _values[settled[0]][name] = values.encode(value, name)
            return original(self, name, value)
        index, chosen, defaults = settled
        if name not in defaults:
            return original(self, name, value)
        record.event(protocol.Assigned("args", index, name, values.encode(value, name)))
        if name in chosen or quiet.redirects(name):
            return None
        original(self, name, value)
        _values[index][name] = values.encode(value, name)
        nested = {key: item for key, item in chosen.items() if key.startswith(name + ".")}
        if nested:
            apply(self, nested, defaults)
            _values[index][name] = values.encode(getattr(self, name, None), name)
        return None

    base.__setattr__ = __setattr__


def _set_by_user(frame):
    """Whether an assignment is the user's: made in code of theirs, or in a method of the library whose purpose it is
    (``training_args.set_optimizer(...)``) and that they call."""
    while frame.f_code.co_name.startswith("set_") and is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    setter = frame.f_globals.get("__name__", "")
    return not is_library(setter) and not setter.startswith("_bisect_cfg_probe")


def _wrap_trainer(module):
    """Before a trainer's constructor does anything, look at the training config that it is given.

    ``args.model_init_kwargs["dtype"] = ...``, ``vars(args).update(...)`` and a copy of the object pass all the hooks
    above. A copy stands for the object it was made of. What has changed since it was built is recorded: a trial cannot
    set it, and the tool says so.
    """
    base = module.Trainer

    def __new__(cls, *args, **kwargs):
        arguments = sys.modules.get("transformers.training_args")
        for given in (*args, *kwargs.values()):
            if arguments is not None and isinstance(given, arguments.TrainingArguments):
                _note_changes(given)
                record.event(protocol.TrainerBuilt(object_index("args", given)))
        return super(base, cls).__new__(cls)

    base.__new__ = __new__


def _original_of(thing):
    """The index of the training config that an object is, or is a copy of; None if it is neither.

    A copy has all that resolving added to the original, which no object has while it is being built.
    """
    index = object_index("args", thing)
    if index is not None:
        return index
    for kind, known, other in reversed(state.objects):
        if kind == "args" and type(other) is type(thing) and vars(thing).keys() >= vars(other).keys():
            state.objects.append((kind, known, thing))
            _settled[id(thing)] = _settled[id(other)]
            return known
    return None


def _note_changes(thing):
    index = _original_of(thing)
    for name, value in _values.get(index, {}).items():
        now = values.encode(getattr(thing, name, None), name)
        if now != value:
            record.event(protocol.Changed("args", index, name, now))
            _values[index][name] = now


def _wrap_class(cls, kind):
    if hasattr(cls, "__post_init__"):
        _wrap_post_init(cls, kind)
        return
    original = cls.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        _on_object(self, kind, lambda: None)

    cls.__init__ = __init__


def _wrap_post_init(cls, kind):
    original = cls.__post_init__

    @functools.wraps(original)
    def __post_init__(self, *args, **kwargs):
        if id(self) in _active:  # an outer class of the same object is already being handled
            return original(self, *args, **kwargs)
        _active.add(id(self))
        try:
            _on_object(self, kind, lambda: original(self, *args, **kwargs))
        finally:
            _active.discard(id(self))

    cls.__post_init__ = __post_init__


@contextlib.contextmanager
def unwatched(thing):
    """Let an object be resolved without our hook."""
    _active.add(id(thing))
    try:
        yield
    finally:
        _active.discard(id(thing))


def is_library(module_name):
    return module_name.split(".")[0] in _LIBRARIES


def _built_by_user():
    """Whether the object being built comes from the user's code or from a parser, not from inside a library."""
    frame = _getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        generated = frame.f_code.co_filename == "<string>"  # the __init__ that dataclasses write
        if not generated and not name.startswith("_bisect_cfg_probe"):
            return name in PARSERS or not is_library(name)
        frame = frame.f_back
    return True


def place():
    """The innermost line of the user's code that is being run: file and number; None if there is none."""
    frame = _getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        generated = frame.f_code.co_filename.startswith("<")
        if not generated and not name.startswith("_bisect_cfg_probe") and not is_library(name):
            return os.path.abspath(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return None


def next_index(kind):
    index = state.counts.get(kind, 0)
    state.counts[kind] = index + 1
    return index


def wanted(kind, index):
    """The overrides meant for this object: field name -> encoded value."""
    prefix = protocol.NAMESPACE[kind] + "."
    target = getattr(state.targets, kind)
    if target is not None and target != index:
        return {}
    chosen = {}
    for name, value in state.overrides.items():
        # model.* is served by ModelConfig and by from_pretrained; `via` says which one owns the name.
        owner = state.targets.via.get(name)
        if name.startswith(prefix) and owner in (None, kind):
            chosen[name[len(prefix) :]] = value
    return chosen


# ---------------------------------------------------------------------------------------------- dataclasses


def _library_class(cls):
    """The nearest class of a library: its defaults are "the defaults", whatever a subclass of the user's says."""
    for candidate in cls.__mro__:
        if dataclasses.is_dataclass(candidate) and is_library(candidate.__module__):
            return candidate
    return cls


def handed_on(raw):
    """Field -> name of the own setting whose very value it holds, of the fields of a configuration object."""
    own = {id(value): name for name, value in state.own if not _is_shared(value)}
    return {field: own[id(value)] for field, value in raw.items() if id(value) in own and not _is_shared(value)}


def _is_shared(value):
    short = isinstance(value, (str, bytes)) and len(value) < 2
    return value is None or isinstance(value, bool) or short or (isinstance(value, int) and value in _SHARED_NUMBERS)


def is_grpo(cls):
    """Whether a training config is one of GRPO: TRL's variants of it and a user's class inherit from its own."""
    return any(base.__name__ == "GRPOConfig" for base in cls.__mro__)


def defaults_of(cls):
    """Field name -> raw default, for the fields a caller can pass and that have a default.

    Fields that a class of the user's adds have the user's defaults; those of the library keep the library's.
    """
    result = {}
    library = {field.name: field for field in dataclasses.fields(_library_class(cls))}
    for field in {**{field.name: field for field in dataclasses.fields(cls)}, **library}.values():
        if not field.init:
            continue
        if field.default is not dataclasses.MISSING:
            result[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            result[field.name] = field.default_factory()
    return result


def takes_dict(cls, name):
    """Whether a field accepts a dictionary, by its annotation."""
    return any(field.name == name and "dict" in str(field.type).lower() for field in dataclasses.fields(cls))


def _on_object(thing, kind, resolve):
    if kind == "peft" and not _built_by_user():
        return resolve()
    index = next_index(kind)
    if state.before is not None:
        state.before(kind, index)  # a waiting server forks here; only the child comes back

    cls = type(thing)
    names = [field.name for field in dataclasses.fields(cls) if field.init and hasattr(thing, field.name)]
    raw = {name: getattr(thing, name) for name in names}
    defaults = defaults_of(cls)
    library = _library_class(cls)
    record.event(
        protocol.ConfigBuilt(
            kind,
            index,
            cls=library.__name__,
            module=library.__module__,
            raw={name: values.encode(value, name) for name, value in raw.items()},
            defaults={name: values.encode(value, name) for name, value in defaults.items()},
            types={field.name: str(field.type) for field in dataclasses.fields(cls) if field.init},
            place=place(),
            grpo=is_grpo(cls),
            handed=handed_on(raw),
        )
    )
    chosen = wanted(kind, index)
    apply(thing, chosen, defaults)
    if kind == "args":
        quiet.silence(thing, index, _prepares(cls, index))
    try:
        resolve()
    except BaseException as error:
        record.event(protocol.ConfigInvalid(type(error).__name__, redact.scrub(str(error)), kind, index))
        raise
    state.objects.append((kind, index, thing))  # also keeps the object, and so its id, for as long as we run
    found = {name: values.encode(getattr(thing, name, None), name) for name in names}
    if kind == "args":
        _settled[id(thing)] = (index, chosen, defaults)
        _values[index] = dict(found)
    record.event(protocol.ConfigResolved(kind, index, found, max(1, getattr(thing, "_n_gpu", 1))))
    if state.after is not None:
        state.after(kind, thing)


def _prepares(cls, index):
    """Whether a training config is that of a training that comes before the one under study, as far as can be told."""
    if record.folder() is None:  # in a server, which forks before the one that a trial may change
        return True
    target = state.targets.args
    return index != target if target is not None else not is_grpo(cls) and "trl.trainer.grpo_config" in sys.modules


def apply(thing, wanted, defaults):
    """Set the fields of a configuration object; dotted names reach into dict-valued fields."""
    nested = {}
    for name, value in wanted.items():
        field, _, key = name.partition(".")
        if key:
            nested.setdefault(field, {})[key] = value
        elif value == DEFAULT:
            if field in defaults:
                setattr(thing, field, defaults[field])
        else:
            setattr(thing, field, values.decode(value, getattr(thing, field, None)))
    for field, items in nested.items():
        before = getattr(thing, field, None)
        current, default = values.parsed_dict(before), values.parsed_dict(defaults.get(field))
        for key, value in items.items():
            if value != DEFAULT:
                current[key] = values.decode(value, current.get(key))
            elif key in default:
                current[key] = default[key]
            else:
                current.pop(key, None)
        setattr(thing, field, values.as_passed(current, before) if current else defaults.get(field))


# ---------------------------------------------------------------------------------------------- from_pretrained


def _wrap_loader(cls):
    original = cls.__dict__["from_pretrained"].__func__

    @functools.wraps(original)
    def from_pretrained(inner_cls, *args, **kwargs):
        if "load" in _active or not _built_by_user():
            return original(inner_cls, *args, **kwargs)
        _active.add("load")
        try:
            index = next_index("load")
            if state.before is not None:
                state.before("load", index)
            given = {_LOAD_NAMES[name]: value for name, value in kwargs.items() if name in _LOAD_NAMES}
            record.event(
                protocol.ConfigBuilt(
                    "load",
                    index,
                    cls=inner_cls.__name__,
                    module=inner_cls.__module__,
                    raw={name: values.encode(_dtype_name(value), name) for name, value in given.items()},
                    defaults={},
                    types={},
                    others=sorted(name for name in kwargs if name not in _LOAD_NAMES),
                    place=place(),
                )
            )
            for name, value in wanted("load", index).items():
                aliases = [alias for alias, today in _LOAD_NAMES.items() if today == name]
                spelled = next((alias for alias in aliases if alias in kwargs), _spelled(name))
                for alias in aliases:
                    kwargs.pop(alias, None)
                if value != DEFAULT:
                    kwargs[spelled] = values.decode(value)
            model = original(inner_cls, *args, **kwargs)
            state.objects.append(("load", index, model))
            return model
        finally:
            _active.discard("load")

    cls.from_pretrained = classmethod(from_pretrained)


def _spelled(name):
    """What a setting of `from_pretrained` is called in the installed transformers."""
    version = getattr(sys.modules.get("transformers"), "__version__", "")
    found = re.match(r"(\d+)\.(\d+)", str(version))
    old = name == "dtype" and found is not None and (int(found[1]), int(found[2])) < _KNOWS_DTYPE
    return "torch_dtype" if old else name


def _dtype_name(value):
    # "float16" and torch.float16 are one setting, however it is spelled.
    return str(value).replace("torch.", "") if type(value).__module__ == "torch" else value
