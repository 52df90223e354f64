"""What a study rests on, and whether that is still what it was: the target, its files, options, packages and GPUs.

Trials of something else are not comparable, so a study of which something has changed is refused, never mixed; and
before and after each trial all files and versions are compared. A look costs a `stat` a file; a file is read again only
when its time, size or number has changed. What a run writes itself is no input.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bisect_cfg.common.cells import SUFFIX, code_cells
from bisect_cfg.common.fingerprint import packages_of
from bisect_cfg.common.json_files import digest
from bisect_cfg.errors import InputError, InputsChanged, flag_of
from bisect_cfg.probe.protocol import InputPlaces, Opened
from bisect_cfg.store.state import State, TargetIdentity

READ_WHOLE = 1 << 28
"""Files up to this size (256 MiB, a fifth of a second) are hashed; of larger ones the size and the time count."""

SETTLING_SECONDS = (0.1, 0.4)
"""Pauses before a file is believed to have changed or gone: an editor that saves makes both for a moment."""

CODE = (".py", ".sh", ".ipynb")
"""Files of a command that no run of it writes. Whether another one is read or written nobody knows without a probe."""

GOOD_FILE = "good file"

GOOD_SIDE = {GOOD_FILE, "good", "only", "exclude", "failure", "steps"}
"""What may still change while there is no trial but the first run: it may have been mistyped, and nothing rests on it
yet."""


class Target(Protocol):
    """What is bisected, as far as its study needs to know it."""

    @property
    def path(self) -> Path: ...

    @property
    def good_file(self) -> Path | None: ...

    @property
    def name(self) -> str: ...

    @property
    def probed(self) -> bool: ...

    @property
    def program(self) -> Path | None: ...

    @property
    def python(self) -> str: ...

    def identity(self) -> TargetIdentity: ...

    def argument_files(self) -> list[str]: ...


def hash_of(path: Path) -> str:
    """A short hash of a file's content; of a very large file that of its size and time; of a notebook that of its code:
    what its cells printed may change."""
    with path.open("rb") as stream:
        known = os.fstat(stream.fileno())
        if known.st_size > READ_WHOLE:
            return digest([known.st_size, known.st_mtime_ns])
        if path.suffix == SUFFIX:
            with contextlib.suppress(ValueError):
                return digest(code_cells(stream.read().decode()))
            stream.seek(0)
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


# ------------------------------------------------------------------------------------------ when a study is opened


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


def changes(before: State, now: State, target: Target) -> dict[str, str]:
    """What is not what it was, in words -> the name of its option (or `GOOD_FILE`; "" for the rest)."""
    theirs, ours = before.target, now.target
    known = {str(target.path): f"the script {target.path}", str(target.good_file): "the good file"}
    changed = [known.get(path, f"the file {path}") for path in changed_files(target, before)]
    if (theirs["good_file_hash"] is None) != (ours["good_file_hash"] is None):
        changed.append("the good file")
    if theirs["folder"] != ours["folder"]:
        changed.append(f"the folder it is started in ({theirs['folder']} -> {ours['folder']})")
    if theirs["python"] != ours["python"]:
        changed.append(f"the interpreter ({theirs['python']} -> {ours['python']})")
    changed += changed_versions(before, now.libraries)
    if now.gpus and before.gpus and now.gpus != before.gpus:
        changed.append(f"the GPU ({', '.join(before.gpus)} -> {', '.join(now.gpus)})")
    found = {text: GOOD_FILE if text == "the good file" else "" for text in changed}
    # some options are there only where they are given
    names = (name for name in {**before.options, **now.options} if before.options.get(name) != now.options.get(name))
    return found | {flag_of(name): name for name in names}


def files_of(target: Target, state: State) -> dict[str, str]:
    """Path -> hash of every file that a study rests on, as they were."""
    identity = state.target
    found = {str(target.path): identity["script_hash"]}
    if target.good_file is not None and identity["good_file_hash"] is not None:
        found[str(target.good_file)] = identity["good_file_hash"]
    found |= identity["files"] | (state.read or {})
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


# ---------------------------------------------------------------------------------------------------- around each run

Stamp = tuple[int, int, int]


def stamp_of(path: str | Path) -> Stamp | None:
    """What changes when a file is written or replaced; None if it is not there."""
    try:
        known = os.stat(path)
    except (OSError, ValueError):
        return None
    return known.st_mtime_ns, known.st_size, known.st_ino


class Inputs:
    """What the runs of one target read; what is learned of it is kept in the study's state. Thread-safe. `sites`: the
    folders in which its interpreter finds installed packages; none where versions may change."""

    def __init__(self, target: Target, folder: Path, state: State, sites: Sequence[str]) -> None:
        self._target, self._folder, self._state, self._sites = target, folder, state, sites
        self._lock = threading.Lock()
        self._stamps: dict[str, Stamp | None] = {}  # of files whose hash is known to be right
        self._beside = os.path.dirname(os.path.abspath(target.path))
        self._site_stamps = [stamp_of(site) for site in sites]

    def to_note(self) -> InputPlaces:
        """Where the probe looks which files a run opens."""
        folders = sorted({self._beside, os.getcwd()})
        return InputPlaces(folders, [os.path.abspath(name) for name in self._target.argument_files()])

    def check(self) -> None:
        """See that nothing has changed.

        Raises:
            InputsChanged: something has; it says what.
        """
        with self._lock:
            files = files_of(self._target, self._state)
            sure = (path for path in files if self._target.probed or path.endswith(CODE))
            changed = [path for path in sure if self._differs(path, files[path])] + self._other_versions()
        _refuse(changed)

    def after_run(self, opened: Sequence[Opened]) -> None:
        """Learn from a run that is over which modules and files beside the script it read, and which it wrote.

        Raises:
            InputsChanged: one of the modules changed while the run went on.
        """
        with self._lock:
            state, first = self._state, self._state.read is None
            written = {*state.written, *(row.path for row in opened if row.mode == "w")}
            known = {os.path.abspath(path) for path in files_of(self._target, state)} | written
            known.add(str(self._target.program))  # a notebook's script; the notebook is compared itself
            imported = {row.path: row.stamp for row in opened if row.mode == "m" and row.path not in written}
            changed = [path for path, stamp in imported.items() if stamp is None or stamp != stamp_of(path)]
            data = (row for row in opened if row.mode == "r" and first)
            news = [path for path in (*imported, *self._untouched(data)) if path not in known]
            if not changed:
                state.read = {**(state.read or {}), **self._hashes(news)}
            if first or news or len(written) > len(state.written):
                state.written = sorted(written)
                state.save(self._folder)
        _refuse(changed)

    def _untouched(self, read: Iterable[Opened]) -> Iterator[str]:
        """Files that a run has read and that nothing has touched since; what lies in the study is ours."""
        study = os.path.join(self._folder, "")
        for row in read:
            stamp = stamp_of(row.path)
            if not row.path.startswith(study) and stamp is not None and stamp == row.stamp:
                yield row.path

    def _hashes(self, paths: Iterable[str]) -> dict[str, str]:
        found = {}
        for path in paths:
            stamp = stamp_of(path)
            with contextlib.suppress(OSError):  # gone again: then it is no input of the next trial
                found[path] = hash_of(Path(path))
                self._stamps[path] = stamp
        return found

    def _differs(self, path: str, was: str) -> bool:
        stamp = stamp_of(path)
        if stamp is not None and stamp == self._stamps.get(path):
            return False
        for pause in (*SETTLING_SECONDS, 0.0):
            stamp = stamp_of(path)
            with contextlib.suppress(OSError):
                if hash_of(Path(path)) == was:
                    self._stamps[path] = stamp
                    return False
            time.sleep(pause)
        return True

    def _other_versions(self) -> list[str]:
        """Packages that are not what they were; asked only when a folder of packages has changed."""
        stamps = [stamp_of(site) for site in self._sites]
        changed = [] if stamps == self._site_stamps else changed_versions(self._state, packages_of(self._target.python))
        if not changed:
            self._site_stamps = stamps
        return changed


def _refuse(changed: list[str]) -> None:
    if changed:
        raise InputsChanged(
            f"{' and '.join(changed)} changed while the trials ran: further trials would not be comparable.",
            "Every trial so far is kept. Put it back as it was and run the same command again to continue, or start "
            "over with --restart (the old study is kept beside it).",
        )
