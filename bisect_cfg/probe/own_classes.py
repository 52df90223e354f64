"""Classes of the script's own that hold settings, filled from its files or in its code.

Their fields' defaults are those of the files' keys.

A key of a YAML, JSON or TOML file has no default by itself. Where the script builds a pydantic model or a dataclass of
it (``Config(**yaml.safe_load(stream)["reward"])``, ``Config.model_validate(...)``), the class has one: what the script
runs with when the key is not in the file. Whether a value comes from a file is told by its name and the value itself.

Where the code itself says the values (``Config(window=7)``), the fields of a dataclass are settings like others; those
that it leaves at their defaults are offered as well, so that the good side can name them.
"""

import ast
import contextlib
import linecache
from collections import Counter

from . import protocol, record, sources, values, wrap
from .library_objects import field_defaults
from .standard_library import _getframe, dataclasses

# So many objects are looked at: whatever else a script builds are its data.
_MOST_OBJECTS = 200

# A list of settings has so many elements at most: a longer one is data.
_MOST_ELEMENTS = 16


class _State:
    """One per process."""

    files: list = []  # what the script's own files of settings hold, as it has them by now
    owned: set = set()  # paths whose default is known
    objects = 0  # that were looked at
    offered: set = set()  # classes of which an object was offered: of others of the same class nobody knows which
    calls: dict = {}  # file -> the calls in it


state = _State()


def define(original, *args, **kwargs):
    """Answer the function behind ``@dataclass``: know when an object of a class of the user's is built."""
    cls = original(*args, **kwargs)
    frame = _getframe(2).f_back
    while frame is not None and frame.f_globals.get("__name__") == "dataclasses":
        frame = frame.f_back
    if frame is not None and wrap.owner_of(frame) == wrap.USER and "__init__" in vars(cls):
        wrap.around(cls, "__init__", _build_dataclass)
    return cls


def _build_dataclass(original, self, *args, **kwargs):
    cls = type(self)
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    given = {**dict(zip(names, args)), **kwargs}  # noqa: B905
    if state.files:
        look(cls, given)
    wanted: dict = {}
    if cls not in state.offered and not sources.state.parsing:
        state.offered.add(cls)
        with contextlib.suppress(Exception):  # of a class of the user's own
            _offer_written(cls, given, wanted.__setitem__)
    return original(self, **{**given, **wanted}) if wanted else original(self, *args, **kwargs)


def _offer_written(cls, given, put):
    """Offer the fields of an object whose values the user's code has written out, or left at their defaults."""
    user, fields = wrap.outward(_getframe(1), wrap.PROBE, wrap.GENERATED), dataclasses.fields(cls)
    of_library = any(wrap.is_library(base.__module__) for base in cls.__mro__)
    if user is None or wrap.owner_of(user) != wrap.USER or of_library or len(fields) != len(cls.__dataclass_fields__):
        return
    with sources.parsing():  # a default may be another object
        defaults = field_defaults([field for field in fields if field.init])
    written = _written_in(user, cls.__name__)
    if written is None or any(field.init and field.name not in defaults for field in fields):
        return  # an example of the data, say
    known = {name for name, _ in sources.state.own}
    found = {
        name: given.get(name, default)
        for name, default in defaults.items()
        if (name in written or name not in given) and name not in known and not has_fields(type(default))
    }
    if found:
        sources.offer_own(found, {name: defaults[name] for name in found}, user, put)


def _written_in(frame, name):
    """The arguments that the call of a class in a frame's line has written out; None if there is not one such call."""
    path = frame.f_code.co_filename
    if path not in state.calls:
        code = ast.parse("".join(linecache.getlines(path, frame.f_globals)))
        state.calls[path] = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    calls = [node for node in state.calls[path] if node.lineno <= frame.f_lineno <= node.end_lineno
             and getattr(node.func, "id", getattr(node.func, "attr", "")) == name]  # fmt: skip
    if len(calls) != 1 or calls[0].args:
        return None
    found = set()
    for word in calls[0].keywords:
        with contextlib.suppress(ValueError):
            ast.literal_eval(word.value)
            found.add(word.arg)
    return found


def build_model(original, self, /, **given):
    """Answer ``BaseModel.__init__``."""
    look(type(self), given)
    return original(self, **given)


def validate(original, cls, given, *args, **kwargs):
    """Answer ``BaseModel.model_validate``, a class method."""
    look(cls, given)
    return original(cls, given, *args, **kwargs)


def look(cls, given):
    """Record the defaults of the files' keys from which an object of a class is about to be built."""
    if not state.files or state.objects >= _MOST_OBJECTS or not isinstance(given, dict):
        return
    state.objects += 1
    found = {}
    with contextlib.suppress(Exception):  # of a class of the user's own
        for key, (path, value) in _origins(given).items():
            found.update(_defaults_within(path, value, *fields_of(cls).get(key, (False, None, None))))
    if found:
        shown = {".".join(path[1:]): values.encode(value, path[-1]) for path, value in found.items()}
        record.event(protocol.OwnDefaults("script", shown))
    state.owned.update(found)


def _defaults_within(path, given, known, default, inner):
    """Path -> default, of a value that fills a field, and of all that is in it where that is of a class, too."""
    if not isinstance(given, dict) or inner is None:
        return {path: default} if known else {}
    found, fields = {}, fields_of(inner)
    for key in (key for key in given if key in fields):
        found.update(_defaults_within((*path, key), given[key], *fields[key]))
    return found


def _origins(given):
    """Key -> path in the script's files and value there, of the values that come from there."""
    nodes = {
        (number, *path): value for number, tree in enumerate(state.files) for path, value in nodes_of(tree).items()
    }
    found: dict = {}
    for path, value in nodes.items():
        for key in {path[-1], "_".join(path[1:][-2:])} & given.keys():
            if value is given[key] or _holds(given[key], value):
                found.setdefault(key, []).append(path)
    beside = Counter(path[:-1] for paths in found.values() for path in paths)

    def likely(key, path):
        itself = nodes[path] is given[key] and not sources.is_shared(given[key])
        return itself, path not in state.owned, beside[path[:-1]]

    chosen = {key: max(paths, key=lambda path: likely(key, path)) for key, paths in found.items()}
    return {key: (path, nodes[path]) for key, path in chosen.items()}


def _holds(given, value):
    """Whether a value is that of a file, of which a dictionary may have more by now."""
    if isinstance(value, dict) and isinstance(given, dict):
        return bool(value) and all(key in given and _holds(given[key], inner) for key, inner in value.items())
    return type(value) is type(given) and value == given


def nodes_of(tree, before=()):
    """Path -> value, of a dictionary of dictionaries whose keys are plain names, those dictionaries included. A short
    list of dictionaries is one whose keys are numbers."""
    found = {}
    for key, value in tree.items():
        if isinstance(key, str) and "." not in key:
            found[(*before, key)] = value
            inner = dict(zip(map(str, range(len(value))), value)) if _holds_sections(value) else value  # noqa: B905
            if isinstance(inner, dict):
                found.update(nodes_of(inner, (*before, key)))
    return found


def _holds_sections(value):
    short = isinstance(value, list) and 0 < len(value) <= _MOST_ELEMENTS
    return short and all(isinstance(one, dict) for one in value)


def fields_of(cls):
    """Key -> whether the field has a default, that, and the class that it is of, if that has fields; of a model or a
    dataclass, by the names it is filled by."""
    if dataclasses.is_dataclass(cls):
        fields = [field for field in dataclasses.fields(cls) if field.init]
        defaults = field_defaults(fields)
        return {one.name: (one.name in defaults, defaults.get(one.name), _class_in(one.type)) for one in fields}
    found = {}
    for name, field in cls.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        for key in aliases_of(field) or [name]:
            found[key] = (not field.is_required(), default, _class_in(field.annotation))
    return found


def aliases_of(field):
    """The names under which a field of a model is filled, where they are not its own."""
    alias = field.validation_alias or field.alias
    return [one for one in getattr(alias, "choices", [alias]) if isinstance(one, str)]


def has_fields(cls):
    """Whether a class is a dataclass or a model of pydantic's."""
    return isinstance(cls, type) and (dataclasses.is_dataclass(cls) or hasattr(cls, "model_fields"))


def put(tree, path, value):
    """Put a value into dictionaries and objects within each other. Objects are built anew: they may compute fields."""
    key, *inner = path
    key = int(key) if isinstance(tree, list) else key
    if not inner:
        tree[key] = value
    elif isinstance(tree[key], (dict, list)):
        put(tree[key], inner, value)
    else:
        fields = {inner[0]: getattr(tree[key], inner[0])}
        put(fields, inner, value)
        tree[key] = _replaced(tree[key], fields)


def _replaced(thing, fields):
    if dataclasses.is_dataclass(type(thing)):
        return dataclasses.replace(thing, **fields)
    return type(thing)(**{**{name: getattr(thing, name) for name in type(thing).model_fields}, **fields})


def _class_in(annotation):
    """The class with fields in an annotation (``Reward | None``), None if there is none."""
    inner = (found for one in getattr(annotation, "__args__", ()) if (found := _class_in(one)) is not None)
    return annotation if has_fields(annotation) else next(inner, None)
