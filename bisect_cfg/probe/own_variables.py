"""Variables of the environment that the user's own code reads: each is offered when it is read for the first time."""

from . import own_classes, wrap
from .sources import asked_by, offer_own
from .standard_library import _getframe, os, re

# Variables that say where and with what a process runs: scripts read many, and none of them is a setting.
_OF_THE_MACHINE = re.compile(
    r"(?:PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|LANG|TERM|HOSTNAME|DISPLAY|EDITOR|PS1|SHLVL|_|RANK|TZ|VIRTUAL_ENV)$|PYTHON"
    r"|(?:LC|XDG|SSH|LOCAL|GROUP|ROLE|WORLD|MASTER|NODE|SLURM|OMPI|PMI|PMIX|TORCHELASTIC|ACCELERATE|FSDP|BISECT_CFG|CONDA"
    r"|UV|CUDA|NVIDIA|HIP|ROCR|OMP|MKL|OPENBLAS|PYTEST|GITHUB|JPY|KERNEL|WANDB|HF|HUGGINGFACE)_"
)

# Modules whose frames lie between whoever asks and the environment, and those that put a file's variables into it.
_MAPPING = ("os", "collections", "_collections_abc", "decouple", "environs")
_FILES = ("dotenv", "environs")

# ... and those between whoever asks and a model, which may be a field of another one: our wrapper stands there, too.
_MODELS = ("pydantic_settings", "pydantic", "_bisect_cfg_probe")


class _State:
    """One per process."""

    unread: dict = {}  # variables that nobody has read yet: name -> value
    reads_all: object = None  # (frame, instruction) that reads all variables at once, for whatever comes after


_state = _State()


def note_variables():
    """From here on know which variables nobody has read yet."""
    _state.unread = {name: text for name, text in os.environ.items() if not _OF_THE_MACHINE.match(name)}


def read_variable(original, self, name):
    """Have the user's own code read the variables of the trial. One that the script has set itself is no setting."""
    value = original(self, name)
    if name not in _state.unread:
        return value
    user = asked_by(_getframe(2), _MAPPING)
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

        offer_own({name: value}, {name: None}, user, put, types={name: "str"}, kind="env")


def fill_settings(original, self, *args, **kwargs):
    """A model that fills its fields from variables of the environment."""
    user, config = asked_by(_getframe(2), _MODELS), type(self).model_config
    if user is not None:
        prefix, inner = config.get("env_prefix") or "", config.get("env_nested_delimiter")
        fields = [name for key, field in type(self).model_fields.items()
                  for name in own_classes.aliases_of(field) or [prefix + key]]  # fmt: skip
        wanted = {name.lower() for name in fields}
        for name in list(_state.unread):
            if name.lower() in wanted or (inner and name.lower().partition(inner.lower())[0] in wanted):
                _offer_variable(name, os.environ.get(name), user)
    return original(self, *args, **kwargs)


def read_all_variables(original, self):
    """Know where all variables are read at once, to be copied."""
    user = asked_by(_getframe(2), _MAPPING)
    _state.reads_all = user and (user, user.f_lasti)
    return original(self)


def set_variable(original, self, name, value):
    """What a parser puts there for the user (`env` in a YAML file of `TrlParser`, a file ``.env``) is as if it had been
    there."""
    original(self, name, value)
    frame = wrap.outward(_getframe(2), wrap.GENERATED)
    module = frame.f_globals.get("__name__", "").partition(".")[0]
    if (wrap.owner_of(frame) == wrap.PARSER or module in _FILES) and not _OF_THE_MACHINE.match(name):
        _state.unread[name] = value
