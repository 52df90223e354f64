"""Files of settings that the user's own code loads: their keys are offered by their names with dots.

YAML, JSON and TOML come as dictionaries, Hydra and OmegaConf as configs. JSON is also what rows of a data set are: its
text is one of settings where a file of just that length was opened shortly before.
"""

import contextlib
import sys
from collections import deque

from . import own_classes, own_words, wrap
from .sources import asked_by, offer_own, parsing
from .standard_library import _getframe, json, os

# So many files of so many settings are looked at: whatever else a script loads is data.
_MOST_FILES, _MOST_SETTINGS = 8, 300

# Of so many files that were opened last it is known what a text can be the content of.
_LAST_OPENED = 64

_CODE = (".py", ".pyc", ".so")


class _State:
    """One per process."""

    opened: deque = deque(maxlen=_LAST_OPENED)  # paths
    rows: set = set()  # (code, instruction) that reads text which is no file's
    before: dict = {}  # variable -> its value before the first text that was executed over it


_state = _State()


def install():
    """From now on know which files were opened last, and what the script itself executes."""
    sys.addaudithook(_note_opened)
    script = sys.modules["__main__"]
    vars(script)["exec"] = exec  # its own, so that nobody else's is another one
    wrap.around(script, "exec", execute)


def _note_opened(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and not arguments[0].endswith(_CODE):
        _state.opened.append(arguments[0])  # raised here it would be the script's open that fails


def _is_of_file(text, user):
    """Whether a text is the content of a file that was opened shortly before; line ends may be shorter by now."""
    place = user.f_code, user.f_lasti
    if place in _state.rows:
        return False
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    sizes = (len(data), len(data) + data.count(b"\n"))
    for path in set(_state.opened):
        with contextlib.suppress(OSError):
            if os.path.getsize(path) in sizes:
                return True
    _state.rows.add(place)
    return False


# ------------------------------------------------------------------------------------------------------- dictionaries


def load(original, *args, **kwargs):
    """Answer a function that reads settings from an open file or a text."""
    found, user = original(*args, **kwargs), asked_by(_getframe(2), ())
    if user is not None and isinstance(found, dict):
        _offer_file(found, user)
    return found


def load_text(original, text, *args, **kwargs):
    """Answer a function that reads settings, or rows of a data set, from a text."""
    found, user = original(text, *args, **kwargs), asked_by(_getframe(2), ())
    if user is not None and isinstance(found, dict) and _is_of_file(text, user):
        _offer_file(found, user)
    return found


def validate_json(original, cls, text, *args, **kwargs):
    """Answer ``BaseModel.model_validate_json``, a class method."""
    user, found = asked_by(_getframe(2), ()), None
    with contextlib.suppress(ValueError):  # the model says better what is wrong
        found = json.loads(text)
    if user is None or not isinstance(found, dict) or not _is_of_file(text, user):
        return original(cls, text, *args, **kwargs)
    _offer_file(found, user)
    own_classes.look(cls, found)
    return original(cls, json.dumps(found), *args, **kwargs)


def _offer_file(found, user, put=None):
    """Offer what was read from a file, and put in the values of the trial: with `put`, or into the dictionary.

    What the first of other files says is the default: files of settings are laid over each other, the user's last.
    """
    files = own_classes.state.files
    if len(files) < _MOST_FILES:
        defaults: dict = {}
        for other in reversed(files):
            if other != found:  # a file may be read twice
                defaults.update(_leaves(other))
        files.append(found)
        defaults = {name: defaults[name] for name in _leaves(found) if name in defaults}
        _offer_leaves(
            found, defaults, user, put or (lambda name, value: own_classes.put(found, name.split("."), value))
        )


def _leaves(tree):
    """Dotted name -> value, of a dictionary of dictionaries whose keys are plain names."""
    nodes = own_classes.nodes_of(tree)
    return {".".join(path): value for path, value in nodes.items() if not isinstance(value, dict)}


def _offer_leaves(tree, defaults, user, put):
    found = _leaves(tree)
    if len(found) <= _MOST_SETTINGS:
        offer_own(found, defaults, user, put)


# -------------------------------------------------------------------------------------- files of Python: ``exec(text)``


def execute(original, source, *scopes, **more):
    """Answer ``exec`` in the script itself: a text that gives values to its variables is a file of settings, also where
    the text has them from the command line. What the variables were before are their defaults."""
    frame = _getframe(2)
    inner = frame.f_locals  # from Python 3.13 on a function's own variables, which a text cannot change
    scopes = scopes or (frame.f_globals, inner if isinstance(inner, dict) else dict(inner))
    user, space = asked_by(wrap.outward(frame, wrap.GENERATED, wrap.PROBE), ()), scopes[-1]
    if user is None or not isinstance(space, dict):
        return original(source, *scopes, **more)
    takes_words = isinstance(source, (str, bytes)) and "argv" in str(source)
    if takes_words:
        own_words.taken(user)
    before = _variables_in(space)
    result = original(source, *scopes, **more)
    found = {name: value for name, value in _variables_in(space).items() if name in before or not takes_words}
    if any(found[name] != before.get(name) for name in found) and len(found) <= _MOST_SETTINGS:
        defaults = {name: _state.before.setdefault(name, value) for name, value in before.items() if name in found}
        offer_own(found, defaults, user, space.__setitem__, {name: [f"--{name}"] for name in found})
    return result


def _variables_in(space):
    plain = (bool, int, float, str)
    return {name: value for name, value in space.items() if type(value) in plain and not name.startswith("_")}


# ------------------------------------------------------------------------------------------------- OmegaConf and Hydra


def load_omegaconf(original, *args, **kwargs):
    """Answer ``OmegaConf.load`` and ``OmegaConf.from_cli``."""
    with parsing():
        config = original(*args, **kwargs)
    user = asked_by(_getframe(2), ())
    if user is not None:
        _offer_file(_plain(config), user, _putting_into(config))
        if original.__name__ == "from_cli":
            own_words.taken(user)
    return config


def merge_omegaconf(original, *configs):
    """The default of a key is its value in the first config that has it, if a later one has it too or the first is made
    of a class of the user's."""
    merged, user = original(*configs), asked_by(_getframe(2), ())
    if user is None:
        return merged
    defaults: dict = {}
    of = sys.modules["omegaconf.omegaconf"].OmegaConf
    trees = [_leaves(_plain(config)) for config in configs if of.is_config(config)]
    classes = [of.is_config(config) and of.get_type(config) is not dict for config in configs]
    for number, tree in enumerate(trees):
        later = {key for other in trees[number + 1 :] for key in other}
        for key, value in tree.items():
            if (key in later or classes[number]) and value != "???":
                defaults.setdefault(key, value)
    _offer_leaves(_plain(merged), defaults, user, _putting_into(merged))
    return merged


def compose_config(original, self, *args, **kwargs):
    """Answer Hydra's own function that composes a config, for ``hydra.main`` and ``hydra.compose``."""
    config = original(self, *args, **kwargs)
    caller, before = _getframe(2), {}
    if caller.f_code.co_name not in ("run", "compose"):
        return config  # it only looks what mode it is in
    with contextlib.suppress(Exception):  # one that cannot be composed without them has no defaults
        before = _plain(original(self, **{**kwargs, "overrides": [], "with_log_configuration": False}))
    now = {name: value for name, value in _plain(config).items() if name != "hydra"}
    user = asked_by(caller, ("hydra",)) or caller
    _offer_leaves(now, _leaves(before), user, _putting_into(config))
    own_words.taken(user)
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
