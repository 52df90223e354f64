"""What a study rests on: the target, its inputs, the options and the environment; and whether that is still the same.

Trials of something else are no evidence, so a study whose basis has changed is refused, never mixed. ``study.json`` is
the one record beside the trials: it is written before there are any, and what a file was then no trial can tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict

from bisect_cfg.cells import SUFFIX, code_cells
from bisect_cfg.errors import InputError, flag_of
from bisect_cfg.jsonfile import JsonObject, digest, write_json
from bisect_cfg.probe.secrets import mask

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

    def identity(self) -> JsonObject:
        """What makes this target this target: "script", "arguments", "script_hash", "good_file_hash", "python",
        "folder", "files"."""
        ...


class GivenUp(TypedDict):
    """An origin at which no trials begin any more: its step, 1 if it was the data alone, and the number of the study's
    trials by then, of which none counts."""

    step: int
    data: int
    trials: int


class Basis(TypedDict, total=False):
    """The content of ``study.json``. A study of an earlier version may have further keys, which are not read.

    Attributes:
        target: see `Target.identity`.
        options: those that change what a trial means.
        libraries: name -> version, None for what is not installed.
        gpus: names.
        anew: whether the study was begun with --restart.
        modules: path -> hash of the modules beside the script that the first run has imported.
        read: path -> hash of the files beside it that the first run has read.
        later_modules: path -> hash of modules that only later runs have imported.
        written: what runs have written themselves, so that it is no input.
        studies: digest of a storage's address -> the study's name there.
        given_up: origins from which claims were shown that step 0 then contradicted, in their order.
        identity: of the study, as earlier versions have written it down.
    """

    target: JsonObject
    options: JsonObject
    libraries: dict[str, str | None]
    gpus: list[str]
    anew: bool
    modules: dict[str, str]
    read: dict[str, str]
    later_modules: dict[str, str]
    written: list[str]
    studies: dict[str, str]
    given_up: list[GivenUp]
    identity: JsonObject


TABLES = ("modules", "later_modules", "read", "libraries")
"""What maps paths to hashes, or packages to versions: no secret is in it, and a file may be called token."""


def save_basis(folder: Path, basis: Basis) -> None:
    """Write it, all or nothing."""
    write_json(folder / "study.json", basis, _masked)


def _masked(basis: Basis) -> JsonObject:
    whole = {**mask(basis), **{key: basis[key] for key in TABLES if key in basis}}
    if "files" in basis["target"]:
        whole["target"]["files"] = basis["target"]["files"]
    return whole


def read_basis(folder: Path) -> Basis | None:
    """What the study in a folder rests on; None if there is no study.

    Raises:
        InputError: it cannot be read, or is not ours.
    """
    try:
        basis = json.loads((folder / "study.json").read_text())
        if not _is_ours(basis):
            raise ValueError("it does not describe a study")
        return basis
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / 'study.json'} cannot be read: {error}.", "Name another folder with --study, or remove it."
        ) from None


def _is_ours(basis: object) -> bool:
    """Whether every value is one that we write: otherwise somebody edited the file, or it is not ours."""
    if not (isinstance(basis, dict) and all(isinstance(basis.get(key), dict) for key in ("target", "options"))):
        return False
    target, texts = basis["target"], basis["target"].get("arguments")
    files = ("modules", "later_modules", "read")  # by path, and no path is empty
    return (
        isinstance(target.get("script"), str)
        and all(map(_are_texts, (texts, basis.get("written", []), basis.get("gpus", []))))
        and {"script_hash", "good_file_hash"} <= target.keys()
        and all(map(_is_table, (basis.get(name, {}) for name in ("libraries", "studies"))))
        and all(map(_are_files, (target.get("files", {}), *(basis.get(name, {}) for name in files))))
        and isinstance(basis.get("identity", {}), dict)
        and all(map(_is_given_up, basis.get("given_up", [])))
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_table(table: object) -> bool:
    return isinstance(table, dict) and all(isinstance(one, (str, type(None))) for one in table.values())


def _is_given_up(value: object) -> bool:
    known = isinstance(value, dict) and value.keys() == GivenUp.__annotations__.keys()
    return known and all(isinstance(one, int) for one in value.values())


def _are_files(table: object) -> bool:
    return _is_table(table) and "" not in table


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


def check_target(folder: Path, basis: Basis, target: Target) -> None:
    """See that a study is one of this target.

    Raises:
        InputError: of another script, or with other arguments.
    """
    theirs, ours = basis["target"], target.identity()
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
    basis: Basis,
    target: Target,
    options: JsonObject,
    libraries: Mapping[str, str | None],
    gpus: Sequence[str],
) -> list[Change]:
    """What is not what it was."""
    theirs, ours = basis["target"], target.identity()
    good_file = Change("the good file", GOOD_FILE)
    known = {str(target.path): Change(f"the script {target.path}"), str(target.good_file): good_file}
    changed = [known.get(path, Change(f"the file {path}")) for path in changed_files(target, basis)]
    if (theirs["good_file_hash"] is None) != (ours["good_file_hash"] is None):
        changed.append(good_file)
    for key, what in (("folder", "the folder it is started in"), ("python", "the interpreter")):
        if theirs.get(key, ours[key]) != ours[key]:
            changed.append(Change(f"{what} ({theirs[key]} -> {ours[key]})"))
    changed += map(Change, changed_versions(basis, libraries))
    here, there = sorted(set(gpus)), basis.get("gpus")
    if here and there and here != there:
        changed.append(Change(f"the GPU ({', '.join(there)} -> {', '.join(here)})"))
    before = basis["options"]  # some are there only where they are given
    names = (name for name in {**before, **options} if before.get(name) != options.get(name))
    return changed + [Change(flag_of(name), name) for name in names]


def files_of(target: Target, basis: Basis) -> dict[str, str]:
    """Path -> hash of every file that a study rests on, as they were."""
    identity = basis["target"]
    found = {str(target.path): identity["script_hash"]}
    if target.good_file is not None and identity["good_file_hash"] is not None:
        found[str(target.good_file)] = identity["good_file_hash"]
    for files in (identity.get("files"), basis.get("modules"), basis.get("later_modules"), basis.get("read")):
        found |= files or {}
    written = set(basis.get("written", ()))
    return {path: was for path, was in found.items() if os.path.abspath(path) not in written}


def changed_files(target: Target, basis: Basis) -> list[str]:
    """Those of them that are not what they were."""

    def now(path: str) -> str | None:
        try:
            return hash_of(Path(path))
        except OSError:
            return None

    return [path for path, was in files_of(target, basis).items() if now(path) != was]


def changed_versions(basis: Basis, packages: Mapping[str, str | None]) -> list[str]:
    """Packages whose version is not what it was, in words."""
    return [
        f"{name} ({version or 'not installed'} -> {packages.get(name) or 'not installed'})"
        for name, version in basis.get("libraries", {}).items()
        if packages.get(name) != version
    ]


def add_written(basis: Basis, paths: Iterable[str]) -> None:
    """Take in what runs have written."""
    written = {*basis.get("written", ()), *paths}
    if written:
        basis["written"] = sorted(written)


# ---------------------------------------------------------------------------------------------------- in a storage


def identity_of(basis: Basis, failure: str, factors: JsonObject) -> JsonObject:
    """What is studied: equal for two studies whose trials are evidence for each other.

    Arguments and values are there as digests, since a storage may be shared with others. What later runs have imported
    has no part in it.

    Args:
        basis: of the study.
        failure: the signature under study.
        factors: name -> good and bad value.
    """
    if "identity" in basis:
        return basis["identity"]
    target = basis["target"]
    beside = os.path.dirname(target["script"])
    files = {**basis.get("modules", {}), **basis.get("read", {})}
    return {
        "script": target["script"],
        "script_hash": target["script_hash"],
        "command": digest([target.get("python"), target["arguments"], target.get("folder")]),
        "files": digest([target.get("files"), {os.path.relpath(path, beside): was for path, was in files.items()}]),
        "good side": digest([target["good_file_hash"], basis["options"], factors]),
        "failure": digest(failure),
        "libraries": digest(basis.get("libraries")),
        "gpus": basis.get("gpus", []),
    }
