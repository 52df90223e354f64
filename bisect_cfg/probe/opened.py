"""Which files of the user's a trial opens: data and configurations that it reads are inputs, what it writes is none.

The tool compares the inputs before each trial. It names the folders that count (the script's, and the one it is started
in) and single files (of its command line). Only this process is heard, not its children, nor libraries that open files
without Python's help.
"""

import sys

from . import record
from .held import os

# A script that opens more than this walks through a data set; its files are then not told apart.
_AT_MOST = 500

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _State:
    folders = ()
    files = frozenset()
    known = None  # {(path, mode)} once the hook stands, which cannot be taken away again
    process = None  # a forked helper of the script's inherits the hook; what it opens is left out


state = _State()


def begin(wanted):
    """Note what is opened from here on.

    `wanted` holds ``folders`` and ``files``, absolute paths; None to note nothing.
    """
    if not wanted:
        return
    state.folders = tuple(os.path.join(folder, "") for folder in wanted["folders"])
    state.files = frozenset(wanted["files"])
    if state.known is None:
        sys.addaudithook(_hook)
    state.known, state.process = set(), os.getpid()


def _hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if mode else bool((flags or 0) & _WRITES)
        _note(path, "w" if writes else "r")
    elif event == "os.rename":  # os.replace too: a file that is written beside its place first
        _note(arguments[1], "w")


def _note(path, mode):
    try:
        if len(state.known) >= _AT_MOST or not isinstance(path, (str, bytes)) or state.process != os.getpid():
            return
        path = os.path.abspath(os.fsdecode(path))
        if (path, mode) in state.known or not (path in state.files or _counts(path)):
            return
        state.known.add((path, mode))
        known = os.stat(path) if mode == "r" else None
        stamp = None if known is None else [known.st_mtime_ns, known.st_size, known.st_ino]
        record.event("opened", path=path, mode=mode, stamp=stamp)
    except Exception:  # raised here it would be the script's open that fails
        return


def _counts(path):
    for folder in state.folders:
        if path.startswith(folder):
            rest = path[len(folder) :]
            hidden = rest.startswith(".") or os.sep + "." in rest
            code = rest.endswith((".py", ".pyc", ".so")) or "site-packages" in rest
            return not (hidden or code or path.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep)))
    return False
