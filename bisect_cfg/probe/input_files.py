"""Which files of the user's a trial opens: data, configurations and modules that it reads are inputs, what it writes is
none.

The tool compares the inputs before each trial. It names the folders whose data counts (the script's, and the one it is
started in) and single files (of its command line). A module counts wherever it lies, unless it is Python's own or an
installed package's: also one that is first imported in the middle of the training, or found by PYTHONPATH. What a
process had imported before it was heard counts as well, if a process of the user's has started it. Only the process
that trains is heard, not its children, nor libraries that open files without Python's help.
"""

import sys

from . import children, protocol, record
from .standard_library import os

# A script that opens more than this walks through a data set, whose files are then not told apart. Of modules there may
# be more: a library that is being developed beside the script has hundreds.
_AT_MOST = {"data": 500, "module": 2000}

_PYTHON = (sys.prefix + os.sep, sys.base_prefix + os.sep)
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CACHE = os.sep + "__pycache__" + os.sep

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _State:
    folders: tuple = ()
    files: frozenset = frozenset()
    known: dict = {}  # kind -> {(path, mode)} once the hook stands, which cannot be taken away again
    process = 0  # a forked helper of the script's inherits the hook; what it opens is left out


state = _State()


def begin(wanted, first=True):
    """Note what is opened from here on.

    Args:
        wanted: a `protocol.InputPlaces`; None to note nothing.
        first: whether this is the first process of the run, so that nothing of the script has been imported yet (or,
            after a fork, that the first run has shown it).
    """
    if wanted is None:
        return
    state.folders = tuple(os.path.join(folder, "") for folder in wanted.folders)
    state.files = frozenset(wanted.files)
    if not state.known:
        sys.addaudithook(_hook)
    state.known, state.process = {"data": set(), "module": set()}, os.getpid()
    if not first:
        _note_imported()


def train():
    """This process trains: it is the one that is heard, also if it was forked from the one that was."""
    if state.known and state.process != os.getpid():
        state.process = os.getpid()
        _note_imported()


def _note_imported():
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")  # asking a lazy module itself may import something
        if isinstance(path, str) and path.endswith(".py"):
            _note(path, "r")


def _hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if mode else bool((flags or 0) & _WRITES)
        _note(path, "w" if writes else "r")
    elif event == "os.rename":  # os.replace too: a file that is written beside its place first
        _note(arguments[1], "w")


def _note(path, mode):
    try:
        if not isinstance(path, (str, bytes)) or state.process != os.getpid():
            return
        path, kind = os.path.abspath(os.fsdecode(path)), "data"
        if path.endswith((".py", ".pyc")):
            path, kind, mode = _source_of(path, mode), "module", "m" if mode == "r" else mode
        known, counts = state.known[kind], _is_own_module if kind == "module" else _is_own_data
        if path is None or (path, mode) in known or len(known) >= _AT_MOST[kind]:
            return
        if path in state.files or counts(path):
            known.add((path, mode))
            found = os.stat(path) if mode != "w" else None
            record.event(protocol.Opened(path, mode, found and (found.st_mtime_ns, found.st_size, found.st_ino)))
    except Exception:  # raised here it would be the script's open that fails
        return


def _source_of(path, mode):
    """A module is read from its source or, if that was compiled before, from a cache beside it. One that is written is
    code that the run makes for itself."""
    if path.endswith(".py"):
        return path
    folder, inside, name = path.rpartition(_CACHE)
    return os.path.join(folder, name.partition(".")[0] + ".py") if inside and mode == "r" else None


def _is_installed(path):
    return path.startswith(_PYTHON) or any(f"{os.sep}{name}-packages" in path for name in ("site", "dist"))


def _is_own_module(path):
    if _is_installed(path) or path.startswith(_OURS):
        return False
    made = os.path.join(os.environ.get("TMPDIR") or "/tmp", "")  # torch's compiler keeps what it generates there
    return path.startswith(state.folders) or (not path.startswith(made) and os.sep + "." not in path)


def _is_own_data(path):
    if _is_installed(path) or path.endswith(".so"):
        return False
    if path.startswith(os.path.join(children.state.folder, "")):  # what the processes of a trial tell each other
        return False
    return any(path.startswith(one) and os.sep + "." not in path[len(one) - 1 :] for one in state.folders)
