"""Which files of the user's a trial opens: data, configurations and modules that it reads are inputs, what it writes is
none.

The tool compares the inputs before each trial. It names the folders whose data counts (the script's, and the one it is
started in) and single files (of its command line). A module counts wherever it lies, unless it is Python's own or an
installed package's: also one that is first imported in the middle of the training, or found by PYTHONPATH. What a
process had imported before it was heard counts as well, if a process of the user's has started it. Only the process
that trains is heard, not its children, nor libraries that open files without Python's help.
"""

import sys

from . import protocol, record
from .held import os

# A script that opens more than this walks through a data set; its files are then not told apart.
_AT_MOST = 500

# Modules are told apart from data: a library that is being developed beside the script has hundreds.
_MODULES_AT_MOST = 2000

_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_CACHE = os.sep + "__pycache__" + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _State:
    folders = ()
    files = frozenset()
    known = None  # {(path, mode)} once the hook stands, which cannot be taken away again
    modules = 0
    process = None  # a forked helper of the script's inherits the hook; what it opens is left out


state = _State()


def begin(wanted, first=True):
    """Note what is opened from here on.

    `wanted` is a `protocol.InputPlaces`; None to note nothing. `first` says whether this is the first process of the
    run, so that nothing of the script has been imported yet (or, after a fork, that the first run has shown it).
    """
    if wanted is None:
        return
    state.folders = tuple(os.path.join(folder, "") for folder in wanted.folders)
    state.files = frozenset(wanted.files)
    if state.known is None:
        sys.addaudithook(_hook)
    state.known, state.modules, state.process = set(), 0, os.getpid()
    if not first:
        _note_imported()


def train():
    """This process trains: it is the one that is heard, also if it was forked from the one that was."""
    if state.known is not None and state.process != os.getpid():
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
        path = os.path.abspath(os.fsdecode(path))
        if path.endswith((".py", ".pyc")):
            _note_module(path, mode)
            return
        if len(state.known) - state.modules >= _AT_MOST or (path, mode) in state.known:
            return
        if path in state.files or _counts(path):
            state.known.add((path, mode))
            _tell(path, mode, mode == "r")
    except Exception:  # raised here it would be the script's open that fails
        return


def _note_module(path, mode):
    """A module is read from its source or, if that was compiled before, from a cache beside it. One that is written is
    code that the run makes for itself."""
    if path.endswith(".pyc"):
        folder, found, name = path.rpartition(_CACHE)
        if not found or mode == "w":
            return
        path = os.path.join(folder, name.partition(".")[0] + ".py")
    mode = "m" if mode == "r" else mode
    if (path, mode) in state.known or state.modules >= _MODULES_AT_MOST or not _is_own_module(path):
        return
    state.modules += 1
    state.known.add((path, mode))
    _tell(path, mode, mode == "m")


def _is_own_module(path):
    if path in state.files:
        return True
    if path.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep, _OURS)) or any(
        part in path for part in _INSTALLED
    ):
        return False
    if path.startswith(state.folders):
        return True
    made = os.path.join(os.environ.get("TMPDIR") or "/tmp", "")  # torch's compiler keeps what it generates there
    return not path.startswith(made) and os.sep + "." not in path


def _tell(path, mode, exists):
    known = os.stat(path) if exists else None
    stamp = None if known is None else [known.st_mtime_ns, known.st_size, known.st_ino]
    record.event(protocol.Opened(path, mode, stamp))


def _counts(path):
    trial = record.trial()
    if trial is not None and path.startswith(os.path.join(trial, "")):
        return False  # what the processes of a trial tell each other
    for folder in state.folders:
        if path.startswith(folder):
            rest = path[len(folder) :]
            hidden = rest.startswith(".") or os.sep + "." in rest
            code = rest.endswith(".so") or "site-packages" in rest  # modules are told before
            return not (hidden or code or path.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep)))
    return False
