"""The folder of a study: whose it is, whether it still fits, who works in it.

``study.json`` says what the study is of (the script and a hash of it, its arguments, the options that change what
trials mean) and what was decided on the way (the start level, settings moved into the good configuration). Trials of
a script that has changed since are no evidence, so a study that no longer fits is refused, never mixed.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bisect_cfg.capture.script import Script
from bisect_cfg.errors import InputError
from bisect_cfg.jsonfile import OWNER_ONLY, digest, make_folder, write_json
from bisect_cfg.trials.inputs import changed_files, changed_versions, learn_written

GOOD_FILE = "the good file"

BEGUN = ("trials", "lock")
"""What a folder holds in which a study has just been begun."""


def default_folder(script: Script) -> Path:
    """``bisect-cfg-studies/NAME`` here, or NAME-2, ... where another script has that name."""
    base, ours = Path("bisect-cfg-studies"), script.identity()
    for number in range(1, 1000):
        folder = base / (script.name if number == 1 else f"{script.name}-{number}")
        state = _read_state(folder)
        if state is None:
            return folder
        same = {"script", "arguments"}
        if all(state["target"].get(key) == ours[key] for key in same):
            return folder
    raise InputError("bisect-cfg-studies/ has a thousand studies of this name.", "Name one with --study DIR.")


def _read_state(folder: Path) -> dict[str, Any] | None:
    check_entries(folder)
    try:
        state = json.loads((folder / "study.json").read_text())
        if not (isinstance(state, dict) and all(isinstance(state.get(key), dict) for key in ("target", "options"))):
            raise ValueError("it does not describe a study")
        _check_types(state)
        return state
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / 'study.json'} cannot be read: {error}.", "Name another folder with --study, or remove it."
        ) from None


def _check_types(state: Mapping[str, Any]) -> None:
    """Raises ValueError where a value is none that we write: somebody edited the file, or it is not ours."""
    target, tables = state["target"], ("libraries", "modules", "later_modules", "read")
    right = isinstance(target.get("script"), str) and isinstance(target.get("arguments"), list)
    right = right and all(isinstance(one, str) for one in target["arguments"])
    right = right and {"script_hash", "good_file_hash"} <= target.keys()
    for table in (target.get("files", {}), *(state.get(name, {}) for name in tables)):
        right = right and isinstance(table, dict) and all(isinstance(one, (str, type(None))) for one in table.values())
    right = (
        right
        and isinstance(state.get("moved", []), list)
        and all(isinstance(state.get(name), (str, type(None))) for name in ("level", "needed"))
    )
    if not right:
        raise ValueError("it does not describe a study")


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
    script: Script,
    folder: Path | None,
    options: Mapping[str, Any],
    restart: bool = False,
    libraries: Mapping[str, str | None] | None = None,
    gpus: Sequence[str] = (),
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Open or make the study folder; it is locked while we work in it. A folder that is refused stays as it was.

    Args:
        script: the target.
        folder: where; None for the default.
        options: those that change what the trials mean; kept with the study and compared when it is resumed.
        restart: put an old study aside and begin anew.
        libraries: name -> version of what the script may train with, None for what is not installed; another version
            is another study.
        gpus: names of the GPUs here.

    Yields:
        The folder, and the study's state (see `save_state`).

    Raises:
        InputError: not writable, of another script, changed since, or in use.
    """
    folder = (folder or default_folder(script)).absolute()
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, not a folder.", "Name another folder with --study.")
        _check_ours(folder, script)
        if restart and (folder / "study.json").exists():
            _put_aside(folder, script)
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
        _check_ours(folder, script)  # again, as another one may have begun a study here meanwhile
        _make_room(folder)
        state = _read_state(folder)
        if state is None:
            state = {
                "target": script.identity(),
                "options": dict(options),
                "libraries": dict(libraries or {}),
                "gpus": sorted(set(gpus)),
                "anew": restart,
            }
            save_state(folder, state)
        _check_unchanged(folder, state, script, options, libraries or {}, gpus)
        yield folder, state


def _check_ours(folder: Path, script: Script) -> None:
    """See, without touching anything, that a folder is free or holds a study of this script.

    Raises:
        InputError: it is not.
    """
    if not folder.is_dir():
        return
    if _read_state(folder) is not None:
        _check_target(folder, script)
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


def _put_aside(folder: Path, script: Script) -> None:
    """Rename the old study, unless it is another script's or somebody works in it."""
    with _open_lock(folder) as lock:
        _take(lock, folder)
        _check_ours(folder, script)
        names = (folder.with_name(f"{folder.name}.old-{i}") for i in itertools.count(1))
        folder.rename(next(path for path in names if not os.path.lexists(path)))


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the study's state, all or nothing."""
    write_json(folder / "study.json", state)


def identity_of(state: Mapping[str, Any], failure: str, factors: Mapping[str, Any]) -> dict[str, Any]:
    """What is studied: equal for two studies whose trials are evidence for each other.

    Arguments and values are there as digests, since a storage may be shared with others.

    Args:
        state: of the study.
        failure: the signature under study.
        factors: name -> good and bad value.
    """
    target = state["target"]
    beside = os.path.dirname(target["script"])
    files = {
        os.path.relpath(path, beside): value
        for key in ("modules", "read")
        for path, value in state.get(key, {}).items()
    }
    return {
        "script": target["script"],
        "script_hash": target["script_hash"],
        "command": digest([target.get("python"), target["arguments"], target.get("folder")]),
        "files": digest([target.get("files"), files]),
        "good side": digest([target["good_file_hash"], state["options"], factors]),
        "failure": digest(failure),
        "libraries": digest(state.get("libraries")),
        "gpus": state.get("gpus", []),
    }


def write_command(folder: Path, command: Mapping[str, Any]) -> None:
    """Keep how the study was last asked for, so that `bisect-cfg recommend` can ask again."""
    made = {**json.loads(json.dumps(command, default=str)), "made": folder.stat().st_ino}
    write_json(folder / "command.json", made)


def written_here(folder: Path, command: Mapping[str, Any]) -> bool:
    """Whether a study's command was written by this user into this very folder.

    A folder's number in the file system stays the same when it is renamed and when the machine starts anew. A copy has
    another one, and so has what was unpacked or downloaded, whatever it says of itself.

    Args:
        folder: of the study.
        command: what `read_command` found in it.
    """
    mine = os.getuid()
    try:
        for path in (folder, folder / "command.json", folder / "study.json"):
            known = os.stat(path)
            if known.st_uid != mine or known.st_mode & stat.S_IWOTH:
                return False
        return command["made"] == folder.stat().st_ino
    except OSError:
        return False


def read_command(folder: Path) -> dict[str, Any]:
    """How the study was last asked for.

    Raises:
        InputError: it is no study, or one that was never finished.
    """
    check_entries(folder)
    try:
        command = json.loads((folder / "command.json").read_text())
        known = ("target", "arguments", "python", "folder", "options")
        return {**{name: command[name] for name in known}, "made": command.get("made")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    if _read_state(folder) is None:
        raise InputError(f"{folder} holds no study.", "Name the folder that `bisect-cfg bisect` has written.")
    raise InputError(f"The study in {folder} has no answer yet.", "Finish it with `bisect-cfg bisect` first.")


def _check_target(folder: Path, script: Script) -> None:
    state = _read_state(folder)
    if state is None:
        return
    theirs, ours = state["target"], script.identity()
    if theirs["script"] != ours["script"]:
        raise InputError(
            f"{folder} is a study of another script: {theirs['script']}.", "Name another folder with --study DIR."
        )
    if theirs["arguments"] != ours["arguments"]:
        raise InputError(
            f"{folder} is a study of the same script with other arguments: "
            f"{' '.join(theirs['arguments']) or '(none)'}.",
            "Name another folder with --study DIR.",
        )


def _check_unchanged(
    folder: Path,
    state: dict[str, Any],
    script: Script,
    options: Mapping[str, Any],
    libraries: Mapping[str, str | None],
    gpus: Sequence[str],
) -> None:
    theirs, ours = state["target"], script.identity()
    names = {str(script.path): f"the script {script.path}", str(script.good_file): GOOD_FILE}
    if changed_files(script, state):
        learn_written(folder, state)
    changed = [names.get(path, f"the file {path}") for path in changed_files(script, state)]
    if (theirs["good_file_hash"] is None) != (ours["good_file_hash"] is None):
        changed.append(GOOD_FILE)
    for key, what in (("folder", "the folder it is started in"), ("python", "the interpreter")):
        if theirs.get(key, ours[key]) != ours[key]:
            changed.append(f"{what} ({theirs[key]} -> {ours[key]})")
    changed += changed_versions(state, libraries)
    here, there = sorted(set(gpus)), state.get("gpus")
    if here and there and here != there:
        changed.append(f"the GPU ({', '.join(there)} -> {', '.join(here)})")
    for key, value in options.items():
        if state["options"].get(key) != value:
            changed.append(f"--{key}")
    good_side = {GOOD_FILE, "--good", "--only", "--except", "--failure", "--steps"}
    if changed and set(changed) <= good_side and _only_reproduced(folder):
        # The good configuration and the choice of factors were typed wrong, and nothing rests on them yet.
        if "--steps" in changed and (folder / "trials" / "0").exists():
            put_trial_aside(folder / "trials" / "0")
        state.update(target=ours, options=dict(options))
        save_state(folder, state)
        return
    if changed:
        raise InputError(
            f"Since the study in {folder} was begun, {' and '.join(changed)} changed: its trials say nothing about "
            "the new state.",
            "Start over with --restart (the old study is kept beside it), or name another folder with --study DIR.",
        )


def put_trial_aside(folder: Path) -> None:
    """Rename a trial's folder, so that its traces are kept while it is run again."""
    aside = (folder.with_name(f"{folder.name}.interrupted-{i}") for i in itertools.count(1))
    folder.rename(next(path for path in aside if not os.path.lexists(path)))


def _only_reproduced(folder: Path) -> bool:
    """Whether no trial but the first run of the user's own command has been started."""
    return all(path.name.split(".")[0] == "0" for path in (folder / "trials").iterdir())
