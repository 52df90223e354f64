"""What every trial reads, and whether it still is what it was when the study was begun.

A trial of a script that was edited meanwhile is no evidence about the one that was reproduced. So before and after each
trial all that the study rests on is compared: the script, what its command line names, the modules and data beside it
that its first run has read, the library's files, and the versions of the packages. A look costs a `stat` a file; a file
is read again only when its time, size or number has changed. What a run writes itself is no input.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from bisect_cfg.capture.programs import said_by
from bisect_cfg.capture.script import Script, interpreter
from bisect_cfg.common.fingerprint import PATIENCE, packages_of
from bisect_cfg.errors import InputsChanged
from bisect_cfg.probe.protocol import InputPlaces, Opened
from bisect_cfg.runner.traces import Traces
from bisect_cfg.store.inputs import changed_versions, files_of, hash_of
from bisect_cfg.store.state import State

SOURCES_SEEN = 2000
"""How many entries of the script's folder are looked at before the first run, breadth first: a script may lie in a home
folder. Beyond that, a module that changes while the first run imports it goes unnoticed."""

SETTLING_SECONDS = (0.1, 0.4)
"""Pauses before a file is believed to have changed or gone: an editor that saves makes both for a moment."""

Stamp = tuple[int, int, int]


def stamp_of(path: str | Path) -> Stamp | None:
    """What changes when a file is written or replaced; None if it is not there."""
    try:
        known = os.stat(path)
    except (OSError, ValueError):
        return None
    return known.st_mtime_ns, known.st_size, known.st_ino


class Inputs:
    """Those of one study. Thread-safe.

    Args:
        script: the target.
        folder: of the study.
        state: of the study; what is learned of the inputs is kept there.
    """

    def __init__(self, script: Script, folder: Path, state: State) -> None:
        self._script, self._folder, self._state = script, folder, state
        self._lock = threading.Lock()
        self._stamps: dict[str, Stamp] = {}  # of files whose hash is known to be right
        self._sources = {} if state.modules is not None else dict(_sources(self._script_folder))
        self._sites = _sites(script.python)
        self._site_stamps = self._stamps_of_sites()

    @property
    def _script_folder(self) -> str:
        return os.path.dirname(os.path.abspath(self._script.path))

    def to_note(self) -> InputPlaces:
        """Where the probe looks which files a run opens."""
        folders = sorted({self._script_folder, os.getcwd()})
        return InputPlaces(folders, [os.path.abspath(name) for name in self._script.argument_files()])

    def check(self) -> None:
        """See that nothing has changed.

        Raises:
            InputsChanged: something has; it says what.
        """
        with self._lock:
            changed = [
                path for path, digest in files_of(self._script, self._state).items() if self._differs(path, digest)
            ]
            changed += self._other_versions()
        if changed:
            _stop(changed)

    def after_run(self, traces: Traces) -> None:
        """Learn from a run that is over which modules and files beside the script it read, and which it wrote.

        Raises:
            InputsChanged: one of the modules changed while the first run went on.
        """
        with self._lock:
            state = self._state
            first = state.modules is None
            written = set(state.written)
            news = {row.path for row in _opened(traces, "w")} - written
            written |= news
            ours = {*written, str(self._script.program)}  # a notebook's script; the notebook is compared itself
            imported = {row.path: row.stamp for row in _opened(traces, "m") if row.path not in ours}
            changed = [path for path in imported if first and self._sources.get(path, stamp_of(path)) != stamp_of(path)]
            changed += [path for path, stamp in imported.items() if stamp is None or tuple(stamp) != stamp_of(path)]
            later: dict[str, str] = {}
            if not changed:
                known = {os.path.abspath(path) for path in files_of(self._script, self._state)}
                later = self._hashes(path for path in imported if path not in known)
                if first:
                    state.modules, state.read = later, self._hashes(self._read(traces, known | written))
                else:
                    state.later_modules |= later
            state.written = sorted(written)
            if first or later or news:
                state.save(self._folder)
        if changed:
            _stop(changed)

    def _read(self, traces: Traces, others: set[str]) -> Iterator[str]:
        """Files that a run has read and that nothing has touched since."""
        study = os.path.join(self._folder, "")
        for row in _opened(traces, "r"):
            path, stamp = row.path, stamp_of(row.path)
            if path not in others and not path.startswith(study) and stamp is not None and list(stamp) == row.stamp:
                yield path

    def _hashes(self, paths: Iterable[str]) -> dict[str, str]:
        found = {}
        for path in paths:
            stamp = stamp_of(path)
            with contextlib.suppress(OSError):  # gone again: then it is no input of the next trial
                found[path] = hash_of(Path(path))
                self._stamps[path] = stamp
        return found

    def _differs(self, path: str, digest: str) -> bool:
        stamp = stamp_of(path)
        if stamp is not None and stamp == self._stamps.get(path):
            return False
        for pause in (*SETTLING_SECONDS, 0.0):
            stamp = stamp_of(path)
            with contextlib.suppress(OSError):
                if hash_of(Path(path)) == digest:
                    self._stamps[path] = stamp
                    return False
            time.sleep(pause)
        return True

    def _stamps_of_sites(self) -> list[Stamp | None]:
        return [stamp_of(site) for site in self._sites]

    def _other_versions(self) -> list[str]:
        """Packages that are not what they were; asked only when a folder of packages has changed."""
        stamps = self._stamps_of_sites()
        if stamps == self._site_stamps:
            return []
        changed = changed_versions(self._state, packages_of(self._script.python))
        if not changed:
            self._site_stamps = stamps
        return changed


def written_by_runs(folder: Path) -> set[str]:
    """What the runs of a study folder wrote, those too during which the tool was killed."""
    written: set[str] = set()
    for path in (folder / "trials").glob("*/events.jsonl"):
        traces = Traces.of(path.parent)
        traces.read()
        written |= {row.path for row in _opened(traces, "w")}
    return written


def _stop(changed: list[str]) -> NoReturn:
    what = " and ".join(changed)
    raise InputsChanged(
        f"{what} changed while the trials ran: further trials would not be comparable.",
        "Every trial so far is kept. Put it back as it was and run the same command again to continue, or start "
        "over with --restart "
        "(the old study is kept beside it).",
    )


def _opened(traces: Traces, mode: str) -> list[Opened]:
    return [row for row in traces.all(Opened) if row.mode == mode]


def _sources(folder: str) -> Iterator[tuple[str, Stamp | None]]:
    """The Python files in a folder and below, as they are before the first run."""
    seen, folders = 0, [folder]
    for place in folders:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                seen += 1
                if seen > SOURCES_SEEN:
                    return
                if entry.name.endswith(".py"):
                    yield entry.path, stamp_of(entry.path)
                elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    folders.append(entry.path)


def _sites(python: str) -> list[str]:
    """The folders in which an interpreter finds installed packages."""
    paths = sys.path
    if interpreter(python) != interpreter(sys.executable):
        # Where that is not known, its versions are compared at the start at least.
        paths = said_by([python, "-c", "import json, sys; print(json.dumps(sys.path))"], PATIENCE) or []
    return [path for path in dict.fromkeys(paths) if any(glob.iglob(os.path.join(glob.escape(path), "*.dist-info")))]
