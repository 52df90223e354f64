"""The folder of a study: whose it is, whether it still fits, who works in it."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import OWNER_ONLY, JsonObject, make_folder
from bisect_cfg.study.basis import (
    GOOD_SIDE,
    Basis,
    Target,
    add_written,
    changed_files,
    changes,
    check_target,
    read_basis,
    save_basis,
)

BEGUN = ("trials", "lock")
"""What a folder holds in which a study has just been begun."""

STUDIES = Path("bisect-cfg-studies")
"""Where studies lie unless --study says otherwise."""


def default_folder(target: Target) -> Path:
    """``bisect-cfg-studies/NAME`` here, or NAME-2, ... where another script has that name."""
    base, ours = STUDIES, target.identity()
    for number in range(1, 1000):
        folder = base / (target.name if number == 1 else f"{target.name}-{number}")
        basis = _read(folder)
        if basis is None or all(basis["target"].get(key) == ours[key] for key in ("script", "arguments")):
            return folder
    raise InputError("bisect-cfg-studies/ has a thousand studies of this name.", "Name one with --study DIR.")


def _read(folder: Path) -> Basis | None:
    check_entries(folder)
    return read_basis(folder)


def check_entries(folder: Path) -> None:
    """See that all we may read or write in a study folder is an ordinary file or folder.

    A folder that somebody else made can hold a link to a file of the user's, which would be written through, or a
    pipe, on which a reader waits for ever. Below a trial's folder the files are the script's own business: they are
    only written into folders that are made anew.

    Raises:
        InputError: something is a link, a pipe or a device.
    """
    for place in (folder, folder / "trials", folder / "server"):
        try:
            with os.scandir(place) as entries:
                odd = [entry.path for entry in entries if not _is_ordinary(entry)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InputError(
                f"{place} cannot be read: {error.strerror}.", "Name another folder with --study DIR."
            ) from None
        if odd:
            if not os.path.lexists(folder / "study.json") and any(name not in BEGUN for name in os.listdir(folder)):
                raise _not_free(folder)  # a folder like any other: its links are none of our business
            what = "a symbolic link" if os.path.islink(min(odd)) else "neither a file nor a folder"
            raise InputError(
                f"{min(odd)} is {what}; a study folder made by bisect-cfg holds no such thing.",
                "Nothing was written. Name another folder with --study DIR, or remove it.",
            )


def _is_ordinary(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


@contextlib.contextmanager
def open_study(
    target: Target,
    folder: Path | None,
    options: JsonObject,
    restart: bool = False,
    libraries: Mapping[str, str | None] | None = None,
    gpus: Sequence[str] = (),
    written: Callable[[Path], Iterable[str]] = lambda folder: (),
) -> Iterator[tuple[Path, Basis]]:
    """Open or make the study folder; it is locked while we work in it. A folder that is refused stays as it was.

    Args:
        target: what is bisected.
        folder: where; None for the default.
        options: those that change what the trials mean; kept with the study and compared when it is resumed.
        restart: put an old study aside and begin anew.
        libraries: name -> version of what the script may train with, None for what is not installed; another version
            is another study.
        gpus: names of the GPUs here.
        written: what the runs of a study folder have written, asked only where an input is not what it was.

    Yields:
        The folder, and what the study rests on.

    Raises:
        InputError: not writable, of another script, changed since, or in use.
    """
    folder = (folder or default_folder(target)).absolute()
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, not a folder.", "Name another folder with --study.")
        _check_ours(folder, target)
        if restart and (folder / "study.json").exists():
            _put_aside(folder, target)
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        lock = _open_lock(folder)
    except OSError as error:
        raise InputError(
            f"The study folder {folder} cannot be written: {error.strerror}.",
            "Name another one with --study DIR.",
        ) from None
    with lock:
        _take(lock, folder)
        _check_ours(folder, target)  # again, as another one may have begun a study here meanwhile
        _make_room(folder)
        basis = _read(folder)
        if basis is None:
            basis = {
                "target": target.identity(),
                "options": dict(options),
                "libraries": dict(libraries or {}),
                "gpus": sorted(set(gpus)),
                "anew": restart,
            }
            save_basis(folder, basis)
        _check_unchanged(folder, basis, target, options, libraries or {}, gpus, written)
        yield folder, basis


def _check_ours(folder: Path, target: Target) -> None:
    """See, without touching anything, that a folder is free or holds a study of this script.

    Raises:
        InputError: it is not.
    """
    if not folder.is_dir():
        return
    basis = _read(folder)
    if basis is not None:
        check_target(folder, basis, target)
        return
    lock, trials = folder / "lock", folder / "trials"
    begun = (  # by a process that was killed, or is just at it
        (not lock.exists() or lock.stat().st_size == 0) and (not trials.exists() or not any(trials.iterdir()))
    )
    if not begun or any(entry.name not in BEGUN for entry in folder.iterdir()):
        raise _not_free(folder)


def _not_free(folder: Path) -> InputError:
    return InputError(f"{folder} is not empty and holds no study.", "Name an empty or new folder with --study.")


def _make_room(folder: Path) -> None:
    try:
        make_folder(folder / "trials")
    except OSError as error:
        raise InputError(
            f"{folder / 'trials'} cannot be made: {error.strerror}.", "Name another folder with --study DIR."
        ) from None


def _open_lock(folder: Path) -> IO[str]:
    """The lock's file; never another one that a link leads to, and nothing in it is touched."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(folder / "lock", flags, OWNER_ONLY), "r+")


def _take(lock: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            f"Another bisect-cfg is working in {folder}.", "Wait for it, or name another folder with --study."
        ) from None


def is_at_work(folder: Path) -> bool:
    """Whether a process works in a study folder at this moment."""
    try:
        with open(folder / "lock", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _put_aside(folder: Path, target: Target) -> None:
    """Rename the old study, unless it is another script's or somebody works in it."""
    with _open_lock(folder) as lock:
        _take(lock, folder)
        _check_ours(folder, target)
        names = (folder.with_name(f"{folder.name}.old-{i}") for i in itertools.count(1))
        folder.rename(next(path for path in names if not os.path.lexists(path)))


def _check_unchanged(
    folder: Path,
    basis: Basis,
    target: Target,
    options: JsonObject,
    libraries: Mapping[str, str | None],
    gpus: Sequence[str],
    written: Callable[[Path], Iterable[str]],
) -> None:
    if changed_files(target, basis):
        add_written(basis, written(folder))
    changed = changes(basis, target, options, libraries, gpus)
    names = {change.name for change in changed}
    if changed and names <= GOOD_SIDE and _only_reproduced(folder):
        if "steps" in names and (folder / "trials" / "0").exists():
            put_trial_aside(folder / "trials" / "0")
        basis.update(target=target.identity(), options=dict(options))
        save_basis(folder, basis)
    elif changed:
        raise InputError(
            f"Since the study in {folder} was begun, {' and '.join(map(str, changed))} changed: its trials say nothing "
            "about the new state.",
            "Start over with --restart (the old study is kept beside it), or name another folder with --study DIR.",
        )


def put_trial_aside(folder: Path) -> None:
    """Rename a trial's folder, so that its traces are kept while it is run again."""
    aside = (folder.with_name(f"{folder.name}.interrupted-{i}") for i in itertools.count(1))
    folder.rename(next(path for path in aside if not os.path.lexists(path)))


def _only_reproduced(folder: Path) -> bool:
    """Whether no trial but the first run of the user's own command has been started."""
    return all(path.name.split(".")[0] == "0" for path in (folder / "trials").iterdir())
