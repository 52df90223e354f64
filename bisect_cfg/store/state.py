"""The state of a study beside its trials: what it rests on, and what was decided that no trial can tell."""

from __future__ import annotations

from pathlib import Path
from typing import NotRequired, TypedDict

import msgspec

from bisect_cfg.common.files import load_json, read_text
from bisect_cfg.common.json_files import JsonObject, write_json
from bisect_cfg.errors import InputError
from bisect_cfg.probe.redact import mask

STATE_FILE, EARLIER_FILE = "state.json", "study.json"
"""The file in the study folder, and what versions before 2026-12 wrote in its place."""

Hashes = dict[str, str]
"""Path of a file -> hash of its content."""

TABLES = ("read", "libraries")
"""What maps paths to hashes, or packages to versions: no secret is in it, and a file may be called token."""


class TargetIdentity(TypedDict):
    """What makes a target this target."""

    script: str  # path of the file that is run
    arguments: list[str]  # without secrets
    python: str  # path of the interpreter that trains; "" where that is not known
    folder: str  # in which the command was given
    script_hash: str  # of the file
    good_file_hash: str | None  # of the file with the good side; None: there is none
    files: Hashes  # those that the command names
    packages: NotRequired[str]  # digest of what is installed, where packages of a command vary


class Rejected(msgspec.Struct, frozen=True):
    """An origin at which trials begin no more, as step 0 has contradicted what was shown from there."""

    step: int  # of the training
    by_data: bool  # whether it was the data alone, with the weights of step 0
    trials: int  # numbers below this are of trials that count for nothing any more


class State(msgspec.Struct):
    """The content of `state.json`."""

    target: TargetIdentity  # what is bisected
    options: JsonObject  # those that change what a trial means
    libraries: dict[str, str | None] = {}  # name of a package -> its version, None for what is not installed
    gpus: list[str] = []  # their names
    study: str = ""  # name of the Optuna study; "" for one in the folder
    storage: str = ""  # digest of the address of its storage; "" for the folder
    # of the files beside the script that the first run has read, and of the modules that any run has imported; None
    # before the first
    read: Hashes | None = None
    written: list[str] = []  # paths that runs have written themselves, so that they are no input
    rejected: list[Rejected] = []  # origins, in the order in which they were given up

    def save(self, folder: Path) -> None:
        """Write it into a study folder, all or nothing."""
        write_json(folder / STATE_FILE, msgspec.to_builtins(self), _masked)


def _masked(state: JsonObject) -> JsonObject:
    whole = {**mask(state), **{name: state[name] for name in TABLES}}
    whole["target"]["files"] = state["target"]["files"]
    return whole


def read_state(folder: Path) -> State | None:
    """The state of the study in a folder; None if there is no study. `InputError` where it cannot be read."""
    try:
        return msgspec.convert(load_json(read_text(folder / STATE_FILE), ours=True), State)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / STATE_FILE} cannot be read: {error}.", "Name another folder with --study, or remove it."
        ) from None
    if (folder / EARLIER_FILE).is_file():
        raise InputError(
            f"The study in {folder} was begun by an earlier version of bisect-cfg, which this one does not go on with.",
            "Start over with --restart (the old study is kept beside it), or name another folder with --study DIR.",
        )
    return None
