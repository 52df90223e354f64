"""What a study rests on, and whether that is still what it was: the target, its files, options, packages and GPUs.

Trials of something else are no evidence, so a study of which something has changed is refused, never mixed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bisect_cfg.cells import SUFFIX, code_cells
from bisect_cfg.errors import InputError, flag_of
from bisect_cfg.jsonfile import JsonObject, digest
from bisect_cfg.store.state import State, TargetIdentity

READ_WHOLE = 1 << 28
"""Files up to this size (256 MiB, a fifth of a second) are hashed whole."""

SAMPLES, SAMPLE_BYTES = 64, 1 << 16
"""What is read of a larger one; its time of change counts too, so that a change elsewhere is noticed."""

GOOD_FILE = "good file"

GOOD_SIDE = {GOOD_FILE, "good", "only", "except", "failure", "steps"}
"""What may still change while there is no trial but the reproduction: it may have been mistyped, and nothing rests on
it yet."""


@dataclass(frozen=True)
class Change:
    """Something that is not what it was when the study was begun.

    Attributes:
        text: what, in words.
        name: of the option, as the study keeps it, or `GOOD_FILE`; "" for whatever else.
    """

    text: str
    name: str = ""

    def __str__(self) -> str:
        return self.text


class Target(Protocol):
    """What is bisected, as far as its study needs to know it."""

    @property
    def path(self) -> Path: ...

    @property
    def good_file(self) -> Path | None: ...

    @property
    def name(self) -> str: ...

    def identity(self) -> TargetIdentity: ...


def hash_of(path: Path) -> str:
    """A short hash of a file's content; of a very large file that of its size, its time and samples; of a notebook that
    of its code: what its cells printed may change.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        known = os.fstat(stream.fileno())
        if path.suffix == SUFFIX:
            with contextlib.suppress(ValueError):
                return digest(code_cells(stream.read().decode()))
            stream.seek(0)
        if known.st_size <= READ_WHOLE:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
        found = hashlib.sha256(f"{known.st_size} {known.st_mtime_ns}".encode())
        for number in range(SAMPLES):
            stream.seek(number * (known.st_size - SAMPLE_BYTES) // (SAMPLES - 1))
            found.update(stream.read(SAMPLE_BYTES))
        return found.hexdigest()[:16]


# ----------------------------------------------------------------------------------------------- whether it changed


def check_target(folder: Path, state: State, target: Target) -> None:
    """See that a study is one of this target.

    Raises:
        InputError: of another script, or with other arguments.
    """
    theirs, ours = state.target, target.identity()
    if theirs["script"] != ours["script"]:
        raise InputError(
            f"{folder} is a study of another script: it is of {theirs['script']}, this is {ours['script']}.",
            "Name another folder with --study DIR; or, if the same words mean another program here, activate the "
            "environment in which it was begun.",
        )
    if theirs["arguments"] != ours["arguments"]:
        raise InputError(
            f"{folder} is a study of the same script with other arguments: "
            f"{' '.join(theirs['arguments']) or '(none)'}.",
            "Name another folder with --study DIR.",
        )


def changes(
    state: State,
    target: Target,
    options: JsonObject,
    libraries: Mapping[str, str | None],
    gpus: Sequence[str],
) -> list[Change]:
    """What is not what it was."""
    theirs, ours = state.target, target.identity()
    good_file = Change("the good file", GOOD_FILE)
    known = {str(target.path): Change(f"the script {target.path}"), str(target.good_file): good_file}
    changed = [known.get(path, Change(f"the file {path}")) for path in changed_files(target, state)]
    if (theirs["good_file_hash"] is None) != (ours["good_file_hash"] is None):
        changed.append(good_file)
    for key, what in (("folder", "the folder it is started in"), ("python", "the interpreter")):
        if theirs.get(key, ours[key]) != ours[key]:
            changed.append(Change(f"{what} ({theirs[key]} -> {ours[key]})"))
    changed += map(Change, changed_versions(state, libraries))
    here, there = sorted(set(gpus)), state.gpus
    if here and there and here != there:
        changed.append(Change(f"the GPU ({', '.join(there)} -> {', '.join(here)})"))
    before = state.options  # some are there only where they are given
    names = (name for name in {**before, **options} if before.get(name) != options.get(name))
    return changed + [Change(flag_of(name), name) for name in names]


def files_of(target: Target, state: State) -> dict[str, str]:
    """Path -> hash of every file that a study rests on, as they were."""
    identity = state.target
    found = {str(target.path): identity["script_hash"]}
    if target.good_file is not None and identity["good_file_hash"] is not None:
        found[str(target.good_file)] = identity["good_file_hash"]
    for files in (identity["files"], state.modules, state.later_modules, state.read):
        found |= files or {}
    written = set(state.written)
    return {path: was for path, was in found.items() if os.path.abspath(path) not in written}


def changed_files(target: Target, state: State) -> list[str]:
    """Those of them that are not what they were."""

    def now(path: str) -> str | None:
        try:
            return hash_of(Path(path))
        except OSError:
            return None

    return [path for path, was in files_of(target, state).items() if now(path) != was]


def changed_versions(state: State, packages: Mapping[str, str | None]) -> list[str]:
    """Packages whose version is not what it was, in words."""
    return [
        f"{name} ({version or 'not installed'} -> {packages.get(name) or 'not installed'})"
        for name, version in state.libraries.items()
        if packages.get(name) != version
    ]


# ---------------------------------------------------------------------------------------------------- in a storage


def identity_of(state: State) -> JsonObject:
    """What is studied, as far as it is known before the first run: equal for two studies whose trials are evidence for
    each other. Arguments and values are there as digests, since a storage may be shared with others."""
    target = state.target
    return {
        "script": target["script"],
        "script_hash": target["script_hash"],
        "command": digest([target["python"], target["arguments"], target["folder"]]),
        "files": digest(target["files"]),
        "good side": digest([target["good_file_hash"], state.options]),
        "libraries": digest(state.libraries),
        "gpus": state.gpus,
    }


def found_in_first_run(state: State, failure: str, factors: JsonObject) -> JsonObject:
    """The same of what the first run has shown: what the script imports and reads, how it fails, what varies.

    Args:
        state: of the study.
        failure: the signature under study.
        factors: name -> good and bad value.
    """
    beside, files = os.path.dirname(state.target["script"]), {**(state.modules or {}), **state.read}
    return {
        "files read": digest({os.path.relpath(path, beside): was for path, was in files.items()}),
        "failure": digest(failure),
        "settings": digest(factors),
    }
