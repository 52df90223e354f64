"""What a training saves outside the trial's folder lands inside it: nothing of the user's is overwritten.

A callback that keeps the best model (``trainer.save_model("best")``) would put the weights of a short run, under
settings that are not the user's, in the place of their own. So, from the beginning of the training under study on, the
functions with which models, optimizers and states are saved write into ``output/elsewhere`` of the trial, under the
path that they were given; whatever loads such a path afterwards, in whichever process of the run, gets what was
written. Saving that would fail at its own place (no such folder, not allowed) is left to fail there.

Before that training the script's files are its own: a model that it saves for others to load (another process, a plain
`open`) has to be where it says, and is what the user's own run would write there. So are folders and files of
`tempfile` at any time, devices, and what is written with a plain `open`.
"""

import sys

from . import children, protocol, record
from .held import functools, os
from .imports import when_imported

OUTPUT = "output"
FOLDER = os.path.join(OUTPUT, "elsewhere")

# A script that makes more temporary files than this saves models in few of them.
_AT_MOST_TEMPORARY = 10000

# Modules with classes that have `save_pretrained` or `from_pretrained`; which classes, differs from version to version.
_PRETRAINED = (
    "transformers.modeling_utils", "transformers.configuration_utils", "transformers.generation.configuration_utils",
    "transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers",
    "transformers.tokenization_mistral_common", "transformers.processing_utils",
    "transformers.feature_extraction_utils", "transformers.image_processing_base",
    "transformers.video_processing_utils", "transformers.models.auto.auto_factory",
    "transformers.models.auto.configuration_auto", "transformers.models.auto.tokenization_auto",
    "transformers.models.auto.processing_auto", "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.feature_extraction_auto", "peft.peft_model", "peft.mixed_model", "peft.config",
    "peft.auto", "huggingface_hub.hub_mixin",
)  # fmt: skip

# Of functions and methods: which argument is the path, by name and by position (with `self`), and whether it is a
# folder.
_SAVES = {
    "transformers.trainer": {"Trainer.save_model": ("output_dir", 1, True)},
    "transformers.trainer_callback": {"TrainerState.save_to_json": ("json_path", 1, False)},
    "accelerate.accelerator": {
        "Accelerator.save_state": ("output_dir", 1, True),
        "Accelerator.save_model": ("save_directory", 2, True),
        "Accelerator.save": ("f", 2, False),
    },
    "torch": {"save": ("f", 1, False), "serialization.save": ("f", 1, False), "jit.save": ("f", 1, False)},
    "safetensors.torch": {"save_file": ("filename", 1, False), "save_model": ("filename", 1, False)},
    "safetensors.numpy": {"save_file": ("filename", 1, False)},
}
_LOADS = {
    "transformers.trainer_callback": {"TrainerState.load_from_json": ("json_path", 1)},
    "accelerate.accelerator": {"Accelerator.load_state": ("input_dir", 1)},
    "torch": {"load": ("f", 0), "serialization.load": ("f", 0), "jit.load": ("f", 0)},
    "safetensors.torch": {"load_file": ("filename", 0), "load_model": ("filename", 1)},
    "safetensors.numpy": {"load_file": ("filename", 0)},
}
_METHODS = {"save_pretrained": ("save_directory", 1, True), "to_json_file": ("json_file_path", 1, False)}


class _State:
    began = False  # whether the training under study has, as far as this process knows
    temporary = None  # paths that `tempfile` has made here
    outputs = None  # folder that a training config of the script names -> the one that it was given instead


state = _State()
state.temporary, state.outputs = set(), {}


def install():
    """Wrap what saves and what loads, each library when it is imported."""
    for module in {**_SAVES, **_LOADS}:
        when_imported(module, _wrap_functions)
    for module in _PRETRAINED:
        when_imported(module, _wrap_classes)
    when_imported("tempfile", _wrap_tempfile)


def redirect(output_dir, place):
    """What the script's own folder for a training's output is replaced by: what it loads from there is here."""
    if _is_path(output_dir):
        state.outputs[os.path.abspath(output_dir)] = place


def own_place(path):
    """The script's own folder for output that was replaced by this one; None for any other."""
    return next((own for own, place in state.outputs.items() if place == path), None)


def _output(path):
    """Where something that a script loads from its own folder for output has been saved; None if it was not."""
    path = os.path.abspath(path)
    for own, place in state.outputs.items():
        if path == own or path.startswith(own + os.sep):
            place = os.path.normpath(os.path.join(place, os.path.relpath(path, own)))
            holds = os.path.isdir(place) and any(entry.is_file() for entry in os.scandir(place))
            if holds or os.path.isfile(place):
                return place
    return None


def begin():
    """The training under study begins in this process: from here on nothing is saved at the user's places."""
    if not state.began:
        state.began = True
        _wrap_files()


# ------------------------------------------------------------------------------------------------- which place


def _active():
    if state.began:
        return True
    trainer = children.trainer()
    return trainer is not None and os.path.exists(f"/proc/{trainer}")


def _is_path(value):
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)


def _mirror(path):
    """Where a path outside the trial's folder is kept inside it; None for one that is left as it is."""
    folder = record.trial() or children.state.folder
    if folder is None:
        return None
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    if path == folder or path.startswith((os.path.join(folder, ""), "/dev/", "/proc/")):
        return None
    if path in state.temporary or any(path.startswith(made + os.sep) for made in state.temporary):
        return None
    return os.path.join(folder, FOLDER, path.lstrip(os.sep))


def saved(path, is_folder):
    """The path at which to save in place of `path`: its own, or one in the trial's folder."""
    try:
        if not _is_path(path) or not _active():
            return path
        place = _mirror(path)
        if place is None or not _could_be_saved(os.path.realpath(path), place, is_folder):
            return path
        os.makedirs(place if is_folder else os.path.dirname(place), exist_ok=True)
    except (OSError, ValueError):
        return path
    record.event(protocol.Redirected(os.fspath(path)))
    return place


def _could_be_saved(path, place, is_folder):
    """Whether saving at the user's own place would work, or has worked: if not, it has to fail in the trial, too."""
    if os.path.exists(path):
        return os.path.isdir(path) == is_folder and os.access(path, os.W_OK)
    parent = os.path.dirname(path)
    if os.path.isdir(os.path.dirname(place)):
        return True
    while is_folder and not os.path.exists(parent):  # folders are made with those above them
        parent = os.path.dirname(parent)
    return os.path.isdir(parent) and os.access(parent, os.W_OK)


def found(path):
    """The path to load in place of `path`: where it was saved in this run, if it was."""
    try:
        if not _is_path(path):
            return path
        place = _mirror(path) if _active() else None
        return place if place is not None and os.path.exists(place) else _output(path) or path
    except (OSError, ValueError):
        return path


# ------------------------------------------------------------------------------------------------- the wrappers


def _exchanged(args, kwargs, name, position, exchange):
    if name in kwargs:
        kwargs = {**kwargs, name: exchange(kwargs[name])}
    elif len(args) > position:
        args = (*args[:position], exchange(args[position]), *args[position + 1 :])
    return args, kwargs


def _saving(original, name, position, is_folder):
    @functools.wraps(original)
    def save(*args, **kwargs):
        args, kwargs = _exchanged(args, kwargs, name, position, lambda path: saved(path, is_folder))
        return original(*args, **kwargs)

    return save


def _loading(original, name, position):
    @functools.wraps(original)
    def load(*args, **kwargs):
        args, kwargs = _exchanged(args, kwargs, name, position, found)
        return original(*args, **kwargs)

    return load


def _from_pretrained(original):
    @functools.wraps(original)
    def from_pretrained(cls, *args, **kwargs):
        # The path is the first argument, or (adapters) the second; a name on the hub is no path that was saved.
        args = tuple(found(value) if number < 2 else value for number, value in enumerate(args))
        kwargs = {
            name: found(value) if name in ("pretrained_model_name_or_path", "model_id") else value
            for name, value in kwargs.items()
        }
        return original(cls, *args, **kwargs)

    return from_pretrained


def _wrap_functions(module):
    for table, wrapper in ((_SAVES, _saving), (_LOADS, _loading)):
        for name, path in table.get(module.__name__, {}).items():
            owner, _, last = name.rpartition(".")
            owner = getattr(module, owner, None) if owner else module
            original = getattr(owner, "__dict__", {}).get(last)
            if isinstance(original, classmethod):
                setattr(owner, last, classmethod(wrapper(original.__func__, *path)))
            elif callable(original):
                setattr(owner, last, wrapper(original, *path))


def _wrap_classes(module):
    for cls in list(vars(module).values()):
        if not isinstance(cls, type) or cls.__module__ != module.__name__:
            continue
        for name, path in _METHODS.items():
            original = vars(cls).get(name)
            if callable(original):
                setattr(cls, name, _saving(original, *path))
        original = vars(cls).get("from_pretrained")
        if isinstance(original, classmethod):
            cls.from_pretrained = classmethod(_from_pretrained(original.__func__))


def _wrap_tempfile(module):
    def noting(original):
        @functools.wraps(original)
        def make(*args, **kwargs):
            made = original(*args, **kwargs)
            path = made[1] if isinstance(made, tuple) else made
            if isinstance(path, str) and len(state.temporary) < _AT_MOST_TEMPORARY:
                state.temporary.add(os.path.realpath(path))
            return made

        return make

    for name in ("mkdtemp", "_mkstemp_inner"):  # all that `tempfile` makes comes from these
        if hasattr(module, name):
            setattr(module, name, noting(getattr(module, name)))


def _wrap_files():
    """Renaming and removing what this run has saved elsewhere concerns what it saved, not what lies there of the
    user's."""

    def kept(path):
        place = _mirror(path) if _is_path(path) else None
        return place if place is not None and os.path.lexists(place) else None

    def moving(original):
        @functools.wraps(original)
        def move(src, dst, **kwargs):
            place = None if kwargs else kept(src)
            if place is not None:
                return original(place, saved(dst, os.path.isdir(place)))
            return original(src, dst, **kwargs)

        return move

    def removing(original):
        @functools.wraps(original)
        def remove(path, *args, **kwargs):
            place = None if "dir_fd" in kwargs else kept(path)
            return original(path if place is None else place, *args, **kwargs)

        return remove

    for owner, names, wrapper in (
        ("os", ("rename", "replace"), moving),
        ("os", ("remove", "unlink"), removing),
        ("shutil", ("rmtree",), removing),
    ):
        module = sys.modules.get(owner)
        for name in names:
            original = getattr(module, name, None)
            if original is not None:
                wrapped = wrapper(original)
                setattr(module, name, wrapped)
                if original in os.supports_dir_fd:  # the set that scripts ask is the same object as ours
                    os.supports_dir_fd.add(wrapped)
