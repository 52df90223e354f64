"""What a process saw, written so that it survives the process: one JSON object a line, one `write` each.

``events.jsonl`` holds what happened (a configuration was built, training began, an exception ended it, ...),
``metrics.jsonl`` one line per optimizer step. A line is complete or absent: the process may die of a signal in
the middle of the next machine instruction, and what it wrote before is still there.
"""

import json
import os
import time

_state = {"folder": None, "start": time.time(), "process": None}


def open_folder(folder):
    """Direct all further lines to `folder`."""
    _state["folder"] = folder
    _state["start"] = time.time()
    _state["process"] = os.getpid()


def folder():
    """The folder of the running trial, or None while there is none (a waiting server)."""
    return _state["folder"]


def _append(name, row):
    if _state["folder"] is None or _state["process"] != os.getpid():
        return  # no trial yet, or a helper that the script forked: what happens there is not the training's doing
    line = (json.dumps(row) + "\n").encode()
    handle = os.open(os.path.join(_state["folder"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def event(kind, /, **details):
    """Append one event; `time` is seconds since the trial's process (or fork) began."""
    _append("events.jsonl", {"event": kind, "time": round(time.time() - _state["start"], 4), **details})


def metrics(row):
    """Append the metrics of one optimizer step."""
    _append("metrics.jsonl", {"time": round(time.time() - _state["start"], 4), **row})
