"""What a process saw, written so that it survives the process: one JSON object a line, one `write` each.

``events.jsonl`` holds what happened (a configuration was built, training began, an exception ended it, ...),
``metrics.jsonl`` one line per optimizer step. A line is complete or absent: the process may die of a signal in
the middle of the next machine instruction, and what it wrote before is still there.

Those two files are of the process that trains: the first process of a run, until another one that it has started
begins to train (`claim`). The others, forked or started anew, write into files of their own in ``children/``, named by
their process id.
"""

from . import children, protocol, redact
from .standard_library import json, open, os, time

_state: dict = {"folder": None, "start": time.time(), "process": None, "first": None}


def open_folder(folder, first=True):
    """Direct all further lines to `folder`; `first` says whether this is the first process of the run."""
    _state["folder"] = folder
    _state["start"] = time.time()
    _state["process"] = _state["first"] = os.getpid() if first else None


def private(path, flags):
    """An `opener` for `open`: a new file is readable by its owner only."""
    return os.open(path, flags, 0o600)


def move(place):
    """Direct all further lines to `place` of the same trial. Its time goes on: how long a run took to begin its
    training says how long others may take."""
    _state.update(folder=place, process=None, first=None)


def folder():
    """The folder that is written into, that of the trial or a part of it (see `ranks`); None while there is no trial (a
    waiting server)."""
    return _state["folder"]


def ours():
    """Whether what happens here is the trial's: this is the first process of the run, or the one that trains."""
    return _state["process"] == os.getpid()


def first():
    """Whether this is the first process of the run."""
    return _state["first"] == os.getpid()


def claim():
    """This process begins to train: the trial is about it from now on. False if another one trains already."""
    if not children.claim():
        return False
    if not ours():
        for name in (protocol.EVENTS_FILE, protocol.METRICS_FILE):
            try:
                with open(os.path.join(_state["folder"], _own(name)), "rb") as stream:
                    lines = stream.read()
            except OSError:
                continue
            _write(name, lines)
        _state["process"] = os.getpid()
    return True


def _own(name):
    return os.path.join("children", f"{os.getpid()}-{name}")


def _append(name, row):
    if _state["folder"] is None:
        return  # no trial yet
    if not ours():
        name = _own(name)
        os.makedirs(os.path.join(_state["folder"], "children"), 0o700, exist_ok=True)
    _write(name, (json.dumps(redact.mask(row)) + "\n").encode())


def _write(name, lines):
    handle = os.open(os.path.join(_state["folder"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, lines)
    finally:
        os.close(handle)


def event(happened):
    """Append one `protocol.Event`."""
    _append(protocol.EVENTS_FILE, protocol.event_row(happened, time.time() - _state["start"]))


def metrics(row):
    """Append the metrics of one optimizer step."""
    _append(protocol.METRICS_FILE, {"time": round(time.time() - _state["start"], 4), **row})
