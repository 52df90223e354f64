"""The folder of a study: whose it is, whether it still fits, who works in it, its store, and how it was asked for."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from bisect_cfg.common.configuration import Purpose
from bisect_cfg.common.json_files import JsonObject, digest, make_folder, write_json
from bisect_cfg.crash import refused_by_machine
from bisect_cfg.errors import InputError
from bisect_cfg.store.inputs import GOOD_SIDE, Target, changed_files, changes, check_target
from bisect_cfg.store.state import EARLIER_FILE, STATE_FILE, State, read_state
from bisect_cfg.store.storage import Held, cannot_open, is_locked, locked, open_storage, sqlite_storage
from bisect_cfg.store.store import Store, StudyHeld

BEGUN = ("trials", "lock", f"{STATE_FILE}.new", "slurm")
"""What a folder holds in which a study has just been begun, also by a process that was killed while it wrote; or is
to be begun by a job."""

STUDIES = Path("bisect-cfg-studies")
"""Where studies lie unless --study says otherwise."""

ANOTHER = "Name another folder with --study DIR."
ANEW = "Start over with --restart (the old study is kept beside it), or name another folder with --study."


def default_folder(target: Target) -> Path:
    """``bisect-cfg-studies/NAME`` here, or NAME-2, ... where another script has that name."""
    ours, number, folder = target.identity(), 1, STUDIES / target.name
    while True:
        check_entries(folder)
        state = read_state(folder)
        if state is None or all(state.target[key] == ours[key] for key in ("script", "arguments")):
            return folder
        number += 1
        folder = folder.with_name(f"{target.name}-{number}")


def check_entries(folder: Path) -> None:
    """See that all we may read or write in a study folder is an ordinary file or folder.

    A folder that somebody else made can hold a link to a file of the user's, which would be written through, or a
    pipe, on which a reader waits for ever. Below a trial's folder the files are the script's own business: they are
    only written into folders that are made anew.
    """
    for place in (folder, folder / "trials", folder / "server"):
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InputError(f"{place} cannot be read: {error.strerror}.", ANOTHER) from None
        for entry in entries:
            if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
                continue
            if not os.path.lexists(folder / STATE_FILE) and any(name not in BEGUN for name in os.listdir(folder)):
                raise _not_free(folder)  # a folder like any other: its links are none of our business
            what = "a symbolic link" if entry.is_symlink() else "neither a file nor a folder"
            raise InputError(
                f"{entry.path} is {what}; a study folder made by bisect-cfg holds no such thing.",
                "Nothing was written. Name another folder with --study DIR, or remove it.",
            )


@contextlib.contextmanager
def open_study(
    target: Target,
    now: State,
    folder: Path | None,
    *,
    storage: str | None = None,
    restart: bool = False,
    written: Callable[[Path], Iterable[str]] = lambda folder: (),
) -> Iterator[tuple[Path, State, Store]]:
    """Open or make the folder of a study; it is locked while we work in it, and we are the one writer of the store. A
    folder that is refused stays as it was.

    Args:
        target: what is bisected.
        now: what a study that begins here rests on. In one that goes on it must still be so.
        folder: None for the default.
        storage: address of the storage for the trials; None for a database in the folder.
        restart: whether an old study is put aside.
        written: what the runs of a study have written, asked only where an input is not what it was.

    Raises:
        InputError: not writable, of another script, changed since, or in use.
    """
    folder = (folder or default_folder(target)).absolute()
    with contextlib.ExitStack() as held:
        held.enter_context(ready_folder(target, folder, restart))
        state = read_state(folder)
        if state is None:
            state = now
            state.save(folder)
        store = _open_store(folder, state, storage, target.name)
        if changed_files(target, state):
            state.written = sorted({*state.written, *written(folder)})
        _check_unchanged(folder, state, now, target, store)
        try:
            held.enter_context(store.alive())
        except StudyHeld as error:
            raise InputError(f"{str(error).capitalize()}.", "Or name another storage with --storage.") from None
        yield folder, state, store


@contextlib.contextmanager
def ready_folder(target: Target, folder: Path, restart: bool = False) -> Iterator[None]:
    """With the folder of a study there and held, and an old study put aside if that is wanted, see `open_study`."""
    with contextlib.ExitStack() as held:
        try:
            if folder.exists() and not folder.is_dir():
                raise InputError(f"{folder} is a file, not a folder.", "Name another folder with --study.")
            _check_ours(folder, target, restart)
            if restart and any((folder / name).exists() for name in (STATE_FILE, EARLIER_FILE)):
                with _at_work(folder):  # the old study is another script's, perhaps, or somebody works in it
                    _check_ours(folder, target, restart=True)
                    beside = (folder.with_name(f"{folder.name}.old-{i}") for i in itertools.count(1))
                    folder.rename(next(path for path in beside if not os.path.lexists(path)))
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(folder)
            held.enter_context(_at_work(folder))
            _check_ours(folder, target)  # again, as another one may have begun a study here meanwhile
            make_folder(folder / "trials")
        except OSError as error:
            raise InputError(
                f"The study folder {folder} cannot be written: {error.strerror}.", "Name another one with --study DIR."
            ) from None
        yield


def _open_store(folder: Path, state: State, address: str | None, name: str) -> Store:
    """The store of a study, in its folder or where the user wants it."""
    try:
        if not address:
            return Store((), sqlite_storage(folder / "study.db"), name)
        storage = open_storage(address)
        if state.storage != digest(address):  # others may be there whose script has the same name
            state.storage, state.study = digest(address), f"{name}-{uuid.uuid4().hex[:8]}"
            state.save(folder)
        return Store((), storage, state.study)
    except (SQLAlchemyError, ImportError) as error:
        if refused_by_machine(error) or not (address or isinstance(error, DatabaseError)):
            raise
        raise (cannot_open(address, error) if address else cannot_open(folder / "study.db", error, ANEW)) from None


def _check_ours(folder: Path, target: Target, restart: bool = False) -> None:
    """See, without touching anything, that a folder is free or holds a study of this target; one of an earlier version
    only where it is to be put aside."""
    if not folder.is_dir() or (restart and (folder / EARLIER_FILE).is_file()):
        return
    check_entries(folder)
    state = read_state(folder)
    if state is not None:
        check_target(folder, state, target)
        return
    lock, trials = folder / "lock", folder / "trials"
    ours = not lock.exists() or not lock.read_bytes().strip(b"0123456789")
    begun = ours and not (trials.exists() and any(trials.iterdir()))  # by one that was killed, or is just at it
    if not begun or any(entry.name not in BEGUN for entry in folder.iterdir()):
        raise _not_free(folder)


def _not_free(folder: Path) -> InputError:
    return InputError(f"{folder} is not empty and holds no study.", "Name an empty or new folder with --study.")


@contextlib.contextmanager
def _at_work(folder: Path) -> Iterator[None]:
    """With the folder held, so that nobody else works in it."""
    try:
        with locked(folder / "lock"):
            yield
    except Held as error:
        who = f"Another bisect-cfg ({error})" if error.process else "Another bisect-cfg"
        raise InputError(
            f"{who} is working in {folder}.", "Wait for it, or name another folder with --study."
        ) from None


def is_at_work(folder: Path) -> bool:
    """Whether a process works in a study folder at this moment."""
    return is_locked(folder / "lock")


def _check_unchanged(folder: Path, state: State, now: State, target: Target, store: Store) -> None:
    """See that what the trials rest on is what it was. The good side may still change while there is no trial but the
    first run."""
    changed = changes(state, now, target)
    if not changed:
        return
    only_reproduced = all(trial.user_attrs.get("purpose") == Purpose.BAD_BASELINE for trial in store.trials())
    if not only_reproduced or any(name not in GOOD_SIDE for name in changed.values()):
        raise InputError(
            f"Since the study in {folder} was begun, {' and '.join(changed)} changed: its trials say nothing "
            "about the new state.",
            "Start over with --restart (the old study is kept beside it), or name another folder with --study DIR.",
        )
    state.target, state.options = now.target, now.options
    state.save(folder)


# How a study was last asked for, so that `bisect-cfg recommend` can ask again; and whether it was asked for here.
# ``command.json`` is written before the first run, and may be lost: the same `bisect-cfg bisect` writes it again,
# without a trial.


def write_command(folder: Path, command: JsonObject) -> None:
    """Keep how the study was last asked for: "target", "arguments", "folder" (where it was asked), "options", and
    "lines" (see `lines_of`)."""
    made = {**json.loads(json.dumps(command, default=str)), "made": folder.stat().st_ino}
    write_json(folder / "command.json", made)


def written_here(folder: Path, command: JsonObject) -> bool:
    """Whether a study's command, as `read_command` found it, was written by this user into this very folder.

    A folder's number in the file system stays the same when it is renamed and when the machine starts anew. A copy has
    another one, and so has what was unpacked or downloaded, whatever it says of itself.
    """
    mine = os.getuid()
    try:
        for path in (folder, folder / "command.json", folder / STATE_FILE):
            known = os.stat(path)
            if known.st_uid != mine or known.st_mode & stat.S_IWOTH:
                return False
        return bool(command["made"] == folder.stat().st_ino)
    except OSError:
        return False


def lines_of(folder: Path) -> dict[str, str]:
    """What is typed: "own", the user's own command; "bisect", to ask for the study again. Empty if it is not known."""
    try:
        lines = json.loads((folder / "command.json").read_text())["lines"]
        return {name: lines[name] for name in ("own", "bisect") if lines[name] and isinstance(lines[name], str)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_command(folder: Path) -> JsonObject:
    """How the study was last asked for. `InputError` where it is no study, or one that was never finished."""
    check_entries(folder)
    try:
        (folder / "result.json").stat()
        command = json.loads((folder / "command.json").read_text())
        known = ("target", "arguments", "folder", "options")
        return {**{name: command[name] for name in known}, "made": command.get("made")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    if read_state(folder) is None:
        raise InputError(f"{folder} holds no study.", "Name the folder that `bisect-cfg bisect` has written.")
    raise InputError(f"The study in {folder} has no answer yet.", "Finish it with `bisect-cfg bisect` first.")
