"""Where a trial saves, and where it reads: one table for both.

What a script calls ``outputs/sft`` is the folder `output/home/me/outputs/sft` of the trial for all functions that save
models, optimizers and states: nothing of the user's is overwritten. Whatever reads ``outputs/sft`` afterwards, in any
process of the run, gets what was saved there, and what lies at the user's own place below it, as if it had been saved
over that. So do `open`, `os.listdir` and their kind, with which scripts look for what they have saved. The output
folder of a training config is a place in the same table (`side_effects`), so that a later training loads what an
earlier one has saved, by whatever name. Of a trial that was forked, what was saved before the fork lies in between.

Left as they are: what is written with a plain `open`, devices, what lies in folders of `tempfile`, and what a script
removes that no trial has saved. Saving that would fail at its own place (no such folder, not allowed) fails in a trial
as well.
"""

import contextlib
import inspect

from . import children, wrap
from .imports import when_imported
from .standard_library import functools, os, threading

OUTPUT = "output"
BEFORE = "saved-before"
"""Link in the folder of a trial that was forked to the folder of the process it comes from: for what it starts."""


class _State:
    folders: list = []  # of the run that have an output folder, the newest first
    temporary: set = set()  # paths that `tempfile` has made here
    views = 0  # folders made of several
    looking = threading.local()  # has `now` while this thread looks for a path: that looks at files itself


state = _State()


def install():
    """Put the table around what saves and what reads, of each library when it is imported."""
    for module, paths, change in _TABLE:
        wrap.in_module(module, paths, functools.partial(_exchange, change))
    for module, calls in _FILES.items():
        when_imported(module, functools.partial(_wrap_file_functions, calls))
    when_imported("transformers.utils.hub", _wrap_subclasses)


# ------------------------------------------------------------------------------------------------- which place


def _folders():
    if not children.state.folder:
        return state.folders
    with _as_they_are():
        folder = os.path.realpath(children.state.folder)
        if folder not in state.folders[:1]:
            link = os.path.join(folder, BEFORE)
            if os.path.islink(link) and not state.folders:
                state.folders.append(os.path.realpath(link))
            elif state.folders and os.path.isdir(os.path.join(state.folders[0], OUTPUT)):
                with contextlib.suppress(OSError):  # another process of the trial has made it
                    os.symlink(state.folders[0], link)
            state.folders.insert(0, folder)
    return state.folders


def _is_path(value):
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)


def place_of(path):
    """The place in the trial's folder for what a script calls `path`; the path itself if it lies there already, or
    if there is no trial."""
    return next(iter(_places_for(path)), path)


def own_place(path):
    """The path by which a script knows what lies at a place in the run's folders; the path itself for any other."""
    for folder in _folders():
        inside = os.path.join(folder, OUTPUT, "")
        if os.fspath(path).startswith(inside):
            return os.sep + os.fspath(path)[len(inside) :]
    return path


def is_own(path):
    """Whether this run has saved what a script calls `path`."""
    return bool(_saved_at(own_place(path)))


def _places_for(path):
    folders = _folders()
    with _as_they_are():
        path = os.path.realpath(path)
    if path.startswith((*(os.path.join(folder, "") for folder in folders), "/dev/", "/proc/")):
        return []
    return [os.path.join(folder, OUTPUT, path.lstrip(os.sep)) for folder in folders]


def _saved_at(path):
    """The places at which this run has saved what a script calls `path`, the newest first."""
    if not _is_path(path) or getattr(state.looking, "now", False):
        return []
    with _as_they_are():
        try:
            if not any(os.path.isdir(os.path.join(folder, OUTPUT)) for folder in _folders()):
                return []
            return [place for place in _places_for(path) if os.path.lexists(place)]
        except (OSError, ValueError):
            return []


@contextlib.contextmanager
def _as_they_are():
    """In here this thread sees files where they are."""
    before = getattr(state.looking, "now", False)
    state.looking.now = True
    try:
        yield
    finally:
        state.looking.now = before


def found(path):
    """The path to read in place of `path`."""
    return next(iter(_saved_at(path)), path)


def whole(path):
    """The path to read in place of `path` by what reads a folder as a whole: if parts of it lie at several places, a
    folder of links to all of them."""
    saved = _saved_at(path)
    if not saved:
        return path
    with _as_they_are():
        places = [place for place in (*saved, path) if os.path.isdir(place) and os.listdir(place)]
        if len(places) < 2:
            return (places or saved)[0]
        state.views += 1
        view = os.path.join(_folders()[0], "views", f"{os.getpid()}-{state.views}", os.path.basename(places[0]))
        _link(view, *map(os.path.abspath, places))
        return view


def _link(view, *places):
    os.makedirs(view)
    for name in {name: None for place in places for name in os.listdir(place)}:
        inside = [path for path in (os.path.join(place, name) for place in places) if os.path.lexists(path)]
        if len(inside) > 1 and all(map(os.path.isdir, inside)):
            _link(os.path.join(view, name), *inside)
        else:
            os.symlink(inside[0], os.path.join(view, name))


def saved(path, is_folder=False):
    """The path at which to save in place of `path`."""
    try:
        place = place_of(path) if _is_path(path) and not _is_temporary(path) else path
        if place != path and _can_be_saved(os.path.realpath(path), is_folder):
            os.makedirs(place if is_folder else os.path.dirname(place), exist_ok=True)
            return place
    except (OSError, ValueError):  # then it fails where the script wants it
        pass
    return path


def saved_folder(path):
    """The same for a folder."""
    return saved(path, True)


def _is_temporary(path):
    path = os.path.realpath(path)
    return any(path == made or path.startswith(made + os.sep) for made in state.temporary)


def _can_be_saved(path, is_folder):
    """Whether saving at the user's own place would work: if not, it has to fail in the trial, too."""
    if os.path.exists(path):
        return os.path.isdir(path) == is_folder and os.access(found(path), os.W_OK)
    parent = os.path.dirname(path)
    while is_folder and not os.path.exists(parent):  # folders are made with those above them
        parent = os.path.dirname(parent)
    return os.path.isdir(parent) and os.access(found(parent), os.W_OK)


# ------------------------------------------------------------------------------------------------- the table

# What stands in place of the path that these functions and methods are given.
_TABLE = (
    ("transformers.trainer", "Trainer.save_model", saved_folder),
    ("transformers.trainer_callback", "TrainerState.save_to_json", saved),
    ("accelerate.accelerator", "Accelerator.save_state", saved_folder),
    ("huggingface_hub.hub_mixin", "ModelHubMixin.save_pretrained", saved_folder),
    ("torch", "save", saved),
    ("torch", "load", found),
    ("safetensors.torch", "save_file save_model", saved),
    ("safetensors.torch", "load_file load_model", found),
)
_METHODS = {"save_pretrained": saved_folder, "to_json_file": saved, "from_pretrained": whole}

# How they call it.
_NAMES = (
    "f", "filename", "output_dir", "save_directory", "json_path", "json_file_path", "pretrained_model_name_or_path",
    "model_id",
)  # fmt: skip


def _exchange(change, original, /, *arguments, **keywords):
    """Call a function with another path in place of the one that it is called with."""
    name, position = _parameter_of(original)
    if name in keywords:
        keywords[name] = change(keywords[name])
    elif name is not None and len(arguments) > position:
        arguments = (*arguments[:position], change(arguments[position]), *arguments[position + 1 :])
    return original(*arguments, **keywords)


@functools.cache
def _parameter_of(function):
    """Name and position of the parameter that takes a path; None of a method of the user's own that has the name."""
    names = list(inspect.signature(function).parameters)
    return next(((name, place) for place, name in enumerate(names) if name in _NAMES), (None, 0))


def _wrap_subclasses(module):
    """Models, tokenizers, processors, adapters and their configurations all inherit from one class."""
    base = module.PushToHubMixin

    def __init_subclass__(cls, /, **keywords):
        super(base, cls).__init_subclass__(**keywords)
        for name in _METHODS.keys() & vars(cls).keys():
            wrap.around(cls, name, functools.partial(_exchange, _METHODS[name]))

    base.__init_subclass__ = classmethod(__init_subclass__)


# ------------------------------------------------------------------------------------------------- files and folders


def _wrap_file_functions(calls, module):
    for name, call in calls.items():
        original = getattr(module, name)
        wrap.around(module, name, call)
        for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if original in capable:  # the sets that scripts ask
                capable.add(getattr(module, name))


class _Entries:
    """What `os.scandir` answers for a folder that lies at several places."""

    def __init__(self, entries):
        self._left = iter(entries)

    def __iter__(self):
        return self._left

    def __next__(self):
        return next(self._left)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    close = __exit__


def _of_files(original, path, *arguments, **keywords):
    return original(path if keywords.get("dir_fd") is not None else found(path), *arguments, **keywords)


def _of_two_files(original, source, target, **keywords):
    return original(found(source), found(target), **keywords)


def _open(original, file, mode="r", *arguments, **keywords):
    reads = isinstance(mode, str) and not any(letter in mode for letter in "wax+")
    return original(found(file) if reads else file, mode, *arguments, **keywords)


def _folders_at(path):
    places = (*_saved_at(path), path)
    with _as_they_are():
        return [place for place in places if len(places) == 1 or os.path.isdir(place)]


def _list(original, path="."):
    first, *others = _folders_at(path)
    return original(first) if not others else list({name: 0 for at in (first, *others) for name in original(at)})


def _scan(original, path="."):
    first, *others = _folders_at(path)
    if not others:
        return original(first)
    return _Entries({entry.name: entry for at in (*others[::-1], first) for entry in original(at)}.values())


def _remove(original, path, *arguments, **keywords):
    places = [] if keywords.get("dir_fd") is not None else _saved_at(path)
    if not places:
        return original(path, *arguments, **keywords)
    if places[0].startswith(os.path.join(_folders()[0], "")):  # what was saved before a fork is for other trials, too
        return original(places[0], *arguments, **keywords)
    return None


def _move(original, source, target, **keywords):
    places = [] if keywords else _saved_at(source)
    if not places:
        return original(source, target, **keywords)
    return original(places[0], saved(target, os.path.isdir(places[0])))


def _copy(original, source, target, **keywords):
    """A copy of what this run has saved is saved by this run."""
    return original(found(source), saved(target) if is_own(source) else target, **keywords)


def _note_temporary(original, *arguments, **keywords):
    made = original(*arguments, **keywords)
    path = made[1] if isinstance(made, tuple) else made
    if isinstance(path, str):
        state.temporary.add(os.path.realpath(path))
    return made


_FILES = {
    "os": {
        "stat": _of_files, "lstat": _of_files, "access": _of_files, "listdir": _list, "scandir": _scan,
        "remove": _remove, "unlink": _remove, "rmdir": _remove, "rename": _move, "replace": _move,
    },
    "builtins": {"open": _open},
    "io": {"open": _open},
    "shutil": {"rmtree": _remove, "copyfile": _copy, "copystat": _of_two_files, "copymode": _of_two_files},
    "tempfile": {"mkdtemp": _note_temporary, "_mkstemp_inner": _note_temporary},
}  # fmt: skip
